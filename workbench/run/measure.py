"""Measure all experiments once, each in a fresh process, taking turns.

Steps measured with an eye on the machine: read before and after, repeated if disturbed.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from workbench.errors import StoreError
from workbench.records.runs import Agreement, Batch, Experiment, Plan, Reading
from workbench.records.runs import Session as SessionRecord
from workbench.run.readings import read_environment
from workbench.run.recorder import Journal
from workbench.run.runner import Runner, open_runner
from workbench.run.schedule import MIN_ROUNDS, batch_size, batch_within, interleave, rounds_needed
from workbench.run.session import Session
from workbench.run.targets.base import HOST, Host
from workbench.run.tensor_files import compare_outputs, read_output
from workbench.store import sha256_of, trace_path

#: With a budget, rounds go on until their time is up; two give every order its mirror image.
LEAST_ROUNDS, MOST_ROUNDS = 2, 10_000


@dataclass(frozen=True)
class Step:
    """One fresh process of every experiment: at how many threads, which restart, traced or not."""

    threads: int
    process: int
    traced: bool

    def core_of(self, target: Host) -> int | None:
        """The core that all experiments of the step share, if they run one thread each.

        Two cores are never equally fast (another guest, another clock): an experiment that the
        system put on the better one would win by it. The next process takes the next core.
        """
        cores = target.cores() if self.threads == 1 else []
        return cores[self.process % len(cores)] if cores else None


def measure_step(journal: Journal, runner: Runner, inputs: Sequence[Path], step: Step) -> None:
    """Measure every experiment of the plan, and note it in the journal.

    What was measured before an interruption is noted too, as incomplete.

    Raises
    ------
    StoreError
        The program is not the planned one any more.
    RunnerError
        A runner failed.
    """
    plan, run_dir = journal.run.plan, journal.run_dir
    if sha256_of(Path(plan.pte)) != plan.sha256:
        raise StoreError("changed since the run was planned", where=plan.pte, hint="run it anew")
    target = runner.target
    experiments = [e for e in plan.experiments if step.threads in (e.threads or plan.threads)]
    core, complete = step.core_of(target), False
    traces = {
        e.name: trace_path(run_dir, plan.stem, e.name, step.threads, step.process)
        for e in experiments
        if step.traced
    }
    taken: dict[str, list[Batch]] = {e.name: [] for e in experiments}
    sessions: dict[str, Session] = {}
    try:
        with contextlib.ExitStack() as stack:
            for experiment in experiments:
                flags = runner_flags(plan, experiment, inputs, step.threads, core, target)
                if step.traced:
                    flags += ["--etdump_path", target.place(traces[experiment.name])]
                session = open_runner(runner, flags, timeout_s=plan.timeout_s)
                sessions[experiment.name] = stack.enter_context(session)
            take_turns(sessions, plan, step.traced, taken)
            for name, path in traces.items():
                path.parent.mkdir(parents=True, exist_ok=True)
                sessions[name].etdump(path)
            if step.process == 0 and not step.traced:
                journal.note_agreements(compare_experiments(sessions, plan, step.threads))
        complete = True
    finally:
        journal.note_sessions(
            SessionRecord(
                experiment=name,
                threads=step.threads,
                process=step.process,
                traced=step.traced,
                masked=session.ready.masked,
                load_ms=session.ready.load_ms,
                startup_ms=session.ready.startup_ms,
                batches=tuple(taken[name]),
                clock=session.ready.clock,
                core=core,
                etdump=str(traces[name].relative_to(run_dir)) if complete and traces else "",
                complete=complete,
            )
            for name, session in sessions.items()
        )


def runner_flags(
    plan: Plan,
    experiment: Experiment,
    inputs: Sequence[Path],
    threads: int,
    core: int | None,
    target: Host = HOST,
) -> list[str]:
    """The runner's command line for one experiment, with the files where its target has them."""
    flags = [
        "--model_path",
        target.push(Path(plan.pte)),
        "--cpu_threads",
        str(threads),
        "--isa",
        experiment.isa,
    ]
    if experiment.isa_off:
        flags += ["--isa_off", ",".join(experiment.isa_off)]
    for path in inputs:
        flags += ["--inputs", target.push(path)]
    if any(tensor.dynamic for tensor in plan.inputs):
        for tensor in plan.inputs:
            flags += ["--input_shape", "x".join(map(str, tensor.shape))]
    cores = experiment.cpu_affinity or (() if core is None else (core,))
    if cores:
        flags += ["--cpus", ",".join(map(str, cores))]
    return [*flags, *experiment.extra_args]


def take_turns(
    sessions: dict[str, Session], plan: Plan, traced: bool, taken: dict[str, list[Batch]]
) -> None:
    """Warm every session up, then time them in turns; each batch is added to ``taken`` at once."""
    sizes = {name: warm_up(session, plan) for name, session in sessions.items()}
    runs, least = plan.runs, MIN_ROUNDS if plan.batch_ms else 1
    if traced:
        runs, least = plan.traced_runs, 1
        sizes = {name: batch_within(size, runs, plan.processes) for name, size in sizes.items()}
    rounds = rounds_needed(runs, plan.processes, min(sizes.values()), least)
    share_s, start = time_share(plan), time.monotonic()
    if share_s and not traced:
        rounds = MOST_ROUNDS
    for number, order in enumerate(interleave(list(sessions), rounds)):
        if share_s and number >= LEAST_ROUNDS and time.monotonic() - start > share_s:
            break
        for place, name in enumerate(order):
            laps = sessions[name].run(sizes[name])
            taken[name].append(Batch(number, place, laps.wall_ns, laps.cpu_ns, laps.preempted))


def time_share(plan: Plan) -> float:
    """The seconds that a plan with a budget has for one step: traced and untraced get the same."""
    return plan.budget_s / (2 * plan.processes * len(plan.threads))


def warm_up(session: Session, plan: Plan) -> int:
    """Warm a session up, untraced, for ``plan.warmup`` inferences and a batch; its batch size."""
    if not (plan.warmup or plan.batch_ms):
        return 1
    session.run(max(1, plan.warmup))
    if not plan.batch_ms:
        session.reset()
        return 1
    # The shortest lap: two equal experiments shall get equal batches on a busy machine too.
    size = batch_size(min(session.run(5).wall_ns), plan.batch_ms)
    session.run(size)
    session.reset()
    return size


def compare_experiments(sessions: dict[str, Session], plan: Plan, threads: int) -> list[Agreement]:
    """Compare the outputs of every pair, and those of every experiment with the first's."""
    with tempfile.TemporaryDirectory() as folder:
        outputs = {
            name: session.output(Path(folder) / str(number))
            for number, (name, session) in enumerate(sessions.items())
        }
        values = {
            name: [read_output(Path(tensor.file), tensor.dtype) for tensor in tensors]
            for name, tensors in outputs.items()
        }
    first, *others = sessions
    pairs = [(p.baseline, p.candidate) for p in plan.pairs] + [(first, name) for name in others]
    pairs = [pair for pair in pairs if sessions.keys() >= set(pair) and pair[0] != pair[1]]
    return [
        compare_outputs(
            a, b, names=(one, other), threads=threads, output=number, dtype=tensor.dtype
        )
        for one, other in dict.fromkeys(pairs)
        for number, (a, b, tensor) in enumerate(
            zip(values[one], values[other], outputs[one], strict=True)
        )
    ]


#: The part of the wall time that a step was off its core from which on it is measured once more.
#: Half of it is what one other busy program takes; taking turns and CPU time cope with that
#: (``tests/benchmarks/null.py`` and ``ab_spread.py`` are run so).
DISTURBED = 0.5


def measure_calmly(journal: Journal, runner: Runner, inputs: Sequence[Path], step: Step) -> None:
    """Measure a step, read the machine before and after, and note how long it took.

    An untraced step that was disturbed is measured a second time after a pause, as long as the
    plan has repetitions left; of the two the quieter one stays, and says that there were two. A
    repetition that does not come to its end takes nothing away.

    Raises
    ------
    StoreError, RunnerError, TargetError
        As from `measure_step`.
    """
    plan, started = journal.run.plan, time.monotonic()
    journal.note_readings([read_now(runner.target, step, "before")])
    measure_step(journal, runner, inputs, step)
    first = journal.sessions_of(step.threads, step.process, step.traced)
    # A budget is better spent on another restart.
    left = 0 if plan.budget_s else plan.retries - count_repeated(journal.run.sessions)
    if not step.traced and left > 0 and disturbance(first) > DISTURBED:
        try:
            time.sleep(plan.cool_down_s)
            measure_step(journal, runner, inputs, step)
        except BaseException:
            journal.note_sessions(first)
            raise
        second = journal.sessions_of(step.threads, step.process, step.traced)
        quieter = min((first, second), key=disturbance)
        journal.note_sessions(replace(session, attempts=2) for session in quieter)
    journal.note_readings([read_now(runner.target, step, "after")])
    journal.note_time(time.monotonic() - started)


def read_now(target: Host, step: Step, moment: str) -> Reading:
    """What the target tells of itself around a step."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Reading(
        time=now,
        moment=moment,
        threads=step.threads,
        process=step.process,
        traced=step.traced,
        **read_environment(target),
    )


def disturbance(sessions: Sequence[SessionRecord]) -> float:
    """The part of the wall time that others had the cores; 0 where CPU time does not tell.

    With several threads CPU time adds up over them, so the part of inferences that were
    interrupted stands in.
    """
    batches = [batch for session in sessions for batch in session.batches]
    if not batches:
        return 0.0
    if sessions[0].threads > 1:
        interrupted = [count > 0 for batch in batches for count in batch.preempted]
        return sum(interrupted) / len(interrupted)
    wall, cpu = (sum(sum(getattr(b, clock)) for b in batches) for clock in ("wall_ns", "cpu_ns"))
    return max(0.0, 1 - cpu / max(wall, 1))


def count_repeated(sessions: Sequence[SessionRecord]) -> int:
    """How many steps were measured twice."""
    return len({(s.threads, s.process, s.traced) for s in sessions if s.attempts > 1})
