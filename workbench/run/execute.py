"""Execute a plan: interleaved live runners, then starts, then sampled ones; all recorded."""

import contextlib
import itertools
import math
import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np

from workbench.errors import RunnerError, TargetError, WorkbenchError
from workbench.export.program import Program
from workbench.frames import plural
from workbench.models.sources import reason
from workbench.options import RUNTIMES, Progress, silent
from workbench.records.runs import (
    Batch,
    Experiment,
    Plan,
    Reading,
    RunRecord,
    Sampling,
    Session,
    Start,
)
from workbench.run.allocation import (
    LEAST_RESTARTS,
    MIN_RESTARTS,
    MOST_RESTARTS,
    count_rounds,
    disturbance,
    measure_scatter,
    project_restarts,
)
from workbench.run.isa import TOGGLES
from workbench.run.recorder import RunRecorder, Step, open_record, step_of, timestamp
from workbench.run.runner import Runner, open_runner, version_runner
from workbench.run.session import RunnerSession
from workbench.run.sides import Settings, command_of
from workbench.run.targets.host import read_environment
from workbench.run.tensor_files import compare_experiments, locate_inputs
from workbench.store import samples_path, trace_path

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
#: The fraction of the wall time off its core from which a step is measured again. One other busy
#: program takes half of it; interleaving and CPU time cope with that (see
#: ``tests/benchmarks/null.py`` and ``ab_spread.py``).
DISTURBED = 0.5
#: Of the starts of every experiment, how many find the program's file out of the page cache.
COLD_STARTS = 3
#: After so many seconds for each experiment, every mode gets only so many starts.
STARTS_S, LEAST_STARTS = 2.0, 2
#: At a rate, every experiment is run for so long, at most so often, and so long at a time.
PACED_S, MAX_PACED, PACED_BATCH_S = 30.0, 1000, 2.0
#: Most inferences of a sampled process: its trace grows with each; the fastest models need these.
MAX_SAMPLED = 2000
#: The folder of packed weights in that of a run that goes on.
PACKED = ".packed"
#: Of a run, from which on it says how long it will take, in seconds.
WORTH_SAYING_S = 10.0
#: Milliseconds between two commands to a sampled runner.
SAMPLED_BATCH_MS = 100.0

#: By experiment, and whether they are traced.
Batches: TypeAlias = dict[tuple[str, bool], list[Batch]]


def execute(
    plan: Plan,
    programs: Sequence[Program],
    runner: Runner,
    root: Path,
    *,
    progress: Progress = silent,
    watch: Callable[[RunRecord], None] = lambda run: None,
    enough: Callable[[RunRecord], bool] = lambda run: False,
) -> Path:
    """Measure what a plan says on a locked device; returns the run's folder.

    Each thread count is measured in several fresh processes, their experiments interleaved:
    untraced, for latency, alternating with ETDump, for the operators' shares; if the plan has a
    rate, at that too. Then each experiment is started several times for its first output, and
    finally sampled in a process of its own. An interrupted run keeps its measurements; the same
    plan continues it. Before each step, ``watch`` is called with what was measured; with a budget,
    ``enough`` says after each restart whether that suffices.
    """
    with open_record(plan, programs, runner, root, progress) as recorder:
        recorder.inputs = locate_inputs(plan, recorder.run_dir)
        for process in restarts(recorder, enough):
            for steps in group_steps(recorder, process):
                watch(recorder.run)
                announce(steps[0], recorder.run, progress)
                if not all(map(recorder.has, steps)):
                    time_steps(recorder, *steps)
        for threads in plan.threads if plan.starts else ():
            progress(f"{plural(threads, 'thread')}, started", 1.0)
            with optional("starts", progress, fatal=TargetError):
                time_starts(recorder, threads)
        samples = plan.sampled_ms and runner.target.platform != "mac"  # has no sampler
        for threads in plan.threads if samples else ():
            progress(f"{plural(threads, 'thread')}, sampled", 1.0)
            with optional("PC samples", progress, fatal=TargetError):
                sample_experiments(recorder, threads)
        shutil.rmtree(recorder.run_dir / PACKED, ignore_errors=True)
    progress("analysing", 1.0)
    return recorder.run_dir


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


def restarts(recorder: RunRecorder, enough: Callable[[RunRecord], bool]) -> Iterator[int]:
    """The restarts to measure: a given number, or as many as the seconds allow and need."""
    plan = recorder.run.plan
    for process in itertools.count():
        least = MIN_RESTARTS if plan.budget_s else plan.processes or LEAST_RESTARTS
        if process >= least:
            full = process >= project_restarts(recorder.run, process)
            if full or (plan.budget_s and enough(recorder.run)):
                return
        yield process


def group_steps(recorder: RunRecorder, process: int) -> Iterator[list[Step]]:
    """The steps of a restart: those that differ in being traced share a process if they can.

    Whether they can is known once the first process has been started.
    """
    for threads in recorder.run.plan.threads:
        untraced, traced = (threads, process, False), (threads, process, True)
        if recorder.alternates:
            yield [untraced, traced]
        if not recorder.alternates:
            yield from ([untraced], [traced])


def announce(step: Step, run: RunRecord, progress: Progress) -> None:
    """Say what is measured next, of how many restarts, and how long the run will take."""
    plan, (threads, process, traced) = run.plan, step
    planned = project_restarts(run, process)
    of = f"/{planned}" if planned and not plan.budget_s else ""
    done = process + (plan.threads.index(threads) + traced / 2) / len(plan.threads)
    fraction = run.spent_s / plan.budget_s if plan.budget_s else done / (planned or MOST_RESTARTS)
    fraction = min(1.0, fraction)
    text = f"{plural(threads, 'thread')}, process {process + 1}{of}{', traced' if traced else ''}"
    remaining_s = run.spent_s / done * (planned - done) if done else 0.0
    if remaining_s >= WORTH_SAYING_S and not plan.budget_s:
        text += f", {remaining_s:.0f} s to go"
    progress(text, fraction)


def time_steps(recorder: RunRecorder, *steps: Step) -> None:
    """Time every experiment once; records readings of the machine before and after it.

    Steps that differ in being traced alternate in one process. A disturbed untraced step is
    measured again after a pause if the plan has retries left; the less disturbed attempt is kept,
    marked as the second. Where the seconds decide, they are better spent on another restart.
    """
    plan, started, step = recorder.run.plan, time.monotonic(), steps[0]

    def read(moment: str) -> None:
        state = read_environment(recorder.runner.target)
        recorder.add("readings", Reading(timestamp(), moment, *step, **state))
        recorder.is_read = True

    try:
        if not recorder.is_read:  # else that after the step before
            read("before")
        attempt_steps(recorder, *steps)
        repeated = {step_of(session) for session in recorder.run.sessions if session.attempts > 1}
        retries = plan.retries - len(repeated) if plan.processes and not plan.budget_s else 0
        disturbed = disturbance(recorder.sessions_of(step)) > DISTURBED
        if disturbed and not step[-1] and retries > 0:
            time.sleep(plan.cool_down_s)
            attempt_steps(recorder, *steps, again=True)
            kept = recorder.sessions_of(step)
            recorder.add_sessions(replace(session, attempts=2) for session in kept)
        read("after")
        spent_s = recorder.run.spent_s + time.monotonic() - started
        recorder.update(spent_s=round(spent_s, 3))
    finally:
        recorder.save()


def attempt_steps(recorder: RunRecorder, *steps: Step, again: bool = False) -> None:
    """Time every experiment of the plan once; if interrupted, record it as incomplete.

    ``again``: what was recorded stays if it is complete and less disturbed.
    """
    plan, run_dir, target = recorder.run.plan, recorder.run_dir, recorder.runner.target
    began = time.monotonic()
    (threads, process, _), kinds = steps[0], [traced for *_, traced in steps]
    for program in recorder.programs:
        program.check_unchanged()
    experiments, core, complete = plan.experiments_at(threads), target.core(threads, process), False
    traces = {
        e.name: trace_path(run_dir, plan.program_of(e).stem, e.name, threads, process)
        for e in experiments
        if True in kinds
    }
    batches: Batches = {(e.name, traced): [] for traced in kinds for e in experiments}
    sessions: dict[str, RunnerSession] = {}
    paced: dict[str, list[Batch]] = {}

    def describe() -> list[Session]:
        described = []
        for name, traced in (each for each in batches if each[0] in sessions):
            ready, timed = sessions[name].ready, tuple(batches[name, traced])
            times = (ready.masked, ready.load_ms, ready.startup_ms, timed, ready.clock)
            session = Session(name, threads, process, traced, *times, core, complete=complete)
            if traced:
                etdump = str(traces[name].relative_to(run_dir)) if complete else ""
                session = replace(session, etdump=etdump)
            described.append(session)
        return described

    try:
        with contextlib.ExitStack() as stack:
            # Which is started first, and warmed up first, changes with the restart.
            try:
                for experiment in random.Random(process).sample(experiments, len(experiments)):
                    name, flags = experiment.name, list[str]()
                    if name in traces:
                        flags = ["--etdump_path", target.place(traces[name])]
                    session = start_runner(recorder, experiment, threads, core, *flags)
                    sessions[name] = stack.enter_context(session)
                sessions = {e.name: sessions[e.name] for e in experiments}
                recorder.add_missing(sessions.values())
                if len(kinds) > 1 and not recorder.alternates:
                    return  # the steps follow one by one
                most_traced = {e.name: recorder.most_traced(e) for e in experiments}
                time_interleaved(sessions, recorder.run, batches, steps[0], began, most_traced)
            except RunnerError as error:
                raise _explain_crash(error, recorder, experiments, threads, core) from error
            untraced = [session for session in describe() if not session.traced]
            if again and disturbance(untraced) >= disturbance(recorder.sessions_of(steps[0])):
                return
            if plan.every_s and False in kinds and not again:
                compared = {e.name: sessions[e.name] for e in experiments if not e.control}
                paced = pace_in_turn(compared, plan, process)
            for name, path in traces.items():
                path.parent.mkdir(parents=True, exist_ok=True)
                sessions[name].etdump(path)
            if process == 0 and False in kinds:
                others = (a for a in recorder.run.agreements if a.threads != threads)
                programs = zip(plan.all_programs, recorder.programs, strict=True)
                expected = {planned.name: program for planned, program in programs}
                found = compare_experiments(sessions, recorder.run, threads, expected)
                recorder.update(agreements=(*others, *found))
        complete = True
    finally:
        if complete or not again:
            recorder.add_sessions(described := describe())
            untraced = [s for s in described if s.experiment in paced and not s.traced]
            if complete and untraced:
                at_rate = (replace(s, batches=tuple(paced[s.experiment])) for s in untraced)
                recorder.add("paced", *at_rate)


def _explain_crash(
    error: RunnerError,
    recorder: RunRecorder,
    experiments: Sequence[Experiment],
    threads: int,
    core: int | None,
) -> RunnerError:
    """The error of a runner; if it crashed, with an ISA level at which the program runs."""
    runs = dict[str, bool]()
    for each in experiments if error.kind == "crash" else ():
        runs[each.name] = False
        with (
            contextlib.suppress(WorkbenchError),
            start_runner(recorder, each, threads, core) as session,
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


def start_runner(
    recorder: RunRecorder, experiment: Experiment, threads: int, core: int | None, *more: str
) -> RunnerSession:
    """A live runner of one experiment; paths in ``more`` flags are paths on its target."""
    plan, runner, target = recorder.run.plan, recorder.runner, recorder.runner.target
    if experiment.runner in RUNTIMES:
        return start_runtime(recorder, experiment, threads, core, traced=bool(more))
    if experiment.runner != Experiment.runner:
        runner = version_runner(experiment.runner)
    program, phase = plan.program_of(experiment), plan.phase_of(experiment)
    flags = ["--model_path", target.push(Path(program.pte)), "--cpu_threads", str(threads)]
    flags += ["--isa", experiment.isa]
    if experiment.isa_off:
        flags += ["--isa_off", ",".join(experiment.isa_off)]
    if phase.method:
        flags += ["--method_name", phase.method]
    sets, paths_of = (*phase.before, phase.inputs), recorder.inputs[experiment.name]
    for number, (tensors, paths) in enumerate(zip(sets, paths_of, strict=True)):
        flags += ["--then"] * (number > 0)
        for path in paths:
            flags += ["--inputs", target.push(path)]
        if phase.name or any(tensor.dynamic for tensor in tensors):
            for tensor in tensors:
                flags += ["--input_shape", "x".join(map(str, tensor.shape))]
    if cores := experiment.cpu_affinity or (() if core is None else (core,)):
        flags += ["--cpus", ",".join(map(str, cores))]
    flags += experiment.extra_args
    if experiment.weights == "cached":
        if experiment.name not in recorder.weights:
            recorder.weights[experiment.name] = write_weights(recorder, experiment, runner, flags)
        flags += ["--weight_cache", recorder.weights[experiment.name]]
    return open_runner(runner, [*flags, *more], timeout_s=plan.timeout_s)


def write_weights(
    recorder: RunRecorder, experiment: Experiment, runner: Runner, flags: Sequence[str]
) -> str:
    """Write an experiment's packed weights to a file on the target, which later starts map.

    XNNPACK lets only one process at a time map a file, so each experiment has its own.
    """
    path = recorder.run_dir.resolve() / PACKED / experiment.name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)  # an interrupted run may continue on another CPU
    place = runner.target.place(path)
    with open_runner(
        runner, [*flags, "--weight_cache", place], timeout_s=recorder.run.plan.timeout_s
    ):
        return place


def start_runtime(
    recorder: RunRecorder, experiment: Experiment, threads: int, core: int | None, *, traced: bool
) -> RunnerSession:
    """A live process of another runtime."""
    plan, paths = recorder.run.plan, recorder.inputs[experiment.name][-1]
    program = plan.program_of(experiment)
    inputs = zip(program.inputs, paths, strict=True)
    settings = Settings(
        experiment.runner,
        str(Path(program.pte).resolve()),
        threads,
        tuple(replace(tensor, file=str(path.resolve())) for tensor, path in inputs),
        () if core is None else (core,),
        traced,
    )
    return RunnerSession(command_of(settings), timeout_s=plan.timeout_s)


def time_interleaved(
    sessions: Mapping[str, RunnerSession], run: RunRecord, batches: Batches, step: Step,
    began: float, most_traced: Mapping[str, int],
) -> None:  # fmt: skip
    """Warm up every session, then time them interleaved; appends to ``batches`` as it goes.

    In a round, every session has a batch in one order, then one in the other: an untraced and a
    traced one if both are asked for, and which comes first alternates. The rounds follow from what
    the restart cost since it ``began``, and from the time of a round. A session traces at most so
    many inferences, ``most_traced``, but one in each batch.
    """
    plan, (threads, restart, _) = run.plan, step
    warmed = {name: warm_up(session, plan) for name, session in sessions.items()}
    kinds = list(dict.fromkeys(traced for _, traced in batches))
    both = len(kinds) > 1
    halves = kinds if both else kinds * 2
    sizes = _size_batches(run, warmed, both, most_traced)
    fixed_s = time.monotonic() - began
    round_s = sum(sizes[name, kind] * warmed[name][1] for name in sessions for kind in halves)
    rounds = 1
    if plan.batch_ms:
        rounds = count_rounds(plan, threads, fixed_s, round_s, measure_scatter(run, threads))
    for kind, runs in (False, plan.runs), (True, plan.traced_runs):
        if kind in kinds and not (kind and both):
            each = halves.count(kind) * min(sizes[name, kind] for name in sessions)
            rounds = max(rounds, math.ceil(runs / ((plan.processes or LEAST_RESTARTS) * each)))
    longest = max(sizes[name, True] for name in sessions)
    traced_rounds = math.ceil(MAX_TRACED / (plan.processes or MOST_RESTARTS) / longest)
    fitting = min(most_traced[name] // sizes[name, True] for name in sessions)
    traced_rounds = max(1, min(traced_rounds, fitting))
    for number, order in enumerate(interleave(list(sessions), rounds, restart)):
        chosen = halves if (restart + number) % 2 else halves[::-1]
        if both and number >= traced_rounds:
            chosen = [False, False]
        for position, name in enumerate(order):
            traced = chosen[position // len(sessions)]
            timed = sessions[name].run(sizes[name, traced], traced=traced)
            batches[name, traced].append(replace(timed, round=number, batch=position))


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
            cpu_ns = [ns for batch in session.batches for ns in batch.cpu_ns]
            step = times.setdefault((session.threads, session.process), {})
            step[session.traced] = max(1.0, float(np.median(cpu_ns)))
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


def pace_in_turn(
    sessions: Mapping[str, RunnerSession], plan: Plan, restart: int
) -> dict[str, list[Batch]]:
    """Run sessions at the plan's rate, one after the other for some seconds: A B B A."""
    batches: dict[str, list[Batch]] = {name: [] for name in sessions}
    shortest_ns = [min(session.run(2, traced=False).wall_ns) for session in sessions.values()]
    taken_s = max(plan.every_s, *(ns / 1e9 for ns in shortest_ns))
    least, most_s = (1, min(plan.budget_s, PACED_S)) if plan.budget_s else (plan.runs, PACED_S)
    total = max(least, min(MAX_PACED, round(most_s / taken_s)))
    count, largest = (
        math.ceil(total / (plan.processes or LEAST_RESTARTS)),
        max(1, round(PACED_BATCH_S / taken_s)),
    )
    for order in interleave(list(sessions), math.ceil(count / (2 * largest)), restart):
        for name in order:
            if size := min(largest, count - sum(len(batch.wall_ns) for batch in batches[name])):
                batches[name].append(sessions[name].pace(size, plan.every_s))
    return batches


def time_starts(recorder: RunRecorder, threads: int) -> None:
    """Start every experiment, interleaved, up to its first output: for memory, then for time.

    The first process of each also reads the program's file, so that the timed ones find it in the
    page cache; later ones are started without it there. Of several phases, the first is measured.
    """
    plan, known = recorder.run.plan, {(s.threads, s.number) for s in recorder.run.starts}
    phases, began = ("", *(phase.name for phase in plan.phases[:1])), time.monotonic()
    chosen = [
        e for e in plan.experiments_at(threads) if e.phase in phases and e.runner not in RUNTIMES
    ]
    # Where starts are what is compared, none is saved.
    compared = any(experiment.weights == "cached" for experiment in chosen)
    cold = plan.starts if compared else min(plan.starts, COLD_STARTS)
    counts = {"memory": 1, "time": plan.starts, "cold": cold}
    modes = [mode for mode, count in counts.items() for _ in range(count)]
    for number, mode in enumerate(modes):
        spent_s = (time.monotonic() - began) / max(1, len(chosen))
        enough = spent_s > STARTS_S and modes[:number].count(mode) >= LEAST_STARTS
        if (enough and not compared) or (threads, number) in known:
            continue
        core = recorder.runner.target.core(threads, number)
        first, starts = number % len(chosen), []
        for experiment in [*chosen[first:], *chosen[:first]]:
            with start_runner(recorder, experiment, threads, core, "--stages", mode) as session:
                ready = session.ready
            measured = (ready.stages, ready.memory, ready.cached, ready.weights)
            starts.append(Start(experiment.name, threads, number, mode, *measured))
        recorder.add("starts", *starts)
        recorder.save()


def sample_experiments(recorder: RunRecorder, threads: int) -> None:
    """Run every experiment but controls once more, sampled; a failure is recorded.

    Those of one thread run at the same time, each on a core of its own: their times do not count.
    """
    plan, target = recorder.run.plan, recorder.runner.target
    sampled = {(s.experiment, s.threads) for s in recorder.run.samplings}
    left = [
        e for e in plan.experiments_at(threads)
        if not e.control and e.runner not in RUNTIMES and (e.name, threads) not in sampled
    ]  # fmt: skip

    def sample(experiment: Experiment, number: int) -> Sampling:
        core = target.core(threads, number)
        try:
            return sample_experiment(recorder, experiment, threads, core)
        except RunnerError as error:
            return Sampling(experiment.name, threads, problem=str(error))

    # A thread has no context, in which runners find the machine's lock, which they hold too.
    jobs = [partial(copy_context().run, sample, each, number) for number, each in enumerate(left)]
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
    return Sampling(which.name, threads, session.ready.masked, runs, *names)
