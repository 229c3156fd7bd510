"""Operators that are linear along the axes of a tensor, as products with constant matrices.

Cumulative sums, flips, rolls, padding by reflection, resizing and pooling are such operators. The
matrix of one is what it makes of the identity; that it has one is shown on random tensors.
"""

import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, product
from typing import Any

import torch
from torch.fx import Node

from workbench.export.equivalence import (
    LEAST_DB,
    MOST_ELEMENTS,
    MOST_PROVEN,
    PRODUCTS,
    REORDERED_DB,
    VIEWS,
    Equivalent,
    Finder,
    elements,
    is_float,
    is_pure,
    is_static,
    name_of,
    readers,
    rows_along,
    sqnr,
    value,
)

aten: Any = torch.ops.aten
#: What XNNPACK computes as it is, or what is no map of a single tensor.
_DELEGATED = PRODUCTS | VIEWS | {
    aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.neg.default,
    aten.cat.default, aten.stack.default, aten.permute.default, aten.transpose.int,
    aten.constant_pad_nd.default, aten.upsample_bilinear2d.vec, aten.batch_norm.default,
    aten.pixel_shuffle.default, aten.pixel_unshuffle.default, aten.relu.default,
    aten.conv_transpose2d.input, aten.slice.Tensor, aten.squeeze.default, aten.split.Tensor,
    aten.chunk.default, aten.unbind.int, aten.select.int, aten.einsum.default,
    aten.rsub.Scalar, aten.add.Scalar, aten.sub.Scalar, aten.mul.Scalar, aten.div.Scalar,
}  # fmt: skip
#: More slices in a row than XNNPACK concatenates at once.
_MOST_SLICES = 5
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
    source = sources[0]
    reduced = _reduce(last, source)
    if reduced is not None:
        return reduced
    return _find_map(finder, [last], last, source)


def _is_padding(node: Node) -> bool:
    """Whether a node adds constants around a tensor, as XNNPACK does."""
    constant = node.target is aten.pad.default and node.args[2:3] in ((), ("constant",))
    return constant and min(node.args[1]) >= 0  # type: ignore[arg-type,type-var]


#: What may follow an expansion that repeats elements.
_VIEWS_OF_REPEATS = {aten.reshape.default, aten.view.default, aten.flatten.using_ints}


def _find_repetition(finder: Finder, last: Node) -> Equivalent | None:
    """A tensor that is expanded along new axes, which are then merged with its own."""
    nodes = [last]
    while len(nodes) < _MOST_VIEWS:
        sources = finder.varying(nodes[-1])
        if len(sources) != 1 or not is_float(sources[0]) or not is_pure(nodes[-1]):
            return None
        source = sources[0]
        repeats = [node for node in nodes if node.target is aten.expand.default]
        if repeats and len(value(source).shape) == len(value(last).shape):
            outside = any(map(finder.is_outside, repeats))
            grows = elements(source) < elements(last)
            return _find_map(finder, nodes[::-1], last, source) if outside and grows else None
        if source.target not in VIEWS or len(readers(source)) > 1:
            return None
        nodes.append(source)
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
        one, other = (aten.slice.Tensor(x, axis, n, n + 1) for n in (0, 1))
        return aten.add.Tensor(aten.mul.Tensor(one, first), aten.mul.Tensor(other, second))

    axis = x.ndim - 1
    if sqnr(build(x, *factors), finder.run(nodes, {source: x})) < LEAST_DB[x.element_size()]:
        return None
    text = "a product of complex numbers as one of their real and imaginary parts"
    return Equivalent("matrices", text, tuple(nodes), last, (source,), build, constants=factors)


def _find_map(finder: Finder, nodes: list[Node], last: Node, source: Node) -> Equivalent | None:
    if len(value(source).shape) != len(value(last).shape):
        return None
    x = finder.sample(source)

    def run(x: torch.Tensor) -> torch.Tensor:
        finder.tries -= x.numel()
        return finder.run(nodes, {source: x})

    offset = run(torch.zeros_like(x))
    if not offset.isfinite().all():
        return _find_bias(run, x, last, source)
    linear = _remove_offset(run, offset)
    if not _is_linear(linear, x):
        return None
    axes = _list_axes(linear, x)
    bias = [offset] if offset.count_nonzero() else []
    if all(x.shape[axis] == 1 for axis in axes):
        factors = linear(torch.ones_like(x))
        nothing = not factors.count_nonzero() or bool((factors == 1).all())
        if not axes and nothing and not bias:
            return None  # a constant, or what acts on numbers that are not tried
        for axis in set(range(x.ndim)) - {*axes}:
            first = factors.narrow(axis, 0, 1)
            factors = first if torch.equal(first.expand(factors.shape), factors) else factors
        return Equivalent(
            "matrices", f"{_names_of(nodes)} as a product with constants", tuple(nodes), last,
            (source,), _scale, constants=(factors.contiguous(), *bias),
        )  # fmt: skip
    matrices = _list_matrices(linear, x, axes)
    if matrices is None:
        return None
    steps = [_Step(axis, matrix, x.ndim) for axis, matrix in zip(axes, matrices, strict=True)]
    steps.sort(key=lambda step: step.matrix.shape[1] / step.matrix.shape[0])
    constants = [step.matrix.t().contiguous() for step in steps if not step.slices]

    def build(x: Any, *given: Any) -> Any:
        matrices = iter(given)
        for step in steps:
            x = step.build(x, matrices)
        return aten.add.Tensor(x, next(matrices)) if bias else x

    words = ["slices in a row" if step.slices else "a product with a matrix" for step in steps]
    text = f"{_names_of(nodes)} as {' and '.join(dict.fromkeys(words))}"
    return Equivalent(
        "matrices", text, tuple(nodes), last, (source,), build, constants=(*constants, *bias)
    )


def _names_of(nodes: list[Node]) -> str:
    """What some nodes compute: the operators that are no views, or the last one."""
    names = (name_of(node) for node in nodes if node.target not in VIEWS - {aten.expand.default})
    return ", ".join(dict.fromkeys(names)) or name_of(nodes[-1])


def _scale(x: Any, factors: Any, *bias: Any) -> Any:
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
        "matrices", text, (last,), last, (source,), aten.add.Tensor, constants=(bias,)
    )


def _remove_offset(run: Map, offset: torch.Tensor) -> Map:
    return lambda x: run(x) - offset


def _is_linear(linear: Map, x: torch.Tensor) -> bool:
    other = x.flip(-1) * 0.7 + 0.3
    both = linear(x + 2 * other)
    return sqnr(linear(x) + 2 * linear(other), both) >= LEAST_DB[x.element_size()] - REORDERED_DB


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
        if sqnr(linear(x * factors), result * factors) < LEAST_DB[x.element_size()] / 2:
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
    # Each matrix of several is known but for a factor.
    power = float(result.double().square().sum())
    if not power:
        return None
    factor = float((result.double() * expected.double()).sum()) / power
    if len(axes) > 1:
        bases[0] = bases[0] if abs(factor - 1) < 1e-6 else bases[0] * factor
    elif abs(factor - 1) > 1e-3:
        return None
    least = LEAST_DB[x.element_size()] - 2 * REORDERED_DB
    return bases if sqnr(result * factor, expected) >= least else None


def _show_matrix(linear: Map, x: torch.Tensor, axis: int, axes: list[int]) -> torch.Tensor | None:
    """What an operator makes of the identity along one axis; along the other, of one vector."""
    size = x.shape[axis]
    moved = x.movedim(axis, -1)
    others = [other for other in axes if other != axis]
    weights = torch.ones((), dtype=x.dtype)
    for other in others:
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
        for other in others:  # the position where the vector of that axis left most
            power = result.abs().movedim(other, 0).flatten(1).sum(1)
            result = result.narrow(other, places.setdefault(other, int(power.argmax())), 1)
        answers.append(result.movedim(axis, -1).reshape(rows, columns))
    matrix = torch.cat(answers)[:size]
    largest = float(matrix.abs().max())
    return _round(matrix / largest if others and largest else matrix)


def _round(matrix: torch.Tensor) -> torch.Tensor:
    """Without the last bits of what is a whole number."""
    whole = matrix.round()
    return torch.where((matrix - whole).abs() < 1e-6, whole, matrix)


class _Step:
    """A product with a matrix along one axis; or slices in a row, if it only selects."""

    def __init__(self, axis: int, matrix: torch.Tensor, rank: int):
        self.axis, self.matrix, self.is_last = axis, matrix, axis == rank - 1
        self.slices = list(_list_slices(matrix))

    def build(self, x: Any, matrices: Iterator[Any]) -> Any:
        """The result, with the next of some matrices."""
        if self.slices:
            parts = [aten.slice.Tensor(x, self.axis, start, end) for start, end in self.slices]
            return parts[0] if len(parts) == 1 else aten.cat.default(parts, self.axis)
        if self.is_last:
            return aten.linear.default(x, next(matrices))
        x = aten.linear.default(aten.transpose.int(x, self.axis, -1), next(matrices))
        return aten.transpose.int(x, self.axis, -1)


def _list_slices(matrix: torch.Tensor) -> Iterator[tuple[int, int]]:
    """The slices that a matrix takes, one after the other; none if it does more, or too many."""
    ones = matrix == 1
    selects = bool((ones.sum(0) == 1).all()) and bool((matrix[~ones] == 0).all())
    if not selects:
        return
    indices = ones.int().argmax(0).tolist()
    runs = [
        [index for _, index in run]
        for _, run in groupby(enumerate(indices), lambda pair: pair[1] - pair[0])
    ]
    if len(runs) <= _MOST_SLICES:
        yield from ((run[0], run[-1] + 1) for run in runs)


def _reduce(last: Node, source: Node) -> Equivalent | None:
    """A sum or a mean over some axes as a product with a row of constants."""
    totals = (aten.sum.default, aten.mean.default)
    if last.target not in (aten.sum.dim_IntList, aten.mean.dim, *totals) or last.kwargs:
        return None
    shape = list(value(source).shape)
    given: Any = last.args[1] if len(last.args) > 1 and last.args[1] else range(len(shape))
    width, gather_rows = rows_along(shape, given)
    result = list(value(last).shape)
    number = 1 / width if "mean" in name_of(last) else 1.0
    row = torch.full((1, width), number, dtype=value(source).dtype)

    def build(x: Any, row: Any) -> Any:
        return aten.reshape.default(aten.linear.default(gather_rows(x), row), result)

    text = f"{name_of(last)} as a product with constants"
    return Equivalent("matrices", text, (last,), last, (source,), build, constants=(row,))


def _find_transform(finder: Finder, last: Node) -> Equivalent | None:
    """A real function of a Fourier transform: two products with matrices."""
    (transform,) = finder.varying(last)
    sources = finder.varying(transform)
    if last.target not in _PARTS or len(sources) != 1 or not is_pure(transform):
        return None
    source, matrix = sources[0], None
    if is_float(source) and value(transform).shape[:-1] == value(source).shape[:-1]:
        matrix = _show_complex_matrix(finder, transform, source)
    if matrix is None:
        return None
    real, imaginary = (part.t().contiguous() for part in (matrix.real, matrix.imag))
    text = f"{name_of(transform)} as products with matrices of cosines and sines"
    return Equivalent(
        "matrices", text, (transform, last), last, (source,), _PARTS[last.target],
        constants=(real, imaginary),
    )  # fmt: skip


def _show_complex_matrix(finder: Finder, transform: Node, source: Node) -> torch.Tensor | None:
    """What a transform of rows makes of the identity; None if it is no product with it."""
    shape = value(source).shape
    size, count = shape[-1], value(transform).shape[-1]
    x = finder.sample(source)
    rows = math.prod(shape[:-1])
    if size * count > MOST_ELEMENTS or math.ceil(size / rows) > _MOST_RUNS:
        return None
    # The operator takes its own shape: one part of the identity at a time.
    identity = torch.eye(size, dtype=x.dtype)
    identity = torch.cat([identity, identity.new_zeros(-size % rows, size)])
    results = [
        finder.run([transform], {source: part.view(shape)}).reshape(rows, count)
        for part in identity.split(rows)
    ]
    matrix = torch.cat(results)[:size]
    expected = finder.run([transform], {source: x})
    ratio = sqnr(torch.view_as_real(x.to(matrix.dtype) @ matrix), torch.view_as_real(expected))
    return matrix if ratio >= _LEAST_TRANSFORM_DB else None


#: The least agreement of a transform with its matrix, in dB.
_LEAST_TRANSFORM_DB = 80.0


def _magnitude(x: Any, real: Any, imaginary: Any) -> Any:
    a, b = aten.linear.default(x, real), aten.linear.default(x, imaginary)
    return aten.sqrt.default(aten.add.Tensor(aten.mul.Tensor(a, a), aten.mul.Tensor(b, b)))


def _pair(x: Any, real: Any, imaginary: Any) -> Any:
    parts = [aten.linear.default(x, real), aten.linear.default(x, imaginary)]
    return aten.stack.default(parts, -1)


#: Real functions of a complex tensor, from the matrices of its parts.
_PARTS = {
    aten.abs.default: _magnitude,
    aten.view_as_real.default: _pair,
    aten.real.default: lambda x, real, imaginary: aten.linear.default(x, real),
    aten.imag.default: lambda x, real, imaginary: aten.linear.default(x, imaginary),
}


#: Positions of a filter, from its middle to its ends, and channels that are tried at most.
_REACH, _MOST_CHANNELS = 5, 256


def find_convolution(finder: Finder, last: Node) -> Equivalent | None:
    """A part that computes a convolution of an image: its answer to single points is the filter."""
    if not is_pure(last) or not is_float(last) or not is_static(last):
        return None
    if last.target in (aten.conv2d.default, aten.convolution.default):
        return None
    for source, nodes in _parts_across_products(finder, last):
        moves = any(node.target in _SHIFTS for node in nodes)
        if not moves or not is_float(source) or not _has_work(nodes):
            continue
        if len(value(source).shape) not in (3, 4):
            continue
        key = ("convolution", finder.identify(nodes, [source]))
        if key not in finder.memory:
            finder.memory[key] = _find_filter(finder, nodes, source, last)
        filters = finder.memory[key]
        if filters is not None:
            height, width = filters.weights.shape[2:]
            before = f"{len(nodes)} operators" if len(nodes) > 1 else name_of(last)
            text = f"a convolution of {height} x {width} instead of {before}"
            constants = (filters.weights, *filters.bias)
            build = partial(_convolve, list(value(last).shape), filters)
            return Equivalent(
                "convolutions", text, tuple(nodes), last, (source,), build, 0.3,
                constants=constants,
            )  # fmt: skip
    return None


def _has_work(nodes: list[Node]) -> bool:
    """Whether some nodes are more than one slice: several, or all windows of an image."""
    return len(nodes) > 1 or nodes[0].target is aten.im2col.default


@dataclass(frozen=True)
class _Filters:
    """A convolution of images of a shape: its weights, strides, groups, and offset.

    ``margins`` are added left, right, above and below; where they are negative, that is not read.
    """

    image: list[int]
    weights: torch.Tensor
    strides: list[int]
    margins: list[int]
    groups: int = 1
    bias: tuple[torch.Tensor, ...] = ()

    def apply(self, x: Any, weights: Any) -> Any:
        padding = [self.margins[2], self.margins[0]]
        after = [self.margins[3], self.margins[1]]
        uneven = any(
            a > b or a <= b - stride
            for a, b, stride in zip(after, padding, self.strides, strict=True)
        )
        if uneven:
            x, padding = aten.constant_pad_nd.default(x, self.margins), [0, 0]
        return aten.conv2d.default(x, weights, None, self.strides, padding, [1, 1], self.groups)


def _convolve(result: list[int], filters: _Filters, x: Any, weights: Any, *bias: Any) -> Any:
    x = filters.apply(aten.reshape.default(x, filters.image), weights)
    x = aten.reshape.default(x, result)
    return aten.add.Tensor(x, bias[0]) if bias else x


def _parts_across_products(finder: Finder, last: Node) -> Iterator[tuple[Node, list[Node]]]:
    """The parts that end in a node and read one image, products included."""
    inside, frontier = [last], {*finder.varying(last)}
    while frontier and len(inside) < _MOST_PART:
        if len(frontier) == 1:
            members = {*inside}
            if all(members.issuperset(readers(node)) for node in inside[1:]):
                yield next(iter(frontier)), inside[::-1]
        newest = max(frontier, key=finder.place.__getitem__)
        if not is_pure(newest) or newest.target in (aten.conv2d.default, aten.relu.default):
            return
        frontier.remove(newest)
        inside.append(newest)
        inside.sort(key=finder.place.__getitem__, reverse=True)
        frontier.update(finder.varying(newest))


#: What a convolution by hand looks at the neighbours with.
_SHIFTS = {
    aten.im2col.default, aten.slice.Tensor, aten.roll.default, aten.unfold.default,
    aten.index.Tensor, aten.narrow.default, aten.split.Tensor, aten.chunk.default,
}  # fmt: skip
#: Operators of a convolution by hand, at most.
_MOST_PART = 80


def _find_filter(finder: Finder, nodes: list[Node], source: Node, last: Node) -> _Filters | None:
    """The convolution that a part computes; None if it is none."""
    shape, result = list(value(source).shape), list(value(last).shape)
    image = shape if len(shape) == 4 else [*shape[:2], 1, shape[2]]
    batch, channels, height, width = image
    if channels > _MOST_CHANNELS or result[0] != batch or len(result) not in (3, 4):
        return None
    sizes = result[2:] if len(result) == 4 else [1, result[2]]
    if len(shape) == 4 and len(result) == 3:
        sizes = _split_positions(result[2], height, width)
    if not sizes[0] or sizes[0] > height + _REACH or sizes[1] > width + _REACH:
        return None
    # Strides by which the outputs are fewer; padding and filters move an image by less.
    strides = [max(1, round(size / count)) for size, count in zip(image[2:], sizes, strict=True)]
    x = finder.sample(source).reshape(image)

    def run(x: torch.Tensor) -> torch.Tensor:
        finder.tries -= x.numel()
        outputs = finder.run(nodes, {source: x.reshape(shape)})
        return outputs.reshape(batch, result[1], *sizes)

    offset = run(torch.zeros_like(x))
    linear = _remove_offset(run, offset)
    if not offset.isfinite().all() or not _is_linear(linear, x):
        return None
    weights, padding = _read_taps(linear, x, strides)
    if weights is None or max(padding) > _REACH:
        return None
    spans = [
        stride * (count - 1) + size
        for stride, count, size in zip(strides, sizes, weights.shape[2:], strict=True)
    ]
    after = [a - b - c for a, b, c in zip(spans, padding, image[2:], strict=True)]
    filters = _Filters(image, weights, strides, [padding[1], after[1], padding[0], after[0]])
    across = weights * (1 - torch.eye(*weights.shape[:2], dtype=x.dtype))[..., None, None]
    if weights.shape[0] == channels and not across.count_nonzero():
        own = weights.diagonal().permute(2, 0, 1).unsqueeze(1).contiguous()
        filters = replace(filters, weights=own, groups=channels)
    again = filters.apply(x, filters.weights)
    if again.shape != linear(x).shape:
        return None
    if sqnr(again, linear(x)) < LEAST_DB[x.element_size()] - REORDERED_DB:
        return None
    bias = (offset.reshape(result),) if offset.count_nonzero() else ()
    return replace(filters, bias=bias)


def _read_taps(
    linear: Map, x: torch.Tensor, strides: list[int]
) -> tuple[torch.Tensor | None, list[int]]:
    """The weights of a convolution and its padding, from its answers to single points.

    A point is seen through those positions of the filter that are whole strides apart.
    """
    height, width = x.shape[2:]
    middle = [
        size // 2 // stride * stride for size, stride in zip((height, width), strides, strict=True)
    ]
    taps: dict[tuple[int, int], torch.Tensor] = {}
    for down, right in product(*map(range, strides)):
        row, column = middle[0] + down, middle[1] + right
        if row >= height or column >= width:
            return None, []
        answers = []
        for channel in range(x.shape[1]):
            point = torch.zeros_like(x)
            point[:, channel, row, column] = 1.0
            answers.append(linear(point)[0])
        answer = torch.stack(answers, 1)  # outputs by inputs by positions
        for top, left in answer.abs().sum((0, 1)).nonzero().tolist():
            place = (row - strides[0] * top, column - strides[1] * left)
            taps[place] = answer[:, :, top, left]
    if len(taps) < 2:  # a slice, or a product
        return None, []
    rows, columns = zip(*taps, strict=True)
    first = min(0, min(rows)), min(0, min(columns))
    tall, wide = max(rows) - first[0] + 1, max(columns) - first[1] + 1
    if max(tall, wide) > 2 * _REACH + 1:
        return None, []
    outputs, inputs = next(iter(taps.values())).shape
    weights = torch.zeros(outputs, inputs, tall, wide, dtype=x.dtype)
    for (down, right), each in taps.items():
        weights[:, :, down - first[0], right - first[1]] = each
    return weights, [-first[0], -first[1]]


def _split_positions(count: int, height: int, width: int) -> list[int]:
    """Rows and columns of an image with so many positions, as near as they are to another's."""
    for lost in range(2 * _REACH + 1):
        for stride in range(1, _REACH):
            rows, columns = (-(-(size - lost) // stride) for size in (height, width))
            if rows * columns == count:
                return [rows, columns]
    return [0, 0]


def find_pooling(finder: Finder, last: Node) -> Equivalent | None:
    """Pooling and largest elements that XNNPACK refuses, in the form that it has."""
    pool: Any = last
    if last.target is operator.getitem and last.args[1] == 0:
        pool = last.args[0]
        if any(readers(part) for part in readers(pool) if part.args[1] != 0):
            return None  # somebody reads the positions
    if not finder.is_outside(pool) or pool.target not in _POOLS or not is_pure(pool):
        return None
    source: Any = pool.args[0]
    if (pool is not last) != isinstance(value(pool), list | tuple):
        return None
    if not is_float(source, MOST_PROVEN) or not is_static(source):
        return None
    part = _POOLS[pool.target](finder, pool, source)
    return replace(part, nodes=(pool, last), result=last) if part and pool is not last else part


def _average(finder: Finder, last: Node, source: Node) -> Equivalent | None:
    flat = last.target is aten.avg_pool1d.default
    sizes, strides, pads, _ = _pool_arguments(last, 1 if flat else 2)
    shape = list(value(source).shape)
    unbatched = len(shape) == (2 if flat else 3)
    if flat:
        sizes, strides, pads = [1, *sizes], [1, *strides], [0, *pads]
    channels = shape[0] if unbatched else shape[1]
    image = [
        *([1] if unbatched else shape[:1]),
        channels,
        *([1] if flat else []),
        *shape[-1 if flat else -2 :],
    ]
    dtype = value(source).dtype
    weights = torch.full((channels, 1, *sizes), 1 / math.prod(sizes), dtype=dtype)
    result = list(value(last).shape)
    settings = (None, strides, pads, [1, 1], channels)
    # With `ceil_mode`, the last windows reach beyond the padding.
    counts = [1, result[-1]] if flat else result[-2:]
    spans = [
        stride * (count - 1) + size - 2 * pad
        for stride, count, size, pad in zip(strides, counts, sizes, pads, strict=True)
    ]
    beyond = [max(0, span - size) for span, size in zip(spans, image[-2:], strict=True)]
    margins = [0, beyond[1], 0, beyond[0]]

    def convolve(x: Any, weights: Any) -> Any:
        x = aten.constant_pad_nd.default(x, margins) if any(beyond) else x
        return aten.conv2d.default(x, weights, *settings)

    means = finder.run([last], {source: torch.ones(shape, dtype=dtype)})
    sums = convolve(torch.ones(image, dtype=dtype), weights).view(result)
    border = (means / sums).view(1, *result)[:, :1] if unbatched else (means / sums)[:1, :1]
    needed = not torch.allclose(border, torch.ones_like(border), atol=1e-6)

    def build(x: Any, weights: Any, *border: Any) -> Any:
        x = aten.reshape.default(x, image) if image != shape else x
        x = convolve(x, weights)
        x = aten.reshape.default(x, result) if image != shape else x
        return aten.mul.Tensor(x, border[0]) if border else x

    text = f"{name_of(last)} as a convolution with constant weights"
    constants = (weights, border.contiguous()) if needed else (weights,)
    return Equivalent("pooling", text, (last,), last, (source,), build, constants=constants)


def _maximum(finder: Finder, last: Node, source: Node) -> Equivalent | None:
    """The maximum of windows in one dimension, as in two."""
    sizes, strides, pads, ceils = _pool_arguments(last, 1)
    shape, result = list(value(source).shape), list(value(last).shape)
    if ceils or len(shape) != 3 or last.args[4:5] not in ((), ([1],)):
        return None
    image = [*shape[:2], 1, shape[2]]

    def build(x: Any) -> Any:
        x = aten.reshape.default(x, image)
        x = aten.max_pool2d.default(x, [1, *sizes], [1, *strides], [0, *pads])
        return aten.reshape.default(x, result)

    text = f"{name_of(last)} in two dimensions, one of size one"
    return Equivalent("pooling", text, (last,), last, (source,), build)


def _largest(finder: Finder, last: Node, source: Node) -> Equivalent | None:
    """The largest or smallest elements along some axes, as those of a window of their size."""
    shape, name = list(value(source).shape), name_of(last)
    values = value(last)
    result = list(values.shape if isinstance(values, torch.Tensor) else values[0].shape)  # type: ignore[index]
    axes: Any = last.args[1] if len(last.args) > 1 else ()
    if last.target is aten.topk.default:
        along: Any = last.args[2] if len(last.args) > 2 else -1
        least = last.args[3:4] == (False,)
        if last.args[1] != 1 or last.kwargs:
            return None
        axes = [along]
    else:
        least = "min" in name
        axes = [axes] if isinstance(axes, int) else list(axes)
    width, gather_rows = rows_along(shape, axes or range(len(shape)))
    rows = elements(source) // width

    def build(x: Any) -> Any:
        x = aten.reshape.default(gather_rows(x), [1, rows, 1, width])
        x = aten.neg.default(x) if least else x
        x = aten.max_pool2d.default(x, [1, width], [1, width])
        return aten.reshape.default(aten.neg.default(x) if least else x, result)

    text = f"{name} as the largest element of a window"
    return Equivalent("pooling", text, (last,), last, (source,), build) if width > 1 else None


def _adaptive(finder: Finder, last: Node, source: Node) -> Equivalent | None:
    """The maximum of windows that divide an image, as a pooling."""
    shape, given = list(value(source).shape), last.args[1]
    sizes = _repeat(given, 2)
    if any(size % count for size, count in zip(shape[-2:], sizes, strict=True)):
        return None
    window = [size // count for size, count in zip(shape[-2:], sizes, strict=True)]
    text = f"{name_of(last)} as a pooling of {window[0]} x {window[1]}"
    build = lambda x: aten.max_pool2d.default(x, window, window)  # noqa: E731
    return Equivalent("pooling", text, (last,), last, (source,), build)


def _pool_arguments(node: Node, count: int) -> tuple[list[int], list[int], list[int], bool]:
    """Sizes, strides and padding of windows, and whether their number is rounded up."""
    arguments: list[Any] = [*node.args[1:], None, None, None, None, None]
    sizes = _repeat(arguments[0], count)
    strides = _repeat(arguments[1] or sizes, count)
    ceils = arguments[4] if node.target is aten.max_pool1d.default else arguments[3]
    return sizes, strides, _repeat(arguments[2] or 0, count), bool(ceils)


def _repeat(numbers: Any, count: int) -> list[int]:
    numbers = [numbers] if isinstance(numbers, int) else list(numbers)
    return numbers * count if len(numbers) == 1 else numbers


_POOLS: dict[Any, Callable[[Finder, Node, Node], Equivalent | None]] = {
    aten.avg_pool1d.default: _average,
    aten.avg_pool2d.default: _average,
    aten.max_pool1d.default: _maximum,
    aten.adaptive_max_pool2d.default: _adaptive,
    **dict.fromkeys(
        (
            aten.amax.default, aten.amin.default, aten.max.dim, aten.min.dim, aten.topk.default,
        ),
        _largest,
    ),
}  # fmt: skip
