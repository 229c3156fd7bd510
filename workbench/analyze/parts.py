"""Compare the parts of an inference: categories, operators and layers, from traced runs."""

from __future__ import annotations

import numpy as np
import pandas as pd

from workbench.analyze.categories import CATEGORIES, add_categories
from workbench.analyze.compare import floor_of, typical_times
from workbench.analyze.operators import first_rows, total_runs
from workbench.analyze.outcome import MARGIN, tabulate_outcomes
from workbench.analyze.speedup import Speedup, speedup_apart, speedup_of_runs
from workbench.errors import ComparisonError

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
