"""Which runner executes the program, and how it is started."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from workbench.errors import UsageError, unknown_name
from workbench.run import python_runner
from workbench.run.build import NATIVE, build_runner, describe_runner, find_compiler, find_sdk
from workbench.run.bundle import make_bundle
from workbench.run.session import Session, open_session
from workbench.run.targets.base import HOST, Host
from workbench.store import sha256_of

KINDS = ("wheel", "native", "python")


@dataclass(frozen=True)
class Runner:
    """A way to start a runner: its command line and what is known of it.

    ``command`` is the local one, which reaches the runner on its ``target``; ``libraries`` is the
    local folder with the very libraries that it loads there.
    """

    kind: str
    command: tuple[str, ...]
    description: dict[str, Any]
    target: Host = HOST
    libraries: Path = Path()


def find_runner(choice: str = "wheel", target: Host = HOST) -> Runner:
    """The runner for ``choice``: ``native``, ``python``, or ``wheel`` for the best that works here.

    The native runner is compiled on first use; without a C++ compiler the Python runner serves.
    Elsewhere than on this machine there is the native runner only, which brings its libraries.

    Raises
    ------
    UsageError
        An unknown choice, or one that the target cannot serve.
    SetupError
        The native runner does not compile, or a part of it cannot be fetched.
    """
    if choice not in KINDS:
        raise unknown_name("runner", choice, KINDS)
    if target is not HOST:
        return _bundled_runner(choice, target)
    libraries = find_sdk() / "lib"
    if choice == "python" or (choice == "wheel" and find_compiler() is None):
        # -P: the script's folder is no place to import packages from.
        command = (sys.executable, "-P", python_runner.__file__)
        reason = "chosen" if choice == "python" else "no C++ compiler"
        description = {**describe_runner(command), "reason": reason}
        return Runner("python", command, description, libraries=libraries)
    binary = build_runner()
    description = describe_runner(binary)
    return Runner("native", (str(binary),), description, libraries=libraries)


def identify_runner(choice: str, target: str) -> str:
    """What a runner is built from, as a hash; nothing is built, and no target reached."""
    parts = [choice, target, metadata.version("executorch")]
    if target == HOST.name:
        parts += find_compiler() or []
    parts += [sha256_of(path) for path in (*sorted(NATIVE.iterdir()), Path(python_runner.__file__))]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def open_runner(runner: Runner, flags: Sequence[str], *, timeout_s: float) -> Session:
    """Start a live runner process with these flags; paths among them are those on its target."""
    words = [runner.target.quote(flag) for flag in ("--server_mode", *flags)]
    return open_session([*runner.command, *words], timeout_s=timeout_s, target=runner.target)


def _bundled_runner(choice: str, target: Host) -> Runner:
    if choice == "python":
        raise UsageError(f"no Python runner on {target.name}", where="--runner")
    bundle = make_bundle(target.machine)
    command = target.command(bundle.command(target.push_folder(bundle.folder)))
    description = describe_runner(command, bundle.runner)
    return Runner("native", tuple(command), description, target, bundle.folder)
