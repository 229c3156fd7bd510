"""The runner for machines without a C++ compiler: the native runner's protocol and flags.

Runs in a process of its own (``python -P python_runner.py --model_path ...``), because CPU features
must be hidden before ExecuTorch's libraries are loaded. A lap is one call of the Python binding's
``execute``: ``Method::execute`` and 5 to 20 microseconds more.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from workbench.errors import RunnerError, StoreError, UsageError, WorkbenchError
from workbench.run.cpu_flags import ask_system, find_flags, load_cpuinfo
from workbench.run.isa import Table, hide, load_table, self_check
from workbench.run.python_model import Model

CLOCK = "Method::execute and the Python binding's call"
MAX_EXECUTIONS, MAX_THREADS, MAX_CPU, MAX_SIZE = 1_000_000, 1024, 1023, 2**30

#: The native runner's exit codes.
EXIT_CODES = {
    **dict.fromkeys(("usage", "command", "method", "inputs"), 2),
    "model_file": 3,
    **dict.fromkeys(("not_pte", "version", "truncated", "program", "memory"), 4),
    **dict.fromkeys(("operator", "backend", "library"), 5),
    "delegate": 6,
    "execution": 7,
    "isa": 8,
    "io": 9,
}
#: Errors after which the runner goes on obeying.
HARMLESS = ("usage", "command", "io")


def main(argv: list[str]) -> int:
    """Run as the flags say; returns the exit code."""
    start = time.monotonic_ns()
    # The protocol alone goes to standard output: what libraries print reaches standard error.
    with os.fdopen(os.dup(1), "wb") as answers:
        try:
            flags = parse_flags(argv)
            os.dup2(2, 1)
            run(flags, answers, start)
        except WorkbenchError as error:
            return report(answers, error)
        except MemoryError:
            return report(answers, RunnerError("out of memory", kind="memory"))
    return 0


def report(answers: BinaryIO, error: WorkbenchError) -> int:
    """Answer with a failure, and say it on standard error; returns its exit code."""
    kinds = {UsageError: "usage", StoreError: "io"}
    kind = kinds.get(type(error)) or getattr(error, "kind", "library")
    answer(answers, error=kind, message=str(error), et_error="", log=[])
    print(f"error: {error}", file=sys.stderr, flush=True)
    return EXIT_CODES[kind]


def answer(answers: BinaryIO, **members: Any) -> None:
    """Write one answer: a line of JSON, at once; bytes of a path that are no text become ``?``."""
    line = json.dumps(members, ensure_ascii=False) + "\n"
    answers.write(line.encode(errors="replace"))
    answers.flush()


def run(flags: argparse.Namespace, answers: BinaryIO, start: int) -> None:
    """Do what the flags say; ``start`` is when the process began, in nanoseconds."""
    if flags.version:
        answer(answers, event="version", runner="python", compiler="")
        return
    if flags.lib_dir:
        raise UsageError("--lib_dir: the Python runner uses the installed libraries")
    table, library = load_table(platform.machine()), load_cpuinfo()
    cpu_flags = find_flags(library, table)
    verdict = self_check(table, cpu_flags, ask_system(table))
    if flags.print_isa:
        answer(answers, **describe_isa(table, cpu_flags, verdict))
        return
    if not flags.model_path:
        raise UsageError("--model_path is missing")
    set_cpus(flags.cpus)
    masked: tuple[str, ...] = ()
    if table.rank(flags.isa) or flags.isa_off:
        if verdict != "ok":
            raise RunnerError(f"refusing to hide CPU features: {verdict}", kind="isa")
        masked = hide(table, cpu_flags, flags.isa, flags.isa_off)
    model = Model(
        Path(flags.model_path),
        flags.method_name,
        flags.inputs,
        flags.input_shapes,
        threads=max(0, flags.cpu_threads),
        traced=bool(flags.etdump_path),
        threadpool=library,
    )
    answer(
        answers,
        event="ready",
        runner="python",
        clock=CLOCK,
        traced=model.traced,
        threads=model.threads,
        startup_ms=(time.monotonic_ns() - start) / 1e6,
        isa=flags.isa,
        masked=masked,
        features=[n for n, f in table.hideable.items() if verdict == "ok" and cpu_flags[f.byte]],
        self_check=verdict,
        **model.description,
    )
    serve(model, answers, flags) if flags.server_mode else run_once(model, answers, flags)


def run_once(model: Model, answers: BinaryIO, flags: argparse.Namespace) -> None:
    """Warm up, time, and write what the flags ask for."""
    for _ in range(flags.warmup):
        model.run()
    model.reset()
    answer(answers, **time_runs(model, flags.num_executions))
    if flags.output_file:
        answer(answers, event="output", files=model.write_outputs(flags.output_file))
    if model.traced:
        model.write_etdump(flags.etdump_path)
        answer(answers, event="etdump", file=flags.etdump_path)


def serve(model: Model, answers: BinaryIO, flags: argparse.Namespace) -> None:
    """Obey the commands on standard input; what a command got wrong is answered and survived."""
    for line in sys.stdin.buffer:
        command = os.fsdecode(line).removesuffix("\n")
        if command == "quit":
            break
        try:
            answer(answers, **obey(command, model, flags))
        except WorkbenchError as error:
            if isinstance(error, RunnerError) and error.kind not in HARMLESS:
                raise
            report(answers, error)


def obey(line: str, model: Model, flags: argparse.Namespace) -> dict[str, Any]:
    """The answer to one command."""
    command, _, rest = line.partition(" ")
    if "\0" in line:
        raise RunnerError("a command with a null byte", kind="command")
    if command == "run":
        return time_runs(model, number_between("run", 1, MAX_EXECUTIONS)(rest))
    if command == "output" and rest:
        return {"event": "output", "files": model.write_outputs(rest)}
    if command == "etdump":
        model.write_etdump(rest or flags.etdump_path)
        return {"event": "etdump", "file": rest or flags.etdump_path}
    if command == "reset" and not rest:
        model.reset()
        return {"event": "reset"}
    raise RunnerError(f"unknown command {line[:80]!r}", kind="command")


def time_runs(model: Model, count: int) -> dict[str, Any]:
    """Execute ``count`` times; the laps as an answer."""
    laps = [model.run() for _ in range(count)]
    wall, cpu, preempted = zip(*laps, strict=True)
    return {"event": "run", "wall_ns": wall, "cpu_ns": cpu, "preempted": preempted}


def describe_isa(table: Table, flags: Any, verdict: str) -> dict[str, Any]:
    """The levels, and the features of this CPU, as an answer."""
    return {
        "event": "isa",
        "arch": table.arch,
        "self_check": verdict,
        "levels": [{"name": name, "meaning": text} for name, text in table.levels.items()],
        "features": [
            {
                "name": feature.name,
                "on": verdict == "ok" and bool(flags[feature.byte]),
                "level": feature.level,
                "meaning": feature.meaning,
            }
            for feature in table.hideable.values()
        ],
    }


def set_cpus(cpus: list[int]) -> None:
    """Run on these CPUs only."""
    if not cpus:
        return
    if not hasattr(os, "sched_setaffinity"):
        raise UsageError("--cpus: this system cannot bind a process to CPUs")
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        raise UsageError(f"--cpus: {error.strerror}") from None


def parse_flags(argv: list[str]) -> argparse.Namespace:
    """The native runner's flags.

    Raises
    ------
    UsageError
        An unknown flag, or a value out of range.
    """

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            raise UsageError(message)

    parser = Parser(prog="python_runner.py", description=__doc__, allow_abbrev=False)
    for name in ("model_path", "method_name", "output_file", "etdump_path", "lib_dir"):
        parser.add_argument(f"--{name}", default="")
    parser.add_argument("--isa", default="native")
    for name in ("inputs", "input_shape", "isa_off", "cpus"):
        parser.add_argument(f"--{name}", action="append", default=[])
    for name, least, most, default in (
        ("num_executions", 1, MAX_EXECUTIONS, 1),
        ("warmup", 0, MAX_EXECUTIONS, 0),
        ("cpu_threads", 1, MAX_THREADS, -1),
    ):
        number = number_between(f"--{name}", least, most, default)
        parser.add_argument(f"--{name}", type=number, default=default)
    for name in ("server_mode", "print_isa", "version"):
        switch = {"type": parse_switch, "nargs": "?", "const": True, "default": False}
        parser.add_argument(f"--{name}", **switch)
    flags = parser.parse_args(argv)
    # A file's name with a comma stands alone.
    flags.inputs = [
        file for text in flags.inputs for file in ([text] if Path(text).exists() else split(text))
    ]
    size = number_between("--input_shape", 0, MAX_SIZE)
    flags.input_shapes = [
        [size(part) for part in text.split("x") if part] for text in flags.input_shape
    ]
    flags.isa_off = [name for text in flags.isa_off for name in split(text)]
    in_range = number_between("--cpus", 0, MAX_CPU)
    flags.cpus = [in_range(cpu) for text in flags.cpus for cpu in split(text)]
    return flags


def parse_switch(text: str) -> bool:
    """The value of ``--flag=true`` or ``--flag=false``."""
    if text not in ("true", "false"):
        raise UsageError(f"takes true or false, not {text!r}")
    return text == "true"


def number_between(
    name: str, least: int, most: int, default: int | None = None
) -> Callable[[str], int]:
    """A parser of decimal numbers within bounds, or the default, whose errors name ``name``."""

    def parse(text: str) -> int:
        if text == str(default):
            return default
        if re.fullmatch(r"-?[0-9]{1,9}", text) and least <= int(text) <= most:
            return int(text)
        raise UsageError(f"{name} takes a number from {least} to {most}, not {text!r}")

    return parse


def split(text: str) -> list[str]:
    """The parts between commas."""
    return [part for part in text.split(",") if part]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
