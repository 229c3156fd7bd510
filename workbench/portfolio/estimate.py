"""How long a batch will take, from what its stages took before."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from workbench.portfolio.records import STAGES, Cell, Outcome


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

    @property
    def stages(self) -> int:
        """How many stages it is made of."""
        return len(self.seconds)


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
