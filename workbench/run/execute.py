"""Carry out a plan: live runner processes that take turns, and everything written down."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from workbench.errors import TargetError, WorkbenchError
from workbench.records import Plan, Run, count_threads
from workbench.run.inputs import locate_inputs
from workbench.run.journal import Journal
from workbench.run.measure import Step, measure_step
from workbench.run.runner import Runner
from workbench.run.sample import can_sample, sample_experiments
from workbench.store import find_runs, keep_layers, load_export, load_run, new_run_dir

#: Told what is being measured, and which part of it all is done (0 to 1).
Progress = Callable[[str, float], None]


def run_plan(
    plan: Plan, runner: Runner, root: Path, *, progress: Progress = lambda text, part: None
) -> Path:
    """Measure what the plan says; returns the run's folder, with ``manifest.json`` and ETDumps.

    Each thread count is measured in several fresh processes, and in each of these the experiments
    take turns in batches: first without tracing, for latency, then with ETDump, for the shares of
    the operators. Last, each one is sampled in a process of
    its own. An interrupted run keeps what it has, and the same plan goes on where it stopped.

    Raises
    ------
    RunnerError
        A runner failed; the manifest then says ``failed`` and keeps what was measured before.
    TargetError
        The device was lost; when it is back the same plan goes on.
    """
    run_dir = find_unfinished(plan, runner, root) or new_run_dir(root, runner.target.platform)
    journal = Journal.open(run_dir, begin_run(plan, runner))
    keep_layers(Path(plan.pte), run_dir)
    inputs = locate_inputs(plan, run_dir)
    steps = [
        Step(threads, process, traced)
        for threads in plan.threads
        for process in range(plan.processes)
        for traced in (False, True)
    ]
    try:
        with runner.target.prepared(run_dir):
            for number, step in enumerate(steps):
                text = f"{count_threads(step.threads)}, process {step.process + 1}/{plan.processes}"
                progress(text + (", traced" if step.traced else ""), number / len(steps))
                if not journal.has(step.threads, step.process, step.traced):
                    measure_step(journal, runner, inputs, step)
            for threads in plan.threads if plan.sampled_ms and can_sample(runner) else ():
                progress(f"{count_threads(threads)}, sampled", 1.0)
                sample_experiments(journal, runner, inputs, threads)
    except TargetError:
        raise  # it is only out of reach: the run goes on when it is back
    except WorkbenchError:
        journal.close("failed")
        raise
    progress("done", 1.0)
    journal.close("complete")
    return run_dir


def begin_run(plan: Plan, runner: Runner) -> Run:
    """The manifest of a run in which nothing has been measured yet."""
    versions = {name: metadata.version(name) for name in ("executorch", "executorch-workbench")}
    return Run(
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
    for run_dir in reversed(find_runs(root)):
        with contextlib.suppress(WorkbenchError):  # a run that cannot be read cannot go on
            run = load_run(run_dir)
            if run.state == "incomplete" and run.plan == plan and run.runner == runner.description:
                return run_dir
    return None
