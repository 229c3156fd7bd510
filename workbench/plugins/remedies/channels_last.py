"""Constants around which images stay channels last.

XNNPACK computes convolutions and pooling channels last. Where one operand of a sum or product of
images has other than four dimensions, such as a number, ExecuTorch converts the images to PyTorch's
layout for it, and back.
"""

import operator
from typing import Any

import torch
from torch.fx import Node

from workbench.graphs import is_pure, readers
from workbench.plugins.remedies.equivalence import (
    Equivalent,
    Finder,
    arguments_of,
    is_float,
    is_pointwise,
    value,
)

aten: Any = torch.ops.aten
#: What computes with two images, by what computes with an image and a number.
_TWO_IMAGES: dict[Any, Any] = {
    **dict.fromkeys((aten.add.Tensor, aten.add.Scalar), torch.add),
    **dict.fromkeys((aten.sub.Tensor, aten.sub.Scalar), torch.sub),
    **dict.fromkeys((aten.mul.Tensor, aten.mul.Scalar), torch.mul),
    **dict.fromkeys((aten.div.Tensor, aten.div.Scalar), torch.div),
    aten.rsub.Scalar: lambda x, other: other - x,
    aten.maximum.default: torch.maximum,
    aten.minimum.default: torch.minimum,
}
#: What computes channels last.
_OF_IMAGES = {
    aten.conv2d.default, aten.conv_transpose2d.input, aten.convolution.default,
    aten.max_pool2d.default, aten.avg_pool2d.default, aten.adaptive_avg_pool2d.default,
    aten.upsample_bilinear2d.vec,
}  # fmt: skip
#: What has the layout of its images, beside what treats all elements alike.
_PASSING = {aten.cat.default, operator.getitem}
#: Operators around one, up to what computes channels last, that a trial takes along at most.
_MOST_AROUND = 12


def find_layouts(finder: Finder, last: Node) -> Equivalent | None:
    """An image with a number or a constant of fewer dimensions, which becomes one of four."""
    compute = _TWO_IMAGES.get(last.target)
    if compute is None or not is_pure(last) or not is_float(last) or value(last).ndim != 4:
        return None
    first, second, *rest = arguments_of(last).values()
    images = [each for each in (first, second) if _is_image(each) and each not in finder.constants]
    if rest not in ([], [1]) or len(images) != 1 or not _has_images(finder):
        return None
    other = second if images[0] is first else first
    constant = finder.constants.get(other) if isinstance(other, Node) else other
    if constant is None or getattr(constant, "ndim", 0) == 4:
        return None
    tensor = torch.as_tensor(constant, dtype=value(images[0]).dtype)
    tensor = tensor.reshape([1] * (4 - tensor.ndim) + [*tensor.shape])

    def build(x: Any, other: Any) -> Any:
        return compute(x, other) if images[0] is first else compute(other, x)

    sources, around = (images[0],), _list_around(last)
    return Equivalent(
        "layouts", "", (last,), last, sources, build, constants=(tensor,), around=around
    )


def _is_image(each: Any) -> bool:
    return isinstance(each, Node) and is_float(each) and value(each).ndim == 4


def _has_images(finder: Finder) -> bool:
    """Whether a graph computes anything channels last."""
    if "images" not in finder.memory:
        finder.memory["images"] = any(node.target in _OF_IMAGES for node in finder.nodes)
    return finder.memory["images"]  # type: ignore[no-any-return]


def _list_before(node: Node) -> list[Node]:
    """What an image comes from, up to the operators that decide its layout."""
    before = [node]
    for each in before:  # which grows
        if (
            each is node
            or is_pointwise(each)
            or each.target in (aten.cat.default, operator.getitem)
        ):
            images = [source for source in each.all_input_nodes if _is_image(source)]
            before += [source for source in images if source not in before]
    return before


def _list_around(node: Node) -> tuple[Node, ...]:
    """The operators before and after one, up to those that decide its layout."""
    after = [node]
    for each in after:  # which grows
        if each is node or is_pointwise(each):
            after += [reader for reader in readers(each) if reader not in after]
    calls = [each for each in (*_list_before(node), *after) if each.op == "call_function"]
    return tuple(dict.fromkeys(calls))[:_MOST_AROUND]
