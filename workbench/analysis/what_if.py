"""What E2E would be if parts of it were faster: Amdahl's law on what was measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from workbench.analysis.categories import CATEGORIES, add_categories
from workbench.analysis.operators import total_runs
from workbench.analysis.statistics import blocks_of, half_width
from workbench.errors import UsageError, unknown_name
from workbench.frames import BOTTLENECKS, WHAT_IF, check, is_emulated, mark_emulated

#: Columns of a ledger that only its categories have.
_DERIVED = ("category", "family")


def predict_what_if(
    times: pd.DataFrame, factors: Mapping[str, float], *, by: str = "category"
) -> pd.DataFrame:
    """The E2E time if some parts ran faster, and all others as measured.

    The prediction is the sum of every part's mean time over its factor, so with all factors 1 it
    is E2E to the last bit. The bands are Student's 95 % intervals over the process restarts (over
    the runs where there is only one restart): how well the measurement supports the prediction.
    That nothing else changes is an assumption, and no band covers it.

    Parameters
    ----------
    times
        ``schema.LEDGER`` of one experiment and thread count; or ``schema.CATEGORIES``, which has
        no repetitions and gives no bands (NaN).
    factors
        How many times faster each part becomes, ``inf`` if it is for free. Others stay.
    by
        What a part is: ``category``, ``family``, or a column of the ledger (``operator``, ``key``,
        ``layer``).

    Returns
    -------
    DataFrame
        ``schema.WHAT_IF``; E2E first, then every part.

    Raises
    ------
    UsageError
        There is no such part, or a factor is not above 0.
    ComparisonError
        The ledger is empty or mixed.
    """
    parts = _split(times, by)
    table = check(_tabulate(parts, _factors_of(parts, factors, by), by), WHAT_IF)
    return mark_emulated(table) if is_emulated(times) else table


def rank_bottlenecks(
    times: pd.DataFrame, *, by: str = "category", factor: float = 2.0
) -> pd.DataFrame:
    """What there is to gain from each part: E2E if it were free, and if it were faster.

    Parameters
    ----------
    times, by
        As for `predict_what_if`.
    factor
        How many times faster, for the second of the two.

    Returns
    -------
    DataFrame
        ``schema.BOTTLENECKS``, the largest part first: the next bottleneck.

    Raises
    ------
    UsageError
        The factor is not above 0.
    ComparisonError
        The ledger is empty or mixed.
    """
    parts = _split(times, by)
    rows = []
    for name, ms in sorted(zip(parts.names, parts.mean, strict=True), key=lambda part: -part[1]):
        free, faster = (
            _tabulate(parts, _factors_of(parts, {name: k}, by), by).iloc[0]
            for k in (math.inf, factor)
        )
        bands = {"free_low": free["low"], "free_high": free["high"]}
        rows.append(
            {"level": by, "name": name, "mean_ms": ms, "share": ms / parts.mean.sum()}
            | {"free_ms": free["predicted_ms"], "free_speedup": free["speedup"], **bands}
            | {"factor": factor, "faster_ms": faster["predicted_ms"]}
            | faster[["speedup", "low", "high"]].to_dict()
        )
    table = check(pd.DataFrame(rows, columns=BOTTLENECKS.names), BOTTLENECKS)
    return mark_emulated(table) if is_emulated(times) else table


@dataclass(frozen=True)
class _Parts:
    """Mean time of every part in ms: over all runs, and one row for each block of them."""

    names: list[str]
    mean: np.ndarray
    blocks: np.ndarray


def _split(times: pd.DataFrame, by: str) -> _Parts:
    if "duration_ns" not in times:
        mean = times["mean_ms"].to_numpy(float)
        return _Parts(list(times["category"]), mean, mean[None])
    runs = total_runs(add_categories(times) if by in _DERIVED else times, by)
    if by == "category":
        runs = runs.reindex(columns=list(CATEGORIES), fill_value=0.0)
    means, blocks = runs.mean().to_numpy(), blocks_of(runs).to_numpy()
    return _Parts(list(map(str, runs.columns)), means, blocks)


def _factors_of(parts: _Parts, factors: Mapping[str, float], by: str) -> np.ndarray:
    for name, factor in factors.items():
        if name not in parts.names:
            raise unknown_name(by, name, parts.names)
        if not factor > 0:
            raise UsageError(f"a factor must be above 0, not {factor}", where=name)
    return np.array([float(factors.get(name, 1.0)) for name in parts.names])


def _tabulate(parts: _Parts, factor: np.ndarray, by: str) -> pd.DataFrame:
    before, after = parts.blocks, parts.blocks / factor
    sums = before.sum(axis=1), after.sum(axis=1)
    predicted = np.append((parts.mean / factor).sum(), parts.mean / factor)
    half = half_width(np.column_stack([sums[1], after]))
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = np.log(parts.mean.sum() / predicted[0])
        spread = half_width(np.log(sums[0] / sums[1])[:, None])[0]
    return pd.DataFrame(
        {
            "level": ["e2e", *[by] * len(factor)],
            "name": ["E2E", *parts.names],
            "measured_ms": np.append(parts.mean.sum(), parts.mean),
            "predicted_ms": predicted,
            "low_ms": predicted - half,
            "high_ms": predicted + half,
            "speedup": np.append(np.exp(gain), factor),
            "low": np.append(np.exp(gain - spread), factor),
            "high": np.append(np.exp(gain + spread), factor),
        }
    )
