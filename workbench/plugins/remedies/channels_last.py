"""Constants around which images stay channels last.

XNNPACK computes convolutions and pooling channels last. Where one operand of a sum or product of
images has other than four dimensions, such as a number, ExecuTorch converts the images to PyTorch's
layout for it, and back.
"""

import operator
from typing import Any

import torch
from torch.fx import Graph, Node

from workbench.graphs import is_pure, readers
from workbench.plugins.remedies.equivalence import (
    MOST_PROVEN,
    Equivalent,
    Finder,
    arguments_of,
    elements,
    is_pointwise,
    is_static,
    value,
)

aten: Any = torch.ops.aten
#: What computes with two images, by what computes with an image and a number.
_TWO_IMAGES: dict[Any, Any] = {
    **dict.fromkeys((aten.add.Tensor, aten.add.Scalar), aten.add.Tensor),
    **dict.fromkeys((aten.sub.Tensor, aten.sub.Scalar, aten.rsub.Scalar), aten.sub.Tensor),
    **dict.fromkeys((aten.mul.Tensor, aten.mul.Scalar), aten.mul.Tensor),
    **dict.fromkeys((aten.div.Tensor, aten.div.Scalar), aten.div.Tensor),
    aten.maximum.default: aten.maximum.default,
    aten.minimum.default: aten.minimum.default,
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
    operands = _list_operands(last) if is_pure(last) else []
    images = [each for each in operands if _is_image(each) and each not in finder.constants]
    if len(images) != 1 or not _has_images(finder):
        return None
    image = images[0]
    (operand,) = (each for each in operands if each is not image)
    constant = finder.constants.get(operand) if isinstance(operand, Node) else operand
    if constant is None or getattr(constant, "ndim", 0) == 4:
        return None
    widened = _widen(constant, value(image).dtype)
    if widened is None or value(last).dtype is not widened.dtype:
        return None

    def build(x: Any, constant: Any) -> Any:
        compute = _TWO_IMAGES[last.target]
        return compute(x, constant) if operands[0] is image else compute(constant, x)

    around = _list_around(last)
    return Equivalent(
        "layouts", "", (last,), last, (image,), build, constants=(widened,), around=around
    )


def _widen(constant: Any, dtype: torch.dtype) -> torch.Tensor | None:
    """A constant as an image of a dtype; None if that makes zeros or infinite numbers of others."""
    exact = torch.as_tensor(constant, dtype=torch.double)
    rounded = exact.to(dtype)
    if not (rounded.isfinite().equal(exact.isfinite()) and (rounded == 0).equal(exact == 0)):
        return None
    return rounded.reshape([1] * (4 - rounded.ndim) + [*rounded.shape])


def _list_operands(node: Node) -> list[Any]:
    """The two operands of arithmetic whose result is an image, in order; none of anything else."""
    if node.target not in _TWO_IMAGES or not _is_image(node):
        return []
    first, second, *rest = arguments_of(node).values()
    if rest not in ([], [1]):
        return []
    return [second, first] if node.target is aten.rsub.Scalar else [first, second]


def widen_numbers(graph: Graph) -> None:
    """Numbers beside images, in the operators of a part, as images of one pixel."""
    for node in [*graph.nodes]:
        operands = _list_operands(node)
        numbers = [each for each in operands if isinstance(each, int | float)]
        if len(numbers) != 1 or _widen(numbers[0], value(node).dtype) is None:
            continue
        like = value(node)
        with graph.inserting_before(node):
            pixel = graph.call_function(
                aten.full.default, ([1] * 4, numbers[0]), {"dtype": like.dtype}
            )
        pixel.meta["val"] = like.new_full([1] * 4, numbers[0])
        node.target, node.kwargs = _TWO_IMAGES[node.target], {}
        node.args = tuple(each if isinstance(each, Node) else pixel for each in operands)


def _is_image(each: Any) -> bool:
    tensor = each.meta.get("val") if isinstance(each, Node) else None
    if not isinstance(tensor, torch.Tensor) or tensor.ndim != 4:
        return False
    is_large = is_static(each) and elements(each) > MOST_PROVEN
    return tensor.is_floating_point() and not is_large


def _has_images(finder: Finder) -> bool:
    """Whether a graph computes anything channels last."""
    nodes = finder.nodes
    return bool(finder.recall("images", lambda: any(node.target in _OF_IMAGES for node in nodes)))


def _list_before(node: Node) -> list[Node]:
    """What an image comes from, up to the operators that decide its layout."""
    before = [node]
    for each in before:  # which grows
        if each is node or is_pointwise(each) or each.target in _PASSING:
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
