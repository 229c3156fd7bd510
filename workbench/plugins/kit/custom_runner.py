"""Measure with a custom ``executor_runner``: interleaved processes instead of live sessions.

Such a runner reports no times: they come from the ETDump of each process.
"""

import contextlib
import hashlib
import logging
import math
import os
import shlex
import shutil
import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from workbench import Program, WorkbenchError
from workbench.api import Progress, RunnerError, TargetError, plural, silent
from workbench.jobs import (
    HOST,
    TRACED_CLOCK,
    Experiment,
    Host,
    Plan,
    Runner,
    Session,
    Step,
    interleave,
    open_record,
    runner_options,
    sha256_of,
    trace_path,
)

_log = logging.getLogger(__name__)

#: Of a longer log, only the beginning is kept, in bytes; a build that logs kernels prints a few
#: hundred lines.
LONGEST_LOG = 16 * 2**20
#: How long to wait for the output of a process that has ended.
COPY_TIMEOUT_S = 5.0


def run_processes(
    plan: Plan,
    programs: Sequence[Program],
    root: Path,
    name: str = "",
    *,
    target: Host = HOST,
    progress: Progress = silent,
) -> Path:
    """Measure a plan of custom runners in interleaved processes, those of ``xnntrace`` only once.

    Returns the run's folder, which is called ``name`` unless an interrupted run continues.
    """
    hashes = {path: sha256_of(Path(path)) for path in sorted({e.runner for e in plan.experiments})}
    description = {
        "kind": "executor_runner",
        "sha256": hashlib.sha256("".join(hashes.values()).encode()).hexdigest(),
        "binaries": ", ".join(f"{path} {sha256[:12]}" for path, sha256 in hashes.items()),
    }
    runner = Runner((), description, target)
    steps = [
        (threads, process, order)
        for process, order in enumerate(order_experiments(plan.experiments, plan.processes))
        for threads in plan.threads
    ]
    with open_record(plan, programs, runner, root, progress, name) as recorder:
        for number, (threads, process, order) in enumerate(steps):
            text = f"{plural(threads, 'thread')}, process {process + 1}/{plan.processes}"
            progress(text, number / len(steps))
            if recorder.has(Step(threads, process, (True,))):
                continue
            for program in programs:
                program.check_unchanged()
            recorder.add_sessions(
                run_process(recorder.run_dir, plan, experiment, threads, process, target)
                for experiment in order
                if threads in experiment.threads and (experiment.mode == "timing" or process == 0)
            )
            recorder.save()
    progress("analysing", 1.0)
    return recorder.run_dir


def order_experiments(experiments: Sequence[Experiment], processes: int) -> list[list[Experiment]]:
    """The order of the experiments in every restart: shuffled, backwards, rotated, ..."""
    count, by_name = len(experiments), {e.name: e for e in experiments}
    palindromes = interleave(list(by_name), math.ceil(processes / 2))
    orders = [half for order in palindromes for half in (order[:count], order[count:])]
    return [[by_name[name] for name in order] for order in orders[:processes]]


def run_process(
    run_dir: Path, plan: Plan, experiment: Experiment, threads: int, process: int, target: Host
) -> Session:
    """One process of an experiment: its ETDump and its log in the run's folder."""
    stem = plan.program_of(experiment).stem
    trace = trace_path(run_dir, stem, experiment.name, threads, process)
    log = trace.with_suffix(".log")
    trace.parent.mkdir(parents=True, exist_ok=True)
    timed = experiment.mode == "timing"
    count = experiment.warmup + math.ceil(experiment.runs / plan.processes) if timed else 1
    there = target.place(trace) if timed else ""
    command = process_command(plan, experiment, threads, count, there, target)
    words, lost = "", None
    try:
        timeout_s, name = plan.timeout_s * max(1, count / 10), Path(experiment.runner).name
        words = run_to_end(target.command(command), log, timeout_s, name)
        if timed:
            target.pull(there, trace)
    except (RunnerError, TargetError) as error:
        if not target.is_alive():
            raise TargetError("connection lost during a run", where=target.name) from None
        if isinstance(error, RunnerError):
            raise
        lost = error
    if timed and not (trace.is_file() and trace.stat().st_size):
        reason = f"{words}; {lost.what}" if lost else words
        hint = "if it ran to its end, build it with -DEXECUTORCH_ENABLE_EVENT_TRACER=ON"
        what = f"wrote no ETDump{reason}"
        raise RunnerError(what, where=experiment.runner, hint=hint, kind="protocol") from lost
    return Session(
        experiment=experiment.name,
        threads=threads,
        process=process,
        traced=True,
        masked=(),
        load_ms=0.0,
        startup_ms=0.0,
        batches=(),
        clock=TRACED_CLOCK,
        etdump=str(trace.relative_to(run_dir)) if timed else "",
        skipped=experiment.warmup if timed else 0,
        log=str(log.relative_to(run_dir)),
    )


def process_command(
    plan: Plan, experiment: Experiment, threads: int, count: int, trace: str, target: Host = HOST
) -> list[str]:
    """The command line of one process; ``trace`` is the target's path for its ETDump, or empty."""
    command = [target.push(Path(experiment.runner), executable=True)]
    program = plan.program_of(experiment)
    command += ["--model_path", target.push(Path(program.pte)), "--num_executions", str(count)]
    command += ["--cpu_threads", str(threads)]
    # As the kit does: a build that can log kernels is silent while it is timed.
    level = 5 if experiment.mode == "xnntrace" else 0
    if trace:
        command += ["--etdump_path", trace]
    if program.inputs:
        files = (target.push(Path(tensor.file)) for tensor in program.inputs)
        command += ["--inputs", ",".join(files)]
    if experiment.cpu_affinity:
        mask = sum(1 << core for core in set(experiment.cpu_affinity))
        command = ["taskset", f"{mask:x}", *command]
    return ["env", f"XNN_LOG_LEVEL={level}", *command, *experiment.extra_args]


def run_to_end(command: Sequence[str], log: Path, timeout_s: float, name: str) -> str:
    """Run a command with output to ``log``; returns its last lines. RunnerError if it fails."""
    _log.info("%s", shlex.join(command))
    # The workbench's own runner binds itself to its parent; setpriv does it for others (Linux).
    bound = [setpriv, "--pdeathsig", "KILL"] if (setpriv := shutil.which("setpriv")) else []
    if not shutil.which(command[0]):
        raise WorkbenchError("cannot start: no such executable", where=command[0])
    try:
        started = subprocess.Popen(
            [*bound, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            **runner_options(),
        )
    except OSError as error:
        raise WorkbenchError(f"cannot start: {error.strerror}", where=command[0]) from None
    end = bytearray()
    copying = threading.Thread(target=copy_output, args=(started.stdout, log, end), daemon=True)
    copying.start()
    try:
        code = started.wait(timeout_s)
    except subprocess.TimeoutExpired:
        what = f"did not end within {timeout_s:g} s"
        raise RunnerError(what, where=name, kind="timeout") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)  # also what it left behind
        started.wait()
        copying.join(COPY_TIMEOUT_S)
    lines = bytes(end).decode(errors="replace").splitlines()
    said = [ascii(line.strip())[1:-1] for line in lines if line.strip()]
    words = f" ({'; '.join(said[-3:])})" if said else ""
    if code < 0:
        raise RunnerError(f"killed by signal {-code}{words}", where=name, kind="crash")
    if code > 0:
        hint = f"run it by hand: {shlex.join(command)}"
        raise RunnerError(f"ended with code {code}{words}", where=name, hint=hint, kind="foreign")
    return words


def copy_output(pipe: IO[bytes], log: Path, end: bytearray) -> None:
    """Copy a process's output to a log of at most ``LONGEST_LOG``, and keep the ``end`` of it."""
    room = LONGEST_LOG
    with pipe, open(log, "wb", buffering=0) as file:
        while part := os.read(pipe.fileno(), 2**16):
            file.write(part[:room])
            room = max(0, room - len(part))
            end[:] = (end + part)[-4096:]
