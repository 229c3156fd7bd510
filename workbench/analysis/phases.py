"""Phases of a run: the latency of each, tokens per second, and what limits it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd

from workbench import frames
from workbench.records.runs import Phase

if TYPE_CHECKING:
    from workbench.analysis.measurement import Measurement

#: Numbers of calls in a row that are told.
_CALLS = (1, 2, 10, 100)
#: The parts of a model that was split: what is computed in the first call, and in each.
_PARTS = ("once", "each")


def outline_phase(
    phase: Phase, statistics: pd.DataFrame, categories: pd.DataFrame, roofline: pd.DataFrame | None
) -> dict[str, object]:
    """A row of ``frames.PHASES``: times, rates, and what limits them."""
    measured, top = statistics.iloc[0], categories.nlargest(1, "mean_ms").iloc[0]
    tokens = phase.tokens or math.nan
    bound, bound_share = _find_bound(roofline)
    return {
        "phase": phase.name,
        "experiment": measured["experiment"],
        "threads": measured["threads"],
        "tokens": tokens,
        "position": phase.position,
        "size": phase.size or math.nan,
        "latency_ms": measured["latency"],
        "latency_low_ms": measured["low"],
        "latency_high_ms": measured["high"],
        "rate": _rate(tokens, measured["latency"]),
        "rate_low": _rate(tokens, measured["high"]),
        "rate_high": _rate(tokens, measured["low"]),
        "category": top["category"],
        "share": top["share"],
        "bound": bound,
        "bound_share": bound_share,
    }


def tabulate_conversation(measurements: Sequence[Measurement]) -> pd.DataFrame | None:
    """What calls in a row take of a model that was split in two: ``frames.CONVERSATION``.

    The parts are phases or programs of one run. Their restarts are other processes: the intervals
    of both add up by their squares.
    """
    latencies = {
        (part, m.threads): m.statistics[["latency", "low", "high"]].iloc[0]
        for m in reversed(measurements)  # of several experiments, the first counts
        if not m.emulated and (part := _find_part(m))
    }
    threads = sorted({count for _, count in latencies})
    rows = []
    for count in threads:
        once, each = (latencies.get((part, count)) for part in _PARTS)
        if once is None or each is None:
            continue
        for calls in _CALLS:
            ms = once["latency"] + calls * each["latency"]
            widths = once["high"] - once["low"], calls * (each["high"] - each["low"])
            half = math.hypot(*widths) / 2
            rows.append((count, calls, ms, ms - half, ms + half, each["latency"]))
    table = pd.DataFrame(rows, columns=frames.CONVERSATION.names)
    return frames.CONVERSATION.check(table) if rows else None


def _find_part(m: Measurement) -> str:
    """Which part of a split model a measurement is of; empty of another one."""
    name = m.phase.method or (m.export.model.rpartition("_")[2] if m.export else "")
    return name if name in _PARTS and not m.control else ""


def _rate(tokens: float, ms: float) -> float:
    """Tokens per second."""
    return tokens / ms * 1e3 if ms > 0 else math.nan


def _find_bound(roofline: pd.DataFrame | None) -> tuple[str, float]:
    """What limits the operators with most of the time, and their share."""
    if roofline is None:
        return "", math.nan
    shares = roofline.groupby("bound")["share"].sum()
    limits = [name for name in ("compute", "memory", "neither") if name in shares]
    if not limits:
        return "", math.nan
    largest = max(limits, key=lambda name: shares[name])
    return largest, float(shares[largest])
