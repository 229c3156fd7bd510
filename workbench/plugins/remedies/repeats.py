"""Work that is done again: copies of tensors, repeated keys and values, masks."""

import contextlib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from workbench.graphs import VIEWS, function_of, is_pure, readers
from workbench.plugins.remedies.comparisons import find_unbounded
from workbench.plugins.remedies.equivalence import (
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
    reshape,
    sqnr,
    value,
)
from workbench.plugins.remedies.moves import Move, arrange, map_elements, number

aten: Any = torch.ops.aten
#: Operators between a repetition and what uses it, at most.
_LONGEST_CHAIN = 6
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
                values[node] = x if aligned else x.reshape(shape)
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
        ids, shape = map_elements(finder, [node], sources), _aligned_shape(node, source)
        fits = all(a in (1, b) for a, b in zip(shape, value(node).shape, strict=True))
        (numbers,) = number([shape])
        finder.memory[key] = ids is not None and fits and torch.equal(numbers.expand_as(ids), ids)
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
    return function_of(node) in _SAME or is_pointwise(node)


#: What returns its input, in another dtype perhaps.
_SAME = {
    aten.contiguous.default, aten.clone.default, aten.detach.default, aten.alias.default,
    aten.to.dtype,
}  # fmt: skip


def find_groups(finder: Finder, last: Node) -> Equivalent | None:
    """A product or attention whose keys or values are repeated for groups of queries."""
    if last.target is aten.scaled_dot_product_attention.default:
        return _find_attention(finder, last, "groups")
    products = (aten.matmul.default, aten.bmm.default, aten.einsum.default)
    if last.target not in products or len(last.args) != 2:
        return None
    operands = last.all_input_nodes
    if len(operands) != 2 or len(value(operands[0]).shape) != 4:
        return None
    query, keys = operands
    repeated = _find_heads(finder, keys)
    if not repeated.nodes:
        return None
    turned = last.target is aten.einsum.default and _is_product(finder, last, True)
    if last.target is aten.einsum.default and not turned and not _is_product(finder, last, False):
        return None
    batch, heads, rows, width = value(query).shape
    shared, result = repeated.outer[1], list(value(last).shape)

    def build(query: Any, source: Any) -> Any:
        query = query.reshape(batch, shared, heads // shared * rows, width)
        keys = repeated.arrange(source)
        return (query @ (keys.transpose(-2, -1) if turned else keys)).reshape(result)

    text = f"{name_of(last)} of {heads // shared} heads at once instead of repeated operands"
    nodes = (*repeated.nodes, last)
    return Equivalent("groups", text, nodes, last, (query, repeated.source), build)


def _is_product(finder: Finder, node: Node, turned: bool) -> bool:
    """Whether a node is the product of two matrices, or of one with the other one transposed."""
    left, right = (finder.sample(operand) for operand in node.all_input_nodes)
    right = right * 0.7 + 0.3  # not what the left one is
    expected = finder.run([node], dict(zip(node.all_input_nodes, (left, right), strict=True)))
    with contextlib.suppress(Refused):  # the shapes do not fit
        result = call(torch.matmul, left, right.transpose(-2, -1) if turned else right)
        return sqnr(result, expected) >= least_db(left)
    return False


class _Heads(NamedTuple):
    """A tensor whose heads some nodes repeat, its axes before rows and columns, and what has these.

    It is the tensor itself if no head is repeated.
    """

    source: Node
    outer: list[int]
    nodes: tuple[Node, ...] = ()
    move: Move | None = None

    def arrange(self, x: Any) -> Any:
        """The tensor with its heads as the second axis."""
        return self.move.build({0: x}) if self.move else x


def _find_heads(finder: Finder, node: Node) -> _Heads:
    """The tensor whose heads a node repeats, each several times in a row."""
    inside, shape = [node], list(value(node).shape)
    while len(shape) == 4 and len(inside) <= _LONGEST_CHAIN and is_static(node):
        sources = finder.varying(inside[-1])
        if len(sources) != 1 or not is_pure(inside[-1]) or not is_float(sources[0]):
            break
        ids = map_elements(finder, inside[::-1], sources)
        if ids is None:
            break
        size = value(sources[0]).shape
        for count in range(shape[1], 1 if len(size) == 4 else shape[1], -1):
            some = ids[:, ::count]
            alike = shape[1] % count == 0 and torch.equal(some.repeat_interleave(count, 1), ids)
            move = arrange(some, [size], 1, expands=False) if alike else None
            if move:
                outer = [shape[0], shape[1] // count]
                return _Heads(sources[0], outer, tuple(inside[::-1]), move)
        if len(readers(sources[0])) > 1:
            break
        inside.append(sources[0])
    return _Heads(node, shape[:-2])


def _find_attention(finder: Finder, last: Node, name: str) -> Equivalent | None:
    """Attention with keys and values that groups of heads share, or with a mask; its rewriting."""
    given = arguments_of(last)
    query, key, content, mask = (given[n] for n in ("query", "key", "value", "attn_mask"))
    if given["dropout_p"] or not is_static(last):
        return None
    if given["is_causal"]:
        shape = (value(query).shape[-2], value(key).shape[-2])
        dtype = value(query).dtype
        mask = torch.full(shape, _hide(dtype), dtype=dtype).triu(1)
    keys, values = (_Heads(each, [*value(each).shape[:-2]]) for each in (key, content))
    heads = [*value(query).shape[:-2]]
    if name == "groups":
        keys, values = _find_heads(finder, key), _find_heads(finder, content)
        if not len(heads) == len(keys.outer) == 2:
            return None
        shared, count = keys.outer[1], heads[1]
        if shared >= count or count % shared:
            return None
        if isinstance(mask, Node) and (value(mask).ndim != 4 or value(mask).shape[1] != 1):
            return None
        heads[1] = shared
        text = f"attention of {count // shared} heads at once instead of repeated keys and values"
    elif mask is None or not heads:
        return None
    else:
        text = "attention with a mask without its guard"
    if not keys.outer == values.outer == heads:
        return None
    scale = given["scale"] or value(query).shape[-1] ** -0.5

    def build(query: Any, key: Any, content: Any, *mask: Any) -> Any:
        return attend(scale, query, keys.arrange(key), values.arrange(content), *mask)

    masks = (mask,) if isinstance(mask, Node) else ()
    return Equivalent(
        name, text, (*keys.nodes, *values.nodes, last), last,
        (query, keys.source, values.source, *masks), build,
        constants=(mask,) if isinstance(mask, torch.Tensor) else (),
    )  # fmt: skip


def _hide(dtype: torch.dtype) -> float:
    """What stands for masked scores in a type, in which sums with it are finite."""
    return max(_HIDDEN, torch.finfo(dtype).min / 2)


def attend(scale: float, query: Any, key: Any, values: Any, mask: Any = None) -> Any:
    """Attention in two products and a softmax; heads that share a key are one of more rows."""
    sizes = (size for tensor in (query, key, values) for size in tensor.shape)
    if not all(isinstance(size, int) for size in sizes):
        return (query * scale @ key.transpose(-2, -1)).softmax(-1) @ values
    *outer, rows, _ = query.shape
    # A product of batches of three dimensions expands nothing.
    batch, length = math.prod(key.shape[:-2]), key.shape[-2]
    query = query.reshape(batch, math.prod(outer) // batch * rows, query.shape[-1])
    key, values = (each.reshape(batch, length, each.shape[-1]) for each in (key, values))
    scores = torch.bmm(query * scale, key.transpose(-2, -1))
    if mask is not None:
        if mask.dtype == torch.bool:
            mask = (mask.to(query.dtype) - 1.0) * -_hide(query.dtype)
        is_one = math.prod(mask.shape[:-2]) == 1  # for all heads
        mask = reshape(mask, mask.shape[-2:]) if is_one else mask
        is_row = is_one and mask.shape[-2] == 1
        whole = [math.prod(outer)] if is_one else outer
        whole = scores.shape if is_row else [*whole, rows, length]
        scores = reshape(reshape(scores, whole) + mask, scores.shape)
    return torch.bmm(scores.softmax(-1), values).reshape(*outer, rows, values.shape[-1])


#: What replaces elements where a mask says so.
_FILLS = {
    aten.masked_fill.Scalar, aten.masked_fill.Tensor, aten.where.self, aten.where.ScalarOther,
}  # fmt: skip


def find_masks(finder: Finder, last: Node) -> Equivalent | None:
    """Attention with a mask, which PyTorch's decomposition guards; scores that a mask hides."""
    if last.target is aten.scaled_dot_product_attention.default:
        return _find_attention(finder, last, "masks")
    if last.target not in _FILLS or not finder.is_outside(last) or not is_pure(last):
        return None
    operands: list[Any] = [*last.args]
    fills = "masked_fill" in str(last.target)
    tensor, mask, filler = operands if fills else (operands[1], operands[0], operands[2])
    hidden: Any = finder.constants.get(filler) if isinstance(filler, Node) else filler
    if isinstance(hidden, torch.Tensor) and hidden.numel() == 1:
        hidden = hidden.item()
    nodes = [each for each in (tensor, mask) if isinstance(each, Node) and is_static(each)]
    if len(finder.varying(last)) != 2 or len(nodes) != 2 or not isinstance(hidden, int | float):
        return None
    kinds = (value(tensor).dtype, value(mask).dtype)
    if kinds != (torch.float32, torch.bool) or value(tensor).shape != value(last).shape:
        return None
    if not _hides_all(finder, last, tensor, hidden):
        return None

    def build(x: Any, mask: Any) -> Any:
        given = mask.to(torch.float32)
        if not fills:  # the mask says what stays
            given = (given - 1.0) * -1.0
        if hidden <= _HIDDEN / 1e5:
            return x + given * max(hidden, _HIDDEN)
        x = x * ((given - 1.0) * -1.0)
        return x + given * hidden if hidden else x

    text = f"{name_of(last)} as a sum or product with the mask"
    return Equivalent("masks", text, (last,), last, (tensor, mask), build)


def _hides_all(finder: Finder, last: Node, scores: Any, hidden: float) -> bool:
    """Whether sums or products with a mask hide all scores: not a 0 those that may be infinite."""
    ends = [_skip_copies(reader) for reader in readers(last)]
    if math.isinf(hidden) and not all(each.target is aten.softmax.int for each in ends):
        return False
    while hidden <= _HIDDEN / 1e5 and scores.target in _FILLS:  # those that masks hid before
        scores = scores.args["masked_fill" not in str(scores.target)]
    return scores not in find_unbounded(finder)


def _skip_copies(node: Node) -> Node:
    """The first reader of a result that computes something, if each has one reader."""
    while node.target in VIEWS and len(readers(node)) == 1:
        node = readers(node)[0]
    return node
