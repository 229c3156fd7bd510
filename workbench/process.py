"""What loads, exports and code of the user's change in the whole process, and put back."""

import contextlib
import ctypes
import functools
import gc
import io
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TextIO, TypeVar

#: Containers often set it: every process would then compile all packages that it imports.
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
#: Held while anything below is changed, or random numbers, imports or ``sys.path``.
PROCESS_LOCK = threading.RLock()


def write_bytecode() -> None:
    """Let this process and its children keep what they compile, whatever `NO_BYTECODE` says."""
    os.environ.pop(NO_BYTECODE, None)
    sys.dont_write_bytecode = False


def child_environment() -> dict[str, str]:
    """The environment of a child that keeps what it compiles."""
    return {name: value for name, value in os.environ.items() if name != NO_BYTECODE}


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Drop warnings and log lines below CRITICAL: dozens in a successful export; prints pass.

    Garbage is collected less often: an export makes millions of objects that live to its end.
    """
    with PROCESS_LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        level, thresholds = logging.root.manager.disable, gc.get_threshold()
        logging.disable(logging.ERROR)
        gc.set_threshold(200_000, 20, 20)
        try:
            yield
        finally:
            logging.disable(level)
            gc.set_threshold(*thresholds)


#: Entries of Python's stack that frames below may use. CPython keeps frames in chunks of 16 kB, and
#: asks the system for one at each call over the end of a chunk, to give it back at the return: a
#: loop that happens to run at such a depth spent 4 of 20 seconds of an export so.
_STACK_ENTRIES = 2**17


_P = ParamSpec("_P")
_R = TypeVar("_R")


def with_stack(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """A function below which no call needs another chunk of Python's stack."""

    def call(*arguments: _P.args, **options: _P.kwargs) -> _R:
        return function(*arguments, **options)

    # A frame that may need so much gets a chunk of twice the size, whose rest is for its calls.
    call.__code__ = call.__code__.replace(co_stacksize=_STACK_ENTRIES)
    return functools.wraps(function)(call)


#: From this size on, garbage is collected after an export, which takes half a second.
_LARGE_BYTES = 2**25


def release_memory(size_bytes: int) -> None:
    """Give memory back to the system that making a program of this size has freed.

    Graphs of a large one are in cycles, and glibc keeps what is between blocks in use: after
    lowering a model of 346 MB, 333 MB. Other C libraries have no such function.
    """
    if size_bytes >= _LARGE_BYTES:
        gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


@contextlib.contextmanager
def contain() -> Iterator[None]:
    """Put back what code of the user's may change: folder, streams, signals, warnings.

    Folders that it took from Python's path are put back, too: libraries import what they use late.
    """
    is_main = threading.current_thread() is threading.main_thread()
    changed = (signal.SIGINT, signal.SIGTERM)
    handlers = {n: signal.getsignal(n) for n in changed if is_main}
    streams, path = (sys.stdout, sys.stderr), list(sys.path)
    try:
        with contextlib.chdir("."), warnings.catch_warnings():
            yield
    finally:
        sys.path += [folder for folder in path if folder not in sys.path]
        sys.stdout, sys.stderr = streams
        for number, handler in handlers.items():
            if handler is not None:  # None: of C code
                signal.signal(number, handler)


def open_closed_streams() -> None:
    """Write to nowhere where the caller has closed standard output or error."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
            setattr(sys, name, os.fdopen(number, "w", closefd=False))


def _open_stream(descriptor: int, like: TextIO | None = None) -> TextIO:
    """A text stream on a copy of a descriptor; what its encoding lacks is escaped."""
    encoding = like.encoding if like else None
    return open(os.dup(descriptor), "w", buffering=1, encoding=encoding, errors="backslashreplace")


#: Standard output while `claim_stdout` keeps it from everything else.
_claimed: list[TextIO] = []


def output() -> TextIO:
    """The stream that a command prints its results on."""
    return _claimed[-1] if _claimed else sys.stdout


@contextlib.contextmanager
def claim_stdout() -> Iterator[None]:
    """Keep standard output for `output`; whatever else is printed goes to standard error.

    That is what models, libraries and child processes print.
    """
    stdout = sys.stdout
    stdout.flush()
    copy = os.dup(1)
    try:
        is_replaced = stdout.fileno() != 1  # by a test or a notebook
    except (OSError, ValueError):
        is_replaced = True
    _claimed.append(stdout if is_replaced else _open_stream(1, stdout))
    os.dup2(2, 1)
    sys.stdout = _open_stream(2)
    try:
        yield
        output().flush()
    finally:
        sys.stdout = stdout
        os.dup2(copy, 1)
        os.close(copy)
        _claimed.pop()


@contextlib.contextmanager
def collect_stderr() -> Iterator[io.StringIO]:
    """Collect what Python code writes to ``sys.stderr``."""
    with PROCESS_LOCK, contextlib.redirect_stderr(io.StringIO()) as text:
        yield text


@contextlib.contextmanager
def silent_stderr() -> Iterator[io.StringIO]:
    """Hide what C++ code (the CPU detection) writes to standard error; yields the runtime's log.

    That passes through ``sys.stderr``, which in a notebook is not file descriptor 2.
    """
    with collect_stderr() as log:
        saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(null, 2)
            yield log
        finally:
            os.dup2(saved, 2)
            os.close(null)
            os.close(saved)


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute of a library; AttributeError if it has none of that name."""
    with PROCESS_LOCK:
        original = getattr(owner, name)
        setattr(owner, name, value)
        try:
            yield
        finally:
            setattr(owner, name, original)
