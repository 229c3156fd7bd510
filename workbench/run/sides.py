"""Other runtimes as sides of a run, which plug-ins bring."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from workbench import plugin, store
from workbench.errors import WorkbenchError, unknown_name
from workbench.export.precision import DTYPES
from workbench.export.program import Program, open_program
from workbench.export.sidecar import read_interface
from workbench.options import RUNTIMES, Progress
from workbench.process import silence
from workbench.records.exports import Tensor
from workbench.records.layer_sidecar import Instruction, Layers, Method, Origin
from workbench.run.tensor_files import read_output
from workbench.upstream import operator_label

if TYPE_CHECKING:
    from torch.fx import Node

    from workbench.export.code_lines import Sources
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

    @staticmethod
    def keep(path: Path, program: Program, make: Callable[[Path], Graph | None]) -> Program:
        """The file of another runtime, ``NAME.RUNTIME.SUFFIX`` beside a program, with its record.

        Unless it is there, it is made under a lock: ``make`` writes it, and returns what is in it.
        """
        record = store.export_record_path(path)
        if not record.is_file():
            with store.lock_writers(path.parent), silence():
                if not record.is_file():  # another process may have made it meanwhile
                    _save_record(path, program, make(path))
        return open_program(path)


@dataclass(frozen=True)
class Settings:
    """What to run, where and on what; ``inputs`` have ``dim_order``, and their files."""

    runtime: str
    path: str
    threads: int
    inputs: tuple[Tensor, ...]
    cpus: tuple[int, ...] = ()
    traced: bool = False

    def read_inputs(self) -> list[np.ndarray]:
        """The inputs, each laid out in memory as the program takes it; bfloat16 as float32."""
        arrays = []
        for tensor in self.inputs:
            order = tensor.dim_order or tuple(range(len(tensor.shape)))
            flat = read_output(Path(tensor.file), tensor.dtype)
            stored = flat.reshape([tensor.shape[dimension] for dimension in order])
            arrays.append(stored.transpose(np.argsort(order)))
        return arrays


@dataclass
class Graph:
    """What another runtime executes: its floating-point type, as PyTorch calls it, and operators.

    ``events`` has the numbers of operators by what a trace calls them, ``modules`` the classes of
    the modules that they are in.
    """

    dtype: str = "float32"
    operators: list[Origin] = field(default_factory=list)
    events: dict[str, tuple[int, ...]] = field(default_factory=dict)
    modules: dict[str, str] = field(default_factory=dict)

    @cached_property
    def _sources(self) -> Sources:
        from workbench.export.code_lines import Sources

        return Sources()

    def add(self, name: str, kind: str, stack: Iterable[tuple[str, str]], trace: str | None) -> int:
        """Add an operator in some modules, of a path and a class each, with its stack trace.

        Returns its number.
        """
        from workbench.export.origins import make_origin, module_classes

        classes = module_classes(stack)
        self.modules |= classes
        self.operators.append(make_origin(name, kind, classes, self._sources.add(trace)))
        return len(self.operators) - 1

    @staticmethod
    def label(node: Node) -> str:
        """What a trace calls the operator of a node, such as ``conv2d (conv2d_3)``."""
        return f"{operator_label(node.target)} ({node.name})"

    def add_node(self, node: Node) -> int:
        """Add the operator of a node of PyTorch's graph; returns its number."""
        from workbench.export.origins import module_stack

        trace = node.meta.get("stack_trace")
        return self.add(node.name, str(node.target), module_stack(node), trace)


def _save_record(path: Path, program: Program, graph: Graph | None) -> None:
    """Write the record of a side and its layers: one call of a delegate, which logs operators."""
    export, sha256, runtime = program.export, store.sha256_of(path), path.suffixes[-2][1:]
    if export is None:
        raise WorkbenchError("has no record of its export", where=program.path)
    layers, dtype = "", export.dtype
    if graph:
        call = Instruction("delegate", runtime, events=graph.events)
        method = Method("forward", (call,), {}, tuple(graph.operators), graph.modules)
        layers = store.save_layers(Layers(sha256, (method,)), store.layers_path(path)).name
        dtype = next(name for name, kind in DTYPES.items() if kind == graph.dtype)
    arguments = read_interface(program.path.read_bytes())[0]
    inputs = zip(export.inputs, arguments, strict=True)
    record = replace(
        export,
        dtype=dtype,
        backend=runtime,
        pte=path.name,
        sha256=sha256,
        size_bytes=path.stat().st_size,
        inputs=tuple(replace(tensor, dim_order=taken.dim_order) for tensor, taken in inputs),
        delegates={},
        undelegated=(),
        etrecord="",
        layers=layers,
        options={},
        partition=(),
        fidelity=(),
        problem="",
        files={},
        noise=(),
        rewrite=(),
    )
    store.save_export(record, path.parent)


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
