"""What comparisons showed: one of four outcomes each, with false discoveries held down."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.stats import false_discovery_control

from workbench.analyze.speedup import Speedup
from workbench.schema import COMPARISON, check

#: Two times closer than this count as equal, unless the caller says otherwise.
MARGIN = 0.02

#: The part of all rows said to be faster or slower that may be so by chance.
FALSE_DISCOVERIES = 0.05


def tabulate_outcomes(
    level: str,
    names: Sequence[str],
    times_ms: tuple[np.ndarray, np.ndarray],
    speedup: Speedup,
    floor: np.ndarray | float = 0.0,
    margin: float = MARGIN,
) -> pd.DataFrame:
    """``schema.COMPARISON`` for the rows of one level, which are judged as one family.

    Parameters
    ----------
    level, names
        What the rows are, and what each is called.
    times_ms
        Typical times of the baseline and of the candidate.
    speedup
        One quantity per row.
    floor, margin
        Noise floor and margin of equivalence, as ratio - 1.
    """
    floor = np.broadcast_to(floor, speedup.log.shape)
    q = adjust_for_many(speedup.p)
    columns = (speedup.value, speedup.low, speedup.high, floor, q)
    table = pd.DataFrame(
        {
            "level": level,
            "name": list(names),
            "baseline_ms": times_ms[0],
            "candidate_ms": times_ms[1],
            "speedup": speedup.value,
            "low": speedup.low,
            "high": speedup.high,
            "outcome": [judge(*row[:4], margin, row[4]) for row in zip(*columns, strict=True)],
            "q": q,
            "detectable": speedup.detectable(floor),
            "floor": floor,
            "margin": margin,
        }
    )
    return check(table, COMPARISON)


def judge(
    speedup: float, low: float, high: float, floor: float, margin: float, q: float = 0.0
) -> str:
    """The outcome of one comparison.

    ``equivalent``: the whole interval lies within the margin (two one-sided tests, each at
    2.5 %). ``faster`` or ``slower``: the interval leaves 1 out, the speed-up is farther from 1
    than the noise floor, and among all rows said to be so 95 % are expected to be.
    ``inconclusive``: neither could be shown.

    Parameters
    ----------
    speedup, low, high
        Baseline / candidate and its interval.
    floor, margin
        As ratio - 1.
    q
        The p-value after ``adjust_for_many``.
    """
    if np.log(high) <= np.log1p(margin) and np.log(low) >= -np.log1p(margin):
        return "equivalent"
    if q > FALSE_DISCOVERIES:
        return "inconclusive"
    if low > 1 and speedup > 1 + floor:
        return "faster"
    if high < 1 and speedup < 1 / (1 + floor):
        return "slower"
    return "inconclusive"


def adjust_for_many(p: np.ndarray) -> np.ndarray:
    """P-values adjusted so that 5 % of those below 0.05 are false discoveries; NaN stays.

    After Y. Benjamini, Y. Hochberg, "Controlling the False Discovery Rate", J. R. Stat. Soc. B 57
    (1995); operators that slow down together do no harm (Benjamini, Yekutieli, Ann. Stat. 29).
    """
    known = np.isfinite(p)
    q = np.full(p.shape, np.nan)
    if known.any():
        q[known] = false_discovery_control(p[known])
    return q
