"""Other runtimes as sides of a run, which plug-ins bring."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from workbench import plugin
from workbench.errors import WorkbenchError, unknown_name
from workbench.export.program import Program, open_program
from workbench.options import RUNTIMES, Progress
from workbench.records.exports import Tensor

if TYPE_CHECKING:
    from workbench.models.loader import LoadedModel


class Side(NamedTuple):
    """Another runtime.

    ``open`` makes a file for it of a program's model, given its name, the program, a function that
    loads the model, and the progress. ``module`` is a Python module that runs such a file behind
    the protocol of the native runner, given `Settings` as JSON. ``packages`` are what it needs.
    """

    open: Callable[[str, Program, Callable[[], LoadedModel], Progress], Program]
    module: str
    packages: tuple[str, ...] = ()


@dataclass(frozen=True)
class Settings:
    """What to run, where and on what; ``inputs`` have ``dim_order``, and their files."""

    runtime: str
    path: str
    threads: int
    inputs: tuple[Tensor, ...]
    cpus: tuple[int, ...] = ()
    traced: bool = False


def find_side(runtime: str) -> Side:
    """The side of a runtime; WorkbenchError if no plug-in brings it, or it lacks a package."""
    side: Any = plugin.find("sides", runtime)
    if side is None:
        hint = "install the plug-in that measures it"
        raise WorkbenchError(f"no plug-in measures {RUNTIMES[runtime]}", where=runtime, hint=hint)
    for package in side.packages:
        if not importlib.util.find_spec(package):
            extra = f"executorch-workbench[{runtime}]"
            raise WorkbenchError(f"{package} is not installed", where=runtime, install=extra)
    return side


def check_side(text: str) -> None:
    """WorkbenchError if there is no such file, or what the runtime needs is not installed."""
    if text not in RUNTIMES and text == Path(text).stem and not Path(text).exists():
        raise unknown_name("runtime", text, RUNTIMES, where="--against")
    runtime = text if text in RUNTIMES else open_program(text).runtime
    if runtime:
        find_side(runtime)


def open_side(
    text: str, program: Program, load: Callable[[], LoadedModel], progress: Progress
) -> Program:
    """A side to measure against a program: a file, or its model for another runtime."""
    if text not in RUNTIMES:
        return open_program(text)
    return find_side(text).open(text, program, load, progress)


def command_of(settings: Settings) -> list[str]:
    """The command that runs a file in another runtime."""
    module = find_side(settings.runtime).module
    return [sys.executable, "-P", "-m", module, msgspec.json.encode(settings).decode()]
