"""Parts of a graph that something else replaces, each shown to be equal on random tensors.

What a part computes is found by running it, not by its spelling: every way to write hard swish is
the same function.
"""

import contextlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.node import map_arg

from workbench.graphs import (
    PRODUCTS,
    VIEWS,
    Dependence,
    find_schema,
    function_of,
    is_pure,
    mark_overwritten,
    readers,
)

aten: Any = torch.ops.aten
#: Operators of a part at most, the largest tensors of one that is searched, and of one of a rule.
_MOST_NODES, MOST_ELEMENTS, MOST_PROVEN = 24, 1 << 20, 1 << 23
#: The most of its work that may remain where operators change their order.
MOST_KEPT = 0.75
#: The least signal to noise ratio of what is equal within rounding, in dB, by bytes of an element.
_LEAST_DB = {8: 110.0, 4: 110.0, 2: 50.0}
#: Noise that sums in another order add, in dB.
_REORDERED_DB = 15.0
#: Range of the values that are tried: exp() of larger ones leaves single precision soon.
_RANGE = 30.0
#: Values that are computed at most in all.
_TRIED = 1 << 26
#: Operators that end a part: the export folds batch norms into convolutions.
BORDERS = PRODUCTS | {aten.batch_norm.default}
#: What makes a tensor of one number.
FULL = {
    aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default,
    aten.ones.default, aten.ones_like.default, aten.new_ones.default,
    aten.full.default, aten.full_like.default, aten.new_full.default,
}  # fmt: skip

#: What takes some places along an axis; and what takes parts of a tensor.
PLACES = {aten.slice.Tensor, aten.select.int}
CUTS = PLACES | {
    aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default, aten.unbind.int,
}  # fmt: skip
#: What has some elements of its operand, or all.
_PASSING = VIEWS | CUTS | {aten.repeat.default, aten.expand_as.default}

Build = Callable[..., Any]


class Refused(Exception):
    """Operators do not take the values that were tried: there is no remedy, and no fault."""


@dataclass(frozen=True)
class Equivalent:
    """A part of a graph, and what computes its ``result``.

    ``build`` makes it in PyTorch from the tensors ``sources`` and ``constants``; ``kept`` is the
    share of the work that remains where the part is delegated, and ``name`` that of the `Remedy`.
    ``about`` are the operators that it avoids, if it is not all of the part, and ``around`` those
    without which it gains nothing. ``code`` is what a person would write, and ``text`` what it
    does, if these are not those of the remedy.
    """

    name: str
    text: str
    nodes: tuple[Node, ...]
    result: Node
    sources: tuple[Node, ...]
    build: Build
    kept: float = 1.0
    sqnr_db: float = math.nan
    constants: tuple[torch.Tensor, ...] = ()
    about: tuple[Node, ...] = ()
    around: tuple[Node, ...] = ()
    code: str | None = None


class Finder:
    """The operators of a graph, its constants, and random values for its tensors.

    ``outside`` names the operators that were not delegated, if that is known.
    """

    def __init__(self, exported: ExportedProgram, outside: Collection[str] | None = None):
        self.nodes = list(exported.graph.nodes)
        self.outside = outside
        #: Whether weights and activations are quantised once the graph is rewritten.
        self.quantised = exported.graph_module.meta.get("quantised", False)
        self.place = {node: number for number, node in enumerate(self.nodes)}
        signature = exported.graph_signature
        names = signature.inputs_to_parameters | signature.inputs_to_buffers
        names |= signature.inputs_to_lifted_tensor_constants
        tensors = {**exported.constants, **exported.state_dict}
        mark_overwritten(self.nodes)
        dependence = Dependence(exported)
        #: What depends on no input, however large and whatever it calls.
        self.fixed = set(filter(dependence.is_fixed, self.nodes))
        self.constants: dict[Node, Any] = {
            node: tensors[names[node.name]].detach()
            for node in self.nodes
            if node in self.fixed and names.get(node.name) in tensors
        }
        for node in self.nodes:
            if node.op != "call_function" or not is_pure(node) or elements(node) > MOST_ELEMENTS:
                continue
            with contextlib.suppress(Refused):
                if node.target in FULL:
                    self.constants[node] = make_full(node)
                elif self.constants.keys() >= {*node.all_input_nodes}:
                    self.constants[node] = evaluate(node, self.constants)
        self.tries = _TRIED
        self.samples: dict[Any, torch.Tensor] = {}
        #: What equal parts are, by whatever identifies them.
        self.memory: dict[Any, Any] = {}

    def recall(self, key: Any, compute: Callable[[], Any]) -> Any:
        """What was computed for a key before, or is now."""
        if key not in self.memory:
            self.memory[key] = compute()
        return self.memory[key]

    def is_outside(self, node: Node) -> bool:
        """Whether an operator is not delegated, as far as is known."""
        return self.outside is None or node.name in self.outside

    def varying(self, node: Node) -> list[Node]:
        """The inputs of a node that are no constants."""
        return [source for source in node.all_input_nodes if source not in self.constants]

    def sample(self, node: Node, shape: tuple[int, ...] | None = None) -> torch.Tensor:
        """Random values of a node's type, in its shape or another; of an index, valid ones."""
        dtype = value(node).dtype
        choices = 0 if dtype.is_floating_point else _count_choices(node)
        key = (shape or sizes_of(node), dtype, choices)
        if key not in self.samples:
            self.samples[key] = _sample(*key)
        return self.samples[key].clone()

    def parts(
        self, last: Node, borders: Collection[Any] = BORDERS, most: int = _MOST_NODES
    ) -> Iterator[tuple[Node, list[Node]]]:
        """The parts that end in a node and read one varying tensor: that tensor and their nodes."""
        inside, frontier = [last], {*self.varying(last)}
        while frontier and len(inside) < most:
            if len(frontier) == 1:
                members = {*inside}
                if all(members.issuperset(readers(node)) for node in inside[1:]):
                    yield next(iter(frontier)), inside[::-1]
            newest = max(frontier, key=self.place.__getitem__)
            if not is_pure(newest) or newest.target in borders:
                return
            frontier.remove(newest)
            inside.append(newest)
            inside.sort(key=self.place.__getitem__, reverse=True)
            frontier.update(self.varying(newest))

    def run(self, nodes: Collection[Node], given: Mapping[Node, Any]) -> Any:
        """The result of the last of some nodes."""
        values = {**self.constants, **given}
        for node in nodes:
            values[node] = evaluate(node, values)
        return values[[*nodes][-1]]

    def identify(self, nodes: Sequence[Node], sources: Sequence[Node]) -> Any:
        """What equal parts share: operators, arguments, constants and shapes."""
        numbers = {node: number for number, node in enumerate([*sources, *nodes])}

        def name(node: Node) -> Any:
            return numbers.get(node, f"constant {id(self.constants.get(node))}")

        calls = [
            (str(n.target), str(map_arg((n.args, n.kwargs), lambda m: f"%{name(m)}")))
            for n in nodes
        ]
        return (*map(sizes_of, sources), str(calls))

    def prove(self, each: Equivalent) -> Equivalent | None:
        """An equivalent with its signal to noise ratio on random tensors; None if it differs."""
        build, *how = getattr(each.build, "args", (each.build,))  # of a partial one, what it calls
        code = getattr(build, "__code__", build)
        key = ("proof", code, *how, each.text, self.identify(each.nodes, each.sources))
        ratio = self.recall(key, lambda: self._compare(each))
        if ratio < least_db(value(each.sources[0])):
            return None
        return replace(each, sqnr_db=ratio)

    def _compare(self, each: Equivalent) -> float:
        if all(map(is_static, each.sources)):  # of others, the example was computed before
            self.tries -= elements(each.result) + sum(map(elements, each.nodes))
            if self.tries < 0 or max(map(elements, each.nodes)) > MOST_PROVEN:
                return -math.inf
        return self.compare(each)

    def compare(self, each: Equivalent) -> float:
        """The signal to noise ratio of an equivalent on random tensors, however large, in dB."""
        given = {
            source: self.constants[source] if source in self.constants else self.sample(source)
            for source in each.sources
        }
        with torch.no_grad():
            expected = self.run(each.nodes, given)
            result = each.build(*(given[source] for source in each.sources), *each.constants)
        if isinstance(expected, torch.Tensor):
            return sqnr(result, expected)
        return min(sqnr(one, other) for one, other in zip(result, expected, strict=True))


def arguments_of(node: Node) -> dict[str, Any]:
    """The arguments of a node by the names in the schema of its operator, also those by default."""
    given = iter(node.args)
    return {
        each.name: next(given, node.kwargs.get(each.name, each.default_value))
        for each in find_schema(node.target).arguments
    }


def reshape(x: Any, shape: Sequence[int]) -> Any:
    """A tensor in a shape, which it may have already."""
    return x if [*x.shape] == [*shape] else aten.reshape.default(x, [*shape])


def are_fixed(shape: Sequence[int]) -> bool:
    """Whether no size is dynamic."""
    return all(isinstance(size, int) for size in shape)


def _count_choices(node: Node) -> int:
    """Of how many rows a node chooses some, as an index of tensors; 0 if it is none."""
    counts = []
    for reader in readers(node):
        given = {} if find_schema(reader.target) is None else arguments_of(reader)
        x, index = given.get("self", given.get("weight")), given.get("index")
        index = given.get("indices") if index is None else index
        if isinstance(index, list | tuple) and node in index:
            counts.append(sizes_of(x)[index.index(node)])  # type: ignore[arg-type]
        elif index is node:
            counts.append(sizes_of(x)[given.get("dim", 0)])  # type: ignore[arg-type]
        elif reader.args[:1] == (node,) and reader.target in _PASSING:
            counts.append(_count_choices(reader))
    return min(filter(None, counts), default=0)


def _sample(shape: tuple[int, ...], dtype: torch.dtype, choices: int) -> torch.Tensor:
    """Values in the middle and at the ends of the range, in random order, the same each time."""
    generator = torch.Generator().manual_seed(0)
    if choices:
        return torch.randint(choices, shape, generator=generator).to(dtype)
    size = math.prod(shape)
    values = torch.randn(size, generator=generator) * 3
    wide = torch.linspace(-_RANGE, _RANGE, max(2, size // 4))
    values[: len(wide)] = wide[:size]
    values = values[torch.randperm(size, generator=generator)].reshape(shape)
    if shape:  # of every other row small values, for which the epsilon of a norm decides
        values.view(-1, shape[-1])[::2] *= 1e-2
    return values.to(dtype)


def sqnr(result: torch.Tensor, expected: torch.Tensor) -> float:
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


def least_db(x: torch.Tensor, reorders: int = 1) -> float:
    """The least ratio in dB of what equals a tensor within rounding, with so many other sums."""
    return _LEAST_DB.get(x.element_size(), _LEAST_DB[8]) - reorders * _REORDERED_DB


def evaluate(node: Node, values: Any) -> Any:
    """The result of a node, from those of others; `Refused` if it does not take them."""
    args, kwargs = map_arg((node.args, node.kwargs), lambda source: values[source])
    return call(function_of(node), *args, **kwargs)


def make_full(node: Node) -> torch.Tensor:
    """A new tensor, for which only dtype and, if it is known, shape of an operand count."""
    operands = {
        each: torch.empty(value(each).shape if is_static(each) else 0, dtype=value(each).dtype)
        for each in node.all_input_nodes
    }
    return evaluate(node, operands)  # type: ignore[no-any-return]


def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a function returns; `Refused` if its operators do not take the values."""
    try:
        return function(*args, **kwargs)
    except (RuntimeError, ValueError, IndexError, NotImplementedError) as error:
        raise Refused(f"{function}: {error}") from error


def value(node: Any) -> torch.Tensor:
    """The example value of a node."""
    return node.meta["val"]


def name_of(node: Node) -> str:
    """``conv2d`` for ``aten::conv2d``."""
    return str(function_of(node)).removeprefix("aten.").partition(".")[0]


def names_of(nodes: Sequence[Node]) -> str:
    """What some nodes compute: the operators that are no views, or the last one."""
    names = (name_of(node) for node in nodes if node.target not in VIEWS - {aten.expand.default})
    return ", ".join(dict.fromkeys(names)) or name_of(nodes[-1])


def elements(node: Node) -> int:
    """How many elements the result of a node has; very many if that is not known."""
    tensor = node.meta.get("val")
    if isinstance(tensor, list | tuple):
        return sum(part.numel() for part in tensor if isinstance(part, torch.Tensor))
    return tensor.numel() if isinstance(tensor, torch.Tensor) and is_static(node) else 1 << 62


def sizes_of(node: Node) -> tuple[int, ...]:
    """The sizes of a tensor; of dynamic ones, those of the example; `Refused` if that has none."""
    sizes = [size if isinstance(size, int) else size.node.hint for size in value(node).shape]
    if None in sizes:
        raise Refused(f"{node} has sizes that depend on values")
    return tuple(sizes)


def is_static(node: Node) -> bool:
    """Whether a node is a tensor all of whose sizes are known."""
    sizes = getattr(node.meta.get("val"), "shape", None)
    return sizes is not None and are_fixed(sizes)


def is_pointwise(node: Node) -> bool:
    """Whether each element of a result is a function of the elements at its place."""
    return torch.Tag.pointwise in getattr(function_of(node), "tags", ())


def is_float(node: Node, most: int = MOST_ELEMENTS) -> bool:
    """Whether a node is a floating-point tensor of a size that is tried."""
    tensor = node.meta.get("val")
    floating = isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
    return floating and 0 < elements(node) <= most
