"""Robust statistics of times, and speed-ups with intervals that hold for few process restarts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from workbench.analyze.latencies import clock_of
from workbench.errors import ComparisonError
from workbench.schema import STATISTICS

#: Resamplings of every bootstrap; the ends of a 95 % interval then move by about 2 % of its width.
DRAWS = 2000

#: Elements of the largest temporary array of a bootstrap.
_CHUNK = 4_000_000


@dataclass(frozen=True)
class Speedup:
    """Speed-ups (baseline / candidate) with the ends of their 95 % intervals, one per quantity.

    An end is NaN where the data allow no interval.
    """

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


def midmean(values: np.ndarray, axis: int = 0) -> np.ndarray:
    """The mean of the middle half along an axis.

    Up to a quarter of the values may be spoilt by whatever else the machine did; unlike the
    median it still resolves times that are logged in whole microseconds.
    """
    ordered = np.sort(values, axis=axis)
    count = ordered.shape[axis]
    cut = min(int(count / 4 + 0.5), (count - 1) // 2)
    return ordered.take(range(cut, count - cut), axis=axis).mean(axis=axis)


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
    untraced = latencies[~latencies["traced"]]
    rows = []
    for (experiment, threads), part in untraced.groupby(["experiment", "threads"], sort=False):
        column = clock or clock_of(threads)
        blocks = part["process"].astype(str) + "/" + part["round"].astype(str)
        found = describe(part[column].to_numpy() / 1e6, blocks.to_numpy())
        rows.append({"experiment": experiment, "threads": threads, "clock": column, **found})
    return pd.DataFrame(rows, columns=["experiment", "threads", "clock", *STATISTICS.names])


def speedup_of_pairs(baseline: Sequence[np.ndarray], candidate: Sequence[np.ndarray]) -> Speedup:
    """The speed-up from rounds in which both were measured side by side.

    Each restart gives one logarithm of a ratio, the midmean over its rounds; the interval is
    Student's over the restarts. It holds whatever the rounds of one restart have in common
    (addresses, caches, clock speed), also where the restarts scatter unequally [1]_, [2]_. A
    bootstrap over restarts and rounds does not: in simulations it covered 82 to 100 % instead
    of 95 % (``tests/test_statistics.py``). A single restart leaves only its rounds to go by; the
    interval is then the bootstrap's, and blind to what a restart would change.

    Parameters
    ----------
    baseline, candidate
        One array per restart, of shape ``(rounds,)`` or ``(rounds, quantities)``: times > 0.

    References
    ----------
    .. [1] S. G. Donald, K. Lang, "Inference with Difference-in-Differences and Other Panel
       Data", Rev. Econ. Stat. 89 (2007).
    .. [2] R. Ibragimov, U. K. Müller, "t-Statistic Based Correlation and Heterogeneity Robust
       Inference", J. Bus. Econ. Stat. 28 (2010).
    """
    ratios = [
        np.log(_columns(before) / _columns(after))
        for before, after in zip(baseline, candidate, strict=True)
    ]
    centres = np.array([midmean(ratio) for ratio in ratios])
    alone = _bootstrap_error(ratios[0], midmean) if len(ratios) == 1 else None
    return _speedup(centres, alone)


def speedup_of_runs(
    baseline: Sequence[np.ndarray],
    candidate: Sequence[np.ndarray],
    resolution: np.ndarray | float = 0.0,
) -> Speedup:
    """The speed-up from runs of the same restart that were not measured side by side.

    As ``speedup_of_pairs``, but with the ratio of the midmeans of each restart.

    Parameters
    ----------
    baseline, candidate
        One array per restart, of shape ``(runs,)`` or ``(runs, quantities)``: times.
    resolution
        Standard error of every ratio that no repetition averages out: that of the clock.

    Returns
    -------
    Speedup
        NaN where a typical time is zero.
    """
    centres = np.array(
        [
            _log_midmean(_columns(before)) - _log_midmean(_columns(after))
            for before, after in zip(baseline, candidate, strict=True)
        ]
    )
    alone = None
    if len(centres) == 1:
        alone = np.hypot(
            _bootstrap_error(_columns(baseline[0]), _log_midmean),
            _bootstrap_error(_columns(candidate[0]), _log_midmean, seed=1),
        )
    return _speedup(centres, alone, resolution)


def _speedup(
    centres: np.ndarray, alone: np.ndarray | None, resolution: np.ndarray | float = 0.0
) -> Speedup:
    """The interval over restarts; ``alone`` is its half width where there is but one."""
    restarts = len(centres)
    centre = centres.mean(axis=0)
    if alone is None:
        alone = stdtrit(restarts - 1, 0.975) * centres.std(axis=0, ddof=1) / np.sqrt(restarts)
    half = np.hypot(alone, 1.96 * np.asarray(resolution))
    return Speedup(np.exp(centre), np.exp(centre - half), np.exp(centre + half))


def _columns(values: np.ndarray) -> np.ndarray:
    values = np.asarray(values, dtype=float)
    return values[:, None] if values.ndim == 1 else values


def _log_midmean(values: np.ndarray, axis: int = 0) -> np.ndarray:
    typical = midmean(values, axis)
    return np.log(np.where(typical > 0, typical, np.nan))


def _bootstrap_error(values: np.ndarray, statistic, seed: int = 0) -> np.ndarray:
    """Half the width of the 95 % interval of a statistic over the rows of one restart."""
    rows, quantities = values.shape
    if rows < 2:
        return np.full(quantities, np.nan)
    rng = np.random.default_rng(seed)
    step = max(1, _CHUNK // values.size)
    draws = np.concatenate(
        [
            statistic(values[rng.integers(0, rows, (min(step, DRAWS - done), rows))], axis=1)
            for done in range(0, DRAWS, step)
        ]
    )
    return stdtrit(rows - 1, 0.975) * draws.std(axis=0, ddof=1)


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
    step = max(1, _CHUNK // values.size)
    medians = []
    for done in range(0, DRAWS, step):
        # How often each value is drawn stands for the draw itself: one sort serves all.
        drawn = rng.multinomial(count, np.full(count, 1 / count), min(step, DRAWS - done))
        seen = np.cumsum(drawn[:, block_of], axis=1)
        medians.append(ordered[np.argmax(2 * seen >= seen[:, -1:], axis=1)])
    low, high = np.percentile(np.concatenate(medians), [2.5, 97.5])
    return low, high
