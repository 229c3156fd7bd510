"""What loads and exports change in the whole process, one thread at a time, and put back."""

import contextlib
import gc
import io
import logging
import os
import threading
import warnings
from collections.abc import Iterator
from typing import Any

#: Held while anything below is changed, or random numbers, imports or ``sys.path``.
PROCESS_LOCK = threading.RLock()


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
