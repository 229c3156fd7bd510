"""Work that is done again: copies of tensors, repeated keys and values, and the steps of loops."""

import contextlib
import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from workbench.export.purity import VIEWS, function_of, is_pure, readers
from workbench.plugins.remedies.equivalence import (
    LEAST_DB,
    MOST_PROVEN,
    REORDERED_DB,
    Equivalent,
    Finder,
    elements,
    evaluate,
    is_float,
    is_static,
    name_of,
    sqnr,
    value,
)
from workbench.plugins.remedies.layers import group_channels

aten: Any = torch.ops.aten
#: Operators between a repetition and what uses it, at most.
_LONGEST_CHAIN = 6
#: Layers of one input, or of one weight, from which on a single one is worth its slices.
_LEAST_ALIKE = 3
#: Stands for fully masked scores: the exponential of it is zero, and sums with it are finite.
_HIDDEN = -1e9


def find_broadcasts(finder: Finder, last: Node) -> Equivalent | None:
    """Arithmetic on a repeated tensor, which would broadcast it."""
    if not _is_pointwise(last) or not is_pure(last) or not is_float(last, MOST_PROVEN):
        return None
    inside: list[Node] = []
    places: dict[Node, Node] = {}
    for argument in last.all_input_nodes:
        _find_repeated(finder, argument, inside, places)
    nodes = tuple(sorted({*inside, last}, key=finder.place.__getitem__))
    shapes: dict[Node, Sequence[int]] = {}
    for node in nodes:
        if node in places:
            shapes[node] = _aligned_shape(node, places[node])
            continue
        sums: Any = node.args[1] if node.target in _SUMS else ()
        source = node.all_input_nodes[0]
        if any(shapes[source][axis] != value(source).shape[axis] for axis in sums):
            return None  # it counts what is repeated
        empty = {
            each: value(each).new_empty(shapes.get(each, value(each).shape), device="meta")
            for each in node.all_input_nodes
        }
        shapes[node] = evaluate(node, empty).shape
    if not places or shapes[last] != value(last).shape:
        return None
    members = {*nodes}
    outer = [s for node in nodes for s in node.all_input_nodes if s not in members]
    sources = tuple(dict.fromkeys(outer))

    def build(*tensors: Any) -> Any:
        values = dict(zip(sources, tensors, strict=True))
        for node in nodes:
            if node in places:
                source = places[node]
                shape, x = _aligned_shape(node, source), values[source]
                aligned = len(shape) == len(value(source).shape)
                values[node] = x if aligned else aten.reshape.default(x, shape)
            else:
                values[node] = evaluate(node, values)
        return values[last]

    names = ", ".join(dict.fromkeys(name_of(node) for node in places))
    text = f"arithmetic that broadcasts instead of {names}"
    return Equivalent("broadcasts", text, nodes, last, sources, build, about=tuple(places))


def _find_repeated(
    finder: Finder, node: Node, inside: list[Node], places: dict[Node, Node], depth: int = 0
) -> None:
    """Collect repetitions that a node comes from, by operators that can do without them."""
    if node in finder.constants or node.op != "call_function" or depth > _LONGEST_CHAIN:
        return
    source = _repeated(finder, node)
    if source is not None:
        inside.append(node)
        places[node] = source
    elif _keeps(node) and (len(readers(node)) == 1 or all(map(_keeps, readers(node)))):
        before = len(places)
        for argument in node.all_input_nodes:
            _find_repeated(finder, argument, inside, places, depth + 1)
        if len(places) > before:
            inside.append(node)


def _repeated(finder: Finder, node: Node) -> Node | None:
    """The tensor that a node only repeats along axes of size one; None if it does not."""
    sources = finder.varying(node)
    only_shape = sources[1:] if node.target is aten.expand_as.default else []
    is_copy = not _is_pointwise(node) and len(sources) - len(only_shape) == 1
    if not is_copy or not is_pure(node) or elements(node) > MOST_PROVEN:
        return None
    source = sources[0]
    if not is_static(source) or elements(source) >= elements(node) or not elements(source):
        return None
    key = ("repeated", finder.identify([node], sources))
    if key not in finder.memory:
        x = finder.sample(source)
        others = {other: finder.sample(other) for other in only_shape}
        result = finder.run([node], {source: x, **others})
        shape = _aligned_shape(node, source)
        fits = all(a in (1, b) for a, b in zip(shape, result.shape, strict=True))
        same = fits and torch.equal(x.reshape(shape).expand(result.shape), result)
        finder.memory[key] = same
    return source if finder.memory[key] else None


def _aligned_shape(node: Node, source: Node) -> list[int]:
    """The shape of what a node repeats, with as many dimensions as the result."""
    shape = list(value(source).shape)
    return [1] * (len(value(node).shape) - len(shape)) + shape


#: Sums and means of some axes.
_SUMS = {aten.sum.dim_IntList, aten.mean.dim}


def _keeps(node: Node) -> bool:
    """Whether a node of a repeated tensor may compute a repeated tensor."""
    return (_is_pointwise(node) or bool(node.target in _SUMS and node.args[1])) and is_pure(node)


def _is_pointwise(node: Node) -> bool:
    target = function_of(node)
    return target in _SAME or torch.Tag.pointwise in getattr(target, "tags", ())


#: What returns its input, in another dtype perhaps.
_SAME = {
    aten.contiguous.default, aten.clone.default, aten.detach.default, aten.alias.default,
    aten.to.dtype,
}  # fmt: skip


def find_groups(finder: Finder, last: Node) -> Equivalent | None:
    """A product or attention whose keys or values are repeated for groups of queries."""
    if last.target is aten.scaled_dot_product_attention.default:
        return _find_grouped_attention(finder, last)
    products = (aten.matmul.default, aten.bmm.default, aten.einsum.default)
    if last.target not in products or len(last.args) != 2:
        return None
    operands = last.all_input_nodes
    if len(operands) != 2 or len(value(operands[0]).shape) != 4:
        return None
    query, keys = operands
    repeated = _find_heads(finder, keys, (False, True))
    if repeated is None:
        return None
    turned = repeated.turned
    if last.target is aten.einsum.default:
        ways = [way for way in (True, False) if _is_product(finder, last, way)]
        if not ways or turned:
            return None
        turned = ways[0]
    batch, heads, rows, width = value(query).shape
    shared, result = repeated.count, list(value(last).shape)

    def build(query: Any, source: Any) -> Any:
        query = aten.reshape.default(query, [batch, shared, heads // shared * rows, width])
        keys = repeated.arrange(source)
        keys = aten.transpose.int(keys, -2, -1) if turned else keys
        return aten.reshape.default(aten.matmul.default(query, keys), result)

    text = f"{name_of(last)} of {heads // shared} heads at once instead of repeated operands"
    nodes = (*repeated.nodes, last)
    return Equivalent("groups", text, nodes, last, (query, repeated.source), build)


def _is_product(finder: Finder, node: Node, turned: bool) -> bool:
    """Whether a node is the product of two matrices, or of one with the other one transposed."""
    left, right = (finder.sample(operand) for operand in node.all_input_nodes)
    right = right * 0.7 + 0.3  # not what the left one is
    expected = finder.run([node], dict(zip(node.all_input_nodes, (left, right), strict=True)))
    with contextlib.suppress(RuntimeError):  # the shapes do not fit
        result = left @ (right.transpose(-2, -1) if turned else right)
        return sqnr(result, expected) >= LEAST_DB[left.element_size()] - REORDERED_DB
    return False


@dataclass(frozen=True)
class _Heads:
    """A tensor whose heads some nodes repeat.

    The heads are its second axis, or the third one if it is ``swapped``; the result is ``turned``
    if its last two axes are transposed.
    """

    source: Node
    nodes: tuple[Node, ...] = ()
    turned: bool = False
    swapped: bool = False

    @property
    def count(self) -> int:
        return value(self.source).shape[2 if self.swapped else 1]

    def arrange(self, x: Any) -> Any:
        """The tensor with its heads as the second axis."""
        return aten.transpose.int(x, 1, 2) if self.swapped else x


def _find_heads(finder: Finder, node: Node, turns: Sequence[bool]) -> _Heads | None:
    """The tensor whose heads a node repeats, and how."""
    if len(value(node).shape) != 4 or not is_float(node, MOST_PROVEN) or not is_static(node):
        return None
    inside = [node]
    while len(inside) <= _LONGEST_CHAIN:
        sources = finder.varying(inside[-1])
        if len(sources) != 1 or not is_pure(inside[-1]) or not is_float(sources[0]):
            return None
        ways = itertools.product(turns, (False, True))
        for heads in (_Heads(sources[0], tuple(inside[::-1]), *way) for way in ways):
            if _repeats_heads(finder, heads, node):
                return heads
        if len(readers(sources[0])) > 1:
            return None
        inside.append(sources[0])
    return None


def _repeats_heads(finder: Finder, heads: _Heads, node: Node) -> bool:
    """Whether a node has the heads of a tensor, each several times in a row."""
    whole = value(node).shape[1]
    if len(value(heads.source).shape) != 4 or heads.count >= whole or whole % heads.count:
        return False
    x = finder.sample(heads.source)
    expected = heads.arrange(x).repeat_interleave(whole // heads.count, 1)
    expected = expected.transpose(-2, -1) if heads.turned else expected
    return torch.equal(expected, finder.run(heads.nodes, {heads.source: x}))


def _find_grouped_attention(finder: Finder, last: Node) -> Equivalent | None:
    query, _, mask = _attention_inputs(last)
    if len(query.shape) != 4:
        return None
    given: list[Any] = [*last.args[1:3]]
    keys, values = (_find_heads(finder, node, (False,)) or _Heads(node) for node in given)
    heads, shared = query.shape[1], keys.count
    alike = values.count == shared < heads and heads % shared == 0
    if not alike or _width(last) is None or not is_static(last):
        return None
    if isinstance(mask, Node) and (len(value(mask).shape) != 4 or value(mask).shape[1] != 1):
        return None
    attend = _make_attention(last, shared)

    def build(query: Any, key: Any, value: Any, *masks: Any) -> Any:
        return attend(query, keys.arrange(key), values.arrange(value), *masks)

    masks = [mask] if isinstance(mask, Node) else []
    sources: Any = (last.args[0], keys.source, values.source, *masks)
    nodes = (*keys.nodes, *values.nodes, last)
    text = f"attention of {heads // shared} heads at once instead of repeated keys and values"
    constants = (_causal_mask(last),) if _is_causal(last) else ()
    return Equivalent("groups", text, nodes, last, sources, build, constants=constants)


def find_masks(finder: Finder, last: Node) -> Equivalent | None:
    """Attention with a mask, which PyTorch's decomposition guards; scores that a mask hides."""
    if last.target in _FILLS:
        return _find_filled(finder, last)
    if last.target is not aten.scaled_dot_product_attention.default or not is_static(last):
        return None
    query, key, mask = _attention_inputs(last)
    plain = len(query.shape) == len(key.shape) >= 3 and query.shape[:-2] == key.shape[:-2]
    masked = isinstance(mask, Node) or _is_causal(last)
    if not plain or not masked or _width(last) is None:
        return None
    sources = [*last.args[:3], *([mask] if isinstance(mask, Node) else [])]
    constants = (_causal_mask(last),) if _is_causal(last) else ()
    text = "attention with a mask without its guard"
    return Equivalent(
        "masks", text, (last,), last, tuple(sources), _make_attention(last), constants=constants
    )  # type: ignore[arg-type]


#: What replaces elements where a mask says so.
_FILLS = {
    aten.masked_fill.Scalar, aten.masked_fill.Tensor, aten.where.self, aten.where.ScalarOther,
}  # fmt: skip


def _find_filled(finder: Finder, last: Node) -> Equivalent | None:
    """A number in place of what a mask that depends on inputs hides, by arithmetic."""
    fills = "masked_fill" in str(last.target)
    operands: list[Any] = [*last.args]
    tensor, mask, filler = operands if fills else (operands[1], operands[0], operands[2])
    number: Any = finder.constants.get(filler) if isinstance(filler, Node) else filler
    if isinstance(number, torch.Tensor) and number.numel() == 1:
        number = number.item()
    typed = isinstance(tensor, Node) and isinstance(mask, Node) and isinstance(number, int | float)
    if not typed or not finder.is_outside(last) or not is_pure(last):
        return None
    if mask in finder.constants or tensor in finder.constants or not is_float(tensor, MOST_PROVEN):
        return None
    hidden, dtype = float(number), value(tensor).dtype
    if dtype != torch.float32 or not is_static(last) or not is_static(mask):
        return None
    if value(tensor).shape != value(last).shape or value(mask).dtype != torch.bool:
        return None
    scores = [_skip_copies(reader) for reader in readers(last)]
    if math.isinf(hidden) and not all(each.target is aten.softmax.int for each in scores):
        return None

    def build(x: Any, mask: Any) -> Any:
        given = aten.to.dtype(mask, dtype)
        if not fills:  # the mask says what stays
            given = aten.mul.Tensor(aten.sub.Tensor(given, 1.0), -1.0)
        if hidden <= _HIDDEN / 1e5:
            return aten.add.Tensor(x, aten.mul.Tensor(given, max(hidden, _HIDDEN)))
        stays = aten.mul.Tensor(aten.sub.Tensor(given, 1.0), -1.0)
        x = aten.mul.Tensor(x, stays)
        return aten.add.Tensor(x, aten.mul.Tensor(given, hidden)) if hidden else x

    text = f"{name_of(last)} as a sum or product with the mask"
    return Equivalent("masks", text, (last,), last, (tensor, mask), build)


def _skip_copies(node: Node) -> Node:
    """The first reader of a result that computes something, if each has one reader."""
    while node.target in VIEWS and len(readers(node)) == 1:
        node = readers(node)[0]
    return node


def _attention_inputs(node: Node) -> tuple[torch.Tensor, torch.Tensor, Any]:
    mask = node.args[3] if len(node.args) > 3 else node.kwargs.get("attn_mask")
    return value(node.args[0]), value(node.args[1]), mask


def _is_causal(node: Node) -> bool:
    return bool(node.args[5] if len(node.args) > 5 else node.kwargs.get("is_causal", False))


def _width(node: Node) -> int | None:
    """The width of a head; None if it is dynamic, or the attention drops some scores."""
    width = value(node.args[0]).shape[-1]
    dropout = node.args[4] if len(node.args) > 4 else node.kwargs.get("dropout_p", 0.0)
    return width if isinstance(width, int) and not dropout else None


def _causal_mask(node: Node) -> torch.Tensor:
    query, key, _ = _attention_inputs(node)
    rows, columns = query.shape[-2], key.shape[-2]
    seen = torch.ones(rows, columns, dtype=torch.bool).tril()
    return torch.zeros(rows, columns, dtype=query.dtype).masked_fill(~seen, _HIDDEN)


def _make_attention(node: Node, shared: int = 0) -> Any:
    """Attention in two products and a softmax; of groups of queries for each ``shared`` head."""
    query, _, mask = _attention_inputs(node)
    shape, rows = list(query.shape), query.shape[-2]
    scale = node.kwargs.get("scale") or 1 / math.sqrt(query.shape[-1])
    is_bool = isinstance(mask, Node) and value(mask).dtype == torch.bool
    group = shape[1] // shared if shared else 1

    def build(query: Any, key: Any, values: Any, *masks: Any) -> Any:
        query = aten.mul.Tensor(query, scale)
        if shared:
            query = aten.reshape.default(query, [shape[0], shared, group * rows, shape[-1]])
        scores = aten.matmul.default(query, aten.transpose.int(key, -2, -1))
        for given in masks:
            hidden = given
            if is_bool:
                seen = aten.to.dtype(given, value(node.args[0]).dtype)
                hidden = aten.mul.Tensor(aten.sub.Tensor(seen, 1.0), -_HIDDEN)
            scores = _add_mask(scores, hidden, shape, shared, group, rows, _columns(node))
        scores = aten.softmax.int(scores, -1)
        result = aten.matmul.default(scores, values)
        if shared:
            result = aten.reshape.default(result, list(value(node).shape))
        return result

    return build


def _columns(node: Node) -> int:
    return value(node.args[1]).shape[-2]


def _add_mask(
    scores: Any, mask: Any, shape: list[int], shared: int, group: int, rows: int, columns: int
) -> Any:
    """Scores with a mask, which is the same for all queries of a group."""
    if not shared or rows == 1:
        return aten.add.Tensor(scores, mask)
    scores = aten.reshape.default(scores, [shape[0] * shared * group, rows, columns])
    mask = aten.reshape.default(mask, [-1, rows, columns])
    whole = [shape[0], shared, group * rows, columns]
    return aten.reshape.default(aten.add.Tensor(scores, mask), whole)


def find_loops(finder: Finder, last: Node) -> Equivalent | None:
    """Steps of a loop that one operator computes at once."""
    if not is_pure(last) or not is_float(last, MOST_PROVEN) or not is_static(last):
        return None
    if last.target in (aten.cat.default, aten.stack.default):
        whole = _join_slices(finder, last) or _group(finder, last) or _batch(finder, last)
        return whole or _flatten(last) or _sink(finder, last)
    return _share_input(finder, last) or _share_weights(finder, last)


def _parts_of(last: Node) -> tuple[list[Node], int]:
    parts: Any = last.args[0]
    axis: Any = last.args[1] if len(last.args) > 1 else last.kwargs.get("dim", 0)
    return list(parts), int(axis) % len(value(last).shape)


def _join_slices(finder: Finder, last: Node) -> Equivalent | None:
    """Slices of one tensor that are put together as it was."""
    parts, _ = _parts_of(last)
    nodes, source = _trace_slices(finder, parts)
    if source is None or elements(source) != elements(last) or not is_float(source):
        return None
    x = torch.arange(elements(source)).reshape(value(source).shape).to(value(source).dtype)
    result = finder.run([*nodes, last], {source: x})
    build = _find_arrangement(x, result, len(parts))
    if build is None:
        return None
    text = f"a tensor instead of its {len(parts)} slices put together"
    return Equivalent("loops", text, (*nodes, last), last, (source,), build, kept=0.0)


def _trace_slices(finder: Finder, parts: Sequence[Node]) -> tuple[list[Node], Node | None]:
    """What takes parts of one tensor, in order, and that tensor; None if they are of several."""
    nodes, sources = set[Node](), set[Node]()
    for part in parts:
        node = part
        while node.target in _SLICING and len(finder.varying(node)) == 1:
            nodes.add(node)
            node = finder.varying(node)[0]
        sources.add(node)
    alike = len(sources) == 1 and sources.isdisjoint(parts)
    return sorted(nodes, key=finder.place.__getitem__), sources.pop() if alike else None


def _group(finder: Finder, last: Node) -> Equivalent | None:
    """The same convolution of each slice of a tensor, with weights of its own."""
    parts, axis = _parts_of(last)
    operands: list[Any] = [part.args[0] for part in parts if part.args]
    if axis != 1 or [finder.varying(part) for part in parts] != [[x] for x in operands]:
        return None
    slices, source = _trace_slices(finder, operands)
    return group_channels(finder, parts, slices, source, last) if source else None


def _find_arrangement(x: torch.Tensor, result: torch.Tensor, count: int) -> Any:
    """What arranges a tensor as its slices are: nothing, or one axis in front."""
    whole = list(result.shape)
    if torch.equal(x.reshape(whole), result):
        return lambda x: aten.reshape.default(x, whole)
    for axis, size in enumerate(x.shape):
        if size % count:
            continue
        split = [*x.shape[:axis], count, size // count, *x.shape[axis + 1 :]]
        order = [axis, *(a for a in range(len(split)) if a != axis)]
        if torch.equal(x.reshape(split).permute(order).reshape(whole), result):
            moved = aten.permute.default
            return lambda x: aten.reshape.default(
                moved(aten.reshape.default(x, split), order), whole
            )
    return None


_SLICING = {
    aten.slice.Tensor, aten.select.int, aten.unsqueeze.default, aten.split.Tensor,
    aten.chunk.default, aten.unbind.int, aten.split_with_sizes.default, operator.getitem,
    aten.view.default, aten.reshape.default, aten.squeeze.dim,
}  # fmt: skip


def _flatten(last: Node) -> Equivalent | None:
    """Concatenations of concatenations along one axis as one: each copies what is there."""
    if last.target is not aten.cat.default:
        return None
    inside: list[Node] = []
    _, axis = _parts_of(last)

    def flatten(node: Node) -> list[Node]:
        parts, along = _parts_of(node)
        whole = []
        for part in parts:
            alone = part.target is aten.cat.default and len(readers(part)) == 1
            if alone and _parts_of(part)[1] == along == axis:
                inside.append(part)
                whole += flatten(part)
            else:
                whole.append(part)
        return whole

    parts = flatten(last)
    if not inside:
        return None
    order = list(dict.fromkeys(parts))
    places = [order.index(part) for part in parts]
    kept = elements(last) / (elements(last) + sum(map(elements, inside)))
    text = f"one concatenation of {len(parts)} tensors instead of {len(inside) + 1} that grow"
    nodes = (*reversed(inside), last)
    build = lambda *tensors: aten.cat.default([tensors[place] for place in places], axis)  # noqa: E731
    return Equivalent("loops", text, nodes, last, tuple(order), build, kept=kept)


def _batch(finder: Finder, last: Node) -> Equivalent | None:
    """Operators of each part of a tensor, one part after the other, as those of all at once."""
    parts, axis = _parts_of(last)
    loop = _Loop(finder, len(parts))
    if len(parts) < 2 or not loop.join(tuple(parts)) or loop.source is None or not loop.computes:
        return None
    source, leaf = loop.source, loop.leaf
    nodes = sorted({*loop.nodes}, key=finder.place.__getitem__)
    used = dict.fromkeys(each for node in loop.steps for each in node.all_input_nodes)
    others = [node for node in used if node in finder.constants]

    def build(x: Any, *given: Any) -> Any:
        values = dict(zip(others, given, strict=True))
        values[leaf] = aten.reshape.default(x, loop.shape_of(leaf))
        for node in loop.steps:
            if node.target in _SHAPES:
                x = values[node.all_input_nodes[0]]
                values[node] = aten.reshape.default(x, loop.shape_of(node))
            else:
                values[node] = evaluate(node, values)
        shape = [len(parts), *value(parts[0]).shape]
        return _move_front(aten.reshape.default(values[parts[0]], shape), parts[0], axis, last)

    text = f"{len(parts)} parts of a tensor at once instead of one after the other"
    each = Equivalent(
        "loops", text, (*nodes, last), last, (source, *others), build, kept=1 / len(parts)
    )
    return finder.prove(each)


class _Loop:
    """Steps of a loop that do the same with parts of one tensor, which lie in it one by one.

    ``steps`` are the operators of the first part, which are tried on all parts put together.
    """

    def __init__(self, finder: Finder, count: int) -> None:
        self.finder, self.count = finder, count
        self.source: Node | None = None
        self.leaf: Any = None
        self.nodes: list[Node] = []
        self.steps: list[Node] = []
        self.joined: dict[tuple[Node, ...], bool] = {}

    @property
    def computes(self) -> bool:
        """Whether some of the operators do more than arrange data."""
        return any(node.target not in _SHAPES for node in self.steps)

    def shape_of(self, node: Node) -> list[int]:
        """The shape of what a step returns for all parts, put together along the first axis."""
        first, *rest = value(node).shape
        return [self.count * first, *rest]

    def join(self, group: tuple[Node, ...]) -> bool:
        """Whether some nodes are the same step of each part."""
        if group not in self.joined:
            apart = len({*group}) == self.count  # none is read by several parts
            self.joined[group] = apart and (self._is_leaf(group) or self._is_step(group))
        return self.joined[group]

    def _is_leaf(self, group: tuple[Node, ...]) -> bool:
        nodes, source = _trace_slices(self.finder, group)
        if source is None or elements(source) != self.count * elements(group[0]):
            return False
        if self.leaf is not None or not value(group[0]).shape:
            return False  # of several tensors
        x = torch.arange(elements(source)).view(value(source).shape).to(value(source).dtype)
        values = {**self.finder.constants, source: x}
        for node in nodes:
            values[node] = evaluate(node, values)
        if not torch.equal(torch.cat([values[n].flatten() for n in group]), x.flatten()):
            return False
        self.source, self.leaf = source, group[0]
        self.nodes += nodes
        return True

    def _is_step(self, group: tuple[Node, ...]) -> bool:
        first = group[0]
        if not all(_is_like(node, first) for node in group) or not value(first).shape:
            return False
        if first.target in _SHAPES and elements(first) != elements(first.all_input_nodes[0]):
            return False
        for places in zip(*(node.args for node in group), strict=True):
            shared = all(each is places[0] or _is_equal(each, places[0]) for each in places)
            if shared and places[0] not in self.finder.varying(first):
                continue
            if not all(isinstance(each, Node) for each in places) or not self.join(places):
                return False
        self.nodes += group
        self.steps.append(first)
        return True


#: Views that have all elements in the same order; selections of the only one along an axis, too.
_SHAPES = {
    aten.view.default, aten.reshape.default, aten.squeeze.dim, aten.squeeze.dims,
    aten.squeeze.default, aten.unsqueeze.default, aten.flatten.using_ints, aten.select.int,
}  # fmt: skip


def _move_front(x: Any, part: Node, axis: int, last: Node) -> Any:
    """Parts along a new axis in front, as a concatenation has them along another axis."""
    if axis:
        rank = len(value(part).shape) + 1
        x = aten.permute.default(x, [*range(1, axis + 1), 0, *range(axis + 1, rank)])
    return aten.reshape.default(x, list(value(last).shape))


def _sink(finder: Finder, last: Node) -> Equivalent | None:
    """The same operator of several tensors, as one of these tensors put together."""
    parts, axis = _parts_of(last)
    first, varied = parts[0], _list_varied(finder, parts)
    if not varied:
        return None
    products = (aten.mm.default, aten.bmm.default)
    target = aten.matmul.default if first.target in products else function_of(first)
    joined = [tuple(part.args[place] for part in parts) for place in varied]
    sources = dict.fromkeys(node for group in joined for node in group)
    shared = [first.args[n] for n in range(len(first.args)) if n not in varied]
    order = tuple(dict.fromkeys([*sources, *(a for a in shared if isinstance(a, Node))]))

    def compute(tensors: tuple[Any, ...], put: Any, axis: int) -> Any:
        values = dict(zip(order, tensors, strict=True))
        arguments: list[Any] = [values.get(a, a) if isinstance(a, Node) else a for a in first.args]
        for place, group in zip(varied, joined, strict=True):
            arguments[place] = put([values[node] for node in group], axis)
        return target(*arguments, **first.kwargs)

    def build(*tensors: Any) -> Any:
        return compute(tensors, last.target, axis)

    def build_in_front(*tensors: Any) -> Any:
        """The tensors along a new axis in front, which is then moved to where it belongs."""
        return _move_front(compute(tensors, aten.stack.default, 0), first, axis, last)

    text = f"{name_of(first)} once instead of {len(parts)} times"
    for builder in (build, build_in_front):
        each = Equivalent("loops", text, (*parts, last), last, order, builder, kept=1 / len(parts))
        with contextlib.suppress(RuntimeError, IndexError, ValueError):  # it takes no such shapes
            if finder.prove(each):
                return each
    return None


def _list_varied(finder: Finder, parts: Sequence[Node]) -> list[int]:
    """The arguments in which calls of one operator differ, if these are tensors of one shape."""
    first = parts[0]
    joining = (*_SLICING, aten.cat.default, aten.stack.default)
    if len(parts) < 2 or first.target in joining or not all(_is_like(p, first) for p in parts):
        return []
    if any(len(readers(part)) > 1 for part in parts):
        return []
    varied = []
    for place, argument in enumerate(first.args):
        others = [part.args[place] for part in parts]
        if all(other is argument or _is_equal(other, argument) for other in others):
            continue
        if not all(isinstance(o, Node) and o not in finder.constants for o in others):
            return []
        if len({tuple(value(other).shape) for other in others}) != 1:
            return []
        varied.append(place)
    return varied


def _is_like(part: Node, first: Node) -> bool:
    """Whether a node calls the operator of another one, with its shape."""
    return (
        part.op == "call_function"
        and part.target == first.target
        and part.kwargs == first.kwargs
        and len(part.args) == len(first.args)
        and is_pure(part)
        and value(part).shape == value(first).shape
    )


def _is_equal(one: Any, other: Any) -> bool:
    return not isinstance(one, Node) and not isinstance(other, Node) and one == other


def _share_weights(finder: Finder, last: Node) -> Equivalent | None:
    """A layer of slices of one tensor, as slices of the layer of that tensor."""
    if last.target not in _LAYERS or len(finder.varying(last)) != 1:
        return None
    part: Any = last.args[0]
    if finder.varying(last)[0] is not part or part.target not in _CUTS:
        return None
    source: Any = part.args[0]
    axis = part.args[1] if len(part.args) > 1 else 0
    rank = len(value(source).shape)
    if axis % rank == rank - 1 or not is_float(source) or not is_static(source):
        return None
    alike = [
        user
        for cut in readers(source)
        if cut.target is part.target and cut.args[1:2] == part.args[1:2]
        for user in readers(cut)
        if user.target is last.target and user.args[1:] == last.args[1:] and user.args[0] is cut
    ]
    if len(alike) < _LEAST_ALIKE:
        return None
    weights = tuple(node for node in last.args[1:] if isinstance(node, Node))
    target = aten.matmul.default if last.target is aten.mm.default else last.target

    def build(x: Any, *weights: Any) -> Any:
        whole = target(x, *weights)
        return part.target(whole, *part.args[1:])

    text = f"{name_of(last)} of a whole tensor instead of its {len(alike)} slices"
    each = Equivalent(
        "loops", text, (part, last), last, (source, *weights), build, kept=1 / len(alike)
    )
    return each if finder.prove(each) else None


def _share_input(finder: Finder, last: Node) -> Equivalent | None:
    """A narrow layer of a tensor that others read too, as a slice of one wide layer."""
    if last.target is not aten.linear.default or finder.varying(last) != [last.args[0]]:
        return None
    source: Any = last.args[0]
    alike = [
        user
        for user in readers(source)
        if user.target is last.target
        and user.args[0] is source
        and finder.varying(user) == [source]
        and len(user.args) == len(last.args)
        and value(user).shape[-1] <= _NARROW
    ]
    if len(alike) < _LEAST_ALIKE or last not in alike:
        return None
    ends = [0]
    for layer in alike:
        ends.append(ends[-1] + value(layer).shape[-1])
    place = alike.index(last)
    weights = _concatenate(finder, alike, 1)
    biases = (_concatenate(finder, alike, 2),) if len(last.args) > 2 else ()
    axis = len(value(last).shape) - 1

    def build(x: Any, *given: Any) -> Any:
        whole = aten.linear.default(x, *given)
        return aten.slice.Tensor(whole, axis, ends[place], ends[place + 1])

    text = f"one linear layer instead of {len(alike)} of the same input"
    return Equivalent(
        "loops", text, (last,), last, (source,), build, 1 / len(alike), constants=(weights, *biases)
    )


def _concatenate(finder: Finder, layers: list[Node], place: int) -> torch.Tensor:
    """The weights of several layers in one tensor, the same each time."""
    key = ("whole", place, tuple(layers))
    if key not in finder.memory:
        tensors: list[Any] = [finder.constants[layer.args[place]] for layer in layers]  # type: ignore[index]
        finder.memory[key] = torch.cat(tensors)
    return finder.memory[key]


_CUTS = {aten.slice.Tensor, aten.select.int}
#: Layers of constant weights whose rows do not depend on each other.
_LAYERS = {aten.linear.default, aten.mm.default, aten.matmul.default}
#: Outputs of a layer that is worth being a part of another one.
_NARROW = 32
