"""Parts of a graph that something cheaper replaces, each shown to be equal on random tensors.

What a part computes is found by running it, not by its spelling: every way to write hard swish is
the same function.
"""

import contextlib
import math
import operator
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node, Proxy
from torch.fx.node import map_arg

from workbench.upstream import find_schema, tree_leaves

aten: Any = torch.ops.aten
#: The rewrites of `OPTIONAL_REWRITES` that are found here.
EQUIVALENTS = ("functions", "order", "lookups")

#: Operators of a part at most, and the largest tensor and vocabulary that is tried.
_MOST_NODES, _MOST_ELEMENTS, _MOST_WORDS = 24, 1 << 20, 1 << 16
#: The least signal to noise ratio of what is equal but for rounding, in dB, by bytes of an element.
_LEAST_DB = {8: 110.0, 4: 110.0, 2: 50.0}
#: Range of the values that are tried: exp() of larger ones leaves single precision soon.
_RANGE = 30.0
#: The most of each dimension of the tensors on which functions are compared first.
_SMALL = 12
#: Values on which functions of numbers are compared first, and that are computed at most in all.
_SCREENED, _TRIED = 4096, 1 << 24
#: Operators in a row that may be moved, the most of their work that may remain, and the noise that
#: sums in another order add, in dB.
_LONGEST_PATH, _MOST_KEPT, _REORDERED_DB = 6, 0.75, 15.0
_PRODUCTS = {
    aten.linear.default, aten.matmul.default, aten.mm.default, aten.bmm.default,
    aten.addmm.default, aten.conv1d.default, aten.conv2d.default, aten.conv2d.padding,
    aten.conv3d.default, aten.convolution.default, aten.einsum.default,
}  # fmt: skip
#: Operators that end a part: the export folds batch norms into convolutions.
_BORDERS = _PRODUCTS | {aten.batch_norm.default}
#: Operators that only arrange data: they count as no work.
_VIEWS = {
    aten.view.default, aten.reshape.default, aten.unsqueeze.default, aten.squeeze.dim,
    aten.flatten.using_ints, aten.detach.default, aten.detach_.default, aten.alias.default,
    aten.expand.default, aten.contiguous.default, aten.clone.default, aten.dropout.default,
    aten.to.dtype, operator.getitem,
}  # fmt: skip

Build = Callable[..., Any]
#: A function in words, what builds it, of how many operators, and its signal to noise ratio.
Match = tuple[str, Build, int, float]


@dataclass(frozen=True)
class Equivalent:
    """A part of a graph, and what computes its ``result``.

    ``build`` makes it from the tensors ``sources``; ``kept`` is the share of the work that
    remains, and ``name`` is the rewrite's in `OPTIONAL_REWRITES`.
    """

    name: str
    text: str
    nodes: tuple[Node, ...]
    result: Node
    sources: tuple[Node, ...]
    build: Build
    kept: float
    sqnr_db: float


class Finder:
    """Finds equivalents in a graph; results of equal parts are reused."""

    def __init__(self, exported: ExportedProgram):
        self.nodes = list(exported.graph.nodes)
        self.place = {node: number for number, node in enumerate(self.nodes)}
        signature = exported.graph_signature
        names = signature.inputs_to_parameters | signature.inputs_to_buffers
        names |= signature.inputs_to_lifted_tensor_constants
        tensors = {**exported.constants, **exported.state_dict}
        changed = set(signature.buffers_to_mutate.values())
        self.constants: dict[Node, Any] = {
            node: tensors[names[node.name]].detach()
            for node in self.nodes
            if names.get(node.name) in tensors.keys() - changed
        }
        for node in self.nodes:  # what depends on no input
            known = node.op == "call_function" and self.constants.keys() >= {*node.all_input_nodes}
            if known and _is_pure(node) and _elements(node) <= _MOST_ELEMENTS:
                with contextlib.suppress(Exception):  # a failure costs a rewrite, nothing else
                    self.constants[node] = _call(node, self.constants)
        self.tries = _TRIED
        self.samples: dict[Any, torch.Tensor] = {}
        self.known: dict[Any, Match | None] = {}

    @torch.no_grad()
    def find(self, names: Collection[str]) -> Iterator[Equivalent]:
        """The equivalents of some rewrites, from the end of the graph; none overlaps another."""
        finders = dict(
            zip(
                EQUIVALENTS, (self._find_function, self._find_order, self._find_lookup), strict=True
            )
        )
        taken: set[Node] = set()
        for node in reversed(self.nodes):
            if node in taken or node.op != "call_function" or node in self.constants:
                continue
            found = None
            for name in filter(names.__contains__, EQUIVALENTS):
                with contextlib.suppress(Exception):  # operators may refuse these values
                    found = found or finders[name](node)
            if found and taken.isdisjoint(found.nodes):
                taken.update(found.nodes)
                yield found

    def varying(self, node: Node) -> list[Node]:
        """The inputs of a node that are no constants."""
        return [source for source in node.all_input_nodes if source not in self.constants]

    def sample(self, node: Node, shape: tuple[int, ...] | None = None) -> torch.Tensor:
        """Random values of a node's type, in its shape or another."""
        key = (shape or tuple(_value(node).shape), _value(node).dtype)
        if key not in self.samples:
            self.samples[key] = _sample(*key)
        return self.samples[key].clone()

    def is_pointwise(self, node: Node) -> bool:
        """Whether no filter of a node reads several positions."""
        filters = (self.constants.get(source) for source in node.all_input_nodes)
        return all(math.prod(f.shape[2:]) == 1 for f in filters if f is not None and f.ndim > 2)

    def parts(self, last: Node) -> Iterator[tuple[Node, list[Node]]]:
        """The parts that end in a node and read one varying tensor: that tensor and their nodes."""
        inside, frontier = [last], {*self.varying(last)}
        while frontier and len(inside) < _MOST_NODES:
            if len(frontier) == 1:
                members = {*inside}
                if all(members.issuperset(readers(node)) for node in inside[1:]):
                    yield next(iter(frontier)), inside[::-1]
            newest = max(frontier, key=self.place.__getitem__)
            if not _is_pure(newest) or newest.target in _BORDERS:
                return
            frontier.remove(newest)
            inside.append(newest)
            inside.sort(key=self.place.__getitem__, reverse=True)
            frontier.update(self.varying(newest))

    def run(self, nodes: Collection[Node], known: dict[Node, Any]) -> Any:
        """The result of the last of some nodes."""
        values = self.constants | known
        for node in nodes:
            values[node] = _call(node, values)
        return values[[*nodes][-1]]

    def _find_function(self, last: Node) -> Equivalent | None:
        if not _is_pure(last) or last.target in _BORDERS or not _is_float(last):
            return None
        best = None
        for source, nodes in self.parts(last):
            work = sum(node.target not in _VIEWS for node in nodes)
            alike = _is_float(source) and _value(source).shape == _value(last).shape
            if work < 2 or not alike or _value(source).dtype != _value(last).dtype:
                continue
            key = self._key(nodes, source)
            if key not in self.known:
                self.known[key] = self._identify(nodes, source)
            if (match := self.known[key]) and match[2] < work:
                text, build, cost, sqnr_db = match
                text = f"{text} instead of {work} operators"
                best = Equivalent(
                    "functions", text, tuple(nodes), last, (source,), build, cost / work, sqnr_db
                )
        return best

    def _key(self, nodes: list[Node], source: Node) -> Any:
        """What equal parts share: operators, arguments, constants and the shape."""
        numbers = {node: number for number, node in enumerate([source, *nodes])}

        def name(node: Node) -> Any:
            return numbers.get(node, f"constant {id(self.constants.get(node))}")

        calls = [
            (str(n.target), str(map_arg((n.args, n.kwargs), lambda m: f"%{name(m)}")))
            for n in nodes
        ]
        return (tuple(_value(source).shape), str(calls))

    def _identify(self, nodes: list[Node], source: Node) -> Match | None:
        """The function that a part computes; most are dismissed on a small tensor."""
        whole, match = tuple(_value(source).shape), None
        small = tuple(min(size, _SMALL) for size in whole)
        for shape in (small, whole):
            self.tries -= math.prod(shape)
            if self.tries < 0:
                return None
            try:
                match = self._match(nodes, source, shape)
            except (RuntimeError, ValueError, IndexError):  # it takes its own shape only
                continue
            if match is None or shape == whole:
                return match
        return None

    def _match(self, nodes: list[Node], source: Node, shape: tuple[int, ...]) -> Match | None:
        x = self.sample(source, shape)
        other = 0.4 * x.flip(-1) + 1.0  # with other statistics
        result = self.run(nodes, {source: x.clone()})
        if result.min() == result.max():
            return None
        numbers = [v for n in nodes for v in tree_leaves(n.args) if isinstance(v, float)]
        least = _LEAST_DB[x.element_size()]
        few = [x.flatten()[:_SCREENED], result.flatten()[:_SCREENED]]
        functions = [(*each, True) for each in _list_functions(*few)]
        if any(_elements(node) < _elements(source) for node in nodes):  # it may reduce rows
            functions += [(*each, False) for each in _list_row_functions(x, numbers)]
        for text, cost, build, of_numbers in functions:
            with contextlib.suppress(RuntimeError):
                if of_numbers and _sqnr(build(few[0].clone()), few[1]) < least:
                    continue
                values = build(x.clone())
                if _sqnr(values.flatten()[:_SCREENED], few[1]) < 0:
                    continue
                sqnr_db = _sqnr(values, result)
                second = self.run(nodes, {source: other.clone()})
                if sqnr_db >= least and _sqnr(build(other), second) >= least - _REORDERED_DB:
                    return text, build, cost, sqnr_db
        return None

    def _find_lookup(self, last: Node) -> Equivalent | None:
        """A product of rows with a single one, which only reads rows of the weights."""
        tables = [self.constants[n] for n in last.all_input_nodes if n in self.constants]
        one = len(self.varying(last)) == 1 and last.target in _PRODUCTS
        if not one or not tables or tables[0].ndim != 2:
            return None
        turned = last.target is aten.linear.default
        build = partial(_look_up, turned)
        name = next(node for node in last.all_input_nodes if node in self.constants)
        for source, nodes in self.parts(last):
            tensor = _value(source)
            if tensor.is_floating_point() or tensor.dtype == torch.bool or not _is_static(source):
                continue
            table = tables[0].t() if turned else tables[0]
            if len(table) > _MOST_WORDS or _value(last).shape[-1] != table.shape[1]:
                continue
            bias = tables[1] if turned and len(tables) > 1 else 0.0
            ids = torch.randint(0, len(table), tuple(tensor.shape)).to(tensor.dtype)
            worst = 200.0
            for shift in (0, len(table) // 3, 2 * len(table) // 3 + 1):
                moved = (ids + shift) % len(table)
                expected = torch.nn.functional.embedding(moved.long(), table) + bias
                with contextlib.suppress(RuntimeError, IndexError):
                    worst = min(worst, _sqnr(expected, self.run(nodes, {source: moved})))
                    continue
                worst = -math.inf
            if worst < _LEAST_DB[4] - _REORDERED_DB:
                continue
            sources = (source, name, *([last.args[2]] if turned and len(tables) > 1 else []))

            text = f"rows of a table instead of a product over {len(table)} columns"
            return Equivalent("lookups", text, tuple(nodes), last, sources, build, 0.0, worst)
        return None

    def _find_order(self, last: Node) -> Equivalent | None:
        """Operators that treat every position alike, moved to where there are fewer positions."""
        path = [last]
        while len(path) <= _LONGEST_PATH and len(before := self.varying(path[-1])) == 1:
            if before[0].op != "call_function" or len(readers(before[0])) > 1:
                break
            path.append(before[0])
        if not all(_is_pure(node) and _is_float(node) for node in path):
            return None
        found = None
        for end, node in enumerate(path[1:], 1):
            chain, source = path[:end][::-1], self.varying(node)
            if len(source) != 1 or not _is_float(source[0]):
                break
            if not all(map(self.is_pointwise, path[: end + 1])):
                break
            if last.target not in _PRODUCTS and node.target in _PRODUCTS:
                # The last one drops positions, as a pooling does.
                kept, chain = _elements(last) / _elements(path[1]), path[1 : end + 1][::-1]
                longer = self._swap(source[0], chain, [last], kept, "drops")
                found = longer or found
            elif (
                node.target not in _PRODUCTS
                and last.target in _PRODUCTS
                and _elements(last) <= 2 * _elements(node)
            ):
                # The first of the path adds positions, as an upsampling does.
                kept = _elements(source[0]) / _elements(node)
                if swapped := self._swap(source[0], [node], chain, kept, "adds"):
                    return swapped
        return found

    def _swap(
        self, source: Node, first: list[Node], then: list[Node], kept: float, verb: str
    ) -> Equivalent | None:
        """Some operators after others instead of before them."""
        if kept > _MOST_KEPT:
            return None
        x = self.sample(source)
        expected = self.run([*first, *then], {source: x})
        swapped = [*then, *first]
        links = {then[0]: (first[-1], source), first[0]: (source, then[-1])}

        def build(x: Any, *given: Any) -> Any:
            values = dict(zip(others, given, strict=True))
            values[source] = x
            for node in swapped:
                old, new = links.get(node, (None, None))
                known = values if old is None else values | {old: values[new]}
                values[node] = _call(node, known)
            return values[swapped[-1]]

        others = tuple(dict.fromkeys(s for n in swapped for s in n.all_input_nodes))
        others = tuple(node for node in others if node in self.constants)
        try:
            result = build(x, *map(self.constants.__getitem__, others))
        except (RuntimeError, ValueError, IndexError):
            return None  # they do not take each other's shapes
        sqnr_db = _sqnr(result, expected)
        if sqnr_db < _LEAST_DB[x.element_size()] - _REORDERED_DB:
            return None
        moved, still = (then, first) if verb == "adds" else (first, then)
        product = next(_name(node) for node in moved if node.target in _PRODUCTS)
        text = f"{product} {'before' if verb == 'adds' else 'after'} {_name(still[-1])}, "
        text += f"which {verb} positions"
        return Equivalent(
            "order", text, tuple(moved), then[-1], (source, *others), build, kept, sqnr_db
        )


def _list_functions(x: torch.Tensor, y: torch.Tensor) -> Iterator[tuple[str, int, Build]]:
    """Functions of a number, with their operators: the cheapest in XNNPACK first."""
    yield "the tensor itself", 0, lambda x: x
    low, high = float(y.min()), float(y.max())
    for name, call in (
        ("hard swish", aten.hardswish.default), ("GELU", aten.gelu.default),
        ("a sigmoid", aten.sigmoid.default), ("tanh", aten.tanh.default),
        ("ReLU", aten.relu.default), ("an absolute value", aten.abs.default),
        ("a negation", aten.neg.default), ("exp", aten.exp.default), ("log", aten.log.default),
        ("a square root", aten.sqrt.default),
        ("a reciprocal square root", aten.rsqrt.default),
    ):  # fmt: skip
        yield name, 1, call
    if -math.inf < low < high < math.inf:
        yield f"a clamp to {low:.6g} and {high:.6g}", 1, lambda x: aten.clamp.default(x, low, high)
    yield "GELU by tanh", 1, lambda x: aten.gelu.default(x, approximate="tanh")
    yield "a square", 1, lambda x: aten.mul.Tensor(x, x)
    # At -10, a leaky ReLU shows its slope.
    at = int((x + 10).abs().argmin())
    slope = float(y.flatten()[at] / x.flatten()[at])
    yield f"a leaky ReLU ({slope:.6g})", 1, lambda x: aten.leaky_relu.default(x, slope)
    ends = [int(x.argmin()), int(x.argmax())]
    (a, b), (ya, yb) = ([float(t.flatten()[end]) for end in ends] for t in (x, y))
    factor = (yb - ya) / (b - a)
    yield f"a product with {factor:.6g}", 1, lambda x: aten.mul.Tensor(x, factor)
    yield "SiLU", 2, lambda x: aten.mul.Tensor(x, aten.sigmoid.default(x))
    offset = ya - factor * a
    yield (
        f"{factor:.6g} x + {offset:.6g}",
        2,
        lambda x: aten.add.Tensor(aten.mul.Tensor(x, factor), offset),
    )
    yield "a hard sigmoid", 3, hard_sigmoid


def hard_sigmoid(x: Any) -> Any:
    """Hard sigmoid in operators that XNNPACK has."""
    return aten.mul.Tensor(aten.clamp.default(aten.add.Tensor(x, 3.0), 0.0, 6.0), 1 / 6)


def _list_row_functions(x: torch.Tensor, numbers: list[float]) -> Iterator[tuple[str, int, Build]]:
    """Functions of the rows of a tensor, with their operators."""
    for axis in range(x.ndim - 1, -1, -1):
        last = axis == x.ndim - 1
        yield (
            f"softmax over dimension {axis}",
            1 if last else 3,
            lambda x, axis=axis: aten.softmax.int(x, axis),
        )
    width = x.shape[-1]
    for epsilon in dict.fromkeys([*numbers, 1e-5, 0.0]):
        if 0 <= epsilon < 0.1:
            build = partial(normalise, width, epsilon, x.dtype)
            yield f"layer norm (epsilon {epsilon:g}) with means as products", 5, build


def normalise(width: int, epsilon: float, dtype: torch.dtype, x: Any) -> Any:
    """Layer norm in operators that XNNPACK has: the mean of a row is a product with a constant."""
    call = (aten.full.default, ([1, width], 1 / width), {"dtype": dtype})
    if isinstance(x, Proxy):  # no operand makes the call a part of the graph
        part = x.tracer.create_proxy("call_function", *call)
    else:
        part = call[0](*call[1], **call[2])
    x = aten.sub.Tensor(x, aten.linear.default(x, part))
    power = aten.linear.default(aten.mul.Tensor(x, x), part)
    return aten.mul.Tensor(x, aten.rsqrt.default(aten.add.Tensor(power, epsilon)))


def _look_up(turned: bool, x: Any, weights: Any, *bias: Any) -> Any:
    weights = aten.t.default(weights) if turned else weights
    rows = aten.embedding.default(weights, aten.to.dtype(x, torch.int64))
    return aten.add.Tensor(rows, bias[0]) if bias else rows


def _sample(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Values in the middle and at the ends of the range, in random order, the same each time."""
    generator = torch.Generator().manual_seed(0)
    size = math.prod(shape)
    values = torch.randn(size, generator=generator) * 3
    wide = torch.linspace(-_RANGE, _RANGE, max(2, size // 4))
    values[: len(wide)] = wide[:size]
    values = values[torch.randperm(size, generator=generator)].reshape(shape)
    # Of every other row small values, for which the epsilon of a norm decides.
    rows = values.reshape(-1, shape[-1] if shape else 1)
    rows[::2] *= 1e-2
    return values.to(dtype)


def _sqnr(result: torch.Tensor, expected: torch.Tensor) -> float:
    """The signal to noise ratio in dB; values that are no numbers must be the same ones."""
    if result.shape != expected.shape or result.dtype != expected.dtype:
        return -math.inf
    result, expected = result.double(), expected.double()
    finite = expected.isfinite()
    if not torch.equal(finite, result.isfinite()) or finite.sum() < finite.numel() / 4:
        return -math.inf
    noise = float((result[finite] - expected[finite]).square().sum())
    signal = float(expected[finite].square().sum())
    if not noise:
        return 200.0
    return 10 * math.log10(signal / noise) if signal else -math.inf


def readers(node: Node) -> list[Node]:
    """The users of a node, other than checks of its type."""
    return [user for user in node.users if "_assert" not in str(user.target)]


def _call(node: Node, values: Any) -> Any:
    """The result of a node, from those of others."""
    args, kwargs = map_arg((node.args, node.kwargs), lambda source: values[source])
    return _function(node)(*args, **kwargs)


def _function(node: Node) -> Any:
    """What a node calls; of an operator that overwrites its operand, the one that does not."""
    target: Any = node.target
    schema = find_schema(target)
    if schema is None or not schema.is_mutable:
        return target
    name = schema.name.removeprefix("aten::").removesuffix("_")
    packet = getattr(aten, name, None) if schema.name.endswith("_") else None
    return getattr(packet, schema.overload_name or "default", target)


def _value(node: Node) -> torch.Tensor:
    return node.meta["val"]


def _name(node: Node) -> str:
    """``conv2d`` for ``aten::conv2d``."""
    return str(_function(node)).removeprefix("aten.").partition(".")[0]


def _elements(node: Node) -> int:
    tensor = node.meta.get("val")
    return tensor.numel() if isinstance(tensor, torch.Tensor) and _is_static(node) else 1 << 62


def _is_static(node: Node) -> bool:
    return all(isinstance(size, int) for size in _value(node).shape)


def _is_float(node: Node) -> bool:
    tensor = node.meta.get("val")
    floating = isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
    return floating and 0 < _elements(node) <= _MOST_ELEMENTS


def _is_pure(node: Node) -> bool:
    """Whether a node computes the same at every call, and changes nothing that others read."""
    target: Any = _function(node)
    if target is operator.getitem:
        return True
    schema = find_schema(target)
    if node.op != "call_function" or schema is None or schema.is_mutable:
        return False
    if target is not node.target:  # it overwrites its operand, which must be its own
        source: Any = node.args[0]
        if len(readers(source)) > 1 or source.op != "call_function" or source.target in _VIEWS:
            return False
    return torch.Tag.nondeterministic_seeded not in target.tags
