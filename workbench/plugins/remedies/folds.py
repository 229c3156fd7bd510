"""Linear maps around layers of constant weights, which take them up.

A selection, a shuffle, a product or a sum of channels before or after a layer is a part of its
weights. A resizing to the nearest element before a filter is a smaller filter before the resizing.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product, takewhile
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from workbench.graphs import VIEWS, readers
from workbench.plugins.remedies.equivalence import (
    MOST_PROVEN,
    Equivalent,
    Finder,
    arguments_of,
    elements,
    evaluate,
    is_float,
    is_pointwise,
    is_static,
    name_of,
    names_of,
    reshape,
    value,
)
from workbench.plugins.remedies.linear import MOVED, ChannelMap, count_work, read_map
from workbench.plugins.remedies.moves import arrange, map_elements, number

aten: Any = torch.ops.aten
#: The axis of the channels that a layer reads and computes.
_CHANNELS = {
    aten.linear.default: -1, aten.conv1d.default: -2, aten.conv2d.default: -3,
    aten.conv1d.padding: -2, aten.conv2d.padding: -3,
}  # fmt: skip
#: Operators between a tensor and a layer, at most.
_MOST_BETWEEN = 8
#: Weights may become so many times as many.
_MOST_WIDENED = 2


def find_fold(finder: Finder, last: Node) -> Equivalent | None:
    """A layer with the linear maps of its channels, before or after it, in its weights."""
    if not is_float(last, MOST_PROVEN) or not is_static(last):
        return None
    if _is_layer(finder, last):
        return _fold_before(finder, last)
    for layer, nodes in finder.parts(last, most=_MOST_BETWEEN):
        if (
            _is_layer(finder, layer)
            and len(readers(layer)) == 1
            and not VIEWS.issuperset(node.target for node in nodes)
        ):
            return _fold_after(finder, layer, nodes, last)
    return None


def _is_layer(finder: Finder, node: Node) -> bool:
    """Whether a node is a layer of constant weights, whose channels all meet each other."""
    if node.target not in _CHANNELS or finder.varying(node) != [node.args[0]]:
        return False
    groups = arguments_of(node).get("groups", 1)
    batched = value(node).ndim > 1 - _CHANNELS[node.target] - 1
    return groups == 1 and batched and is_static(node) and not node.kwargs


def _weights_of(finder: Finder, layer: Node) -> tuple[torch.Tensor, torch.Tensor]:
    """The weights and the bias of a layer, which may be zeros."""
    given = arguments_of(layer)
    weights, bias = finder.constants[given["weight"]], given["bias"]
    return weights, weights.new_zeros(len(weights)) if bias is None else finder.constants[bias]


def _fold_before(finder: Finder, layer: Node) -> Equivalent | None:
    """A layer that reads what its input, or some parts of it, are linear maps of."""
    given: Any = layer.args[0]
    axis = value(given).ndim + _CHANNELS[layer.target]
    folded = _fold_parts(finder, layer, [given], axis)
    joins = given.target is aten.cat.default and len(readers(given)) == 1
    if folded or not joins or (*given.args[1:], 0)[0] % value(given).ndim != axis:
        return folded
    return _fold_parts(finder, layer, given.args[0], axis, (given,))


def _fold_parts(
    finder: Finder, layer: Node, parts: Sequence[Node], axis: int, joins: tuple[Node, ...] = ()
) -> Equivalent | None:
    """A layer that reads some parts one after the other, with what is before each of them."""
    weights, bias = _weights_of(finder, layer)
    shape = value(layer.args[0]).shape
    rows, columns = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    most = min(MOST_PROVEN, _MOST_WIDENED * rows * columns * weights.shape[1])
    pieces, sources, inside = list[torch.Tensor](), list[Node](), list[Node]()
    places = weights.split([value(part).shape[axis] for part in parts], 1)
    for part, piece in zip(parts, places, strict=True):
        source, nodes, each = _find_before(finder, part, rows, columns, most)
        if each is not None:
            offset = each.offset.to(piece.dtype)
            bias = (
                bias + piece.flatten(2).sum(2) @ offset if piece.ndim > 2 else bias + piece @ offset
            )
            piece = each.before(piece, elements(source) // (rows * columns))
        inside += nodes
        pieces.append(piece)
        sources.append(source)
    whole = torch.cat(pieces, 1)
    more = (whole[0].numel() - weights[0].numel()) * elements(layer)
    is_wide = whole.numel() > _MOST_WIDENED * weights.numel()
    if not inside or is_wide or more > sum(map(count_work, inside)):
        return None
    shapes = [[*shape[:axis], piece.shape[1], *shape[axis + 1 :]] for piece in pieces]
    order: tuple[Node, ...] = tuple(dict.fromkeys(sources))

    def build(*tensors: Any) -> Any:
        given = dict(zip(order, tensors, strict=False))
        views = [reshape(given[x], size) for x, size in zip(sources, shapes, strict=True)]
        x = aten.cat.default(views, axis) if len(views) > 1 else views[0]
        return layer.target(x, *tensors[len(order) :], *layer.args[3:])  # type: ignore[operator]

    text = f"{name_of(layer)} with the {names_of(inside)} before it in one layer"
    members, constants = (*inside, *joins, layer), (whole, bias)
    part = _prove(finder, text, members, layer, order, build, constants, inside)
    if part and more < 0:  # arithmetic of the layer goes, too
        work = elements(layer) * weights[0].numel()
        kept = (work + more) / (work + sum(map(count_work, inside)))
        return replace(part, kept=kept, about=part.nodes)
    return part


def _find_before(
    finder: Finder, part: Node, rows: int, columns: int, most: int
) -> tuple[Node, list[Node], ChannelMap | None]:
    """What a part of a layer's input is a linear map of: the tensor that is the least work."""
    best: tuple[Node, list[Node], ChannelMap | None] = (part, [], None)
    if part.op != "call_function" or len(readers(part)) > 1 or not is_float(part, MOST_PROVEN):
        return best
    for source, nodes in finder.parts(part, borders=(), most=_MOST_BETWEEN):
        if not is_float(source, most) or not is_static(source):
            break
        each = read_map(finder, nodes, source, rows, columns)
        if each is None and not VIEWS.issuperset(node.target for node in nodes):
            break
        if each is not None and (each.changes() or part.target is aten.batch_norm.default):
            best = source, nodes, each
    return best


def _fold_after(finder: Finder, layer: Node, nodes: list[Node], last: Node) -> Equivalent | None:
    """A layer whose results are those of a linear map of its channels, or some of them.

    Functions of single numbers may be between the layer and what drops the others.
    """
    shape = list(value(layer).shape)
    axis = len(shape) + _CHANNELS[layer.target]
    rows, columns = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    between = [*takewhile(lambda x: is_pointwise(x) and len(x.all_input_nodes) == 1, nodes)]
    if between == nodes:
        return None  # all channels alike
    each = read_map(finder, nodes, layer, rows, columns)
    if each is None and between:
        each = read_map(finder, nodes[len(between) :], between[-1], rows, columns)
        each = each if each and each.matrix.ndim == 1 else None
    else:
        between = []
    if each is None:
        return None
    weights, bias = (each.after(tensor) for tensor in _weights_of(finder, layer))
    bias = bias + each.offset.to(bias.dtype)
    work, others = rows * columns * weights[0].numel(), sum(map(count_work, nodes))
    fewer = len(weights) < shape[axis]
    if (len(weights) - shape[axis]) * work > others or not (fewer or each.changes()):
        return None
    result = list(value(last).shape)

    def build(x: Any, *given: Any) -> Any:
        x = layer.target(x, *given, *layer.args[3:])  # type: ignore[operator]
        for node in between:
            x = evaluate(node, {node.all_input_nodes[0]: x})
        return reshape(x, result)

    text = f"{name_of(layer)} with the {names_of(nodes)} after it in one layer"
    sources: Any = (layer.args[0],)
    part = _prove(finder, text, (layer, *nodes), last, sources, build, (weights, bias), nodes)
    if part and fewer:  # arithmetic of the layer goes, too
        kept = len(weights) * work / (shape[axis] * work + others)
        return replace(part, kept=kept, about=part.nodes)
    return part


def _prove(
    finder: Finder, text: str, nodes: Sequence[Node], last: Node, sources: tuple[Node, ...],
    build: Any, constants: tuple[torch.Tensor, ...], about: Sequence[Node],
) -> Equivalent | None:  # fmt: skip
    """A layer with other weights, which was shown to compute the same."""
    order = tuple(sorted(dict.fromkeys(nodes), key=finder.place.__getitem__))
    given = tuple(tensor.contiguous() for tensor in constants)
    return finder.prove(Equivalent(
        "affine", text, order, last, sources, build, 0.0, constants=given, about=tuple(about),
    ))  # fmt: skip


#: Elements that are repeated to a block's side, at most.
_MOST_REPEATS = 4


def find_resized(finder: Finder, last: Node) -> Equivalent | None:
    """A filter of an image of repeated elements, as a smaller filter before these are repeated.

    It computes all elements of a block at once, as channels.
    """
    if last.target is not aten.conv2d.default or finder.varying(last) != [last.args[0]]:
        return None
    strides, _, dilation, _ = [*arguments_of(last).values()][3:]
    image: Any = last.args[0]
    if not is_float(last, MOST_PROVEN) or not is_static(last) or image.op != "call_function":
        return None
    if [*strides, *dilation] != [1] * 4 or len(readers(image)) > 1 or value(image).ndim != 4:
        return None
    for source, nodes in finder.parts(image, most=_MOST_BETWEEN):
        is_smaller = is_static(source) and elements(source) < elements(image)
        if not is_float(source) or not is_smaller or value(source).ndim != 4:
            continue
        ids = map_elements(finder, nodes, [source])
        blocks = None if ids is None else _read_blocks(ids, value(source).shape, last)
        if ids is None or blocks is not None:
            return None if blocks is None else _shrink(finder, nodes, source, last, blocks)
    return None


class _Blocks(NamedTuple):
    """An image, with zeros around it, as blocks of repeated elements.

    Of each axis: the first place that is read of the first block, and the rows of a smaller image
    that the blocks are made of; -1 stands for zeros.
    """

    side: int
    firsts: list[int]
    lines: list[list[int]]


def _read_blocks(ids: torch.Tensor, shape: Sequence[int], last: Node) -> _Blocks | None:
    """The blocks of a map of an image that a convolution reads; None if it has none."""
    rows, columns = ids[0, 0, :, 0] // shape[3] % shape[2], ids[0, 0, 0] % shape[3]
    (numbers,) = number([shape])
    if not torch.equal(ids, numbers.index_select(2, rows).index_select(3, columns)):
        return None
    side = int((rows == shape[2] // 2).sum())
    firsts, lines = list[int](), list[list[int]]()
    for line, margin in zip((rows, columns), arguments_of(last)["padding"], strict=True):
        whole = [-1] * margin + line.tolist() + [-1] * margin
        for first in range(side if 1 < side <= _MOST_REPEATS else 0):
            starts = range(-first, len(whole), side)
            blocks = [whole[max(start, 0) : start + side] for start in starts]
            if all(len({*block}) == 1 for block in blocks):
                firsts.append(first)
                lines.append([block[0] for block in blocks])
                break
    return _Blocks(side, firsts, lines) if len(lines) == 2 else None


def _shrink(
    finder: Finder, nodes: list[Node], source: Node, last: Node, blocks: _Blocks
) -> Equivalent | None:
    """A smaller filter of a smaller image, whose channels are the elements of blocks."""
    weights, bias = _weights_of(finder, last)
    side, shape, result = blocks.side, list(value(source).shape), value(last).shape
    tall, wide = ((side + size - 2) // side + 1 for size in weights.shape[2:])
    small = weights.new_zeros(len(weights), side, side, weights.shape[1], tall, wide)
    for down, right, row, column in product(
        range(side), range(side), *map(range, weights.shape[2:])
    ):
        taps = small[:, down, right, :, (down + row) // side, (right + column) // side]
        taps += weights[:, :, row, column]
    lines = [[place for place in line if place >= 0] for line in blocks.lines]
    padding = [next(n for n, place in enumerate(line) if place >= 0) for line in blocks.lines]
    sizes = [
        len(line) + 2 * margin - size + 1
        for line, margin, size in zip(lines, padding, (tall, wide), strict=True)
    ]
    reached = (
        first + size <= side * count
        for first, size, count in zip(blocks.firsts, result[2:], sizes, strict=True)
    )
    before = elements(last) * weights[0].numel()
    after = math.prod(sizes) * shape[0] * len(weights) * side**2 * small[0, 0, 0].numel()
    if not all(reached) or after + 2 * MOVED * elements(last) > before:
        return None
    ids = number([shape])[0]
    for axis, line in enumerate(lines, 2):
        ids = ids.index_select(axis, torch.tensor(line))
    move = arrange(ids, [shape])
    if move is None:
        return None
    groups = arguments_of(last)["groups"]

    def build(x: Any, weights: Any, bias: Any) -> Any:
        x = aten.conv2d.default(move.build({0: x}), weights, bias, [1, 1], padding, [1, 1], groups)
        x = aten.pixel_shuffle.default(x, side)
        for axis, first, size in zip((2, 3), blocks.firsts, result[2:], strict=True):
            x = aten.slice.Tensor(x, axis, first, first + size)
        return x

    text = f"a convolution of {tall} x {wide} before the {names_of(nodes)} instead of one after it"
    constants = (small.flatten(0, 2), bias.repeat_interleave(side**2))
    return finder.prove(Equivalent(
        "order", text, (*nodes, last), last, (source,), build, after / before,
        constants=constants, about=(last,),
    ))  # fmt: skip
