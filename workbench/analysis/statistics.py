"""Latencies and robust statistics of times."""

import math
from collections.abc import Sequence
from itertools import chain

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from workbench.errors import StoreError, WorkbenchError
from workbench.frames import LATENCIES, SOURCE, STATISTICS
from workbench.records.runs import RunRecord

#: The quantile of the normal distribution for a 95 % interval.
NORMAL_95 = 1.959963984540054


def student_tail(freedom: ArrayLike, t: ArrayLike) -> np.ndarray:
    """The probability that Student's t is above ``t``."""
    from scipy.special import stdtr  # which takes a tenth of a second to import

    return np.asarray(stdtr(freedom, -np.asarray(t)))


def student_quantile(freedom: ArrayLike, p: float = 0.975) -> np.ndarray:
    """Student's t that is exceeded with the probability 1 - ``p``; NaN without any freedom."""
    from scipy.special import stdtrit

    return np.asarray(stdtrit(np.where(np.asarray(freedom) > 0, freedom, np.nan), p))


#: Rows of similar length, at most, that show how rows of that length scatter; fewer than the least
#: show nothing.
NEIGHBOURS, _LEAST_ROWS = 31, 8
#: Most degrees of freedom that rows of similar length add to the variance of a row.
_MOST_PRIOR = 12.0


def average_neighbours(lengths: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The mean of the values of the rows that are most similar in length; NaN values are left out.

    Rows are ordered by length; at the ends, the nearest rows on the other side count instead.
    """
    order = np.argsort(lengths, kind="stable")
    ordered = values[order]
    usable = np.isfinite(ordered)
    sums = np.concatenate([[0.0], np.where(usable, ordered, 0.0).cumsum()])
    counts = np.concatenate([[0], usable.cumsum()])
    window = min(NEIGHBOURS, len(values))
    start = (np.arange(len(values)) - window // 2).clip(0, len(values) - window)
    means = np.empty(len(values))
    with np.errstate(invalid="ignore"):
        number = counts[start + window] - counts[start]
        means[order] = (sums[start + window] - sums[start]) / np.where(number > 0, number, np.nan)
    return means


def moderate_variances(
    variances: np.ndarray, freedom: np.ndarray, lengths: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Variances that borrow strength from rows of similar length, and their degrees of freedom.

    Each is the mean of a row's own and of what rows of its length have typically, weighted by
    degrees of freedom; those of the typical one are estimated from how far rows scatter about it
    (G. K. Smyth, "Linear Models and Empirical Bayes Methods", Stat. Appl. Genet. Mol. Biol. 3
    (2004), section 6). Too few rows stay as they are.
    """
    from scipy.special import digamma, polygamma

    usable = np.isfinite(variances) & (variances > 0) & (freedom > 0)
    if np.count_nonzero(usable) < _LEAST_ROWS:
        return variances, freedom
    half = np.where(usable, freedom, 1.0) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.where(usable, np.log(variances) - digamma(half) + np.log(half), np.nan)
    typical = average_neighbours(lengths, logs)
    # Each row is one of those that its typical variance is the mean of, and so closer to it.
    averaged = min(NEIGHBOURS, int(np.count_nonzero(usable)))
    scatter = np.nanmean(np.square(logs - typical)) * averaged / (averaged - 1)
    excess = scatter - np.nanmean(polygamma(1, half[usable]))
    # At half of the prior degrees of freedom, trigamma is the variance of the logarithms.
    tried = np.geomspace(0.25, _MOST_PRIOR / 2, 200)
    prior = 2 * tried[np.argmin(np.abs(polygamma(1, tried) - excess))]
    variance = np.exp(typical + digamma(prior / 2) - np.log(prior / 2))
    moderated = (prior * variance + freedom * variances) / (prior + freedom)
    return np.where(usable, moderated, variances), np.where(usable, prior + freedom, freedom)


def midmean(values: np.ndarray) -> np.ndarray:
    """The mean of the middle half along the first axis.

    Up to a quarter of the values may be outliers. Unlike the median, it resolves times that are
    logged in whole microseconds.
    """
    return np.sort(values, axis=0)[_middle(len(values))].mean(axis=0)


def middle_half(values: np.ndarray) -> np.ndarray:
    """The places of the values whose mean is the midmean."""
    return np.argsort(values, kind="stable")[_middle(len(values))]


def _middle(count: int) -> np.ndarray:
    cut = min(int(count / 4 + 0.5), (count - 1) // 2)
    return np.arange(cut, count - cut)


def blocks_of(runs: pd.DataFrame) -> pd.DataFrame:
    """The means of the process restarts."""
    return runs.groupby(level="process").mean()


def half_width(blocks: np.ndarray, p: float = 0.975) -> np.ndarray:
    """Half of Student's interval of the mean over the first axis; NaN for a single block.

    By default of 95 %: ``1 - p`` is the probability on each side of it.
    """
    count = len(blocks)
    if count < 2:
        return np.full(blocks.shape[1:], np.nan)
    return student_quantile(count - 1, p) * blocks.std(axis=0, ddof=1) / np.sqrt(count)


def typical_restarts(times: pd.DataFrame) -> pd.DataFrame:
    """The midmean of every column over the rows of each process restart, by ``process``."""
    process, values = times.index.get_level_values("process").to_numpy(), times.to_numpy()
    restarts = np.unique(process)
    midmeans = np.empty((len(restarts), times.shape[1]))
    for row, restart in enumerate(restarts):
        midmeans[row] = midmean(values[process == restart])
    return pd.DataFrame(midmeans, restarts, times.columns)


def restart_latencies(latencies: pd.DataFrame, clock: str | None = None) -> pd.Series:
    """The midmean in ms of every process restart of one experiment and thread count.

    Their mean is *the* latency wherever one number is shown. Traced inferences count only if there
    are no others; ``clock`` None chooses as `clock_of` does.
    """
    timed = pick_timed(latencies)
    column = clock or clock_of(timed)
    return typical_restarts(timed.set_index("process")[[column]] / 1e6)[column]


def summarize_times(values_ms: Sequence[float], processes: Sequence[int] = ()) -> dict[str, float]:
    """The statistics of ``frames.STATISTICS`` for one set of times, and the process of each time.

    Without processes, all times are of one. The interval is Student's over the restarts; one
    restart has none, because inferences of one process do not show how processes differ.
    """
    values = np.asarray(values_ms, dtype=float)
    if not values.size:
        raise WorkbenchError("no times to describe")
    index = pd.Index(processes if len(processes) else np.zeros(values.size, int), name="process")
    restarts = typical_restarts(pd.DataFrame({"ms": values}, index))["ms"].to_numpy()
    ordered = np.sort(values)
    tenth = values.size // 10
    mean = values.mean()
    std = values.std(ddof=1) if values.size > 1 else np.nan
    p25, p50, p75, p90, p95, p99 = np.percentile(values, [25, 50, 75, 90, 95, 99])
    reach = 1.5 * (p75 - p25)
    latency, half = restarts.mean(), half_width(restarts)
    figures = {
        "latency": latency, "low": np.maximum(latency - half, 0.0), "high": latency + half,
        "restarts": restarts.size,
        "trimmed_mean": ordered[tenth : values.size - tenth].mean(),
        "outliers": np.count_nonzero((values < p25 - reach) | (values > p75 + reach)),
        "n": values.size, "mean": mean, "median": p50, "std": std, "cv": std / mean,
        "min": ordered[0], "p50": p50, "p90": p90, "p95": p95, "p99": p99, "max": ordered[-1],
    }  # fmt: skip
    return {name: np.asarray(figures[name]).item() for name in STATISTICS.names}


def tabulate_statistics(latencies: pd.DataFrame) -> pd.DataFrame:
    """The statistics in milliseconds of every experiment and thread count, in order.

    The interval covers the latency that further restarts in *this* run would show;
    `Comparison.latency` says whether two experiments differ.
    """
    timed = pick_timed(latencies)
    rows = []
    for (experiment, threads), part in timed.groupby(["experiment", "threads"], sort=False):
        column = clock_of(part)
        figures = summarize_times(part[column].to_numpy() / 1e6, part["process"].to_numpy())
        rows.append({"experiment": experiment, "threads": threads, "clock": column, **figures})
    names = ["experiment", "threads", "clock", *STATISTICS.names]
    return STATISTICS.check(pd.DataFrame(rows, columns=names))


#: Largest share of its wall time that an undisturbed run spends off the CPU.
PREEMPTED_LIMIT = 0.02
#: The fastest runs of each operator, as a share, that count as undisturbed.
_FASTEST = 1 / 4
#: Number of parts that a single restart is split into, to stand for restarts.
_PARTS = 4


def find_undisturbed_runs(wall_ns: np.ndarray, cpu_ns: np.ndarray, threads: int) -> np.ndarray:
    """Which runs of one process ran almost without interruption.

    ETDump logs wall time, which includes the time that other programs had the CPU: with one thread,
    wall time minus CPU time. Runs are kept where that is at most 2 %, and always the less disturbed
    half. With several threads, CPU time cannot show it and all runs are kept.
    """
    wall, cpu = np.asarray(wall_ns, dtype=float), np.asarray(cpu_ns, dtype=float)
    if threads != 1:
        return np.ones(wall.size, dtype=bool)
    preempted_share = 1 - cpu / np.maximum(wall, 1)
    better_half = np.argsort(preempted_share, kind="stable")[: (preempted_share.size + 1) // 2]
    keep = preempted_share <= PREEMPTED_LIMIT
    keep[better_half] = True
    return keep


def undisturbed_times(runs: pd.DataFrame) -> pd.DataFrame:
    """The times of `total_runs` without interference from other programs, by restart.

    A program that takes the CPU delays the running operator by whole time slices, and hits
    operators late in an inference more often, because the scheduler rarely preempts a process that
    has just woken up. Means, and shares of means, are therefore biased however many runs there are;
    the mean of the fastest quarter of each column is not. A single restart is split into quarters.
    """
    process = runs.index.get_level_values("process")
    if process.nunique() == 1:
        process = pd.Index(np.arange(len(runs)) * _PARTS // len(runs))
    restarts = process.unique()
    times = np.empty((len(restarts), runs.shape[1]))
    for row, restart in enumerate(restarts):
        ordered = np.sort(runs[process == restart].to_numpy(), axis=0)
        times[row] = ordered[: math.ceil(_FASTEST * len(ordered))].mean(axis=0)
    return pd.DataFrame(times, restarts.rename("process"), runs.columns)


def tabulate_latencies(run: RunRecord) -> pd.DataFrame:
    """``frames.LATENCIES`` of the sessions that count, in the order of measurement."""
    batches = [(s, b) for s in run.counted for b in s.batches]
    if any({len(b.wall_ns)} != {len(b.cpu_ns), len(b.preempted)} for _, b in batches):
        raise StoreError("a batch has times of different lengths", where="manifest")
    places = [(s.experiment, s.threads, s.process, s.traced, b.round, b.batch) for s, b in batches]
    counts = [len(batch.wall_ns) for _, batch in batches]
    times = {
        name: np.fromiter(chain.from_iterable(getattr(batch, name) for _, batch in batches), int)
        for name in LATENCIES.names[6:]
    }
    table = pd.DataFrame(places, columns=LATENCIES.names[:6])
    table = table.take(np.repeat(np.arange(len(places)), counts)).reset_index(drop=True)
    return LATENCIES.check(table.assign(**times))


def add_traced(latencies: pd.DataFrame, times: pd.DataFrame, run: RunRecord) -> pd.DataFrame:
    """Add traced inferences of sessions whose runner reported no times; CPU time 0."""
    untimed = {(s.experiment, s.threads, s.process) for s in run.counted if not s.batches}
    if not untimed or times.empty:
        return latencies
    keys = times[SOURCE].itertuples(index=False, name=None)
    times = times[[key in untimed for key in keys]]
    traced = times.rename(columns={"duration_ns": "wall_ns"}).assign(
        traced=True, round=0, batch=0, cpu_ns=0, preempted=0
    )
    parts = [part for part in (latencies, traced[LATENCIES.names]) if len(part)]
    return LATENCIES.check(pd.concat(parts, ignore_index=True))


def pick_timed(latencies: pd.DataFrame) -> pd.DataFrame:
    """The untraced latencies; the traced ones if nothing was measured without tracing."""
    untraced = ~latencies["traced"]
    return latencies[untraced] if untraced.any() else latencies


def compare_traced(latencies: pd.DataFrame) -> float:
    """How much longer traced inferences take than others, by one clock, as a part of these.

    Of one experiment and thread count; NaN without either, or without their times by that clock.
    """
    medians = latencies.groupby("traced")[clock_of(latencies)].median()
    if len(medians) < 2 or medians.min() <= 0:
        return math.nan
    return float(medians[True] / medians[False] - 1)


def clock_of(latencies: pd.DataFrame) -> str:
    """The column to read latency from: CPU time for one thread, wall time for several.

    CPU time excludes the time that other programs had the core, but adds up over several cores.
    Without CPU times: wall time.
    """
    one_thread = (latencies["threads"] == 1).all()
    return "cpu_ns" if one_thread and latencies["cpu_ns"].any() else "wall_ns"
