"""Where the time of a batch went.

How long a batch will take, from what its stages took before.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from workbench.records.portfolio import STAGES, Accounting, Cell, Outcome, Stage

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


@dataclass(frozen=True)
class Experience:
    """Seconds that stages took, by stage and cell; the cells by their name."""

    seconds: Mapping[tuple[str, str], float]

    def expect(self, stage: str, cell: Cell) -> float | None:
        """The seconds that a stage of a cell will take; None if nobody knows.

        That of the cell's own if it was done before, else the median of the others.
        """
        own = self.seconds.get((stage, cell.name))
        others = [took for (name, _), took in self.seconds.items() if name == stage]
        return own if own is not None else statistics.median(others) if others else None


@dataclass(frozen=True)
class Planned:
    """What a cell still needs, and the seconds that this will take; None if nobody knows."""

    cell: Cell
    todo: tuple[str, ...]
    seconds: float | None


def describe_plan(plan: Iterable[Planned]) -> Iterator[str]:
    """A line for each cell, and one for all of them, done one after the other."""
    plan = list(plan)
    for planned in plan:
        needs = f"{', '.join(planned.todo)}: {tell_duration(planned.seconds)}"
        yield f"{planned.cell.name}  {needs if planned.todo else 'done'}"
    open_ones = [planned.seconds for planned in plan if planned.todo]
    total = None if None in open_ones else sum(open_ones)
    took = f"; {tell_duration(total)} to go, exports and reports one by one" if open_ones else ""
    yield f"{len(plan)} cells, {len(plan) - len(open_ones)} done{took}"


def gather_experience(outcomes: Iterable[Outcome]) -> Experience:
    """What outcomes tell of the time that stages take; where a thing was kept, nothing."""
    return Experience(
        {
            (stage.name, outcome.cell.name): stage.seconds
            for outcome in outcomes
            for stage in outcome.stages
            if not stage.kept
        }
    )


def add_up(todo: Iterable[tuple[str, Cell]], experience: Experience, jobs: int) -> float | None:
    """The seconds that all these stages will take; None if one of them is not known.

    Measurements come one after the other, the other stages on ``jobs`` processes.
    """
    total = 0.0
    for stage, cell in todo:
        seconds = experience.expect(stage, cell)
        if seconds is None:
            return None
        total += seconds if stage == "measure" else seconds / jobs
    return total


def remaining(outcome: Outcome) -> tuple[str, ...]:
    """The stages that a cell still needs."""
    if outcome.state == "done":
        return ()
    return ("report",) if outcome.run_dir else STAGES


def tell_duration(seconds: float | None) -> str:
    """``about 40 s``, ``about 3 min``, ``about 2.5 h``; or that it is unknown."""
    if seconds is None:
        return "unknown"
    if seconds < 100:
        return f"about {seconds:.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 6000 else f"about {seconds / 3600:.1f} h"
