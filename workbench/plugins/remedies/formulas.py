"""What a part of a graph computes: a function, a lookup, or the same in another order."""

import contextlib
import math
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.fx import Node, Proxy

from workbench.export.purity import PRODUCTS, VIEWS, is_pure, readers
from workbench.plugins.remedies.equivalence import (
    BORDERS,
    LEAST_DB,
    REORDERED_DB,
    Build,
    Equivalent,
    Finder,
    elements,
    evaluate,
    is_float,
    is_static,
    name_of,
    rows_along,
    sqnr,
    value,
)
from workbench.upstream import tree_leaves

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
#: Small numbers, and those at which guards act.
_NEAR_ZERO = (1e-4, -1e-4, 1e-2, -1e-2)
_EXTREMES = (1e30, -1e30, math.inf, -math.inf)

#: What is left of a division.
_REMAINDERS = {aten.remainder.Scalar, aten.fmod.Scalar}
#: What a function is of: multiples of a number, clamps of it, numbers in general, or rows.
_LINEAR, _CLAMPS, _NUMBERS, _ROWS = "linear", "clamps", "numbers", "rows"


class Candidate(NamedTuple):
    """A function that a part may be: in words, of how many operators, and what builds it.

    ``code`` is how a person would write it; where it is empty, the words are a formula.
    """

    text: str
    cost: int
    build: Build
    code: str = ""


#: A function, and its signal to noise ratio.
Match = tuple[Candidate, float]


def find_function(finder: Finder, last: Node) -> Equivalent | None:
    """The largest part that ends in a node and is a function of fewer operators."""
    if not is_pure(last) or last.target in BORDERS or not is_float(last):
        return None
    if last.target in (aten.logsumexp.default, aten.pow.Tensor_Tensor):
        return _spell_operator(finder, last)
    best = None
    for source, nodes in finder.parts(last):
        work = sum(node.target not in VIEWS for node in nodes)
        alike = is_float(source) and value(source).shape == value(last).shape
        if not alike or value(source).dtype != value(last).dtype:
            continue
        lacks = any(_is_lacking(node) and finder.is_outside(node) for node in nodes)
        if work < 2 and not lacks:
            continue
        key = finder.identify(nodes, [source])
        if key not in finder.memory:
            finder.memory[key] = _identify(finder, nodes, source)
        match = finder.memory[key]
        if match and (match[0].cost < work or lacks):
            (text, cost, build, code), sqnr_db = match
            names = ", ".join(dict.fromkeys(name_of(n) for n in nodes if n.target not in VIEWS))
            text = f"{text} instead of {work} operators" if work > 1 else f"{names} as {text}"
            best = Equivalent(
                "functions", text, tuple(nodes), last, (source,), build, cost / work, sqnr_db,
                code=code,
            )  # fmt: skip
    return best


def _is_lacking(node: Node) -> bool:
    """Whether XNNPACK has no operator for a node, but others to compute it."""
    if node.target is aten.softmax.int:
        return (int(str(node.args[1])) + 1) % len(value(node).shape) != 0
    return node.target in _SPELLED


def _spell_operator(finder: Finder, last: Node) -> Equivalent | None:
    """The logarithm of a sum of exponentials, and powers with constant exponents."""
    sources = finder.varying(last)
    if len(sources) != 1 or not finder.is_outside(last) or not is_static(sources[0]):
        return None
    shape, result = list(value(sources[0]).shape), list(value(last).shape)
    constants: tuple[torch.Tensor, ...] = ()
    if last.target is aten.logsumexp.default:
        width, gather_rows = rows_along(shape, last.args[1])  # type: ignore[arg-type]

        def build(x: Any, *given: Any) -> Any:
            return aten.reshape.default(_log_sum(width, 2, gather_rows(x)), result)

        text = "logsumexp as a softmax, its logarithm and a product"
    elif sources[0] is last.args[0]:
        constants = (finder.constants[last.args[1]],)  # type: ignore[index]

        def build(x: Any, *given: Any) -> Any:
            return aten.exp.default(aten.mul.Tensor(aten.log.default(x), given[0]))

        text = "pow as the exponential of a product with a logarithm"
    else:
        return None
    return Equivalent("functions", text, (last,), last, (sources[0],), build, constants=constants)


def _log_sum(width: int, rank: int, x: Any) -> Any:
    """The logarithm of the sum of the exponentials of each row, a column, without overflow."""
    shares = _softmax_of_rows(rank, x)
    logs = aten.log.default(aten.clamp.default(shares, 1e-37))
    parts = aten.mul.Tensor(shares, aten.sub.Tensor(x, logs))
    return aten.linear.default(parts, constant_row(x, width, 1.0, torch.float32))


def _identify(finder: Finder, nodes: list[Node], source: Node) -> Match | None:
    """The function that a part computes; most are dismissed on a small tensor."""
    whole, match = tuple(value(source).shape), None
    small = tuple(min(size, _SMALL) for size in whole)
    for shape in (small, whole):
        finder.tries -= math.prod(shape)
        if finder.tries < 0:
            return None
        try:
            match = _match(finder, nodes, source, shape)
        except (RuntimeError, ValueError, IndexError):  # it takes its own shape only
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
    numbers = [float(v) for n in nodes for v in tree_leaves(n.args) if isinstance(v, int | float)]
    least = LEAST_DB[x.element_size()]
    few = [x.flatten()[:_SCREENED], result.flatten()[:_SCREENED]]
    functions = [(each, _LINEAR) for each in _list_linear(*few)]
    functions += [(each, _CLAMPS) for each in _list_clamps(*few)]
    functions += [(each, _NUMBERS) for each in _list_functions(*few)]
    if any(node.target in _REMAINDERS for node in nodes):
        functions += [(each, _NUMBERS) for each in _list_remainders(numbers)]
    reduces = any(elements(node) < elements(source) for node in nodes)
    if reduces or nodes[-1].target in _OF_ROWS:
        functions += [(each, _ROWS) for each in _list_row_functions(x, numbers)]
    for candidate, kind in functions:
        build = candidate.build
        with contextlib.suppress(RuntimeError):
            if kind != _ROWS and sqnr(build(few[0].clone()), few[1]) < least:
                continue
            values = build(x.clone())
            if sqnr(values.flatten()[:_SCREENED], few[1]) < 0:
                continue
            sqnr_db = sqnr(values, result)
            second = finder.run(nodes, {source: other.clone()})
            if sqnr_db < least or sqnr(build(other), second) < least - REORDERED_DB:
                continue
            if not _agrees_at_ends(finder, nodes, source, x, build, kind):
                continue
            return candidate, sqnr_db
    return None


def _agrees_at_ends(
    finder: Finder, nodes: list[Node], source: Node, x: torch.Tensor, build: Build, kind: str
) -> bool:
    """Whether a function is the same where a guard decides: at zero, and near it.

    Multiples and clamps must be the same for the largest numbers, too, and multiples for what is
    no number.
    """
    if kind == _ROWS:
        return True
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
    tables = [finder.constants[n] for n in last.all_input_nodes if n in finder.constants]
    one = len(finder.varying(last)) == 1 and last.target in PRODUCTS
    if not one or not tables or tables[0].ndim != 2:
        return None
    turned = last.target is aten.linear.default
    build = partial(_look_up, turned)
    name = next(node for node in last.all_input_nodes if node in finder.constants)
    for source, nodes in finder.parts(last):
        tensor = value(source)
        kinds = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
        if tensor.dtype not in kinds or not is_static(source):
            continue
        table = tables[0].t() if turned else tables[0]
        if len(table) > _MOST_WORDS or value(last).shape[-1] != table.shape[1]:
            continue
        bias = tables[1] if turned and len(tables) > 1 else 0.0
        ids = torch.randint(0, len(table), tuple(tensor.shape)).to(tensor.dtype)
        worst = 200.0
        for shift in (0, len(table) // 3, 2 * len(table) // 3 + 1):
            moved = (ids + shift) % len(table)
            expected = torch.nn.functional.embedding(moved.long(), table) + bias
            with contextlib.suppress(RuntimeError, IndexError):
                worst = min(worst, sqnr(expected, finder.run(nodes, {source: moved})))
                continue
            worst = -math.inf
        if worst < LEAST_DB[4] - REORDERED_DB:
            continue
        sources = (source, name, *([last.args[2]] if turned and len(tables) > 1 else []))
        text = f"rows of a table instead of a product over {len(table)} columns"
        return Equivalent("lookups", text, tuple(nodes), last, sources, build, 0.0, worst)
    return None


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
            longer = _swap(finder, source[0], chain, [last], kept, "drops")
            order = longer or order
        elif (
            node.target not in PRODUCTS
            and last.target in PRODUCTS
            and elements(last) <= 2 * elements(node)
        ):
            # The first of the path adds positions, as an upsampling does.
            kept = elements(source[0]) / elements(node)
            if swapped := _swap(finder, source[0], [node], chain, kept, "adds"):
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
    expected = finder.run([*first, *then], {source: x})
    swapped = [*then, *first]
    links = {then[0]: (first[-1], source), first[0]: (source, then[-1])}

    def build(x: Any, *given: Any) -> Any:
        values = dict(zip(others, given, strict=True))
        values[source] = x
        for node in swapped:
            old, new = links.get(node, (None, None))
            operands = values if old is None else values | {old: values[new]}
            values[node] = evaluate(node, operands)
        return values[swapped[-1]]

    others = tuple(dict.fromkeys(s for n in swapped for s in n.all_input_nodes))
    others = tuple(node for node in others if node in finder.constants)
    try:
        result = build(x, *map(finder.constants.__getitem__, others))
    except (RuntimeError, ValueError, IndexError):
        return None  # they do not take each other's shapes
    sqnr_db = sqnr(result, expected)
    if sqnr_db < LEAST_DB[x.element_size()] - REORDERED_DB:
        return None
    moved, still = (then, first) if verb == "adds" else (first, then)
    product = next(name_of(node) for node in moved if node.target in PRODUCTS)
    text = f"{product} {'before' if verb == 'adds' else 'after'} {name_of(still[-1])}, "
    text += f"which {verb} positions"
    return Equivalent(
        "order", text, tuple(moved), then[-1], (source, *others), build, kept, sqnr_db
    )


def _list_linear(x: torch.Tensor, y: torch.Tensor) -> Iterator[Candidate]:
    """Multiples of a number, with their operators."""
    yield Candidate("the tensor itself", 0, lambda x: x)
    # At -10, a leaky ReLU shows its slope.
    at = int((x + 10).abs().argmin())
    slope = float(y.flatten()[at] / x.flatten()[at])
    yield Candidate(f"a leaky ReLU ({slope:.6g})", 1, lambda x: aten.leaky_relu.default(x, slope))
    ends = [int(x.argmin()), int(x.argmax())]
    (a, b), (ya, yb) = ([float(t.flatten()[end]) for end in ends] for t in (x, y))
    factor = (yb - ya) / (b - a)
    yield Candidate(f"a product with {factor:.6g}", 1, lambda x: aten.mul.Tensor(x, factor))
    offset = ya - factor * a
    yield Candidate(
        f"{factor:.6g} x + {offset:.6g}",
        2,
        lambda x: aten.add.Tensor(aten.mul.Tensor(x, factor), offset),
    )


def _list_functions(x: torch.Tensor, y: torch.Tensor) -> Iterator[Candidate]:
    """Functions of a number, with their operators: the cheapest in XNNPACK first."""
    for name, function in (
        ("hard swish", aten.hardswish.default), ("GELU", aten.gelu.default),
        ("a sigmoid", aten.sigmoid.default), ("tanh", aten.tanh.default),
        ("ReLU", aten.relu.default), ("an absolute value", aten.abs.default),
        ("a negation", aten.neg.default), ("exp", aten.exp.default), ("log", aten.log.default),
        ("a square root", aten.sqrt.default),
        ("a reciprocal square root", aten.rsqrt.default),
    ):  # fmt: skip
        yield Candidate(name, 1, function)
    yield Candidate(
        "GELU by tanh",
        1,
        lambda x: aten.gelu.default(x, approximate="tanh"),
        'F.gelu(x, approximate="tanh")',
    )
    yield Candidate("a square", 1, lambda x: aten.mul.Tensor(x, x), "x * x")
    yield Candidate(
        "a quotient of one",
        1,
        lambda x: aten.div.Tensor(_fill(x, [1], 1.0), x),
        "torch.ones_like(x) / x",
    )
    yield Candidate(
        "a quotient of one and a square",
        2,
        lambda x: aten.div.Tensor(_fill(x, [1], 1.0), _square(x)),
        "torch.ones_like(x) / (x * x)",
    )
    yield Candidate(
        "SiLU", 2, lambda x: aten.mul.Tensor(x, aten.sigmoid.default(x)), "x * torch.sigmoid(x)"
    )
    yield Candidate(
        "a product of three", 2, lambda x: aten.mul.Tensor(aten.mul.Tensor(x, x), x), "x * x * x"
    )
    yield Candidate("a product of four", 2, lambda x: _square(_square(x)), "y = x * x; y * y")
    yield Candidate("a product of five", 3, lambda x: aten.mul.Tensor(_square(_square(x)), x))
    yield Candidate("a product of six", 3, lambda x: _square(aten.mul.Tensor(_square(x), x)))
    yield Candidate("a clamp of large numbers", 2, _sign)
    yield Candidate("(exp x - exp -x) / 2", 5, lambda x: _half_exponentials(x, aten.sub.Tensor))
    yield Candidate("(exp x + exp -x) / 2", 5, lambda x: _half_exponentials(x, aten.add.Tensor))
    yield from _list_exponentials(x, y)
    yield Candidate("a hard sigmoid", 3, hard_sigmoid, "torch.clamp(x + 3, 0, 6) / 6")
    yield from _list_softplus(x, y)
    yield Candidate(
        "x tanh(log(1 + exp x))",
        9,
        lambda x: aten.mul.Tensor(x, aten.tanh.default(_softplus(x))),
        "x * torch.tanh(torch.log(1 + torch.exp(x)))",
    )
    yield Candidate(
        "minus log(1 + exp -x)",
        9,
        lambda x: aten.neg.default(_softplus(aten.neg.default(x))),
        "-torch.log(1 + torch.exp(-x))",
    )


def _list_clamps(x: torch.Tensor, y: torch.Tensor) -> Iterator[Candidate]:
    """Clamps to the ends of what is seen; an end that the operand itself has is none."""
    low, high = (float(end) for end in y.aminmax())
    bottom, top = (float(end) for end in x.aminmax())
    ends = (low if low > bottom else None, high if high < top else None)
    if ends != (None, None) and -math.inf < low < high < math.inf:
        words = [f"{end:.6g}" for end in ends if end is not None]
        kind = "a clamp to" if len(words) == 2 else "a maximum of"
        kind = "a minimum of" if ends[0] is None else kind
        yield Candidate(f"{kind} {' and '.join(words)}", 1, lambda x: aten.clamp.default(x, *ends))


def _list_remainders(numbers: list[float]) -> Iterator[Candidate]:
    """What is left of a division by one of some numbers."""
    for number in dict.fromkeys(numbers):
        if number > 0:

            def build(x: Any, number: float = number) -> Any:
                whole = aten.floor.default(aten.mul.Tensor(x, 1 / number))
                return aten.sub.Tensor(x, aten.mul.Tensor(whole, number))

            yield Candidate(f"x - {number:.6g} floor(x / {number:.6g})", 4, build)


def _sign(x: Any) -> Any:
    return aten.clamp.default(aten.mul.Tensor(x, 1e37), -1.0, 1.0)


def _half_exponentials(x: Any, combine: Build) -> Any:
    up, down = aten.exp.default(x), aten.exp.default(aten.neg.default(x))
    return aten.mul.Tensor(combine(up, down), 0.5)


def _list_exponentials(x: torch.Tensor, y: torch.Tensor) -> Iterator[Candidate]:
    """Powers of a constant, logarithms to a base, and ELU with its factors."""
    low, at = float(y.min()), int((x - 2).abs().argmin())
    near, there = float(x.flatten()[at]), float(y.flatten()[at])
    if there > 0:
        rate = math.log(there) / near
        yield Candidate(
            f"exp({rate:.6g} x)", 2, lambda x: aten.exp.default(aten.mul.Tensor(x, rate))
        )
    if near > 0 and abs(near - 1) > 1e-3:
        base = there / math.log(near)
        if there > 0:
            power = math.log(there) / math.log(near)
            yield Candidate(
                f"exp({power:.6g} log(x))",
                3,
                lambda x: aten.exp.default(aten.mul.Tensor(aten.log.default(x), power)),
            )
        yield Candidate(
            f"{base:.6g} log(x)", 2, lambda x: aten.mul.Tensor(aten.log.default(x), base)
        )
    shrunk = near - there
    if shrunk > 0:
        yield Candidate(
            f"x - a clamp to {shrunk:.6g}",
            2,
            lambda x: aten.sub.Tensor(x, aten.clamp.default(x, -shrunk, shrunk)),
        )
    yield Candidate(
        "exp(x) - 1", 2, lambda x: aten.sub.Tensor(aten.exp.default(x), 1.0), "torch.exp(x) - 1"
    )
    yield Candidate(
        "log(1 + x)", 2, lambda x: aten.log.default(aten.add.Tensor(x, 1.0)), "torch.log(1 + x)"
    )
    below = int((x + 1).abs().argmin())
    ratio = 1 + float(y.flatten()[below]) / -low if low < 0 else 0.0
    if low < 0 and there > 0 and 0 < ratio < 1:
        slope, depth = there / near, -low
        rate = math.log(ratio) / float(x.flatten()[below])
        rate = 1.0 if abs(rate - 1) < 1e-3 else rate

        def elu(x: Any) -> Any:
            left = aten.exp.default(x if rate == 1 else aten.mul.Tensor(x, rate))
            left = aten.mul.Tensor(aten.sub.Tensor(left, 1.0), -depth)
            return aten.sub.Tensor(
                aten.mul.Tensor(aten.relu.default(x), slope), aten.relu.default(left)
            )

        exponent = "x" if rate == 1 else f"({rate:.6g} x)"
        factors = (f"{each:.6g} " for each in (slope, depth))
        outer, inner = (text if text != "1 " else "" for text in factors)
        text = f"{outer}ReLU(x) - ReLU({depth:.6g} - {inner}exp {exponent})"
        yield Candidate(text, 7, elu)


def _list_softplus(x: torch.Tensor, y: torch.Tensor) -> Iterator[Candidate]:
    """``log(1 + exp(rate * x)) / rate``, whose value near zero tells the rate."""
    middle = float(y.flatten()[int(x.abs().argmin())])
    rate = round(math.log(2) / middle, 1) if 0 < middle < 10 else 1.0
    yield Candidate("log(1 + exp x)", 7, _softplus, "torch.log(1 + torch.exp(x))")
    if rate not in (0.0, 1.0):
        text = f"log(1 + exp {rate:g} x) / {rate:g}"
        yield Candidate(
            text, 9, lambda x: aten.mul.Tensor(_softplus(aten.mul.Tensor(x, rate)), 1 / rate)
        )


def _square(x: Any) -> Any:
    return aten.mul.Tensor(x, x)


def _softplus(x: Any) -> Any:
    """``log(1 + exp(x))`` without overflow."""
    small = aten.exp.default(aten.neg.default(aten.abs.default(x)))
    return aten.add.Tensor(aten.relu.default(x), aten.log.default(aten.add.Tensor(small, 1.0)))


def hard_sigmoid(x: Any) -> Any:
    """Hard sigmoid in operators that XNNPACK has."""
    return aten.mul.Tensor(aten.clamp.default(aten.add.Tensor(x, 3.0), 0.0, 6.0), 1 / 6)


def _list_row_functions(x: torch.Tensor, numbers: list[float]) -> Iterator[Candidate]:
    """Functions of the rows of a tensor, with their operators."""
    rows = "y.flatten(0, 2).softmax(-1).view(y.shape)" if x.ndim == 4 else "y.softmax(-1)"
    for axis in range(x.ndim - 1, -1, -1):
        build = partial(_softmax_along, axis, x.ndim)
        code = f"y = x.transpose({axis}, -1)\n{rows}.transpose({axis}, -1)"
        text = f"softmax over dimension {axis}"
        if axis == x.ndim - 1:
            yield Candidate(text, 1, build, "x.softmax(-1)")
        else:
            yield Candidate(f"{text}, transposed", 3, build, code)
    width = x.shape[-1]
    log_sum = partial(_log_sum, width, x.ndim)
    yield Candidate("x - log(sum(exp x)) by a softmax", 7, lambda x: aten.sub.Tensor(x, log_sum(x)))
    for epsilon in dict.fromkeys([*numbers, 1e-5, 0.0]):
        if 0 <= epsilon < 0.1:
            build = partial(normalise, width, epsilon, x.dtype)
            yield Candidate(f"layer norm (epsilon {epsilon:g}) with means as products", 5, build)


def _softmax_along(axis: int, rank: int, x: Any) -> Any:
    """Softmax over an axis of a tensor of ``rank`` dimensions; XNNPACK has it for the last one."""
    if axis == rank - 1:
        return _softmax_of_rows(rank, x)
    rows = aten.transpose.int(x, axis, -1)
    return aten.transpose.int(_softmax_of_rows(rank, rows), axis, -1)


def _softmax_of_rows(rank: int, x: Any) -> Any:
    """Softmax over the last axis; of four in two dimensions: before 1.6, images are wrong."""
    if rank != 4:
        return aten.softmax.int(x, -1)
    rows = aten.flatten.using_ints(x, 0, 2)
    return aten.view_as.default(aten.softmax.int(rows, -1), x)


def normalise(width: int, epsilon: float, dtype: torch.dtype, x: Any) -> Any:
    """Layer norm in operators that XNNPACK has: the mean of a row is a product with a constant."""
    part = constant_row(x, width, 1 / width, dtype)
    x = aten.sub.Tensor(x, aten.linear.default(x, part))
    return root_mean_square(width, epsilon, dtype, x)


def root_mean_square(width: int, epsilon: float, dtype: torch.dtype, x: Any) -> Any:
    """Rows divided by the root of their mean square."""
    part = constant_row(x, width, 1 / width, dtype)
    power = aten.linear.default(aten.mul.Tensor(x, x), part)
    return aten.mul.Tensor(x, aten.rsqrt.default(aten.add.Tensor(power, epsilon)))


def constant_row(x: Any, width: int, number: float, dtype: torch.dtype) -> Any:
    """A matrix of one row with the same number everywhere: a product with it sums rows."""
    return _fill(x, [1, width], number, dtype)


def _fill(x: Any, shape: list[int], number: float, dtype: torch.dtype | None = None) -> Any:
    """A constant of one number, beside a tensor whose dtype it has by default."""
    if not isinstance(x, Proxy):
        return aten.full.default(shape, number, dtype=dtype or x.dtype)
    if dtype is None:
        dtype = value(x.node).dtype if "val" in x.node.meta else torch.float32
    # No operand makes the call a part of the graph.
    call = ("call_function", aten.full.default, (shape, number), {"dtype": dtype})
    return x.tracer.create_proxy(*call)


def _look_up(turned: bool, x: Any, weights: Any, *bias: Any) -> Any:
    weights = aten.t.default(weights) if turned else weights
    rows = aten.embedding.default(weights, aten.to.dtype(x, torch.int64))
    return aten.add.Tensor(rows, bias[0]) if bias else rows
