"""Explain why an export failed: which operator, where in the user's source, what to do."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from workbench.errors import ExportError
from workbench.export.control_flow import list_calls
from workbench.export.precision import PRECISIONS
from workbench.models.sources import (
    BROKEN,
    reason,
    user_line,
    user_line_of_node,
    user_line_of_stack,
)
from workbench.process import contain
from workbench.remedies import find_nearest
from workbench.upstream import operator_of, schema_name, user_error

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


FORWARD, TRACING, LOWERING = "forward() fails", "torch.export", "lowering"
_HINTS = {
    FORWARD: "check the example inputs",
    TRACING: "the model runs in PyTorch, but tracing sees tensors without values",
}


@contextlib.contextmanager
def explain(
    stage: str, origin: str, exported: ExportedProgram | None = None,
    suggest: Callable[[], Sequence[str]] = list,
) -> Iterator[None]:  # fmt: skip
    """Turn the exceptions of a stage of the export into an `ExportError` with the user's line.

    Where nothing else is known to help, ``suggest`` names remedies that may.
    """
    try:
        with contain():
            yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # model and exporter may raise anything
        from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

        what, hint, text = reason(error), _HINTS.get(stage), str(error)
        if stage == FORWARD and isinstance(error, BROKEN):
            hint = None
        if isinstance(error, GuardOnDataDependentSymNode):
            what = "the code branches on a tensor's value, or uses it as a size"
            hint = "compute both sides and choose with torch.where; keep sizes constant"
        elif isinstance(error, user_error()) and "dynamic" in text:
            what = "; ".join(re.findall(r"^\s*- (.*)", text, re.MULTILINE)) or what
            hint = "check get_dynamic_shapes()"
        elif reading := _read_known(text):
            what, hint = reading[0] or what, reading[1]
        elif (ran := _PASS.search(text)) and error.__cause__:
            what = f"{reason(error.__cause__).rstrip('.')} (in ExecuTorch's {ran[1]})"
        where = user_line(error) or user_line_of_stack(text)
        if exported:
            what, where, hint = _explain_lowering(text, exported, origin) or (what, where, hint)
        if not where and exported and (rare := _list_rare(exported)):
            what += f"; not among the core operators of PyTorch: {', '.join(rare)}"
            where, hint = next(iter(rare.values())), "replace it, or compute it outside the model"
        hint = hint or _name_rewrites(suggest())
        raise ExportError(f"{stage}: {what}", where=where or origin, hint=hint) from error


def _name_rewrites(names: Sequence[str]) -> str | None:
    return f"--rewrite {','.join(names)} may avoid it" if names else None


_RETURN = "return tensors, in tuples, lists or dicts"
#: What upstream says, what that is in words if these are not good enough, and what to do.
_MESSAGES = (
    (r"Found (<.*?>) in output, which is not", r"forward() returns a \1",
     "return tensors, in tuples, lists or dicts; models of transformers: use_cache=False"),
    (r"does not support automatic differentiation", "",
     "freeze the weights: model.requires_grad_(False)"),
    (r"graph_output_allocated not set", "forward() returns no tensor", _RETURN),
    (r"Returning (\w+) is not yet supported in the emitter", r"forward() returns \1", _RETURN),
    (r"Invalid partition, found dependency cycles",
     "the delegates of this quantised graph would wait for each other, a fault of ExecuTorch's",
     "keep a layer before the place in floating point: --module-dtype LAYER=fp32; or choose "
     "int8dyn or fp16"),
)  # fmt: skip


def _read_known(text: str) -> tuple[str, str] | None:
    """What upstream's text says in words, and what to do, if it has a known pattern."""
    return next(filter(None, (_read(text, *each) for each in _MESSAGES)), None)


def _read(text: str, pattern: str, what: str, hint: str) -> tuple[str, str] | None:
    """What upstream's text says in words, and what to do; None if it has not this pattern."""
    match = re.search(pattern, text)
    return (match.expand(what), hint) if match else None


_PASS = re.compile(r"An error occurred when running the '(\w+)' pass")
#: What upstream says of an operator that its check finds, and of a node that it cannot emit.
_KEPT_WHOLE = re.compile(r"with op <EdgeOpOverload: (aten\.\w+).* was not decomposed or delegated")
_NOT_EMITTED = re.compile(r"Failed with error: (.*?)\s*Here is the node in the graph module:", re.S)
_OUTSIDE = "compute it outside of the body, or --backend portable, in fp32, fp16 or bf16"
_UNSUPPORTED = "Unsupported control flow operator: "


def _explain_lowering(
    text: str, exported: ExportedProgram, origin: str
) -> tuple[str, str, str | None] | None:
    """What is wrong, the user's line and a hint, if upstream says which node it does not lower."""
    if missing := re.search(r"Missing out variants: \{([^}]*)\}", text):
        raise no_kernel_error(sorted(re.findall(r"[\w:]+", missing[1])), exported, origin)
    if match := _KEPT_WHOLE.search(text):
        name = match[1].replace(".", "::")
        for node, graph in list_calls(exported.graph_module):
            if schema_name(node.target) == name and graph is not exported.graph_module:
                what = (
                    f"{match[1]} is in the body of control flow: XNNPACK's partitioner keeps it "
                    "whole, but does not look into bodies"
                )
                line = user_line_of_node(node)
                return what, line, _OUTSIDE
    if emitted := _NOT_EMITTED.search(text):
        what, hint = " ".join(emitted[1].split()), None
        if reading := _read_known(what):
            what, hint = reading
        if what.startswith(_UNSUPPORTED):
            what = f"ExecuTorch does not run {what.removeprefix(_UNSUPPORTED)}"
            hint = "loop in Python over a fixed number of steps"
        return what, user_line_of_stack(text), hint
    return None


def _list_rare(exported: ExportedProgram) -> dict[str, str]:
    """The user's line of each operator that is outside of the core ones, which passes expect."""
    import torch

    try:
        nodes = exported.run_decompositions().graph.nodes
    except Exception:  # it may be what failed
        nodes = exported.graph.nodes
    rare: dict[str, str] = {}
    for node in nodes:
        operator = operator_of(node.target)
        if operator is None or operator.namespace != "aten":
            continue
        if torch.Tag.core not in operator.tags:
            line = user_line_of_node(node)
            rare.setdefault(schema_name(operator), line)
    return rare


def check_operands(exported: ExportedProgram, dtype: str, origin: str) -> None:
    """Raise an `ExportError` at the first product of operands of several dtypes.

    Tracing accepts these, and running the model in half precision to find them takes seconds.
    """
    for node in exported.graph.nodes:
        called = schema_name(node.target)
        if called not in _PRODUCTS:
            continue
        values = [getattr(arg, "meta", {}).get("val") for arg in node.args[:3]]
        dtypes = {str(v.dtype).removeprefix("torch.") for v in values if v is not None}
        if len(dtypes) > 1:
            name, operands = called.removeprefix("aten::"), " and ".join(sorted(dtypes))
            raise ExportError(
                f"in {dtype} this is a {name} of {operands}",
                where=user_line_of_node(node) or origin,
                hint="create constants in the dtype of the inputs",
            )


def nothing_quantised(dtype: str, origin: str) -> ExportError:
    """The error for a model that has nothing that a dtype quantises."""
    text = f"nothing to quantise for {dtype} ({PRECISIONS[dtype].meaning})"
    other = "fp16" if dtype == "int8" else "int8, which also takes convolutions"
    hint = f"choose {other}; check the patterns of --module-dtype"
    return ExportError(text, where=origin, hint=hint)


def no_kernel_error(
    operators: list[str], program: ExportedProgram, origin: str, remedies: Sequence[str] = ()
) -> ExportError:
    """The error for operators of a program that the ExecuTorch runtime has no kernel for.

    ``remedies`` replace them; else the nearest function that has a kernel is named.
    """
    hint = f"--rewrite {','.join(remedies)} replaces it" if remedies else ""
    for operator in operators:
        action, code = find_nearest(operator.partition("::")[2].partition(".")[0])
        hint = hint or (f"{action}: {code}" if action else "")
    return ExportError(
        f"the ExecuTorch runtime has no kernel for {', '.join(operators)}",
        where=_line_of_operator(operators[0], program) or origin,
        hint=hint or "replace it, or compute it outside the model",
    )


def _line_of_operator(operator: str, program: ExportedProgram) -> str:
    """The user's line that first calls an operator, whatever the overload; empty if unknown."""
    name = operator.partition(".")[0]
    graphs = (getattr(module, "graph", None) for module in program.graph_module.modules())
    for node in chain.from_iterable(graph.nodes for graph in graphs if graph is not None):
        if schema_name(node.target) == name:
            return user_line_of_node(node)
    return ""
