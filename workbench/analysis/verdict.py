"""The verdict of a comparison in one sentence."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from workbench.errors import ComparisonError
from workbench.frames import EMULATED, WRONG, format_range, format_share
from workbench.records.runs import Agreement


@dataclass(frozen=True)
class Verdict:
    """The result of one comparison of E2E latency.

    ``subject`` is the model, ``change`` what the candidate does differently (``with avx512``);
    ``speedup`` to ``margin``, ``detectable`` and the times are columns of the comparison.
    ``bottleneck`` is the largest category of both sides, if traced; ``unchanged`` the reason if the
    same machine code ran on both sides; ``wrong`` why no speed-up can be claimed; ``programs`` what
    differs between the two programs beside their speed; ``separate`` says how the sides were
    measured apart, if they were.
    """

    subject: str
    change: str
    outcome: str
    speedup: float
    low: float
    high: float
    floor: float
    margin: float
    bottleneck: str = ""
    detectable: float = math.nan
    unchanged: str = ""
    wrong: str = ""
    programs: str = ""
    baseline_ms: float = math.nan
    candidate_ms: float = math.nan
    separate: str = ""


def reach_verdict(
    subject: str,
    change: str,
    comparison: pd.DataFrame,
    shift: pd.DataFrame | None = None,
    *,
    emulated: bool = False,
    wrong: str = "",
    **texts: Any,
) -> Verdict:
    """The verdict on a candidate, from `compare_latencies` and `bottleneck_shift`.

    ``shift`` is None if nothing was traced; ``texts`` are further ones of the verdict.
    """
    rows = comparison[comparison["level"] == "e2e"]
    if len(rows) != 1:
        raise ComparisonError(f"a verdict needs one E2E comparison, not {len(rows)}")
    row = rows.iloc[0]
    outcome = "emulated" if emulated else WRONG if wrong else row["outcome"]
    names = ("speedup", "low", "high", "floor", "margin", "detectable")
    times = ("baseline_ms", "candidate_ms")
    columns: dict[str, Any] = {name: float(row[name]) for name in (*names, *times)}
    if shift is not None and not (emulated or wrong):
        columns["bottleneck"] = _describe_shift(shift, outcome)
    return Verdict(subject, change, outcome, wrong=wrong, **columns, **texts)


def summarize_verdict(verdict: Verdict) -> str:
    """The verdict as one line.

    A speed-up is stated only if one was shown, with the digits that its interval supports;
    otherwise the line states the interval of the change of latency. If outputs are wrong, it says
    so first, and states no speed-up.
    """
    bottleneck = f", bottleneck {verdict.bottleneck}" if verdict.bottleneck else ""
    found = f"{verdict.subject}: {_outcome(verdict)}{bottleneck}"
    return "; ".join(filter(None, [found, verdict.programs]))


def digits_of(low: float, high: float) -> int:
    """Decimals that an interval supports: to the first digit of its half width, at most 3."""
    half = (high - low) / 2
    if not half > 0:
        return 3 if half == 0 else 2
    return min(3, max(0, math.ceil(-math.log10(half))))


def _outcome(verdict: Verdict) -> str:
    change = f" {verdict.change}" if verdict.change else ""
    if verdict.wrong:
        times = " against ".join(format_range(verdict.candidate_ms, verdict.baseline_ms))
        times = f"({EMULATED})" if verdict.outcome == "emulated" else f"in {times}"
        return f"{verdict.wrong}: no speed-up is claimed; ran{change} {times}"
    if verdict.unchanged:
        latency = EMULATED if verdict.outcome == "emulated" else _latency_bounds(verdict)
        return f"toggle had no effect{change}: {verdict.unchanged} ({latency})"
    if verdict.outcome == "emulated":
        return f"ran{change} ({EMULATED})"
    if verdict.outcome in ("faster", "slower"):
        value, low, high = verdict.speedup, verdict.low, verdict.high
        if verdict.outcome == "slower":
            value, low, high = 1 / value, 1 / high, 1 / low
        digits = digits_of(low, high)
        interval = f"95 % CI {low:.{digits}f}-{high:.{digits}f}"
        return f"{value:.{digits}f}x {verdict.outcome}{change} ({interval}{_caveats(verdict)})"
    bounds = _latency_bounds(verdict)
    if verdict.outcome == "equivalent":
        margin = f", within the margin of {100 * verdict.margin:g} %"
        return f"equivalent{change} ({bounds}{margin}{_caveats(verdict)})"
    if TOO_BUSY < verdict.floor < math.inf:
        equal = f"two equal experiments differed by up to {100 * verdict.floor:.0f} %"
        return f"inconclusive{change}: the machine was too busy to compare ({equal})"
    floor = f", noise floor {100 * verdict.floor:.2g} %" if 0 < verdict.floor < math.inf else ""
    if not verdict.separate and verdict.detectable < 10:
        floor += f", minimum detectable change {100 * verdict.detectable:.2g} %"
    return f"inconclusive{change} ({bounds}{floor}{_caveats(verdict)})"


#: Noise floor (ratio - 1) above which a measurement compares nothing.
TOO_BUSY = 0.5


def _caveats(verdict: Verdict) -> str:
    """What makes a comparison weaker than an interleaved one with an A/A control."""
    if verdict.separate:
        least = f", minimum detectable change {100 * verdict.detectable:.2g} %"
        return f", {verdict.separate}{least if verdict.detectable < 10 else ''}"
    return ", no A/A control" if verdict.floor == 0 else ""


def _latency_bounds(verdict: Verdict) -> str:
    """The interval of the change of latency, in per cent of the baseline."""
    if math.isnan(verdict.low) or math.isnan(verdict.high):
        return f"observed {verdict.speedup:.2f}x, no interval: needs two or more process restarts"
    low, high = 100 * (1 / verdict.high - 1), 100 * (1 / verdict.low - 1)
    digits = digits_of(low, high)
    return f"latency {low:+.{digits}f} % to {high:+.{digits}f} %, 95 % CI"


def _describe_shift(shift: pd.DataFrame, outcome: str) -> str:
    """The largest category of both sides, and its share of E2E."""
    (before, was), (after, now) = (
        (shift.at[shift[share].idxmax(), "category"], format_share(shift[share].max()))
        for share in ("share_before", "share_after")
    )
    if before != after:
        return f"{before} {was} -> {after} {now}"
    unchanged = outcome in ("equivalent", "inconclusive")
    return f"{before} {was}" if unchanged else f"still {before}, {was} -> {now}"


def describe_faults(candidate: str, baseline: str) -> str:
    """What is wrong with the outputs, from the fault of each side; empty if both have none."""
    if candidate == baseline:
        return candidate and f"outputs are wrong ({candidate})"
    sides = {"candidate": candidate, "baseline": baseline}
    found = (f"outputs of the {side} are wrong ({it})" for side, it in sides.items() if it)
    return "; ".join(found)


def describe_differences(agreements: Iterable[Agreement]) -> str:
    """The outputs of two sides that do not agree; empty if all do."""
    found = [_difference(each) for each in agreements if not each.agree]
    return f"outputs differ ({'; '.join(found)})" if found else ""


def _difference(agreement: Agreement) -> str:
    if agreement.max_abs is None:
        return f"output {agreement.output} cannot be compared"
    if agreement.sqnr_db is not None:
        least = f"at least {agreement.least_sqnr_db:.0f} expected"
        return f"output {agreement.output} has SQNR {agreement.sqnr_db:.1f} dB, {least}"
    apart = agreement.max_abs / agreement.scale if agreement.scale else math.inf
    return (
        f"output {agreement.output} by {apart:.1g} of its largest value "
        f"instead of {agreement.tolerance:.1g} at most"
    )
