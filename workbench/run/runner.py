"""Which runner executes the program, and how it is started."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workbench.errors import unknown_name
from workbench.run import python_runner
from workbench.run.build import build_runner, describe_runner, find_compiler
from workbench.run.session import Session, open_session

KINDS = ("wheel", "native", "python")


@dataclass(frozen=True)
class Runner:
    """A way to start a runner: its command line and what is known of it."""

    kind: str
    command: tuple[str, ...]
    description: dict[str, Any]


def find_runner(choice: str = "wheel") -> Runner:
    """The runner for ``choice``: ``native``, ``python``, or ``wheel`` for the best that works here.

    The native runner is compiled on first use; without a C++ compiler the Python runner serves.

    Raises
    ------
    UsageError
        An unknown choice.
    SetupError
        The native runner does not compile.
    """
    if choice not in KINDS:
        raise unknown_name("runner", choice, KINDS)
    if choice == "python" or (choice == "wheel" and find_compiler() is None):
        # -P: the script's folder is no place to import packages from.
        command = (sys.executable, "-P", python_runner.__file__)
        reason = "chosen" if choice == "python" else "no C++ compiler"
        return Runner("python", command, {**describe_runner(command), "reason": reason})
    binary = build_runner()
    return Runner("native", (str(binary),), describe_runner(binary))


def open_runner(runner: Runner, flags: Sequence[str], *, timeout_s: float) -> Session:
    """Start a live runner process with these flags."""
    return open_session([*runner.command, "--server_mode", *flags], timeout_s=timeout_s)
