"""Processes for exports; one that dies loses only its own."""

import contextlib
import logging
import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from workbench import WorkbenchError

#: Schedules a function for its argument.
Submit = Callable[..., Future[Any]]


@contextlib.contextmanager
def open_workers(jobs: int) -> Iterator[Submit]:
    """So many spawned processes, which are killed at the end."""
    others, thread = multiprocessing.active_children(), threading.local()
    spawn = multiprocessing.get_context("spawn")

    def call(function: Callable[[Any], Any], job: Any) -> Any:
        try:
            if not hasattr(thread, "process"):
                thread.process = ProcessPoolExecutor(1, spawn, _initialize_process)
            return thread.process.submit(function, job).result()
        except BrokenProcessPool:
            del thread.process
            hint = "if it ran out of memory (see `dmesg`), use fewer --jobs"
            raise WorkbenchError("the worker process died", hint=hint) from None
        except OSError as error:
            what = f"cannot start a worker process: {error.strerror}"
            raise WorkbenchError(what, hint="mount /dev/shm, which has its semaphores") from None

    threads = ThreadPoolExecutor(jobs)
    try:
        yield lambda function, job: threads.submit(call, function, job)
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            if process not in others:
                process.kill()  # SIGTERM takes seconds once PyTorch is loaded
                process.join()


def _initialize_process() -> None:
    """Leave interrupts to the parent, exit with it, and print nothing that packages log."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable(logging.ERROR)
    warnings.showwarning = lambda *_, **__: None
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)
