"""Sample which machine code every experiment runs, apart from the processes that are timed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from workbench.errors import RunnerError
from workbench.records.runs import Experiment, Sampling
from workbench.run.measure import Step, runner_flags
from workbench.run.recorder import Journal
from workbench.run.runner import Runner, open_runner
from workbench.run.session import Session
from workbench.store import samples_path

#: CPU time for which an experiment is sampled, about five hundred times.
SAMPLED_MS = 2000.0

#: The trace grows with every inference, and these are enough for the fastest of models.
MOST_RUNS = 2000

#: Inferences between two commands take about this long.
BATCH_MS = 100.0


def sample_experiments(
    journal: Journal, runner: Runner, inputs: Sequence[Path], threads: int
) -> None:
    """Run every experiment once more, traced and sampled, and note it in the journal.

    Controls are left out. A runner that fails at it costs the evidence, not the run: what it said
    is noted.
    """
    plan = journal.run.plan
    for experiment in plan.experiments:
        known = (experiment.name, threads)
        wanted = not experiment.control and threads in (experiment.threads or plan.threads)
        if not wanted or journal.has_sampling(*known):
            continue
        try:
            sampling = sample_experiment(journal, runner, inputs, experiment, threads)
        except RunnerError as error:
            sampling = Sampling(*known, problem=str(error))
        journal.note_sampling(sampling)


def can_sample(runner: Runner) -> bool:
    """Whether a runner has a sampler: ours has, on Linux."""
    return runner.kind == "native" and runner.target.platform != "mac"


def sample_experiment(
    journal: Journal, runner: Runner, inputs: Sequence[Path], experiment: Experiment, threads: int
) -> Sampling:
    """Sample one experiment in a process of its own.

    Raises
    ------
    RunnerError
        The runner failed.
    """
    plan, run_dir, target = journal.run.plan, journal.run_dir, runner.target
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
        runs = run_for(session, plan.sampled_ms, lap_ms=max(min(warmup.cpu_ns) / 1e6, 1e-3))
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


def run_for(session: Session, least_ms: float, lap_ms: float) -> int:
    """Execute for so much CPU time, of which one run takes ``lap_ms``; returns how often."""
    batch = max(1, min(MOST_RUNS, round(min(BATCH_MS, least_ms) / lap_ms)))
    spent_ms, runs = 0.0, 0
    while spent_ms < least_ms and runs < MOST_RUNS:
        spent_ms += sum(session.run(batch).cpu_ns) / 1e6
        runs += batch
    return runs
