"""Layers that take up what is done to their results: factors, offsets, and channels in groups."""

from typing import Any

import torch
from torch.fx import Node

from workbench.export.purity import function_of, readers
from workbench.plugins.remedies.equivalence import (
    LEAST_DB,
    MOST_PROVEN,
    Equivalent,
    Finder,
    is_float,
    is_static,
    name_of,
    sqnr,
    value,
)

aten: Any = torch.ops.aten
#: The axis of the channels that a layer computes.
_CHANNELS = {
    aten.linear.default: -1, aten.conv1d.default: -2, aten.conv1d.padding: -2,
    aten.conv2d.default: -3, aten.conv2d.padding: -3,
}  # fmt: skip
#: Arithmetic that multiplies by a constant and adds one, if the other operand is constant.
_AFFINE = {
    aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.neg.default,
    aten.rsub.Scalar, aten.addcmul.default,
}  # fmt: skip


def find_affine(finder: Finder, last: Node) -> Equivalent | None:
    """Factors and offsets of what a layer computes, as a part of its weights."""
    if function_of(last) not in _AFFINE or not is_float(last, MOST_PROVEN) or not is_static(last):
        return None
    for layer, nodes in finder.parts(last):
        if any(function_of(node) not in _AFFINE for node in nodes):
            return None
        if _may_change(finder, layer, nodes):
            return _fold(finder, layer, nodes, last)
    return None


def _may_change(finder: Finder, layer: Node, nodes: list[Node]) -> bool:
    """Whether a layer has constant weights of its own, and results that only some nodes read."""
    if layer.target not in _CHANNELS or finder.varying(layer) != [layer.args[0]]:
        return False
    alone = all(len(readers(source)) == 1 for source in layer.all_input_nodes[1:])
    return alone and {*readers(layer)} <= {*nodes}


def _fold(finder: Finder, layer: Node, nodes: list[Node], last: Node) -> Equivalent | None:
    axis = _CHANNELS[layer.target]
    x = finder.sample(layer)
    if value(last).shape != x.shape or value(last).dtype != x.dtype:
        return None
    offset = finder.run(nodes, {layer: torch.zeros_like(x)})
    factor = finder.run(nodes, {layer: torch.ones_like(x)}) - offset
    offset, factor = (each.movedim(axis, -1).flatten(0, -2)[0] for each in (offset, factor))
    across = [-1, *[1] * (-axis - 1)]
    scaled = x * factor.view(across) + offset.view(across)
    if sqnr(scaled, finder.run(nodes, {layer: x})) < LEAST_DB[x.element_size()]:
        return None
    tensors: list[Any] = [finder.constants.get(each) for each in layer.args[1:3]]
    weight, bias = (*tensors, None)[:2]
    bias = offset if bias is None else bias * factor + offset
    weight = weight * factor.view(-1, *[1] * (weight.ndim - 1))

    def build(x: Any, weight: Any, bias: Any) -> Any:
        return layer.target(x, weight, bias, *layer.args[3:])  # type: ignore[operator]

    text = f"{name_of(layer)} with the factors and offsets after it in its weights"
    return Equivalent(
        "affine", text, (layer, *nodes), last, (layer.args[0],), build, 0.0,  # type: ignore[arg-type]
        constants=(weight.contiguous(), bias.contiguous()), about=tuple(nodes),
    )  # fmt: skip


def group_channels(
    finder: Finder, parts: list[Node], slices: list[Node], source: Node, last: Node
) -> Equivalent | None:
    """A convolution of each slice of the channels, put together, as one in groups."""
    target: Any = parts[0].target
    settings = parts[0].args[3:]
    if target not in (aten.conv1d.default, aten.conv2d.default):
        return None
    if any(part.target is not target or part.args[3:] != settings for part in parts):
        return None
    given = [[n for n in part.args[1:3] if isinstance(n, Node)] for part in parts]
    tensors = [[finder.constants[node] for node in nodes] for nodes in given]
    groups: Any = len(parts) * int(str(settings[3] if len(settings) > 3 else 1))

    def build(x: Any, weights: Any, *bias: Any) -> Any:
        return target(x, weights, bias[0] if bias else None, *settings[:3], groups=groups)

    text = f"one {name_of(parts[0])} in {groups} groups instead of {len(parts)}"
    each = Equivalent(
        "loops", text, (*slices, *parts, last), last, (source,), build, 1 / len(parts),
        constants=tuple(torch.cat(each) for each in zip(*tensors, strict=True)),
    )  # fmt: skip
    return finder.prove(each)
