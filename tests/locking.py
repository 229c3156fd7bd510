"""Locks of a machine and of a device, as other processes hold them."""

import contextlib
import fcntl
import os
from pathlib import Path


def lock_of(device="host"):
    return Path(os.environ["WORKBENCH_LOCKS"]) / f"executorch-workbench-{device}.lock"


@contextlib.contextmanager
def hold(path, mode=fcntl.LOCK_EX):
    """Hold a lock as another process does that measures (or exports: LOCK_SH)."""
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, mode | fcntl.LOCK_NB)
        yield lambda: fcntl.flock(file, fcntl.LOCK_UN)


def is_locked(path):
    try:
        with hold(path, fcntl.LOCK_SH):
            return False
    except BlockingIOError:
        return True
