"""The runner that executes the program, and how to start it."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from workbench.errors import StoreError
from workbench.options import Progress, silent
from workbench.run.build import find_operator_libraries, outline_runner
from workbench.run.isa import Isa, read_isa
from workbench.run.locks import device_behind, lock_device
from workbench.run.session import RunnerSession
from workbench.run.targets import open_target
from workbench.run.targets.host import HOST, Host
from workbench.store import sha256_of


@dataclass(frozen=True)
class Runner:
    """A runner: the local command that starts it on its target, its entry in the manifest.

    ``libraries`` is the local folder with the same libraries that it loads there; ``operators``
    are libraries on the target, loaded for programs that need their operators.
    """

    command: tuple[str, ...]
    description: dict[str, Any]
    target: Host = HOST
    libraries: Path = Path()
    operators: tuple[str, ...] = ()

    @cached_property
    def isa(self) -> Isa:
        """The features of its CPU and the ISA levels; asked for once."""
        return read_isa(self.command)

    def open(self, flags: Sequence[str], *, timeout_s: float) -> RunnerSession:
        """Start a live process with these flags; paths among them are paths on its target."""
        libraries = (word for path in self.operators for word in ("--ops", path))
        words = [self.target.quote(flag) for flag in ("--server_mode", *libraries, *flags)]
        return RunnerSession([*self.command, *words], timeout_s=timeout_s, target=self.target)

    def lock(self, progress: Progress = silent) -> AbstractContextManager[None]:
        """Lock its device for a measurement, after a message if it is in use."""
        return lock_device(device_behind(self.target.name), progress)


def find_runner(
    target: Host | str = HOST, operators: Sequence[str] = (), progress: Progress = silent
) -> Runner:
    """The native runner for a target, compiled against the installed wheel on first use.

    Parameters
    ----------
    target
        Where it runs: a name, as of ``--target``, or what `open_target` returns. Other machines
        get a bundle with all its libraries.
    operators
        Shared libraries that register operators, for that machine.
    progress
        Called before the runner is compiled for this machine.

    Raises
    ------
    UsageError
        An architecture without a runner.
    WorkbenchError
        The runner does not compile, or a part of it cannot be downloaded.

    Examples
    --------
    >>> wb.find_runner().description["kind"]  # doctest: +SKIP
    'native'
    """
    if isinstance(target, str):
        target = open_target(target)
    for path in operators:
        if not Path(path).is_file():
            raise StoreError("no such library of operators", where=path)
    given = [target.push(Path(path).resolve()) for path in operators]
    command, binary, libraries = target.install_runner(progress)
    given += map(str, find_operator_libraries()) if target is HOST else ()
    description: dict[str, Any] = outline_runner(command, binary)
    if operators:
        hashes = (f"{Path(path).name} {sha256_of(Path(path))[:12]}" for path in operators)
        description["operators"] = ", ".join(hashes)
    return Runner(tuple(command), description, target, libraries, tuple(given))
