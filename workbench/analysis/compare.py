"""Comparisons of E2E latency and of the parts of an inference, from samples to verdicts."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import pandas as pd

from workbench.analysis.categories import CATEGORIES, add_categories
from workbench.analysis.operators import first_rows, total_runs
from workbench.analysis.speedup import Speedup, speedup_of_restarts, speedup_of_runs
from workbench.analysis.statistics import (
    clock_of,
    pick_timed,
    restart_latencies,
    tabulate_latencies,
    typical_restarts,
)
from workbench.errors import ComparisonError, unknown_name
from workbench.frames import COMPARISON, check
from workbench.records.runs import RunRecord

_T = TypeVar("_T", pd.Series, pd.DataFrame)

#: Relative difference up to which two times count as equal, unless the caller says otherwise.
MARGIN = 0.02

#: Expected share of false discoveries among the rows called faster or slower.
FALSE_DISCOVERIES = 0.05

#: Difference (ratio - 1) that a part must exceed if no A/A control shows how far equals differ.
UNCONTROLLED = 0.04


def tabulate_comparison(
    level: str,
    names: Sequence[str],
    times_ms: tuple[np.ndarray, np.ndarray],
    speedup: Speedup,
    control: Speedup | None = None,
    *,
    restarts: int | Sequence[int],
    margin: float = MARGIN,
) -> pd.DataFrame:
    """``frames.COMPARISON`` for the rows of one level, which are judged as one family.

    ``times_ms`` are typical times of baseline and candidate. E2E must differ by more than the
    control did, or than the margin without one; parts by more than both, or by `UNCONTROLLED`.
    """
    bounds = [Speedup.exactly(margin if level == "e2e" else max(margin, UNCONTROLLED))]
    if control is not None:
        bounds = [control, *([] if level == "e2e" else [Speedup.exactly(margin)])]
    outcome, q = judge(speedup, bounds, margin)
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
            "floor": 0.0 if control is None else control.distance,
            "restarts": restarts,
            "margin": margin,
        }
    )
    return check(table, COMPARISON)


def judge(
    speedup: Speedup, bounds: Sequence[Speedup], margin: float = MARGIN
) -> tuple[np.ndarray, np.ndarray]:
    """The verdict on every row of one family, and its p-value adjusted for all of them.

    ``equivalent``: the whole interval lies within the margin, a ratio - 1 (two one-sided tests,
    each at 2.5 %). ``faster`` or ``slower``: further from 1 than every bound, with at most 5 %
    false discoveries among the rows called so. ``inconclusive``: none of these.
    """
    q = adjust_for_many(np.max([speedup.p_beyond(bound) for bound in bounds], axis=0))
    low, high, most = np.log(speedup.low), np.log(speedup.high), np.log1p(margin)
    shown = q <= FALSE_DISCOVERIES
    kinds = {
        "equivalent": (low >= -most) & (high <= most),
        "faster": shown & (speedup.log > 0),
        "slower": shown & (speedup.log < 0),
    }
    return np.select(list(kinds.values()), list(kinds), "inconclusive"), q


def adjust_for_many(p: np.ndarray) -> np.ndarray:
    """P-values adjusted so that 5 % of those below 0.05 are false discoveries; NaN stays.

    After Y. Benjamini, Y. Hochberg, "Controlling the False Discovery Rate", J. R. Stat. Soc. B 57
    (1995); it also holds for operators that slow down together (Benjamini, Yekutieli, Ann. Stat.
    29).
    """
    known = np.flatnonzero(np.isfinite(p))
    q = np.full(p.shape, np.nan)
    order = known[np.argsort(p[known])]
    scaled = p[order] * (len(order) / np.arange(1, len(order) + 1))
    q[order] = np.minimum.accumulate(scaled[::-1])[::-1].clip(0, 1)
    return q


def compare_latencies(
    latencies: pd.DataFrame,
    baseline: str,
    candidate: str,
    *,
    control: str | None = None,
    control_of: str | None = None,
    threads: int | None = None,
    clock: str | None = None,
) -> pd.DataFrame:
    """Compare E2E latencies of two experiments from interleaved rounds.

    Within a round each experiment is measured twice, in mirrored order (A B C C B A), so that
    linear drift affects all alike, and each process restart measures all of them. The noise floor
    comes from ``control``, a repetition of the baseline or of ``control_of``: the end of its
    interval that is further from 1. ``clock`` None chooses as `clock_of` does.

    One row of ``frames.COMPARISON``; the times are those of `describe_latencies`, over the restarts
    that both have.
    """
    part = _one_thread_count(pick_timed(latencies), threads)
    clock = clock or clock_of(part)

    def restarts_of(experiment: str) -> pd.Series:
        side = part[part["experiment"] == experiment]
        if side.empty:
            raise unknown_name("experiment", experiment, part["experiment"].unique())
        found = restart_latencies(side, clock)
        if not found.gt(0).all():
            raise ComparisonError(
                f"the clock {clock} did not tick for {experiment!r}",
                hint="compare wall time (clock='wall_ns')",
            )
        return found

    noise = None
    if control is not None:
        noise = speedup_of_restarts(
            *shared_restarts(restarts_of(control_of or baseline), restarts_of(control))
        )
    before, after = shared_restarts(restarts_of(baseline), restarts_of(candidate))
    times, speedup = (before.mean(), after.mean()), speedup_of_restarts(before, after)
    return tabulate_comparison("e2e", [candidate], times, speedup, noise, restarts=len(before))


def compare_apart(
    baseline: pd.DataFrame,
    candidate: pd.DataFrame,
    *,
    clock: str | None = None,
    separate: bool = True,
) -> pd.DataFrame:
    """Compare E2E latencies that were not interleaved.

    Each side is ``frames.LATENCIES`` of one experiment and thread count. ``separate`` runs may
    differ by more than their restarts show: see `speedup_of_runs`. Otherwise each restart of one
    run measured both sides, in turn. With a single restart on a side, the verdict is inconclusive.
    """
    timed = [pick_timed(side) for side in (baseline, candidate)]
    if any(side.empty for side in timed):
        raise ComparisonError("no latencies to compare")
    # One clock for both: wall time as soon as either side has several threads.
    clock = clock or max(clock_of(side) for side in timed)
    before, after = (restart_latencies(side, clock) for side in timed)
    if separate:
        return compare_restarts(["latency"], [before.to_list()], [after.to_list()])
    before, after = shared_restarts(before, after)
    times, found = (before.mean(), after.mean()), speedup_of_restarts(before, after)
    return tabulate_comparison("e2e", ["latency"], times, found, restarts=len(before))


def list_restarts(run: RunRecord) -> dict[tuple[str, int], tuple[str, list[float]]]:
    """Clock and `restart_latencies` of every experiment and thread count of a run."""
    timed = pick_timed(tabulate_latencies(run))
    return {
        (str(experiment), int(threads)): (clock_of(part), restart_latencies(part).to_list())
        for (experiment, threads), part in timed.groupby(["experiment", "threads"], sort=False)
    }


def compare_restarts(
    names: Sequence[str],
    baseline: Sequence[Sequence[float]],
    candidate: Sequence[Sequence[float]],
) -> pd.DataFrame:
    """Compare separate runs by the `restart_latencies` of many measurements; one family."""
    sides = list(zip(baseline, candidate, strict=True))
    speedup = Speedup.concatenate([speedup_of_runs(*pair) for pair in sides])
    before, after = (np.array([np.mean(ms) for ms in side]) for side in (baseline, candidate))
    least = [min(map(len, pair)) for pair in sides]
    # The error has all noise in it already, so any difference beyond it counts.
    none = Speedup.exactly(np.zeros(len(sides)))
    return tabulate_comparison("e2e", names, (before, after), speedup, none, restarts=least)


def _one_thread_count(latencies: pd.DataFrame, threads: int | None) -> pd.DataFrame:
    found = sorted(int(count) for count in latencies["threads"].unique())
    if threads is None:
        if not found:
            raise ComparisonError("no untraced latencies", hint="measure with tracing off too")
        if len(found) > 1:
            raise ComparisonError(
                f"latencies of several thread counts: {found}", hint="select one with threads="
            )
        return latencies
    if threads not in found:
        raise unknown_name("thread count", str(threads), map(str, found))
    return latencies[latencies["threads"] == threads]


def shared_restarts(before: _T, after: _T) -> tuple[_T, _T]:
    """The restarts that both sides have."""
    shared = before.index.intersection(after.index)
    if shared.empty:
        raise ComparisonError(
            f"no restart in common: {sorted(before.index)} and {sorted(after.index)}",
            hint="compare runs with the same number of processes",
        )
    return before.loc[shared], after.loc[shared]


#: XNNPACK logs whole microseconds: an error of 1 us / sqrt(12) for each operator.
_RESOLUTION_MS = 1e-3 / np.sqrt(12)

#: What is compared at each level: the values of a column of the ledger.
PARTS = {"category": "category", "operator": "key", "layer": "layer", "kind": "kind"}


def compare_parts(
    level: str,
    baseline: pd.DataFrame,
    candidate: pd.DataFrame,
    *,
    control: pd.DataFrame | None = None,
    control_of: pd.DataFrame | None = None,
    apart: bool = False,
) -> pd.DataFrame:
    """Compare the time of every category, operator or layer: ``frames.COMPARISON``, ``restarts``.

    ``level`` is ``category``; ``kind``; ``operator``, paired by ``key``, from runs of one program;
    or ``layer``, for ledgers with the column that `place_rows` adds. ``control``, a repetition of
    the baseline or of ``control_of``, gives each row its noise floor. ``apart``: the two are of
    different runs, whose restarts have nothing in common.

    Categories keep their usual order; operators and layers are sorted by change of time. Operators
    also have ``key``, ``category`` (the baseline's) and ``candidate_name``; one that only one side
    has gets NaN on the other and is inconclusive. The times are typical ones (midmeans of the runs,
    averaged over the restarts), which outliers do not affect; those of `summarize_categories` are
    means, which add up.
    """

    def prepare(ledger: pd.DataFrame) -> pd.DataFrame:
        return add_categories(ledger) if level == "category" else ledger

    by, before, after = PARTS[level], prepare(baseline), prepare(candidate)
    names = pd.Index(before[by].unique(), dtype=object)
    names = names.append(pd.Index(after[by].unique(), dtype=object)).unique()
    sides, speedup = _speedup(before, after, by, names, apart)
    noise = None
    if control is not None:
        repeated = before if control_of is None else prepare(control_of)
        _, noise = _speedup(repeated, prepare(control), by, names)
    times = sides[0].mean().to_numpy(), sides[1].mean().to_numpy()
    restarts = min(map(len, sides))
    table = tabulate_comparison(level, list(names), times, speedup, noise, restarts=restarts)
    if level == "category":
        order = table["name"].map(CATEGORIES.index)
    else:
        order = -(table["candidate_ms"].fillna(0) - table["baseline_ms"].fillna(0)).abs()
    if level == "operator":
        ours, theirs = first_rows(baseline), first_rows(candidate)
        both = ours.combine_first(theirs)
        table = table.assign(
            key=names,
            name=names.map(both["operator"]),
            category=names.map(both["category"]),
            candidate_name=names.map(theirs["operator"]),
        )
    return table.iloc[np.argsort(order, kind="stable")].reset_index(drop=True)


def _speedup(
    baseline: pd.DataFrame, candidate: pd.DataFrame, by: str, names: pd.Index, apart: bool = False
) -> tuple[tuple[pd.DataFrame, pd.DataFrame], Speedup]:
    """Typical times in ms of each side (restarts by names), and the speed-up."""
    totals = [total_runs(ledger, by).reindex(columns=names) for ledger in (baseline, candidate)]
    ledgers = zip((baseline, candidate), totals, strict=True)
    errors = [_clock_error(ledger, by, runs) for ledger, runs in ledgers]
    before, after = map(typical_restarts, totals)
    if not apart:
        before, after = shared_restarts(before, after)
    with np.errstate(divide="ignore", invalid="ignore"):
        resolution = np.hypot(errors[0] / before.mean(), errors[1] / after.mean()).to_numpy()
    speedup = speedup_of_runs if apart else speedup_of_restarts
    return (before, after), speedup(before, after, resolution=resolution)


def _clock_error(ledger: pd.DataFrame, by: str, runs: pd.DataFrame) -> np.ndarray:
    """Standard error in ms of the sum of every column, from times logged in whole microseconds.

    More runs do not reduce it: the midmean of times that take only two values hardly moves.
    """
    logged = ledger.loc[ledger["kind"] == "delegated", by].astype(object).value_counts()
    logged = logged.reindex(runs.columns, fill_value=0.0) / len(runs)
    return np.sqrt(logged.to_numpy()) * _RESOLUTION_MS
