"""What a program could gain: remedies as they were tried, and the floor of its machine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import pandas as pd

from workbench.analysis.findings.finding import Finding, Gain, read_gain
from workbench.records.trials import Trial


class Segment(NamedTuple):
    """A part of today's latency: a ``gain``, the ``floor``, or the ``rest`` between them."""

    kind: str
    name: str
    ms: float


@dataclass(frozen=True)
class Potential:
    """What the remedies that were shown to help gain, and what the machine's peaks leave.

    Attributes
    ----------
    latency_ms
        The latency today.
    alone
        The findings whose remedies were shown to help, each alone, largest gain first.
    gain
        What all of them gain, as they were tried together; None if they were not. A single one has
        its own.
    floor_ms
        What the program's operations and bytes take at the machine's peaks, an estimate; NaN if it
        is unknown. Operators of unknown cost take nothing.
    together
        What trying all of them together has shown; None if nobody did.
    """

    latency_ms: float
    alone: tuple[Finding, ...] = ()
    gain: Gain | None = None
    floor_ms: float = math.nan
    together: Trial | None = None

    @property
    def known(self) -> Gain:
        """The gain that was tried: of all together, or of the best one alone."""
        return self.gain or (self.alone[0].gain if self.alone else Gain(0.0, 0.0, 0.0))

    @property
    def after_ms(self) -> float:
        """The latency with what was tried, together or the best one alone."""
        return self.latency_ms - self.known.ms

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Parts of today's latency that add up to it: the floor, the rest, and the gains.

        A gain that was tried together is divided as the remedies gain alone.
        """
        gains = self.gains if self.gain else dict([*self.gains.items()][:1])
        part = self.known.ms / sum(gains.values()) if gains else 0.0
        floor = 0.0 if math.isnan(self.floor_ms) else min(self.floor_ms, self.after_ms)
        parts = [Segment("floor", "floor", floor), Segment("rest", "rest", self.after_ms - floor)]
        parts += [Segment("gain", name, part * ms) for name, ms in reversed(gains.items())]
        return tuple(each for each in parts if each.ms > 0)

    @property
    def gains(self) -> dict[str, float]:
        """What each remedy gains alone, in ms, the largest gain first."""
        gains: dict[str, float] = {}
        for each in self.alone:
            gains[each.remedy] = gains.get(each.remedy, 0.0) + each.gain.ms
        return gains


def find_potential(
    latency_ms: float,
    findings: Sequence[Finding],
    trials: Sequence[Trial],
    roofline: pd.DataFrame | None,
) -> Potential:
    """What a program could gain; ``trials`` are those of its scope, the latest last."""
    helping = [each for each in findings if each.helps]
    alone = tuple(sorted(helping, key=lambda each: -each.gain.ms))
    potential = Potential(latency_ms, alone, None, find_floor(roofline))
    if len(alone) == 1:
        return replace(potential, gain=alone[0].gain)
    names = {*potential.gains}
    made = [each for each in trials if each.finding == Trial.TOGETHER and each.remedies == names]
    last = made[-1] if made else None
    gain = read_gain(last, latency_ms) if last and last.answer == "gains" else None
    return replace(potential, gain=gain, together=last)


def find_floor(roofline: pd.DataFrame | None) -> float:
    """The least time in ms of the operators of known cost, ``frames.ROOFLINE``; NaN without."""
    if roofline is None or roofline.empty:
        return math.nan
    least = roofline["least_ms"].clip(upper=roofline["mean_ms"])
    return float(least.sum()) if least.notna().any() else math.nan
