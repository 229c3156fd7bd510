"""Carry out a plan: live runner processes that take turns, and everything written down."""

from __future__ import annotations

import contextlib
import itertools
import platform
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from workbench.errors import WorkbenchError
from workbench.records.runs import Plan, RunRecord, count_threads
from workbench.run.locks import device_behind, take_device
from workbench.run.measure import Step, measure_calmly
from workbench.run.recorder import Journal
from workbench.run.runner import Runner
from workbench.run.sampling import can_sample, sample_experiments
from workbench.run.tensor_files import locate_inputs
from workbench.store import find_runs, keep_layers, load_export, load_run, new_run_dir

#: Told what is being measured, and which part of it all is done (0 to 1).
Progress = Callable[[str, float], None]
#: Asked after a restart whether what was measured will do.
Enough = Callable[[RunRecord], bool]

#: Restarts that a budget always pays for: from three on, an interval means something.
LEAST_RESTARTS = 3


def run_plan(
    plan: Plan,
    runner: Runner,
    root: Path,
    *,
    progress: Progress = lambda text, part: None,
    enough: Enough = lambda run: False,
) -> Path:
    """Measure what the plan says; returns the run's folder, with ``manifest.json`` and ETDumps.

    Each thread count is measured in several fresh processes, and in each of these the experiments
    take turns in batches: first without tracing, for latency, then with ETDump, for the shares of
    the operators. Last, each one is sampled in a process of its own. An interrupted run keeps what
    it has, and the same plan goes on where it stopped. A plan with a budget measures restart after
    restart until ``enough`` says so of the run so far, or the budget is spent. Nothing else
    of ours is measured on the device at the same time.

    Raises
    ------
    RunnerError
        A runner failed; the manifest then says ``failed`` and keeps what was measured before.
    TargetError
        The device was lost; when it is back the same plan goes on.
    """
    device = device_behind(runner.target.name)
    with take_device(device, lambda text: progress(text, 0.0)):
        run_dir = find_unfinished(plan, runner, root) or new_run_dir(root, runner.target.platform)
        journal = Journal.open(run_dir, begin_run(plan, runner))
        keep_layers(Path(plan.pte), run_dir)
        inputs = locate_inputs(plan, run_dir)
        with journal.concluded(), runner.target.prepared(run_dir):
            for process in restarts(journal, enough):
                for step in steps_of(plan, process):
                    progress(describe_step(plan, step), progress_of(journal.run, step))
                    if not journal.has(step.threads, step.process, step.traced):
                        measure_calmly(journal, runner, inputs, step)
            for threads in plan.threads if plan.sampled_ms and can_sample(runner) else ():
                progress(f"{count_threads(threads)}, sampled", 1.0)
                sample_experiments(journal, runner, inputs, threads)
    progress("done", 1.0)
    return run_dir


def restarts(journal: Journal, enough: Enough) -> Iterator[int]:
    """The restarts to measure: as many as planned, or as the budget pays for and are needed."""
    plan = journal.run.plan
    if not plan.budget_s:
        yield from range(plan.processes)
        return
    for process in itertools.count():
        spent = journal.run.spent_s
        if process >= LEAST_RESTARTS and (
            spent * (process + 1) / process > plan.budget_s or enough(journal.run)
        ):
            return
        yield process


def steps_of(plan: Plan, process: int) -> list[Step]:
    """The steps of one restart; thread counts come in turns with the restarts."""
    return [Step(threads, process, traced) for threads in plan.threads for traced in (False, True)]


def describe_step(plan: Plan, step: Step) -> str:
    """What is being measured, in words."""
    planned = "" if plan.budget_s else f"/{plan.processes}"
    traced = ", traced" if step.traced else ""
    return f"{count_threads(step.threads)}, process {step.process + 1}{planned}{traced}"


def progress_of(run: RunRecord, step: Step) -> float:
    """The part that is done before a step: of the budget's time, or of the planned steps."""
    plan = run.plan
    if plan.budget_s:
        return min(1.0, run.spent_s / plan.budget_s)
    steps = steps_of(plan, step.process)
    return (step.process + steps.index(step) / len(steps)) / plan.processes


def begin_run(plan: Plan, runner: Runner) -> RunRecord:
    """The manifest of a run in which nothing has been measured yet."""
    versions = {name: metadata.version(name) for name in ("executorch", "executorch-workbench")}
    return RunRecord(
        plan=plan,
        platform=runner.target.platform,
        emulated=runner.target.emulated,
        state="incomplete",
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        finished="",
        host=runner.target.describe(),
        runner=runner.description,
        versions={**versions, "python": platform.python_version()},
        export=load_export(Path(plan.pte)),
    )


def find_unfinished(plan: Plan, runner: Runner, root: Path) -> Path | None:
    """The folder of an interrupted run of this very plan with this very runner, if there is one."""
    return find_run(plan, runner, root, "incomplete")


def find_run(plan: Plan, runner: Runner, root: Path, state: str) -> Path | None:
    """The folder of the latest run of this very plan with this very runner in that state, if any.

    One that is ``incomplete`` can go on, one that is ``complete`` need not be measured again.
    """
    for run_dir in reversed(find_runs(root)):
        with contextlib.suppress(WorkbenchError):  # a run that cannot be read cannot go on
            run = load_run(run_dir)
            if run.state == state and run.plan == plan and run.runner == runner.description:
                return run_dir
    return None
