"""The steps of loops: slices that are joined, layers that share their input or weights."""

import contextlib
import operator
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch.fx import Node

from workbench.graphs import function_of, is_pure, readers
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
from workbench.plugins.remedies.moves import arrange, map_elements, number

aten: Any = torch.ops.aten
#: Layers of one input, or of one weight, from which on a single one is worth its slices.
_LEAST_ALIKE = 3
_CUTS = {aten.slice.Tensor, aten.select.int}
#: Operators of all steps of a loop, at most.
_MOST_STEPS = 600
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


_SLICING = {
    aten.slice.Tensor, aten.select.int, aten.unsqueeze.default, aten.split.Tensor,
    aten.chunk.default, aten.unbind.int, aten.split_with_sizes.default, operator.getitem,
    aten.view.default, aten.reshape.default, aten.squeeze.dim,
}  # fmt: skip


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
    slices, source = _trace_slices(finder, ids)
    move = None
    if source is not None:
        values: dict[Node, Any] = {source: number([value(source).shape])[0]}
        for node in slices:
            values[node] = evaluate(node, values)
        order = put([values[each] for each in ids], axis)
        move = arrange(order, [value(source).shape], 1, False)
    others = [part for part in parts if part not in lookups]
    sources = (source,) if move and source else tuple(dict.fromkeys(ids))
    first = places[0]

    def build(*tensors: Any) -> Any:
        *given, offsets, table = tensors
        values = dict(zip((*sources, *others), given, strict=True))
        rows = move.build({0: given[0]}) if move else put([values[each] for each in ids], axis)
        rows = aten.embedding.default(table, aten.add.Tensor(rows, offsets))
        rows = rows if put is last.target else aten.flatten.using_ints(rows, -2)
        around = [
            aten.unsqueeze.default(values[x], axis) if is_stack else values[x] for x in others
        ]
        whole = [*around[:first], rows, *around[first:]]
        return aten.cat.default(whole, axis) if others else rows

    constants = (offsets[:1].contiguous() if axis else offsets, torch.cat(tables))
    nodes = (*(slices if move else ()), *lookups, last)
    text = f"one table instead of {len(tables)}, whose rows are put together"
    return finder.prove(Equivalent(
        "lookups", text, nodes, last, (*sources, *others), build, 2 / len(nodes),
        constants=constants,
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

    kept = elements(last) / sum(map(elements, nodes))
    text = f"one concatenation of {len(order)} tensors instead of {len(nodes)} that grow"
    return Equivalent("loops", text, tuple(nodes), last, sources, build, kept=kept)


def _batch(finder: Finder, last: Node) -> Equivalent | None:
    """Operators of each part of a tensor, one part after the other, as those of all at once."""
    parts, _ = _parts_of(last)
    if len(parts) < 2 or not all(_is_like(part, parts[0]) for part in parts):
        return None
    for source, nodes in finder.parts(last, borders=(), most=_MOST_STEPS):
        leaf, steps = _list_steps(finder, nodes, parts[0], source)
        if leaf is not None and elements(source) == len(parts) * elements(leaf):
            with contextlib.suppress(Refused):  # the steps do not take all parts at once
                return _run_at_once(finder, nodes, source, leaf, steps)
            return None
    return None


def _list_steps(
    finder: Finder, nodes: Sequence[Node], first: Node, source: Node
) -> tuple[Node | None, list[Node]]:
    """The slice of a tensor that the first part of a loop reads, and what it does with it.

    The slice is None if it reads several, or only arranges data.
    """
    needed, slices, steps = {first}, {source: None}, list[Node]()
    for node in reversed(nodes):
        needed.update(node.all_input_nodes if node in needed else ())
    for node in (node for node in nodes if node in needed):
        if node.target in _SLICING and slices.keys() >= {*finder.varying(node)}:
            slices[node] = None
        else:
            steps.append(node)
    leaf = [*slices][-1]
    read = {each for node in steps for each in finder.varying(node)}
    tensors = all(isinstance(each.meta["val"], torch.Tensor) for each in (source, leaf, *steps))
    if not tensors or leaf is source or not read <= {leaf, *steps} or not value(leaf).ndim:
        return None, []
    shaped = [node for node in steps if node.target in _SHAPES]
    drops = any(elements(node) != elements(node.all_input_nodes[0]) for node in shaped)
    computes = len(shaped) < len(steps) and all(value(node).ndim for node in steps)
    return (None if drops or not computes else leaf), steps


def _run_at_once(
    finder: Finder, nodes: Sequence[Node], source: Node, leaf: Node, steps: Sequence[Node]
) -> Equivalent | None:
    """The steps of the first part on all parts, put together along the first axis."""
    last, first = nodes[-1], steps[-1]
    parts, axis = _parts_of(last)
    used = dict.fromkeys(each for node in steps for each in node.all_input_nodes)
    others = [node for node in used if node in finder.constants]

    def reshape_all(x: Any, node: Node) -> Any:
        size, *rest = value(node).shape
        return aten.reshape.default(x, [len(parts) * size, *rest])

    def build(x: Any, *given: Any) -> Any:
        values = dict(zip(others, given, strict=True))
        values[leaf] = reshape_all(x, leaf)
        for node in steps:
            if node.target in _SHAPES:
                values[node] = reshape_all(values[node.all_input_nodes[0]], node)
            else:
                values[node] = evaluate(node, values)
        shape = [len(parts), *value(first).shape]
        return _move_front(aten.reshape.default(values[first], shape), first, axis, last)

    text = f"{len(parts)} parts of a tensor at once instead of one after the other"
    return finder.prove(Equivalent(
        "loops", text, tuple(nodes), last, (source, *others), partial(call, build),
        kept=1 / len(parts),
    ))  # fmt: skip


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
