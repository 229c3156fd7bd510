"""Robust statistics of times."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from workbench.analyze.latencies import clock_of, pick_timed
from workbench.errors import ComparisonError
from workbench.schema import STATISTICS

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
