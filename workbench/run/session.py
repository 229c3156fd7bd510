"""A live runner process: commands in, one line of JSON out, a deadline for each answer.

An answer is an event, first ``ready``, or ``{"error": kind, "message": ...}``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from workbench.errors import RunnerError, StoreError, TargetError, UsageError, WorkbenchError
from workbench.records.codec import parse_json
from workbench.records.exports import Tensor
from workbench.records.runs import Batch, ProcessMemory, Stage
from workbench.run.locks import runner_options
from workbench.run.targets.host import HOST, Host
from workbench.upstream import TESTED

_log = logging.getLogger(__name__)

#: No answer is longer: a million iterations take about 35 MB.
LONGEST_ANSWER = 64 * 2**20
#: A shell's exit code for a program that was killed by signal N is 128 + N.
SHELL_SIGNAL, LAST_CODE = 128, 255
#: How long a runner may take to quit, in seconds.
QUIT_TIMEOUT_S = 5.0

#: Errors after which the runner continues.
HARMLESS = frozenset({"command", "io", "usage"})

_REJECTED = "workbench export MODEL names the operator that fails, and its source line"
HINTS = {
    "model_file": "check the path",
    "not_pte": "give a .pte file; workbench export MODEL makes one",
    "truncated": "copy or export it again",
    "version": "export it again with the installed ExecuTorch",
    "program": "export it again with the installed ExecuTorch",
    "data": "put the .ptd file that was exported with it beside it, or name it: --data FILE",
    "operator": "name a library that has them: --measure ops=FILE; on other machines than this "
    "one, also those of language models",
    "method": "measure one: workbench run FILE --phase NAME=METHOD",
    "backend": "export it for XNNPACK, or use a runner that has this backend",
    "library": "reinstall executorch",
    "delegate": _REJECTED,
    "check": _REJECTED,
    "memory": "close other programs, or use a smaller model",
    "scalar": "inputs must be tensors of numbers; workbench export MODEL fixes single numbers, "
    "flags and None at their values in the example inputs",
    "inputs": "name one .npy file per input, in the program's dtype and shape: "
    "--phase first=a.npy,b.npy",
    "isa": f"measure at level native, or install executorch {' or '.join(TESTED)}",
    "threads": f"measure one thread, or install executorch {' or '.join(TESTED)}",
}

T = TypeVar("T")


@dataclass(frozen=True)
class Ready:
    """A runner's description of itself and of the program it loaded.

    ``masked`` CPU features are hidden from XNNPACK, ``features`` visible; ``clock`` is what an
    iteration's time includes; ``startup_ms`` counts from the start of the process;
    ``missing`` is what its ExecuTorch lacks, by name, and what follows from it; the last
    two are there with ``--stages``.
    """

    clock: str
    masked: tuple[str, ...]
    features: tuple[str, ...]
    threads: int
    startup_ms: float
    load_ms: float
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    missing: dict[str, str] = field(default_factory=dict)
    stages: tuple[Stage, ...] = ()
    memory: ProcessMemory = field(default_factory=ProcessMemory)


class RunnerSession:
    """A runner process in server mode that has loaded a program; ended by ``with``.

    Every method may raise RunnerError; after a timeout, the process is killed.
    """

    def __init__(self, command: Sequence[str], *, timeout_s: float, target: Host = HOST):
        self.command = [os.fspath(part) for part in command]
        self.timeout_s = timeout_s
        self.target = target
        self._pending = b""
        self._logged = 0  # bytes on standard error before the current command
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115, closed by kill()
        _log.info("%s", shlex.join(self.command))
        try:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                bufsize=0,
                **runner_options(),
            )
        except OSError as error:
            self._errors.close()
            what = f"cannot start the runner: {error.strerror}"
            raise WorkbenchError(what, where=self.command[0]) from None
        assert self._process.stdin and self._process.stdout
        self._stdin: IO[bytes] = self._process.stdin
        self._stdout: IO[bytes] = self._process.stdout
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._stdout, selectors.EVENT_READ)
        try:
            self.ready = self._convert(self._receive("load", "ready"), Ready)
        except BaseException:
            self.kill()
            raise

    def run(self, count: int, *, traced: bool = True) -> Batch:
        """Execute the method ``count`` times in a row; a tracer may be left out."""
        command = f"{'run' if traced else 'untraced'} {count}"
        timed = self._convert({**self._ask(command, "run"), "round": 0, "batch": 0}, Batch)
        if {len(timed.wall_ns), len(timed.cpu_ns), len(timed.preempted)} != {count}:
            raise self._invalid(f"not {count} iterations")
        return timed

    def output(self, base: Path) -> tuple[Tensor, ...]:
        """Write the outputs of the last execution to ``<base>-<index>.bin``, in C order."""
        there, tensors = self.target.place(base), []
        answer = self._ask(f"output {_one_line(there)}", "output")
        for file in self._convert(answer.get("files"), list[dict[str, Any]]):
            stored, name = self._convert(file, Tensor), f"-{file.get('index')}.bin"
            path = Path(f"{os.fspath(base)}{name}")
            self.target.pull(there + name, path)
            _order_dimensions(path, stored)
            tensors.append(Tensor(stored.dtype, stored.shape, file=str(path)))
        return tuple(tensors)

    def etdump(self, path: Path) -> None:
        """Write the trace since the last reset to a file, and reset it."""
        self._write("etdump", path)

    def samples(self, path: Path) -> None:
        """Write the PC samples since the last reset to a file, and reset them."""
        self._write("samples", path)

    def reset(self) -> None:
        """Discard the trace and the samples."""
        self._ask("reset", "reset")

    def close(self) -> None:
        """Ask the process to quit; kill it if it does not."""
        with contextlib.suppress(OSError):
            self._stdin.write(b"quit\n")
        with contextlib.suppress(OSError):
            self._stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(QUIT_TIMEOUT_S)
        self.kill()

    def kill(self) -> None:
        """Kill the process and its children."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._selector.close()
        for stream in (self._stdin, self._stdout, self._errors):
            with contextlib.suppress(OSError):
                stream.close()

    def __enter__(self) -> RunnerSession:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.kill() if kind else self.close()

    def _write(self, what: str, path: Path) -> None:
        there = self.target.place(path)
        self._ask(f"{what} {_one_line(there)}", what)
        self.target.pull(there, path)

    def _ask(self, command: str, event: str) -> dict[str, Any]:
        """The answer to a command, which must be ``event``."""
        if self._stdin.closed:
            raise RunnerError("the runner has already ended", where=self._name, kind="ended")
        self._logged = os.fstat(self._errors.fileno()).st_size
        with contextlib.suppress(BrokenPipeError):  # its last output is read next
            self._stdin.write(os.fsencode(command) + b"\n")
        try:
            return self._receive(command, event)
        except BaseException as error:
            if not (isinstance(error, RunnerError) and error.kind in HARMLESS):
                self.kill()
            raise

    def _receive(self, command: str, event: str) -> dict[str, Any]:
        line = self._read_line(command)
        with contextlib.suppress(StoreError):
            answer = parse_json(line, self._name)
            if answer.get("event") == event:
                return answer
            if "error" in answer:
                raise self._failure(answer)
        raise self._invalid(line[:80].decode(errors="replace"))

    def _convert(self, value: object, kind: type[T]) -> T:
        import msgspec

        try:
            return msgspec.convert(value, kind)
        except ValueError:
            raise self._invalid(f"{value!r:.80}") from None

    def _read_line(self, command: str) -> bytes:
        deadline = time.monotonic() + self.timeout_s
        chunks, size = [self._pending], len(self._pending)
        while b"\n" not in chunks[-1]:
            if size > LONGEST_ANSWER:
                raise self._invalid("a line without end")
            if not self._selector.select(max(0.0, deadline - time.monotonic())):
                what = f"no answer to {command.split()[0]!r} within {self.timeout_s:g} s"
                hint = "--measure timeout_s=600, or stop other programs"
                raise RunnerError(what, where=self._name, hint=hint, kind="timeout")
            chunks.append(os.read(self._stdout.fileno(), 2**18))
            size += len(chunks[-1])
            if not chunks[-1]:
                raise self._crash(b"".join(chunks))
        line, _, self._pending = b"".join(chunks).partition(b"\n")
        return line

    def _failure(self, answer: dict[str, Any]) -> RunnerError:
        kind = str(answer["error"])
        log = [str(line) for line in answer.get("log") or []] or self._last_lines()
        reason = f" ({'; '.join(log)})" if log else ""
        what = f"{answer.get('message', 'failed')}{reason}"
        return RunnerError(what, hint=HINTS.get(kind), kind=kind)

    def _invalid(self, text: str) -> RunnerError:
        what, hint = f"unexpected answer: {text!r}", "is this the workbench's runner?"
        return RunnerError(what, where=self._name, hint=hint, kind="protocol")

    def _crash(self, rest: bytes) -> WorkbenchError:
        try:
            code = self._process.wait(QUIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            code = 0
        if self.target.is_lost(code):
            words = self._last_lines(1)
            what = f"connection lost during a run{f' ({words[0]})' if words else ''}"
            hint = "connect it again; the same command continues the run"
            return TargetError(what, where=self.target.name, hint=hint)
        if SHELL_SIGNAL < code < LAST_CODE:
            code = SHELL_SIGNAL - code
        what = f"ended with code {code}, without an answer"
        if code < 0:
            names = {number.value: number.name for number in signal.Signals}
            what = f"was killed by {names.get(-code, f'signal {-code}')}"
        words = self._last_lines()
        if rest:
            words.append(f"incomplete answer: {rest[:80].decode(errors='replace')!r}")
        log = f" ({'; '.join(words)})" if words else ""
        hint = "workbench export MODEL runs the program, and says what fails"
        return RunnerError(f"the runner {what}{log}", where=self._name, hint=hint, kind="crash")

    def _last_lines(self, count: int = 3) -> list[str]:
        """The last lines on standard error since the last command, without the runner's summary."""
        # No seek(): the child shares the position.
        size = os.fstat(self._errors.fileno()).st_size
        start = max(self._logged, size - 4096)
        text = os.pread(self._errors.fileno(), size - start, start).decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line[:7] != "error: "]
        return [line for line in lines if line][-count:]

    @property
    def _name(self) -> str:
        return Path(self.command[0]).name


def _order_dimensions(path: Path, stored: Tensor) -> None:
    """Rewrite an output's raw bytes if its dimensions, such as channels last, are not in order."""
    order = stored.dim_order
    if list(order) != sorted(order) and 0 not in stored.shape:
        elements = np.fromfile(path, np.uint8).reshape(*(stored.shape[d] for d in order), -1)
        path.write_bytes(elements.transpose(*np.argsort(order), len(order)).tobytes())


def _one_line(path: str) -> str:
    if "\n" in path:
        raise UsageError("runners cannot write to a path with a line break", where=repr(path))
    return path
