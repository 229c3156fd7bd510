"""Time one step of a run: processes are started, timed in turn, and recorded."""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from workbench.errors import RunnerError, WorkbenchError
from workbench.options import RUNTIMES
from workbench.records.runs import (
    Batch,
    Experiment,
    Plan,
    Reading,
    RunRecord,
    Session,
)
from workbench.run.allocation import (
    LEAST_RESTARTS,
    MOST_RESTARTS,
    clock_at,
    count_rounds,
    measure_scatter,
)
from workbench.run.isa import TOGGLES
from workbench.run.recorder import RunRecorder, Step, timestamp
from workbench.run.session import RunnerSession
from workbench.run.start import start_runner
from workbench.run.targets.host import read_environment
from workbench.run.tensor_files import compare_experiments
from workbench.store import trace_path

#: A run keeps every time: of an operator that takes 100 ns, a batch of 10 ms would be 100 000.
MAX_BATCH = 1_000
#: Most inferences of a traced batch: a trace grows with each, but single ones run cold.
MAX_TRACED_BATCH = 100
#: Traced inferences of an experiment, at most, in more than one round of each restart.
MAX_TRACED = 400
#: Inferences of a session, untraced and then traced, before it is timed; long ones need none.
WARM_UP = 4
#: Tracing that takes so much longer is not worth as many inferences as are not traced.
CHEAP_TRACING = 0.02

#: By experiment, and whether they are traced.
Batches: TypeAlias = dict[tuple[str, bool], list[Batch]]


def time_step(recorder: RunRecorder, step: Step) -> None:
    """Time every experiment once; records readings of the machine before and after it."""
    started = time.monotonic()
    try:
        if not recorder.is_read:  # else that after the step before
            _read_machine(recorder, step, "before")
        attempt_step(recorder, step)
        _read_machine(recorder, step, "after")
        spent_s = recorder.run.spent_s + time.monotonic() - started
        recorder.update(spent_s=round(spent_s, 3))
    finally:
        recorder.save()


def _read_machine(recorder: RunRecorder, step: Step, moment: str) -> None:
    state = read_environment(recorder.runner.target)
    where = (step.threads, step.restart, step.kinds[0])
    recorder.add("readings", Reading(timestamp(), moment, *where, **state))
    recorder.is_read = True


@dataclass
class Attempt:
    """A step that is being timed: its live sessions, and what they measured so far."""

    step: Step
    experiments: Sequence[Experiment]
    core: int | None
    traces: dict[str, Path]
    batches: Batches
    began: float = field(default_factory=lambda: time.monotonic())
    sessions: dict[str, RunnerSession] = field(default_factory=dict)
    complete: bool = False

    @classmethod
    def begin(cls, recorder: RunRecorder, step: Step) -> Attempt:
        """An attempt that has started nothing yet."""
        plan, target = recorder.run.plan, recorder.runner.target
        experiments = plan.experiments
        traces = {
            e.name: trace_path(
                recorder.run_dir, plan.program_of(e).stem, e.name, step.threads, step.restart
            )
            for e in experiments
            if True in step.kinds
        }
        batches: Batches = {(e.name, traced): [] for traced in step.kinds for e in experiments}
        core = target.core(step.threads, step.restart)
        return cls(step, experiments, core, traces, batches)

    def to_sessions(self, run_dir: Path) -> list[Session]:
        """What was measured of the sessions that were started, as the manifest has it."""
        described = []
        for (name, traced), batches in self.batches.items():
            if name not in self.sessions:
                continue
            ready, etdump = self.sessions[name].ready, ""
            if traced and self.complete:
                etdump = str(self.traces[name].relative_to(run_dir))
            described.append(
                Session(
                    name, self.step.threads, self.step.restart, traced, ready.masked,
                    ready.load_ms, ready.startup_ms, tuple(batches), ready.clock, self.core,
                    complete=self.complete, etdump=etdump,
                )
            )  # fmt: skip
        return described


def attempt_step(recorder: RunRecorder, step: Step) -> None:
    """Start every experiment, time them in turn, collect the rest, and record it all.

    What an interrupted attempt measured is recorded as incomplete.
    """
    planned = recorder.run.plan.all_programs
    for program, each in zip(recorder.programs, planned, strict=True):
        program.check_unchanged(each.data_sha256)
    attempt = Attempt.begin(recorder, step)
    try:
        with contextlib.ExitStack() as stack:
            try:
                _start(recorder, attempt, stack)
                if len(step.kinds) > 1 and not recorder.alternates:
                    return  # the steps follow one by one
                time_interleaved(recorder, attempt)
            except RunnerError as error:
                raise _explain_crash(error, recorder, attempt) from error
            _collect(recorder, attempt)
        attempt.complete = True
    finally:
        recorder.add_sessions(attempt.to_sessions(recorder.run_dir))


def _start(recorder: RunRecorder, attempt: Attempt, stack: contextlib.ExitStack) -> None:
    """Start a process of every experiment; which is first, and warmed up first, changes."""
    step, experiments = attempt.step, attempt.experiments
    for experiment in random.Random(step.restart).sample(experiments, len(experiments)):
        name, flags = experiment.name, list[str]()
        if name in attempt.traces:
            flags = ["--etdump_path", recorder.runner.target.place(attempt.traces[name])]
        session = start_runner(recorder, experiment, step.threads, attempt.core, *flags)
        attempt.sessions[name] = stack.enter_context(session)
    attempt.sessions = {e.name: attempt.sessions[e.name] for e in experiments}
    recorder.add_missing(attempt.sessions.values())


def _collect(recorder: RunRecorder, attempt: Attempt) -> None:
    """What follows the timed inferences: traces, and outputs."""
    run, step, sessions = recorder.run, attempt.step, attempt.sessions
    for name, path in attempt.traces.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        sessions[name].etdump(path)
    if step.restart == 0 and False in step.kinds:
        earlier = (a for a in run.agreements if a.threads != step.threads)
        programs = zip(run.plan.all_programs, recorder.programs, strict=True)
        expected = {planned.name: program for planned, program in programs}
        agreements = compare_experiments(sessions, run, step.threads, expected)
        recorder.update(agreements=(*earlier, *agreements))


def _explain_crash(error: RunnerError, recorder: RunRecorder, attempt: Attempt) -> RunnerError:
    """The error of a runner; if it crashed, with an ISA level at which the program runs."""
    runs, experiments = dict[str, bool](), attempt.experiments
    for each in experiments if error.kind == "crash" else ():
        runs[each.name] = False
        with (
            contextlib.suppress(WorkbenchError),
            start_runner(recorder, each, attempt.step.threads, attempt.core) as session,
        ):
            runs[each.name] = bool(session.run(1))
    crashed = next((each for each in experiments if not runs.get(each.name, True)), None)
    for below in (each for each in experiments if crashed and runs[each.name]):
        if crashed and below.program == crashed.program and below.isa != crashed.isa:
            all_toggles = itertools.chain(*TOGGLES.values())
            toggles = (toggle.name for toggle in all_toggles if toggle.on == below.isa)
            hint = f"use the level below: --toggle {next(toggles, 'none')} starts there"
            what = f"{error.what}; at the level {below.isa} it runs"
            return RunnerError(what, where=error.where, hint=hint, kind="crash")
    return error


def time_interleaved(recorder: RunRecorder, attempt: Attempt) -> None:
    """Warm up every session, then time them interleaved; adds to the batches as it goes.

    In a round, every session has a batch in one order, then one in the other: an untraced and a
    traced one if both are asked for, and which comes first alternates. The rounds follow from what
    the restart cost since it began, and from the time of a round. A session traces only so many
    inferences that a run's traces stay small, but one in each batch. Before a batch that is shorter
    than the untraced one, it is warmed up, so that the times of both are of the same state.
    """
    sessions, batches, restart = attempt.sessions, attempt.batches, attempt.step.restart
    warmed = {name: warm_up(session, recorder.run.plan) for name, session in sessions.items()}
    both = len(attempt.step.kinds) > 1
    halves = attempt.step.kinds if both else attempt.step.kinds * 2
    most_traced = {e.name: recorder.most_traced(e) for e in attempt.experiments}
    sizes = _size_batches(recorder.run, warmed, both, most_traced)
    rounds = _plan_rounds(recorder.run, attempt, warmed, sizes)
    traced_rounds = _plan_traced_rounds(recorder.run.plan, sizes, most_traced)
    for number, order in enumerate(interleave(list(sessions), rounds, restart)):
        chosen = halves if (restart + number) % 2 else halves[::-1]
        if both and number >= traced_rounds:
            chosen = (False, False)
        for position, name in enumerate(order):
            traced = chosen[position // len(sessions)]
            if sizes[name, traced] < sizes[name, False]:
                # Others had the caches: the first inferences are slower, and here there are few.
                sessions[name].run(WARM_UP, traced=False)
            timed = sessions[name].run(sizes[name, traced], traced=traced)
            batches[name, traced].append(replace(timed, round=number, batch=position))


def _plan_rounds(
    run: RunRecord, attempt: Attempt, warmed: Mapping[str, tuple[int, float]],
    sizes: Mapping[tuple[str, bool], int],
) -> int:  # fmt: skip
    """How many rounds a restart has: by what it costs, and by the inferences asked for."""
    plan, kinds, threads = run.plan, attempt.step.kinds, attempt.step.threads
    both, rounds = len(kinds) > 1, 1
    halves = kinds if both else kinds * 2
    if plan.batch_ms:
        fixed_s = time.monotonic() - attempt.began
        round_s = sum(sizes[n, kind] * warmed[n][1] for n in warmed for kind in halves)
        rounds = count_rounds(plan, threads, fixed_s, round_s, measure_scatter(run, threads))
    for kind, runs in (False, plan.runs), (True, plan.traced_runs):
        if kind in kinds and not (kind and both):
            each = halves.count(kind) * min(sizes[name, kind] for name in warmed)
            rounds = max(rounds, math.ceil(runs / ((plan.processes or LEAST_RESTARTS) * each)))
    return rounds


def _plan_traced_rounds(
    plan: Plan, sizes: Mapping[tuple[str, bool], int], most_traced: Mapping[str, int]
) -> int:
    """In how many rounds of a restart inferences are traced, beside untraced ones."""
    longest = max(sizes[name, True] for name in most_traced)
    rounds = math.ceil(MAX_TRACED / (plan.processes or MOST_RESTARTS) / longest)
    fitting = min(most // sizes[name, True] for name, most in most_traced.items())
    return max(1, min(rounds, fitting))


def _size_batches(
    run: RunRecord, warmed: Mapping[str, tuple[int, float]], both: bool,
    most_traced: Mapping[str, int],
) -> dict[tuple[str, bool], int]:  # fmt: skip
    """How many inferences a batch of each session has, untraced and traced."""
    plan = run.plan
    sizes = {(name, False): size for name, (size, _) in warmed.items()}
    for experiment in plan.experiments:
        if (name := experiment.name) in warmed:
            cheap = experiment.runner not in RUNTIMES and tracing_cost(run, name) < CHEAP_TRACING
            most = MAX_TRACED_BATCH
            if both and not cheap:
                most = plan.traced_runs // (plan.processes or LEAST_RESTARTS)
            sizes[name, True] = max(1, min(warmed[name][0], most, most_traced[name]))
    return sizes


def tracing_cost(run: RunRecord, experiment: str) -> float:
    """How much longer an experiment's traced inferences took so far, as a part; 0 if unknown."""
    times: dict[tuple[int, int], dict[bool, float]] = {}
    for session in run.sessions:
        if session.experiment == experiment and session.complete and session.batches:
            clock = clock_at(session.threads)
            each_ns = [ns for batch in session.batches for ns in getattr(batch, clock)]
            step = times.setdefault((session.threads, session.process), {})
            step[session.traced] = max(1.0, float(np.median(each_ns)))
    costs = [step[True] / step[False] - 1 for step in times.values() if len(step) > 1]
    return float(np.median(costs)) if costs else 0.0


def interleave(names: Sequence[str], rounds: int, restart: int = 0) -> Iterator[list[str]]:
    """The order of the batches in each round of a restart, such as A B B A, B A A B.

    A palindrome gives every experiment the same mean time of measurement within the round, which
    cancels linear drift. As many rounds as experiments are a Latin square: each takes every place
    once. Every square is shuffled, so that none follows the same one all the time; the squares of
    all restarts follow one another.
    """
    for number in range(restart * rounds, (restart + 1) * rounds):
        square, first = divmod(number, len(names))
        shuffled = random.Random(square).sample(names, len(names))
        order = [*shuffled[first:], *shuffled[:first]]
        yield order + order[::-1]


def warm_up(session: RunnerSession, plan: Plan) -> tuple[int, float]:
    """Warm up a session for ``plan.warmup`` inferences and some; batch size, and seconds of one.

    Short inferences are run some more, which tells the size of a batch, the last of them traced.
    """
    if not (plan.warmup or plan.batch_ms):
        return 1, 0.0
    timed = session.run(max(1, plan.warmup), traced=False)
    size = 1
    if plan.batch_ms and min(timed.wall_ns) < 1e6 * plan.batch_ms:
        timed = session.run(WARM_UP, traced=False)
        # The shortest iteration: equal experiments must get equal batches on a busy machine too.
        size = min(MAX_BATCH, max(1, round(plan.batch_ms * 1e6 / max(min(timed.wall_ns), 1))))
        session.run(min(size, WARM_UP))
    session.reset()
    return size, min(timed.wall_ns) / 1e9
