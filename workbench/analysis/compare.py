"""Comparisons of E2E latency and of the parts of an inference, from samples to verdicts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from workbench.analysis.categories import CATEGORIES, add_categories
from workbench.analysis.operators import first_rows, total_runs
from workbench.analysis.speedup import Speedup, speedup_apart, speedup_of_pairs, speedup_of_runs
from workbench.analysis.statistics import clock_of, midmean, pick_timed, tabulate_latencies
from workbench.errors import ComparisonError, unknown_name
from workbench.frames import COMPARISON, check
from workbench.records.runs import RunRecord

Restarts = list[np.ndarray]
_Times = Sequence[Sequence[float]]

#: Relative difference up to which two times count as equal, unless the caller says otherwise.
MARGIN = 0.02

#: Expected share of false discoveries among the rows called faster or slower.
FALSE_DISCOVERIES = 0.05


def tabulate_comparison(
    level: str,
    names: Sequence[str],
    times_ms: tuple[np.ndarray, np.ndarray],
    speedup: Speedup,
    floor: np.ndarray | float = 0.0,
    margin: float = MARGIN,
) -> pd.DataFrame:
    """``frames.COMPARISON`` for the rows of one level, which are judged as one family.

    ``times_ms`` are typical times of baseline and candidate; floor and margin are ratios - 1.
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
            "detectable": speedup.minimum_detectable_change(floor),
            "floor": floor,
            "margin": margin,
        }
    )
    return check(table, COMPARISON)


def judge(
    speedup: float, low: float, high: float, floor: float, margin: float, q: float = 0.0
) -> str:
    """The verdict on a speed-up with its interval; floor and margin are ratios - 1.

    ``equivalent``: the whole interval lies within the margin (two one-sided tests, each at 2.5 %).
    ``faster`` or ``slower``: the interval excludes 1, the speed-up exceeds the noise floor, and the
    row passes the control of false discoveries (``q``). ``inconclusive``: none of these.
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

    Within a round each experiment is measured twice, in mirrored order (A B C C B A), so the mean
    of its two batches is free of linear drift. A batch counts with the midmean of its inferences.
    The noise floor comes from ``control``, a repetition of the baseline or of ``control_of``: the
    end of its interval that is farther from 1. ``clock`` None chooses as `clock_of` does.

    One row of ``frames.COMPARISON``, plus ``restarts`` and ``rounds``; the times are means over the
    restarts of the midmean over their rounds.
    """
    part = _one_thread_count(pick_timed(latencies), threads)
    clock = clock or clock_of(part)
    floor = np.zeros(1)
    if control is not None:
        repeated = _paired(part, control_of or baseline, control, clock)
        floor = noise_floor(speedup_of_pairs(*repeated))
    before, after = _paired(part, baseline, candidate, clock)
    times = typical_times(before), typical_times(after)
    speedup = speedup_of_pairs(before, after)
    table = tabulate_comparison("e2e", [candidate], times, speedup, floor)
    return table.assign(restarts=len(before), rounds=sum(map(len, before)))


def compare_apart(
    baseline: pd.DataFrame, candidate: pd.DataFrame, *, floor: float = 0.0, clock: str | None = None
) -> pd.DataFrame:
    """Compare E2E latencies of different runs, by Welch's t over process restarts.

    Each side is ``frames.LATENCIES`` of one experiment and thread count. The speed-up includes what
    changed on the machine between the two runs, and the interval does not: interleave the two in
    one run if possible. With a single restart on a side, the verdict is inconclusive.
    """
    timed = [pick_timed(side) for side in (baseline, candidate)]
    if any(side.empty for side in timed):
        raise ComparisonError("no latencies to compare")
    # One clock for both: wall time as soon as either side has several threads.
    clock = clock or max(clock_of(side) for side in timed)
    before, after = ([typical_restarts(side, clock)] for side in timed)
    return compare_restarts(["latency"], before, after, floor=floor)


def typical_restarts(latencies: pd.DataFrame, clock: str | None = None) -> list[float]:
    """The midmean in ms of every process restart of one experiment and thread count."""
    timed = pick_timed(latencies)
    restarts = timed.groupby("process")[clock or clock_of(timed)]
    return [float(midmean(times.to_numpy() / 1e6)) for _, times in restarts]


def list_restarts(run: RunRecord) -> dict[tuple[str, int], tuple[str, list[float]]]:
    """Clock and `typical_restarts` of every experiment and thread count of a run."""
    timed = pick_timed(tabulate_latencies(run))
    return {
        (str(experiment), int(threads)): (clock_of(part), typical_restarts(part))
        for (experiment, threads), part in timed.groupby(["experiment", "threads"], sort=False)
    }


def compare_restarts(
    names: Sequence[str], baseline: _Times, candidate: _Times, *, floor: float = 0.0
) -> pd.DataFrame:
    """As `compare_apart`, for many measurements by their `typical_restarts`; one family."""
    found = [
        speedup_apart([np.array([ms]) for ms in before], [np.array([ms]) for ms in after])
        for before, after in zip(baseline, candidate, strict=True)
    ]
    log, error, freedom = (
        np.concatenate([getattr(s, part) for s in found]) for part in ("log", "error", "freedom")
    )
    before, after = (np.array([np.mean(ms) for ms in side]) for side in (baseline, candidate))
    return tabulate_comparison("e2e", names, (before, after), Speedup(log, error, freedom), floor)


def noise_floor(control: Speedup) -> np.ndarray:
    """The larger end of the control's interval as a ratio - 1; infinite if it has none."""
    ends = np.array([np.abs(np.log(control.low)), np.abs(np.log(control.high))])
    return np.expm1(np.nan_to_num(ends.max(axis=0), nan=np.inf))


def typical_times(restarts: Restarts) -> np.ndarray:
    """The typical time of every quantity: midmean within, mean over the restarts."""
    return np.mean([np.atleast_1d(midmean(times)) for times in restarts], axis=0)


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


def _paired(
    latencies: pd.DataFrame, baseline: str, candidate: str, clock: str
) -> tuple[Restarts, Restarts]:
    """Milliseconds of the rounds that hold both experiments, one array per restart."""
    before, after = (_round_times(latencies, name, clock) for name in (baseline, candidate))
    shared = before.index.intersection(after.index)
    if shared.empty:
        raise ComparisonError(
            f"no round holds both {baseline!r} and {candidate!r}",
            hint="measure them interleaved, in one run",
        )
    return _split(before.loc[shared]), _split(after.loc[shared])


def _split(times: pd.Series | pd.DataFrame) -> Restarts:
    return [part.to_numpy() for _, part in times.groupby(level="process")]


def _round_times(latencies: pd.DataFrame, experiment: str, clock: str) -> pd.Series:
    """Milliseconds of the experiment in every complete round, by ``(process, round)``."""
    part = latencies[latencies["experiment"] == experiment]
    if part.empty:
        raise unknown_name("experiment", experiment, latencies["experiment"].unique())
    batches = _midmeans(part.set_index(["process", "round", "batch"])[clock]) / 1e6
    if not batches.gt(0).all():
        raise ComparisonError(
            f"the clock {clock} did not tick in some batches of {experiment!r}",
            hint="compare wall time (clock='wall_ns')",
        )
    rounds = batches.groupby(level=["process", "round"]).agg(["mean", "size"])
    return rounds.loc[rounds["size"] == rounds["size"].max(), "mean"]


def _midmeans(times: pd.Series) -> pd.Series:
    """The midmean of every group, by its index; groups of one size are reduced together."""
    groups = times.groupby(level=list(times.index.names), sort=True)
    sizes = groups.size()
    ordered = times.to_numpy()[np.argsort(groups.ngroup().to_numpy(), kind="stable")]
    starts = (sizes.cumsum() - sizes).to_numpy()
    found = sizes.astype(float)
    for size in sizes.unique():
        same = np.flatnonzero(sizes == size)
        found.iloc[same] = midmean(ordered[starts[same, None] + np.arange(size)], axis=1)
    return found


#: XNNPACK logs whole microseconds: an error of 1 us / sqrt(12) for each operator.
_RESOLUTION_MS = 1e-3 / np.sqrt(12)

#: What is compared at each level: the values of a column of the ledger.
_COLUMNS = {"category": "category", "operator": "key", "layer": "layer", "kind": "kind"}


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

    by, before, after = _COLUMNS[level], prepare(baseline), prepare(candidate)
    names = pd.Index(dict.fromkeys([*before[by], *after[by]]), dtype=object)
    sides, speedup = _speedup(before, after, by, names, apart)
    floor: np.ndarray | float = 0.0
    if control is not None:
        repeated = before if control_of is None else prepare(control_of)
        floor = noise_floor(_speedup(repeated, prepare(control), by, names)[1])
    times = typical_times(sides[0]), typical_times(sides[1])
    table = tabulate_comparison(level, list(names), times, speedup, floor)
    table = table.assign(restarts=min(map(len, sides)))
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
) -> tuple[tuple[Restarts, Restarts], Speedup]:
    """Times in ms of each side, one array of shape ``(runs, names)`` per restart; the speed-up."""
    totals = [total_runs(ledger, by).reindex(columns=names) for ledger in (baseline, candidate)]
    ledgers = zip((baseline, candidate), totals, strict=True)
    errors = [_clock_error(ledger, by, runs) for ledger, runs in ledgers]
    if not apart:
        totals = [side.loc[_shared_restarts(*totals)] for side in totals]
    before, after = map(_split, totals)
    speedup = speedup_apart if apart else speedup_of_runs
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = errors[0] / typical_times(before), errors[1] / typical_times(after)
        return (before, after), speedup(before, after, resolution=np.hypot(*relative))


def _shared_restarts(before: pd.DataFrame, after: pd.DataFrame) -> list[int]:
    first, second = (side.index.unique("process") for side in (before, after))
    shared = first.intersection(second)
    if shared.empty:
        raise ComparisonError(
            f"no restart in common: {sorted(first)} and {sorted(second)}",
            hint="compare runs with the same number of processes",
        )
    return list(shared)


def _clock_error(ledger: pd.DataFrame, by: str, runs: pd.DataFrame) -> np.ndarray:
    """Standard error in ms of the sum of every column, from times logged in whole microseconds.

    More runs do not reduce it: the midmean of times that take only two values hardly moves.
    """
    logged = ledger.loc[ledger["kind"] == "delegated", by].astype(object).value_counts()
    logged = logged.reindex(runs.columns, fill_value=0.0) / len(runs)
    return np.sqrt(logged.to_numpy()) * _RESOLUTION_MS
