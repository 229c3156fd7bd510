"""A live runner process: commands in, answers out, a deadline on each of them.

The protocol is one JSON object per line. The runner says ``ready`` once it has loaded the program,
then answers each command with one line: an event, or ``{"error": kind, "message": ...}``.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from workbench.errors import (
    RunnerCrash,
    RunnerError,
    RunnerTimeout,
    SetupError,
    TargetError,
    UsageError,
)
from workbench.records.runs import Tensor
from workbench.run.targets.base import HOST, Host

#: No answer is longer: a million laps take about 35 MB.
LONGEST_ANSWER = 64 * 2**20
#: A shell adds this to the number of the signal that a program died of.
SHELL_SIGNAL, LAST_CODE = 128, 255
#: How long a runner may take to end when asked to, in seconds.
FAREWELL_S = 5.0

#: Errors after which the runner goes on.
HARMLESS = frozenset({"command", "io", "usage"})

HINTS = {
    "model_file": "check the path",
    "not_pte": "give a .pte file; workbench export MODEL makes one",
    "truncated": "copy or export it again",
    "version": "export it again with the installed ExecuTorch",
    "program": "export it again with the installed ExecuTorch",
    "operator": "name a runner that has these operators, or replace them in the model",
    "backend": "export it for XNNPACK, or name a runner that has this backend",
    "library": "reinstall executorch",
    "delegate": "export it again with the installed ExecuTorch",
    "check": "export it again with the installed ExecuTorch",
    "memory": "close other programs, or use a smaller model",
    "inputs": "give one file of raw bytes per input, in the program's dtype and shape",
    "isa": "measure at level native, or install the executorch version the workbench is made for",
}

T = TypeVar("T")


@dataclass(frozen=True)
class Ready:
    """What a runner says of itself and the program once it is loaded.

    ``masked`` are the CPU features hidden from XNNPACK, ``features`` those it sees; ``clock`` says
    what a lap measures; ``startup_ms`` counts from the runner's first instruction, ``load_ms`` is
    the part that loading the method took. ``backends`` is empty where the runner cannot tell.
    """

    runner: str
    clock: str
    traced: bool
    isa: str
    masked: tuple[str, ...]
    features: tuple[str, ...]
    self_check: str
    threads: int
    startup_ms: float
    load_ms: float
    method: str
    methods: tuple[str, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    backends: tuple[str, ...] = ()


@dataclass(frozen=True)
class Laps:
    """Times of consecutive executions, in nanoseconds, and how often each was preempted."""

    wall_ns: tuple[int, ...]
    cpu_ns: tuple[int, ...]
    preempted: tuple[int, ...]


class Session:
    """A runner process that has loaded a program; made by `open_session`, ended by ``with``.

    Every method raises RunnerTimeout if the answer does not come in time (the process is killed),
    RunnerCrash if the process died, and RunnerError if it reports a failure or talks nonsense.
    """

    ready: Ready

    def __init__(self, command: Sequence[str], *, timeout_s: float, target: Host = HOST):
        self.command = [os.fspath(part) for part in command]
        self.timeout_s = timeout_s
        self.target = target
        self._pending = b""
        self._said = 0  # bytes on standard error before the command that is being answered
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115, closed by kill()
        try:
            # A session of its own: Ctrl-C reaches the driver alone, and killing reaches children.
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            self._errors.close()
            raise SetupError(
                f"cannot start the runner: {error.strerror}", where=self.command[0]
            ) from None
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)

    def run(self, count: int) -> Laps:
        """Execute the method ``count`` times in a row."""
        laps = self._ask(f"run {count}", "run", Laps)
        if {len(laps.wall_ns), len(laps.cpu_ns), len(laps.preempted)} != {count}:
            raise self._nonsense(f"not {count} laps")
        return laps

    def output(self, base: Path) -> tuple[Tensor, ...]:
        """Write the outputs of the last execution as raw bytes to ``<base>-<index>.bin``."""
        there = self.target.place(base)
        written = self._ask(f"output {_one_line(there)}", "output", _Output)
        tensors = []
        for file in written.files:
            name = f"-{file.index}.bin"
            self.target.pull(there + name, Path(f"{os.fspath(base)}{name}"))
            tensors.append(Tensor(file.dtype, file.shape, file=f"{os.fspath(base)}{name}"))
        return tuple(tensors)

    def etdump(self, path: Path) -> None:
        """Write the trace since the last reset to a file, and begin a new one."""
        self._write("etdump", path)

    def samples(self, path: Path) -> None:
        """Write the PC samples since the last reset to a file, and begin anew."""
        self._write("samples", path)

    def reset(self) -> None:
        """Drop the trace and the samples so far."""
        self._ask("reset", "reset", _Done)

    def close(self) -> None:
        """Let the process end; kill it if it does not."""
        with contextlib.suppress(OSError):
            self._process.stdin.write(b"quit\n")
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(FAREWELL_S)
        self.kill()

    def kill(self) -> None:
        """End the process, and all that it started, now."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._selector.close()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            with contextlib.suppress(OSError):
                stream.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill() if kind else self.close()

    def _write(self, what: str, path: Path) -> None:
        """Have something written into a local file."""
        there = self.target.place(path)
        self._ask(f"{what} {_one_line(there)}", what, _Done)
        self.target.pull(there, path)

    def _ask(self, command: str, event: str, answer: type[T]) -> T:
        if self._process.stdin.closed:
            raise RunnerCrash("the runner has ended already", where=self._name, kind="ended")
        self._said = os.fstat(self._errors.fileno()).st_size
        with contextlib.suppress(BrokenPipeError):  # what it said before it died comes next
            self._process.stdin.write(os.fsencode(command) + b"\n")
        return self._receive(command, event, answer)

    def _receive(self, command: str, event: str, answer: type[T]) -> T:
        """The answer to a command, which must be ``event``; the process ends with a failure."""
        try:
            return self._parse(self._read_line(command), event, answer)
        except BaseException as error:
            if not (isinstance(error, RunnerError) and error.kind in HARMLESS):
                self.kill()
            raise

    def _parse(self, line: bytes, event: str, answer: type[T]) -> T:
        import cattrs

        try:
            found = json.loads(line)
            if found.get("event") == event:
                return cattrs.structure(found, answer)
            if "error" in found:
                raise self._failure(found)
        except (ValueError, TypeError, AttributeError, RecursionError, cattrs.BaseValidationError):
            pass
        raise self._nonsense(line[:80].decode(errors="replace"))

    def _read_line(self, command: str) -> bytes:
        deadline = time.monotonic() + self.timeout_s
        chunks, size = [self._pending], len(self._pending)
        while b"\n" not in chunks[-1]:
            if size > LONGEST_ANSWER:
                raise self._nonsense("an endless line")
            if not self._selector.select(max(0.0, deadline - time.monotonic())):
                raise RunnerTimeout(
                    f"no answer to {command.split()[0]!r} within {self.timeout_s:g} s",
                    where=self._name,
                    hint="allow more time, or find out what else keeps the machine busy",
                    kind="timeout",
                )
            chunks.append(os.read(self._process.stdout.fileno(), 2**18))
            size += len(chunks[-1])
            if not chunks[-1]:
                raise self._crash(b"".join(chunks))
        line, _, self._pending = b"".join(chunks).partition(b"\n")
        return line

    def _failure(self, answer: dict[str, Any]) -> RunnerError:
        kind = str(answer["error"])
        log = [str(line) for line in answer.get("log") or []] or self._last_words()
        reason = f" ({'; '.join(log)})" if log else ""
        return RunnerError(
            f"{answer.get('message', 'failed')}{reason}", hint=HINTS.get(kind), kind=kind
        )

    def _nonsense(self, text: str) -> RunnerError:
        return RunnerError(
            f"unexpected answer: {text!r}",
            where=self._name,
            hint="is this a runner of the workbench?",
            kind="protocol",
        )

    def _crash(self, rest: bytes) -> RunnerCrash | TargetError:
        try:
            code = self._process.wait(FAREWELL_S)
        except subprocess.TimeoutExpired:
            code = 0
        if self.target.is_lost(code):
            words = self._last_words(1)
            return TargetError(
                f"lost in the middle of a run{f' ({words[0]})' if words else ''}",
                where=self.target.name,
                hint="connect it again; the same command goes on with what was measured",
            )
        if SHELL_SIGNAL < code < LAST_CODE:
            code = SHELL_SIGNAL - code
        if code < 0:
            what = f"died of {_signal_name(-code)}"
        else:
            what = f"ended with code {code}, without an answer"
        words = self._last_words()
        if rest:
            words.append(f"half an answer: {rest[:80].decode(errors='replace')!r}")
        said = f" ({'; '.join(words)})" if words else ""
        return RunnerCrash(
            f"the runner {what}{said}",
            where=self._name,
            hint="a damaged program can do this: export it again",
            kind="crash",
        )

    def _last_words(self, count: int = 3) -> list[str]:
        """The last lines on standard error since the last command, without the runner's summary."""
        # Not by seek(): the position is the child's too.
        size = os.fstat(self._errors.fileno()).st_size
        start = max(self._said, size - 4096)
        text = os.pread(self._errors.fileno(), size - start, start).decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line[:7] != "error: "]
        return [line for line in lines if line][-count:]

    @property
    def _name(self) -> str:
        return Path(self.command[0]).name


def open_session(command: Sequence[str], *, timeout_s: float, target: Host = HOST) -> Session:
    """Start a runner in server mode and wait until it has loaded its program.

    Parameters
    ----------
    command
        The runner and its flags, ``--server_mode`` among them.
    timeout_s
        How long any answer may take, in seconds.
    target
        Where it runs: files that it writes are fetched from there.

    Raises
    ------
    SetupError
        The runner cannot be started.
    RunnerError, RunnerCrash, RunnerTimeout
        It could not load the program, died, or took too long.
    """
    session = Session(command, timeout_s=timeout_s, target=target)
    try:
        session.ready = session._receive("load", "ready", Ready)
    except BaseException:
        session.kill()
        raise
    return session


@dataclass(frozen=True)
class _File:
    dtype: str
    shape: tuple[int, ...]
    index: int


@dataclass(frozen=True)
class _Output:
    files: tuple[_File, ...]


@dataclass(frozen=True)
class _Done:
    event: str


def _one_line(path: str) -> str:
    if "\n" in path:
        raise UsageError("a runner cannot write to a path with a line break", where=repr(path))
    return path


def _signal_name(number: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"
