"""What an emitted program takes, returns and calls."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from executorch.exir import ExecutorchProgramManager
    from executorch.exir.schema import EValue


@dataclass(frozen=True)
class Slot:
    """One input or output: a tensor's ``dim_order`` lists its dimensions, the slowest first.

    What is no tensor has its type as ``dtype`` (``int``, ``null``, ...) and no dimensions.
    """

    dtype: str
    shape: tuple[int, ...] = ()
    dim_order: tuple[int, ...] = ()
    dynamic: bool = False


@dataclass(frozen=True)
class Contents:
    """The interface of a program's ``forward`` and what its instructions call.

    ``delegates`` counts the delegates per backend, ``operators`` the calls of each kernel by its
    name in the runtime, such as ``aten::mean.out``.
    """

    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    delegates: Counter[str]
    operators: Counter[str]


def read_contents(program: ExecutorchProgramManager) -> Contents:
    """List what is in an emitted program."""
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


def missing_kernels(contents: Contents) -> list[str]:
    """The operators that no kernel of the installed runtime implements."""
    from executorch.extension.pybindings.portable_lib import _get_operator_names

    return sorted(contents.operators.keys() - set(_get_operator_names()))


def _slot(value: EValue) -> Slot:
    from executorch.exir.schema import Tensor, TensorShapeDynamism
    from executorch.exir.tensor import get_scalar_type

    if not isinstance(value.val, Tensor):
        return Slot(type(value.val).__name__.lower())
    tensor = value.val
    return Slot(
        dtype=str(get_scalar_type(tensor.scalar_type)).removeprefix("torch."),
        shape=tuple(tensor.sizes),
        dim_order=tuple(tensor.dim_order),
        dynamic=tensor.shape_dynamism != TensorShapeDynamism.STATIC,
    )
