"""Measure a step of a plan: fresh processes, interleaved, and repeated if disturbed."""

import contextlib
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from workbench.errors import StoreError
from workbench.records.runs import (
    Agreement,
    Batch,
    Experiment,
    Plan,
    PlannedProgram,
    Reading,
    RunRecord,
    Tensor,
)
from workbench.records.runs import Session as SessionRecord
from workbench.run.recorder import RunRecorder, timestamp
from workbench.run.runner import Runner, open_runner
from workbench.run.session import Session
from workbench.run.targets.host import HOST, Host, read_environment
from workbench.run.tensor_files import Inputs, compare_outputs, read_output
from workbench.store import sha256_of, trace_path

#: Fewer rounds per process leave the bootstrap nothing to resample.
MIN_ROUNDS = 6
#: With a budget, rounds continue until their time is up; two give every order its mirror image.
MIN_TIMED_ROUNDS = 2
#: A run keeps every time: of an operator that takes 100 ns, a batch of 20 ms would be 200 000.
MAX_BATCH, MAX_INFERENCES = 1_000, 50_000
#: The fraction of the wall time off its core from which a step is measured again. One other busy
#: program takes half of it; interleaving and CPU time cope with that (see
#: ``tests/benchmarks/null.py`` and ``ab_spread.py``).
DISTURBED = 0.5
#: What outputs of one quantised program keep at any ISA level. If every value of 8 bits is rounded
#: to the next step, about 36 dB are left (values of a quarter of the range, root mean square).
ROUNDED_SQNR_DB = 30.0


@dataclass(frozen=True)
class Step:
    """One fresh process of every experiment: its thread count, its restart, traced or not."""

    threads: int
    process: int
    traced: bool

    def core_of(self, target: Host) -> int | None:
        """The core that all single-threaded experiments share: no two cores are equally fast."""
        cores = target.cores() if self.threads == 1 else []
        return cores[self.process % len(cores)] if cores else None


def measure_step(recorder: RunRecorder, runner: Runner, inputs: Inputs, step: Step) -> None:
    """Measure a step; records readings of the machine before and after, and the time it took.

    A disturbed untraced step is measured again after a pause if the plan has retries left; the less
    disturbed attempt is kept, marked as the second.
    """
    plan, started = recorder.run.plan, time.monotonic()
    recorder.add_reading(_read(runner.target, step, "before"))
    measure_once(recorder, runner, inputs, step)
    first = recorder.sessions_of(step.threads, step.process, step.traced)
    repeated = {(s.threads, s.process, s.traced) for s in recorder.run.sessions if s.attempts > 1}
    # A budget is better spent on another restart.
    left = 0 if plan.budget_s else plan.retries - len(repeated)
    if not step.traced and left > 0 and disturbance(first) > DISTURBED:
        try:
            time.sleep(plan.cool_down_s)
            measure_once(recorder, runner, inputs, step)
        except BaseException:
            recorder.add_sessions(first)
            raise
        second = recorder.sessions_of(step.threads, step.process, step.traced)
        better = min((first, second), key=disturbance)
        recorder.add_sessions(replace(session, attempts=2) for session in better)
    recorder.add_reading(_read(runner.target, step, "after"))
    recorder.add_time(time.monotonic() - started)


def measure_once(recorder: RunRecorder, runner: Runner, inputs: Inputs, step: Step) -> None:
    """Measure every experiment of the plan once; if interrupted, record it as incomplete."""
    plan, run_dir = recorder.run.plan, recorder.run_dir
    check_unchanged(plan)
    target = runner.target
    experiments = [e for e in plan.experiments if step.threads in (e.threads or plan.threads)]
    core, complete = step.core_of(target), False
    traces = {
        e.name: trace_path(run_dir, plan.program_of(e).stem, e.name, step.threads, step.process)
        for e in experiments
        if step.traced
    }
    batches: dict[str, list[Batch]] = {e.name: [] for e in experiments}
    sessions: dict[str, Session] = {}
    try:
        with contextlib.ExitStack() as stack:
            for experiment in experiments:
                flags = runner_flags(plan, experiment, inputs, step.threads, core, target)
                if step.traced:
                    flags += ["--etdump_path", target.place(traces[experiment.name])]
                session = open_runner(runner, flags, timeout_s=plan.timeout_s)
                sessions[experiment.name] = stack.enter_context(session)
            time_interleaved(sessions, plan, step.traced, batches)
            for name, path in traces.items():
                path.parent.mkdir(parents=True, exist_ok=True)
                sessions[name].etdump(path)
            if step.process == 0 and not step.traced:
                recorder.add_agreements(compare_experiments(sessions, recorder.run, step.threads))
        complete = True
    finally:
        recorder.add_sessions(
            SessionRecord(
                experiment=name,
                threads=step.threads,
                process=step.process,
                traced=step.traced,
                masked=session.ready.masked,
                load_ms=session.ready.load_ms,
                startup_ms=session.ready.startup_ms,
                batches=tuple(batches[name]),
                clock=session.ready.clock,
                core=core,
                etdump=str(traces[name].relative_to(run_dir)) if complete and traces else "",
                complete=complete,
            )
            for name, session in sessions.items()
        )


def check_unchanged(plan: Plan) -> None:
    """StoreError if a program's file is not the one that was planned."""
    for program in plan.all_programs:
        if sha256_of(Path(program.pte)) != program.sha256:
            what, hint = "changed since the run was planned", "plan it again"
            raise StoreError(what, where=program.pte, hint=hint)


def runner_flags(
    plan: Plan,
    experiment: Experiment,
    inputs: Inputs,
    threads: int,
    core: int | None,
    target: Host = HOST,
) -> list[str]:
    """The runner's flags for one experiment, with the target's paths."""
    program = plan.program_of(experiment)
    flags = ["--model_path", target.push(Path(program.pte)), "--cpu_threads", str(threads)]
    flags += ["--isa", experiment.isa]
    if experiment.isa_off:
        flags += ["--isa_off", ",".join(experiment.isa_off)]
    phase = plan.phase_of(experiment)
    if phase.method:
        flags += ["--method_name", phase.method]
    sets = (*phase.before, phase.inputs)
    for number, (tensors, paths) in enumerate(zip(sets, inputs[experiment.name], strict=True)):
        flags += ["--then"] * (number > 0)
        for path in paths:
            flags += ["--inputs", target.push(path)]
        if phase.name or any(tensor.dynamic for tensor in tensors):
            for tensor in tensors:
                flags += ["--input_shape", "x".join(map(str, tensor.shape))]
    cores = experiment.cpu_affinity or (() if core is None else (core,))
    if cores:
        flags += ["--cpus", ",".join(map(str, cores))]
    return [*flags, *experiment.extra_args]


def time_interleaved(
    sessions: dict[str, Session], plan: Plan, traced: bool, batches: dict[str, list[Batch]]
) -> None:
    """Warm up every session, then time them interleaved; appends to ``batches`` as it goes."""
    sizes = {name: warm_up(session, plan) for name, session in sessions.items()}
    runs, least = plan.runs, MIN_ROUNDS if plan.batch_ms else 1
    if traced:
        runs, least = plan.traced_runs, 1
        largest = math.ceil(runs / (2 * plan.processes))  # two batches a round
        sizes = {name: min(size, largest) for name, size in sizes.items()}
    rounds = rounds_needed(runs, plan.processes, min(sizes.values()), least)
    # What a budget allows for one step, traced or untraced.
    share_s = plan.budget_s / (2 * plan.processes * len(plan.threads))
    start = time.monotonic()
    if share_s and not traced:
        rounds = max(rounds, MAX_INFERENCES // (2 * max(sizes.values())))
    for number, order in enumerate(interleave(list(sessions), rounds)):
        if share_s and number >= MIN_TIMED_ROUNDS and time.monotonic() - start > share_s:
            break
        for position, name in enumerate(order):
            timed = sessions[name].run(sizes[name])
            times = (timed.wall_ns, timed.cpu_ns, timed.preempted, timed.energy_uj)
            batches[name].append(Batch(number, position, *times))


def interleave(names: Sequence[str], rounds: int) -> Iterator[list[str]]:
    """The order of the batches in each round, such as A B B A, B A A B.

    A palindrome gives every experiment the same mean time of measurement within the round, which
    cancels linear drift; the rotation gives every experiment every position.
    """
    for number in range(rounds):
        first = number % len(names)
        order = [*names[first:], *names[:first]]
        yield order + order[::-1]


def batch_size(latency_ns: float, batch_ms: float) -> int:
    """How many inferences fill a batch of ``batch_ms``; from 1 to `MAX_BATCH`."""
    return min(MAX_BATCH, max(1, round(batch_ms * 1e6 / max(latency_ns, 1.0))))


def rounds_needed(runs: int, processes: int, smallest_batch: int, least: int = 1) -> int:
    """Rounds per process until every experiment has ``runs`` inferences, two batches a round."""
    return max(least, math.ceil(runs / (2 * processes * smallest_batch)))


def warm_up(session: Session, plan: Plan) -> int:
    """Warm up a session, untraced, for ``plan.warmup`` inferences and a batch; its batch size."""
    if not (plan.warmup or plan.batch_ms):
        return 1
    session.run(max(1, plan.warmup))
    if not plan.batch_ms:
        session.reset()
        return 1
    # The shortest iteration: equal experiments must get equal batches on a busy machine too.
    size = batch_size(min(session.run(5).wall_ns), plan.batch_ms)
    session.run(size)
    session.reset()
    return size


def compare_experiments(
    sessions: dict[str, Session], run: RunRecord, threads: int
) -> list[Agreement]:
    """Compare the outputs of every pair, and those of the first experiment with all others."""
    plan = run.plan
    with tempfile.TemporaryDirectory() as folder:
        outputs = {
            name: session.output(Path(folder) / str(number))
            for number, (name, session) in enumerate(sessions.items())
        }
        values = {
            name: [read_output(Path(tensor.file), tensor.dtype) for tensor in tensors]
            for name, tensors in outputs.items()
        }
    experiments = {e.name: e for e in plan.experiments}
    first: dict[str, str] = {}
    pairs = [(p.baseline, p.candidate) for p in plan.pairs]
    pairs += [(first.setdefault(experiments[name].phase, name), name) for name in sessions]
    agreements = []
    for pair in dict.fromkeys(pairs):
        if not sessions.keys() >= set(pair) or pair[0] == pair[1]:
            continue
        one, other = (plan.program_of(experiments[name]) for name in pair)
        taken = (plan.phase_of(experiments[name]).inputs for name in pair)
        note = explain_different(*taken, *(outputs[name] for name in pair))
        if not note and one.input_source != other.input_source:
            note = f"their inputs differ: {one.input_source} and {other.input_source}"
        if note:
            agreements.append(Agreement(*pair, threads, 0, "", None, 0.0, 0.0, False, note=note))
            continue
        least = least_sqnr(run, one, other)
        for number, (tensor, a, b) in enumerate(
            zip(outputs[pair[0]], values[pair[0]], values[pair[1]], strict=True)
        ):
            found = compare_outputs(
                a, b, names=pair, threads=threads, output=number, dtype=tensor.dtype,
                least_sqnr_db=least,
            )  # fmt: skip
            if one != other and not found.agree and a.dtype.kind not in "fV":
                found = replace(found, note="integer outputs of two programs differ")
            agreements.append(found)
    return agreements


def explain_different(
    one: Sequence[Tensor],
    other: Sequence[Tensor],
    outputs: Sequence[Tensor],
    others: Sequence[Tensor],
) -> str:
    """Why the outputs of two programs cannot be compared, by inputs and outputs; or empty."""
    described = [
        ", ".join(f"{t.dtype} {'x'.join(map(str, t.shape))}" for t in tensors)
        for tensors in (one, other, outputs, others)
    ]
    if described[0] != described[1]:
        return f"their inputs differ: {described[0]} and {described[1]}"
    if described[2] != described[3]:
        return f"their shapes differ: {described[2]} and {described[3]}"
    return ""


def least_sqnr(run: RunRecord, one: PlannedProgram, other: PlannedProgram) -> float | None:
    """The signal to noise ratio that outputs must have, in dB; None if their values decide.

    Two programs may each differ from the model by what is tolerated in their dtypes. A quantised
    program may round to the next step on another ISA level.
    """
    exports = [run.export_of(program) for program in (one, other)]
    if one == other:
        options = exports[0].options if exports[0] else {}
        is_quantized = options.get("quantized") or options.get("module_dtypes")
        return ROUNDED_SQNR_DB if is_quantized else None
    known = [f.least_sqnr_db for export in exports if export for f in export.fidelity]
    return min(known) - 10 * math.log10(2) if known else None


def _read(target: Host, step: Step, moment: str) -> Reading:
    found = read_environment(target)
    return Reading(timestamp(), moment, step.threads, step.process, step.traced, **found)


def disturbance(sessions: Sequence[SessionRecord]) -> float:
    """The fraction of the wall time in which other processes had the core."""
    batches = [batch for session in sessions for batch in session.batches]
    if not batches:
        return 0.0
    if sessions[0].threads > 1:  # their CPU times add up
        preempted = [count > 0 for batch in batches for count in batch.preempted]
        return sum(preempted) / len(preempted)
    wall, cpu = (sum(sum(getattr(b, clock)) for b in batches) for clock in ("wall_ns", "cpu_ns"))
    return max(0.0, 1 - cpu / max(wall, 1))
