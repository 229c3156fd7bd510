"""Linear maps around layers of constant weights, which take them up.

A selection, a shuffle, a product or a sum of channels before or after a layer is a part of its
weights. A layer of single positions is computed before a resizing, and so is a smaller filter
before a resizing to the nearest element; of what is concatenated, each part by itself.
"""

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from itertools import chain, product, takewhile
from typing import Any, NamedTuple

import torch
from torch.fx import Node
from torch.nn.utils.fusion import fuse_conv_bn_weights

from workbench.graphs import PRODUCTS, VIEWS, readers
from workbench.plugins.remedies.equivalence import (
    BORDERS,
    MOST_KEPT,
    MOST_PROVEN,
    Equivalent,
    Finder,
    Refused,
    arguments_of,
    call,
    elements,
    evaluate,
    is_float,
    is_pointwise,
    is_static,
    least_db,
    name_of,
    names_of,
    reshape,
    sqnr,
    value,
)
from workbench.plugins.remedies.linear import (
    MOVED,
    ChannelMap,
    count_products,
    count_work,
    read_map,
)
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
        work_share = (work + more) / (work + sum(map(count_work, inside)))
        return replace(part, kept=work_share, about=part.nodes)
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
    work, other_work = rows * columns * weights[0].numel(), sum(map(count_work, nodes))
    fewer = len(weights) < shape[axis]
    if (len(weights) - shape[axis]) * work > other_work or not (fewer or each.changes()):
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
        work_share = len(weights) * work / (shape[axis] * work + other_work)
        return replace(part, kept=work_share, about=part.nodes)
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
#: Channels on which parts are compared first.
_FEW = 4


class _Early(NamedTuple):
    """A layer of what it reads, or of a part of that, before positions are added to this.

    ``build`` makes it from the values of nodes, ``weights`` and ``repeats`` of the bias, to which
    an ``offset`` is added. There is no ``text`` where it reads as many positions as before.
    """

    source: Node
    nodes: Sequence[Node]
    text: str
    work: int
    weights: torch.Tensor
    build: Callable[[Mapping[Node, Any], Any, Any], Any]
    repeats: int = 1
    offset: torch.Tensor | float = 0.0


def find_resized(finder: Finder, last: Node) -> Equivalent | None:
    """A layer of a smaller tensor instead of one that is resized or repeated for the layer.

    Parts that it reads one after the other are computed each by itself, and added.
    """
    read = _read_layer(finder, last)
    if read is None:
        return None
    layer, weights, bias = read
    image: Any = layer.args[0]
    axis = value(image).ndim + _CHANNELS[layer.target]
    parts, pieces = [image], [weights]
    joins = image.target is aten.cat.default and (*image.args[1:], 0)[0] % value(image).ndim == axis
    joins = joins and arguments_of(layer).get("groups", 1) == 1
    if joins:
        parts = image.args[0]
        pieces = [*weights.split([value(part).shape[axis] for part in parts], 1)]
    grows = any(_grows(finder, part) for part in parts)
    moved = list(map(partial(_find_early, finder, layer), parts, pieces)) if grows else []
    early = [each for each in moved if each]
    if not any(each.text for each in early):
        return None
    whole_places = [place for place, each in enumerate(moved) if each is None]

    def read_others(given: Mapping[Node, Any], weights: Any, bias: Any) -> Any:
        rest = [given[parts[place]] for place in whole_places]
        x = aten.cat.default(rest, axis) if len(rest) > 1 else rest[0]
        return layer.target(x, weights, bias, *layer.args[3:])  # type: ignore[operator]

    terms = [(each.build, each.weights, each.repeats) for each in early]
    if whole_places:
        whole = torch.cat([pieces[place] for place in whole_places], 1)
        terms.insert(0, (read_others, whole, 1))
    inside = dict.fromkeys(node for each in early for node in each.nodes)
    before = _count_layer(layer, weights) + sum(map(count_products, inside))
    before += MOVED * sum(elements(each.nodes[-1]) for each in early)
    before += MOVED * elements(image) * joins
    after = sum(each.work for each in early)
    after += sum(_count_layer(layer, pieces[place]) for place in whole_places)
    after += MOVED * sum(elements(parts[place]) for place in whole_places) * (len(whole_places) > 1)
    after += MOVED * elements(layer) * (len(terms) - 1)
    if after > MOST_KEPT * before:
        return None
    cheap_nodes = (node for node in inside if node.target not in PRODUCTS)
    constants = (x for node in cheap_nodes for x in node.all_input_nodes if x in finder.constants)
    read_by = [parts[place] for place in whole_places] + [each.source for each in early]
    sources = tuple(dict.fromkeys([*read_by, *constants]))

    def build(*tensors: Any) -> Any:
        given = dict(zip(sources, tensors, strict=False))
        bias, *weights = tensors[len(sources) :]
        biases = [bias, *[None] * (len(terms) - 1)]
        made = (term[0](given, *each) for term, *each in zip(terms, weights, biases, strict=True))
        return reduce(aten.add.Tensor, made)

    text = next(each.text for each in early if each.text)
    if joins:
        text += f", and the sum of {len(terms)} results instead of a concatenation"
    nodes = tuple(sorted({*inside, *[image] * joins, layer, last}, key=finder.place.__getitem__))
    for each in early:
        bias = bias + each.offset
    tensors = (bias.repeat_interleave(terms[0][2]), *(term[1].contiguous() for term in terms))
    share = after / before
    return Equivalent("order", text, nodes, last, sources, build, share, constants=tensors)


def _grows(finder: Finder, part: Node) -> bool:
    """Whether a tensor has more elements than what it is made of, so that a trial is worth it."""
    sources = (source for source, _ in finder.parts(part, most=_MOST_BETWEEN))
    return part.target not in BORDERS and any(elements(each) < elements(part) for each in sources)


def _count_layer(layer: Node, weights: torch.Tensor) -> int:
    """The multiplications of a layer with some of its weights."""
    return elements(layer) * weights[0].numel()


def _read_layer(finder: Finder, last: Node) -> tuple[Node, torch.Tensor, torch.Tensor] | None:
    """A layer of constant weights with these and a bias; also with a batch norm after it."""
    layer: Any = last
    if last.target is aten.batch_norm.default and not arguments_of(last)["training"]:
        layer = last.args[0]
    if layer.target not in _CHANNELS or layer.kwargs or not is_static(layer):
        return None
    if layer is not last and (layer.target is aten.linear.default or len(readers(layer)) > 1):
        return None
    image = layer.args[0]
    if finder.varying(layer) != [image] or image.op != "call_function" or len(readers(image)) > 1:
        return None
    weights, bias = _weights_of(finder, layer)
    if layer is not last:
        _, scale, offset, mean, variance, _, _, eps, _ = (
            finder.constants.get(each, each) for each in arguments_of(last).values()
        )
        fused = fuse_conv_bn_weights(weights, bias, mean, variance, eps, scale, offset)
        weights, bias = (each.detach() for each in fused)
    return layer, weights, bias


def _find_early(finder: Finder, layer: Node, part: Node, weights: torch.Tensor) -> _Early | None:
    """A layer of what a part of its input is made of, if that is less work."""
    if part.op != "call_function" or len(readers(part)) > 1 or part.target in BORDERS:
        return None
    axis = value(part).ndim + _CHANNELS[layer.target]
    is_local = math.prod(weights.shape[2:]) == 1
    best, least = None, _count_layer(layer, weights) + MOVED * elements(part)
    for source, nodes in chain([(part, [])], finder.parts(part, most=_MOST_BETWEEN)):
        is_small = is_float(source, MOST_PROVEN) and elements(source) <= elements(part)
        alike = is_small and value(source).ndim == value(part).ndim
        if not alike or value(source).shape[axis] != value(part).shape[axis]:
            continue
        move = _move_before if is_local else _shrink
        with contextlib.suppress(Refused):
            each = move(finder, layer, nodes, source, weights)
            if each and each.work + MOVED * elements(layer) < least:
                best, least = each, each.work + MOVED * elements(layer)
    return best


def _move_before(
    finder: Finder, layer: Node, nodes: list[Node], source: Node, weights: torch.Tensor
) -> _Early | None:
    """A layer that reads single positions, before these are added.

    So are the functions of single numbers that are between.
    """
    tail = [*takewhile(lambda x: is_pointwise(x) and len(finder.varying(x)) == 1, nodes[::-1])]
    tail, head = tail[::-1], nodes[: len(nodes) - len(tail)]
    if nodes and not head:
        return None
    middle = head[-1] if head else source
    if head and elements(source) == elements(middle):
        x = finder.sample(source)
        same = torch.equal(_walk(head, finder.constants, source, x), x)
        head = [] if same else head

    def build(given: Mapping[Node, Any], weights: Any, bias: Any) -> Any:
        x = _walk(tail, given, middle, given[source])
        x = call(layer.target, x, weights, bias, *layer.args[3:])  # type: ignore[arg-type]
        return _walk(head, given, source, x)

    axis = value(source).ndim + _CHANNELS[layer.target]
    work = elements(source) // value(source).shape[axis] * weights.numel()
    work += MOVED * elements(layer) * bool(head)
    adds = nodes and elements(source) < elements(nodes[-1])
    text = f"{name_of(layer)} before {names_of(head)}, which adds positions" if adds else ""
    each = _Early(source, nodes, text, work, weights, build)
    for most in (_FEW, None):  # some operators take only the channels that they have
        with contextlib.suppress(Refused):
            small = weights[:most, :most]
            if not _is_shown(finder, layer, each, small, small):
                return None
            merged = each if tail else _merge(finder, layer, each, head)
            return merged if merged.nodes else None
    return None


def _merge(finder: Finder, layer: Node, each: _Early, head: list[Node]) -> _Early:
    """The same with the linear layer that makes the tensor in its weights, if that is less work."""
    parts = finder.parts(each.source, most=_MOST_BETWEEN)
    rows, nodes = next(
        (part for part in parts if part[0].target is aten.linear.default), (None, [])
    )
    alone = rows and len(readers(rows)) == len(readers(each.source)) == 1
    if not rows or not alone or finder.varying(rows) != [rows.args[0]] or value(rows).ndim < 3:
        return each
    axes = [*range(value(rows).ndim)]
    axes = axes if layer.target is aten.linear.default else [0, axes[-1], *axes[1:-1]]
    shape, ids = [*value(each.source).shape], map_elements(finder, nodes, [rows])
    turned = number([value(rows).shape])[0].permute(axes).flatten()
    given, bias = _weights_of(finder, rows)
    matrix = each.weights.flatten(1)
    merged, positions = matrix @ given, elements(rows) // len(given)
    more = positions * (merged.numel() - matrix.numel())
    if ids is None or not torch.equal(ids.flatten(), turned) or more >= positions * given.numel():
        return each
    source: Any = rows.args[0]
    shape[_CHANNELS[layer.target]] = len(merged)

    def build(given: Mapping[Node, Any], weights: Any, bias: Any) -> Any:
        x = aten.linear.default(given[source], weights, bias)
        x = x if axes == sorted(axes) else aten.permute.default(x, axes)
        return _walk(head, given, each.source, reshape(x, shape))

    text = f"{each.text}, with the linear before it in its weights" if each.text else ""
    return _Early(
        source, [rows, *nodes, *each.nodes], text, each.work + more, merged, build,
        offset=matrix @ bias,
    )  # fmt: skip


def _walk(nodes: Sequence[Node], given: Mapping[Node, Any], source: Node, x: Any) -> Any:
    """What some operators make of a tensor."""
    values = {**given, source: x}
    for node in nodes:
        values[node] = x = evaluate(node, values)
    return x


def _is_shown(
    finder: Finder, layer: Node, each: _Early, weights: torch.Tensor, early: torch.Tensor
) -> bool:
    """Whether a layer with some weights computes the same before, with others, as after."""
    axis = _CHANNELS[layer.target]
    shape = [*value(each.source).shape]
    shape[axis] = weights.shape[1] * arguments_of(layer).get("groups", 1)
    finder.tries -= elements(layer) // value(layer).shape[axis] * sum(weights.shape[:2])
    if finder.tries < 0:
        return False
    sample = finder.sample(each.source, (*shape,))
    bias = torch.linspace(0.5, 1.5, len(weights)).to(sample.dtype)
    for factor in (1.0, torch.finfo(sample.dtype).max ** 0.4):  # on which bounds act
        x = sample * factor
        given = {**finder.constants, each.source: x}
        result = each.build(given, early, bias.repeat_interleave(each.repeats))
        read = _walk(each.nodes, given, each.source, x)
        expected = call(layer.target, read, weights, bias, *layer.args[3:])  # type: ignore[arg-type]
        if sqnr(result, expected) < least_db(x):
            return False
    return True


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
    finder: Finder, layer: Node, nodes: list[Node], source: Node, weights: torch.Tensor
) -> _Early | None:
    """A smaller filter of a smaller image, whose channels are the elements of blocks."""
    given = arguments_of(layer)
    is_plain = layer.target is aten.conv2d.default and value(source).ndim == 4
    if not nodes or not is_plain or [*given["stride"], *given["dilation"]] != [1] * 4:
        return None
    ids = map_elements(finder, nodes, [source])
    blocks = None if ids is None else _read_blocks(ids, value(source).shape, layer)
    if blocks is None:
        return None
    side, shape, result = blocks.side, list(value(source).shape), value(layer).shape
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
    work = math.prod(sizes) * shape[0] * small.numel() + 2 * MOVED * elements(layer)
    if not all(reached) or elements(nodes[-1]) > MOST_PROVEN:
        return None
    ids = number([shape])[0]
    for axis, line in enumerate(lines, 2):
        ids = ids.index_select(axis, torch.tensor(line))
    move = arrange(ids, [shape])
    if move is None:
        return None
    groups = given["groups"]

    def build(given: Mapping[Node, Any], weights: Any, bias: Any) -> Any:
        x = move.build({0: given[source]})
        x = aten.conv2d.default(x, weights, bias, [1, 1], padding, [1, 1], groups)
        x = aten.pixel_shuffle.default(x, side)
        for axis, first, size in zip((2, 3), blocks.firsts, result[2:], strict=True):
            x = aten.slice.Tensor(x, axis, first, first + size)
        return x

    text = f"a convolution of {tall} x {wide} before the {names_of(nodes)} instead of one after it"
    each = _Early(source, nodes, text, work, small.flatten(0, 2), build, side**2)
    return each if _is_shown(finder, layer, each, weights, each.weights) else None
