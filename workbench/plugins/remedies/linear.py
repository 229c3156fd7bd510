"""Operators that are linear along the axes of a tensor, as products with constant matrices.

Cumulative sums, flips, rolls, padding by reflection, resizing and pooling are such operators. The
matrix of one is what it makes of the identity; that it has one is shown on random tensors.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from workbench.graphs import PRODUCTS, VIEWS, is_pure
from workbench.plugins.remedies.equivalence import (
    MOST_ELEMENTS,
    Equivalent,
    Finder,
    elements,
    is_float,
    is_static,
    least_db,
    name_of,
    names_of,
    reshape,
    sqnr,
    value,
)
from workbench.plugins.remedies.indexing import PLACED, copy_rows
from workbench.plugins.remedies.moves import SLICES, arrange, map_elements, number

aten: Any = torch.ops.aten
#: What XNNPACK computes as it is, or what is no map of a single tensor.
_DELEGATED = PRODUCTS | VIEWS | {
    aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.neg.default,
    aten.cat.default, aten.stack.default, aten.permute.default, aten.transpose.int,
    aten.constant_pad_nd.default, aten.upsample_bilinear2d.vec, aten.batch_norm.default,
    aten.pixel_shuffle.default, aten.pixel_unshuffle.default, aten.relu.default,
    aten.conv_transpose2d.input, aten.slice.Tensor, aten.narrow.default, aten.split.Tensor,
    aten.chunk.default, aten.unbind.int, aten.select.int, aten.einsum.default,
    aten.rsub.Scalar, aten.add.Scalar, aten.sub.Scalar, aten.mul.Scalar, aten.div.Scalar,
}  # fmt: skip
#: What an operator costs, in multiplications: a delegate that it divides, a call in a delegate, and
#: an element that it moves. A core multiplies some 10^10 times a second, and a call of a delegate
#: takes some 10 microseconds.
_DIVIDED, CALLED, MOVED = 1 << 17, 1 << 12, 8


#: Runs of an operator that show its matrix, at most.
_MOST_RUNS = 64
Map = Callable[[torch.Tensor], torch.Tensor]


def find_matrices(finder: Finder, last: Node) -> Equivalent | None:
    """An operator outside of delegates that is linear, as products, slices or a factor."""
    if not is_pure(last) or not is_float(last) or not is_static(last):
        return None
    if last.target in _VIEWS_OF_REPEATS:
        return _find_repetition(finder, last)
    if last.target in _DELEGATED or not finder.is_outside(last):
        return None
    sources = finder.varying(last)
    if len(sources) == 1 and value(sources[0]).is_complex():
        return _find_transform(finder, last) or _find_across_complex(finder, last)
    if len(sources) != 1 or not is_float(sources[0]) or _is_padding(last):
        return None
    if last.target is aten.mean.dim and averages_images(value(sources[0]), last.args[1]):
        return None
    source = sources[0]
    return _find_map(finder, [last], last, source) or _find_merged(finder, last, source)


def _is_padding(node: Node) -> bool:
    """Whether a node adds constants around a tensor, as XNNPACK does."""
    constant = node.target is aten.pad.default and node.args[2:3] in ((), ("constant",))
    return constant and min(node.args[1]) >= 0  # type: ignore[arg-type,type-var]


def averages_images(x: Any, axes: Any) -> bool:
    """Whether a mean is one over whole images, which XNNPACK has if it keeps its dimensions."""
    return x.ndim == 4 and sorted(axis % 4 for axis in axes or ()) == [2, 3]


#: What may follow an expansion that repeats elements.
_VIEWS_OF_REPEATS = {aten.reshape.default, aten.view.default, aten.flatten.using_ints}


def _find_repetition(finder: Finder, last: Node) -> Equivalent | None:
    """A tensor that is expanded along new axes, which are then merged with its own."""
    for source, nodes in finder.parts(last, most=_MOST_VIEWS):
        if not is_float(source) or not VIEWS.issuperset(node.target for node in nodes):
            return None
        repeats = [node for node in nodes if node.target is aten.expand.default]
        if repeats and value(source).ndim == value(last).ndim:
            outside = any(map(finder.is_outside, repeats))
            grows = elements(source) < elements(last)
            return _find_map(finder, nodes, last, source) if outside and grows else None
    return None


#: Views of a repetition, at most.
_MOST_VIEWS = 6


def _find_across_complex(finder: Finder, last: Node) -> Equivalent | None:
    """A real tensor that is linear in another one, with complex tensors in between."""
    for source, nodes in finder.parts(last):
        if is_float(source):
            pairs = _find_mixture(finder, nodes, last, source)
            return pairs or _find_map(finder, nodes, last, source)
    return None


def _find_mixture(finder: Finder, nodes: list[Node], last: Node, source: Node) -> Equivalent | None:
    """Pairs that are mixed, each with factors of its own: a rotation by constant angles."""
    x = finder.sample(source)
    if value(last).shape != x.shape or x.shape[-1] != 2:
        return None
    chosen = torch.eye(2, dtype=x.dtype)
    factors = tuple(finder.run(nodes, {source: row.expand(x.shape).clone()}) for row in chosen)

    def build(x: Any, first: Any, second: Any) -> Any:
        one, other = (aten.slice.Tensor(x, x.ndim - 1, n, n + 1) for n in (0, 1))
        return one * first + other * second

    if sqnr(build(x, *factors), finder.run(nodes, {source: x})) < least_db(x, 0):
        return None
    text = "a product of complex numbers as one of their real and imaginary parts"
    return Equivalent("matrices", text, tuple(nodes), last, (source,), build, constants=factors)


def _find_factors(
    linear: Callable[[torch.Tensor], torch.Tensor],
    x: torch.Tensor,
    axes: Sequence[int],
    bias: list[torch.Tensor],
    nodes: list[Node],
    last: Node,
    source: Node,
) -> Equivalent | None:
    """A map that scales each element, as a product with constants."""
    factors = linear(torch.ones_like(x))
    nothing = not factors.count_nonzero() or bool((factors == 1).all())
    if not axes and nothing and not bias:
        return None  # a constant, or what acts on numbers that are not tried
    for axis in set(range(x.ndim)) - {*axes}:
        first = factors.narrow(axis, 0, 1)
        factors = first if torch.equal(first.expand(factors.shape), factors) else factors
    return Equivalent(
        "matrices", f"{names_of(nodes)} as a product with constants", tuple(nodes), last,
        (source,), scale, constants=(factors.contiguous(), *bias),
    )  # fmt: skip


def _find_map(finder: Finder, nodes: list[Node], last: Node, source: Node) -> Equivalent | None:
    """A map of one tensor, axis by axis."""
    if len(value(source).shape) != len(value(last).shape):
        return None
    x = finder.sample(source)

    def run(x: torch.Tensor) -> torch.Tensor:
        finder.tries -= x.numel()
        return finder.run(nodes, {source: x})

    offset = run(torch.zeros_like(x))
    if not offset.isfinite().all():
        return _find_bias(run, x, last, source)
    linear = remove_offset(run, offset)
    if not is_linear(linear, x):
        return None
    axes = _list_axes(linear, x)
    bias = [offset] if offset.count_nonzero() else []
    if all(x.shape[axis] == 1 for axis in axes):
        return _find_factors(linear, x, axes, bias, nodes, last, source)
    matrices = _list_matrices(linear, x, axes)
    if matrices is None:
        return None
    steps = _list_steps(axes, matrices, list(x.shape))
    if last.target is aten.index_select.default and steps[0].copies and steps[0].rows == 1:
        return None  # which copies whole rows
    return _write_steps(steps, nodes, source, bias)


def _write_steps(
    steps: Sequence["_Step"], nodes: Sequence[Node], source: Node, bias: Sequence[torch.Tensor] = ()
) -> Equivalent:
    """What computes a part in some steps, and adds a constant to their result."""
    dtype = value(nodes[-1]).dtype
    constants = [step.make_constant(dtype) for step in steps if step.move is None]

    def build(x: Any, *given: Any) -> Any:
        matrices = iter(given)
        for step in steps:
            x = step.build(x, matrices)
        return aten.add.Tensor(x, next(matrices)) if bias else x

    text = f"{names_of(nodes)} as {' and '.join(dict.fromkeys(step.text for step in steps))}"
    return Equivalent(
        "matrices", text, tuple(nodes), nodes[-1], (source,), build, constants=(*constants, *bias)
    )


def _list_steps(
    axes: Sequence[int], matrices: Sequence[torch.Tensor], sizes: list[int]
) -> list["_Step"]:
    """What each matrix does along its axis, first what leaves the fewest elements."""
    steps = []
    pairs = zip(axes, matrices, strict=True)
    for axis, matrix in sorted(pairs, key=lambda pair: pair[1].shape[1] / pair[1].shape[0]):
        result = [*sizes[:axis], matrix.shape[1], *sizes[axis + 1 :]]
        steps.append(_Step(axis, matrix, sizes, result))
        sizes = result
    return steps


def scale(x: Any, factors: Any, *bias: Any) -> Any:
    """A tensor times factors, and with an offset."""
    x = aten.mul.Tensor(x, factors)
    return aten.add.Tensor(x, bias[0]) if bias else x


def _find_bias(run: Map, x: torch.Tensor, last: Node, source: Node) -> Equivalent | None:
    """An operator that replaces some elements by minus infinity: a sum with a constant."""
    bias = run(torch.zeros_like(x))
    hidden = bias == -math.inf
    if bias.shape != x.shape or not torch.equal(run(x), torch.where(hidden, bias, x)):
        return None
    text = f"{name_of(last)} as a sum with a constant mask"
    return Equivalent(
        "matrices", text, (last,), last, (source,), aten.add.Tensor, constants=(bias,),
        code="x + bias  # bias: 0 where x is kept, else -1e9, computed in __init__",
    )  # fmt: skip


def remove_offset(run: Map, offset: torch.Tensor) -> Map:
    """A map without what it makes of zeros."""
    return lambda x: run(x) - offset


class ChannelMap(NamedTuple):
    """A linear map of channels: its matrix (inputs by outputs), or the input of each output."""

    matrix: torch.Tensor
    offset: torch.Tensor

    def changes(self) -> bool:
        """Whether the channels are others: a factor of all belongs to the function before it."""
        if self.matrix.ndim == 1:
            return not torch.equal(self.matrix, torch.arange(len(self.matrix)))
        diagonal = self.matrix.diagonal()
        alike = bool((diagonal == diagonal[0]).all()) and bool(
            (self.offset == self.offset[0]).all()
        )
        return not alike or not torch.equal(diagonal.diag(), self.matrix)

    def before(self, weights: torch.Tensor, count: int) -> torch.Tensor:
        """Weights of so many inputs for those that read the outputs of the map."""
        if self.matrix.ndim == 1:
            shape = (len(weights), count, *weights.shape[2:])
            return weights.new_zeros(shape).index_add_(1, self.matrix, weights)
        return torch.einsum("ok...,ik->oi...", weights, self.matrix.to(weights.dtype))

    def after(self, weights: torch.Tensor) -> torch.Tensor:
        """Weights, or a bias, that compute the outputs of the map instead of its inputs."""
        if self.matrix.ndim == 1:
            return weights[self.matrix]
        return torch.einsum("o...,ok->k...", weights, self.matrix.to(weights.dtype))


def read_map(
    finder: Finder, nodes: Sequence[Node], source: Node, rows: int, columns: int
) -> ChannelMap | None:
    """What a part does to channels between some rows and columns, which it leaves as they are.

    The channels of a complex tensor are its real and imaginary parts in turns.
    """
    is_complex = value(nodes[-1]).is_complex()
    sizes = [elements(source), elements(nodes[-1]) * (1 + is_complex)]
    if any(size % (rows * columns) for size in sizes):
        return None
    before, behind = ([rows, size // (rows * columns), columns] for size in sizes)
    ids = None if is_complex else map_elements(finder, nodes, [source])
    if ids is not None:
        ids = ids.reshape(behind)
        index = ids[0, :, 0] // columns
        alike = bool((index < before[1]).all()) and torch.equal(
            ids, number([before])[0].index_select(1, index)
        )
        return ChannelMap(index, torch.zeros(len(index))) if alike else None
    if max(sizes) > MOST_ELEMENTS or finder.tries < 0:
        return None
    shape = value(source).shape

    def run(x: torch.Tensor) -> torch.Tensor:
        finder.tries -= x.numel()
        result = finder.run(nodes, {source: x.reshape(shape)})
        return (torch.view_as_real(result) if is_complex else result).reshape(behind)

    x = finder.sample(source).reshape(before)
    offset = run(torch.zeros_like(x))
    linear = remove_offset(run, offset)
    even = torch.equal(offset, offset[:1, :, :1].expand(offset.shape))
    if not even or not offset.isfinite().all() or not is_linear(linear, x):
        return None
    matrix = _show_matrix(linear, x, 1, [1]) if {*_list_axes(linear, x)} <= {1} else None
    return None if matrix is None else ChannelMap(matrix, offset[0, :, 0])


def count_work(node: Node) -> int:
    """What an operator costs, in multiplications."""
    if node.target in VIEWS:
        return MOVED * elements(node)
    if node.target in PRODUCTS:
        return count_products(node) + CALLED
    indices: Any = node.args[1] if node.target is aten.index.Tensor else ()
    moved = PLACED if sum(each is not None for each in indices) > 1 else MOVED
    return moved * elements(node) + (CALLED if node.target in _DELEGATED else _DIVIDED)


def count_products(node: Node) -> int:
    """The multiplications of a product or convolution; none of other operators."""
    if node.target not in PRODUCTS:
        return 0
    first, second = (value(each).shape for each in node.all_input_nodes[:2])
    return elements(node) * (math.prod(second[1:]) if "conv" in name_of(node) else first[-1])


def is_linear(linear: Map, x: torch.Tensor) -> bool:
    """Whether a map keeps sums, on a random tensor, and no bound acts on what is infinite."""
    other, result = x.flip(-1) * 0.7 + 0.3, linear(x)
    ratio = sqnr(result + 2 * linear(other), linear(x + 2 * other))
    if ratio < least_db(x):
        return False
    ends = (torch.full_like(x, end) for end in (math.inf, -math.inf, math.nan))
    return not any((linear(end).isfinite() & (result != 0)).any() for end in ends)


def _list_axes(linear: Map, x: torch.Tensor) -> list[int]:
    """The axes along which elements meet others; along those left, each stays by itself."""
    result, axes = linear(x), []
    generator = torch.Generator().manual_seed(1)
    for axis, size in enumerate(x.shape):
        if result.shape[axis] != size:
            axes.append(axis)
            continue
        shape = [size if other == axis else 1 for other in range(x.ndim)]
        factors = 0.5 + torch.rand(shape, generator=generator).to(x.dtype)
        if sqnr(linear(x * factors), result * factors) < least_db(x, 0) / 2:
            axes.append(axis)
    return axes


def _list_matrices(linear: Map, x: torch.Tensor, axes: list[int]) -> list[torch.Tensor] | None:
    """The matrix of each axis (inputs by outputs), if their product is the operator."""
    if len(axes) > 3:
        return None
    matrices = [_show_matrix(linear, x, axis, axes) for axis in axes]
    if any(matrix is None for matrix in matrices):
        return None
    bases = [matrix for matrix in matrices if matrix is not None]
    expected, result = linear(x), x
    for axis, matrix in zip(axes, bases, strict=True):
        result = torch.tensordot(result, matrix, ([axis], [0])).movedim(-1, axis)
    # Each matrix of several is known up to a factor.
    power = float(result.double().square().sum())
    if not power:
        return None
    factor = float((result.double() * expected.double()).sum()) / power
    if len(axes) > 1:
        bases[0] = bases[0] if abs(factor - 1) < 1e-6 else bases[0] * factor
    elif abs(factor - 1) > 1e-3:
        return None
    least = least_db(x, 2)
    return bases if sqnr(result * factor, expected) >= least else None


def _show_matrix(linear: Map, x: torch.Tensor, axis: int, axes: list[int]) -> torch.Tensor | None:
    """What an operator makes of the identity along one axis; along the other, of one vector."""
    size = x.shape[axis]
    moved = x.movedim(axis, -1)
    other_axes = [other for other in axes if other != axis]
    weights = torch.ones((), dtype=x.dtype)
    for other in other_axes:
        shape = [x.shape[a] if a == other else 1 for a in range(x.ndim)]
        weights = torch.linspace(0.5, 1.5, x.shape[other], dtype=x.dtype).view(shape)
    free = [a for a in range(x.ndim) if a not in axes]
    rows = math.prod(x.shape[a] for a in free)
    runs = math.ceil(size / rows)
    columns = linear(x).shape[axis]
    if runs > _MOST_RUNS or size * columns > MOST_ELEMENTS:
        return None
    numbers = torch.arange(rows).view([x.shape[a] if a in free else 1 for a in range(x.ndim)])
    answers, places = list[torch.Tensor](), dict[int, int]()
    for run in range(runs):
        wanted = (numbers + run * rows) % size
        basis = torch.nn.functional.one_hot(wanted.movedim(axis, -1).squeeze(-1), size)
        basis = basis.expand(moved.shape).movedim(-1, axis)
        result = linear(basis.to(x.dtype) * weights)
        for other in other_axes:  # the position where the vector of that axis left most
            power = result.abs().movedim(other, 0).flatten(1).sum(1)
            result = result.narrow(other, places.setdefault(other, int(power.argmax())), 1)
        answers.append(result.movedim(axis, -1).reshape(rows, columns))
    matrix = torch.cat(answers)[:size]
    largest = float(matrix.abs().max())
    return _round(matrix / largest if other_axes and largest else matrix)


def _round(matrix: torch.Tensor) -> torch.Tensor:
    """Without the last bits of what is a whole number."""
    whole = matrix.round()
    return torch.where((matrix - whole).abs() < 1e-6, whole, matrix)


class _Step:
    """A product with a matrix (inputs by outputs) along one axis; slices or copies, if it selects.

    Instead of a matrix, the input of each output is enough. The tensor is read in some sizes; the
    result may have another shape than these.
    """

    def __init__(
        self, axis: int, matrix: torch.Tensor, sizes: Sequence[int], result: Sequence[int]
    ) -> None:
        self.axis, self.matrix, self.sizes, self.result = axis, matrix, [*sizes], [*result]
        self.index = matrix if matrix.ndim == 1 else _read_index(matrix)
        self.move = None
        if self.index is not None:
            ids = number([sizes])[0].index_select(axis, self.index)
            self.move = arrange(ids, [self.sizes], expands=False)
        self.rows, self.columns = math.prod(sizes[:axis]), math.prod(sizes[axis + 1 :])
        count, before, behind = self.rows * self.columns, sizes[axis], matrix.shape[-1]
        # Copies of whole rows have two transposes around them.
        copied = _DIVIDED + 4 * MOVED * count * (before + behind)
        multiplied = count * before * behind
        self.copies = self.index is not None and copied < multiplied
        self.work = copied if self.copies else multiplied
        self.text = "copies of whole rows" if self.copies else "a product with a matrix"
        self.text = "slices in a row" if self.move else self.text

    def make_constant(self, dtype: torch.dtype) -> torch.Tensor:
        """The index or the matrix (outputs by inputs) that the result is made with."""
        if self.copies and self.index is not None:
            return self.index
        if self.matrix.ndim == 2:
            return self.matrix.t().contiguous()
        return torch.nn.functional.one_hot(self.matrix, self.sizes[self.axis]).to(dtype)

    def build(self, x: Any, constants: Iterator[Any]) -> Any:
        """The result, with the next of some constants."""
        if self.copies and not self.move:
            return reshape(copy_rows(x, next(constants), self.rows, self.columns), self.result)
        x = reshape(x, self.sizes)
        if self.move:
            x = self.move.build({0: x})
        elif self.axis == len(self.sizes) - 1:
            x = aten.linear.default(x, next(constants))
        else:
            x = aten.linear.default(aten.transpose.int(x, self.axis, -1), next(constants))
            x = aten.transpose.int(x, self.axis, -1)
        return reshape(x, self.result)


def _read_index(matrix: torch.Tensor) -> torch.Tensor | None:
    """The input of each output, if a matrix only selects."""
    ones = matrix == 1
    selects = bool((ones.sum(0) == 1).all()) and bool((matrix[~ones] == 0).all())
    return ones.int().argmax(0) if selects else None


def _find_merged(finder: Finder, last: Node, source: Node) -> Equivalent | None:
    """Elements that an operator chooses of several axes, which are one axis for a single step."""
    shape, result = list(value(source).shape), list(value(last).shape)
    if len(shape) == len(result):
        return None
    before = _count_alike(shape, result)
    behind = _count_alike(shape[before:][::-1], result[before:][::-1])
    rows, columns = math.prod(shape[:before]), math.prod(shape[len(shape) - behind :])
    each = read_map(finder, [last], source, rows, columns)
    if each is None or each.matrix.ndim != 1 or not each.changes():
        return None
    merged = [rows, math.prod(shape) // (rows * columns), columns][: 2 if columns == 1 else 3]
    step = _Step(1, each.matrix, merged, result)
    # Slices have a remedy of their own.
    is_worth = last.target not in SLICES if step.move else step.work <= count_work(last)
    return _write_steps([step], [last], source) if is_worth else None


def _count_alike(shape: Sequence[int], other: Sequence[int]) -> int:
    """How many of the first sizes are the same."""
    alike = [a == b for a, b in zip(shape, other, strict=False)]
    return (*alike, False).index(False)


def _find_transform(finder: Finder, last: Node) -> Equivalent | None:
    """A real function of a Fourier transform: two products with matrices."""
    (transform,) = finder.varying(last)
    sources = finder.varying(transform)
    if last.target not in _PARTS or len(sources) != 1 or not is_pure(transform):
        return None
    shape = value(sources[0]).shape
    if not is_float(sources[0]) or value(transform).shape[:-1] != shape[:-1]:
        return None
    each = read_map(finder, [transform], sources[0], math.prod(shape[:-1]), 1)
    if each is None or each.offset.count_nonzero():
        return None
    needed, combine = _PARTS[last.target]
    matrices = each.matrix.t().unflatten(0, (-1, 2)).unbind(1)[needed]

    def build(x: Any, *matrices: Any) -> Any:
        return combine(*(aten.linear.default(x, matrix) for matrix in matrices))

    text = f"{name_of(transform)} as products with matrices of cosines and sines"
    return Equivalent(
        "matrices", text, (transform, last), last, (sources[0],), build,
        constants=tuple(matrix.contiguous() for matrix in matrices),
    )  # fmt: skip


#: Real functions of a complex tensor: the parts that they need, and what they make of these.
_PARTS: dict[Any, tuple[slice, Callable[..., Any]]] = {
    aten.abs.default: (
        slice(2),
        lambda a, b: torch.sqrt(a * a + b * b),
    ),
    aten.view_as_real.default: (slice(2), lambda a, b: torch.stack((a, b), -1)),
    aten.real.default: (slice(1), lambda a: a),
    aten.imag.default: (slice(1, 2), lambda b: b),
}
