"""The interface of an emitted program, and its inputs as raw bytes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from executorch.exir import ExecutorchProgramManager
    from executorch.exir.schema import EValue
    from torch import nn


@dataclass(frozen=True)
class Slot:
    """One input or output, with dimensions if it is a tensor; ``dim_order``: the slowest first."""

    dtype: str
    shape: tuple[int, ...] = ()
    dim_order: tuple[int, ...] = ()
    dynamic: bool = False


@dataclass(frozen=True)
class Contents:
    """The interface of a ``forward``; delegates per backend, calls per ``aten::mean.out``."""

    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    delegates: Counter[str]
    operators: Counter[str]


def read_contents(program: ExecutorchProgramManager) -> Contents:
    """Read the interface and the calls of an emitted program."""
    from executorch.exir.schema import KernelCall

    plan = program.executorch_program.execution_plan[0]
    calls = [instruction.instr_args for chain in plan.chains for instruction in chain.instructions]
    kernels = [plan.operators[c.op_index] for c in calls if isinstance(c, KernelCall)]
    return Contents(
        inputs=tuple(_slot(plan.values[index]) for index in plan.inputs),
        outputs=tuple(_slot(plan.values[index]) for index in plan.outputs),
        delegates=Counter(delegate.id for delegate in plan.delegates),
        operators=Counter(f"{k.name}.{k.overload}" if k.overload else k.name for k in kernels),
    )


def _slot(value: EValue) -> Slot:
    from executorch.exir.schema import Tensor, TensorShapeDynamism
    from executorch.exir.tensor import get_scalar_type

    if not isinstance(value.val, Tensor):
        return Slot(type(value.val).__name__.lower())
    tensor = value.val
    dtype = str(get_scalar_type(tensor.scalar_type)).removeprefix("torch.")
    is_dynamic = tensor.shape_dynamism != TensorShapeDynamism.STATIC
    return Slot(dtype, tuple(tensor.sizes), tuple(tensor.dim_order), is_dynamic)


def cast_floats(values: Any, dtype: torch.dtype) -> Any:
    """Nested values with all floating-point tensors in ``dtype``."""
    import torch
    from torch.utils._pytree import tree_map_only

    def cast(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    return tree_map_only(torch.Tensor, cast, values)


def bind_constants(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """A module that takes tensors only, and its arguments.

    ``torch.export`` leaves numbers, flags and None in the signature: a runner had to pass them.
    """
    import torch
    from torch.utils._pytree import tree_flatten, tree_unflatten

    leaves, structure = tree_flatten((args, kwargs))
    if all(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return module, args, kwargs

    class Bound(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = module

        def forward(self, *tensors: torch.Tensor) -> Any:
            given = iter(tensors)
            filled = [next(given) if isinstance(x, torch.Tensor) else x for x in leaves]
            args, kwargs = tree_unflatten(filled, structure)
            return self.model(*args, **kwargs)

    return Bound(), tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor)), {}


def raw_bytes(tensor: torch.Tensor, dim_order: tuple[int, ...]) -> bytes:
    """The elements of a tensor with its dimensions in ``dim_order``, the slowest first."""
    import torch

    laid_out = tensor.detach().cpu().permute(dim_order).contiguous()
    return laid_out.reshape(-1).view(torch.uint8).numpy().tobytes()
