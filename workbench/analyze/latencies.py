"""The raw latencies of a run as one frame."""

from __future__ import annotations

import pandas as pd

from workbench.records import Run
from workbench.schema import LATENCIES, SOURCE, check

SOURCE_NAMES = [name for name, *_ in SOURCE]


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


def add_traced(latencies: pd.DataFrame, ledger: pd.DataFrame, run: Run) -> pd.DataFrame:
    """The latencies with those that are known from traces alone, of runners that tell no times.

    Of these the CPU time is not known: 0.

    Parameters
    ----------
    latencies
        ``schema.LATENCIES``, from `tabulate_latencies`.
    ledger
        ``schema.LEDGER`` of the whole run, with the columns of ``schema.SOURCE``.
    """
    untimed = {(s.experiment, s.threads, s.process) for s in run.sessions if not s.batches}
    if not untimed or ledger.empty:
        return latencies
    times = ledger.groupby([*SOURCE_NAMES, "run"], sort=False)["duration_ns"].sum().reset_index()
    times = times[
        [key in untimed for key in times[SOURCE_NAMES].itertuples(index=False, name=None)]
    ]
    traced = times.rename(columns={"duration_ns": "wall_ns"}).assign(
        traced=True, round=0, batch=0, cpu_ns=0, preempted=0
    )
    parts = [part for part in (latencies, traced[LATENCIES.names]) if len(part)]
    return check(pd.concat(parts, ignore_index=True), LATENCIES)


def pick_timed(latencies: pd.DataFrame) -> pd.DataFrame:
    """The untraced latencies; the traced ones where nothing was measured without tracing."""
    untraced = ~latencies["traced"]
    return latencies[untraced] if untraced.any() else latencies


def clock_of(latencies: pd.DataFrame) -> str:
    """The column that latency is read from: CPU time for one thread, wall time for several.

    CPU time leaves out the time that other programs had the core; with several threads it would
    add up over the cores instead of telling how long the caller waits. Where it is not known,
    wall time has to do.

    Parameters
    ----------
    latencies
        ``schema.LATENCIES`` of one thread count.
    """
    one_thread = (latencies["threads"] == 1).all()
    return "cpu_ns" if one_thread and latencies["cpu_ns"].any() else "wall_ns"
