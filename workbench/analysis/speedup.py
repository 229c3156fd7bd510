"""Speed-ups between process restarts, with intervals that hold for few, and what they show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, TypeAlias, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from workbench.analysis.statistics import (
    NEIGHBOURS,
    average_neighbours,
    moderate_variances,
    student_quantile,
    student_tail,
)
from workbench.errors import WorkbenchError

_T = TypeVar("_T", pd.Series, pd.DataFrame)
_Times: TypeAlias = Sequence[float] | np.ndarray | pd.Series | pd.DataFrame
#: Relative difference up to which two times count as equal, and up to which a part is unchanged:
#: what the bottleneck's move is about.
MARGIN, UNCHANGED_PART = 0.02, 0.1
#: The part of the restarts at each end that does not count in speed-ups of parts, and from how many
#: restarts on: of fewer, intervals of all are narrower, and cover as often or more. In 40 000 draws
#: of five normal values 95.1 % instead of 93.9 %, with a tenth of outliers 96.4 instead of 94.4 %.
TRIMMED, LEAST_TRIMMED = 0.2, 8
#: Expected share of false discoveries among the rows called faster or slower.
FALSE_DISCOVERIES = 0.05
#: Scatter (standard deviation of the logarithm) of one program's latency from run to run, minutes
#: apart on two busy cores, beyond what the restarts of a run show: 1.5 to 2.4 % in 10 and 18 runs
#: of two models (`tests/benchmarks/repeats.py`), and the error of that.
BETWEEN_RUNS = 0.028
#: Degrees of freedom that the control's noise has at least, as those of five restarts.
_LEAST_FREEDOM = 4.0
#: Student's t of a million degrees of freedom is normal; that of infinitely many is NaN.
_NORMAL = 1e6


@dataclass(frozen=True)
class Speedup:
    """Speed-ups (baseline / candidate), one per quantity.

    ``log`` holds their logarithms, ``error`` the standard errors of these (NaN where the data allow
    none), ``freedom`` the degrees of freedom of the errors, ``bias`` the most that the clock may
    have moved the logarithms, which widens the intervals at both ends.
    """

    #: What counts as equal: `MARGIN`.
    margin: ClassVar[float] = MARGIN

    log: np.ndarray
    error: np.ndarray
    freedom: np.ndarray
    bias: ArrayLike = 0.0

    @classmethod
    def exactly(cls, change: ArrayLike) -> Speedup:
        """A difference (ratio - 1) without error, such as a margin."""
        log = np.log1p(np.asarray(change, float))
        return cls(log, np.zeros_like(log), np.full_like(log, np.inf))

    @classmethod
    def between(cls, baseline: pd.Series, candidate: pd.Series) -> Speedup:
        """The speed-up from the typical times of restarts, by number, that both sides have."""
        return speedup_of_restarts(*shared_restarts(baseline, candidate))

    @classmethod
    def concatenate(cls, parts: Sequence[Speedup]) -> Speedup:
        """Several speed-ups as one."""
        rows = [np.broadcast_arrays(p.log, p.error, p.freedom, p.bias) for p in parts]
        return cls(*map(np.concatenate, zip(*rows, strict=True)))

    @property
    def value(self) -> np.ndarray:
        """The speed-ups."""
        return np.exp(self.log)

    @property
    def low(self) -> np.ndarray:
        """The lower ends of their 95 % intervals, by Student's t."""
        return np.exp(self.log - self._half_width)

    @property
    def high(self) -> np.ndarray:
        """The upper ends of their 95 % intervals."""
        return np.exp(self.log + self._half_width)

    @property
    def distance(self) -> np.ndarray:
        """The end of each interval that is further from 1, as a ratio - 1; infinite without one."""
        return np.expm1(np.nan_to_num(np.abs(self.log) + self._half_width, nan=np.inf))

    @property
    def outcomes(self) -> np.ndarray:
        """The verdict on each of one family, beyond `MARGIN`: `judge`."""
        return judge(self, [Speedup.exactly(MARGIN)])[0]

    def p_beyond(self, bound: Speedup) -> np.ndarray:
        """P-values of "no further from 1 than ``bound``", whose error counts too.

        Below 0.05 for a bound without error, the whole 95 % interval lies beyond it.
        """
        error, freedom = self._join(bound)
        excess = np.abs(self.log) - self.bias - np.abs(bound.log)
        with np.errstate(divide="ignore", invalid="ignore"):
            distance = np.where(excess == 0, 0.0, excess / error)
        return 2 * student_tail(freedom, np.maximum(distance, 0.0))

    def minimum_detectable_change(self, bound: Speedup) -> np.ndarray:
        """The least difference, as a ratio - 1, that 4 of 5 repetitions would show to be beyond.

        The multiple of the standard error is that of H. S. Bloom, "Minimum Detectable Effects",
        Evaluation Review 19 (1995).
        """
        error, freedom = self._join(bound)
        multiple = student_quantile(freedom) + student_quantile(freedom, 0.8)
        return np.expm1(np.abs(bound.log) + self.bias + multiple * error)

    def _join(self, bound: Speedup) -> tuple[np.ndarray, np.ndarray]:
        return _join_errors(*((np.square(side.error), side.freedom) for side in (self, bound)))

    @cached_property
    def _half_width(self) -> np.ndarray:
        return student_quantile(np.minimum(self.freedom, _NORMAL)) * self.error + self.bias


def speedup_of_restarts(baseline: _Times, candidate: _Times, *, separate: bool = False) -> Speedup:
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

    Restart ``i`` measured both sides, interleaved or in turn. Restarts of ``separate`` runs have
    nothing in common: the interval is Welch's, and its error includes `BETWEEN_RUNS` of both, which
    no restart of either can show.
    """
    columns = (np.asarray(side, float).reshape(len(side), -1) for side in (baseline, candidate))
    sides = [np.where(side > 0, side, np.nan) for side in columns]
    before, after = (side / side.mean(axis=0) for side in sides)
    log = np.log(sides[0].mean(axis=0)) - np.log(sides[1].mean(axis=0))
    deviations = [before, after] if separate else [before - after]
    if min(map(len, deviations)) < 2:
        return Speedup(log, np.full_like(log, np.nan), np.ones_like(log))
    parts = [(d.var(axis=0, ddof=1) / len(d), len(d) - 1) for d in deviations]
    between = (np.square(math.sqrt(2) * BETWEEN_RUNS if separate else 0.0), np.inf)
    return Speedup(log, *_join_errors(*parts, between))


def speedup_of_parts(
    baseline: _Times, candidate: _Times, *, separate: bool = False, bias: ArrayLike = 0.0
) -> Speedup:
    """As `speedup_of_restarts`, of parts: their wall times include what other programs take.

    The ratio is the trimmed mean of the restarts' logarithms, without the fifths at both ends, and
    the interval Student's with the winsorised variance (K. K. Yuen, "The Two-Sample Trimmed t for
    Unequal Population Variances", Biometrika 61 (1974)). Few restarts are not trimmed.
    """
    columns = (np.asarray(side, float).reshape(len(side), -1) for side in (baseline, candidate))
    sides = [np.log(np.where(side > 0, side, np.nan)) for side in columns]
    trimmed = [_trim(side) for side in (sides if separate else [sides[0] - sides[1]])]
    log = trimmed[0][0] - (trimmed[1][0] if separate else 0.0)
    if min(map(len, sides)) < 2:
        return Speedup(log, np.full_like(log, np.nan), np.ones_like(log), bias)
    between = (np.square(math.sqrt(2) * BETWEEN_RUNS if separate else 0.0), np.inf)
    return Speedup(log, *_join_errors(*(part[1:] for part in trimmed), between), bias)


def _trim(logs: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """The trimmed mean of every column, its variance, and the degrees of freedom of that."""
    count = len(logs)
    cut = int(TRIMMED * count) if count >= LEAST_TRIMMED else 0
    ordered = np.sort(logs, axis=0)  # NaN last
    ordered[:, np.isnan(logs).any(axis=0)] = np.nan
    inner = ordered[cut : count - cut]
    if count < 2:
        return inner.mean(axis=0), np.full(logs.shape[1:], np.nan), 1.0
    winsorised = ordered.clip(inner[0], inner[-1]).var(axis=0, ddof=1)
    freedom = len(inner) - 1
    return inner.mean(axis=0), winsorised * (count - 1) / (len(inner) * freedom), float(freedom)


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


def pool_control(control: Speedup, lengths: np.ndarray) -> tuple[Speedup, Speedup]:
    """How far equal parts differ, and what of that the errors of these do not explain.

    A row's own control is as uncertain as the row; parts of similar length together are not. What
    their errors do not explain is a variance component that no restart shows.
    """
    squares = np.square(control.log)
    total = average_neighbours(lengths, squares)
    excess = average_neighbours(lengths, squares - np.square(control.error))
    component = np.maximum(np.nan_to_num(excess), 0.0)
    freedom = np.full(len(squares), float(max(1, min(NEIGHBOURS, np.isfinite(squares).sum()))))
    # What is left of a variance after another one is known as little as the variance itself.
    part = np.divide(component, total, out=np.zeros(len(squares)), where=total > 0)
    rest = np.maximum(freedom * np.square(part), np.minimum(freedom, _LEAST_FREEDOM))
    nothing = np.zeros(len(squares))
    return Speedup(nothing, np.sqrt(total), freedom), Speedup(nothing, np.sqrt(component), rest)


def strengthen(speedup: Speedup, lengths: np.ndarray, component: Speedup | None) -> Speedup:
    """Speed-ups whose errors borrow strength from similar rows, and include the control's noise.

    See `moderate_variances` and `pool_control`.
    """
    variances, freedom = moderate_variances(
        np.square(speedup.error), np.broadcast_to(speedup.freedom, speedup.log.shape), lengths
    )
    parts = [(variances, freedom)]
    if component is not None:
        parts.append((np.square(component.error), component.freedom))
    error, freedom = _join_errors(*parts)
    return replace(speedup, error=error, freedom=freedom)


def shared_restarts(before: _T, after: _T) -> tuple[_T, _T]:
    """The restarts that both sides have."""
    shared = before.index.intersection(after.index)
    if shared.empty:
        raise WorkbenchError(
            f"no restart in common: {sorted(before.index)} and {sorted(after.index)}",
            hint="compare runs with the same number of processes",
        )
    return before.loc[shared], after.loc[shared]


def judge(
    speedup: Speedup, bounds: Sequence[Speedup], unchanged: float = MARGIN
) -> tuple[np.ndarray, np.ndarray]:
    """The verdict on every row of one family, and its p-value adjusted for all of them.

    ``unchanged``: the whole interval lies within `MARGIN`. Otherwise, ``faster`` or ``slower``:
    further from 1 than every bound, with at most 5 % false discoveries among the rows called so.
    Otherwise ``unchanged`` again, within the given difference (two one-sided tests, each at 2.5 %),
    or ``inconclusive``.
    """
    q = adjust_for_many(np.max([speedup.p_beyond(bound) for bound in bounds], axis=0))
    beyond, furthest = q <= FALSE_DISCOVERIES, speedup.distance
    kinds = [
        ("unchanged", furthest <= MARGIN),
        ("faster", beyond & (speedup.log > 0)),
        ("slower", beyond & (speedup.log < 0)),
        ("unchanged", furthest <= unchanged),
    ]
    names, conditions = zip(*kinds, strict=True)
    return np.select(conditions, names, "inconclusive"), q


def adjust_for_many(p: np.ndarray) -> np.ndarray:
    """P-values adjusted so that 5 % of those below 0.05 are false discoveries; NaN stays.

    After Y. Benjamini, Y. Hochberg, "Controlling the False Discovery Rate", J. R. Stat. Soc. B 57
    (1995); it also holds for operators that slow down together (Benjamini, Yekutieli, Ann. Stat.
    29).
    """
    tested = np.flatnonzero(np.isfinite(p))
    q = np.full(p.shape, np.nan)
    order = tested[np.argsort(p[tested])]
    scaled = p[order] * (len(order) / np.arange(1, len(order) + 1))
    q[order] = np.minimum.accumulate(scaled[::-1])[::-1].clip(0, 1)
    return q
