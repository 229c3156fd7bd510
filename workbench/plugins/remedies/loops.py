"""The steps of loops: slices that are joined, layers that share their input or weights."""

import contextlib
import operator
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch.fx import Node

from workbench.export.purity import function_of, is_pure, readers
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
    is_static,
    name_of,
    value,
)
from workbench.plugins.remedies.layers import group_channels
from workbench.plugins.remedies.moves import arrange, map_elements, number

aten: Any = torch.ops.aten
#: Layers of one input, or of one weight, from which on a single one is worth its slices.
_LEAST_ALIKE = 3
_CUTS = {aten.slice.Tensor, aten.select.int}
#: Layers of constant weights whose rows do not depend on each other.
_LAYERS = {aten.linear.default, aten.mm.default, aten.matmul.default}
#: Outputs of a layer that is worth being a part of another one.
_NARROW = 32


def find_loops(finder: Finder, last: Node) -> Equivalent | None:
    """Steps of a loop that one operator computes at once."""
    if not is_pure(last) or not is_float(last, MOST_PROVEN) or not is_static(last):
        return None
    if last.target in (aten.cat.default, aten.stack.default):
        whole = _join_slices(finder, last) or _group(finder, last) or _batch(finder, last)
        return whole or _flatten(finder, last) or _sink(finder, last)
    return _share_input(finder, last) or _share_weights(finder, last)


def _parts_of(last: Node) -> tuple[list[Node], int]:
    parts, axis = arguments_of(last).values()
    return list(parts), axis % value(last).ndim


def _join_slices(finder: Finder, last: Node) -> Equivalent | None:
    """Slices of one tensor that are put together as it was, or with one axis in front."""
    parts, _ = _parts_of(last)
    nodes, source = _trace_slices(finder, parts)
    if source is None or elements(source) != elements(last) or not is_float(source):
        return None
    ids = map_elements(finder, [*nodes, last], [source])
    move = arrange(ids, [value(source).shape], 1, False) if ids is not None else None
    if move is None:
        return None
    text = f"a tensor instead of its {len(parts)} slices put together"
    build = lambda x: move.build({0: x})  # noqa: E731
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


_SLICING = {
    aten.slice.Tensor, aten.select.int, aten.unsqueeze.default, aten.split.Tensor,
    aten.chunk.default, aten.unbind.int, aten.split_with_sizes.default, operator.getitem,
    aten.view.default, aten.reshape.default, aten.squeeze.dim,
}  # fmt: skip


def _flatten(finder: Finder, last: Node) -> Equivalent | None:
    """Concatenations of concatenations along one axis as one: each copies what is there."""
    nodes, order, waiting, (_, axis) = list[Node](), list[Node](), [last], _parts_of(last)
    while waiting:
        node = waiting.pop()
        is_inside = node.target is aten.cat.default and (node is last or len(readers(node)) == 1)
        if is_inside and _parts_of(node)[1] == axis:
            nodes.append(node)
            waiting += reversed(_parts_of(node)[0])
        else:
            order.append(node)
    if len(nodes) < 2:
        return None
    nodes.sort(key=finder.place.__getitem__)
    sources = tuple(dict.fromkeys(order))

    def build(*tensors: Any) -> Any:
        given = dict(zip(sources, tensors, strict=True))
        return aten.cat.default([given[part] for part in order], axis)

    kept = elements(last) / sum(map(elements, nodes))
    text = f"one concatenation of {len(order)} tensors instead of {len(nodes)} that grow"
    return Equivalent("loops", text, tuple(nodes), last, sources, build, kept=kept)


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
        if not isinstance(value(source), torch.Tensor):
            return False  # several results of an operator
        if self.leaf is not None or not value(group[0]).shape:
            return False  # of several tensors
        values = {**self.finder.constants, source: number([value(source).shape])[0]}
        for node in nodes:
            values[node] = evaluate(node, values)
        order = torch.cat([values[node].flatten() for node in group])
        if not torch.equal(order, values[source].flatten()):
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
    for builder in (partial(call, build), partial(call, build_in_front)):
        each = Equivalent("loops", text, (*parts, last), last, order, builder, kept=1 / len(parts))
        with contextlib.suppress(Refused):
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
    axis = arguments_of(part)["dim"] % value(source).ndim
    if axis == value(source).ndim - 1 or not is_float(source) or not is_static(source):
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
