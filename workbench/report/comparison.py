"""Compare any two measurements, if they can be compared."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pandas as pd

from workbench.analyze import (
    Traced,
    Verdict,
    bottleneck_shift,
    compare_apart,
    compare_latencies,
    reach_verdict,
)
from workbench.emulation import EMULATED
from workbench.errors import ComparisonError, unknown_name
from workbench.report.analysis import Analysis, analyze_run, find_control
from workbench.report.facts import identify_run
from workbench.store import MANIFEST

#: What may differ between two measurements only where that is the question.
AXES = ("program", "threads", "device", "build")


@dataclass(frozen=True)
class Measurement:
    """One experiment of a run at one thread count."""

    analysis: Analysis
    experiment: str
    threads: int

    @property
    def traced(self) -> Traced:
        """Its ledger and operators."""
        return Traced(self.select(self.analysis.ledger), self.select(self.analysis.operators))

    def select(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The rows of this measurement."""
        return self.analysis.select(frame, self.experiment, self.threads)


def compare_runs(baseline: str, candidate: str, *, across: Collection[str] = ()) -> Verdict:
    """Compare two measurements, each ``RUN_DIR[:EXPERIMENT[:THREADS]]``.

    Without an experiment, that of a run is the candidate of its first pair; without threads, the
    first thread count. Two experiments of one run were interleaved, which makes for a narrower
    interval.

    Parameters
    ----------
    baseline, candidate
        Folders of runs, with experiment and threads if need be.
    across
        Which of ``program``, ``threads``, ``device`` and ``build`` may differ.

    Raises
    ------
    UsageError
        An unknown run, experiment or axis.
    ComparisonError
        They differ in something that was not declared; names it with both values. Or one was
        emulated.
    """
    before, after = find_comparable([baseline, candidate], across)
    return judge_pair(before, after, f"{candidate} against {baseline}")[0]


def judge_pair(
    before: Measurement, after: Measurement, subject: str
) -> tuple[Verdict, pd.DataFrame]:
    """The verdict on two measurements, and their latencies as ``schema.COMPARISON``."""
    latency = compare_e2e(before, after)
    shift = bottleneck_shift(*(m.select(m.analysis.categories) for m in (before, after)))
    return reach_verdict(subject, "", latency, shift), latency


def compare_e2e(before: Measurement, after: Measurement) -> pd.DataFrame:
    """One row of ``schema.COMPARISON``: interleaved where they are of one run, else apart."""
    if are_interleaved(before, after):
        origin, control = find_control(before.analysis.run.plan, before.experiment)
        return compare_latencies(
            before.analysis.latencies,
            before.experiment,
            after.experiment,
            control=control,
            control_of=origin,
            threads=before.threads,
        )
    return compare_apart(
        *(m.select(m.analysis.latencies) for m in (before, after)),
        floor=max(before.analysis.floor, after.analysis.floor),
    )


def are_interleaved(before: Measurement, after: Measurement) -> bool:
    """Whether two measurements took turns: experiments of one run at one thread count."""
    return is_one_run([before, after]) and before.threads == after.threads


def is_one_run(measurements: Sequence[Measurement]) -> bool:
    """Whether all measurements are of the same run."""
    return len({m.analysis.run_dir.resolve() for m in measurements}) == 1


def find_comparable(names: Sequence[str], across: Collection[str] = ()) -> list[Measurement]:
    """The measurements of these names, none of which differs from the first in what it must not.

    Raises
    ------
    UsageError, ComparisonError
        As from `compare_runs`.
    """
    check_axes(across)
    analyze = cache(analyze_run)
    found = [find_measurement(name, analyze) for name in names]
    for other in found:
        check_comparable(identify(found[0]), identify(other), across)
    if any(measurement.analysis.run.emulated for measurement in found):
        raise ComparisonError(f"no speed to compare; {EMULATED}", hint="measure on silicon")
    return found


def find_measurement(name: str, analyze: Callable[[str], Analysis] = analyze_run) -> Measurement:
    """The measurement that ``RUN_DIR[:EXPERIMENT[:THREADS]]`` names.

    Raises
    ------
    UsageError
        No such run, or no such experiment or thread count in it.
    """
    folder, experiment, threads = split_name(name)
    analysis = analyze(folder)
    plan = analysis.run.plan
    experiment = experiment or plan.pairs[0].candidate
    known = [e.name for e in plan.experiments]
    if experiment not in known:
        raise unknown_name("experiment", experiment, known, where=folder)
    counts = {str(count): count for count in plan.threads}
    if threads and threads not in counts:
        raise unknown_name("thread count", threads, counts, where=folder)
    return Measurement(analysis, experiment, counts[threads] if threads else plan.threads[0])


def split_name(name: str) -> tuple[str, str, str]:
    """Folder, experiment and threads of ``RUN_DIR[:EXPERIMENT[:THREADS]]``; empty if not given."""
    plain = (Path(name) / MANIFEST).exists()
    folder, experiment, threads, *_ = [*([name] if plain else name.split(":", 2)), "", ""]
    return folder, experiment, threads


def check_axes(across: Collection[str]) -> None:
    """Refuse what is none of the ``AXES``."""
    for axis in across:
        if axis not in AXES:
            raise unknown_name("axis", axis, AXES, where="--across")


def check_comparable(
    before: Mapping[str, str], after: Mapping[str, str], across: Collection[str] = ()
) -> None:
    """Refuse to compare what differs in more than it should.

    Raises
    ------
    ComparisonError
        Names the axis and both values.
    """
    for axis in AXES:
        if axis in after and before[axis] != after[axis] and axis not in across:
            raise ComparisonError(
                f"the two differ in {axis}: {before[axis]} against {after[axis]}",
                hint=f"add --across {axis} if that is the question",
            )


def identify(measurement: Measurement) -> dict[str, str]:
    """What was measured, along the ``AXES``."""
    return {**identify_run(measurement.analysis.run), "threads": str(measurement.threads)}
