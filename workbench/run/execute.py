"""Carry out a plan: interleaved live runners, then starts, then sampled ones; all recorded."""

import contextlib
import itertools
from collections.abc import Callable, Iterator

from workbench.errors import TargetError, WorkbenchError
from workbench.models.sources import reason
from workbench.options import Progress, silent
from workbench.records.runs import RunRecord
from workbench.run.afterwards import sample_experiments, time_starts
from workbench.run.allocation import (
    MIN_RESTARTS,
    MOST_RESTARTS,
    project_restarts,
)
from workbench.run.recorder import RunRecorder, Step
from workbench.run.steps import time_step
from workbench.run.tensor_files import locate_inputs
from workbench.wording import plural

#: Seconds after which a run says how long it will take.
WORTH_SAYING_S = 10.0


def measure_restarts(
    recorder: RunRecorder,
    progress: Progress = silent,
    *,
    watch: Callable[[RunRecord], None] = lambda run: None,
) -> None:
    """Time each thread count in several fresh processes, their experiments interleaved.

    Untraced, for latency, alternating with ETDump, for the operators' shares. An interrupted run
    keeps its measurements; the same plan continues it. Before each step, ``watch`` is called with
    what was measured.
    """
    recorder.inputs = locate_inputs(recorder.run.plan, recorder.run_dir)
    for process in restarts(recorder):
        for step in plan_steps(recorder, process):
            watch(recorder.run)
            announce(step, recorder.run, progress)
            if not recorder.has(step):
                time_step(recorder, step)


def measure_rest(recorder: RunRecorder, progress: Progress = silent) -> None:
    """Start each experiment several times for its first output, and sample it in a process."""
    plan = recorder.run.plan
    for threads in plan.threads if plan.starts else ():
        progress(f"{plural(threads, 'thread')}, started", 1.0)
        with optional("starts", progress, fatal=TargetError):
            time_starts(recorder, threads)
    samples = plan.sampled_ms and recorder.runner.target.platform != "mac"  # has no sampler
    for threads in plan.threads if samples else ():
        progress(f"{plural(threads, 'thread')}, sampled", 1.0)
        with optional("PC samples", progress, fatal=TargetError):
            sample_experiments(recorder, threads)


@contextlib.contextmanager
def optional(
    part: str, progress: Progress, fatal: type[Exception] | tuple[()] = ()
) -> Iterator[None]:
    """Work after the timed steps: if it fails, a warning says so, and only this part is missing."""
    try:
        yield
    except fatal:  # a run that lost its device can continue
        raise
    except Exception as error:  # whatever it is, the latencies are measured
        text = str(error) if isinstance(error, WorkbenchError) else reason(error)
        progress(f"warning: {part} not made: {text}", 1.0)


def restarts(recorder: RunRecorder) -> Iterator[int]:
    """The restarts to measure: a given number, or as many as the seconds allow."""
    plan = recorder.run.plan
    least = MIN_RESTARTS if plan.budget_s else plan.processes or MIN_RESTARTS
    for process in itertools.count():
        if process >= max(least, project_restarts(recorder.run, process)):
            return
        yield process


def plan_steps(recorder: RunRecorder, restart: int) -> Iterator[Step]:
    """The steps of a restart: untraced and traced inferences share processes if they can.

    Whether they can is known once the first process has been started.
    """
    for threads in recorder.run.plan.threads:
        if recorder.alternates:
            yield Step(threads, restart, (False, True))
        if not recorder.alternates:
            yield from (Step(threads, restart, (False,)), Step(threads, restart, (True,)))


def announce(step: Step, run: RunRecord, progress: Progress) -> None:
    """Say what is measured next, of how many restarts, and how long the run will take."""
    plan, traced = run.plan, step.kinds == (True,)
    planned = project_restarts(run, step.restart)
    done = step.restart + (plan.threads.index(step.threads) + traced / 2) / len(plan.threads)
    fraction = run.spent_s / plan.budget_s if plan.budget_s else done / (planned or MOST_RESTARTS)
    text = f"{plural(step.threads, 'thread')}, process {step.restart + 1}"
    if planned and not plan.budget_s:
        text += f"/{planned}"
    if traced:
        text += ", traced"
    remaining_s = run.spent_s / done * (planned - done) if done else 0.0
    if remaining_s >= WORTH_SAYING_S and not plan.budget_s:
        text += f", {remaining_s:.0f} s to go"
    progress(text, min(1.0, fraction))
