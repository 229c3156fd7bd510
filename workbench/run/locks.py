"""File locks: one measurement at a time on a device, one batch at a time on a folder."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from workbench.errors import StoreError, UsageError
from workbench.store import cache_folder, safe_name

#: The device that is this machine, disturbed by everything else that runs on it.
THIS_MACHINE = "host"
BATCH_LOCK = ".batch.lock"

_locked: ContextVar[tuple[str, ...]] = ContextVar("locked", default=())
#: Descriptors of this machine's lock, while this process holds it.
_descriptors: ContextVar[tuple[int, ...]] = ContextVar("descriptors", default=())
_libc = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


def runner_options() -> dict[str, Any]:
    """Options of `Popen` for a runner, so that none disturbs the next measurement.

    It runs in its own session, so that killing it also kills its children; on Linux it is killed
    when this process dies; and what survives that keeps this machine locked.
    """
    options: dict[str, Any] = {"start_new_session": True, "pass_fds": _descriptors.get()}
    if sys.platform == "linux":
        options["preexec_fn"] = lambda: _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    return options


def device_behind(target: str) -> str:
    """The device of a target; an emulated CPU is this machine."""
    return THIS_MACHINE if target.partition(":")[0] in ("host", "qemu") else target


@contextlib.contextmanager
def lock_device(device: str, tell: Callable[[str], None] = lambda text: None) -> Iterator[float]:
    """Lock a device, after a message if it is in use; yields the seconds waited. May be nested."""
    if device in _locked.get():
        yield 0.0
        return
    with _hold_device(device, fcntl.LOCK_EX, tell) as (waited, descriptor):
        locked = _locked.set((*_locked.get(), device))
        # A device's lock is not inherited: adb may leave a server behind.
        held = (descriptor,) if device == THIS_MACHINE else _descriptors.get()
        descriptors = _descriptors.set(held)
        try:
            yield waited
        finally:
            _locked.reset(locked)
            _descriptors.reset(descriptors)


@contextlib.contextmanager
def share_machine(tell: Callable[[str], None] = lambda text: None) -> Iterator[float]:
    """Lock this machine for work that may run beside other work, but not beside a measurement."""
    with _hold_device(THIS_MACHINE, fcntl.LOCK_SH, tell) as (waited, _):
        yield waited


def is_locked(device: str) -> bool:
    """Whether the device is locked exclusively."""
    try:
        with _hold(_device_lock(device), fcntl.LOCK_SH, _refuse):
            return False
    except BlockingIOError:
        return True


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock a folder for one batch; UsageError if another batch holds it."""

    def refuse(holder: str) -> None:
        what = f"another batch is running here ({holder or 'unknown'})"
        raise UsageError(what, where=folder, hint="wait for it, or choose another --out")

    with _hold(folder / BATCH_LOCK, fcntl.LOCK_EX, refuse):
        yield


def _device_lock(device: str) -> Path:
    # The cache may be on a home folder that several machines share.
    name = f"{device}-{platform.node()}" if device == THIS_MACHINE else device
    return cache_folder() / "locks" / f"{safe_name(name)}.lock"


@contextlib.contextmanager
def _hold_device(
    device: str, mode: int, tell: Callable[[str], None]
) -> Iterator[tuple[float, int]]:
    """Hold a device's lock; yields the seconds waited, and its descriptor."""
    name, started = "this machine" if device == THIS_MACHINE else device, time.monotonic()
    text = f"another measurement or batch is running on {name}: waiting"
    with _hold(_device_lock(device), mode, lambda holder: tell(text)) as descriptor:
        yield time.monotonic() - started, descriptor


def _refuse(holder: str) -> None:
    raise BlockingIOError


@contextlib.contextmanager
def _hold(path: Path, mode: int, busy: Callable[[str], None]) -> Iterator[int]:
    """Lock a file; if others hold it, call ``busy`` with the last exclusive holder, then wait."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "ab+", buffering=0)  # noqa: SIM115, closed below
    except OSError as error:
        hint = "set XDG_CACHE_HOME to a writable folder, or choose another --out"
        raise StoreError(f"cannot be written: {error.strerror}", where=path, hint=hint) from None
    with file:
        try:
            fcntl.flock(file, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            busy(path.read_text(errors="replace").strip()[:100])
            fcntl.flock(file, mode)
        if mode == fcntl.LOCK_EX:
            os.ftruncate(file.fileno(), 0)
            os.write(file.fileno(), f"process {os.getpid()} on {platform.node()}\n".encode())
        yield file.fileno()
