"""Where the time of a batch went."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from itertools import pairwise

from workbench.records import STAGES, Accounting, Stage

OTHER = "other"


def divide_time(started: float, ended: float, stages: Iterable[Stage]) -> Accounting:
    """Divide the time between two moments (seconds since the epoch) among the stages at work.

    Where several are, the time counts for the one that comes first in ``STAGES``: what is left for
    reports and for nothing at all is overhead. Stages that found everything there count as nothing.
    """
    spans = [(stage.name, *span_of(stage)) for stage in stages if not stage.kept]
    moments = {min(max(moment, started), ended) for _, *span in spans for moment in span}
    total = dict.fromkeys((*STAGES, OTHER), 0.0)
    for before, after in pairwise(sorted({started, ended, *moments})):
        at_work = {name for name, begin, end in spans if begin <= before and after <= end}
        total[next((name for name in STAGES if name in at_work), OTHER)] += after - before
    return Accounting(
        round(ended - started, 3), **{f"{name}_s": round(total[name], 3) for name in total}
    )


def span_of(stage: Stage) -> tuple[float, float]:
    """Start and end of a stage, in seconds since the epoch."""
    begin = datetime.fromisoformat(stage.started).timestamp()
    return begin, begin + stage.seconds


def overhead_of(accounting: Accounting) -> float:
    """Time beyond exports and measurements, as a fraction of these."""
    pure = accounting.export_s + accounting.measure_s
    return (accounting.report_s + accounting.other_s) / pure if pure else float("nan")
