"""Robust statistics of times.

What the rest of the machine left alone: whole traced runs, and times within them.

The raw latencies of a run as one frame.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from workbench.errors import ComparisonError
from workbench.frames import LATENCIES, SOURCE, STATISTICS, check
from workbench.records.runs import RunRecord

#: Resamplings of every bootstrap; the ends of a 95 % interval then move by about 2 % of its width.
DRAWS = 2000

#: Elements of the largest temporary array of a bootstrap.
CHUNK = 4_000_000


def midmean(values: np.ndarray, axis: int = 0) -> np.ndarray:
    """The mean of the middle half along an axis.

    Up to a quarter of the values may be spoilt by whatever else the machine did; unlike the
    median it still resolves times that are logged in whole microseconds.
    """
    ordered = np.sort(values, axis=axis)
    count = ordered.shape[axis]
    cut = min(int(count / 4 + 0.5), (count - 1) // 2)
    return ordered.take(range(cut, count - cut), axis=axis).mean(axis=axis)


def blocks_of(runs: pd.DataFrame) -> pd.DataFrame:
    """The means of the process restarts; the runs themselves where there is only one restart.

    Parameters
    ----------
    runs
        As `total_runs` has them.
    """
    restarts = runs.groupby(level="process").mean()
    return restarts if len(restarts) > 1 else runs


def half_width(blocks: np.ndarray) -> np.ndarray:
    """Of Student's 95 % interval of the mean over the first axis; NaN for a single block."""
    count = len(blocks)
    if count < 2:
        return np.full(blocks.shape[1:], np.nan)
    return stdtrit(count - 1, 0.975) * blocks.std(axis=0, ddof=1) / np.sqrt(count)


def describe(
    values_ms: Sequence[float], blocks: Sequence[object] | None = None, seed: int = 0
) -> dict[str, float]:
    """The statistics of ``schema.STATISTICS`` for one set of times.

    Parameters
    ----------
    values_ms
        Times in milliseconds.
    blocks
        Which block each time was measured in (a round, say). Neighbours in time resemble one
        another, so the bootstrap of the median resamples whole blocks; None resamples the values.
    seed
        Of the bootstrap.

    Raises
    ------
    ComparisonError
        There are no values.
    """
    values = np.asarray(values_ms, dtype=float)
    if not values.size:
        raise ComparisonError("there are no times to describe")
    ordered = np.sort(values)
    tenth = values.size // 10
    mean = values.mean()
    std = values.std(ddof=1) if values.size > 1 else np.nan
    p25, p50, p75, p90, p95, p99 = np.percentile(values, [25, 50, 75, 90, 95, 99])
    reach = 1.5 * (p75 - p25)
    low, high = _median_interval(values, blocks, seed)
    found = {
        "n": values.size,
        "mean": mean,
        "median": p50,
        "trimmed_mean": ordered[tenth : values.size - tenth].mean(),
        "std": std,
        "cv": std / mean,
        "min": ordered[0],
        "p50": p50,
        "p90": p90,
        "p95": p95,
        "p99": p99,
        "max": ordered[-1],
        "outliers": np.count_nonzero((values < p25 - reach) | (values > p75 + reach)),
        "low": low,
        "high": high,
    }
    return {name: np.asarray(found[name]).item() for name in STATISTICS.names}


def describe_latencies(latencies: pd.DataFrame, clock: str | None = None) -> pd.DataFrame:
    """Statistics of the untraced latencies of every experiment and thread count.

    Parameters
    ----------
    latencies
        ``schema.LATENCIES``.
    clock
        ``cpu_ns`` or ``wall_ns``; None takes CPU time for one thread and wall time for several.

    Returns
    -------
    DataFrame
        ``experiment``, ``threads``, ``clock`` and ``schema.STATISTICS``, in the order in which
        the experiments first appear. The interval of the median tells how well *this* run
        pins it down; whether two experiments differ is for ``compare_latencies`` to say.
    """
    timed = pick_timed(latencies)
    rows = []
    for (experiment, threads), part in timed.groupby(["experiment", "threads"], sort=False):
        column = clock or clock_of(part)
        blocks = part["process"].astype(str) + "/" + part["round"].astype(str)
        found = describe(part[column].to_numpy() / 1e6, blocks.to_numpy())
        rows.append({"experiment": experiment, "threads": threads, "clock": column, **found})
    return pd.DataFrame(rows, columns=["experiment", "threads", "clock", *STATISTICS.names])


def _median_interval(
    values: np.ndarray, blocks: Sequence[object] | None, seed: int
) -> tuple[float, float]:
    """The percentile interval of the median when whole blocks are drawn anew."""
    block_of = np.arange(values.size) if blocks is None else pd.factorize(np.asarray(blocks))[0]
    count = block_of.max() + 1
    if count < 2:
        return np.nan, np.nan
    rng = np.random.default_rng(seed)
    order = np.argsort(values)
    ordered, block_of = values[order], block_of[order]
    step = max(1, CHUNK // values.size)
    medians = []
    for done in range(0, DRAWS, step):
        # How often each value is drawn stands for the draw itself: one sort serves all.
        drawn = rng.multinomial(count, np.full(count, 1 / count), min(step, DRAWS - done))
        seen = np.cumsum(drawn[:, block_of], axis=1)
        medians.append(ordered[np.argmax(2 * seen >= seen[:, -1:], axis=1)])
    low, high = np.percentile(np.concatenate(medians), [2.5, 97.5])
    return low, high


#: A run is quiet if it was off the CPU for at most this part of its time.
STOLEN_LIMIT = 0.02
#: Part of the runs, the fastest of each operator, that count as undisturbed.
_FASTEST = 1 / 4
#: Into how many a single restart is divided, where its scatter has to stand for that of restarts.
_PARTS = 4


def find_quiet_runs(wall_ns: np.ndarray, cpu_ns: np.ndarray, threads: int) -> np.ndarray:
    """Which runs of a trace to keep: those that ran almost without interruption.

    ETDump logs wall time, so whatever another program ran meanwhile is in the operators' times.
    With one thread, wall time less CPU time is what was stolen; the runs in which that is at most
    2 % are kept, and always the quieter half. With several threads CPU time does not tell, and
    every run is kept.

    Parameters
    ----------
    wall_ns, cpu_ns
        Of every run of one process, shape ``(runs,)``.
    threads
        CPU threads of the runner.

    Returns
    -------
    ndarray of bool
        Shape ``(runs,)``.
    """
    wall, cpu = np.asarray(wall_ns, dtype=float), np.asarray(cpu_ns, dtype=float)
    if threads != 1:
        return np.ones(wall.size, dtype=bool)
    stolen = 1 - cpu / np.maximum(wall, 1)
    quieter_half = np.argsort(stolen, kind="stable")[: (stolen.size + 1) // 2]
    keep = stolen <= STOLEN_LIMIT
    keep[quieter_half] = True
    return keep


def undisturbed_times(runs: pd.DataFrame) -> pd.DataFrame:
    """The time that every column took where other programs left it alone, by restart.

    What another program takes of the CPU makes the operator at work longer by whole slices of
    time. It does not hit all alike: a process that just woke up is let run for a while, so what
    comes late in an inference is hit more often. Means, and shares of these, are then off however
    many runs there are; the mean of the fastest quarter of each column is not.

    Parameters
    ----------
    runs
        Of `total_runs`.

    Returns
    -------
    DataFrame
        The same columns; one row for each ``process``, or for each quarter of the only one.
    """
    process = runs.index.get_level_values("process")
    if process.nunique() == 1:
        process = pd.Index(np.arange(len(runs)) * _PARTS // len(runs))
    ordered = {part: np.sort(runs[process == part].to_numpy(), axis=0) for part in process.unique()}
    times = {
        part: values[: math.ceil(_FASTEST * len(values))].mean(axis=0)
        for part, values in ordered.items()
    }
    index = pd.Index(times, name="process")
    return pd.DataFrame(list(times.values()), index, runs.columns)


SOURCE_NAMES = [name for name, *_ in SOURCE]


def tabulate_latencies(run: RunRecord) -> pd.DataFrame:
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


def add_traced(latencies: pd.DataFrame, ledger: pd.DataFrame, run: RunRecord) -> pd.DataFrame:
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
