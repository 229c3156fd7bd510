"""What comparisons showed: one of four outcomes each, with false discoveries held down.

Compare E2E latencies: of experiments that took turns, and of runs of their own.

Compare the parts of an inference: categories, operators and layers, from traced runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.stats import false_discovery_control

from workbench.analysis.categories import CATEGORIES, add_categories
from workbench.analysis.operators import first_rows, total_runs
from workbench.analysis.speedup import Speedup, speedup_apart, speedup_of_pairs, speedup_of_runs
from workbench.analysis.statistics import clock_of, midmean, pick_timed
from workbench.errors import ComparisonError, unknown_name
from workbench.frames import COMPARISON, check
from workbench.records.runs import Batch, RunRecord

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


def compare_latencies(
    latencies: pd.DataFrame,
    baseline: str,
    candidate: str,
    *,
    control: str | None = None,
    control_of: str | None = None,
    threads: int | None = None,
    clock: str | None = None,
    margin: float = MARGIN,
) -> pd.DataFrame:
    """Whether the candidate's E2E latency differs from the baseline's, from interleaved rounds.

    Within a round each experiment is measured there and back again (A B C C B A), so the mean of
    its two batches is free of linear drift; a batch counts with the midmean of its inferences.
    The speed-up and its interval come from ``speedup_of_pairs``. The noise floor is what the
    control, a repetition of the baseline or of ``control_of``, differed from that at most: the
    end of its interval that lies farther from 1.

    Parameters
    ----------
    latencies
        ``schema.LATENCIES``; traced rows count only where there are no others.
    baseline, candidate, control
        Names of experiments. None: no control, hence no noise floor.
    control_of
        Which experiment the control repeats; None: the baseline.
    threads
        Which thread count; None if the frame holds only one.
    clock
        ``cpu_ns`` or ``wall_ns``; None takes CPU time for one thread and wall time for several.
    margin
        Relative difference up to which latencies count as equal.

    Returns
    -------
    DataFrame
        One row of ``schema.COMPARISON`` with, besides, ``restarts`` and ``rounds``. The times are
        means over the restarts of the midmean over their rounds.

    Raises
    ------
    UsageError
        There is no such experiment or thread count.
    ComparisonError
        No round holds both experiments, or the clock did not tick.

    See Also
    --------
    judge : what the outcomes mean.
    """
    part = _one_thread_count(pick_timed(latencies), threads)
    clock = clock or clock_of(part)
    floor = np.zeros(1)
    if control is not None:
        alike = _paired_rounds(part, control_of or baseline, control, clock)
        floor = floor_of(speedup_of_pairs(*alike))
    before, after = _paired_rounds(part, baseline, candidate, clock)
    times = typical_times(before), typical_times(after)
    speedup = speedup_of_pairs(before, after)
    table = tabulate_outcomes("e2e", [candidate], times, speedup, floor, margin)
    return table.assign(restarts=len(before), rounds=sum(map(len, before)))


def compare_apart(
    baseline: pd.DataFrame,
    candidate: pd.DataFrame,
    *,
    floor: float = 0.0,
    margin: float = MARGIN,
    clock: str | None = None,
) -> pd.DataFrame:
    """Whether two latencies of different runs differ, by Welch's t over process restarts.

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
    clock
        As for ``compare_latencies``; the same for both sides.

    Returns
    -------
    DataFrame
        One row of ``schema.COMPARISON``. The interval is NaN, and the outcome inconclusive, where
        a side has only one restart.

    Raises
    ------
    ComparisonError
        A side has no latency.
    """
    timed = [pick_timed(side) for side in (baseline, candidate)]
    if any(side.empty for side in timed):
        raise ComparisonError("there is no latency")
    # One clock for both: wall time as soon as either side has several threads.
    clock = clock or max(clock_of(side) for side in timed)
    sides = [split_restarts(side, clock) for side in timed]
    times = typical_times(sides[0]), typical_times(sides[1])
    return tabulate_outcomes("e2e", ["latency"], times, speedup_apart(*sides), floor, margin)


def split_restarts(timed: pd.DataFrame, clock: str) -> list[np.ndarray]:
    """The milliseconds of every process restart."""
    return [times.to_numpy() / 1e6 for _, times in timed.groupby("process")[clock]]


def typical_restarts(latencies: pd.DataFrame, clock: str | None = None) -> list[float]:
    """The midmean of the latencies of every process restart, in milliseconds.

    Parameters
    ----------
    latencies
        ``schema.LATENCIES`` of one experiment and thread count.
    clock
        As for ``compare_latencies``.
    """
    timed = pick_timed(latencies)
    return [float(midmean(times)) for times in split_restarts(timed, clock or clock_of(timed))]


def list_restarts(run: RunRecord) -> dict[tuple[str, int], tuple[str, list[float]]]:
    """For every experiment and thread count of a run its clock, and ``typical_restarts``.

    The same as by way of ``tabulate_latencies``, without a frame: for who reads many runs.
    """
    sessions = [s for s in run.sessions if s.complete and s.batches]
    timed = [s for s in sessions if not s.traced] or sessions
    found: dict[tuple[str, int], dict[int, list[Batch]]] = {}
    for s in timed:
        found.setdefault((s.experiment, s.threads), {}).setdefault(s.process, []).extend(s.batches)
    return {key: _typical(key[1], restarts) for key, restarts in found.items()}


def _typical(threads: int, restarts: dict[int, list[Batch]]) -> tuple[str, list[float]]:
    by_cpu = threads == 1 and any(any(b.cpu_ns) for batches in restarts.values() for b in batches)
    clock = "cpu_ns" if by_cpu else "wall_ns"
    laps = [[ns for b in restarts[p] for ns in getattr(b, clock)] for p in sorted(restarts)]
    return clock, [float(midmean(np.array(ns) / 1e6)) for ns in laps if ns]


def compare_restarts(
    names: Sequence[str],
    baseline: Sequence[Sequence[float]],
    candidate: Sequence[Sequence[float]],
    *,
    floor: float = 0.0,
    margin: float = MARGIN,
) -> pd.DataFrame:
    """As ``compare_apart``, for many measurements at once, from ``typical_restarts`` alone.

    Parameters
    ----------
    names
        What was measured. All are judged as one family.
    baseline, candidate
        For each name the typical latencies of its restarts, in milliseconds.
    floor, margin
        As for ``compare_apart``.

    Returns
    -------
    DataFrame
        ``schema.COMPARISON``.
    """
    found = [
        speedup_apart(*([np.array([ms]) for ms in side] for side in sides))
        for sides in zip(baseline, candidate, strict=True)
    ]
    speedup = Speedup(
        *(np.concatenate([getattr(s, part) for s in found]) for part in ("log", "error", "freedom"))
    )
    times = tuple(np.array([np.mean(ms) for ms in side]) for side in (baseline, candidate))
    return tabulate_outcomes("e2e", names, times, speedup, floor, margin)


def floor_of(control: Speedup) -> np.ndarray:
    """The larger end of the control's interval as a ratio - 1; infinite where it has none."""
    ends = np.array([np.abs(np.log(control.low)), np.abs(np.log(control.high))])
    return np.expm1(np.nan_to_num(ends.max(axis=0), nan=np.inf))


def typical_times(restarts: list[np.ndarray]) -> np.ndarray:
    """The typical time of every quantity: midmean within, mean over the restarts."""
    return np.mean([np.atleast_1d(midmean(times)) for times in restarts], axis=0)


def _one_thread_count(latencies: pd.DataFrame, threads: int | None) -> pd.DataFrame:
    found = sorted(int(count) for count in latencies["threads"].unique())
    if threads is None:
        if not found:
            raise ComparisonError("no untraced latencies", hint="measure with tracing off too")
        if len(found) > 1:
            raise ComparisonError(
                f"latencies of several thread counts: {found}", hint="say which with threads="
            )
        return latencies
    if threads not in found:
        raise unknown_name("thread count", str(threads), map(str, found))
    return latencies[latencies["threads"] == threads]


def _paired_rounds(
    latencies: pd.DataFrame, baseline: str, candidate: str, clock: str
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Milliseconds of the rounds that hold both experiments, one array per restart."""
    before, after = (_round_times(latencies, name, clock) for name in (baseline, candidate))
    shared = before.index.intersection(after.index)
    if shared.empty:
        raise ComparisonError(
            f"no round holds both {baseline!r} and {candidate!r}",
            hint="measure them interleaved, in one run",
        )
    return tuple(
        [times.to_numpy() for _, times in side.loc[shared].groupby(level="process")]
        for side in (before, after)
    )


def _round_times(latencies: pd.DataFrame, experiment: str, clock: str) -> pd.Series:
    """Milliseconds of the experiment in every complete round, by ``(process, round)``."""
    part = latencies[latencies["experiment"] == experiment]
    if part.empty:
        raise unknown_name("experiment", experiment, latencies["experiment"].unique())
    batches = part.groupby(["process", "round", "batch"])[clock].agg(
        lambda times: midmean(times.to_numpy()) / 1e6
    )
    if not batches.gt(0).all():
        raise ComparisonError(
            f"the clock {clock} did not tick in some batches of {experiment!r}",
            hint="compare wall time (clock='wall_ns')",
        )
    rounds = batches.groupby(level=["process", "round"]).agg(["mean", "size"])
    return rounds.loc[rounds["size"] == rounds["size"].max(), "mean"]


#: XNNPACK logs whole microseconds: an error of 1 us / sqrt(12) for each operator.
_RESOLUTION_MS = 1e-3 / np.sqrt(12)


def compare_categories(
    baseline: pd.DataFrame,
    candidate: pd.DataFrame,
    *,
    control: pd.DataFrame | None = None,
    control_of: pd.DataFrame | None = None,
    margin: float = MARGIN,
    apart: bool = False,
) -> pd.DataFrame:
    """The speed-up of every category.

    Parameters
    ----------
    baseline, candidate, control, control_of
        ``schema.LEDGER``, each of one experiment and thread count; the control is a repetition
        of the baseline, or of ``control_of``, from which each category gets its noise floor.
    margin
        Relative difference up to which times count as equal.
    apart
        The two are of different runs: their restarts have nothing in common.

    Returns
    -------
    DataFrame
        ``schema.COMPARISON`` with, besides, ``restarts``; one row per category that occurs, in
        the usual order. The times are typical ones (midmeans of the runs, averaged over the
        restarts), which outliers leave alone; those of ``summarize_categories`` are means, which
        add up.

    Raises
    ------
    ComparisonError
        A ledger is empty or mixed, or the two share no restart.
    """
    sides = (baseline, candidate, control, control_of)
    sides = [None if side is None else add_categories(side) for side in sides]
    table = _compare_ledgers("category", "category", *sides, margin, apart)
    order = table["name"].map(CATEGORIES.index)
    return table.iloc[np.argsort(order)].drop(columns="key").reset_index(drop=True)


def compare_operators(
    baseline: pd.DataFrame,
    candidate: pd.DataFrame,
    *,
    control: pd.DataFrame | None = None,
    control_of: pd.DataFrame | None = None,
    margin: float = MARGIN,
    apart: bool = False,
) -> pd.DataFrame:
    """The speed-up of every operator, from runs of the same program.

    Parameters
    ----------
    baseline, candidate, control, control_of, margin, apart
        As for ``compare_categories``; operators are paired by ``key``.

    Returns
    -------
    DataFrame
        ``schema.COMPARISON`` with, besides, ``restarts``, ``key``, ``category`` (the baseline's)
        and ``candidate_name``; the largest change of time first. An operator that only one side
        has gets NaN on the other and is inconclusive: there is nothing to compare it with.

    Raises
    ------
    ComparisonError
        A ledger is empty or mixed, or the two share no restart.
    """
    sides = (baseline, candidate, control, control_of)
    table = _compare_ledgers("operator", "key", *sides, margin, apart)
    before, after = first_rows(baseline), first_rows(candidate)
    both = before.combine_first(after)
    table["name"] = table["key"].map(both["operator"])
    table["category"] = table["key"].map(both["category"])
    table["candidate_name"] = table["key"].map(after["operator"])
    return _largest_change_first(table)


def compare_layers(
    baseline: pd.DataFrame,
    candidate: pd.DataFrame,
    *,
    control: pd.DataFrame | None = None,
    control_of: pd.DataFrame | None = None,
    margin: float = MARGIN,
    apart: bool = False,
) -> pd.DataFrame:
    """The speed-up of every layer's own time: that of the operators which `place_rows` put there.

    Parameters
    ----------
    baseline, candidate, control, control_of, margin, apart
        As for ``compare_categories``; ledgers with the column ``layer``.

    Returns
    -------
    DataFrame
        ``schema.COMPARISON`` with, besides, ``restarts``; the largest change of time first.

    Raises
    ------
    ComparisonError
        A ledger is empty or mixed, or the two share no restart.
    """
    sides = (baseline, candidate, control, control_of)
    table = _compare_ledgers("layer", "layer", *sides, margin, apart)
    return _largest_change_first(table.drop(columns="key"))


def _largest_change_first(table: pd.DataFrame) -> pd.DataFrame:
    change = (table["candidate_ms"].fillna(0) - table["baseline_ms"].fillna(0)).abs()
    return table.iloc[np.argsort(-change, kind="stable")].reset_index(drop=True)


def _compare_ledgers(
    level: str,
    by: str,
    baseline: pd.DataFrame,
    candidate: pd.DataFrame,
    control: pd.DataFrame | None,
    control_of: pd.DataFrame | None,
    margin: float,
    apart: bool,
) -> pd.DataFrame:
    """One row for every value of ``by`` that either side has."""
    names = pd.Index(dict.fromkeys([*baseline[by], *candidate[by]]), dtype=object)
    sides = _restarts_of(baseline, candidate, by, names, apart)
    errors = [_clock_error(ledger, by, names) for ledger in (baseline, candidate)]
    floor = 0.0
    if control is not None:
        alike = (baseline if control_of is None else control_of, control)
        noise = [_clock_error(ledger, by, names) for ledger in alike]
        floor = floor_of(_speedup(_restarts_of(*alike, by, names), noise))
    times = typical_times(sides[0]), typical_times(sides[1])
    table = tabulate_outcomes(level, names, times, _speedup(sides, errors, apart), floor, margin)
    return table.assign(key=names, restarts=min(map(len, sides)))


def _restarts_of(
    baseline: pd.DataFrame, candidate: pd.DataFrame, by: str, names: pd.Index, apart: bool = False
) -> list[list[np.ndarray]]:
    """Times in ms, of shape ``(runs, names)``, of every restart that both sides share, or have."""
    sides = [total_runs(ledger, by).reindex(columns=names) for ledger in (baseline, candidate)]
    if not apart:
        shared = _shared_restarts(*sides)
        sides = [side.loc[shared] for side in sides]
    return [[part.to_numpy() for _, part in side.groupby(level="process")] for side in sides]


def _speedup(
    sides: list[list[np.ndarray]], errors_ms: list[np.ndarray], apart: bool = False
) -> Speedup:
    speedup = speedup_apart if apart else speedup_of_runs
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = [e / typical_times(side) for e, side in zip(errors_ms, sides, strict=True)]
        return speedup(*sides, np.hypot(*relative))


def _shared_restarts(before: pd.DataFrame, after: pd.DataFrame) -> list[int]:
    first, second = (side.index.unique("process") for side in (before, after))
    shared = first.intersection(second)
    if shared.empty:
        raise ComparisonError(
            f"no restart in common: {sorted(first)} and {sorted(second)}",
            hint="compare runs with the same number of processes",
        )
    return list(shared)


def _clock_error(ledger: pd.DataFrame, by: str, names: pd.Index) -> np.ndarray:
    """Standard error in ms that whole microseconds leave in the sum of every name.

    More runs do not make it smaller: the midmean of times that take only two values hardly moves.
    """
    runs = len(ledger[["process", "run"] if "process" in ledger else ["run"]].drop_duplicates())
    logged = ledger["kind"].eq("delegated").groupby(ledger[by].astype(object)).sum() / runs
    return np.sqrt(logged.reindex(names).to_numpy()) * _RESOLUTION_MS
