"""Phases of a run: the latency of each, tokens per second, and what limits it."""

import math

import pandas as pd

from workbench.records.runs import Phase


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
