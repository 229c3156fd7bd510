"""The raw latencies of a run as one frame."""

from __future__ import annotations

import pandas as pd

from workbench.records import Run
from workbench.schema import LATENCIES, check


def tabulate_latencies(run: Run) -> pd.DataFrame:
    """Every timed inference of the finished sessions; one row each, in the order of measurement.

    Returns
    -------
    DataFrame
        ``schema.LATENCIES``, times in nanoseconds.
    """
    rows = [
        (s.experiment, s.threads, s.process, s.traced, b.round, b.batch, *lap)
        for s in run.sessions
        if s.complete
        for b in s.batches
        for lap in zip(b.wall_ns, b.cpu_ns, b.preempted, strict=True)
    ]
    return check(pd.DataFrame(rows, columns=LATENCIES.names), LATENCIES)


def clock_of(threads: int) -> str:
    """The column that latency is read from: CPU time for one thread, wall time for several.

    CPU time leaves out the time that other programs had the core; with several threads it would
    add up over the cores instead of telling how long the caller waits.
    """
    return "cpu_ns" if threads == 1 else "wall_ns"
