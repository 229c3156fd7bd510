"""What a part of a graph computes: a function, a lookup, or the same in another order."""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Node

from workbench.graphs import PRODUCTS, VIEWS, is_pure, readers, tree_leaves
from workbench.plugins.remedies.equivalence import (
    BORDERS,
    Build,
    Equivalent,
    Finder,
    Refused,
    arguments_of,
    elements,
    evaluate,
    is_float,
    is_static,
    least_db,
    name_of,
    reshape,
    sqnr,
    value,
)
from workbench.plugins.remedies.functions import (
    Function,
    fit_clamps,
    fit_lines,
    list_functions,
    list_remainders,
    list_row_functions,
)

aten: Any = torch.ops.aten
#: The largest vocabulary that is tried.
_MOST_WORDS = 1 << 16
#: The most of each dimension of the tensors on which functions are compared first.
_SMALL = 12
#: Values on which functions of numbers are compared first.
_SCREENED = 4096
#: Operators in a row that may be moved, and the most of their work that may remain.
_LONGEST_PATH, _MOST_KEPT = 6, 0.75
#: Functions of a number that XNNPACK has no operator for, but operators to compute it.
_SPELLED = {
    aten.reciprocal.default, aten.pow.Scalar, aten.pow.Tensor_Scalar, aten.softplus.default,
    aten.mish.default, aten.elu.default, aten.celu.default, aten.selu.default,
    aten.log_sigmoid.default, aten.expm1.default, aten.log1p.default, aten.exp2.default,
    aten.log2.default, aten.log10.default, aten.square.default, aten.softshrink.default,
    aten.sinh.default, aten.cosh.default, aten.sign.default, aten.remainder.Scalar,
    aten.log_softmax.int, aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf,
}  # fmt: skip
#: Functions of rows that a single operator may be.
_OF_ROWS = {aten.softmax.int, aten.log_softmax.int}
#: What is left of a division.
_REMAINDERS = {aten.remainder.Scalar, aten.fmod.Scalar}
#: Numbers at which guards act, and how near a function must be there.
_NEAR_ZERO = (1e-4, -1e-4, 1e-2, -1e-2)
_EXTREMES = (1e30, -1e30, math.inf, -math.inf)
#: What a function is of: multiples of a number, clamps of it, numbers in general, or rows.
_LINEAR, _CLAMPS, _NUMBERS, _ROWS = "linear", "clamps", "numbers", "rows"
#: A function, and its signal to noise ratio.
Match = tuple[Function, float]


def find_function(finder: Finder, last: Node) -> Equivalent | None:
    """The largest part that ends in a node and is a function of fewer operators."""
    if not is_pure(last) or last.target in BORDERS or not is_float(last):
        return None
    if last.target is aten.pow.Tensor_Tensor:
        return _spell_power(finder, last)
    best = None
    for source, nodes in finder.parts(last):
        work = [node for node in nodes if node.target not in VIEWS]
        alike = is_float(source) and value(source).shape == value(last).shape
        if not alike or value(source).dtype != value(last).dtype:
            continue
        lacks = any(_is_lacking(node) and finder.is_outside(node) for node in nodes)
        if len(work) < 2 and not lacks:
            continue
        key = finder.identify(nodes, [source])
        if key not in finder.memory:
            finder.memory[key] = _identify(finder, nodes, source)
        match = finder.memory[key]
        if match and (match[0].cost < len(work) or lacks):
            function, sqnr_db = match
            text = f"{function.text} instead of {len(work)} operators"
            if len(work) == 1:
                text = f"{name_of(work[0])} as {function.text}"
            best = Equivalent(
                "functions", text, tuple(nodes), last, (source,), function.build,
                function.cost / len(work), sqnr_db, code=function.advice,
            )  # fmt: skip
    return best


def _is_lacking(node: Node) -> bool:
    """Whether XNNPACK has no operator for a node, but others to compute it."""
    return node.target in _SPELLED


def _spell_power(finder: Finder, last: Node) -> Equivalent | None:
    """Powers with constant exponents, which are tensors."""
    sources = tuple(last.all_input_nodes)
    base: Any = last.args[0]
    if finder.varying(last) != [base] or not finder.is_outside(last) or not is_static(base):
        return None
    return Equivalent(
        "functions", "pow as the exponential of a product with a logarithm", (last,), last, sources,
        lambda x, exponent: torch.exp(torch.log(x) * exponent),
        code="torch.exp(torch.log(x) * exponent)",
    )  # fmt: skip


def _identify(finder: Finder, nodes: list[Node], source: Node) -> Match | None:
    """The function that a part computes; most are dismissed on a small tensor."""
    whole = tuple(value(source).shape)
    small = tuple(min(size, _SMALL) for size in whole)
    for shape in (small, whole):
        finder.tries -= math.prod(shape)
        if finder.tries < 0:
            return None
        try:
            match = _match(finder, nodes, source, shape)
        except Refused:  # it takes its own shape only
            continue
        if match is None or shape == whole:
            return match
    return None


def _match(finder: Finder, nodes: list[Node], source: Node, shape: tuple[int, ...]) -> Match | None:
    x = finder.sample(source, shape)
    other = 0.4 * x.flip(-1) + 1.0  # with other statistics
    result = finder.run(nodes, {source: x.clone()})
    if result.min() == result.max():
        return None
    least = least_db(x, 0)
    few = [x.flatten()[:_SCREENED], result.flatten()[:_SCREENED]]
    if few[0].shape != few[1].shape:
        return None
    for function, kind in _list_candidates(nodes, x, *few):
        build = function.build
        if kind != _ROWS and sqnr(build(few[0].clone()), few[1]) < least:
            continue
        values = build(x.clone())
        if sqnr(values.flatten()[:_SCREENED], few[1]) < 0:
            continue
        ratio = sqnr(values, result)
        second = finder.run(nodes, {source: other.clone()}) if ratio >= least else None
        if second is None or sqnr(build(other), second) < least_db(x):
            continue
        if kind == _ROWS or _agrees_at_ends(finder, nodes, source, x, build, kind):
            return function, ratio
    return None


def _list_candidates(
    nodes: list[Node], x: torch.Tensor, few: torch.Tensor, results: torch.Tensor
) -> Iterator[tuple[Function, str]]:
    """Functions that a part may be, and what they are of."""
    numbers = [float(v) for n in nodes for v in tree_leaves(n.args) if isinstance(v, int | float)]
    kinds = [
        (_LINEAR, fit_lines(few, results)),
        (_CLAMPS, fit_clamps(few, results)),
        (_NUMBERS, list_functions(few, results)),
    ]
    if any(node.target in _REMAINDERS for node in nodes):
        kinds.append((_NUMBERS, list_remainders(numbers)))
    size = math.prod(value(nodes[-1]).shape)
    if any(elements(node) < size for node in nodes) or nodes[-1].target in _OF_ROWS:
        kinds.append((_ROWS, list_row_functions(x, numbers)))
    yield from ((function, kind) for kind, functions in kinds for function in functions)


def _agrees_at_ends(
    finder: Finder, nodes: list[Node], source: Node, x: torch.Tensor, build: Build, kind: str
) -> bool:
    """Whether a function is the same where a guard decides: at zero, and near it.

    Multiples and clamps must be the same for the largest numbers, too, and multiples for what is
    no number.
    """
    near = (1e-2, 1e-7) if x.element_size() >= 4 else (0.2, 1e-3)
    tried = [((0.0,), (1e-2, 0.0)), (_NEAR_ZERO, near)]
    tried += [(_EXTREMES, near)] if kind in (_LINEAR, _CLAMPS) else []
    tried += [((math.nan,), near)] if kind == _LINEAR else []
    for numbers, tolerance in tried:
        points = torch.tensor(numbers, dtype=x.dtype).repeat(x.numel() // len(numbers) + 1)
        points = points[: x.numel()].view(x.shape)
        expected = finder.run(nodes, {source: points.clone()})
        if not torch.allclose(build(points), expected, *tolerance, equal_nan=True):
            return False
    return True


def find_lookup(finder: Finder, last: Node) -> Equivalent | None:
    """A product of rows with a single one, which only reads rows of the weights."""
    constants = [node for node in last.all_input_nodes if node in finder.constants]
    one = len(finder.varying(last)) == 1 and last.target in PRODUCTS
    if not one or not constants or finder.constants[constants[0]].ndim != 2:
        return None
    turned = last.target is aten.linear.default
    given = constants[: 2 if turned else 1]

    def build(ids: Any, weights: Any, *bias: Any) -> Any:
        rows = torch.embedding(weights.t() if turned else weights, ids.to(torch.int64))
        return rows + bias[0] if bias else rows

    tensors = [finder.constants[node] for node in given]
    words, width = reversed(tensors[0].shape) if turned else tensors[0].shape
    for source, nodes in finder.parts(last):
        tensor = source.meta.get("val")
        kinds = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
        if getattr(tensor, "dtype", None) not in kinds or not is_static(source):
            continue  # also several tensors
        if words > _MOST_WORDS or value(last).shape[-1] != width:
            continue
        ids, worst = torch.randint(0, words, tuple(tensor.shape)).to(tensor.dtype), -math.inf
        shifted = [(ids + shift) % words for shift in (0, words // 3, 2 * words // 3 + 1)]
        with contextlib.suppress(Refused):
            results = [finder.run(nodes, {source: each}) for each in shifted]
            worst = min(sqnr(build(a, *tensors), b) for a, b in zip(shifted, results, strict=True))
        if worst >= least_db(tensors[0]):
            text = f"rows of a table instead of a product over {words} columns"
            sources = (source, *given)
            return Equivalent("lookups", text, tuple(nodes), last, sources, build, 0.0, worst)
    return None


def find_dropped(finder: Finder, last: Node) -> Equivalent | None:
    """Layers of all positions of which one or a few are read, for these alone."""
    if last.target not in _DROPPING or not is_float(last) or not is_static(last):
        return None
    given = arguments_of(last)
    shape, axis = value(given["self"]).shape, given["dim"] % value(given["self"]).ndim
    kept = elements(last) / elements(given["self"])
    start, end, step = (given.get(name) for name in ("start", "end", "step"))
    if last.target is aten.select.int:
        start, end, step = given["index"] % shape[axis], given["index"] % shape[axis] + 1, 1
    best = None
    for source, nodes in finder.parts(last, borders=(), most=_MOST_DROPPED):
        alike = value(source).shape[axis : axis + 1] == shape[axis : axis + 1]
        if kept <= _MOST_KEPT and is_float(source) and alike:
            with contextlib.suppress(Refused):  # an operator may fix the number of positions
                best = _drop(finder, source, nodes, (axis, start, end, step), kept) or best
    return best


def _drop(
    finder: Finder, source: Node, nodes: list[Node], positions: tuple[Any, ...], kept: float
) -> Equivalent | None:
    """Operators of some positions of a tensor, where the last one drops the others."""
    *inner, last = nodes
    layers = [node for node in inner if node.target in PRODUCTS]
    inputs = dict.fromkeys(each for node in nodes for each in node.all_input_nodes)
    others = tuple(node for node in inputs if node in finder.constants)
    if not layers:
        return None

    def build(x: Any, *given: Any) -> Any:
        values = dict(zip(others, given, strict=True))
        values[source] = aten.slice.Tensor(x, *positions)
        for node in inner:
            values[node] = evaluate(node, values)
        return reshape(values[inner[-1]], value(last).shape)

    x = finder.sample(source)
    result = build(x, *map(finder.constants.__getitem__, others))
    sqnr_db = sqnr(result, finder.run(nodes, {source: x}))
    if sqnr_db < least_db(x):
        return None
    text = f"{name_of(layers[0])} after {name_of(last)}, which drops positions"
    return Equivalent("order", text, tuple(nodes), last, (source, *others), build, kept, sqnr_db)


#: What drops positions along an axis; and operators that are moved behind it, at most.
_DROPPING, _MOST_DROPPED = {aten.select.int, aten.slice.Tensor}, 16


def find_order(finder: Finder, last: Node) -> Equivalent | None:
    """Operators that treat every position alike, moved to where there are fewer positions."""
    path = [last]
    while len(path) <= _LONGEST_PATH and len(before := finder.varying(path[-1])) == 1:
        if before[0].op != "call_function" or len(readers(before[0])) > 1:
            break
        path.append(before[0])
    if not all(is_pure(node) and is_float(node) for node in path):
        return None
    order = None
    for end, node in enumerate(path[1:], 1):
        chain, source = path[:end][::-1], finder.varying(node)
        if len(source) != 1 or not is_float(source[0]):
            break
        if not all(_is_pointwise(finder, each) for each in path[: end + 1]):
            break
        if last.target not in PRODUCTS and node.target in PRODUCTS:
            # The last one drops positions, as a pooling does.
            kept, chain = elements(last) / elements(path[1]), path[1 : end + 1][::-1]
            order = _swap(finder, source[0], chain, [last], kept, "drops") or order
        elif last.target in PRODUCTS and node.target not in PRODUCTS:
            # The first of the path adds positions, as an upsampling does.
            kept = elements(source[0]) / elements(node)
            few = elements(last) <= 2 * elements(node)
            swapped = _swap(finder, source[0], [node], chain, kept, "adds") if few else None
            if swapped:
                return swapped
    return order


def _is_pointwise(finder: Finder, node: Node) -> bool:
    """Whether no filter of a node reads several positions."""
    filters = (finder.constants.get(source) for source in node.all_input_nodes)
    return all(math.prod(f.shape[2:]) == 1 for f in filters if f is not None and f.ndim > 2)


def _swap(
    finder: Finder, source: Node, first: list[Node], then: list[Node], kept: float, verb: str
) -> Equivalent | None:
    """Some operators after others instead of before them."""
    if kept > _MOST_KEPT:
        return None
    x = finder.sample(source)
    swapped = [*then, *first]
    links = {then[0]: (first[-1], source), first[0]: (source, then[-1])}
    inputs = dict.fromkeys(s for n in swapped for s in n.all_input_nodes)
    others = tuple(node for node in inputs if node in finder.constants)

    def build(x: Any, *given: Any) -> Any:
        values = dict(zip((source, *others), (x, *given), strict=True))
        for node in swapped:
            old, new = links.get(node, (source, source))
            values[node] = evaluate(node, values | {old: values[new]})
        return values[swapped[-1]]

    with contextlib.suppress(Refused):  # they may not take each other's shapes
        expected = finder.run([*first, *then], {source: x})
        sqnr_db = sqnr(build(x, *map(finder.constants.__getitem__, others)), expected)
        if sqnr_db < least_db(x):
            return None
        moved, still = (then, first) if verb == "adds" else (first, then)
        product = next(name_of(node) for node in moved if node.target in PRODUCTS)
        text = f"{product} {'before' if verb == 'adds' else 'after'} {name_of(still[-1])}, "
        text += f"which {verb} positions"
        return Equivalent(
            "order", text, tuple(moved), then[-1], (source, *others), build, kept, sqnr_db
        )
    return None
