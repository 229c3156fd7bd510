"""Locks that end with the process that holds them: one measurement at a time on each device."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path

from workbench.errors import StoreError, UsageError
from workbench.run import cache_folder
from workbench.store import safe_name

#: What runs on this very machine, and is disturbed by whatever else does.
THIS_MACHINE = "host"
LOCK = ".batch.lock"


def device_of(target: str) -> str:
    """The device that a target is: an emulated CPU is this machine too."""
    return THIS_MACHINE if target.partition(":")[0] in ("host", "qemu") else target


@contextlib.contextmanager
def take_device(device: str) -> Iterator[float]:
    """Have a device for oneself, once whoever has it is done; gives the seconds that it took.

    This machine is also waited for until nobody shares it.
    """
    with _hold(_lock_of(device), fcntl.LOCK_EX) as waited:
        yield waited


@contextlib.contextmanager
def share_machine() -> Iterator[float]:
    """Work on this machine beside others that do, but not while something is measured on it."""
    with _hold(_lock_of(THIS_MACHINE), fcntl.LOCK_SH) as waited:
        yield waited


def is_taken(device: str) -> bool:
    """Whether somebody has a device for himself now."""
    with _open(_lock_of(device)) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


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
    with _open(path) as lock:
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


def _lock_of(device: str) -> Path:
    # Homes may be shared: what is this machine there is another one here.
    name = f"{device}-{platform.node()}" if device == THIS_MACHINE else device
    return cache_folder() / "locks" / f"{safe_name(name)}.lock"


@contextlib.contextmanager
def _hold(path: Path, mode: int) -> Iterator[float]:
    started = time.monotonic()
    with _open(path) as lock:
        fcntl.flock(lock, mode)
        yield time.monotonic() - started


def _open(path: Path):
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return open(path, "ab+", buffering=0)
    except OSError as error:
        raise StoreError(f"cannot be written: {error.strerror}", where=path) from None
