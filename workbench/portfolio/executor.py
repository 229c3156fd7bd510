"""An end to work that never comes to one.

Who does the work: processes of this machine, or the workers of a cluster.

The workers of a Dask cluster as an office: the same jobs, wherever there is a place for them.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from workbench.errors import SetupError, TargetError, UsageError, WorkbenchError
from workbench.store import atomic_write

if TYPE_CHECKING:
    from distributed import Client, SpecCluster


#: What `faulthandler` writes before the tracebacks.
_OVER = "Timeout ("


@contextlib.contextmanager
def limit_time(note: Path, attempt: str, seconds: float) -> Iterator[None]:
    """End this process if what it does within takes longer; whoever tries again is told.

    A model may hang in native code, which no exception reaches. Where it was goes to ``note``, a
    file; ``attempt`` tells later whether it is of the same one. Of the threads of a process only
    one can be limited at a time.

    Raises
    ------
    WorkbenchError
        An earlier try of this attempt was ended so.
    StoreError
        The note cannot be written.
    """
    earlier = note.read_text(errors="replace") if note.exists() else ""
    if earlier.startswith(attempt) and _OVER in earlier:
        note.unlink()
        error = WorkbenchError(
            f"did not end within {seconds:g} s", hint="its log says where it was"
        )
        error.add_note(earlier)
        raise error
    atomic_write(note, f"{attempt}\n")
    with open(note, "a") as file:
        faulthandler.dump_traceback_later(seconds, exit=True, file=file)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
            note.unlink(missing_ok=True)


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


#: ``--dask local``: a cluster on this machine.
LOCAL, WORKERS = "local", 2
CONNECT_S = 20


class DaskOffice:
    """Hands jobs to a cluster; those of a device to the worker that has it as a resource.

    A job whose worker is lost goes to another one, or to the same when it is back: what the job
    measured before lies on disk, and it goes on from there.
    """

    def __init__(self, client: Client):
        self._client = client

    def start(self, do: Callable[..., Any], job: Any, device: str) -> Future:
        """Have ``do(job)`` done, on the device if one is named."""
        resources = {resource_of(device): 1} if device else None
        return self._client.get_executor(pure=False, resources=resources).submit(do, job)


def resource_of(device: str) -> str:
    """What a worker that has a device declares, one of it."""
    return f"device:{device}"


@contextlib.contextmanager
def open_cluster(address: str, devices: Iterable[str]) -> Iterator[DaskOffice]:
    """The cluster at a scheduler's address; ``local`` or ``local:WORKERS`` starts one here.

    Raises
    ------
    SetupError
        Dask is not installed.
    UsageError
        Not an address, or a number of workers that cannot be.
    TargetError
        No scheduler answers, or no worker has a device.
    """
    try:
        import distributed
    except ModuleNotFoundError:
        raise SetupError(
            "Dask is not installed", hint="pip install 'executorch-workbench[cluster]'"
        ) from None
    kind, _, count = address.partition(":")
    with contextlib.ExitStack() as stack:
        scheduler: Any = address
        if kind == LOCAL:
            scheduler = stack.enter_context(start_cluster(_count(count, address), devices))
        try:
            client = stack.enter_context(distributed.Client(scheduler, timeout=CONNECT_S))
        except (OSError, ValueError) as error:
            raise TargetError(
                f"no Dask scheduler answers: {error}",
                where=address,
                hint="`dask scheduler` starts one; its address looks like tcp://HOST:8786",
            ) from None
        _check_devices(client, devices)
        yield DaskOffice(client)


def start_cluster(workers: int, devices: Iterable[str]) -> SpecCluster:
    """A cluster of processes on this machine, one job each at a time; the first has all devices.

    A worker that dies is started again. Nobody but this machine's users can connect to it.
    """
    from distributed import Nanny, Scheduler, SpecCluster

    has = {resource_of(device): 1 for device in devices}
    options = {"nthreads": 1, "host": "127.0.0.1", "dashboard": False, "silence_logs": 50}
    return SpecCluster(
        scheduler={
            "cls": Scheduler,
            "options": {"host": "127.0.0.1", "port": 0, "dashboard": False},
        },
        workers={
            number: {"cls": Nanny, "options": options | {"resources": has if number == 0 else {}}}
            for number in range(workers)
        },
        silence_logs=50,
    )


def _count(text: str, address: str) -> int:
    if text and not (text.isdecimal() and 1 <= int(text) <= 256):
        raise UsageError("is no number of workers", where=f"--dask {address}", hint="local:2")
    return int(text or WORKERS)


def _check_devices(client: Client, devices: Iterable[str]) -> None:
    """Refuse what would wait for ever, and what two machines would measure in turns."""
    offered = [
        name
        for worker in client.scheduler_info(n_workers=-1)["workers"].values()
        for name in worker.get("resources", {})
    ]
    for device in devices:
        resource = resource_of(device)
        if offered.count(resource) != 1:
            found = "no worker has" if resource not in offered else "several workers have"
            raise TargetError(
                f"{found} the device",
                where=device,
                hint=f"dask worker ADDRESS --nthreads 1 --resources '{resource}=1', just once",
            )
