"""Measure with somebody's own ``executor_runner``: no live session, processes that take turns.

Such a runner has no server mode and reports no times. Each of its processes loads the program, runs
it a number of times with ETDump on, and ends; the times are those in its trace.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from workbench.errors import (
    RunnerCrash,
    RunnerError,
    RunnerTimeout,
    SetupError,
    StoreError,
    TargetError,
)
from workbench.records.runs import Experiment, Plan, Session, count_threads
from workbench.run.execute import begin_run, find_unfinished
from workbench.run.locks import device_behind, take_device
from workbench.run.recorder import Journal
from workbench.run.runner import Runner
from workbench.run.schedule import interleave
from workbench.run.targets.base import HOST, Host
from workbench.store import keep_layers, new_run_dir, sha256_of, trace_path

#: What is kept of a runner's log, in bytes; a build that logs kernels prints a few hundred lines.
LONGEST_LOG = 16 * 2**20
#: What a lap is: tracing is on, because nothing else tells the time.
CLOCK = "Method::execute in the ETDump (traced)"

Progress = Callable[[str, float], None]


def run_processes(
    plan: Plan,
    root: Path,
    name: str = "",
    *,
    target: Host = HOST,
    progress: Progress = lambda text, part: None,
) -> Path:
    """Measure what a plan of foreign runners says; returns the run's folder.

    It bears ``name``, or that of the target's platform; an interrupted run goes on.

    Raises
    ------
    SetupError, RunnerError, StoreError
        As from `measure_processes`; the manifest then says ``failed`` and keeps what there is.
    TargetError
        The device was lost; when it is back the same plan goes on.
    """
    runner = Runner("executor_runner", (), describe_runners(plan), target)
    with take_device(device_behind(target.name), lambda text: progress(text, 0.0)):
        run_dir = find_unfinished(plan, runner, root) or new_run_dir(root, name or target.platform)
        fresh = begin_run(plan, runner)
        # Which ExecuTorch a foreign runner was built from, nobody tells.
        versions = {key: v for key, v in fresh.versions.items() if key != "executorch"}
        journal = Journal.open(run_dir, replace(fresh, versions=versions))
        keep_layers(Path(plan.pte), run_dir)
        with journal.concluded(), target.prepared(run_dir):
            measure_processes(journal, target, progress)
    progress("done", 1.0)
    return run_dir


def describe_runners(plan: Plan) -> dict[str, str]:
    """The runners of a plan, for the manifest: which binaries, and one hash of them all."""
    hashes = {path: sha256_of(Path(path)) for path in sorted({e.runner for e in plan.experiments})}
    together = hashlib.sha256("".join(hashes.values()).encode()).hexdigest()
    named = ", ".join(f"{path} {sha256[:12]}" for path, sha256 in hashes.items())
    return {"kind": "executor_runner", "sha256": together, "binaries": named}


def measure_processes(journal: Journal, target: Host, progress: Progress) -> None:
    """Run every experiment of the plan in processes that take turns; note each in the journal.

    A restart is one process of every experiment, their order rotated and turned from restart to
    restart. Experiments of mode ``xnntrace`` run once, for their log.

    Raises
    ------
    StoreError
        The program is not the planned one any more, or a runner wrote no trace.
    RunnerError
        A runner failed, died or took too long; what it printed last is in the message.
    """
    plan = journal.run.plan
    steps = [
        (threads, process, order)
        for process, order in enumerate(turns(plan.experiments, plan.processes))
        for threads in plan.threads
    ]
    for number, (threads, process, order) in enumerate(steps):
        text = f"{count_threads(threads)}, process {process + 1}/{plan.processes}"
        progress(text, number / len(steps))
        if journal.has(threads, process, True):
            continue
        if sha256_of(Path(plan.pte)) != plan.sha256:
            raise StoreError("changed since the run was planned", where=plan.pte)
        journal.note_sessions(
            run_process(journal.run_dir, plan, experiment, threads, process, target)
            for experiment in order
            if threads in experiment.threads and (experiment.mode == "timing" or process == 0)
        )


def turns(experiments: Sequence[Experiment], processes: int) -> list[list[Experiment]]:
    """The order of the experiments in every restart: there, then back again, from another start."""
    by_name = {e.name: e for e in experiments}
    orders = []
    for there_and_back in interleave(list(by_name), math.ceil(processes / 2)):
        half = len(there_and_back) // 2
        orders += [there_and_back[:half], there_and_back[half:]]
    return [[by_name[name] for name in order] for order in orders[:processes]]


def run_process(
    run_dir: Path,
    plan: Plan,
    experiment: Experiment,
    threads: int,
    process: int,
    target: Host = HOST,
) -> Session:
    """One process of an experiment: its ETDump and its log in the run's folder."""
    trace = trace_path(run_dir, plan.stem, experiment.name, threads, process)
    log = trace.with_suffix(".log")
    trace.parent.mkdir(parents=True, exist_ok=True)
    timed = experiment.mode == "timing"
    count = experiment.warmup + math.ceil(experiment.runs / plan.processes) if timed else 1
    there = target.place(trace) if timed else ""
    command = process_command(plan, experiment, threads, count, there, target)
    words = ""
    try:
        words = run_to_end(target.command(command), log, plan.timeout_s * max(1, count / 10))
        if timed:
            target.pull(there, trace)
    except (RunnerError, TargetError) as error:
        if not target.is_alive():
            raise TargetError("lost in the middle of a run", where=target.name) from None
        if isinstance(error, RunnerError):
            raise
    if timed and not trace.is_file():
        raise RunnerError(
            f"wrote no ETDump{words}",
            where=experiment.runner,
            hint="build it with -DEXECUTORCH_ENABLE_EVENT_TRACER=ON",
            kind="protocol",
        )
    return Session(
        experiment=experiment.name,
        threads=threads,
        process=process,
        traced=True,
        masked=(),
        load_ms=0.0,
        startup_ms=0.0,
        batches=(),
        clock=CLOCK,
        etdump=str(trace.relative_to(run_dir)) if timed else "",
        skipped=experiment.warmup if timed else 0,
        log=str(log.relative_to(run_dir)),
    )


def process_command(
    plan: Plan,
    experiment: Experiment,
    threads: int,
    count: int,
    trace: str,
    target: Host = HOST,
) -> list[str]:
    """The command line of one process, with the flags that every ``executor_runner`` has.

    ``trace`` is where it shall write its ETDump, empty for none; all paths are the target's.
    """
    command = [target.push(Path(experiment.runner), executable=True)]
    command += ["--model_path", target.push(Path(plan.pte)), "--num_executions", str(count)]
    command += ["--cpu_threads", str(threads)]
    if trace:
        command += ["--etdump_path", trace]
    if plan.inputs:
        files = (target.push(Path(tensor.file)) for tensor in plan.inputs)
        command += ["--inputs", ",".join(files)]
    if experiment.cpu_affinity:
        mask = sum(1 << core for core in set(experiment.cpu_affinity))
        command = ["taskset", f"{mask:x}", *command]
    return target.command([*command, *experiment.extra_args])


def run_to_end(command: Sequence[str], log: Path, timeout_s: float) -> str:
    """Run a command without a shell, all that it prints going to a file; returns its last words.

    Raises
    ------
    SetupError
        It cannot be started.
    RunnerError, RunnerCrash, RunnerTimeout
        It ended with an exit code, by a signal, or not in time.
    """
    name = Path(command[0]).name
    with open(log, "wb") as file:
        try:
            started = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise SetupError(f"cannot start: {error.strerror}", where=command[0]) from None
        try:
            code = started.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise RunnerTimeout(
                f"did not end within {timeout_s:g} s", where=name, kind="timeout"
            ) from None
        finally:
            if started.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(started.pid, signal.SIGKILL)
                started.wait()
    words = last_words(log)
    if code < 0:
        raise RunnerCrash(f"died of signal {-code}{words}", where=name, kind="crash")
    if code > 0:
        hint = f"try it by hand: {shlex.join(command)}"
        raise RunnerError(f"ended with code {code}{words}", where=name, hint=hint, kind="foreign")
    return words


def last_words(log: Path, count: int = 3) -> str:
    """The last lines of a log, in brackets; the file is cut to ``LONGEST_LOG``."""
    size = log.stat().st_size
    with open(log, "rb+") as file:
        file.seek(max(0, size - 4096))
        lines = file.read(4096).decode(errors="replace").splitlines()
        if size > LONGEST_LOG:
            file.truncate(LONGEST_LOG)
    said = [ascii(line.strip())[1:-1] for line in lines if line.strip()]
    return f" ({'; '.join(said[-count:])})" if said else ""
