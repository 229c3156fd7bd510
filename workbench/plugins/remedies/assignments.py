"""Tensors that are assigned to part by part, as these parts put together."""

import math
from collections.abc import Iterator, Mapping, Sequence
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
    sqnr,
    value,
)

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
#: How many parts there are whose elements take turns.
_TURNS = (2, 3, 4)


class _Block(NamedTuple):
    """A block of a source: where it starts, and its shape."""

    source: int
    start: tuple[int, ...]
    shape: tuple[int, ...]


class _Joined(NamedTuple):
    """Parts along an axis, one after the other, or with their elements in turns."""

    axis: int
    parts: tuple[Any, ...]
    shape: tuple[int, ...]
    in_turns: bool


_Layout = _Block | _Joined
_NONE: Mapping[Node, _Layout] = MappingProxyType({})


class _Source(NamedTuple):
    """What is assigned, in which shape, and in that with all axes of the tensor.

    An operator that overwrites a view is evaluated on what the views that it reads are made of.
    """

    node: Node
    constant: torch.Tensor | None
    view: tuple[int, ...]
    shape: tuple[int, ...]
    operands: Mapping[Node, _Layout] = _NONE


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
    for node in nodes:
        if node not in canvas.aliases and not canvas.follow(node):
            return None
    layout = canvas.arrange(canvas.ids)
    blocks = canvas.list_blocks(layout)
    is_undefined = root.target in _EMPTY and any(block.source == 0 for block in blocks)
    if len(blocks) > _MOST_BLOCKS or is_undefined:
        return None
    constants = canvas.cut_constants(blocks)
    members = [node for node in nodes if node in canvas.aliases or overwrites(node)]
    sources = canvas.list_sources(blocks)

    def build(*given: Any) -> Any:
        return canvas.build(layout, dict(zip((*sources, *constants), given, strict=True)))

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
    return Equivalent(
        "assignments",
        f"a concatenation instead of {count} assignment{'s' if count > 1 else ''} into a tensor",
        (*made, *members),
        last,
        tuple(sources),
        build,
        sqnr_db=ratio,
        constants=tuple(constants.values()),
    )


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
        self.places = torch.arange(math.prod(shape)).reshape(shape)
        self.ids = self.places.clone()
        constant = _make(root) if root.target in _FULL else None
        self.sources = [_Source(root, constant, shape, shape)]
        self.firsts = [0]

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
            return self._assign(here, node, {view: self._arrange_view(view) for view in read})
        source: Any = node.args[1]
        if isinstance(source, Node) and overwrites(source):
            source = source.args[0]  # which it returns
        if source in self.aliases:
            self.ids.view(-1)[here] = self.ids.view(-1)[self._locate(source)].expand(here.shape)
            return True
        return not node.users and self._assign(here, source)

    def _assign(
        self, here: torch.Tensor, source: Any, operands: Mapping[Node, _Layout] = _NONE
    ) -> bool:
        """Note that the elements at some places get those of a source; whether it is known."""
        view, shape, constant = tuple(here.shape), self._block_shape(here), None
        if not isinstance(source, Node) or source in self.constants:
            dtype = value(self.root).dtype
            constant = torch.as_tensor(self.constants.get(source, source), dtype=dtype)
            constant = constant.expand(view).reshape(shape)
        elif not is_static(source) or (not operands and is_overwritten(source)):
            return False
        first = self.firsts[-1] + math.prod(self.sources[-1].shape)
        self.ids.view(-1)[here] = torch.arange(first, first + here.numel()).reshape(view)
        self.sources.append(_Source(source, constant, view, shape, operands))
        self.firsts.append(first)
        return True

    def _locate(self, view: Any) -> torch.Tensor:
        """Where in the tensor the elements of a view of it are."""
        if view is self.root:
            return self.places
        return evaluate(view, {view.args[0]: self._locate(view.args[0])})  # type: ignore[no-any-return]

    def _arrange_view(self, view: Node) -> _Layout:
        """How blocks of the sources make what a view has now."""
        here = self._locate(view)
        return self.arrange(self.ids.view(-1)[here].reshape(self._block_shape(here)))

    def _block_shape(self, here: torch.Tensor) -> tuple[int, ...]:
        """The shape of some places, with all axes; ValueError if they are no block in order."""
        axes = torch.unravel_index(here.flatten(), self.places.shape)
        shape = tuple(len(axis.unique()) for axis in axes)
        if math.prod(shape) != here.numel() or (here.flatten().diff() <= 0).any():
            raise ValueError("a view of other than rows and columns in order")
        return shape

    def arrange(self, ids: torch.Tensor) -> _Layout:
        """How blocks of the sources make a part of the tensor; ValueError if they are too many."""
        cuts = [self._list_cuts(ids, axis) for axis in range(ids.ndim)]
        if not any(cuts):
            return self._describe_block(ids)
        axis = min((axis for axis, places in enumerate(cuts) if places), key=lambda a: len(cuts[a]))
        shape, size = tuple(ids.shape), ids.shape[axis]
        for turns in _TURNS if len(cuts[axis]) == size - 1 > max(_TURNS) else ():
            parts = [ids.index_select(axis, torch.arange(n, size, turns)) for n in range(turns)]
            if size % turns == 0 and not any(self._list_cuts(part, axis) for part in parts):
                return _Joined(axis, tuple(map(self.arrange, parts)), shape, in_turns=True)
        if len(cuts[axis]) >= _MOST_BLOCKS:
            raise ValueError(f"{len(cuts[axis]) + 1} blocks are too many")
        parts = [*ids.tensor_split(cuts[axis], axis)]
        return _Joined(axis, tuple(map(self.arrange, parts)), shape, in_turns=False)

    def _list_cuts(self, ids: torch.Tensor, axis: int) -> list[int]:
        """Where along an axis elements do not follow those before in their source."""
        sources = self._find_sources(ids)
        steps = torch.tensor([math.prod(source.shape[axis + 1 :]) for source in self.sources])
        steps = steps[sources].narrow(axis, 0, ids.shape[axis] - 1)
        follows = (ids.diff(dim=axis) == steps) & (sources.diff(dim=axis) == 0)
        rows = follows.movedim(axis, 0).flatten(1).all(1)
        return [place for place, joined in enumerate(rows.tolist(), 1) if not joined]

    def _find_sources(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.bucketize(ids.contiguous(), torch.tensor(self.firsts), right=True) - 1

    def _describe_block(self, ids: torch.Tensor) -> _Block:
        first = ids.flatten()[:1]
        number = int(self._find_sources(first))
        start = torch.unravel_index(first - self.firsts[number], self.sources[number].shape)
        return _Block(number, tuple(map(int, start)), tuple(ids.shape))

    def list_blocks(self, layout: _Layout) -> list[_Block]:
        """The blocks of a layout, and those of what operators overwrite."""
        blocks, done = [*_list_blocks(layout)], set[int]()
        for block in blocks:  # which grows
            operands = self.sources[block.source].operands.values()
            if block.source not in done:
                done.add(block.source)
                blocks += [each for layout in operands for each in _list_blocks(layout)]
        return blocks

    def list_sources(self, blocks: Sequence[_Block]) -> list[Node]:
        """The nodes of which some blocks are made."""
        nodes: dict[Node, None] = {}
        for source in (self.sources[number] for number in sorted({b.source for b in blocks})):
            if source.operands:
                inputs = source.node.all_input_nodes
                nodes |= dict.fromkeys(node for node in inputs if node not in source.operands)
            elif source.constant is None:
                nodes[source.node] = None
        return [*nodes]

    def cut_constants(self, blocks: Sequence[_Block]) -> dict[_Block, torch.Tensor]:
        """The constants of those blocks that have some."""
        constants: dict[_Block, torch.Tensor] = {}
        for block in blocks:
            constant = self.sources[block.source].constant
            if constant is not None:
                constants[block] = self._cut(block, constant).contiguous()
        return constants

    def build(self, layout: _Layout, tensors: dict[Any, Any]) -> Any:
        """What computes a layout from the tensors of nodes, and from constants by their blocks."""
        if isinstance(layout, _Block):
            number = layout.source
            if layout in tensors:
                return tensors[layout]
            if number not in tensors:
                tensors[number] = self._prepare(self.sources[number], tensors)
            return self._cut(layout, tensors[number])
        parts = [self.build(part, tensors) for part in layout.parts]
        if not layout.in_turns:
            return aten.cat.default(parts, layout.axis)
        parts = [aten.unsqueeze.default(part, layout.axis + 1) for part in parts]
        return aten.reshape.default(aten.cat.default(parts, layout.axis + 1), [*layout.shape])

    def _prepare(self, source: _Source, tensors: dict[Any, Any]) -> Any:
        """A source in the dtype of the tensor, and with all of its axes."""
        node: Any = source.node
        if source.operands:
            operands = {
                view: _reshape(self.build(layout, tensors), layout.shape, value(view).shape)
                for view, layout in source.operands.items()
            }
            return _reshape(evaluate(node, tensors | operands), source.view, source.shape)
        x, shape = tensors[node], tuple(value(node).shape)
        if value(node).dtype != value(self.root).dtype:
            x = aten.to.dtype(x, value(self.root).dtype)
        if math.prod(shape) != math.prod(source.view):
            x, shape = aten.expand.default(x, [*source.view]), source.view
        return _reshape(x, shape, source.shape)

    def _cut(self, block: _Block, x: Any) -> Any:
        """A block of a tensor."""
        for axis, size in enumerate(self.sources[block.source].shape):
            start, length = block.start[axis], block.shape[axis]
            if length < size:
                x = aten.slice.Tensor(x, axis, start, start + length)
        return x


def _list_blocks(layout: _Layout) -> Iterator[_Block]:
    if isinstance(layout, _Block):
        yield layout
        return
    for part in layout.parts:
        yield from _list_blocks(part)


def _reshape(x: Any, shape: Sequence[int], other: Sequence[int]) -> Any:
    return x if tuple(shape) == tuple(other) else aten.reshape.default(x, [*other])
