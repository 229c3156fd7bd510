"""Runs of benchmarks that are made once."""

import contextlib
import multiprocessing

import workbench as wb
from workbench.store import find_runs, load_run


def resume(folder, programs, options):
    """A run of some programs; the next call opens it."""
    runs = [path for path in find_runs(folder) if load_run(path).state == "complete"]
    return wb.open_run(runs[0]) if runs else wb.measure(programs, options=options, root=folder)


def spin():
    """Keep a core busy."""
    while True:
        pass


@contextlib.contextmanager
def busy_loops(count):
    """So many busy loops beside what is measured."""
    loops = [multiprocessing.Process(target=spin, daemon=True) for _ in range(count)]
    for loop in loops:
        loop.start()
    try:
        yield
    finally:
        for loop in loops:
            loop.terminate()
