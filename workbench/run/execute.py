"""Carry out a plan: live runner processes that take turns, and everything written down."""

from __future__ import annotations

import contextlib
import itertools
import platform
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from workbench.errors import StoreError, WorkbenchError
from workbench.records import Agreement, Batch, Experiment, Plan, Run, count_threads
from workbench.records import Session as SessionRecord
from workbench.run.host import describe_host, fast_cores, platform_name
from workbench.run.inputs import locate_inputs
from workbench.run.interleave import MIN_ROUNDS, batch_size, batch_within, interleave, rounds_needed
from workbench.run.journal import Journal
from workbench.run.outputs import compare_outputs, read_output
from workbench.run.runner import Runner, open_runner
from workbench.run.session import Session
from workbench.store import find_runs, load_export, load_run, new_run_dir, sha256_of, trace_path

#: Told what is being measured, and which part of it all is done (0 to 1).
Progress = Callable[[str, float], None]


def run_plan(
    plan: Plan,
    runner: Runner,
    root: Path,
    *,
    run_dir: Path | None = None,
    progress: Progress = lambda text, part: None,
) -> Path:
    """Measure what the plan says; returns the run's folder, with ``manifest.json`` and ETDumps.

    Each thread count is measured in several fresh processes, and in each of these the experiments
    take turns in batches: first without tracing, for latency, then with ETDump, for the shares of
    the operators. An interrupted run keeps what it has, and the same plan goes on where it stopped.

    Raises
    ------
    RunnerError
        A runner failed; the manifest then says ``failed`` and keeps what was measured before.
    """
    run_dir = run_dir or find_unfinished(plan, runner, root) or new_run_dir(root, platform_name())
    journal = Journal.open(run_dir, begin_run(plan, runner))
    inputs = locate_inputs(plan, run_dir)
    steps = list(itertools.product(plan.threads, range(plan.processes), (False, True)))
    try:
        for number, (threads, process, traced) in enumerate(steps):
            text = f"{count_threads(threads)}, process {process + 1}/{plan.processes}"
            text += ", traced" if traced else ""
            progress(text, number / len(steps))
            if not journal.has(threads, process, traced):
                measure_process(journal, runner, inputs, threads, process, traced)
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
        platform=platform_name(),
        emulated=False,
        state="incomplete",
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        finished="",
        host=describe_host(),
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


def measure_process(
    journal: Journal,
    runner: Runner,
    inputs: Sequence[Path],
    threads: int,
    process: int,
    traced: bool,
) -> None:
    """Measure all experiments in one fresh process each, taking turns, and note it in the journal.

    What was measured before an interruption is noted too, as incomplete.
    """
    plan, run_dir = journal.run.plan, journal.run_dir
    if sha256_of(Path(plan.pte)) != plan.sha256:
        raise StoreError("changed since the run was planned", where=plan.pte, hint="run it anew")
    experiments, core = plan.experiments, shared_core(threads, process)
    sessions: dict[str, Session] = {}
    taken: dict[str, list[Batch]] = {e.name: [] for e in experiments}
    traces = {
        e.name: trace_path(run_dir, plan.stem, e.name, threads, process) if traced else None
        for e in experiments
    }
    complete = False
    try:
        with contextlib.ExitStack() as stack:
            for experiment in experiments:
                flags = runner_flags(
                    plan, experiment, inputs, threads, core, traces[experiment.name]
                )
                session = open_runner(runner, flags, timeout_s=plan.timeout_s)
                sessions[experiment.name] = stack.enter_context(session)
            sizes = warm_up(sessions, plan)
            if traced:
                sizes = {
                    n: batch_within(s, plan.traced_runs, plan.processes) for n, s in sizes.items()
                }
                rounds = rounds_needed(plan.traced_runs, plan.processes, min(sizes.values()))
            else:
                rounds = rounds_needed(plan.runs, plan.processes, min(sizes.values()), MIN_ROUNDS)
            for number, order in enumerate(interleave(list(sessions), rounds)):
                for place, name in enumerate(order):
                    laps = sessions[name].run(sizes[name])
                    taken[name].append(
                        Batch(number, place, laps.wall_ns, laps.cpu_ns, laps.preempted)
                    )
            for name, path in traces.items():
                if path:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    sessions[name].etdump(path)
            if process == 0 and not traced:
                journal.note_agreements(compare_experiments(sessions, threads))
        complete = True
    finally:
        journal.note_sessions(
            SessionRecord(
                experiment=name,
                threads=threads,
                process=process,
                traced=traced,
                masked=tuple(session.ready.masked),
                load_ms=session.ready.load_ms,
                startup_ms=session.ready.startup_ms,
                batches=tuple(taken[name]),
                clock=session.ready.clock,
                core=core,
                etdump=str(traces[name].relative_to(run_dir)) if complete and traced else "",
                complete=complete,
            )
            for name, session in sessions.items()
        )


def shared_core(threads: int, process: int) -> int | None:
    """The core that all experiments of a process share, if they run one thread each.

    Two cores are never equally fast (another guest, another clock): an experiment that the system
    put on the better one would win by it. The next process takes the next core.
    """
    cores = fast_cores() if threads == 1 else []
    return cores[process % len(cores)] if cores else None


def runner_flags(
    plan: Plan,
    experiment: Experiment,
    inputs: Sequence[Path],
    threads: int,
    core: int | None,
    trace: Path | None,
) -> list[str]:
    """The runner's command line for one experiment."""
    flags = ["--model_path", plan.pte, "--cpu_threads", str(threads), "--isa", experiment.isa]
    if experiment.isa_off:
        flags += ["--isa_off", ",".join(experiment.isa_off)]
    for path in inputs:
        flags += ["--inputs", str(path)]
    if core is not None:
        flags += ["--cpus", str(core)]
    if trace:
        flags += ["--etdump_path", str(trace)]
    return flags


def warm_up(sessions: dict[str, Session], plan: Plan) -> dict[str, int]:
    """Warm every session up; returns the batch size of each.

    Warming up lasts ``plan.warmup`` inferences and at least one batch, and is not traced.
    """
    sizes = {}
    for name, session in sessions.items():
        session.run(max(1, plan.warmup))
        # The shortest lap: two equal experiments shall get equal batches on a busy machine too.
        sizes[name] = batch_size(min(session.run(5).wall_ns), plan.batch_ms)
        session.run(sizes[name])
        session.reset()
    return sizes


def compare_experiments(sessions: dict[str, Session], threads: int) -> list[Agreement]:
    """Compare the outputs of every experiment with those of the first."""
    with tempfile.TemporaryDirectory() as folder:
        outputs = {
            name: session.output(Path(folder) / str(number))
            for number, (name, session) in enumerate(sessions.items())
        }
        values = {
            name: [read_output(Path(tensor.file), tensor.dtype) for tensor in tensors]
            for name, tensors in outputs.items()
        }
    baseline, *others = sessions
    return [
        compare_outputs(
            a, b, names=(baseline, other), threads=threads, output=number, dtype=tensor.dtype
        )
        for other in others
        for number, (a, b, tensor) in enumerate(
            zip(values[baseline], values[other], outputs[baseline], strict=True)
        )
    ]
