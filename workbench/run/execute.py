"""Execute a plan: live runner processes with interleaved experiments, all results recorded."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

from workbench.records.runs import Plan, RunRecord, count_threads
from workbench.run.measure import Step, measure_step
from workbench.run.recorder import RunRecorder, record_run
from workbench.run.runner import Runner
from workbench.run.sampling import can_sample, sample_experiments
from workbench.run.tensor_files import locate_inputs

#: Called with what is being measured, and the fraction that is done (0 to 1).
Progress = Callable[[str, float], None]
#: Called after a restart: whether the measurements suffice.
Enough = Callable[[RunRecord], bool]

#: Restarts that run whatever the budget: fewer give no useful interval.
MIN_RESTARTS = 3


def run_plan(
    plan: Plan,
    runner: Runner,
    root: Path,
    *,
    progress: Progress = lambda text, part: None,
    enough: Enough = lambda run: False,
) -> Path:
    """Measure what a plan says; returns the run's folder, with ``manifest.json`` and ETDumps.

    Each thread count is measured in several fresh processes. Within each process, the experiments
    are interleaved in batches: first untraced, for latency, then with ETDump, for the operators'
    shares. Finally each experiment is sampled in a process of its own. The device is locked
    meanwhile. An interrupted run keeps its measurements, and the same plan continues it.

    Examples
    --------
    >>> runner = wb.find_runner()  # doctest: +SKIP
    >>> plan = wb.make_plan(pte, wb.MeasureOptions(toggle="avx512"), runner)  # doctest: +SKIP
    >>> wb.run_plan(plan, runner, Path("out"))  # doctest: +SKIP
    PosixPath('out/runs/linux')
    """
    with record_run(plan, runner, root, lambda text: progress(text, 0.0)) as recorder:
        inputs = locate_inputs(plan, recorder.run_dir)
        for process in restarts(recorder, enough):
            for step in steps_of(plan, process):
                progress(describe_step(plan, step), progress_of(recorder.run, step))
                if not recorder.has(step.threads, step.process, step.traced):
                    measure_step(recorder, runner, inputs, step)
        for threads in plan.threads if plan.sampled_ms and can_sample(runner) else ():
            progress(f"{count_threads(threads)}, sampled", 1.0)
            sample_experiments(recorder, runner, inputs, threads)
    progress("done", 1.0)
    return recorder.run_dir


def restarts(recorder: RunRecorder, enough: Enough) -> Iterator[int]:
    """The restarts to measure: the planned number, or as many as the budget allows and needs."""
    plan = recorder.run.plan
    if not plan.budget_s:
        yield from range(plan.processes)
        return
    for process in itertools.count():
        spent = recorder.run.spent_s
        if process >= MIN_RESTARTS and (
            spent * (process + 1) / process > plan.budget_s or enough(recorder.run)
        ):
            return
        yield process


def steps_of(plan: Plan, process: int) -> list[Step]:
    """The steps of one restart."""
    return [Step(threads, process, traced) for threads in plan.threads for traced in (False, True)]


def describe_step(plan: Plan, step: Step) -> str:
    """What is being measured, in words."""
    planned = "" if plan.budget_s else f"/{plan.processes}"
    traced = ", traced" if step.traced else ""
    return f"{count_threads(step.threads)}, process {step.process + 1}{planned}{traced}"


def progress_of(run: RunRecord, step: Step) -> float:
    """The fraction done before a step: of the budget's time, or of the planned steps."""
    plan = run.plan
    if plan.budget_s:
        return min(1.0, run.spent_s / plan.budget_s)
    steps = steps_of(plan, step.process)
    return (step.process + steps.index(step) / len(steps)) / plan.processes
