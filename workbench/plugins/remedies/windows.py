"""Convolutions that are written by hand.

The filter of one is how an output depends on the image, its gradient; that the filter is all there
is to it is shown on random tensors.
"""

import operator
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.fx import Node
from torch.nn.utils.fusion import fuse_conv_bn_weights

from workbench.graphs import PRODUCTS, is_pure, readers
from workbench.plugins.remedies.equivalence import (
    Equivalent,
    Finder,
    Refused,
    arguments_of,
    is_float,
    is_static,
    least_db,
    name_of,
    reshape,
    sqnr,
    value,
)
from workbench.plugins.remedies.linear import Map, is_linear, remove_offset

aten: Any = torch.ops.aten
#: Positions of a filter, from its middle to its ends, at most.
_REACH = 5
#: What a convolution by hand looks at the neighbours with.
_SHIFTS = {
    aten.im2col.default, aten.slice.Tensor, aten.roll.default, aten.unfold.default,
    aten.index.Tensor, aten.narrow.default, aten.split.Tensor, aten.chunk.default,
}  # fmt: skip
#: What is no part of a convolution by hand, and operators of one, at most.
_WHOLE, _MOST_PART = (aten.conv2d.default, aten.relu.default), 80
#: Weights, strides, margins left, right, above and below, and groups.
_Taps = tuple[torch.Tensor, list[int], list[int], int]


class _Filters(NamedTuple):
    """A convolution of an image; operand and result may lack some axes."""

    image: list[int]
    result: list[int]
    taps: _Taps
    bias: tuple[torch.Tensor, ...] = ()

    def build(self, x: Any, weights: Any, *bias: Any) -> Any:
        """The result from the operand and the constants."""
        x = convolve(reshape(x, self.image), weights, *self.taps[1:])
        x = reshape(x, self.result)
        return x + bias[0] if bias else x


def find_convolution(finder: Finder, last: Node) -> Equivalent | None:
    """A part that computes a convolution of an image, in which an axis may be missing."""
    if last.target is aten.batch_norm.default and finder.quantised:
        return _find_scale(finder, last)
    if not is_pure(last) or not is_float(last) or not is_static(last):
        return None
    if last.target in (aten.conv2d.default, aten.convolution.default):
        return None
    for source, nodes in finder.parts(last, _WHOLE, _MOST_PART):
        moves = any(node.target in _SHIFTS for node in nodes)
        # A slice alone is none, all windows of an image are.
        has_work = len(nodes) > 1 or last.target is aten.im2col.default
        if not moves or not has_work or not is_float(source) or value(source).ndim not in (3, 4):
            continue
        key = ("convolution", finder.identify(nodes, [source]))
        filters = finder.recall(key, partial(_find_filters, finder, nodes, source))
        if filters is None:
            continue
        height, width = filters.taps[0].shape[2:]
        before = f"{len(nodes)} operators" if len(nodes) > 1 else name_of(last)
        text = f"a convolution of {height} x {width} instead of {before}"
        return Equivalent(
            "convolutions", text, tuple(nodes), last, (source,), filters.build, 0.3,
            constants=(filters.taps[0], *filters.bias),
        )  # fmt: skip
    return None


def _find_scale(finder: Finder, norm: Node) -> Equivalent | None:
    """A batch norm that no layer takes up, which else stays in floating point among int8 layers."""
    x, scale, offset, mean, variance, training, _, eps, _ = (
        finder.constants.get(each, each) for each in arguments_of(norm).values()
    )
    layer = {3: aten.conv1d.default, 4: aten.conv2d.default}.get(value(norm).ndim)
    is_taken = x.target in PRODUCTS and len(readers(x)) == 1
    if training or is_taken or layer is None or not is_static(norm):
        return None
    count, ones = len(mean), [1] * (value(norm).ndim - 2)
    fused = fuse_conv_bn_weights(
        torch.ones(count, 1, *ones), None, mean, variance, eps, scale, offset
    )

    def build(x: Any, weights: Any, bias: Any) -> Any:
        return layer(x, weights, bias, ones, [0] * len(ones), ones, count)

    return finder.prove(Equivalent(
        "convolutions", "batch_norm as a convolution of each channel, which is quantised", (norm,),
        norm, (x,), build, 0.5, constants=tuple(each.detach() for each in fused),
    ))  # fmt: skip


def convolve(
    x: Any, weights: Any, strides: Sequence[int], margins: Sequence[int], groups: int,
    spacing: Sequence[int] = (1, 1), bias: Any = None,
) -> Any:  # fmt: skip
    """A convolution of lines or images with margins; where they are negative, that is not read."""
    rank = weights.ndim - 2
    near, far, strides = margins[-2::-2][-rank:], margins[::-2][-rank:], [*strides][-rank:]
    even = all(a - stride < b <= a for a, b, stride in zip(near, far, strides, strict=True))
    x = x if even else aten.constant_pad_nd.default(x, [*margins][: 2 * rank])
    padding = [*near] if even else [0] * rank
    layer = aten.conv1d.default if rank == 1 else aten.conv2d.default
    return layer(x, weights, bias, strides, padding, [*spacing][-rank:], groups)


def _find_filters(finder: Finder, nodes: list[Node], source: Node) -> _Filters | None:
    """The convolution that a part computes; None if it is none."""
    shape, result = list(value(source).shape), list(value(nodes[-1]).shape)
    image = shape if len(shape) == 4 else [*shape[:2], 1, shape[2]]
    sizes = result[2:] if len(result) == 4 else [1, *result[2:]]
    if len(shape) == 4 and len(result) == 3:
        sizes = _split_positions(result[2], image[2], image[3])
    is_image = len(result) in (3, 4) and result[0] == image[0] and sizes[0]
    if not is_image or any(a > b + _REACH for a, b in zip(sizes, image[2:], strict=True)):
        return None
    x = finder.sample(source).reshape(image)

    def run(x: torch.Tensor) -> torch.Tensor:
        finder.tries -= x.numel()
        outputs = finder.run(nodes, {source: x.reshape(shape)})
        return outputs.reshape(image[0], result[1], *sizes)  # type: ignore[no-any-return]

    offset = run(torch.zeros_like(x))
    linear = remove_offset(run, offset)
    alike = offset.dtype == x.dtype and bool(offset.isfinite().all())
    if not alike or not is_linear(linear, x):
        return None
    taps = _read_taps(finder, linear, x)
    least = least_db(x)
    if taps is None or sqnr(convolve(x, *taps), linear(x)) < least:
        return None
    bias = (offset.reshape(result),) if offset.count_nonzero() else ()
    return _Filters(image, result, taps, bias)


@torch.enable_grad()
def _read_taps(finder: Finder, linear: Map, x: torch.Tensor) -> _Taps | None:
    """The convolution that a linear map of an image is, if it is one."""
    x = x.clone().requires_grad_()
    outputs = linear(x)[0]  # of one image
    if not outputs.requires_grad:
        raise Refused("an operator without a gradient")

    def differentiate(output: torch.Tensor) -> torch.Tensor:
        finder.tries -= x.numel()
        (gradient,) = torch.autograd.grad(output, x, retain_graph=True)
        return gradient[0]

    mixed = torch.linspace(1.0, 2.0, len(outputs), dtype=x.dtype) @ outputs.flatten(1)
    mixed = mixed.view(outputs.shape[1:])
    middle = [size // 2 for size in mixed.shape]
    whole = differentiate(mixed[tuple(middle)])
    is_costly = len(outputs) * x.numel() > finder.tries
    if is_costly or int(whole.any(0).sum()) < 2:  # a slice, or a product
        return None
    strides, starts, sizes, margins = list[int](), list[int](), list[int](), list[int]()
    for axis, (count, place) in enumerate(zip(mixed.shape, middle, strict=True)):
        first, last = _find_ends(whole, axis)
        stride = 1
        if count > 1:  # the output before sees what is a stride before
            before = differentiate(mixed.select(axis, place - 1)[middle[1 - axis]])
            stride = last - _find_ends(before, axis)[1]
        start = min(first, place * stride)
        near, size = place * stride - start, last - start + 1
        if stride < 1 or near > _REACH or size > 2 * _REACH + 1:
            return None
        strides, starts, sizes = [*strides, stride], [*starts, start], [*sizes, size]
        margins = [near, stride * (count - 1) + size - near - x.shape[axis + 2], *margins]
    rows, columns = map(slice, starts, map(operator.add, starts, sizes))
    answers = (differentiate(each[tuple(middle)]) for each in outputs)
    weights = torch.stack([each[:, rows, columns].contiguous() for each in answers])
    across = weights * (1 - torch.eye(*weights.shape[:2], dtype=x.dtype))[..., None, None]
    if weights.shape[0] == weights.shape[1] and not across.count_nonzero():
        taps = weights.diagonal().permute(2, 0, 1).unsqueeze(1)
        return taps.contiguous(), strides, margins, len(taps)
    return weights.contiguous(), strides, margins, 1


def _find_ends(gradient: torch.Tensor, axis: int) -> tuple[int, int]:
    """The first and the last row or column of an image that is not zero; zeros if all are."""
    places = gradient.movedim(axis + 1, 0).flatten(1).any(1).nonzero().flatten().tolist()
    return (places[0], places[-1]) if places else (0, 0)


def _split_positions(count: int, height: int, width: int) -> list[int]:
    """Rows and columns of an image with so many positions, as near as they are to another's."""
    for lost in range(2 * _REACH + 1):
        for stride in range(1, _REACH):
            rows, columns = (-(-(size - lost) // stride) for size in (height, width))
            if rows * columns == count:
                return [rows, columns]
    return [0, 0]
