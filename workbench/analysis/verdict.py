"""The verdict on a comparison in one sentence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pandas as pd

from workbench.analysis.speedup import MARGIN
from workbench.emulation import EMULATED, WRONG
from workbench.records.runs import Agreement
from workbench.wording import decimals_of, format_range, format_ratio, format_share

#: Noise floor (ratio - 1) above which a measurement compares nothing.
TOO_BUSY = 0.5
#: The bottleneck of sides whose shares are not known.
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Verdict:
    """The result of one comparison of E2E latency.

    ``subject`` is the model, ``change`` what the candidate does differently (``with avx512``);
    ``speedup`` to ``floor``, ``detectable`` and the times are columns of the comparison.
    ``bottleneck`` is the largest category of both sides, if traced, or `UNKNOWN` where their shares
    may be off by more than it takes; ``same_code`` the reason if the
    same machine code ran on both sides; ``wrong`` why no speed-up can be claimed; ``programs`` what
    differs between the two programs beside their speed; ``separate`` says how the sides were
    measured apart, if they were. ``paired``: the intervals of the two latencies overlap, and only
    their restarts one by one show a difference. ``busy``: other programs may be why nothing was
    shown.
    """

    subject: str
    change: str
    outcome: str
    speedup: float
    low: float
    high: float
    floor: float
    bottleneck: str = ""
    detectable: float = math.nan
    same_code: str = ""
    wrong: str = ""
    programs: str = ""
    baseline_ms: float = math.nan
    candidate_ms: float = math.nan
    separate: str = ""
    paired: bool = False
    busy: bool = False

    @property
    def objections(self) -> list[str]:
        """Why it claims no speed-up, whatever the latencies are; its text says so, too."""
        wrong = f"{self.wrong}: no speed-up is claimed" if self.wrong else ""
        return [text for text in (wrong, self.same_code) if text]

    @property
    def text(self) -> str:
        """The verdict as one line.

        A speed-up is stated only if one was shown, with two decimals as everywhere;
        otherwise the line states the interval of the change of latency. If outputs are wrong, it
        says so first, and states no speed-up.
        """
        bottleneck = f", bottleneck {self.bottleneck}" if self.bottleneck else ""
        subject = f"{self.subject}: " if self.subject else ""
        parts = [f"{subject}{self._describe_outcome()}{bottleneck}", self.programs]
        return "; ".join(filter(None, parts))

    def _describe_outcome(self) -> str:
        change = f" {self.change}" if self.change else ""
        emulated = self.outcome == "emulated"
        if self.wrong:
            times = " against ".join(format_range(self.candidate_ms, self.baseline_ms))
            times = f"({EMULATED})" if emulated else f"in {times}"
            return f"{self.wrong}: no speed-up is claimed; ran{change} {times}"
        if self.same_code:
            latency = EMULATED if emulated else self._describe_change()
            return f"toggle had no effect{change}: {self.same_code} ({latency})"
        if emulated:
            return f"ran{change} ({EMULATED})"
        least = f", only a change above {_percent(self.detectable)} would show"
        least = least if self.detectable < 10 else ""
        caveats = ", no A/A control" if self.floor == 0 else ""
        caveats = f", {self.separate}" if self.separate else caveats
        if self.outcome in ("faster", "slower"):
            value, low, high = self.speedup, self.low, self.high
            if self.outcome == "slower":
                value, low, high = 1 / value, 1 / high, 1 / low
            is_narrow = format_ratio(low) == format_ratio(high)
            ratio, low_text, high_text = (
                f"{each:.3f}" if is_narrow else format_ratio(each) for each in (value, low, high)
            )
            interval = f"95 % interval {low_text}-{high_text}"
            interval += ", paired restarts" if self.paired else ""
            return f"{ratio}x {self.outcome}{change} ({interval}{caveats})"
        bounds = self._describe_change()
        if self.outcome == "unchanged":
            margin = f", within the margin of {100 * MARGIN:g} %"
            return f"unchanged{change} ({bounds}{margin}{caveats})"
        if self.busy:
            return f"inconclusive{change}: this machine was busy ({bounds})"
        if TOO_BUSY < self.floor < math.inf:
            equal = f"two equal experiments differed by up to {100 * self.floor:.0f} %"
            return f"inconclusive{change}: the machine was too busy to compare ({equal})"
        floor = f", equal experiments differ by {_percent(self.floor)}"
        floor = floor if 0 < self.floor < math.inf else ""
        return f"inconclusive{change} ({bounds}{floor}{least}{caveats})"

    def _describe_change(self) -> str:
        """The interval of the change of latency, in per cent of the baseline."""
        if math.isnan(self.low) or math.isnan(self.high):
            ratio = format_ratio(self.speedup)
            return f"observed {ratio}x, no interval: needs two or more process restarts"
        low, high = 100 * (1 / self.high - 1), 100 * (1 / self.low - 1)
        # To the first digit of half of its width.
        digits = min(3, max(0, math.ceil(-math.log10(max((high - low) / 2, 1e-3)))))
        return f"latency {low:+.{digits}f} % to {high:+.{digits}f} %, 95 % interval"


def _percent(share: float) -> str:
    return format_share(share, decimals_of(100 * share, 2) if math.isfinite(share) else 0)


def reach_verdict(
    subject: str,
    change: str,
    comparison: pd.DataFrame,
    *,
    emulated: bool = False,
    wrong: str = "",
    **texts: Any,
) -> Verdict:
    """The verdict on a candidate, from ``frames.COMPARISON``; ``texts`` are further ones of it."""
    (row,) = comparison[comparison["level"] == "e2e"].to_dict("records")
    outcome = WRONG if wrong else row["outcome"]
    outcome = "emulated" if emulated else outcome
    names = ("speedup", "low", "high", "floor", "detectable")
    times = ("baseline_ms", "candidate_ms")
    columns: dict[str, Any] = {name: float(row[name]) for name in (*names, *times)}
    return Verdict(subject, change, outcome, wrong=wrong, **columns, **texts)


def describe_faults(candidate: str, baseline: str) -> str:
    """What is wrong with the outputs, from the fault of each side; empty if both have none."""
    if candidate == baseline:
        return candidate and f"outputs are wrong ({candidate})"
    sides = {"candidate": candidate, "baseline": baseline}
    return "; ".join(f"outputs of the {side} are wrong ({it})" for side, it in sides.items() if it)


def describe_difference(agreement: Agreement) -> str:
    """How far an output of two sides that do not agree differs."""
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
