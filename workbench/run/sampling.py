"""Sample which machine code every experiment runs, in processes that are not timed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from workbench.errors import RunnerError
from workbench.records.runs import Experiment, Sampling
from workbench.run.measure import Step, runner_flags
from workbench.run.recorder import RunRecorder
from workbench.run.runner import Runner, open_runner
from workbench.run.session import Session
from workbench.store import samples_path

#: CPU time for which an experiment is sampled, about five hundred times.
SAMPLED_MS = 2000.0
#: The trace grows with every inference; these suffice for the fastest models.
MAX_RUNS = 2000
#: The time between two commands to the runner.
BATCH_MS = 100.0


def sample_experiments(
    recorder: RunRecorder, runner: Runner, inputs: Sequence[Path], threads: int
) -> None:
    """Run every experiment but controls once more, traced and sampled.

    If a runner fails, its message is recorded and the run continues without these samples.
    """
    plan = recorder.run.plan
    for experiment in plan.experiments:
        known = (experiment.name, threads)
        wanted = not experiment.control and threads in (experiment.threads or plan.threads)
        if not wanted or recorder.has_sampling(*known):
            continue
        try:
            sampling = sample_experiment(recorder, runner, inputs, experiment, threads)
        except RunnerError as error:
            sampling = Sampling(*known, problem=str(error))
        recorder.add_sampling(sampling)


def can_sample(runner: Runner) -> bool:
    """Whether a runner has a sampler: the native runner has one on Linux."""
    return runner.kind == "native" and runner.target.platform != "mac"


def sample_experiment(
    recorder: RunRecorder,
    runner: Runner,
    inputs: Sequence[Path],
    experiment: Experiment,
    threads: int,
) -> Sampling:
    """Sample one experiment in a process of its own; RunnerError if the runner fails."""
    plan, run_dir, target = recorder.run.plan, recorder.run_dir, runner.target
    samples, etdump = samples_path(run_dir, plan.stem, experiment.name, threads)
    samples.parent.mkdir(parents=True, exist_ok=True)
    core = Step(threads, 0, True).core_of(target)
    flags = [
        *runner_flags(plan, experiment, inputs, threads, core, target),
        *("--etdump_path", target.place(etdump), "--samples_path", target.place(samples)),
    ]
    with open_runner(runner, flags, timeout_s=plan.timeout_s) as session:
        warmup = session.run(max(1, plan.warmup))
        session.reset()
        runs = run_for(session, plan.sampled_ms, max(min(warmup.cpu_ns) / 1e6, 1e-3))
        session.etdump(etdump)
        session.samples(samples)
        return Sampling(
            experiment.name,
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
