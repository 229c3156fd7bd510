"""Layers of one input that are summed, and layers in a row, as one layer.

A part of a graph is read as a sum of filters of what it reads: convolutions, linear layers, average
pooling, batch norms, and arithmetic with constants. Filters of one tensor are added, and filters in
a row multiplied, where that is less work.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from workbench.graphs import PRODUCTS, function_of, is_pure, readers
from workbench.plugins.remedies.equivalence import (
    Equivalent,
    Finder,
    Refused,
    arguments_of,
    elements,
    evaluate,
    is_static,
    least_db,
    name_of,
    names_of,
    sqnr,
    value,
)
from workbench.plugins.remedies.filters import Filter, Place, multiply
from workbench.plugins.remedies.linear import CALLED, MOVED, count_work, scale
from workbench.plugins.remedies.windows import convolve

aten: Any = torch.ops.aten


class Kind(NamedTuple):
    """Tensors of rows, lines or images: how many axes of places they have, and their layer."""

    rank: int
    layer: Any


ROWS, LINES, IMAGES = (
    Kind(0, aten.linear.default), Kind(1, aten.conv1d.default), Kind(2, aten.conv2d.default),
)  # fmt: skip
#: What is a filter of its first operand, and of which tensors.
_LAYERS = {
    aten.linear.default: ROWS, aten.matmul.default: ROWS, aten.mm.default: ROWS,
    aten.conv1d.default: LINES, aten.conv1d.padding: LINES, aten.avg_pool1d.default: LINES,
    aten.conv2d.default: IMAGES, aten.conv2d.padding: IMAGES, aten.avg_pool2d.default: IMAGES,
}  # fmt: skip
_PADS = {aten.pad.default, aten.constant_pad_nd.default}
#: Arithmetic that multiplies each channel by a constant and adds one, with one varying operand.
_AFFINE = {
    aten.mul.Tensor, aten.div.Tensor, aten.neg.default, aten.rsub.Scalar, aten.addcmul.default,
    aten.add.Tensor, aten.sub.Tensor, aten.batch_norm.default,
}  # fmt: skip
_SUMS = {aten.add.Tensor: 1.0, aten.sub.Tensor: -1.0}
#: What returns its operand, at inference.
_SAME = {
    aten.contiguous.default, aten.clone.default, aten.detach.default, aten.alias.default,
    aten.dropout.default,
}  # fmt: skip
#: Terms of a sum, and multiplications that put two filters together, at most.
_MOST_TERMS, _MOST_COMPOSED = 8, 1 << 31
#: Images are compared in sizes up to twice this; of larger ones, in one with the same rest.
_COMPARED = 12

Bias = Callable[[], torch.Tensor] | None
#: What writes a term, from a tensor and some constants.
Write = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class Term:
    """A filter of a tensor with an offset, and the operators that compute it.

    ``whole`` is the one of them whose result it is, if that is no part of a sum; ``is_same`` is
    whether it is the tensor itself.
    """

    source: Node
    filter: Filter
    bias: Bias = None
    nodes: frozenset[Node] = frozenset()
    whole: Node | None = None
    is_same: bool = False

    def scale(self, factors: torch.Tensor) -> "Term":
        """The term with each output multiplied."""
        bias = self.bias
        scaled = None if bias is None else lambda: bias() * factors
        scaled_filter = self.filter.scale(factors)
        return replace(self, filter=scaled_filter, bias=scaled, whole=None, is_same=False)

    def shift(self, other: Bias) -> "Term":
        """The term with an offset more."""
        return replace(self, bias=_add(self.bias, other), is_same=self.is_same and other is None)


def _add(one: Bias, other: Bias) -> Bias:
    if one is None or other is None:
        return one or other
    return lambda: one() + other()


def _keep_nonzero(bias: torch.Tensor) -> Bias:
    return (lambda: bias) if bias.count_nonzero() else None


@dataclass(frozen=True)
class Sum:
    """Terms that are added by some operators, and the work of what they read and may take up."""

    terms: tuple[Term, ...]
    nodes: frozenset[Node] = frozenset()
    before: int = 0

    def join(self, *nodes: Node) -> "Sum":
        """The sum with more operators; the last one computes it."""
        if len(self.terms) > 1:
            return replace(self, nodes=self.nodes.union(nodes))
        (term,) = self.terms
        whole = replace(term, nodes=term.nodes | self.nodes.union(nodes), whole=nodes[-1])
        return replace(self, terms=(whole,), nodes=frozenset())


def find_branches(finder: Finder, last: Node, name: str = "branches") -> Equivalent | None:
    """Branches of one input, and layers in a row, as fewer layers; or one with what follows it."""
    for kind in (ROWS, LINES, IMAGES):
        reader = _Reader(finder, kind)
        for each in reader.read(last)[:1]:
            part = reader.write(each, last, name)
            if part:
                return part
    return None


class _Reader:
    """Reads parts of a graph as sums of filters of one kind of tensors, and writes these."""

    def __init__(self, finder: Finder, kind: Kind) -> None:
        self.finder, self.kind, self.axis = finder, kind, -1 - kind.rank

    def fits(self, node: Node) -> bool:
        """Whether a node is a tensor of the kind, in a size that is known."""
        tensor = node.meta.get("val")
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
            return False
        return tensor.ndim >= max(2, 1 + self.kind.rank) and is_static(node) and tensor.numel() > 0

    def sizes_of(self, node: Node) -> Place:
        """Rows and columns of an image; a line is one row, and a row has a single place."""
        return self.pair(list(value(node).shape)[value(node).ndim - self.kind.rank :], 1)

    def pair(self, numbers: Any, first: int) -> Place:
        """Numbers for rows and columns; the first is that of what a line or row lacks."""
        given: list[int] = [numbers] if isinstance(numbers, int) else list(numbers)
        given = given * self.kind.rank if len(given) == 1 else given
        row, column = [first] * (2 - self.kind.rank) + given
        return row, column

    def keep(self, node: Node) -> Sum:
        """A tensor as it is."""
        return Sum((Term(node, self.take(node), is_same=True),))

    def take(
        self, node: Node, places: Sequence[Place] = ((0, 0),), factor: float = 1.0, **more: Any
    ) -> Filter:
        """The filter of each channel that sums some places, with a factor."""
        count = value(node).shape[self.axis]

        def make() -> dict[Place, torch.Tensor]:
            return dict.fromkeys(places, torch.full((count, 1), factor, dtype=torch.float64))

        return Filter(frozenset(places), count, 1, count, make, **more)

    def read(self, node: Node) -> list[Sum]:
        """What a node computes: with the least work, and of what is as far before it."""
        key = ("branches", self.kind, node)
        if key not in self.finder.memory:
            sums: list[Sum] = []
            if self.fits(node) and node.op == "call_function" and is_pure(node):
                try:
                    sums = self.read_operator(node)
                except Refused:
                    sums = []
            itself = [self.keep(node)] if self.fits(node) else []
            self.finder.memory[key] = sums or itself
        return self.finder.memory[key]  # type: ignore[no-any-return]

    def read_before(self, node: Node) -> list[Sum]:
        """What an operand computes, or the operand itself if others read it, too."""
        if not self.fits(node):
            raise Refused(f"{node} is no such tensor")
        return self.read(node) if len(readers(node)) == 1 else [self.keep(node)]

    def read_operator(self, node: Node) -> list[Sum]:
        """What an operator computes; nothing if it is no sum of filters."""
        target, sources = function_of(node), self.finder.varying(node)
        operands = [each for each in node.args[:2] if isinstance(each, Node) and each in sources]
        if target in _SUMS and len(operands) == 2:
            factor = _SUMS[target] * float(arguments_of(node)["alpha"])
            return self.read_sum([node], [(operands[0], 1.0), (operands[1], factor)])
        if target is aten.sum.dim_IntList:
            return self.read_stack(node)
        if len(sources) != 1 or not self.fits(sources[0]):
            return []
        if value(node).dtype != value(sources[0]).dtype:
            return []
        if target in _SAME and node.args[2:] != (True,):
            return [each.join(node) for each in self.read_before(sources[0])]
        if target in _AFFINE:
            return self.read_affine(node, sources[0])
        layer = self.read_layer(node) if operands[:1] == [node.args[0]] else None
        return self.read_filtered(node, sources[0], *layer) if layer else []

    def read_stack(self, node: Node) -> list[Sum]:
        """Tensors along a new axis that is summed."""
        stack: Any = node.args[0]
        axis = (*stack.args[1:], 0)[0]
        alone = stack.target is aten.stack.default and len(readers(stack)) == 1
        if not alone or node.args[1:] not in (([axis],), ([axis], False)):
            return []
        return self.read_sum([stack, node], [(part, 1.0) for part in stack.args[0]])

    def read_sum(self, nodes: list[Node], parts: Sequence[tuple[Node, float]]) -> list[Sum]:
        """The sum of tensors of one shape, each with a factor."""
        last = nodes[-1]
        if any(value(part).shape != value(last).shape for part, _ in parts):
            return []
        read, results = [self.read_before(part) for part, _ in parts], list[Sum]()
        for depth in (0, -1):
            sums, terms = [each[depth] for each in read], list[Term]()
            for each, (_, factor) in zip(sums, parts, strict=True):
                for term in each.terms:
                    factors = torch.full((term.filter.outputs,), factor, dtype=torch.float64)
                    self.insert(terms, term if factor == 1 else term.scale(factors), last)
            inner = frozenset[Node]().union(*(each.nodes for each in sums))
            if len(terms) <= _MOST_TERMS:
                whole = Sum((*terms,), inner, sum(each.before for each in sums))
                results.append(whole.join(*nodes))
        return self.choose(results, last)

    def insert(self, terms: list[Term], term: Term, node: Node) -> None:
        """Add a term to one of the same tensor, if both are no more work than each by itself."""
        for place, other in enumerate(terms):
            alike = other.source is term.source and other.filter.strides == term.filter.strides
            if not alike:
                continue
            joined = Term(
                term.source, other.filter.add(term.filter), _add(other.bias, term.bias),
                other.nodes | term.nodes,
            )  # fmt: skip
            apart = self.work(other, node) + self.work(term, node) + MOVED * elements(node)
            if self.work(joined, node) <= apart:
                terms[place] = joined
                return
        terms.append(term)

    def choose(self, sums: Sequence[Sum], node: Node) -> list[Sum]:
        """The one that is the least work, and the last one if that is another one."""
        if not sums:
            return []
        best = min(sums, key=lambda each: self.work_of(each, node))
        return [best] if best is sums[-1] else [best, sums[-1]]

    def read_affine(self, node: Node, source: Node) -> list[Sum]:
        """Factors and offsets of the channels."""
        if node.target is aten.batch_norm.default and node.args[5]:
            return []  # in training, it depends on the batch
        shape = [1] * value(source).ndim
        shape[self.axis] = count = value(source).shape[self.axis]
        values: dict[Node, Any] = {
            each: self.finder.constants[each].double()
            for each in node.all_input_nodes
            if each is not source
        }
        points = [torch.full(shape, float(n), dtype=torch.float64) for n in range(3)]
        nothing, one, two = (evaluate(node, values | {source: point}) for point in points)
        if [*nothing.shape] != shape or not torch.allclose(two - one, one - nothing):
            return []  # others for each place, or no line
        factors, offset = (one - nothing).reshape(count), _keep_nonzero(nothing.reshape(count))
        results = []
        for each in self.read_before(source):
            first, *further_terms = (term.scale(factors) for term in each.terms)
            results.append(replace(each, terms=(first.shift(offset), *further_terms)).join(node))
        return results

    def read_layer(self, node: Node) -> tuple[Filter, Bias] | None:
        """The filter of a layer of constant weights, and its bias."""
        given, target = arguments_of(node), node.target
        if target in _PADS:
            return self.read_padding(given)
        if _LAYERS.get(target) is not self.kind:
            return None
        if "pool" in name_of(node):
            return self.read_pooling(given)
        _, matrix, bias, *_ = [*given.values(), None]
        weights = self.finder.constants.get(matrix)
        if weights is None or weights.ndim != 2 + self.kind.rank or len(readers(matrix)) > 1:
            return None
        offset = _keep_nonzero(self.finder.constants[bias].double()) if bias else None
        weights = weights if "bias" in given else weights.t()
        sizes, padding = self.pair(weights.shape[2:], 1), given.get("padding", 0)
        strides, spacing = (self.pair(given.get(name, 1), 1) for name in ("stride", "dilation"))
        if isinstance(padding, str):
            same = zip(sizes, spacing, strict=True)
            padding = [apart * (size - 1) // 2 * (padding == "same") for size, apart in same]
            padding = padding[2 - self.kind.rank :]
        top, left = self.pair(padding, 0)
        places = {
            (i * spacing[0] - top, j * spacing[1] - left): (i, j)
            for i, j in product(*map(range, sizes))
        }

        def make() -> dict[Place, torch.Tensor]:
            images = weights.double().reshape(*weights.shape[:2], *sizes)
            return {place: images[:, :, i, j] for place, (i, j) in places.items()}

        shape = weights.shape[0], weights.shape[1], given.get("groups", 1)
        return Filter(frozenset(places), *shape, make, strides), offset

    def read_padding(self, given: Mapping[str, Any]) -> tuple[Filter, Bias] | None:
        """Zeros around lines or images."""
        margins = [*given["pad"]]
        is_zeros = given.get("mode", "constant") == "constant" and not given["value"]
        if not is_zeros or not 0 < len(margins) <= 2 * self.kind.rank or min(margins) < 0:
            return None
        left, _, top, _ = [*margins, 0, 0][:4]
        return self.take(given["self"], [(-top, -left)]), None

    def read_pooling(self, given: Mapping[str, Any]) -> tuple[Filter, Bias] | None:
        """The mean of windows, all of the same number of elements."""
        sizes, padding = self.pair(given["kernel_size"], 1), self.pair(given["padding"], 0)
        strides = self.pair(given["stride"] or given["kernel_size"], 1)
        is_even = given["count_include_pad"] or not any(padding)
        if not is_even or given["ceil_mode"] or given.get("divisor_override"):
            return None
        places = [(i - padding[0], j - padding[1]) for i, j in product(*map(range, sizes))]
        return self.take(given["self"], places, 1 / math.prod(sizes), strides=strides), None

    def read_filtered(self, node: Node, source: Node, layer: Filter, bias: Bias) -> list[Sum]:
        """A layer of what its operand computes, or of the operand itself."""
        read, results = self.read_before(source), list[Sum]()
        plain = replace(self.keep(source), before=self.work_of(read[0], source))
        for each in (plain, *read):
            terms = [self.compose(layer, term, source, node) for term in each.terms]
            composed = [term for term in terms if term is not None]
            if len(composed) == len(terms):
                composed[0] = composed[0].shift(bias)
                results.append(replace(each, terms=(*composed,)).join(node))
        return self.choose(results, node)

    def compose(self, layer: Filter, term: Term, middle: Node, node: Node) -> Term | None:
        """A layer of a term; None if zeros around the term are not what it has there."""
        if term.is_same:
            return Term(term.source, layer, nodes=term.nodes)
        first, bias = term.filter, term.bias
        both = layer.after(first)
        pairs = len(first.places) * len(layer.places)
        if pairs * both.outputs * both.inputs * layer.inputs > _MOST_COMPOSED:
            return None
        lines = zip(
            layer.lattice, layer.strides, self.sizes_of(middle), self.sizes_of(node),
            first.lattice, first.strides, self.sizes_of(term.source), strict=True,
        )  # fmt: skip
        for far, stride, size, count, near, step, before in lines:
            reads_zeros = far[0] < 0 or (count - 1) * stride + far[-1] >= size
            has_zeros = bias is None and near[-1] < step and size * step + near[0] >= before
            if reads_zeros and not has_zeros:
                return None

        def shift() -> torch.Tensor:
            assert bias is not None
            answers = [multiply(m, bias()[:, None], layer.groups) for m in layer.make().values()]
            return torch.cat(answers, 1).sum(1)

        return Term(term.source, both, None if bias is None else shift, term.nodes)

    def work(self, term: Term, node: Node) -> int:
        """What a term of a result costs, in multiplications."""
        if term.filter.is_scale:
            return 0 if term.is_same else MOVED * elements(node)
        return elements(node) * term.filter.work + CALLED

    def work_of(self, each: Sum, node: Node) -> int:
        """What a sum costs, with what it reads and may take up."""
        added = MOVED * elements(node) * (len(each.terms) - 1)
        return each.before + added + sum(self.work(term, node) for term in each.terms)

    def write(self, each: Sum, last: Node, name: str) -> Equivalent | None:
        """What computes a sum, if it is less work than its operators are."""
        terms = [
            self.keep(term.whole).terms[0] if term.whole not in (None, last) else term
            for term in each.terms
        ]
        members = each.nodes.union(*(term.nodes for term in terms))
        nodes = sorted(members, key=self.finder.place.__getitem__)
        layers = [node for node in nodes if node.target in _LAYERS]
        joins = [node for node in nodes if len(self.finder.varying(node)) > 1]
        before = sum(map(_count_work, nodes))
        after = self.work_of(replace(each, terms=(*terms,), before=0), last)
        is_merged = len(layers) > 1 or bool(joins)
        if not layers or after >= before or is_merged != (name == "branches"):
            return None
        if not is_merged and nodes[0] is not layers[0]:
            return None  # what is before it may be a part of a function
        about = nodes if is_merged else [node for node in nodes if node not in layers]
        if not any(map(_count_work, about)):
            return None  # a pooling alone, which has a remedy of its own
        writers = [self.write_term(term, last) for term in terms]
        sources = tuple(dict.fromkeys(term.source for term in terms))

        def build(*tensors: Any) -> Any:
            given, results = iter(tensors[len(sources) :]), []
            for term, writer in zip(terms, writers, strict=True):
                constants = [next(given) for _ in writer[1]]
                results.append(writer[0](tensors[sources.index(term.source)], *constants))
            return reduce(aten.add.Tensor, results)

        text = _describe(layers, joins, about, terms, self.kind)
        work_share = after / before if is_merged else 0.0
        return self.compare(Equivalent(
            name, text, tuple(nodes), last, sources, build, work_share,
            constants=tuple(each for _, constants in writers for each in constants),
            about=tuple(about),
        ))  # fmt: skip

    def write_term(self, term: Term, last: Node) -> Write:
        """What computes a term, and the constants for it; `Refused` if no layer does."""
        if term.is_same:
            return lambda x: x, ()
        rank, dtype = self.kind.rank, value(last).dtype
        bias = () if term.bias is None else (term.bias().to(dtype),)
        if term.filter.is_scale:
            tensors = (term.filter.make()[0, 0].to(dtype), *bias)
            return scale, tuple(each.reshape(-1, *[1] * rank) for each in tensors)
        each = term.filter.spread(1) if self.kind is ROWS else term.filter
        margins = self.find_margins(each, term.source, last)
        rows, columns = each.lattice
        sizes = [len(rows), len(columns)]
        weights = torch.zeros(each.outputs, each.inputs, *sizes, dtype=torch.float64)
        for (row, column), matrix in each.make().items():
            weights[:, :, rows.index(row), columns.index(column)] = matrix
        weights = weights.reshape(*weights.shape[:2], *sizes[2 - rank :]).to(dtype)

        def write(x: Any, weights: Any, *bias: Any) -> Any:
            if not rank:
                return self.kind.layer(x, weights, *bias)
            spacing = (rows.step, columns.step)
            return convolve(x, weights, each.strides, margins, each.groups, spacing, *bias)

        return write, (weights, *bias)

    def find_margins(self, each: Filter, source: Node, last: Node) -> list[int]:
        """How many zeros a filter reads on the left, right, above and below."""
        lines = zip(
            each.lattice, each.strides, self.sizes_of(source), self.sizes_of(last), strict=True
        )
        margins = list[int]()
        for grid, stride, size, count in lines:
            near, far = -grid[0], (count - 1) * stride + grid[-1] - size + 1
            if near < 0 or far <= -stride:
                raise Refused(f"{last} does not read all of {source}")
            margins = [near, far, *margins]
        return margins

    def compare(self, part: Equivalent) -> Equivalent | None:
        """A part that was shown to compute the same, on smaller images if it takes these."""
        finder, given = self.finder, dict[Node, torch.Tensor]()
        for source in part.sources:
            shape = [*value(source).shape]
            for axis in range(len(shape) - self.kind.rank, len(shape)):
                if shape[axis] >= 2 * _COMPARED:
                    shape[axis] = _COMPARED + shape[axis] % _COMPARED
            given[source] = finder.sample(source, (*shape,))
        try:
            expected = finder.run(part.nodes, given)
            result = part.build(*given.values(), *part.constants)
        except (Refused, RuntimeError):  # these sizes do not fit
            return finder.prove(part)
        ratio = sqnr(result, expected)
        least = least_db(expected)
        return replace(part, sqnr_db=ratio) if ratio >= least else None


def _count_work(node: Node) -> int:
    """What an operator costs: of batch norms after layers nothing, as the export folds these."""
    source = node.all_input_nodes[0]
    is_folded = source.target in PRODUCTS and len(readers(source)) == 1
    if function_of(node) in _SAME or (is_folded and node.target is aten.batch_norm.default):
        return 0
    return count_work(node)


def _describe(
    layers: Sequence[Node], joins: Sequence[Node], after: Sequence[Node], terms: Sequence[Term],
    kind: Kind,
) -> str:  # fmt: skip
    """What is computed instead of some layers, and of their sums."""
    if len(layers) == 1 and not joins:
        return f"{name_of(layers[0])} with the {names_of(after)} after it in one layer"
    name = str(kind.layer).split(".")[1]
    sizes = [
        f" of {' x '.join(str(len(g)) for g in t.filter.lattice[2 - kind.rank :])}" for t in terms
    ]
    one = (
        f"one {name}{sizes[0] if kind.rank else ''}" if len(terms) == 1 else f"{len(terms)} layers"
    )
    before = f"{len(layers)} layers" if len(layers) > 1 else "a layer"
    return f"{one} instead of {before} {'and their sum' if joins else 'in a row'}"
