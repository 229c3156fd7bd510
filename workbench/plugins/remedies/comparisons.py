"""Comparisons, and what is chosen by them, as numbers of 0 and 1: XNNPACK has no truth values."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import Node

from workbench.graphs import is_pure
from workbench.plugins.remedies.equivalence import (
    MOST_PROVEN,
    Equivalent,
    Finder,
    arguments_of,
    is_float,
    is_static,
    value,
)

aten: Any = torch.ops.aten
Number = Callable[..., torch.Tensor]


def _is_positive(x: torch.Tensor) -> torch.Tensor:
    """1 where a number is above 0, else 0: no number between rounds up to 0."""
    return torch.ceil(torch.clamp(x, 0, 1))


def _is_other(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return _is_positive(torch.abs(x - y))


def _no(x: torch.Tensor) -> torch.Tensor:
    """Of a number of 0 or 1 the other one; a 1 of its rank keeps the layout of images."""
    return torch.ones([1] * x.ndim, dtype=x.dtype) - x


#: What compares two tensors, or truth values, by its overloads.
_TRUTHS: dict[Any, Number] = {
    aten.gt: lambda x, y: _is_positive(x - y),
    aten.lt: lambda x, y: _is_positive(y - x),
    aten.ge: lambda x, y: _no(_is_positive(y - x)),
    aten.le: lambda x, y: _no(_is_positive(x - y)),
    aten.ne: _is_other,
    aten.eq: lambda x, y: _no(_is_other(x, y)),
    **dict.fromkeys((aten.logical_and, aten.bitwise_and, aten.__and__), torch.mul),
    **dict.fromkeys((aten.logical_or, aten.bitwise_or, aten.__or__), torch.maximum),
    **dict.fromkeys((aten.logical_not, aten.bitwise_not), _no),
}
#: What makes numbers of truth values, by its overloads and in the order of their arguments.
_CHOICES: dict[Any, Number] = {
    **dict.fromkeys((aten.to, aten.type_as), lambda truth, *_: truth),
    aten.mul: lambda x, y: x * y,
    aten.where: lambda truth, x, y: x * truth + y * _no(truth),
    aten.masked_fill: lambda x, truth, y: x * _no(truth) + y * truth,
}


def find_comparison(finder: Finder, last: Node) -> Equivalent | None:
    """Numbers that are chosen by comparisons of floating-point numbers."""
    choose = _of(_CHOICES, last)
    if choose is None or not is_float(last, MOST_PROVEN) or not is_static(last):
        return None
    nodes: list[Node] = []
    if not _collect(finder, last, nodes) or not any(map(finder.is_outside, nodes)):
        return None
    members = {*nodes}
    operands = (source for node in nodes for source in node.all_input_nodes)
    sources = tuple(dict.fromkeys(source for source in operands if source not in members))
    if len(nodes) < 2 or not sources:
        return None

    def build(*tensors: Any) -> Any:
        values = dict(zip(sources, tensors, strict=True))
        for node in nodes[:-1]:
            values[node] = _TRUTHS[node.target.overloadpacket](*_operands(node, values))  # type: ignore[union-attr]
        return choose(*_operands(last, values)).expand(value(last).shape)

    text = "comparisons as numbers of 0 and 1"
    return finder.prove(Equivalent("functions", text, (*nodes,), last, sources, build))


def _of(table: Mapping[Any, Number], node: Node) -> Number | None:
    pure = node.op == "call_function" and is_pure(node)
    return table.get(getattr(node.target, "overloadpacket", None)) if pure else None


def _collect(finder: Finder, node: Node, nodes: list[Node]) -> bool:
    """Collect what makes the truth values that a node reads, in order; False if that is unknown."""
    for operand in node.all_input_nodes:
        if is_float(operand, MOST_PROVEN) and is_static(operand):
            continue
        is_truth = operand.meta["val"].dtype is torch.bool
        if operand in finder.constants or not is_truth or _of(_TRUTHS, operand) is None:
            return False
        if operand not in nodes and not _collect(finder, operand, nodes):
            return False
    nodes.append(node)
    return True


def _operands(node: Node, values: Mapping[Node, Any]) -> list[Any]:
    """What a node reads: tensors, and numbers as tensors of the rank of its result."""
    like, rank = next(iter(values.values())), [1] * value(node).ndim
    arguments = (x for x in arguments_of(node).values() if not isinstance(x, bool))
    return [
        values[x] if isinstance(x, Node) else torch.full(rank, x, dtype=like.dtype)
        for x in arguments
        if isinstance(x, Node | int | float)
    ]
