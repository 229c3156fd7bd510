"""Speed-ups and their intervals, which hold for few process restarts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.special import stdtr, stdtrit

_Times: TypeAlias = Sequence[float] | np.ndarray | pd.Series | pd.DataFrame


@dataclass(frozen=True)
class Speedup:
    """Speed-ups (baseline / candidate), one per quantity.

    ``log`` holds their logarithms, ``error`` the standard errors of these (NaN where the data allow
    none), ``freedom`` the degrees of freedom of the errors.
    """

    log: np.ndarray
    error: np.ndarray
    freedom: np.ndarray

    @classmethod
    def exactly(cls, change: ArrayLike) -> Speedup:
        """A difference (ratio - 1) without error, such as a margin."""
        log = np.log1p(np.asarray(change, float))
        return cls(log, np.zeros_like(log), np.full_like(log, np.inf))

    @classmethod
    def concatenate(cls, parts: Sequence[Speedup]) -> Speedup:
        """Several speed-ups as one."""
        fields = ("log", "error", "freedom")
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in fields))

    @property
    def value(self) -> np.ndarray:
        """The speed-ups."""
        return np.exp(self.log)

    @property
    def low(self) -> np.ndarray:
        """The lower ends of their 95 % intervals, by Student's t."""
        return np.exp(self.log - self._quantile(0.975))

    @property
    def high(self) -> np.ndarray:
        """The upper ends of their 95 % intervals."""
        return np.exp(self.log + self._quantile(0.975))

    @property
    def distance(self) -> np.ndarray:
        """The end of each interval that is further from 1, as a ratio - 1; infinite without one."""
        return np.expm1(np.nan_to_num(np.abs(self.log) + self._quantile(0.975), nan=np.inf))

    def p_beyond(self, bound: Speedup) -> np.ndarray:
        """P-values of "no further from 1 than ``bound``", whose error counts too.

        Below 0.05 for a bound without error, the whole 95 % interval lies beyond it.
        """
        error, freedom = self._join(bound)
        excess = np.abs(self.log) - np.abs(bound.log)
        with np.errstate(divide="ignore", invalid="ignore"):
            distance = np.where(excess == 0, 0.0, excess / error)
        return np.minimum(2 * stdtr(freedom, -distance), 1.0)

    def minimum_detectable_change(self, bound: Speedup) -> np.ndarray:
        """The least difference, as a ratio - 1, that 4 of 5 repetitions would show to be beyond.

        The multiple of the standard error is that of H. S. Bloom, "Minimum Detectable Effects",
        Evaluation Review 19 (1995).
        """
        error, freedom = self._join(bound)
        multiple = stdtrit(freedom, 0.975) + stdtrit(freedom, 0.8)
        return np.expm1(np.abs(bound.log) + multiple * error)

    def _join(self, bound: Speedup) -> tuple[np.ndarray, np.ndarray]:
        sides = ((np.square(side.error), side.freedom) for side in (self, bound))
        return _join_errors(*sides)

    def _quantile(self, level: float) -> np.ndarray:
        return stdtrit(np.minimum(self.freedom, _NORMAL), level) * self.error


def speedup_of_restarts(
    baseline: _Times,
    candidate: _Times,
    *,
    paired: bool = True,
    resolution: ArrayLike = 0.0,
) -> Speedup:
    """The speed-up from typical times: the ratio of the means over the process restarts.

    Each side has one typical time per restart, of shape ``(restarts,)`` or ``(restarts,
    quantities)``; NaN where one is not positive. Restart ``i`` deviates from the ratio by
    ``baseline[i] / mean(baseline) - candidate[i] / mean(candidate)`` (W. G. Cochran, "Sampling
    Techniques", 1977, chapter 6), and the interval is Student's over these deviations. It holds
    whatever the inferences of one restart have in common (addresses, caches, clock speed), even if
    restarts scatter unequally (S. G. Donald, K. Lang, "Inference with Difference-in-Differences
    and Other Panel Data", Rev. Econ. Stat. 89 (2007); R. Ibragimov, U. K. Müller, "t-Statistic
    Based Correlation and Heterogeneity Robust Inference", J. Bus. Econ. Stat. 28 (2010));
    ``tests/benchmarks/intervals.py`` measures its coverage. A single restart gives no error.

    ``paired``: restart ``i`` measured both sides, interleaved or in turn. Otherwise the restarts of
    the two sides have nothing in common, and the interval is Welch's. ``resolution`` is a standard
    error of the logarithm that more restarts do not reduce, such as that of the clock.
    """
    columns = (np.asarray(side, float).reshape(len(side), -1) for side in (baseline, candidate))
    sides = [np.where(side > 0, side, np.nan) for side in columns]
    before, after = (side / side.mean(axis=0) for side in sides)
    log = np.log(sides[0].mean(axis=0)) - np.log(sides[1].mean(axis=0))
    deviations = [before - after] if paired else [before, after]
    if min(map(len, deviations)) < 2:
        return Speedup(log, np.full_like(log, np.nan), np.ones_like(log))
    parts = [(d.var(axis=0, ddof=1) / len(d), len(d) - 1) for d in deviations]
    return Speedup(log, *_join_errors(*parts, (np.square(resolution), np.inf)))


#: Scatter (standard deviation of the logarithm) of one program's latency from run to run, minutes
#: apart on two busy cores, beyond what the restarts of a run show: 1.5 to 2.4 % in 10 and 18 runs
#: of two models (`tests/benchmarks/repeats.py`), and the error of that.
BETWEEN_RUNS = 0.028


def speedup_of_runs(baseline: _Times, candidate: _Times, *, resolution: ArrayLike = 0.0) -> Speedup:
    """The speed-up between restarts of two separate runs.

    Its error includes `BETWEEN_RUNS` of both, which no restart of either run can show.
    """
    resolution = np.hypot(resolution, math.sqrt(2) * BETWEEN_RUNS)
    return speedup_of_restarts(baseline, candidate, paired=False, resolution=resolution)


#: Student's t of a million degrees of freedom is normal; that of infinitely many is NaN.
_NORMAL = 1e6


def _join_errors(*parts: tuple[np.ndarray, np.ndarray | float]) -> tuple[np.ndarray, np.ndarray]:
    """Standard error and degrees of freedom of a sum of variances with degrees of freedom.

    After F. E. Satterthwaite, "An Approximate Distribution of Estimates of Variance Components",
    Biometrics Bulletin 2 (1946).
    """
    variances = np.array(np.broadcast_arrays(*(variance for variance, _ in parts)), float)
    total = variances.sum(axis=0)
    freedoms = np.array([np.broadcast_to(freedom, total.shape) for _, freedom in parts])
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = (np.square(variances) / freedoms).sum(axis=0)
        freedom = np.where(total > 0, np.square(total) / spread, freedoms.min(axis=0))
    return np.sqrt(total), np.minimum(freedom, _NORMAL)
