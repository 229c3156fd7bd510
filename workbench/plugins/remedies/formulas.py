"""What a part of a graph computes: a function, a lookup, or the same in another order."""

import contextlib
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.fx import Node

from workbench.graphs import PRODUCTS, VIEWS, is_pure, tree_leaves
from workbench.plugins.remedies.equivalence import (
    BORDERS,
    MOST_KEPT,
    PLACES,
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
from workbench.plugins.remedies.known_functions import (
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
#: Operators whose order changes, at most.
_MOST_MOVED = 16
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
#: What of a row of random numbers is nearly always true, or never.
_RARE = {
    aten.any.default, aten.any.dim, aten.any.dims, aten.all.default, aten.all.dim, aten.all.dims,
}  # fmt: skip


def find_function(finder: Finder, last: Node) -> Equivalent | None:
    """The largest part that ends in a node and is a function of fewer operators."""
    if not is_pure(last) or last.target in BORDERS or not is_float(last):
        return None
    if last.target is aten.pow.Tensor_Tensor:
        return _spell_power(finder, last)
    best = None
    for source, nodes in finder.parts(last, BORDERS | _RARE):
        work = [node for node in nodes if node.target not in VIEWS]
        alike = is_float(source) and value(source).shape == value(last).shape
        if not alike or value(source).dtype != value(last).dtype:
            continue
        lacks = any(node.target in _SPELLED and finder.is_outside(node) for node in nodes)
        if len(work) < 2 and not lacks:
            continue
        key = finder.identify(nodes, [source])
        match = finder.recall(key, partial(_identify, finder, nodes, source))
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


def find_order(finder: Finder, last: Node) -> Equivalent | None:
    """Layers after positions are dropped, where there are fewer of these, instead of before."""
    if not is_pure(last) or not is_float(last) or not is_static(last):
        return None
    if last.target in PRODUCTS or len(finder.varying(last)) != 1:
        return None
    best = None
    for source, nodes in finder.parts(last, borders=(), most=_MOST_MOVED):
        if is_float(source) and _may_drop(finder, source, nodes):
            with contextlib.suppress(Refused):  # an operator may fix the number of positions
                best = _drop_before(finder, source, nodes) or best
    return best


def _may_drop(finder: Finder, source: Node, nodes: list[Node]) -> bool:
    """Whether a part has layers that are less work once its last operator is the first one."""
    last, (operand,) = nodes[-1], finder.varying(nodes[-1])
    layers = [node for node in nodes if node.target in PRODUCTS]
    if not layers or elements(last) > MOST_KEPT * elements(operand):
        return False
    if last.target in PLACES:
        axis, *_ = _read_cut(last)
        return value(source).shape[axis : axis + 1] == value(operand).shape[axis : axis + 1]
    return layers[0] is nodes[0] and all(_is_pointwise(finder, node) for node in nodes)


def _drop_before(finder: Finder, source: Node, nodes: list[Node]) -> Equivalent | None:
    """The operators of a part with the last one, which drops positions, before the others."""
    *before, last = nodes
    (operand,) = finder.varying(last)
    inputs = dict.fromkeys(each for node in nodes for each in node.all_input_nodes)
    constants = tuple(node for node in inputs if node in finder.constants)

    def build(x: Any, *given: Any) -> Any:
        values = dict(zip(constants, given, strict=True))
        if last.target in PLACES:  # with all axes, and of any number of them
            values[source] = aten.slice.Tensor(x, *_read_cut(last))
        else:
            values[source] = evaluate(last, values | {operand: x})
        for node in before:
            values[node] = evaluate(node, values)
        return reshape(values[before[-1]], value(last).shape)

    x = finder.sample(source)
    result = build(x, *map(finder.constants.__getitem__, constants))
    sqnr_db = sqnr(result, finder.run(nodes, {source: x}))
    if sqnr_db < least_db(x):
        return None
    layer = next(name_of(node) for node in before if node.target in PRODUCTS)
    text = f"{layer} after {name_of(last)}, which drops positions"
    about = () if last.target in PLACES else tuple(before)
    return Equivalent(
        "order", text, tuple(nodes), last, (source, *constants), build,
        elements(last) / elements(operand), sqnr_db, about=about,
    )  # fmt: skip


def _read_cut(cut: Node) -> tuple[Any, ...]:
    """The axis along which positions are dropped, and those that stay: first, end and step."""
    given = arguments_of(cut)
    shape = value(given["self"]).shape
    axis = given["dim"] % len(shape)
    if cut.target is aten.slice.Tensor:
        return axis, given["start"], given["end"], given["step"]
    first = given["index"] % shape[axis]
    return axis, first, first + 1, 1


def _is_pointwise(finder: Finder, node: Node) -> bool:
    """Whether no filter of a node reads several positions."""
    filters = (finder.constants.get(source) for source in node.all_input_nodes)
    return all(math.prod(f.shape[2:]) == 1 for f in filters if f is not None and f.ndim > 2)
