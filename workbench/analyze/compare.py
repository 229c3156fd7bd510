"""Speed-ups with intervals and one of four outcomes: faster, slower, equivalent, inconclusive."""

from __future__ import annotations

import numpy as np
import pandas as pd

from workbench.analyze.categories import CATEGORIES, add_categories
from workbench.analyze.latencies import clock_of
from workbench.analyze.operators import first_rows, total_runs
from workbench.analyze.statistics import Speedup, midmean, speedup_of_pairs, speedup_of_runs
from workbench.errors import ComparisonError, unknown_name
from workbench.schema import COMPARISON, check

#: Two latencies closer than this count as equal, unless the caller says otherwise.
MARGIN = 0.02

#: XNNPACK logs whole microseconds: an error of 1 us / sqrt(12) that repetition leaves in place.
_RESOLUTION_MS = 1e-3 / np.sqrt(12)


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
        ``schema.LATENCIES``; traced rows are left out.
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
        One row of ``schema.COMPARISON`` with, besides, ``floor`` (the noise floor as a ratio - 1,
        0 without control), ``margin``, ``restarts`` and ``rounds``. The times are means over the
        restarts of the midmean over their rounds.

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
    part = _one_thread_count(latencies[~latencies["traced"]], threads)
    clock = clock or clock_of(int(part["threads"].iloc[0]))
    floor = np.zeros(1)
    if control is not None:
        floor = _floor(
            speedup_of_pairs(*_paired_rounds(part, control_of or baseline, control, clock))
        )
    before, after = _paired_rounds(part, baseline, candidate, clock)
    table = _table(
        "e2e", [candidate], _typical(before), _typical(after), speedup_of_pairs(before, after),
        floor, margin,
    )  # fmt: skip
    return check(table.assign(restarts=len(before), rounds=sum(map(len, before))), COMPARISON)


def compare_categories(
    baseline: pd.DataFrame,
    candidate: pd.DataFrame,
    *,
    control: pd.DataFrame | None = None,
    control_of: pd.DataFrame | None = None,
    margin: float = MARGIN,
) -> pd.DataFrame:
    """The speed-up of every category, from traced runs.

    Parameters
    ----------
    baseline, candidate, control
        ``schema.LEDGER``, each of one experiment and thread count; the control is a repetition
        of the baseline, or of ``control_of``, from which each category gets its noise floor.
    margin
        Relative difference up to which times count as equal.

    Returns
    -------
    DataFrame
        ``schema.COMPARISON`` with, besides, ``floor``, ``margin`` and ``restarts``; one row per
        category that occurs, in the usual order. The times are typical ones (midmeans of the runs,
        averaged over the restarts), which outliers leave alone; those of
        ``summarize_categories`` are means, which add up.

    Raises
    ------
    ComparisonError
        A ledger is empty or mixed, or the two share no restart.
    """
    sides = (baseline, candidate, control, control_of)
    sides = [None if side is None else add_categories(side) for side in sides]
    table = _compare_ledgers("category", "category", *sides, margin)
    order = table["name"].map(CATEGORIES.index)
    return table.iloc[np.argsort(order)].drop(columns="key").reset_index(drop=True)


def compare_operators(
    baseline: pd.DataFrame,
    candidate: pd.DataFrame,
    *,
    control: pd.DataFrame | None = None,
    control_of: pd.DataFrame | None = None,
    margin: float = MARGIN,
) -> pd.DataFrame:
    """The speed-up of every operator, from traced runs of the same program.

    Parameters
    ----------
    baseline, candidate, control, control_of
        As for ``compare_categories``; operators are paired by ``key``.
    margin
        Relative difference up to which times count as equal.

    Returns
    -------
    DataFrame
        ``schema.COMPARISON`` with, besides, ``floor``, ``margin``, ``restarts``, ``key``,
        ``category`` (the baseline's) and ``candidate_name``; the largest change of time first.
        An operator that only one side has gets NaN on the other and is inconclusive: there is
        nothing to compare it with.

    Raises
    ------
    ComparisonError
        A ledger is empty or mixed, or the two share no restart.
    """
    table = _compare_ledgers("operator", "key", baseline, candidate, control, control_of, margin)
    before, after = first_rows(baseline), first_rows(candidate)
    both = before.combine_first(after)
    table["name"] = table["key"].map(both["operator"])
    table["category"] = table["key"].map(both["category"])
    table["candidate_name"] = table["key"].map(after["operator"])
    change = (table["candidate_ms"].fillna(0) - table["baseline_ms"].fillna(0)).abs()
    return table.iloc[np.argsort(-change, kind="stable")].reset_index(drop=True)


def judge(speedup: float, low: float, high: float, floor: float, margin: float) -> str:
    """The outcome of one comparison.

    ``equivalent``: the whole interval lies within the margin (two one-sided tests, each at
    2.5 %). ``faster`` or ``slower``: the interval leaves 1 out, and the speed-up is farther from
    1 than the noise floor. ``inconclusive``: neither could be shown.

    Parameters
    ----------
    speedup, low, high
        Baseline / candidate and its interval.
    floor, margin
        As ratio - 1.
    """
    if np.log(high) <= np.log1p(margin) and np.log(low) >= -np.log1p(margin):
        return "equivalent"
    if low > 1 and speedup > 1 + floor:
        return "faster"
    if high < 1 and speedup < 1 / (1 + floor):
        return "slower"
    return "inconclusive"


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


def _typical(sides: list[np.ndarray]) -> np.ndarray:
    """The typical time of every quantity: midmean within, mean over the restarts."""
    return np.mean([np.atleast_1d(midmean(side)) for side in sides], axis=0)


def _compare_ledgers(
    level: str,
    by: str,
    baseline: pd.DataFrame,
    candidate: pd.DataFrame,
    control: pd.DataFrame | None,
    control_of: pd.DataFrame | None,
    margin: float,
) -> pd.DataFrame:
    """One row for every value of ``by`` that either side has."""
    before, after = total_runs(baseline, by), total_runs(candidate, by)
    names = before.columns.union(after.columns, sort=False)
    floor = np.zeros(len(names))
    if control is not None:
        origin = baseline if control_of is None else control_of
        pair = (total_runs(origin, by), total_runs(control, by))
        found = _speedup_of_ledgers(*pair, names, _clock_error(origin, control, by))
        floor = _floor(found)
    error = _clock_error(baseline, candidate, by)
    speedup = _speedup_of_ledgers(before, after, names, error)
    times = (_typical(_by_restart(side.reindex(columns=names))) for side in (before, after))
    table = _table(level, names, *times, speedup, floor, margin)
    restarts = len(_shared_restarts(before, after))
    return check(table.assign(key=names, restarts=restarts), COMPARISON)


def _speedup_of_ledgers(
    before: pd.DataFrame, after: pd.DataFrame, names: pd.Index, error_ms: pd.DataFrame
) -> Speedup:
    shared = _shared_restarts(before, after)
    sides = [_by_restart(side.loc[shared].reindex(columns=names)) for side in (before, after)]
    errors = error_ms.reindex(names).to_numpy().T
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = [error / _typical(side) for error, side in zip(errors, sides, strict=True)]
        return speedup_of_runs(*sides, np.hypot(*relative))


def _shared_restarts(before: pd.DataFrame, after: pd.DataFrame) -> list[int]:
    first, second = (side.index.unique("process") for side in (before, after))
    shared = first.intersection(second)
    if shared.empty:
        raise ComparisonError(
            f"no restart in common: {sorted(first)} and {sorted(second)}",
            hint="compare runs with the same number of processes",
        )
    return list(shared)


def _by_restart(runs: pd.DataFrame) -> list[np.ndarray]:
    return [part.to_numpy() for _, part in runs.groupby(level="process")]


def _clock_error(baseline: pd.DataFrame, candidate: pd.DataFrame, by: str) -> pd.DataFrame:
    """Standard error in ms that whole microseconds leave in a run's sums, one column per side."""

    def error(ledger: pd.DataFrame) -> pd.Series:
        runs = len(ledger[["process", "run"] if "process" in ledger else ["run"]].drop_duplicates())
        logged = ledger["kind"].eq("delegated").groupby(ledger[by].astype(object)).sum()
        return np.sqrt(logged / runs) * _RESOLUTION_MS

    return pd.concat([error(baseline), error(candidate)], axis=1)


def _floor(control: Speedup) -> np.ndarray:
    """The larger end of the control's interval as a ratio - 1; infinite where it has none."""
    ends = np.array([np.abs(np.log(control.low)), np.abs(np.log(control.high))])
    return np.expm1(np.nan_to_num(ends.max(axis=0), nan=np.inf))


def _table(
    level: str,
    names: list[str] | pd.Index,
    before: np.ndarray,
    after: np.ndarray,
    speedup: Speedup,
    floor: np.ndarray,
    margin: float,
) -> pd.DataFrame:
    columns = (speedup.value, speedup.low, speedup.high, floor)
    return pd.DataFrame(
        {
            "level": level,
            "name": list(names),
            "baseline_ms": before,
            "candidate_ms": after,
            "speedup": speedup.value,
            "low": speedup.low,
            "high": speedup.high,
            "outcome": [judge(*row, margin) for row in zip(*columns, strict=True)],
            "floor": floor,
            "margin": margin,
        }
    )
