"""What moves elements: found by running it on their numbers, made of the cheapest operators.

The result of numbered elements is the index map: which element of which source each one is. From
it come nothing, reshapes, slices and permutations, or a concatenation of a few of these.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, pairwise, permutations
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from workbench.plugins.remedies.equivalence import (
    CUTS,
    MOST_PROVEN,
    Equivalent,
    Finder,
    elements,
    evaluate,
    is_static,
    value,
)

aten: Any = torch.ops.aten
#: XNNPACK concatenates so many tensors at once.
MOST_PIECES = 5
#: Elements of so many pieces may take turns.
_TURNS = (2, 3, 4)
#: Axes whose permutations are tried, at most.
_MOST_AXES = 5
Shape = Sequence[int]


class Move(NamedTuple):
    """How elements are moved: which sources are read, in how many pieces, and what does it."""

    sources: frozenset[int]
    pieces: int
    build: Callable[[Mapping[int, Any]], Any]


class _Loop(NamedTuple):
    """Steps along an axis of a result: how many, and how far apart its elements are."""

    size: int
    stride: int


def number(shapes: Sequence[Shape]) -> list[torch.Tensor]:
    """The numbers of the elements of some tensors, one tensor after the other."""
    sizes = [math.prod(shape) for shape in shapes]
    parts = torch.arange(sum(sizes)).split(sizes)
    return [part.view(tuple(shape)) for part, shape in zip(parts, shapes, strict=True)]


def map_elements(
    finder: Finder, nodes: Sequence[Node], sources: Sequence[Node]
) -> torch.Tensor | None:
    """Which element of its sources each element of a part is; None if it computes others."""
    if sum(map(elements, (*sources, nodes[-1]))) > MOST_PROVEN:
        return None
    read = (finder.constants.get(each) for node in nodes for each in node.all_input_nodes)
    if any(tensor is not None and tensor.is_floating_point() for tensor in read):
        return None  # numbers that it computes with
    samples = [finder.sample(source) for source in sources]
    exact = torch.float64 if samples[0].is_floating_point() else torch.int64
    numbers = [each.to(exact) for each in number([sample.shape for sample in samples])]
    ids = finder.run(nodes, dict(zip(sources, numbers, strict=True)))
    whole = torch.cat([sample.flatten() for sample in samples])
    if not bool(((ids >= 0) & (ids < len(whole)) & (ids == ids.round())).all()):
        return None
    ids = ids.long()
    result = finder.run(nodes, dict(zip(sources, samples, strict=True)))
    if not torch.equal(whole[ids], result):
        return None
    for end in _list_ends(samples[0].dtype):  # on which any bound acts
        ends = [torch.full_like(sample, end) for sample in samples]
        result = finder.run(nodes, dict(zip(sources, ends, strict=True)))
        if not bool((result.isnan() if math.isnan(end) else result == end).all()):
            return None
    return ids


def _list_ends(dtype: torch.dtype) -> list[float]:
    """The ends of all numbers of a type, and what is none."""
    if dtype.is_floating_point:
        return [math.inf, -math.inf, math.nan]
    return [] if dtype == torch.bool else [torch.iinfo(dtype).max, torch.iinfo(dtype).min]


def arrange(
    ids: torch.Tensor, shapes: Sequence[Shape], most: int = MOST_PIECES, expands: bool = True
) -> Move | None:
    """What moves elements to where an index map has them; None if that takes too many pieces."""
    firsts = torch.tensor([0, *map(math.prod, shapes)]).cumsum(0)
    owners = torch.bucketize(ids.contiguous(), firsts, right=True) - 1
    source = int(owners.flatten()[0])
    inside, shape = ids - firsts[source], shapes[source]
    if bool((owners == source).all()):
        loops = _read_loops(inside)
        move = _view(inside, loops, shape, source, expands) if loops else None
        move = move or _arrange_axes(inside, shape, source, most, expands)
        windows = _find_windows(loops or [])
        if move or most == 1:
            return move
        if windows:
            return _join(ids.split(*windows), windows[1], shapes, most, expands)
    strides = [torch.tensor(_strides_of(each), dtype=torch.long) for each in shapes]
    cuts = [_list_cuts(ids, owners, strides, axis) for axis in range(ids.ndim)]
    axes = [axis for axis, places in enumerate(cuts) if places]
    if not axes:
        return None
    axis = min(axes, key=lambda a: len(cuts[a]))
    if len(cuts[axis]) == ids.shape[axis] - 1 > max(_TURNS):
        for turns in (turns for turns in _TURNS if ids.shape[axis] % turns == 0):
            move = _take_turns(ids, axis, turns, shapes, most, expands)
            if move:
                return move
    return _join(ids.tensor_split(cuts[axis], axis), axis, shapes, most, expands)


def _join(
    parts: Sequence[torch.Tensor], axis: int, shapes: Sequence[Shape], most: int, expands: bool
) -> Move | None:
    """Parts of an index map, one after the other."""
    moves: list[Move] = []
    for after, part in zip(reversed(range(len(parts))), parts, strict=True):
        spare = most - after - sum(move.pieces for move in moves)
        move = arrange(part, shapes, spare, expands) if spare > 0 else None
        if move is None:
            return None
        moves.append(move)
    return Move(
        frozenset[int]().union(*(move.sources for move in moves)),
        sum(move.pieces for move in moves),
        lambda given: aten.cat.default([move.build(given) for move in moves], axis),
    )


def _take_turns(
    ids: torch.Tensor, axis: int, turns: int, shapes: Sequence[Shape], most: int, expands: bool
) -> Move | None:
    """Pieces whose elements take turns along an axis."""
    parts = ids.unflatten(axis, (-1, turns)).split(1, axis + 1)
    move, shape = _join(parts, axis + 1, shapes, min(most, turns), expands), list(ids.shape)
    if move is None:
        return None
    join = move.build
    return move._replace(build=lambda given: aten.reshape.default(join(given), shape))


def _arrange_axes(
    ids: torch.Tensor, shape: Shape, source: int, most: int, expands: bool
) -> Move | None:
    """One axis after the other, if more than one is changed, and each by itself."""
    if ids.ndim != len(shape):
        return None
    places = torch.unravel_index(ids, tuple(shape))
    lines = [_line(each, axis) for axis, each in enumerate(places)]
    alone = (torch.equal(_along(lines[a], a, ids), each) for a, each in enumerate(places))
    changed = [a for a, line in enumerate(lines) if not torch.equal(line, torch.arange(shape[a]))]
    if len(changed) < 2 or not all(alone):
        return None
    moves, sizes = list[Move](), list(shape)
    for axis in sorted(changed, key=lambda a: len(lines[a]) / shape[a]):  # the narrowest first
        line = number([sizes])[0].index_select(axis, lines[axis])
        move = arrange(line, [sizes], most, expands)
        if move is None:
            return None
        moves.append(move)
        sizes = [*sizes[:axis], len(lines[axis]), *sizes[axis + 1 :]]

    def build(given: Mapping[int, Any]) -> Any:
        x = given[source]
        for move in moves:
            x = move.build({0: x})
        return x

    return Move(frozenset([source]), max(move.pieces for move in moves), build)


def _line(ids: torch.Tensor, axis: int) -> torch.Tensor:
    """The elements along an axis, at the first place of all others."""
    return ids.movedim(axis, -1).reshape(-1, ids.shape[axis])[0]


def _along(line: torch.Tensor, axis: int, ids: torch.Tensor) -> torch.Tensor:
    return line.view([-1 if a == axis else 1 for a in range(ids.ndim)]).expand(ids.shape)


def _strides_of(shape: Shape) -> list[int]:
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def _list_cuts(
    ids: torch.Tensor, owners: torch.Tensor, strides: Sequence[torch.Tensor], axis: int
) -> list[int]:
    """Where along an axis elements do not follow those before in their source.

    They follow as along an axis of the source, or as far as the ones before or behind them do.
    """
    ids, owners = (each.movedim(axis, 0).reshape(each.shape[axis], -1) for each in (ids, owners))
    steps, natural = ids.diff(dim=0), torch.zeros(len(ids) - 1, ids.shape[1], dtype=torch.bool)
    for source in owners.unique().tolist():
        natural |= (owners[1:] == source) & torch.isin(steps, strides[source])
    even = ((steps[1:] == steps[:-1]) & (steps[1:] >= 0)).all(1)
    none = torch.zeros(min(1, len(steps)), dtype=torch.bool)
    follows = natural.all(1) | torch.cat([even, none]) | torch.cat([none, even])
    follows &= (owners[1:] == owners[:-1]).all(1)
    return [place for place, joined in enumerate(follows.tolist(), 1) if not joined]


def _read_loops(ids: torch.Tensor) -> list[list[_Loop]] | None:
    """The loops along each axis that number the elements of a map; None if none do."""
    axes, total = list[list[_Loop]](), ids.flatten()[0]
    for axis in range(ids.ndim):
        line = _line(ids, axis) - ids.flatten()[0]
        total = total + _along(line, axis, ids)
        loops: list[_Loop] = []
        while len(line) > 1:
            stride = int(line[1])
            breaks = (line != stride * torch.arange(len(line))).nonzero()
            size = int(breaks[0]) if len(breaks) else len(line)
            inner, outer = stride * torch.arange(size), line[::size]
            if (
                stride < 0
                or len(line) % size
                or not torch.equal((outer[:, None] + inner).flatten(), line)
            ):
                return None
            loops.insert(0, _Loop(size, stride))
            line = outer
        axes.append(loops)
    return axes if torch.equal(total.expand(ids.shape), ids) else None


def _find_windows(axes: Sequence[Sequence[_Loop]]) -> tuple[int, int] | None:
    """How far apart windows are that overlap, in elements along their axis, and that axis."""
    pairs = [(loop, axis) for axis, loops in enumerate(axes) for loop in loops if loop.stride]
    pairs.sort(key=lambda pair: -pair[0].stride)
    for (outer, _), (inner, axis) in pairwise(pairs):
        overlaps = inner.size * inner.stride > outer.stride and outer.stride % inner.stride == 0
        if overlaps and len(axes[axis]) == 1:
            return outer.stride // inner.stride, axis
    return None


def _view(
    ids: torch.Tensor, axes: Sequence[Sequence[_Loop]], shape: Shape, source: int, expands: bool
) -> Move | None:
    """Slices, reshapes and a permutation of a source: the fewest that read it in some loops."""
    loops, offset = [loop for axis in axes for loop in axis], int(ids.flatten()[0])
    if not expands and any(loop.stride == 0 for loop in loops):
        return None
    boxes = _list_boxes(shape, loops, offset)
    ways = [_view_box(*box, shape, loops, offset, [*ids.shape]) for box in boxes]
    if len(shape) == ids.ndim <= _MOST_AXES:
        turned = (order for order in permutations(range(ids.ndim)) if _turns(ids, shape, order))
        ways += [[(aten.permute.default, [*order])] for order in islice(turned, 1)]
    steps = min((way for way in ways if way is not None), key=len, default=None)
    if steps is None:
        return None

    def build(given: Mapping[int, Any]) -> Any:
        x = given[source]
        for operator, *arguments in steps:
            x = operator(x, *arguments)
        return x

    return Move(frozenset([source]), 1, build)


def _turns(ids: torch.Tensor, shape: Shape, order: Shape) -> bool:
    """Whether a permutation of a source moves its elements to where an index map has them."""
    sizes = [shape[axis] for axis in order]
    return sizes == [*ids.shape] and torch.equal(number([shape])[0].permute(*order), ids)


def _list_boxes(
    shape: Shape, loops: Sequence[_Loop], offset: int
) -> Iterator[tuple[list[int], list[int]]]:
    """Where slices of a source begin that hold all that is read, and their sizes."""
    strides = _strides_of(shape)
    starts = _places(offset, shape)
    spans, apart = [1] * len(shape), [1] * len(shape)
    for loop in (loop for loop in loops if loop.stride):
        axis = _axis_of(strides, loop)
        apart[axis] = max(apart[axis], loop.stride // strides[axis])
        spans[axis] += (loop.size - 1) * loop.stride // strides[axis]
    inside = all(a + b <= c for a, b, c in zip(starts, spans, shape, strict=True))
    rounded = [-(-span // step) * step for span, step in zip(spans, apart, strict=True)]
    for sizes in (spans, rounded) if inside else ():  # the second ones may begin earlier
        if all(size <= whole for size, whole in zip(sizes, shape, strict=True)):
            yield [min(a, c - b) for a, b, c in zip(starts, sizes, shape, strict=True)], sizes
    yield [0] * len(shape), [*shape]


def _axis_of(strides: Sequence[int], loop: _Loop) -> int:
    """The axis of a source along which a loop reads it."""
    return next(axis for axis, stride in enumerate(strides) if stride <= loop.stride)


def _places(offset: int, shape: Shape) -> list[int]:
    """Where an element is along each axis."""
    return [offset // s % size for s, size in zip(_strides_of(shape), shape, strict=True)]


def _view_box(
    firsts: list[int],
    box: list[int],
    shape: Shape,
    loops: Sequence[_Loop],
    offset: int,
    result: list[int],
) -> list[tuple[Any, ...]] | None:
    """The operators that read a slice of a source in some loops; None if these do not divide it."""
    loops, offset = _renumber(firsts, box, shape, loops, offset)
    order = [n for n, loop in enumerate(loops) if loop.stride]
    nested, whole = sorted(order, key=lambda n: -loops[n].stride), math.prod(box)
    split, starts, sizes = list[int](), list[int](), list[int]()
    for size, stride in [*(loops[n] for n in nested), _Loop(1, 1)]:
        start, offset = divmod(offset, stride)
        if whole % stride or (start + size) * stride > whole:
            return None
        split, starts, sizes = [*split, whole // stride], [*starts, start], [*sizes, size]
        whole = stride
    if split[-1] == 1:  # the innermost loop reads neighbours
        split, starts, sizes = split[:-1], starts[:-1], sizes[:-1]
    steps, now = _slice(firsts, box, shape), box
    if sizes != split or order != nested or len(order) < len(loops):
        steps += _reshape(now, split) + _slice(starts, sizes, split)
        now = sizes
        if order != nested:
            turned = [*(nested.index(n) for n in order), *range(len(order), len(sizes))]
            steps.append((aten.permute.default, turned))
            now = [sizes[axis] for axis in turned]
        if len(order) < len(loops):
            once = [loop.size if loop.stride else 1 for loop in loops]
            steps += [*_reshape(now, once), (aten.expand.default, [loop.size for loop in loops])]
            now = [loop.size for loop in loops]
    return steps + _reshape(now, result)


def _renumber(
    firsts: list[int], box: list[int], shape: Shape, loops: Sequence[_Loop], offset: int
) -> tuple[list[_Loop], int]:
    """Loops over a slice of a source, and where they begin; those that are one are joined."""
    old, new, result = _strides_of(shape), _strides_of(box), list[_Loop]()
    places = zip(_places(offset, shape), firsts, new, strict=True)
    for size, stride in loops:
        if stride and box != [*shape]:
            axis = _axis_of(old, _Loop(size, stride))
            stride = stride // old[axis] * new[axis]
        if result and result[-1].stride == size * stride:
            size *= result.pop().size
        result.append(_Loop(size, stride))
    return result, sum((place - first) * stride for place, first, stride in places)


def _slice(firsts: list[int], sizes: list[int], shape: Shape) -> list[tuple[Any, ...]]:
    return [
        (aten.slice.Tensor, axis, first, first + size)
        for axis, (first, size) in enumerate(zip(firsts, sizes, strict=True))
        if size < shape[axis]
    ]


def _reshape(shape: Shape, other: list[int]) -> list[tuple[Any, ...]]:
    return [(aten.reshape.default, other)] if [*shape] != other else []


#: What takes parts of a tensor, or drops and adds axes of one element.
RESHAPES = {aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default, aten.unsqueeze.default}
SLICES = CUTS | RESHAPES | {aten.unfold.default}


def find_slices(finder: Finder, last: Node) -> Equivalent | None:
    """Parts of a tensor as slices of neighbours, reshapes and concatenations."""
    source: Any = last.args[0] if last.target in SLICES else None
    if source is None or not finder.is_outside(last) or not is_static(source):
        return None
    single = isinstance(value(last), torch.Tensor)
    shape = value(source).shape
    if last.target in RESHAPES and not value(last).is_floating_point():
        return None
    plain = last.target is aten.slice.Tensor and last.args[4:] in ((), (1,))
    if elements(source) > MOST_PROVEN or (plain and value(last).shape != shape):
        return None
    key = ("slices", finder.identify([last], [source]))
    if key not in finder.memory:
        parts = evaluate(last, {source: number([shape])[0]})
        parts = [parts] if single else parts
        finder.memory[key] = [part.numel() and arrange(part, [shape]) for part in parts]
    moves = finder.memory[key]
    if not all(moves):
        return None

    def build(x: Any) -> Any:
        results = [move.build({0: x}) for move in moves]
        return results[0] if single else results

    return Equivalent("slices", "", (last,), last, (source,), build)


#: What has the elements of its operand with the axes in another order.
TRANSPOSES = {aten.transpose.int, aten.permute.default}


def find_undone(finder: Finder, last: Node) -> Equivalent | None:
    """Two transposes: the second one undoes the first."""
    before: Any = last.args[0] if last.target in TRANSPOSES else None
    if before is None or before.target not in TRANSPOSES:
        return None
    source: Any = before.args[0]
    sizes = list(range(2, 2 + value(source).ndim))  # whatever they are, the axes are moved alike
    x = number([sizes])[0]
    if not torch.equal(evaluate(last, {before: evaluate(before, {source: x})}), x):
        return None
    return Equivalent("transposes", "", (before, last), last, (source,), lambda x: x, kept=0.0)
