"""One batch at a time on each folder: a lock that ends with the process that holds it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
from collections.abc import Iterator
from pathlib import Path

from workbench.errors import UsageError
from workbench.run.locks import open_lock

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
