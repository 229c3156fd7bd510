"""One measurement at a time on each device: locks that end with the process that holds them.

One batch at a time on each folder: a lock that ends with the process that holds it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path

from workbench.errors import StoreError, UsageError
from workbench.store import cache_folder, safe_name

#: What runs on this very machine, and is disturbed by whatever else does.
THIS_MACHINE = "host"

_taken: ContextVar[tuple[str, ...]] = ContextVar("taken", default=())


def device_behind(target: str) -> str:
    """The device that a target is: an emulated CPU is this machine too."""
    return THIS_MACHINE if target.partition(":")[0] in ("host", "qemu") else target


@contextlib.contextmanager
def take_device(device: str, tell: Callable[[str], None] = lambda text: None) -> Iterator[float]:
    """Have a device for oneself, once whoever has it is done; gives the seconds that it took.

    This machine is also waited for until nobody shares it. Who has a device already may take it
    again. That there is something to wait for is told once.
    """
    if device in _taken.get():
        yield 0.0
        return
    with _hold(device, fcntl.LOCK_EX, tell) as waited:
        token = _taken.set((*_taken.get(), device))
        try:
            yield waited
        finally:
            _taken.reset(token)


@contextlib.contextmanager
def share_machine(tell: Callable[[str], None] = lambda text: None) -> Iterator[float]:
    """Work on this machine beside others that do, but not while something is measured on it."""
    with _hold(THIS_MACHINE, fcntl.LOCK_SH, tell) as waited:
        yield waited


def is_taken(device: str) -> bool:
    """Whether somebody has a device for himself now."""
    with _open_device(device) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def open_lock(path: Path, hint: str | None = None):
    """The file of a lock.

    Raises
    ------
    StoreError
        It cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return open(path, "ab+", buffering=0)
    except OSError as error:
        raise StoreError(f"cannot be written: {error.strerror}", where=path, hint=hint) from None


def _open_device(device: str):
    # Homes may be shared: what is this machine there is another one here.
    name = f"{device}-{platform.node()}" if device == THIS_MACHINE else device
    path = cache_folder() / "locks" / f"{safe_name(name)}.lock"
    return open_lock(path, "set XDG_CACHE_HOME to a folder that can be written")


@contextlib.contextmanager
def _hold(device: str, mode: int, tell: Callable[[str], None]) -> Iterator[float]:
    started = time.monotonic()
    with _open_device(device) as lock:
        try:
            fcntl.flock(lock, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            place = "this machine" if device == THIS_MACHINE else device
            tell(f"another measurement or batch is at work on {place}: waiting")
            fcntl.flock(lock, mode)
        yield time.monotonic() - started


LOCK = ".batch.lock"


@contextlib.contextmanager
def take_folder(folder: Path) -> Iterator[None]:
    """Be the only batch on a folder.

    Raises
    ------
    UsageError
        Another one is at work there.
    StoreError
        The folder cannot be written.
    """
    path = folder / LOCK
    with open_lock(path) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            who = path.read_text(errors="replace").strip()[:100] or "unknown"
            raise UsageError(
                f"another batch is at work here ({who})",
                where=folder,
                hint="wait for it, or choose another --out",
            ) from None
        os.ftruncate(lock.fileno(), 0)
        os.write(lock.fileno(), f"process {os.getpid()} on {platform.node()}\n".encode())
        yield
