"""Runs of benchmarks that are made once."""

import workbench as wb
from workbench.store import find_runs, load_run


def resume(folder, programs, options):
    """A run of some programs; the next call opens it."""
    runs = [path for path in find_runs(folder / "runs") if load_run(path).state == "complete"]
    return wb.open_run(runs[0]) if runs else wb.measure(programs, options=options, root=folder)
