"""Compare latencies that were measured at different times, in runs of their own."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy import stats

from workbench.analyze.compare import MARGIN, judge
from workbench.analyze.latencies import clock_of
from workbench.analyze.statistics import midmean
from workbench.errors import ComparisonError
from workbench.schema import COMPARISON, check


def compare_apart(
    baseline: pd.DataFrame,
    candidate: pd.DataFrame,
    *,
    floor: float = 0.0,
    margin: float = MARGIN,
) -> pd.DataFrame:
    """Whether two latencies of different runs differ, by Welch's t test over process restarts.

    Each restart counts with the logarithm of the midmean of its latencies. What changed on the
    machine between the two runs is in the speed-up and not in its interval: interleave them in
    one run where that is possible.

    Parameters
    ----------
    baseline, candidate
        ``schema.LATENCIES``, each of one experiment and thread count.
    floor
        The noise floor as a ratio - 1, from the controls of the runs.
    margin
        Relative difference up to which latencies count as equal.

    Returns
    -------
    DataFrame
        One row of ``schema.COMPARISON`` with, besides, ``floor`` and ``margin``. The interval is
        NaN, and the outcome inconclusive, where a side has only one restart.

    Raises
    ------
    ComparisonError
        A side has no untraced latency.
    """
    before, after = (np.log(_restarts(side)) for side in (baseline, candidate))
    low = high = np.nan
    if min(len(before), len(after)) > 1:
        interval = stats.ttest_ind(before, after, equal_var=False).confidence_interval(0.95)
        low, high = np.exp(interval.low), np.exp(interval.high)
    speedup = np.exp(before.mean() - after.mean())
    row = {
        "level": "e2e",
        "name": "latency",
        "baseline_ms": np.exp(before.mean()),
        "candidate_ms": np.exp(after.mean()),
        "speedup": speedup,
        "low": low,
        "high": high,
        "outcome": judge(speedup, low, high, floor, margin),
        "floor": floor,
        "margin": margin,
    }
    return check(pd.DataFrame([row]), COMPARISON)


def _restarts(latencies: pd.DataFrame) -> np.ndarray:
    """Typical latency of every process, in ms."""
    untraced = latencies[~latencies["traced"]]
    if untraced.empty:
        raise ComparisonError("there is no untraced latency")
    column = clock_of(int(untraced["threads"].iloc[0]))
    typical = untraced.groupby("process")[column].agg(lambda ns: midmean(ns.to_numpy()) / 1e6)
    return typical.to_numpy()
