"""Comparisons: speed-ups with intervals that hold for few restarts, and the verdict on each.

From bottom to top: the speed-up between typical times of process restarts, what it shows (`judge`),
E2E latency, the parts of an inference, and the verdict in one sentence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from workbench.analysis.operators import CATEGORIES, first_rows, total_runs
from workbench.analysis.statistics import (
    NEIGHBOURS,
    average_neighbours,
    clock_of,
    moderate_variances,
    pick_timed,
    restart_latencies,
    student_quantile,
    student_tail,
    typical_restarts,
)
from workbench.errors import WorkbenchError
from workbench.frames import COMPARISON, EMULATED, WRONG, check
from workbench.records.runs import Agreement
from workbench.wording import decimals_of, format_range, format_ratio, format_share

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

#: Difference (ratio - 1) that a part must exceed if no A/A control shows how far equals differ.
UNCONTROLLED_MARGIN = 0.04

#: Noise floor (ratio - 1) above which a measurement compares nothing.
TOO_BUSY = 0.5

#: Scatter (standard deviation of the logarithm) of one program's latency from run to run, minutes
#: apart on two busy cores, beyond what the restarts of a run show: 1.5 to 2.4 % in 10 and 18 runs
#: of two models (`tests/benchmarks/repeats.py`), and the error of that.
BETWEEN_RUNS = 0.028

#: XNNPACK's own clock, in ns: it rounds the time of every operator down.
_COARSE_NS = 1000

#: The outcome of a row whose times may be rounded by more than they differ, and by `MARGIN`.
BELOW_CLOCK = "below the clock"

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

    @staticmethod
    def project(change: float, restarts: int, planned: int) -> float:
        """The minimum detectable change of so many planned restarts, from that of those measured.

        Errors, and what a control differs by, fall with the root of their number; the multiple
        falls with the degrees of freedom.
        """
        measured, later = (
            (student_quantile(n - 1) + student_quantile(n - 1, 0.8)) / math.sqrt(n)
            for n in (restarts, planned)
        )
        return math.expm1(math.log1p(change) * later / measured)

    def _join(self, bound: Speedup) -> tuple[np.ndarray, np.ndarray]:
        return _join_errors(*((np.square(side.error), side.freedom) for side in (self, bound)))

    @cached_property
    def _half_width(self) -> np.ndarray:
        return student_quantile(np.minimum(self.freedom, _NORMAL)) * self.error + self.bias


def speedup_of_restarts(
    baseline: _Times, candidate: _Times, *, separate: bool = False, bias: ArrayLike = 0.0
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

    Restart ``i`` measured both sides, interleaved or in turn. Restarts of ``separate`` runs have
    nothing in common: the interval is Welch's, and its error includes `BETWEEN_RUNS` of both, which
    no restart of either can show. ``bias`` is that of the `Speedup`.
    """
    columns = (np.asarray(side, float).reshape(len(side), -1) for side in (baseline, candidate))
    sides = [np.where(side > 0, side, np.nan) for side in columns]
    before, after = (side / side.mean(axis=0) for side in sides)
    log = np.log(sides[0].mean(axis=0)) - np.log(sides[1].mean(axis=0))
    deviations = [before, after] if separate else [before - after]
    if min(map(len, deviations)) < 2:
        return Speedup(log, np.full_like(log, np.nan), np.ones_like(log), bias)
    parts = [(d.var(axis=0, ddof=1) / len(d), len(d) - 1) for d in deviations]
    between = (np.square(math.sqrt(2) * BETWEEN_RUNS if separate else 0.0), np.inf)
    return Speedup(log, *_join_errors(*parts, between), bias)


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
    shown, furthest = q <= FALSE_DISCOVERIES, speedup.distance
    kinds = [
        ("unchanged", furthest <= MARGIN),
        ("faster", shown & (speedup.log > 0)),
        ("slower", shown & (speedup.log < 0)),
        ("unchanged", furthest <= unchanged),
    ]
    names, conditions = zip(*kinds, strict=True)
    return np.select(conditions, names, "inconclusive"), q


def explain_outcomes(table: pd.DataFrame) -> list[str]:
    """Why inconclusive rows of ``frames.COMPARISON`` whose interval excludes 1 show nothing."""
    texts = []
    for row in table.itertuples():
        away = max(row.low - 1, 1 / row.high - 1)  # of the nearer end, as a ratio - 1
        ratio = max(row.speedup, 1 / row.speedup) - 1
        least = row.margin if row.floor else UNCONTROLLED_MARGIN
        why = f"q {row.q:.2g}"
        if ratio <= row.floor:
            why = f"equal experiments differ by {format_share(row.floor)}"
        elif away <= least:
            why = f"within the margin of {format_share(least)}"
        shown = row.outcome == "inconclusive" and away > 0
        texts.append(why if shown else "")
    return texts


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


def tabulate_comparison(
    level: str,
    names: Sequence[str],
    times_ms: tuple[np.ndarray, np.ndarray],
    speedup: Speedup,
    control: Speedup | None = None,
    *,
    restarts: int | Sequence[int],
) -> pd.DataFrame:
    """``frames.COMPARISON`` for the rows of one level, which are judged as one family.

    ``times_ms`` are typical times of baseline and candidate. E2E must differ by more than the
    control did, or than the margin without one; parts by more than the margin, with the noise of
    the control's in their intervals (`pool_control`), or by `UNCONTROLLED_MARGIN` without one.
    """
    whole, floor = level == "e2e", np.zeros(len(speedup.log))
    bounds = [Speedup.exactly(MARGIN)]
    if control is not None:
        bounds, floor = ([control], control.distance) if whole else (bounds, control.distance)
    elif not whole:
        bounds = [Speedup.exactly(UNCONTROLLED_MARGIN)]
    outcome, q = judge(speedup, bounds, MARGIN if whole else UNCHANGED_PART)
    table = pd.DataFrame(
        {
            "level": level,
            "name": list(names),
            "baseline_ms": times_ms[0],
            "candidate_ms": times_ms[1],
            "speedup": speedup.value,
            "low": speedup.low,
            "high": speedup.high,
            "outcome": outcome,
            "q": q,
            "detectable": np.max([speedup.minimum_detectable_change(b) for b in bounds], axis=0),
            "floor": floor,
            "restarts": restarts,
            "margin": MARGIN,
        }
    )
    return check(table, COMPARISON)


def compare_latencies(
    latencies: pd.DataFrame,
    baseline: str,
    candidate: str,
    *,
    control: str | None = None,
    control_of: str | None = None,
    threads: int | None = None,
) -> pd.DataFrame:
    """Compare E2E latencies of two experiments from interleaved rounds.

    Within a round each experiment is measured twice, in mirrored order (A B C C B A), so that
    linear drift affects all alike, and each process restart measures all of them. The noise floor
    comes from ``control``, a repetition of the baseline or of ``control_of``: the end of its
    interval that is further from 1.

    One row of ``frames.COMPARISON``; the times are those of `describe_latencies`, over the restarts
    that both have.
    """
    timed = pick_timed(latencies)
    timed = timed if threads is None else timed[timed["threads"] == threads]
    clock = clock_of(timed)
    restarts = {name: restart_latencies(part, clock) for name, part in timed.groupby("experiment")}
    repeated = [] if control is None else [restarts[control_of or baseline], restarts[control]]
    sides = [restarts[baseline]], [restarts[candidate]]
    return compare_restarts([candidate], *sides, control=repeated, separate=False)


def compare_restarts(
    names: Sequence[str],
    baseline: Sequence[Sequence[float] | pd.Series],
    candidate: Sequence[Sequence[float] | pd.Series],
    *,
    control: Sequence[pd.Series] = (),
    separate: bool = True,
) -> pd.DataFrame:
    """Compare the `restart_latencies` of pairs of measurements, which are judged as one family.

    The two of a pair are of ``separate`` runs, which may differ by more than their restarts show
    (see `BETWEEN_RUNS`); otherwise they are series by restart, each of which measured both.
    ``control`` is something and its repetition, which gives the noise floor.
    """
    sides = list(zip(baseline, candidate, strict=True))
    if min(min(times, default=0.0) for side in sides for times in side) <= 0:
        raise WorkbenchError(f"the clock did not tick for {', '.join(names)}")
    # The error of separate runs has all noise in it already: any difference beyond it counts.
    noise = Speedup.exactly(np.zeros(len(sides))) if separate else None
    if not separate:
        sides = [shared_restarts(*side) for side in sides]
        noise = speedup_of_restarts(*shared_restarts(*control)) if control else None
    speedups = [speedup_of_restarts(*side, separate=separate) for side in sides]
    before, after = (np.array([np.mean(ms) for ms in side]) for side in zip(*sides, strict=True))
    restarts = [min(map(len, side)) for side in sides]
    speedup = Speedup.concatenate(speedups)
    return tabulate_comparison("e2e", names, (before, after), speedup, noise, restarts=restarts)


def compare_parts(
    level: str,
    baseline: pd.DataFrame,
    candidate: pd.DataFrame,
    latencies_ms: Sequence[float] = (),
    *,
    control: pd.DataFrame | None = None,
    control_of: pd.DataFrame | None = None,
    apart: bool = False,
) -> pd.DataFrame:
    """Compare the time of every category, operator or layer: ``frames.COMPARISON``, ``restarts``.

    ``level`` is ``category``; ``kind``; ``operator``, paired by ``key``, from runs of one program;
    or ``layer``, for ledgers with the column that `place_rows` adds. ``control``, a repetition of
    ``control_of``, shows how far equal parts differ (`pool_control`). ``apart``: the two are of
    different runs, whose restarts have nothing in common. Errors of rows of similar length
    strengthen each other (`moderate_variances`).

    Categories keep their usual order; operators and layers are sorted by change of time. Operators
    also have ``key``, ``category`` (the baseline's) and ``candidate_name``; one that only one side
    has gets NaN on the other and is inconclusive. The times are means, as in the tables of each
    side, scaled to add up to its latency, if given; speed-ups are of typical times as traced
    (midmeans of the runs, averaged over the restarts), which outliers do not affect. A row that is
    `BELOW_CLOCK` has no speed-up.
    """
    by = "key" if level == "operator" else level
    names = pd.Index([*baseline[by].unique(), *candidate[by].unique()], dtype=object).unique()
    sides, speedup, times = _speedup(baseline, candidate, by, names, apart)
    lengths = np.nan_to_num(times[0], nan=np.inf)
    noise = component = None
    if control is not None and control_of is not None:
        _, repeated, _ = _speedup(control_of, control, by, names)
        noise, component = pool_control(repeated, lengths)
    speedup = strengthen(speedup, lengths, component)
    if latencies_ms:
        times = _scale(times[0], latencies_ms[0]), _scale(times[1], latencies_ms[1])
    restarts = min(map(len, sides))
    below = speedup.bias > np.maximum(np.abs(np.nan_to_num(speedup.log)), np.log1p(MARGIN))
    speedup = replace(speedup, log=np.where(below, np.nan, speedup.log))
    table = tabulate_comparison(level, list(names), times, speedup, noise, restarts=restarts)
    table["outcome"] = table["outcome"].mask(below, BELOW_CLOCK)
    order = -(table["candidate_ms"].fillna(0) - table["baseline_ms"].fillna(0)).abs()
    if level == "category":
        order = table["name"].map(CATEGORIES.index)
    if level == "operator":
        table = _name_operators(table, names, baseline, candidate)
    return table.iloc[np.argsort(order, kind="stable")].reset_index(drop=True)


def _scale(times_ms: np.ndarray, whole_ms: float) -> np.ndarray:
    """Times that add up to a whole; as they are if either is nothing."""
    total = float(np.nansum(times_ms))
    return times_ms * (whole_ms / total) if total > 0 and whole_ms > 0 else times_ms


def _name_operators(
    table: pd.DataFrame, keys: pd.Index, baseline: pd.DataFrame, candidate: pd.DataFrame
) -> pd.DataFrame:
    """The rows of operators by key, with their names and categories."""
    ours, theirs = first_rows(baseline), first_rows(candidate)
    both = pd.concat([ours, theirs[~theirs.index.isin(ours.index)]])
    return table.assign(
        key=keys,
        name=keys.map(both["operator"]),
        category=keys.map(both["category"]),
        candidate_name=keys.map(theirs["operator"]),
    )


def _speedup(
    baseline: pd.DataFrame, candidate: pd.DataFrame, by: str, names: pd.Index, apart: bool = False
) -> tuple[tuple[pd.DataFrame, pd.DataFrame], Speedup, tuple[np.ndarray, np.ndarray]]:
    """Typical times in ms of each side (restarts by names), the speed-up, and mean times."""
    totals = [total_runs(ledger, by).reindex(columns=names) for ledger in (baseline, candidate)]
    ledgers = zip((baseline, candidate), totals, strict=True)
    bounds = [_rounding_bound(ledger, by, runs) for ledger, runs in ledgers]
    before, after = map(typical_restarts, totals)
    if not apart:
        before, after = shared_restarts(before, after)
    with np.errstate(divide="ignore", invalid="ignore"):
        bias = np.maximum(bounds[0] / before.mean(), bounds[1] / after.mean()).to_numpy()
    speedup = speedup_of_parts(before, after, separate=apart, bias=bias)
    return (before, after), speedup, (totals[0].mean().to_numpy(), totals[1].mean().to_numpy())


def _rounding_bound(ledger: pd.DataFrame, by: str, runs: pd.DataFrame) -> np.ndarray:
    """The most in ms that rounding moves the sum of every column, always in one direction.

    A microsecond for each operator of a delegate, and the same again for what is left of its call;
    0 if any operator has a fraction of a microsecond. More runs do not reduce it.
    """
    logged = (ledger["kind"] == "delegated").to_numpy()
    if (ledger["duration_ns"].to_numpy()[logged] % _COARSE_NS).any():
        return np.zeros(runs.shape[1])
    calls = np.flatnonzero(ledger["kind"] == "delegate_overhead")  # each follows its operators
    count = logged.astype(float)
    count[calls] = np.diff(logged.cumsum()[calls], prepend=0)
    total = pd.Series(count).groupby(ledger[by].astype(object).to_numpy()).sum()
    return total.reindex(runs.columns, fill_value=0.0).to_numpy() / len(runs) * _COARSE_NS / 1e6


@dataclass(frozen=True)
class Verdict:
    """The result of one comparison of E2E latency.

    ``subject`` is the model, ``change`` what the candidate does differently (``with avx512``);
    ``speedup`` to ``floor``, ``detectable`` and the times are columns of the comparison.
    ``bottleneck`` is the largest category of both sides, if traced; ``same_code`` the reason if the
    same machine code ran on both sides; ``wrong`` why no speed-up can be claimed; ``programs`` what
    differs between the two programs beside their speed; ``separate`` says how the sides were
    measured apart, if they were. ``paired``: the intervals of the two latencies overlap, and only
    their restarts one by one show a difference.
    """

    subject: str
    change: str
    outcome: str
    speedup: float
    low: float
    high: float
    floor: float
    bottleneck: str = ""
    detectable: float = math.nan
    same_code: str = ""
    wrong: str = ""
    programs: str = ""
    baseline_ms: float = math.nan
    candidate_ms: float = math.nan
    separate: str = ""
    paired: bool = False

    @property
    def text(self) -> str:
        """The verdict as one line.

        A speed-up is stated only if one was shown, with two decimals as everywhere;
        otherwise the line states the interval of the change of latency. If outputs are wrong, it
        says so first, and states no speed-up.
        """
        bottleneck = f", bottleneck {self.bottleneck}" if self.bottleneck else ""
        subject = f"{self.subject}: " if self.subject else ""
        parts = [f"{subject}{self._describe_outcome()}{bottleneck}", self.programs]
        return "; ".join(filter(None, parts))

    def _describe_outcome(self) -> str:
        change = f" {self.change}" if self.change else ""
        emulated = self.outcome == "emulated"
        if self.wrong:
            times = " against ".join(format_range(self.candidate_ms, self.baseline_ms))
            times = f"({EMULATED})" if emulated else f"in {times}"
            return f"{self.wrong}: no speed-up is claimed; ran{change} {times}"
        if self.same_code:
            latency = EMULATED if emulated else self._describe_change()
            return f"toggle had no effect{change}: {self.same_code} ({latency})"
        if emulated:
            return f"ran{change} ({EMULATED})"
        least = f", only a change above {_percent(self.detectable)} would show"
        least = least if self.detectable < 10 else ""
        caveats = ", no A/A control" if self.floor == 0 else ""
        caveats = f", {self.separate}{least}" if self.separate else caveats
        if self.outcome in ("faster", "slower"):
            value, low, high = self.speedup, self.low, self.high
            if self.outcome == "slower":
                value, low, high = 1 / value, 1 / high, 1 / low
            interval = f"95 % interval {format_ratio(low)}-{format_ratio(high)}"
            interval += ", paired restarts" if self.paired else ""
            return f"{format_ratio(value)}x {self.outcome}{change} ({interval}{caveats})"
        bounds = self._describe_change()
        if self.outcome == "unchanged":
            margin = f", within the margin of {100 * MARGIN:g} %"
            return f"unchanged{change} ({bounds}{margin}{caveats})"
        if TOO_BUSY < self.floor < math.inf:
            equal = f"two equal experiments differed by up to {100 * self.floor:.0f} %"
            return f"inconclusive{change}: the machine was too busy to compare ({equal})"
        floor = f", equal experiments differ by {_percent(self.floor)}"
        floor = floor if 0 < self.floor < math.inf else ""
        floor += "" if self.separate else least
        return f"inconclusive{change} ({bounds}{floor}{caveats})"

    def _describe_change(self) -> str:
        """The interval of the change of latency, in per cent of the baseline."""
        if math.isnan(self.low) or math.isnan(self.high):
            ratio = format_ratio(self.speedup)
            return f"observed {ratio}x, no interval: needs two or more process restarts"
        low, high = 100 * (1 / self.high - 1), 100 * (1 / self.low - 1)
        # To the first digit of half of its width.
        digits = min(3, max(0, math.ceil(-math.log10(max((high - low) / 2, 1e-3)))))
        return f"latency {low:+.{digits}f} % to {high:+.{digits}f} %, 95 % interval"


def _percent(share: float) -> str:
    return format_share(share, decimals_of(100 * share, 2) if math.isfinite(share) else 0)


def reach_verdict(
    subject: str,
    change: str,
    comparison: pd.DataFrame,
    *,
    emulated: bool = False,
    wrong: str = "",
    **texts: Any,
) -> Verdict:
    """The verdict on a candidate, from `compare_latencies`; ``texts`` are further ones of it."""
    (row,) = comparison[comparison["level"] == "e2e"].to_dict("records")
    outcome = "emulated" if emulated else WRONG if wrong else row["outcome"]
    names = ("speedup", "low", "high", "floor", "detectable")
    times = ("baseline_ms", "candidate_ms")
    columns: dict[str, Any] = {name: float(row[name]) for name in (*names, *times)}
    return Verdict(subject, change, outcome, wrong=wrong, **columns, **texts)


def describe_faults(candidate: str, baseline: str) -> str:
    """What is wrong with the outputs, from the fault of each side; empty if both have none."""
    if candidate == baseline:
        return candidate and f"outputs are wrong ({candidate})"
    sides = {"candidate": candidate, "baseline": baseline}
    return "; ".join(f"outputs of the {side} are wrong ({it})" for side, it in sides.items() if it)


def describe_difference(agreement: Agreement) -> str:
    """How far an output of two sides that do not agree differs."""
    if agreement.max_abs is None:
        return f"output {agreement.output} cannot be compared"
    if agreement.sqnr_db is not None:
        least = f"at least {agreement.least_sqnr_db:.0f} expected"
        return f"output {agreement.output} has SQNR {agreement.sqnr_db:.1f} dB, {least}"
    apart = agreement.max_abs / agreement.scale if agreement.scale else math.inf
    return (
        f"output {agreement.output} by {apart:.1g} of its largest value "
        f"instead of {agreement.tolerance:.1g} at most"
    )
