"""What follows the timed steps of a run: starts, and processes that are sampled."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial

from workbench.errors import RunnerError
from workbench.options import RUNTIMES
from workbench.records.runs import (
    Experiment,
    Sampling,
    Start,
)
from workbench.run.recorder import RunRecorder
from workbench.run.start import start_runner
from workbench.store import samples_path

#: Of the starts of every experiment, how many find the program's file out of the page cache.
COLD_STARTS = 3
#: After so many seconds for each experiment, every mode gets only so many starts.
STARTS_S, LEAST_STARTS = 2.0, 2
#: Most inferences of a sampled process: its trace grows with each; the fastest models need these.
MAX_SAMPLED = 2000
#: Milliseconds between two commands to a sampled runner.
SAMPLED_BATCH_MS = 100.0


def time_starts(recorder: RunRecorder, threads: int) -> None:
    """Start every experiment but controls, in turns, up to its first output: memory, then time.

    The first process of each also reads the program's file, so that the timed ones find it in the
    page cache; later ones are started without it there. Of several phases, the first is measured.
    """
    plan, timed = recorder.run.plan, {(s.threads, s.number) for s in recorder.run.starts}
    phases, began = ("", *(phase.name for phase in plan.phases[:1])), time.monotonic()
    chosen = [
        e for e in plan.experiments
        if e.phase in phases and e.runner not in RUNTIMES and not e.control
    ]  # fmt: skip
    counts = {"memory": 1, "time": plan.starts, "cold": min(plan.starts, COLD_STARTS)}
    modes = [mode for mode, count in counts.items() for _ in range(count)]
    for number, mode in enumerate(modes):
        spent_s = (time.monotonic() - began) / max(1, len(chosen))
        enough = spent_s > STARTS_S and modes[:number].count(mode) >= LEAST_STARTS
        if enough or (threads, number) in timed:
            continue
        core = recorder.runner.target.core(threads, number)
        first, starts = number % len(chosen), []
        for experiment in [*chosen[first:], *chosen[:first]]:
            with start_runner(recorder, experiment, threads, core, "--stages", mode) as session:
                measured = session.ready.stages, session.ready.memory
            starts.append(Start(experiment.name, threads, number, mode, *measured))
        recorder.add("starts", *starts)
        recorder.save()


def sample_experiments(recorder: RunRecorder, threads: int) -> None:
    """Run every experiment but controls once more, sampled; a failure is recorded.

    Those of one thread run at the same time, each on a core of its own: their times do not count.
    """
    plan, target = recorder.run.plan, recorder.runner.target
    sampled = {(s.experiment, s.threads) for s in recorder.run.samplings}
    due = [
        e for e in plan.experiments
        if not e.control and e.runner not in RUNTIMES and (e.name, threads) not in sampled
    ]  # fmt: skip

    def sample(experiment: Experiment, number: int) -> Sampling:
        core = target.core(threads, number)
        try:
            return sample_experiment(recorder, experiment, threads, core)
        except RunnerError as error:
            return Sampling(experiment.name, threads, problem=str(error))

    # A thread has no context, in which runners find the machine's lock, which they hold too.
    jobs = [partial(copy_context().run, sample, each, number) for number, each in enumerate(due)]
    with ThreadPoolExecutor(max(1, len(target.cores())) if threads == 1 else 1) as pool:
        recorder.add("samplings", *pool.map(lambda job: job(), jobs))
    recorder.save()


def sample_experiment(
    recorder: RunRecorder, which: Experiment, threads: int, core: int | None
) -> Sampling:
    """Sample one experiment in a process of its own; RunnerError if the runner fails."""
    plan, run_dir, target = recorder.run.plan, recorder.run_dir, recorder.runner.target
    samples, etdump = samples_path(run_dir, plan.program_of(which).stem, which.name, threads)
    samples.parent.mkdir(parents=True, exist_ok=True)
    files = ("--etdump_path", target.place(etdump), "--samples_path", target.place(samples))
    with start_runner(recorder, which, threads, core, *files) as session:
        warmup = session.run(max(1, plan.warmup))
        session.reset()
        iteration_ms = max(min(warmup.cpu_ns) / 1e6, 1e-3)
        batch_ms = min(SAMPLED_BATCH_MS, plan.sampled_ms)
        batch = max(1, min(MAX_SAMPLED, round(batch_ms / iteration_ms)))
        spent_ms, runs = 0.0, 0
        while spent_ms < plan.sampled_ms and runs < MAX_SAMPLED:
            spent_ms += sum(session.run(batch).cpu_ns) / 1e6
            runs += batch
        session.etdump(etdump)
        session.samples(samples)
    names = (str(path.relative_to(run_dir)) for path in (etdump, samples))
    return Sampling(which.name, threads, runs, *names)
