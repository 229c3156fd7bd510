"""What to say when an export fails: which operator, where in the user's source, what to do."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from workbench.errors import ExportError
from workbench.models.blame import reason, user_line, user_line_of_stack

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_NO_OUT_VARIANT = re.compile(r"Missing out variants: \{([^}]*)\}")
_VIOLATION = re.compile(r"^\s*- (.*)", re.MULTILINE)


@contextlib.contextmanager
def explain_forward(dtype: str, origin: str) -> Iterator[None]:
    """Turn whatever the eager model raises into an `ExportError`."""
    try:
        yield
    except Exception as error:  # a model may raise anything
        raise ExportError(
            f"forward() fails in {dtype}: {reason(error)}",
            where=user_line(error) or origin,
            hint="give it inputs that it takes; make constants in the dtype of the inputs",
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
