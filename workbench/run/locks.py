"""File locks: one measurement at a time on a device, one batch at a time on a folder."""

import contextlib
import errno
import fcntl
import io
import os
import platform
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from datetime import datetime
from pathlib import Path
from typing import Any

from workbench.errors import StoreError, UsageError, printable
from workbench.options import Progress, silent
from workbench.process import child_environment
from workbench.run.targets import find_target
from workbench.run.targets.host import Host
from workbench.store import cache_folder, remove_partials, safe_name

#: The device that is this machine, disturbed by everything else that runs on it.
THIS_MACHINE = "host"
BATCH_LOCK = ".batch.lock"
#: Where the locks of all users are, if root made it for that; ``WORKBENCH_LOCKS`` replaces it.
SHARED = (Path("/run/lock"), Path("/tmp"))  # noqa: S108, opened with care

_locked: ContextVar[tuple[str, ...]] = ContextVar("locked", default=())
#: Descriptors of this machine's lock, while this process holds it.
_descriptors: ContextVar[tuple[int, ...]] = ContextVar("descriptors", default=())


def runner_options() -> dict[str, Any]:
    """Options of `Popen` for a runner, so that none disturbs the next measurement.

    It runs in its own session, so that killing it also kills its children; and what survives this
    process keeps this machine locked. Some are in Python.
    """
    options = {"start_new_session": True, "pass_fds": _descriptors.get()}
    return {**options, "env": child_environment()}


def device_behind(target: str) -> str:
    """The device of a target; an emulated CPU is this machine."""
    kind = find_target(target)
    return THIS_MACHINE if kind is Host or kind.emulated else target


@contextlib.contextmanager
def lock_device(
    device: str, progress: Progress = silent, *, shared: bool = False
) -> Iterator[None]:
    """Lock a device, after a message if it is in use. May be nested.

    A ``shared`` lock is for work that may run beside other work, but not beside a measurement.
    """
    if device in _locked.get():
        yield
        return
    mode = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    with _hold_device(device, mode, progress) as descriptor:
        if shared:
            yield
            return
        locked = _locked.set((*_locked.get(), device))
        # A device's lock is not inherited: adb may leave a server behind.
        held = (descriptor,) if device == THIS_MACHINE else _descriptors.get()
        descriptors = _descriptors.set(held)
        try:
            yield
        finally:
            _locked.reset(locked)
            _descriptors.reset(descriptors)


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock a folder for one batch, and clear what was left; UsageError if another has it."""

    def refuse() -> None:
        what = f"another batch is running here{_read_holder(folder / BATCH_LOCK)}"
        raise UsageError(what, where=folder, hint="wait for it, or choose another --out")

    with _hold(folder / BATCH_LOCK, fcntl.LOCK_EX, refuse):
        remove_partials(folder)
        yield


def _device_lock(device: str) -> Path:
    """A device's lock: one for all users, where the system has a place for that."""
    name = f"executorch-workbench-{safe_name(device)}.lock"
    if chosen := os.environ.get("WORKBENCH_LOCKS"):
        return Path(chosen) / name
    for folder in SHARED:
        with contextlib.suppress(OSError):
            status = folder.stat()
            if status.st_uid == 0 and status.st_mode & 0o1002 == 0o1002:  # sticky, for everybody
                return folder / name
    # The cache may be on a home folder that several machines share.
    return cache_folder() / "locks" / f"{platform.node()}-{name}"


def _hold_device(device: str, mode: int, progress: Progress) -> AbstractContextManager[int]:
    name, path = "this machine" if device == THIS_MACHINE else device, _device_lock(device)
    what = f"another measurement or batch is running on {name}"
    return _hold(path, mode, lambda: progress(f"{what}{_read_holder(path)}: waiting", 0.0))


@contextlib.contextmanager
def _hold(path: Path, mode: int, busy: Callable[[], None]) -> Iterator[int]:
    """Lock a file; if others hold it, call ``busy``, then wait. Yields its descriptor."""
    with _open_lock(path) as file:
        is_mine = False
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, mode | fcntl.LOCK_NB)
            is_mine = True
        if not is_mine:
            busy()
            fcntl.flock(file, mode)
        script = Path(sys.argv[0])
        name = script.parent.name if script.stem == "__main__" else script.name
        since = f"{'exporting ' * (mode == fcntl.LOCK_SH)}since {datetime.now():%Y-%m-%d %H:%M:%S}"
        holder = f"{' '.join([name, *sys.argv[1:]]):.100}, PID {os.getpid()}, {since}"
        text = holder.encode(errors="replace")
        os.ftruncate(file.fileno(), 0)
        os.write(file.fileno(), text)
        try:
            yield file.fileno()
        finally:
            if os.pread(file.fileno(), len(text), 0) == text:  # others may share the lock
                os.ftruncate(file.fileno(), 0)


def _read_holder(path: Path) -> str:
    """`` (workbench run x.pte, PID 7, since 2026-01-31 12:00:00)`` or empty: who has a lock."""
    with _open_lock(path) as file:
        text = printable(" ".join(file.read(200).decode(errors="replace").split()))
    return f" ({text})" if text else ""


def _open_lock(path: Path) -> io.FileIO:
    """Open a file that other users may have made, or make it; StoreError if it is no plain file."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(path, flags)
        except FileNotFoundError:  # with O_CREAT, a file of another user cannot be opened
            with contextlib.suppress(FileExistsError):  # made in the meantime
                made = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
                os.fchmod(made, 0o666)
                os.close(made)
            handle = os.open(path, flags)
        file = open(handle, "rb+", buffering=0)  # noqa: SIM115, for the caller
        status = os.fstat(handle)
        if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
            return file
        file.close()
        raise OSError(errno.EINVAL, "is no plain file")
    except OSError as error:
        hint = "delete it, choose another --out, or set WORKBENCH_LOCKS to a writable folder"
        raise StoreError(f"cannot be written: {error.strerror}", where=path, hint=hint) from None
