"""Bottlenecks: what faster parts would gain, by Amdahl's law, and how they move between sides."""

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

from workbench.analysis.operators import CATEGORIES, add_categories, total_runs
from workbench.analysis.speedup import MARGIN
from workbench.analysis.statistics import blocks_of, half_width
from workbench.emulation import is_emulated, mark_emulated
from workbench.errors import UsageError, unknown_name
from workbench.frames import BOTTLENECKS, SHIFT, WHAT_IF, check

#: Columns of a ledger that only its categories have.
_DERIVED = ("category", "family")


def predict_what_if(
    times: pd.DataFrame, factors: Mapping[str, float], *, by: str = "category"
) -> pd.DataFrame:
    """Predict E2E time if some parts ran faster and all others as measured.

    The prediction sums every part's mean time over its factor. Its bands are Student's 95 %
    intervals over the process restarts; one restart has none. They do not cover the
    assumption that nothing else changes.

    Parameters
    ----------
    times
        ``frames.LEDGER`` of one experiment and thread count; or ``frames.CATEGORIES``, which has
        no repetitions and gives no bands (NaN).
    factors
        By part, how many times faster it becomes; ``inf`` removes it. Others stay.
    by
        What a part is: ``category``, ``family``, or a column of the ledger (``operator``, ``key``,
        ``layer``).

    Returns
    -------
    DataFrame
        ``frames.WHAT_IF``; E2E first, then every part.

    Raises
    ------
    UsageError
        There is no such part, or a factor is not above 0.
    WorkbenchError
        The ledger is empty or mixed.

    Examples
    --------
    >>> ledger = wb.build_ledger(wb.read_etdump(next(wb.sample_run().rglob("*.etdump"))))
    >>> table = wb.predict_what_if(ledger, {"GEMM": 2.0}).set_index("name")
    >>> bool(table.at["GEMM", "predicted_ms"] == table.at["GEMM", "measured_ms"] / 2)
    True
    """
    names, mean, blocks = _break_down(times, by)
    factor = _factors_of(names, factors, by)
    e2e_ms, speedup, low, high = _predict_e2e(mean, blocks, factor)
    after = blocks / factor
    half = half_width(np.column_stack([after.sum(axis=1), after]))
    table = pd.DataFrame({"level": ["e2e", *[by] * len(factor)], "name": ["E2E", *names]})
    table["measured_ms"] = np.append(mean.sum(), mean)
    table["predicted_ms"] = np.append(e2e_ms, mean / factor)
    table["low_ms"], table["high_ms"] = table["predicted_ms"] - half, table["predicted_ms"] + half
    for column, value in (("speedup", speedup), ("low", low), ("high", high)):
        table[column] = np.append(value, factor)
    table = check(table, WHAT_IF)
    return mark_emulated(table) if is_emulated(times) else table


def rank_bottlenecks(times: pd.DataFrame, *, by: str = "category") -> pd.DataFrame:
    """What each part could gain: E2E without it, and with it twice as fast.

    ``frames.BOTTLENECKS``, the largest part first: the next bottleneck. ``times`` and ``by`` are as
    for `predict_what_if`.
    """
    names, mean, blocks = _break_down(times, by)
    rows = []
    for name, ms in sorted(zip(names, mean, strict=True), key=lambda part: -part[1]):
        free, faster = (
            _predict_e2e(mean, blocks, _factors_of(names, {name: k}, by)) for k in (math.inf, 2.0)
        )
        rows.append((by, name, ms, ms / mean.sum(), *free, 2.0, *faster))
    table = check(pd.DataFrame(rows, columns=BOTTLENECKS.names), BOTTLENECKS)
    return mark_emulated(table) if is_emulated(times) else table


def _break_down(times: pd.DataFrame, by: str) -> tuple[list[str], np.ndarray, np.ndarray]:
    """The parts, the mean time of each in ms, and that of every block of runs (one row each)."""
    if "duration_ns" not in times:
        mean = times["mean_ms"].to_numpy(float)
        return list(times["category"]), mean, mean[None]
    if by not in (*_DERIVED, *times.columns):
        raise unknown_name("part", by, {*_DERIVED, *times.columns})
    runs = total_runs(add_categories(times) if by in _DERIVED else times, by)
    if by == "category":
        runs = runs.reindex(columns=list(CATEGORIES), fill_value=0.0)
    return list(map(str, runs.columns)), runs.mean().to_numpy(), blocks_of(runs).to_numpy()


def _factors_of(names: list[str], factors: Mapping[str, float], by: str) -> np.ndarray:
    for name, factor in factors.items():
        if name not in names:
            raise unknown_name(by, name, names)
        if not factor > 0:
            raise UsageError(f"a factor must be above 0, not {factor}", where=name)
    return np.array([float(factors.get(name, 1.0)) for name in names])


def _predict_e2e(
    mean: np.ndarray, blocks: np.ndarray, factor: np.ndarray
) -> tuple[float, float, float, float]:
    """Predicted ms, speed-up, and the ends of its interval."""
    predicted = (mean / factor).sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = np.log(mean.sum() / predicted)
        ratios = blocks.sum(axis=1) / (blocks / factor).sum(axis=1)
        spread = half_width(np.log(ratios)[:, None])[0]
        return predicted, np.exp(gain), np.exp(gain - spread), np.exp(gain + spread)


def bottleneck_shift(
    baseline: pd.DataFrame,
    candidate: pd.DataFrame,
    ledgers: tuple[pd.DataFrame, pd.DataFrame] | None = None,
) -> pd.DataFrame:
    """Time and share of every category before and after, and its part in the E2E change.

    ``frames.SHIFT`` from ``frames.CATEGORIES`` of both sides, in the order of the baseline; a
    category that one of them lacks took no time there. From the ``ledgers`` of both, ``low_ms`` and
    ``high_ms`` are Student's 95 % interval of every ``delta_ms`` over the restarts that both have;
    NaN if there are fewer than two. Parts of a change that may be noise are unknown: one of at most
    2 %, or whose own interval holds 0.
    """
    before, after = (side.set_index("category")["mean_ms"] for side in (baseline, candidate))
    names = before.index.union(after.index, sort=False)
    before, after = (side.reindex(names, fill_value=0.0) for side in (before, after))
    table = pd.DataFrame({"baseline_ms": before, "candidate_ms": after})
    table["delta_ms"] = after - before
    change = table["delta_ms"].sum()
    shown = abs(change) > MARGIN * before.sum()
    table["contribution"] = table["delta_ms"] / change if shown else np.nan
    for when, side in (("before", before), ("after", after)):
        table[f"share_{when}"] = side / side.sum()
        table[f"rank_{when}"] = side.rank(ascending=False, method="first").astype(int)
    table = check(table.rename_axis("category").reset_index()[SHIFT.names], SHIFT)
    if ledgers is None:
        return table
    before, after = (
        total_runs(add_categories(side), "category").groupby(level="process").mean()
        for side in ledgers
    )
    shared = before.index.intersection(after.index)
    changes = after.loc[shared].sub(before.loc[shared], fill_value=0.0)
    changes = changes.reindex(columns=names, fill_value=0.0)
    half = half_width(changes.to_numpy())
    if abs(change) <= half_width(changes.sum(axis=1).to_numpy()):
        table["contribution"] = np.nan
    place = table.columns.get_loc("delta_ms") + 1
    table.insert(place, "low_ms", table["delta_ms"] - half)
    table.insert(place + 1, "high_ms", table["delta_ms"] + half)
    return table
