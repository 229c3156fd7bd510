"""A program in memory, with what is known of it and what it is run on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import torch

from workbench.errors import WorkbenchError
from workbench.export import accuracy
from workbench.export.precision import DTYPES, PRECISIONS
from workbench.export.program import Program, cast_floats, raw_bytes
from workbench.export.sidecar import count_calls, read_interface
from workbench.records.exports import (
    Cause,
    Cone,
    LayerNoise,
    Partition,
    Rewrite,
    Tensor,
    find_worst,
)
from workbench.records.layer_sidecar import Layers

#: Measures the quantisation noise of each layer; None if nothing was quantised.
MeasureNoise = Callable[[], tuple[LayerNoise, ...]] | None


@dataclass(frozen=True)
class Lowered:
    """A program, its ETRecord (empty unless it is wanted), its layers, and its inputs.

    ``inputs`` are in the dtype and the order of the program, which takes ``arguments``; ``notes``
    say what was done to it.
    """

    pte: bytes
    etrecord: bytes
    inputs: list[torch.Tensor]
    arguments: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    layers: Layers
    notes: dict[str, str]
    partition: tuple[Partition, ...]
    #: The rewrites that changed it.
    rewrite: tuple[str, ...] = ()
    rewrites: tuple[Rewrite, ...] = ()
    dependence: tuple[Cone, ...] = ()
    staying: tuple[str, ...] = ()
    measure_noise: MeasureNoise = None
    #: From the number of an output to the operator after which it is wrong, as `find_cause`.
    find_cause: Callable[[int], tuple[str, Cause] | None] = lambda output: None
    #: The outputs of the quantised graph in PyTorch; None if nothing quantised the graph.
    run_graph: Callable[[], list[Any]] | None = None

    @classmethod
    def read(cls, program: Program, inputs: Sequence[Any], dtype: str) -> Self:
        """A program that was exported in a dtype, with inputs, which are cast to it."""
        pte, layers = program.path.read_bytes(), program.layers
        if layers is None:
            raise WorkbenchError("has no record of its layers", where=program.path)
        values = cast_floats(list(inputs), getattr(torch, DTYPES[dtype]))
        return cls(pte, b"", values, *read_interface(pte), layers, {}, ())

    def count(self, kind: Literal["delegate", "kernel"]) -> int:
        """How many delegates or kernels it calls."""
        return sum(count_calls(self.layers, kind).values())

    def run(self) -> list[Any]:
        """Its outputs on its inputs, in this process."""
        return accuracy.run_program(self.pte, self.inputs, self.layers)

    def compare(self, other: Self, dtype: str) -> tuple[float | None, str]:
        """The SQNR in dB of its worst output against another program of a dtype, and what is wrong.

        On the same inputs; None without noise, and empty if nothing is wrong.
        """
        outputs, expected = (
            [value.float() if value.is_floating_point() else value for value in each.run()]
            for each in (self, other)
        )
        least_db = PRECISIONS[dtype].least_sqnr_db
        compared = accuracy.compare_with_model(outputs, expected, least_db)
        return find_worst(compared), accuracy.describe_problem(compared)

    def write(self, folder: Path) -> list[str]:
        """Write it and its inputs into a folder; returns the flags with which a runner takes it."""
        program = folder / "part.pte"
        program.write_bytes(self.pte)
        flags = ["--model_path", str(program)]
        for number, (tensor, argument) in enumerate(zip(self.inputs, self.arguments, strict=True)):
            path = folder / f"input{number}.bin"
            path.write_bytes(raw_bytes(tensor, argument.dim_order))
            flags += ["--inputs", str(path)]
        return flags
