"""Tensors that are assigned to part by part, as these parts put together."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch.fx import Node
from torch.fx.node import map_arg

from workbench.export.purity import (
    find_root,
    function_of,
    is_overwritten,
    is_pure,
    list_aliases,
    overwrites,
    readers,
)
from workbench.plugins.remedies.equivalence import (
    LEAST_DB,
    MOST_PROVEN,
    Equivalent,
    Finder,
    evaluate,
    is_float,
    is_static,
    reshape,
    sqnr,
    value,
)
from workbench.plugins.remedies.moves import Move, arrange, number

aten: Any = torch.ops.aten
#: What makes a tensor without values, or of one number.
_EMPTY = {aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default}
_FULL = {
    aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default,
    aten.ones.default, aten.ones_like.default, aten.new_ones.default,
    aten.full.default, aten.full_like.default, aten.new_full.default,
}  # fmt: skip
_MADE = _EMPTY | _FULL
_ASSIGN = {aten.copy_.default, aten.fill_.Tensor, aten.fill_.Scalar}
#: Blocks at most: more take longer than the assignments.
_MOST_BLOCKS = 32


class _Source(NamedTuple):
    """What is assigned: the shape of a tensor, and what it is if that is constant.

    An operator that overwrites a view is evaluated on what the views that it reads are: the
    elements ``operands`` of sources before.
    """

    node: Any
    shape: tuple[int, ...]
    constant: torch.Tensor | None = None
    operands: Mapping[Node, torch.Tensor] = MappingProxyType({})


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
    if nodes is None or _ASSIGN.isdisjoint(node.target for node in nodes):
        return None
    canvas = _Canvas(root, finder.constants)
    followed = all(node in canvas.aliases or canvas.follow(node) for node in nodes)
    moves = canvas.plan() if followed else None
    return None if moves is None else _replace(finder, canvas, moves, nodes, last)


def _replace(
    finder: Finder, canvas: "_Canvas", moves: dict[Any, Move], nodes: list[Node], last: Node
) -> Equivalent | None:
    """What computes a tensor from the parts that were assigned; None if it has other values."""
    root, numbers = canvas.root, canvas.list_used(moves)
    if root.target in _EMPTY and 0 in numbers:
        return None
    used = {place: canvas.sources[place].constant for place in numbers}
    constants = {
        place: each.reshape(canvas.sources[place].shape).contiguous()
        for place, each in used.items()
        if each is not None
    }
    members = [node for node in nodes if node in canvas.aliases or overwrites(node)]
    sources = canvas.list_inputs(numbers)

    def build(*given: Any) -> Any:
        return canvas.build(moves, dict(zip((*sources, *constants), given, strict=True)))

    samples = {
        node: finder.constants[node] if node in finder.constants else finder.sample(node)
        for node in sources
    }
    result = build(*samples.values(), *constants.values())
    ratio = sqnr(result, _execute(finder, root, members, samples))
    if ratio < LEAST_DB.get(value(root).element_size(), LEAST_DB[8]):
        return None
    count = sum(map(overwrites, members))
    made = (root,) if root.target in _MADE else ()
    text = f"a concatenation instead of {count} assignment{'s' if count > 1 else ''} into a tensor"
    return Equivalent(
        "assignments", text, (*made, *members), last, tuple(sources), build, sqnr_db=ratio,
        constants=tuple(constants.values()),
    )  # fmt: skip


def _is_assignment(node: Node) -> bool:
    """Whether a node overwrites a tensor that others read, or a view of it, with what is known."""
    is_known = node.target in _ASSIGN or function_of(node) is not node.target
    return node.op == "call_function" and overwrites(node) and is_known and not is_pure(node)


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
        values[root] = _make(root)
    else:
        values[root] = values.get(root, finder.sample(root)).clone()
    for node in nodes:
        args, kwargs = map_arg((node.args, node.kwargs), lambda source: values[source])
        values[node] = node.target(*args, **kwargs)  # type: ignore[operator]
    return values[root]  # type: ignore[no-any-return]


def _make(root: Node) -> torch.Tensor:
    """A new tensor, for which only shape and dtype of an operand count."""
    operands = {
        node: torch.empty(value(node).shape, dtype=value(node).dtype)
        for node in root.all_input_nodes
    }
    return evaluate(root, operands)  # type: ignore[no-any-return]


class _Canvas:
    """Which element of which source each element of a tensor gets by assignments.

    The elements of all sources are numbered, one source after the other. The first source is the
    tensor as it was.
    """

    def __init__(self, root: Node, constants: Mapping[Node, Any]) -> None:
        self.root, self.constants, self.aliases = root, constants, {*list_aliases(root)}
        shape = tuple(value(root).shape)
        (self.places,) = number([shape])
        self.ids = self.places.clone()
        self.sources = [_Source(root, shape, _make(root) if root.target in _FULL else None)]

    def follow(self, node: Node) -> bool:
        """Note what a reader of the tensor or of a view of it does; whether that is known."""
        read = self.aliases.intersection(node.all_input_nodes)
        if not overwrites(node):  # it may read what was not assigned yet
            places = map(self._locate, read)
            return all(torch.equal(self.ids.view(-1)[here], here) for here in places)
        if node.args[0] not in self.aliases or not _is_assignment(node):
            return False
        here = self._locate(node.args[0])
        if node.target not in _ASSIGN:
            operands = {view: self.ids.view(-1)[self._locate(view)] for view in read}
            return self._assign(here, _Source(node, tuple(here.shape), None, operands))
        source: Any = node.args[1]
        if isinstance(source, Node) and overwrites(source):
            source = source.args[0]  # which it returns
        if source in self.aliases:
            self.ids.view(-1)[here] = self.ids.view(-1)[self._locate(source)].expand(here.shape)
            return True
        if not isinstance(source, Node) or source in self.constants:
            constant = self.constants.get(source, source)
            constant = torch.as_tensor(constant, dtype=value(self.root).dtype)
            return not node.users and self._assign(
                here, _Source(source, tuple(constant.shape), constant)
            )
        plain = not node.users and is_static(source) and not is_overwritten(source)
        return plain and self._assign(here, _Source(source, tuple(value(source).shape)))

    def _assign(self, here: torch.Tensor, source: _Source) -> bool:
        """Note that the elements at some places get those of a source; True."""
        if not here.numel():
            return True
        axes = torch.unravel_index(here, self.places.shape)
        block = tuple(int(axis.max() - axis.min()) + 1 for axis in axes)
        numbers = number([*(each.shape for each in self.sources), source.shape])[-1]
        if numbers.numel() == here.numel():
            numbers = numbers.view(here.shape)
            if math.prod(block) == here.numel():  # one reshape of all that is assigned
                source = source._replace(shape=block)
        self.sources.append(source)
        self.ids.view(-1)[here] = numbers.expand(here.shape)
        return True

    def _locate(self, view: Any) -> torch.Tensor:
        """Where in the tensor the elements of a view of it are."""
        if view is self.root:
            return self.places
        return evaluate(view, {view.args[0]: self._locate(view.args[0])})  # type: ignore[no-any-return]

    def plan(self) -> dict[Any, Move] | None:
        """How the tensor is made of the sources, and so are the operands of those that need some.

        None if that takes too many blocks.
        """
        shapes = [source.shape for source in self.sources]
        wanted: list[tuple[Any, torch.Tensor]] = [(self.root, self.ids)]
        moves: dict[Any, Move] = {}
        for key, ids in wanted:  # which grows
            if key in moves:
                continue
            move = arrange(ids, shapes, _MOST_BLOCKS)
            if move is None:
                return None
            moves[key] = move
            for place in sorted(move.sources):
                operands = self.sources[place].operands
                wanted += [((place, view), each) for view, each in operands.items()]
        return moves if sum(move.pieces for move in moves.values()) <= _MOST_BLOCKS else None

    def list_used(self, moves: Mapping[Any, Move]) -> list[int]:
        """The numbers of the sources that some moves read."""
        return sorted({place for move in moves.values() for place in move.sources})

    def list_inputs(self, numbers: Sequence[int]) -> list[Node]:
        """The nodes outside that make some sources."""
        nodes: dict[Node, None] = {}
        for source in (self.sources[place] for place in numbers):
            if source.operands:
                inputs = source.node.all_input_nodes
                nodes |= dict.fromkeys(node for node in inputs if node not in source.operands)
            elif source.constant is None:
                nodes[source.node] = None
        return [*nodes]

    def build(self, moves: Mapping[Any, Move], given: dict[Any, Any]) -> Any:
        """What computes the tensor from those of nodes, and from constants by their number."""
        for place in self.list_used(moves):
            source = self.sources[place]
            if source.operands:
                views = {view: moves[place, view].build(given) for view in source.operands}
                given[place] = self._prepare(evaluate(source.node, given | views), source)
            elif source.constant is None:
                given[place] = self._prepare(given[source.node], source)
        return moves[self.root].build(given)

    def _prepare(self, x: Any, source: _Source) -> Any:
        """What is assigned, in the dtype and with all axes of the tensor."""
        made, dtype = value(source.node), value(self.root).dtype
        return reshape(x if made.dtype == dtype else aten.to.dtype(x, dtype), source.shape)
