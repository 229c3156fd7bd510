"""Who does the work: processes of this machine, or the workers of a cluster."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from importlib import import_module
from typing import Any, Protocol

from workbench.errors import WorkbenchError

#: Processes that may die over one job: the first one may have been the wrong one to end.
MOST_DEATHS = 2


class Office(Protocol):
    """Takes jobs: those of a device one at a time, the others side by side."""

    def start(self, do: Callable[..., Any], job: Any, device: str) -> Future:
        """Have ``do(job)`` done, on the device if one is named."""


class LocalOffice:
    """Processes of this machine: ``jobs`` for any work, one more for each device.

    Each process does one job after the other. One that dies takes down nothing but its job, which
    is tried once more.
    """

    def __init__(self, jobs: int, devices: Iterable[str]):
        self._slots: list[Slot] = []
        self._closed = threading.Event()
        self._here = threading.local()
        self._desks: dict[str, Executor] = {"": ThreadPoolExecutor(jobs)}
        self._desks |= {device: ThreadPoolExecutor(1) for device in devices}
        for device in devices:  # starts while there is nothing to measure yet
            self._desks[device].submit(self._slot)

    def start(self, do: Callable[..., Any], job: Any, device: str) -> Future:
        """Have ``do(job)`` done, on the device if one is named."""
        return self._desks[device].submit(self._do, do, job)

    def close(self) -> None:
        """End all processes at once."""
        self._closed.set()
        for desk in self._desks.values():
            desk.shutdown(wait=False, cancel_futures=True)
        for slot in self._slots:
            slot.end()

    def _do(self, do: Callable[..., Any], job: Any) -> Any:
        for _ in range(MOST_DEATHS):
            with contextlib.suppress(BrokenProcessPool):
                return self._slot().call(do, job)
            self._here.__dict__.pop("slot", None)
            if self._closed.is_set():
                break
        raise WorkbenchError(
            f"its process died {MOST_DEATHS} times",
            hint="out of memory? `dmesg` tells; fewer --jobs take less",
        )

    def _slot(self) -> Slot:
        """The process of this thread."""
        if not hasattr(self._here, "slot"):
            self._here.slot = Slot()
            self._slots.append(self._here.slot)
        return self._here.slot


class Slot:
    """One process."""

    def __init__(self):
        spawn = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(1, mp_context=spawn, initializer=_settle_in)
        self.pid = self.call(os.getpid)

    def call(self, do: Callable[..., Any], *arguments: Any) -> Any:
        """What a function returns over there.

        Raises
        ------
        BrokenProcessPool
            The process died.
        """
        return self._pool.submit(do, *arguments).result()

    def end(self) -> None:
        """End it; a job in it is lost."""
        # Asked politely, a process that has loaded PyTorch takes seconds.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._pool.shutdown(wait=True)


def _settle_in() -> None:
    """Make a fresh process end with the one that started it, and have what jobs need imported."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import_module("workbench.report")


def _end_with_parent() -> None:
    multiprocessing.parent_process().join()
    os._exit(1)


@contextlib.contextmanager
def open_office(jobs: int, devices: Iterable[str]) -> Iterator[LocalOffice]:
    """An office of processes on this machine, closed at the end."""
    office = LocalOffice(jobs, devices)
    try:
        yield office
    finally:
        office.close()
