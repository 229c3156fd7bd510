"""What to say when an export fails: which operator, where in the user's source, what to do."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from workbench.errors import ExportError
from workbench.models.sources import reason, user_line, user_line_of_stack

if TYPE_CHECKING:
    from torch.export import ExportedProgram


#: Operators that PyTorch runs on operands of one dtype only, the first three of its arguments.
_PRODUCTS = frozenset(
    f"aten::{name}"
    for name in (
        "linear", "matmul", "mm", "bmm", "mv", "addmm", "baddbmm", "conv1d", "conv2d", "conv3d",
        "convolution", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
        "scaled_dot_product_attention",
    )
)  # fmt: skip
_NO_OUT_VARIANT = re.compile(r"Missing out variants: \{([^}]*)\}")
_VIOLATION = re.compile(r"^\s*- (.*)", re.MULTILINE)


@contextlib.contextmanager
def explain_forward(origin: str) -> Iterator[None]:
    """Turn whatever the eager model raises into an `ExportError`."""
    try:
        yield
    except Exception as error:  # a model may raise anything
        raise ExportError(
            f"forward() fails: {reason(error)}",
            where=user_line(error) or origin,
            hint="give it inputs that it takes",
        ) from error


@contextlib.contextmanager
def explain_tracing(origin: str) -> Iterator[None]:
    """Turn whatever ``torch.export`` raises into an `ExportError`."""
    try:
        yield
    except Exception as error:  # the model's own code runs in here: it may raise anything
        what, hint = _tell_tracing(error)
        line = user_line(error) or origin
        raise ExportError(f"torch.export: {what}", where=line, hint=hint) from error


@contextlib.contextmanager
def explain_lowering(exported: ExportedProgram, origin: str) -> Iterator[None]:
    """Turn whatever the partitioner and the emitter raise into an `ExportError`."""
    try:
        yield
    except Exception as error:  # each of the many passes has its own ways to fail
        if found := _NO_OUT_VARIANT.search(str(error)):
            operators = sorted(re.findall(r"[\w:]+", found[1]))
            raise no_kernel_error(operators, exported, origin) from error
        line = user_line(error) or user_line_of_stack(str(error))
        raise ExportError(f"lowering: {reason(error)}", where=line or origin) from error


def check_operands(exported: ExportedProgram, dtype: str, origin: str) -> None:
    """Make sure that products are of operands of one dtype.

    Tracing does not notice, and running the model in half precision to see takes PyTorch seconds.

    Raises
    ------
    ExportError
        With the user's line of the first product that PyTorch would refuse.
    """
    for node in exported.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is None or schema.name not in _PRODUCTS:
            continue
        values = [getattr(arg, "meta", {}).get("val") for arg in node.args[:3]]
        dtypes = {str(v.dtype).removeprefix("torch.") for v in values if v is not None}
        if len(dtypes) > 1:
            raise ExportError(
                f"in {dtype} this is a {schema.name.removeprefix('aten::')} of "
                f"{' and '.join(sorted(dtypes))}",
                where=user_line_of_stack(node.meta.get("stack_trace")) or origin,
                hint="make constants in the dtype of the inputs",
            )


def no_kernel_error(operators: list[str], program: ExportedProgram, origin: str) -> ExportError:
    """The error for operators of a program that the ExecuTorch runtime has no kernel for."""
    return ExportError(
        f"the ExecuTorch runtime has no kernel for {', '.join(operators)}",
        where=_line_of_operator(operators[0], program) or origin,
        hint="replace it, or compute it outside of the model",
    )


def _line_of_operator(operator: str, program: ExportedProgram) -> str:
    """The user's line that first calls an operator, whatever the overload; empty if unknown."""
    name = operator.partition(".")[0]
    graphs = (getattr(module, "graph", None) for module in program.graph_module.modules())
    for node in (node for graph in graphs if graph is not None for node in graph.nodes):
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.name == name:
            return user_line_of_stack(node.meta.get("stack_trace"))
    return ""


def _tell_tracing(error: Exception) -> tuple[str, str | None]:
    """What went wrong in ``torch.export``, and what to do about it."""
    from torch._dynamo.exc import UserError
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    if isinstance(error, GuardOnDataDependentSymNode):
        return (
            "the code branches on a tensor's value, or makes a size of it",
            "compute both sides and choose with torch.where; keep sizes constant",
        )
    if isinstance(error, UserError) and "dynamic" in str(error):
        violations = "; ".join(_VIOLATION.findall(str(error)))
        return violations or reason(error), "check get_dynamic_shapes()"
    return reason(error), "it does run eagerly, but tracing sees tensors without values"
