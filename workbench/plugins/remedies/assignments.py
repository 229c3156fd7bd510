"""Tensors that are assigned to part by part, as these parts put together."""

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch.fx import Node
from torch.fx.node import map_arg

from workbench.graphs import (
    find_root,
    function_of,
    is_overwritten,
    is_pure,
    list_aliases,
    overwrites,
    readers,
)
from workbench.plugins.remedies.equivalence import (
    FULL,
    MOST_PROVEN,
    Equivalent,
    Finder,
    evaluate,
    is_float,
    is_static,
    least_db,
    make_full,
    reshape,
    sqnr,
    value,
)
from workbench.plugins.remedies.moves import Move, arrange, number

aten: Any = torch.ops.aten
#: What makes a tensor without values, or of one number.
_EMPTY = {aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default}
_MADE = _EMPTY | FULL
_ASSIGN = {aten.copy_.default, aten.fill_.Tensor, aten.fill_.Scalar}
#: Blocks at most: more take longer than the assignments.
_MOST_BLOCKS = 32


class _Source(NamedTuple):
    """What is assigned: the shape of a tensor, and what it is if that is constant.

    An operator that overwrites a view is evaluated on what the views that it reads were then, which
    ``operands`` makes of sources before.
    """

    node: Any
    shape: tuple[int, ...]
    constant: torch.Tensor | None = None
    operands: Mapping[Node, Move] = MappingProxyType({})


def find_assignments(finder: Finder, last: Node) -> Equivalent | None:
    """A tensor whose parts are assigned one after the other, up to the last of them."""
    if not _is_assignment(last) or not finder.is_outside(last):
        return None
    root = find_root(last)
    if root.op != "call_function" or not is_float(root, MOST_PROVEN) or not is_static(root):
        return None
    if finder.outside is not None and last in finder.fixed:
        return None  # the export may compute it
    nodes = _list_early(finder, root, last)
    if nodes is None or not _reads_whole(root, last, nodes):
        return None
    canvas, aliases = _Canvas(root, finder.constants), {*list_aliases(root)}
    if not all(canvas.follow(node, node in aliases) for node in nodes):
        return None
    move = canvas.arrange(root)
    return None if move is None else _replace(finder, canvas, move, nodes, last)


def _replace(
    finder: Finder, canvas: "_Canvas", move: Move, nodes: list[Node], last: Node
) -> Equivalent | None:
    """What computes a tensor from the parts that were assigned; None if it has other values."""
    root, sources = canvas.root, canvas.list_used(move)
    pieces = [move, *(each for source in sources.values() for each in source.operands.values())]
    is_read = root.target in _EMPTY and 0 in sources
    if is_read or sum(each.pieces for each in pieces) > _MOST_BLOCKS:
        return None
    constants = {
        place: source.constant.reshape(source.shape).contiguous()
        for place, source in sources.items()
        if source.constant is not None
    }
    inputs = tuple(dict.fromkeys(chain(*map(_inputs_of, sources.values()))))

    def build(*given: Any) -> Any:
        values = dict(zip((*inputs, *constants), given, strict=True))
        for place, source in sources.items():
            if source.operands:
                views = {view: each.build(values) for view, each in source.operands.items()}
                values[place] = _prepare(evaluate(source.node, values | views), source, root)
            elif source.constant is None:
                values[place] = _prepare(values[source.node], source, root)
        return move.build(values)

    members = [node for node in nodes if node in canvas.ids or overwrites(node)]
    samples = {
        node: finder.constants[node] if node in finder.constants else finder.sample(node)
        for node in inputs
    }
    result = build(*samples.values(), *constants.values())
    ratio = sqnr(result, _execute(finder, root, members, samples))
    if ratio < least_db(value(root), 0):
        return None
    count = sum(map(overwrites, members))
    made = (root,) if root.target in _MADE else ()
    text = f"a concatenation instead of {count} assignment{'s' if count > 1 else ''} into a tensor"
    return Equivalent(
        "assignments", text, (*made, *members), last, inputs, build, sqnr_db=ratio,
        constants=tuple(constants.values()),
    )  # fmt: skip


def _inputs_of(source: _Source) -> list[Node]:
    """The nodes outside of which a source is made."""
    if source.operands:
        return [node for node in source.node.all_input_nodes if node not in source.operands]
    return [source.node] if source.constant is None else []


def _prepare(x: Any, source: _Source, root: Node) -> Any:
    """What is assigned, in the dtype of the tensor and with all of its axes."""
    made, dtype = value(source.node), value(root).dtype
    return reshape(x if made.dtype == dtype else aten.to.dtype(x, dtype), source.shape)


def _is_assignment(node: Node) -> bool:
    """Whether a node overwrites a tensor that others read, or a view of it, with what is known."""
    is_known = node.target in _ASSIGN or function_of(node) is not node.target
    return node.op == "call_function" and overwrites(node) and is_known and not is_pure(node)


def _reads_whole(root: Node, last: Node, nodes: list[Node]) -> bool:
    """Whether later readers read the tensor, not what the assignment to a view of it returns."""
    returned = [node for node in nodes if overwrites(node) and node.args[0] is not root]
    return {*nodes, last}.issuperset(reader for node in returned for reader in readers(node))


def _list_early(finder: Finder, root: Node, last: Node) -> list[Node] | None:
    """The views of a tensor and their readers, in order, up to the last assignment.

    None if the tensor is assigned later, or a view that is made before is read later.
    """
    end, early = finder.place[last], set[Node]()
    for alias in list_aliases(root):
        if alias is not root and finder.place[alias] < end:
            early.add(alias)
        for reader in readers(alias):
            if finder.place[reader] <= end:
                early.add(reader)
            elif alias in early or overwrites(reader):
                return None
    return sorted(early, key=finder.place.__getitem__)


def _execute(
    finder: Finder, root: Node, nodes: Sequence[Node], given: Mapping[Node, Any]
) -> torch.Tensor:
    """What a tensor is after all that some nodes do to it."""
    values = {**finder.constants, **given}
    if root.target in _MADE:
        values[root] = make_full(root)
    else:
        values[root] = values.get(root, finder.sample(root)).clone()
    for node in nodes:
        args, kwargs = map_arg((node.args, node.kwargs), lambda source: values[source])
        values[node] = node.target(*args, **kwargs)  # type: ignore[operator]
    return values[root]  # type: ignore[no-any-return]


class _Canvas:
    """Which element of which source each element of a tensor gets by assignments.

    These run on the numbers of elements, one source after the other, of which views of the tensor
    are views. The first source is the tensor as it was.
    """

    def __init__(self, root: Node, constants: Mapping[Node, Any]) -> None:
        self.root, self.constants = root, constants
        shape = tuple(value(root).shape)
        self.sources = [_Source(root, shape, make_full(root) if root.target in FULL else None)]
        #: The numbers in the tensor and in its views, and those that were there before.
        self.ids, self.places = ({root: number([shape])[0]} for _ in range(2))

    def follow(self, node: Node, is_view: bool) -> bool:
        """Note what a view or a reader of the tensor does; whether that is known."""
        if is_view:
            for numbers in (self.ids, self.places):
                numbers[node] = evaluate(node, numbers)
            return True
        read = [each for each in node.all_input_nodes if each in self.ids]
        if not overwrites(node):  # it may read what was not assigned yet
            return all(torch.equal(self.ids[each], self.places[each]) for each in read)
        view: Any = node.args[0]
        if view not in self.ids or not _is_assignment(node):
            return False
        if node.target not in _ASSIGN:
            moves = {each: self.arrange(each) for each in read}
            operands = {each: move for each, move in moves.items() if move is not None}
            self._assign(view, _Source(node, tuple(value(view).shape), None, operands))
            return len(operands) == len(read)
        source: Any = node.args[1]
        if isinstance(source, Node) and overwrites(source):
            source = source.args[0]  # which it returns
        if source in self.ids:
            self.ids[view].copy_(self.ids[source].clone())
            return True
        if not isinstance(source, Node) or source in self.constants:
            constant = self.constants.get(source, source)
            constant = torch.as_tensor(constant, dtype=value(self.root).dtype)
            self._assign(view, _Source(source, tuple(constant.shape), constant))
        elif not is_static(source) or is_overwritten(source):
            return False
        else:
            self._assign(view, _Source(source, tuple(value(source).shape)))
        return not node.users

    def _assign(self, view: Node, source: _Source) -> None:
        """Note that the elements of a view get those of a source."""
        here = self.places[view]
        if not here.numel():
            return
        axes = torch.unravel_index(here, self.places[self.root].shape)
        block = tuple(int(axis.max() - axis.min()) + 1 for axis in axes)
        numbers = number([*(each.shape for each in self.sources), source.shape])[-1]
        if numbers.numel() == here.numel():
            numbers = numbers.view(here.shape)
            if math.prod(block) == here.numel():  # one reshape of all that is assigned
                source = source._replace(shape=block)
        self.sources.append(source)
        self.ids[view].copy_(numbers)

    def arrange(self, view: Node) -> Move | None:
        """How a view, or the tensor, is made of the sources now; None if that takes too much."""
        return arrange(self.ids[view], [source.shape for source in self.sources], _MOST_BLOCKS)

    def list_used(self, move: Move) -> dict[int, _Source]:
        """The sources that are needed, by number, in order."""
        used = {*move.sources}
        for place in reversed(range(len(self.sources))):
            operands = self.sources[place].operands if place in used else {}
            used.update(*(each.sources for each in operands.values()))
        return {place: self.sources[place] for place in sorted(used)}
