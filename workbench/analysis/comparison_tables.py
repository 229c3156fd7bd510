"""Tables of comparisons: E2E latency, and the parts of an inference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from workbench.analysis.operators import CATEGORIES, first_rows, total_runs
from workbench.analysis.speedup import (
    FALSE_DISCOVERIES,
    MARGIN,
    UNCHANGED_PART,
    Speedup,
    adjust_for_many,
    judge,
    pool_control,
    shared_restarts,
    speedup_of_parts,
    speedup_of_restarts,
    strengthen,
)
from workbench.analysis.statistics import (
    typical_restarts,
)
from workbench.errors import WorkbenchError
from workbench.frames import COMPARISON
from workbench.wording import format_share

#: Difference (ratio - 1) that a part must exceed if no A/A control shows how far equals differ.
UNCONTROLLED_MARGIN = 0.04

#: XNNPACK's own clock, in ns: it rounds the time of every operator down.
_COARSE_NS = 1000

#: The outcome of a row whose times may be rounded by more than they differ, and by `MARGIN`.
BELOW_CLOCK = "below the clock"


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
        is_unsure = row.outcome == "inconclusive" and away > 0
        texts.append(why if is_unsure else "")
    return texts


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
    return COMPARISON.check(table)


def judge_together(latencies: pd.DataFrame) -> pd.DataFrame:
    """E2E rows of ``frames.COMPARISON``, each judged by itself, as one family."""
    table = latencies.assign(q=adjust_for_many(latencies["q"].to_numpy(float)))
    lost = table["outcome"].isin(["faster", "slower"]) & (table["q"] > FALSE_DISCOVERIES)
    return table.assign(outcome=table["outcome"].mask(lost, "inconclusive"))


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
    (see `BETWEEN_RUNS`); otherwise they are series by restart, and each restart measured both.
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
    restarts_ms: Sequence[pd.Series] = (),
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
    (midmeans of the runs, averaged over the restarts), which outliers do not affect. With
    ``restarts_ms``, the latencies of both sides by restart, they are of the means of each restart,
    scaled to its latency: tracing slows two runtimes by different parts of their time. A row that
    is `BELOW_CLOCK` has no speed-up.
    """
    by = "key" if level == "operator" else level
    names = pd.Index([*baseline[by].unique(), *candidate[by].unique()], dtype=object).unique()
    sides, speedup, times = _speedup(baseline, candidate, by, names, apart, restarts_ms)
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
    baseline: pd.DataFrame,
    candidate: pd.DataFrame,
    by: str,
    names: pd.Index,
    apart: bool = False,
    restarts_ms: Sequence[pd.Series] = (),
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
    if restarts_ms:
        scaled = list(map(_scale_restarts, totals, restarts_ms))
        before, after = scaled[0].loc[before.index], scaled[1].loc[after.index]
    speedup = speedup_of_parts(before, after, separate=apart, bias=bias)
    return (before, after), speedup, (totals[0].mean().to_numpy(), totals[1].mean().to_numpy())


def _scale_restarts(runs: pd.DataFrame, latencies_ms: pd.Series) -> pd.DataFrame:
    """The mean of every column in each restart, scaled to its latency, or to that of all."""
    means = runs.groupby(level="process").mean()
    wholes = latencies_ms.reindex(means.index).fillna(latencies_ms.mean())
    return means.mul(wholes / means.sum(axis=1), axis=0)


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
