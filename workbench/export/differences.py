"""How a program differs from the model as its user has it, and the option that keeps that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from workbench.export.precision import PRECISIONS
from workbench.models.inputs import declare_limits
from workbench.models.loader import LoadedModel
from workbench.options import ExportOptions
from workbench.records.exports import Tensor
from workbench.upstream import schema_name, tree_leaves

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_HALVES = {torch.float16: "fp16", torch.bfloat16: "bf16"}
#: The largest batch for which PyTorch would use another library than for larger ones, a limit of
#: `torch.export`'s own if the example is no larger.
_SMALL_BATCH = 15


def describe_differences(
    model: LoadedModel,
    options: ExportOptions,
    exported: ExportedProgram,
    arguments: Sequence[Tensor],
) -> tuple[str, ...]:
    """One line for each: single instead of half precision, smaller dynamic dimensions."""
    return (*_compare_dtypes(model, options), *_compare_limits(model, exported, arguments))


def _compare_dtypes(model: LoadedModel, options: ExportOptions) -> Iterator[str]:
    precision = PRECISIONS[options.dtype]
    if precision.quantizes or precision.torch_name != "float32":
        return
    values = [*model.module.parameters(), *model.module.buffers()]
    values += tree_leaves((model.example_inputs, model.kwargs))
    floats = {v.dtype for v in values if isinstance(v, torch.Tensor) and v.is_floating_point()}
    for half in sorted(floats & _HALVES.keys(), key=str):
        part = "parts of the model are" if len(floats) > 1 else "the model is"
        name = str(half).removeprefix("torch.")
        yield f"{part} in {name}, the program in float32: --dtype {_HALVES[half]} keeps it"


def _compare_limits(
    model: LoadedModel, exported: ExportedProgram, arguments: Sequence[Tensor]
) -> Iterator[str]:
    limits: dict[str, tuple[int, str]] = {}
    for names, argument in zip(declare_limits(model), arguments, strict=True):
        for most, (name, limit) in zip(argument.shape, names, strict=True):
            if name and most < limit:
                declared = f"up to {limit}" if limit < 2**31 else "without a limit"
                limits[name] = most, declared
    convolves = any("conv" in schema_name(node.target) for node in exported.graph.nodes)
    for name, (most, declared) in limits.items():
        text = f"{name} is at most {most} in the program, declared {declared}"
        yield text + ": --rewrite batch keeps that" * (convolves and most == _SMALL_BATCH)
