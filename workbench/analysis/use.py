"""What the times of a measurement may be used for: facts, and the one text made of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from workbench.analysis.quality import BUSY, TRACER_LIMIT, USELESS, is_disturbed
from workbench.run.allocation import preempted_share
from workbench.wording import format_share, plural

if TYPE_CHECKING:
    from workbench.analysis.measurement import Measurement

#: What the times of a measurement may be used as: those of parts in ms, or as parts of the whole.
USES = ("latency", "shares", "milliseconds")


class Use(NamedTuple):
    """What may be used of a measurement, and what disturbed it; NaN where unknown.

    ``uses`` are those of `USES` that hold. ``taken`` is the part of the time that other programs
    had, ``off`` how far a share may be off, as a part of the whole; ``width`` is half of the
    latency's interval, and ``tracing`` what tracing adds and is not accounted for, as parts of the
    latency. ``impossible`` says why no part can be stated; ``disturbed`` is whether the grade
    suffers from what other programs do.
    """

    uses: frozenset[str] = frozenset()
    label: str = ""
    taken: float = math.nan
    off: float = math.nan
    width: float = math.nan
    tracing: float = math.nan
    impossible: str = ""
    disturbed: bool = False

    @property
    def busy(self) -> bool:
        """Whether other programs took so much that its figures suffer."""
        width, off = USELESS
        return self.taken > BUSY and (self.disturbed or self.width > width or self.off > off)

    @property
    def blank(self) -> bool:
        """Whether it was traced, and yet no share is known: nothing is ranked by them."""
        return not math.isnan(self.off) and "shares" not in self.uses

    @property
    def pale(self) -> bool:
        """Whether its bars are drawn pale."""
        return self.busy or self.blank


def decide_use(facts: Use, largest: float) -> Use:
    """What may be used of a measurement with these facts, whose ``largest`` share is given.

    An uncertain share is stated with how far it may be off, unless that exceeds the largest one.
    """
    lost = set[str]()
    if facts.impossible or facts.off > largest:
        lost |= {"shares", "milliseconds"}
    if facts.width > USELESS[0]:
        lost |= {"latency", "milliseconds"}
    return facts._replace(uses=frozenset(USES) - lost)


def use_latency(m: Measurement) -> Use:
    """What follows from the latencies of a measurement, without its traces."""
    if m.emulated or not m.latency_ms:
        return Use(label=m.label)
    taken = preempted_share(m.run.record.sessions)
    width = float(m.statistics["high"].iloc[0]) / m.latency_ms - 1
    return decide_use(Use(label=m.label, taken=taken, width=width), 1.0)


def use_parts(m: Measurement) -> Use:
    """What follows from the latencies and the traces of a measurement."""
    if m.emulated or not m.latency_ms:
        return m.timing
    facts = m.timing._replace(
        off=m.share_error,
        tracing=float(m.tracer_excess),
        impossible=m.impossible,
        disturbed=is_disturbed(m.run.quality),
    )
    shares = m.operators.groupby("category", observed=True)["share"].sum() if m.sessions else None
    return decide_use(facts, 1.0 if shares is None else float(shares.max()))


def describe_use(uses: Sequence[Use]) -> list[str]:
    """What does not hold as it is, in a line for a busy machine and one for each other cause."""
    busy = [use for use in uses if use.busy]
    doubts = (_describe_doubt(use) for use in uses if not use.busy)
    lines = [_describe_busy(busy, len(busy) == len(uses))] if busy else []
    return list(dict.fromkeys([*lines, *filter(None, doubts)]))


def _describe_busy(uses: Sequence[Use], everywhere: bool) -> str:
    """One line about all measurements on a busy machine; names them if others were not."""
    taken = max(use.taken for use in uses)
    off = max((use.off for use in uses if not math.isnan(use.off)), default=math.nan)
    labels = ", ".join(dict.fromkeys(use.label for use in uses))
    where = "" if everywhere else f" during {labels}"
    most = "up to " if len({format_share(use.taken) for use in uses}) > 1 else ""
    unknown = [name for name in USES[:2] if any(_lacks(use, name) for use in uses)]
    texts = (
        [f"{' and '.join(unknown)} {'are' if 'shares' in unknown else 'is'} unknown"]
        if unknown
        else []
    )
    if "shares" not in unknown and not math.isnan(off):
        texts.append(f"shares are {_within(off)}")
    rest = "".join(f"; {text}" for text in texts)
    return (
        f"This machine was busy{where} ({most}{format_share(taken)} of the time went to other "
        f"programs): measure again when it is idle{rest}"
    )


def _within(off: float) -> str:
    return f"within {plural(max(1, round(100 * off)), 'point')}"


def _lacks(use: Use, name: str) -> bool:
    return use.blank if name == "shares" else name not in use.uses


def _describe_doubt(use: Use) -> str:
    """What does not hold as it is where no other program is the cause; empty if all does."""
    facts = []
    if use.impossible:
        facts = [f"shares are unknown: {use.impossible}"]
    elif use.blank or use.off > USELESS[1]:
        shares = "unknown" if use.blank else _within(use.off)
        facts = [f"shares are {shares}: {_name_cause(use)}"]
    if use.width > USELESS[0]:
        facts.append(f"the latency is unknown: its interval is ± {format_share(use.width)}")
    return f"{use.label}: {'; '.join(facts)}" if facts else ""


def _name_cause(use: Use) -> str:
    if use.tracing > TRACER_LIMIT:
        return f"tracing adds {format_share(use.tracing)} that is not accounted for"
    if use.tracing < -TRACER_LIMIT:
        return f"traced inferences are {format_share(-use.tracing)} shorter"
    return "they differ between restarts"
