"""The steps of loops: slices that are joined, layers that share their input or weights."""

import contextlib
import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain, product
from typing import Any, NamedTuple

import torch
from torch.fx import Node
from torch.fx.node import map_arg

from workbench.graphs import is_pure, readers
from workbench.plugins.remedies.equivalence import (
    CUTS,
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
    name_of,
    names_of,
    reshape,
    value,
)
from workbench.plugins.remedies.moves import RESHAPES, arrange, number

aten: Any = torch.ops.aten
#: Views that have all elements in the same order; selections of the only one along an axis, too.
_SHAPES = RESHAPES | {
    aten.view.default, aten.reshape.default, aten.flatten.using_ints, aten.select.int,
}  # fmt: skip
_SLICING = CUTS | _SHAPES | {operator.getitem}
#: Layers of one input, or of one weight, from which on a single one is worth its slices.
_LEAST_ALIKE = 3
#: Layers of constant weights whose rows do not depend on each other.
_LAYERS = {aten.linear.default, aten.mm.default, aten.matmul.default}
#: Outputs of a layer that is worth being a part of another one.
_NARROW = 32


def find_loops(finder: Finder, last: Node) -> Equivalent | None:
    """Steps of a loop that one operator computes at once."""
    if not is_pure(last) or not is_float(last, MOST_PROVEN) or not is_static(last):
        return None
    if last.target in (aten.cat.default, aten.stack.default):
        whole = _join_slices(finder, last) or _group(finder, last) or _flatten(finder, last)
        return whole or _run_at_once(finder, last)
    return _share_input(finder, last) or _take_out(finder, last)


def _parts_of(last: Node) -> tuple[list[Node], int]:
    parts, axis = arguments_of(last).values()
    return list(parts), axis % value(last).ndim


def _join_slices(finder: Finder, last: Node) -> Equivalent | None:
    """Slices of one tensor that are put together as it was, or with one axis in front."""
    parts, axis = _parts_of(last)
    joined = _put_together(finder, parts, last.target, axis)
    source = joined.sources[0]
    if not joined.nodes or elements(source) != elements(last) or not is_float(source):
        return None
    text = f"a tensor instead of its {len(parts)} slices put together"
    build = lambda x: joined.build({source: x})  # noqa: E731
    return Equivalent("loops", text, (*joined.nodes, last), last, (source,), build, kept=0.0)


class _Joined(NamedTuple):
    """Tensors that are put together: what is read for it, what it avoids, and what makes it."""

    sources: Sequence[Node]
    nodes: Sequence[Node]
    build: Callable[[Mapping[Node, Any]], Any]


def _put_together(finder: Finder, tensors: Sequence[Node], put: Any, axis: int) -> _Joined:
    """Tensors along an axis; of slices of one tensor, that tensor with its elements moved."""
    nodes, source = _trace_slices(finder, tensors)
    if source is not None and is_static(source) and elements(source) <= MOST_PROVEN:
        values: dict[Node, Any] = {source: number([value(source).shape])[0]}
        for node in nodes:
            values[node] = evaluate(node, values)
        order = call(put, [values[each] for each in tensors], axis)
        move = arrange(order, [value(source).shape], 1, expands=False)
        if move:
            return _Joined([source], nodes, lambda given: move.build({0: given[source]}))
    return _Joined(tensors, [], lambda given: put([given[each] for each in tensors], axis))


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
    """The same convolution of each slice of the channels, put together, as one in groups."""
    parts, axis = _parts_of(last)
    target: Any = parts[0].target
    alike = target in (aten.conv1d.default, aten.conv2d.default)
    if axis != 1 or not alike or any(part.target is not target for part in parts):
        return None
    rest = [arguments_of(part) for part in parts]
    inputs, *given = ([each.pop(name) for each in rest] for name in ("input", "weight", "bias"))
    if [finder.varying(part) for part in parts] != [[x] for x in inputs]:
        return None
    slices, source = _trace_slices(finder, inputs)
    has_bias = [bias is not None for bias in given[1]]
    if source is None or len({*has_bias}) > 1 or any(each != rest[0] for each in rest):
        return None
    settings = rest[0] | {"groups": len(parts) * rest[0]["groups"]}

    def build(x: Any, weights: Any, *bias: Any) -> Any:
        return target(x, weights, *bias, **settings)

    text = f"one {name_of(parts[0])} in {settings['groups']} groups instead of {len(parts)}"
    return finder.prove(Equivalent(
        "loops", text, (*slices, *parts, last), last, (source,), build, 1 / len(parts),
        constants=tuple(
            torch.cat([finder.constants[node] for node in nodes])
            for nodes in given[: 1 + has_bias[0]]
        ),
    ))  # fmt: skip


def find_tables(finder: Finder, last: Node) -> Equivalent | None:
    """Rows of several tables, one after the other, as those of one table."""
    if last.target not in (aten.cat.default, aten.stack.default) or not is_static(last):
        return None
    parts, axis = _parts_of(last)
    places = [place for place, part in enumerate(parts) if _is_lookup(finder, part)]
    if len(places) < _LEAST_ALIKE or places[-1] - places[0] >= len(places):
        return None
    lookups = [parts[place] for place in places]
    ids: list[Any] = [part.args[1] for part in lookups]
    inner, is_stack = value(ids[0]).ndim, last.target is aten.stack.default
    if len({value(part).shape for part in lookups}) > 1 or axis > inner:
        return None
    put: Any = aten.stack.default if is_stack or axis == inner else aten.cat.default
    tables = [finder.constants[part.args[0]] for part in lookups]  # type: ignore[index]
    starts = torch.tensor([0, *(len(table) for table in tables[:-1])]).cumsum(0)
    offsets = put([start.expand(value(ids[0]).shape) for start in starts], axis)
    joined = _put_together(finder, ids, put, axis)
    plain_parts = [part for part in parts if part not in lookups]
    sources = tuple(dict.fromkeys([*joined.sources, *plain_parts]))
    first = places[0]

    def build(*tensors: Any) -> Any:
        *given, offsets, table = tensors
        values = dict(zip(sources, given, strict=True))
        rows = aten.add.Tensor(joined.build(values), offsets)
        rows = aten.embedding.default(table, rows)
        rows = rows if put is last.target else aten.flatten.using_ints(rows, -2)
        around = [
            aten.unsqueeze.default(values[x], axis) if is_stack else values[x] for x in plain_parts
        ]
        whole = [*around[:first], rows, *around[first:]]
        return aten.cat.default(whole, axis) if plain_parts else rows

    constants = (offsets[:1].contiguous() if axis else offsets, torch.cat(tables))
    nodes = (*joined.nodes, *lookups, last)
    text = f"one table instead of {len(tables)}, whose rows are put together"
    return finder.prove(Equivalent(
        "lookups", text, nodes, last, sources, build, 2 / len(nodes), constants=constants,
    ))  # fmt: skip


def _is_lookup(finder: Finder, node: Node) -> bool:
    """Whether a node reads rows of a table that nothing else reads."""
    if node.target is not aten.embedding.default or len(readers(node)) > 1:
        return False
    table: Any = node.args[0]
    return table in finder.constants and len(readers(table)) == 1 and is_static(node)


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

    work_share = elements(last) / sum(map(elements, nodes))
    text = f"one concatenation of {len(order)} tensors instead of {len(nodes)} that grow"
    return Equivalent("loops", text, tuple(nodes), last, sources, build, kept=work_share)


#: The same operator of each part of a loop.
Group = tuple[Node, ...]


class _Way(NamedTuple):
    """How the tensors of all parts become one: as the results do, or along an axis in front."""

    put: Any
    axis: int
    in_front: bool = False

    @property
    def extends(self) -> bool:
        """Whether the axis in front is that of each part, which gets longer."""
        return self.in_front and self.put is aten.cat.default


def _run_at_once(finder: Finder, last: Node) -> Equivalent | None:
    """The same operators of several tensors, one after the other, as those of all at once."""
    steps = _list_steps(finder, last)
    ways = [
        _Way(last.target, _parts_of(last)[1]),
        _Way(aten.stack.default, 0, in_front=True),
        _Way(aten.cat.default, 0, in_front=True),
    ]
    depths = sorted({len(steps), 1}, reverse=True) if steps else []
    for depth, way in product(depths, ways):
        with contextlib.suppress(Refused):  # the operators do not take all parts that way
            part = finder.prove(_join_steps(finder, last, steps[-depth:], way))
            if part:
                return part
    return None


def _list_steps(finder: Finder, last: Node) -> list[Group]:
    """What the parts of a loop compute alike, in order, after what cuts them out of tensors."""
    steps, inside = list[Group](), {last}
    waiting: list[Group] = [tuple(_parts_of(last)[0])]
    while waiting:
        waiting.sort(key=lambda group: finder.place[group[0]])
        group = waiting.pop()
        if _is_step(finder, group) and all(inside.issuperset(readers(node)) for node in group):
            steps.insert(0, group)
            inside.update(group)
            waiting += [each for each in _list_operands(group) if each not in waiting]
    for group in [*steps]:
        begins = not any(operand in steps for operand in _list_operands(group))
        if begins and group[0].target in _SLICING:
            steps.remove(group)
    return steps


def _list_operands(group: Group) -> list[Group]:
    """The operands in which the operators of several parts differ."""
    columns = zip(*(node.args for node in group), strict=False)
    return [column for column in columns if any(each != column[0] for each in column)]


def _is_step(finder: Finder, group: Group) -> bool:
    """Whether several operators do the same with tensors of one shape; some may be constants.

    A loop often begins with zeros. What only constants differ in has weights of its own each time.
    """
    first, operands = group[0], _list_operands(group)
    if len(group) < 2 or not operands or not all(_is_like(node, first) for node in group):
        return False
    for operand in operands:
        if not all(isinstance(each, Node) and is_static(each) for each in operand):
            return False
        if finder.constants.keys() >= {*operand}:
            return False
        if len({value(each).shape for each in operand}) > 1:
            return False
    if first.target in _SHAPES:
        return elements(first) == elements(first.all_input_nodes[0])
    return first.target not in _SLICING | {aten.cat.default, aten.stack.default}


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


def _join_steps(finder: Finder, last: Node, steps: Sequence[Group], way: _Way) -> Equivalent:
    """The operators of the first part on the tensors of all parts, which are put together."""
    nodes = [group[0] for group in steps]
    leaves = [each for group in steps for each in _list_operands(group) if each not in steps]
    joined = {each[0]: _put_together(finder, each, way.put, way.axis) for each in leaves}
    read = dict.fromkeys(each for node in nodes for each in node.all_input_nodes)
    shared = [each for each in read if each not in joined and each not in nodes]
    sources = tuple(dict.fromkeys([*chain(*(each.sources for each in joined.values())), *shared]))

    def build(way: _Way, *tensors: Any) -> Any:
        values = dict(zip(sources, tensors, strict=True))
        values |= {node: each.build(values) for node, each in joined.items()}
        for node in nodes:
            values[node] = _compute_whole(node, values, way, len(steps[0]))
        x = values[nodes[-1]]
        return _move_front(x, steps[-1], last) if way.in_front else x

    text = f"{names_of(nodes)} once instead of {len(steps[0])} times"
    members = {*chain(*steps, *(each.nodes for each in joined.values())), last}
    order = tuple(sorted(members, key=finder.place.__getitem__))
    whole = partial(call, build, way)
    return Equivalent("loops", text, order, last, sources, whole, kept=1 / len(steps[0]))


def _compute_whole(node: Node, values: Mapping[Node, Any], way: _Way, count: int) -> Any:
    """What an operator of one part computes of the tensors of all parts."""
    if node.target in _SHAPES and way.extends:
        size, *rest = value(node).shape
        return reshape(values[node.all_input_nodes[0]], [count * size, *rest])
    if node.target in (aten.mm.default, aten.bmm.default):
        return call(aten.matmul.default, *(values[each] for each in node.args[:2]))
    return evaluate(node, values)


def _move_front(x: Any, parts: Group, last: Node) -> Any:
    """Parts along the axis in front, as a concatenation has them along another axis."""
    shape, axis = value(parts[0]).shape, _parts_of(last)[1]
    x = reshape(x, [len(parts), *shape])
    if axis:
        x = aten.permute.default(x, [*range(1, axis + 1), 0, *range(axis + 1, len(shape) + 1)])
    return reshape(x, value(last).shape)


class _Cut(NamedTuple):
    """A part of a tensor along an axis, which a selection ``drops``."""

    source: Node
    axis: int
    start: int
    size: int
    drops: bool

    @property
    def place(self) -> tuple[Any, ...]:
        """Where the part is, the same for tensors of one shape."""
        return self[1:]

    def of(self, x: Any) -> Any:
        """The part of another tensor at the same place."""
        part = aten.slice.Tensor(x, self.axis, self.start, self.start + self.size)
        if not self.drops:
            return part
        return reshape(part, [*x.shape[: self.axis], *x.shape[self.axis + 1 :]])


def _read_cut(node: Node) -> _Cut | None:
    """What a node takes from where; None if it does something else."""
    split, number = node, None
    if node.target is operator.getitem:
        split, number = node.args  # type: ignore[assignment]
    if split.target not in CUTS or not is_static(split.all_input_nodes[0]):
        return None
    source, given = split.all_input_nodes[0], arguments_of(split)
    shape = value(source).shape
    axis = given["dim"] % len(shape)
    if split.target is aten.select.int:
        return _Cut(source, axis, given["index"] % shape[axis], 1, True)
    if split.target is aten.slice.Tensor:
        start, _, step = slice(given["start"], given["end"], given["step"]).indices(shape[axis])
        return _Cut(source, axis, start, value(node).shape[axis], False) if step == 1 else None
    if split.target is aten.unbind.int:
        return _Cut(source, axis, number, 1, True)  # type: ignore[arg-type]
    before: Any = split.meta["val"][:number]
    start = sum(part.shape[axis] for part in before)
    return _Cut(source, axis, start, value(node).shape[axis], False)


def _read_cuts(finder: Finder, node: Node) -> dict[Node, _Cut]:
    """The parts that a node computes with, if nothing else varies and all are at one place."""
    if not _is_layer(node) and not is_pointwise(node):
        return {}
    cuts = {}
    for operand in finder.varying(node):
        cut = _read_cut(operand)
        if cut is None or not is_float(cut.source):
            return {}
        cuts[operand] = cut
    places = {(each.place, value(each.source).shape) for each in cuts.values()}
    return cuts if len(places) == 1 else {}


def _is_layer(node: Node) -> bool:
    return node.target in _LAYERS


def _count_alike(finder: Finder, node: Node) -> int:
    """How many nodes do what one does, each with other parts of the same tensors."""

    def name(node: Node) -> Any:
        cuts = _read_cuts(finder, node)
        if not cuts:
            return None
        cut = next(iter(cuts.values()))
        wholes = {part: each.source for part, each in cuts.items()}
        operands = map_arg((node.args, node.kwargs), lambda each: str(wholes.get(each, each)))
        return node.target, str(operands), cut.axis, cut.drops

    counts = finder.recall("cuts", lambda: Counter(map(name, finder.nodes)))
    return counts[name(node)]  # type: ignore[no-any-return]


def _take_out(finder: Finder, last: Node) -> Equivalent | None:
    """A layer or a function of parts of whole tensors, as a part of that of the whole tensors."""
    cuts = _read_cuts(finder, last)
    if not cuts:
        return None
    cut, count = next(iter(cuts.values())), _count_alike(finder, last)
    if count < _LEAST_ALIKE:
        return None
    if _is_layer(last):
        if [*cuts] != [last.args[0]] or cut.axis == value(cut.source).ndim - 1:
            return None
    elif 4 * count * elements(last) < 3 * elements(cut.source) or not all(
        _read_cuts(finder, reader) for part in cuts for reader in readers(part)
    ):
        return None  # more is computed than is read, or the parts are taken all the same
    wholes = dict.fromkeys(each.source for each in cuts.values())
    sources = (*wholes, *(each for each in last.all_input_nodes if each in finder.constants))
    target = aten.matmul.default if last.target is aten.mm.default else last.target

    def build(*tensors: Any) -> Any:
        values = dict(zip(sources, tensors, strict=True))
        values |= {part: values[each.source] for part, each in cuts.items()}
        args, kwargs = map_arg((last.args, last.kwargs), values.__getitem__)
        return cut.of(call(target, *args, **kwargs))

    text = f"{name_of(last)} of a whole tensor instead of its {count} slices"
    splits = {part.args[0] for part in cuts if part.target is operator.getitem}
    nodes: Any = sorted({*splits, *cuts, last}, key=finder.place.__getitem__)
    part = Equivalent("loops", text, (*nodes,), last, sources, build, kept=1 / count)
    return finder.prove(part)


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
    tensors: list[Any] = [finder.constants[layer.args[place]] for layer in layers]  # type: ignore[index]
    key = ("whole", place, tuple(layers))
    return finder.recall(key, lambda: torch.cat(tensors))  # type: ignore[no-any-return]
