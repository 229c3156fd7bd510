"""Execute a plan: interleaved live runners, then sampled ones, all results recorded."""

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from workbench.errors import RunnerError
from workbench.records.runs import (
    READ,
    Experiment,
    Plan,
    RunRecord,
    Sampling,
    Start,
    count_threads,
)
from workbench.run.measure import Step, measure_step, runner_flags
from workbench.run.recorder import RunRecorder, record_run
from workbench.run.runner import Runner, open_runner
from workbench.run.session import Session
from workbench.run.tensor_files import Inputs, locate_inputs
from workbench.store import samples_path

#: Called with what is being measured, and the fraction that is done (0 to 1).
Progress = Callable[[str, float], None]
#: Called after a restart: whether the measurements suffice.
Enough = Callable[[RunRecord], bool]

#: Restarts that run whatever the budget: fewer give no useful interval.
MIN_RESTARTS = 3
#: Most inferences of a sampled process: its trace grows with each; the fastest models need these.
MAX_RUNS = 2000
#: Of the starts of every experiment, how many find the program's file out of the page cache; as
#: many read the file instead of mapping it.
COLD_STARTS = 3
#: After so many seconds for each experiment, every mode gets only so many starts.
STARTS_S, LEAST_STARTS = 2.0, 2
#: Milliseconds between two commands to a sampled runner.
BATCH_MS = 100.0


def run_plan(
    plan: Plan,
    runner: Runner,
    root: Path,
    *,
    progress: Progress = lambda text, part: None,
    enough: Enough = lambda run: False,
) -> Path:
    """Measure what a plan says on a locked device; returns the run's folder.

    Each thread count is measured in several fresh processes, their experiments interleaved: first
    untraced, for latency, then with ETDump, for the operators' shares. Then each experiment is
    started several times for its first output, and finally sampled in a process of its own. An
    interrupted run keeps its measurements; the same plan continues it.
    """
    with record_run(plan, runner, root, lambda text: progress(text, 0.0)) as recorder:
        inputs = locate_inputs(plan, recorder.run_dir)
        for process in restarts(recorder, enough):
            for step in steps_of(plan, process):
                progress(describe_step(plan, step), progress_of(recorder.run, step))
                if not recorder.has(step.threads, step.process, step.traced):
                    measure_step(recorder, runner, inputs, step)
        # The native runner has a sampler on Linux.
        can_sample = runner.kind == "native" and runner.target.platform != "mac"
        for threads in plan.threads if plan.starts else ():
            progress(f"{count_threads(threads)}, started", 1.0)
            measure_starts(recorder, runner, inputs, threads)
        for threads in plan.threads if plan.sampled_ms and can_sample else ():
            progress(f"{count_threads(threads)}, sampled", 1.0)
            sample_experiments(recorder, runner, inputs, threads)
    progress("analysing", 1.0)
    return recorder.run_dir


def restarts(recorder: RunRecorder, enough: Enough) -> Iterator[int]:
    """The restarts to measure: the planned number, or as many as the budget allows and needs."""
    plan = recorder.run.plan
    if not plan.budget_s:
        yield from range(plan.processes)
        return
    yield from range(MIN_RESTARTS)
    for process in itertools.count(MIN_RESTARTS):
        needed_s = recorder.run.spent_s * (process + 1) / process
        if needed_s > plan.budget_s or enough(recorder.run):
            return
        yield process


def steps_of(plan: Plan, process: int) -> list[Step]:
    """The steps of one restart."""
    return [Step(threads, process, traced) for threads in plan.threads for traced in (False, True)]


def describe_step(plan: Plan, step: Step) -> str:
    """What is being measured, in words."""
    rest = ("" if plan.budget_s else f"/{plan.processes}") + (", traced" if step.traced else "")
    return f"{count_threads(step.threads)}, process {step.process + 1}{rest}"


def progress_of(run: RunRecord, step: Step) -> float:
    """The fraction done before a step: of the budget's time, or of the planned steps."""
    plan = run.plan
    if plan.budget_s:
        return min(1.0, run.spent_s / plan.budget_s)
    steps = steps_of(plan, step.process)
    return (step.process + steps.index(step) / len(steps)) / plan.processes


def measure_starts(recorder: RunRecorder, runner: Runner, inputs: Inputs, threads: int) -> None:
    """Start every experiment, interleaved, up to its first output: for memory, then for time.

    The first process of each also reads the program's file, so that the timed ones find it in the
    page cache; later ones are started without it there. Starts that map the file and starts that
    read it take turns. Of several phases, the first is measured.
    """
    plan, known = recorder.run.plan, {(s.threads, s.number) for s in recorder.run.starts}
    phases, began = ("", *(phase.name for phase in plan.phases[:1])), time.monotonic()
    chosen = [
        e for e in plan.experiments if threads in (e.threads or plan.threads) and e.phase in phases
    ]
    few = min(plan.starts, COLD_STARTS)
    modes = ["memory", *["time", "read"] * few, *["time"] * (plan.starts - few)]
    modes += ["cold", "cold read"] * few
    for number, mode in enumerate(modes):
        spent_s = (time.monotonic() - began) / max(1, len(chosen))
        enough = spent_s > STARTS_S and modes[:number].count(mode) >= LEAST_STARTS
        if enough or (threads, number) in known:
            continue
        first, starts = number % len(chosen), []
        for experiment in [*chosen[first:], *chosen[:first]]:
            core = Step(threads, number, False).core_of(runner.target)
            flags = runner_flags(plan, experiment, inputs, threads, core, runner.target)
            flags += ["--stages", READ.get(mode, mode)]
            flags += ["--load", "read"] if mode in READ else []
            with open_runner(runner, flags, timeout_s=plan.timeout_s) as session:
                ready = session.ready
            measured = (ready.stages, ready.memory, ready.cached)
            starts.append(Start(experiment.name, threads, number, mode, *measured))
        recorder.add_starts(starts)


def sample_experiments(recorder: RunRecorder, runner: Runner, inputs: Inputs, threads: int) -> None:
    """Run every experiment but controls once more, sampled; a failure is recorded."""
    plan = recorder.run.plan
    for experiment in plan.experiments:
        known = (experiment.name, threads)
        sampled = [(s.experiment, s.threads) for s in recorder.run.samplings]
        wanted = not experiment.control and threads in (experiment.threads or plan.threads)
        if not wanted or known in sampled:
            continue
        try:
            sampling = sample_experiment(recorder, runner, inputs, experiment, threads)
        except RunnerError as error:
            sampling = Sampling(*known, problem=str(error))
        recorder.add_sampling(sampling)


def sample_experiment(
    recorder: RunRecorder, runner: Runner, inputs: Inputs, which: Experiment, threads: int
) -> Sampling:
    """Sample one experiment in a process of its own; RunnerError if the runner fails."""
    plan, run_dir, target = recorder.run.plan, recorder.run_dir, runner.target
    samples, etdump = samples_path(run_dir, plan.program_of(which).stem, which.name, threads)
    samples.parent.mkdir(parents=True, exist_ok=True)
    core = Step(threads, 0, True).core_of(target)
    flags = [
        *runner_flags(plan, which, inputs, threads, core, target),
        *("--etdump_path", target.place(etdump), "--samples_path", target.place(samples)),
    ]
    with open_runner(runner, flags, timeout_s=plan.timeout_s) as session:
        warmup = session.run(max(1, plan.warmup))
        session.reset()
        runs = run_for(session, plan.sampled_ms, max(min(warmup.cpu_ns) / 1e6, 1e-3))
        session.etdump(etdump)
        session.samples(samples)
        return Sampling(
            which.name,
            threads,
            masked=session.ready.masked,
            runs=runs,
            etdump=str(etdump.relative_to(run_dir)),
            samples=str(samples.relative_to(run_dir)),
        )


def run_for(session: Session, least_ms: float, iteration_ms: float) -> int:
    """Execute for at least ``least_ms`` of CPU time; returns the number of iterations."""
    batch = max(1, min(MAX_RUNS, round(min(BATCH_MS, least_ms) / iteration_ms)))
    spent_ms, runs = 0.0, 0
    while spent_ms < least_ms and runs < MAX_RUNS:
        spent_ms += sum(session.run(batch).cpu_ns) / 1e6
        runs += batch
    return runs
