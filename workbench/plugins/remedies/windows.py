"""Operators that read windows of images: convolutions by hand, pooling, largest elements.

The filter of a convolution is its answer to single points; that it is one is shown on random
tensors.
"""

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import torch
from torch.fx import Node

from workbench.export.purity import is_pure, readers
from workbench.plugins.remedies.equivalence import (
    LEAST_DB,
    MOST_PROVEN,
    REORDERED_DB,
    Equivalent,
    Finder,
    elements,
    is_float,
    is_static,
    name_of,
    rows_along,
    sqnr,
    value,
)
from workbench.plugins.remedies.linear import Map, is_linear, remove_offset

aten: Any = torch.ops.aten
#: Positions of a filter, from its middle to its ends, and channels that are tried at most.
_REACH, _MOST_CHANNELS = 5, 256


def find_convolution(finder: Finder, last: Node) -> Equivalent | None:
    """A part that computes a convolution of an image: its answer to single points is the filter."""
    if not is_pure(last) or not is_float(last) or not is_static(last):
        return None
    if last.target in (aten.conv2d.default, aten.convolution.default):
        return None
    for source, nodes in finder.parts(last, _WHOLE, _MOST_PART):
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
            shape, result = (list(value(node).shape) for node in (source, last))
            build = partial(_convolve, shape, result, filters)
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


def _convolve(
    shape: list[int], result: list[int], filters: _Filters, x: Any, weights: Any, *bias: Any
) -> Any:
    """The result of a convolution of a tensor of a shape, which may have fewer axes."""
    x = aten.reshape.default(x, filters.image) if shape != filters.image else x
    x = filters.apply(x, weights)
    x = aten.reshape.default(x, result) if len(result) != 4 or shape != filters.image else x
    return aten.add.Tensor(x, bias[0]) if bias else x


#: What a convolution by hand looks at the neighbours with.
_SHIFTS = {
    aten.im2col.default, aten.slice.Tensor, aten.roll.default, aten.unfold.default,
    aten.index.Tensor, aten.narrow.default, aten.split.Tensor, aten.chunk.default,
}  # fmt: skip
#: What is no part of a convolution by hand.
_WHOLE = (aten.conv2d.default, aten.relu.default)
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
    x = finder.sample(source).reshape(image)

    def run(x: torch.Tensor) -> torch.Tensor:
        finder.tries -= x.numel()
        outputs = finder.run(nodes, {source: x.reshape(shape)})
        return outputs.reshape(batch, result[1], *sizes)

    offset = run(torch.zeros_like(x))
    linear = remove_offset(run, offset)
    if not offset.isfinite().all() or not is_linear(linear, x):
        return None
    weights, padding, strides = _find_taps(linear, x, sizes)
    if weights is None:
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


def _find_taps(
    linear: Map, x: torch.Tensor, sizes: list[int]
) -> tuple[torch.Tensor | None, list[int], list[int]]:
    """The weights of a convolution, its padding and strides; None if it is none."""
    # Strides by which the outputs are fewer; of a wide filter without padding, these are fewer yet.
    ratios = [size / count for size, count in zip(x.shape[2:], sizes, strict=True)]
    for strides in ([max(1, round(r)) for r in ratios], [max(1, int(r)) for r in ratios]):
        weights, padding = _read_taps(linear, x, strides)
        if weights is not None and max(padding) <= _REACH:
            return weights, padding, strides
    return None, [], []


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
    """Means of windows as a convolution of each channel, and a factor where these are fewer."""
    rank = 1 if last.target is aten.avg_pool1d.default else 2
    shape, result = list(value(source).shape), list(value(last).shape)
    batched = shape if len(shape) == rank + 2 else [1, *shape]
    sizes, strides, pads, _ = _pool_arguments(last, rank)
    image, counts = batched, result[-2:]
    if rank == 1:  # an image of one row
        image, counts = [*batched[:2], 1, batched[2]], [1, result[-1]]
        sizes, strides, pads = [1, *sizes], [1, *strides], [0, *pads]
    # With `ceil_mode`, the last windows reach beyond the padding.
    after = [
        max(pad, stride * (count - 1) + size - pad - length)
        for stride, count, size, pad, length in zip(
            strides, counts, sizes, pads, image[2:], strict=True
        )
    ]
    dtype, channels = value(source).dtype, image[1]
    weights = torch.full((channels, 1, *sizes), 1 / math.prod(sizes), dtype=dtype)
    margins = [pads[1], after[1], pads[0], after[0]]
    convolve = partial(
        _convolve, shape, result, _Filters(image, weights, strides, margins, channels)
    )
    ones = torch.ones(shape, dtype=dtype)
    border = finder.run([last], {source: ones}) / convolve(ones, weights)
    border = border.reshape(-1, *result[-rank:])[:1].contiguous()
    even = torch.allclose(border, torch.ones_like(border), atol=1e-6)

    def build(x: Any, weights: Any, *border: Any) -> Any:
        x = convolve(x, weights)
        return aten.mul.Tensor(x, border[0]) if border else x

    text = f"{name_of(last)} as a convolution with constant weights"
    constants = (weights,) if even else (weights, border)
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
