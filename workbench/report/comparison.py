"""Compare any two measurements, if they can be compared."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from workbench.analyze import (
    Verdict,
    bottleneck_shift,
    compare_apart,
    compare_latencies,
    reach_verdict,
)
from workbench.emulation import EMULATED
from workbench.errors import ComparisonError, unknown_name
from workbench.records import Run
from workbench.report.analysis import Analysis, analyze_run, find_control
from workbench.store import MANIFEST

#: What may differ between two measurements only where that is the question.
AXES = ("program", "threads", "device", "build")


@dataclass(frozen=True)
class Measurement:
    """One experiment of a run at one thread count."""

    analysis: Analysis
    experiment: str
    threads: int


def compare_runs(baseline: str, candidate: str, *, across: Collection[str] = ()) -> Verdict:
    """Compare two measurements, each ``RUN_DIR`` or ``RUN_DIR:EXPERIMENT``.

    Without an experiment, that of a run is the candidate of its first pair. Two experiments of
    one run were interleaved, which makes for a narrower interval.

    Parameters
    ----------
    baseline, candidate
        Folders of runs, with the experiment if need be.
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
    for axis in across:
        if axis not in AXES:
            raise unknown_name("axis", axis, AXES, where="--across")
    before, after = find_measurement(baseline), find_measurement(candidate)
    check_comparable(before, after, across)
    if before.analysis.run.emulated or after.analysis.run.emulated:
        raise ComparisonError(f"no speed to compare; {EMULATED}", hint="measure on silicon")
    same_run = before.analysis.run_dir.resolve() == after.analysis.run_dir.resolve()
    if same_run and before.threads == after.threads:
        origin, control = find_control(before.analysis.run.plan, before.experiment)
        latency = compare_latencies(
            before.analysis.latencies,
            before.experiment,
            after.experiment,
            control=control,
            control_of=origin,
            threads=before.threads,
        )
    else:
        latency = compare_apart(
            *(
                m.analysis.select(m.analysis.latencies, m.experiment, m.threads)
                for m in (before, after)
            ),
            floor=max(noise_floor(before), noise_floor(after)),
        )
    shift = bottleneck_shift(
        *(
            m.analysis.select(m.analysis.categories, m.experiment, m.threads)
            for m in (before, after)
        )
    )
    subject = f"{candidate} against {baseline}"
    return reach_verdict(subject, "", latency, shift)


def find_measurement(name: str) -> Measurement:
    """The measurement that ``RUN_DIR`` or ``RUN_DIR:EXPERIMENT`` names.

    Raises
    ------
    UsageError
        No such run, or no such experiment in it.
    """
    folder, _, experiment = (
        name.partition(":") if not (Path(name) / MANIFEST).exists() else (name, "", "")
    )
    analysis = analyze_run(folder)
    plan = analysis.run.plan
    experiment = experiment or plan.pairs[0].candidate
    known = [e.name for e in plan.experiments]
    if experiment not in known:
        raise unknown_name("experiment", experiment, known, where=folder)
    return Measurement(analysis, experiment, plan.threads[0])


def check_comparable(before: Measurement, after: Measurement, across: Collection[str] = ()) -> None:
    """Refuse to compare what differs in more than it should.

    Raises
    ------
    ComparisonError
        Names the axis and both values.
    """
    for axis, one, other in zip(AXES, identify(before), identify(after), strict=True):
        if one != other and axis not in across:
            raise ComparisonError(
                f"the two differ in {axis}: {one} against {other}",
                hint=f"add --across {axis} if that is the question",
            )


def identify(measurement: Measurement) -> tuple[str, str, str, str]:
    """What was measured, along the ``AXES``."""
    run: Run = measurement.analysis.run
    device = f"{run.platform}, {run.host.get('cpu')}" + (", emulated" if run.emulated else "")
    build = f"executorch {run.versions.get('executorch')}, {run.runner.get('kind')} runner"
    build += f" {str(run.runner.get('sha256', ''))[:12]}".rstrip()
    return f"{run.plan.stem} {run.plan.sha256[:12]}", str(measurement.threads), device, build


def noise_floor(measurement: Measurement) -> float:
    """What the A/A control of a run differed at most, as a ratio - 1; 0 without control."""
    rows = [c.latency.iloc[0] for c in measurement.analysis.comparisons]
    return max((float(row["floor"]) for row in rows), default=0.0)


def is_slower_by(verdict: Verdict, fraction: float) -> bool:
    """Whether the candidate is surely slower by more than a fraction of the baseline's latency."""
    return verdict.high < 1 / (1 + fraction)
