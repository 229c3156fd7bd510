"""Comparisons, and what is chosen by them, as numbers of 0 and 1: XNNPACK has no truth values."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import Node

from workbench.graphs import PRODUCTS, function_of, is_pure
from workbench.plugins.remedies.equivalence import (
    MOST_PROVEN,
    Equivalent,
    Finder,
    arguments_of,
    call,
    is_float,
    is_pointwise,
    is_static,
    value,
)

aten: Any = torch.ops.aten
Number = Callable[..., torch.Tensor]


def _is_positive(x: torch.Tensor) -> torch.Tensor:
    """1 where a number is above 0, else 0: no number between rounds up to 0."""
    return torch.ceil(torch.clamp(x, 0, 1))


def _differs(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
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
    aten.ne: _differs,
    aten.eq: lambda x, y: _no(_differs(x, y)),
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
#: Functions of each element whose results are finite where the operands are.
_BOUNDED = {
    aten.add, aten.sub, aten.rsub, aten.mul, aten.neg, aten.abs, aten.sign, aten.square,
    aten.maximum, aten.minimum, aten.clamp, aten.clamp_min, aten.clamp_max,
    aten.floor, aten.ceil, aten.round, aten.trunc, aten.sin, aten.cos, aten.atan, aten.erf,
    aten.relu, aten.relu6, aten.leaky_relu, aten.elu, aten.gelu, aten.silu, aten.mish,
    aten.sigmoid, aten.tanh, aten.softplus, aten.hardtanh, aten.hardsigmoid, aten.hardswish,
    aten.to, aten.type_as, aten.clone, aten.where, aten.masked_fill,
}  # fmt: skip
_TESTS = {aten.isnan.default, aten.isinf.default, aten.isfinite.default}
#: Arguments of casts that are truth values and no operands.
_OF_CASTS = {"non_blocking", "copy"}


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
    if len(nodes) < 2 or not sources or not find_unbounded(finder).isdisjoint(sources):
        return None

    def build(*tensors: Any) -> Any:
        values = dict(zip(sources, tensors, strict=True))
        for node in nodes[:-1]:
            values[node] = _TRUTHS[node.target.overloadpacket](*_operands(node, values))  # type: ignore[union-attr]
        return choose(*_operands(last, values)).expand(value(last).shape)

    text = "comparisons as numbers of 0 and 1"
    return finder.prove(Equivalent("functions", text, (*nodes,), last, sources, build))


def find_unbounded(finder: Finder) -> set[Node]:
    """What may be infinite or no number, though the inputs are finite, up to the next product.

    A 0 does not choose it away, as a truth value does: such as the logarithm of what is above 0.
    """

    def collect() -> set[Node]:
        tests = filter(_asks_for_infinity, finder.nodes)
        unbounded = {operand for test in tests for operand in test.all_input_nodes}
        for node in finder.nodes:
            reads_some = not unbounded.isdisjoint(node.all_input_nodes)
            if node.target not in PRODUCTS and (reads_some or not _is_bounded(finder, node)):
                unbounded.add(node)
        return unbounded

    return finder.recall("unbounded", collect)  # type: ignore[no-any-return]


def _asks_for_infinity(node: Node) -> bool:
    """Whether a node asks if numbers are finite, which says that they may not be."""
    is_comparison = _of(_TRUTHS, node) is not None
    return node.target in _TESTS or (is_comparison and not _is_decided(node))


def _is_bounded(finder: Finder, node: Node) -> bool:
    """Whether the results of a node are finite where its operands are, as far as is known."""
    if node in finder.constants:
        return bool(finder.constants[node].isfinite().all())
    if any(isinstance(each, float) and not math.isfinite(each) for each in node.args):
        return False
    kernel = getattr(function_of(node), "overloadpacket", None)
    if kernel is aten.div:
        divisor: Any = node.args[1]
        divisor = finder.constants.get(divisor) if isinstance(divisor, Node) else divisor
        return divisor is not None and bool(torch.as_tensor(divisor != 0).all())
    return kernel in _BOUNDED or not is_pointwise(node)


def _of(table: Mapping[Any, Number], node: Node) -> Number | None:
    pure = node.op == "call_function" and is_pure(node)
    return table.get(getattr(node.target, "overloadpacket", None)) if pure else None


def _collect(finder: Finder, node: Node, nodes: list[Node]) -> bool:
    """Collect what makes the truth values that a node reads, in order; False if that is unknown."""
    for operand in node.all_input_nodes:
        if is_float(operand, MOST_PROVEN) and is_static(operand):
            continue
        is_truth = operand.meta["val"].dtype is torch.bool
        if operand in finder.constants or not is_truth or not _is_decided(operand):
            return False
        if operand not in nodes and not _collect(finder, operand, nodes):
            return False
    nodes.append(node)
    return True


def _is_decided(node: Node) -> bool:
    """Whether the difference of two operands decides it: not what `x != x` or infinity asks."""
    numbers = (each for each in node.args if isinstance(each, int | float))
    differ = len({*node.args}) == len(node.args)
    return _of(_TRUTHS, node) is not None and differ and all(map(math.isfinite, numbers))


def _operands(node: Node, values: Mapping[Node, Any]) -> list[Any]:
    """What a node reads: tensors, and numbers as tensors of the rank of its result."""
    like, rank = next(iter(values.values())), [1] * value(node).ndim
    arguments = (x for name, x in arguments_of(node).items() if name not in _OF_CASTS)
    return [
        values[x] if isinstance(x, Node) else call(torch.full, rank, x, dtype=like.dtype)
        for x in arguments
        if isinstance(x, Node | int | float)
    ]
