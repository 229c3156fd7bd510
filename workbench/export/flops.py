"""Floating-point operations of operators, from shapes alone.

A multiplication and an addition are two operations. Elementwise operators count one per output
element, whatever the function; operators that only move data count none.
"""

import math
from collections.abc import Sequence
from typing import Any

Shape = Sequence[int]

#: Maximum, subtraction, exponential, sum and division.
_SOFTMAX = 5
#: Three linear interpolations of a subtraction, a multiplication and an addition each.
_BILINEAR = 9


def _set_of(names: str) -> frozenset[str]:
    return frozenset(names.split())


_MOVING = _set_of(
    "StaticTranspose StaticReshape StaticConstantPad StaticSlice Copy "
    "Concatenate2 Concatenate3 Concatenate4 Concatenate5"
)
_KERNELS_THAT_MOVE = _set_of(
    "_to_copy _to_dim_order_copy _clone_dim_order alias_copy as_strided_copy cat clone "
    "constant_pad_nd copy detach_copy embedding expand_copy flip full full_like gather "
    "index index_select ones permute_copy pixel_shuffle pixel_unshuffle repeat roll select_copy "
    "slice_copy split_copy split_with_sizes_copy squeeze_copy stack t_copy transpose_copy "
    "unbind_copy unsqueeze_copy upsample_nearest2d view_copy where zeros"
)
_KERNELS_PER_OUTPUT = _set_of(
    "abs acos add asin atan bitwise_and bitwise_not bitwise_or bitwise_xor ceil clamp cos div elu "
    "eq erf exp floor fmod ge gelu gt hardtanh le leaky_relu log logical_and logical_not "
    "logical_or logical_xor lt maximum minimum mul ne neg pow reciprocal relu remainder round "
    "rsqrt rsub sigmoid sign sin sqrt sub tan tanh trunc"
)
_KERNELS_PER_INPUT = _set_of("amax amin any argmax argmin max mean min prod sum")


def xnode_flops(
    kind: str, attributes: dict[str, Any], inputs: Sequence[Shape], output: Shape
) -> int:
    """Operations of a node of an XNNPACK delegate such as ``Conv2d``; images are NHWC."""
    elements = math.prod(output)
    first = inputs[0] if inputs else ()
    if kind in ("Conv2d", "DepthwiseConv2d", "ConvTranspose2d"):
        kernel = attributes["kernel_height"] * attributes["kernel_width"]
        if kind == "ConvTranspose2d":
            return 2 * math.prod(first) * attributes["group_output_channels"] * kernel
        return 2 * elements * attributes["group_input_channels"] * kernel
    if kind in ("FullyConnected", "BatchMatrixMultiply"):
        return 2 * elements * (first[-1] if first else 1)
    if kind in ("AvgPooling2d", "MaxPooling2d", "ArgMaxPooling2d"):
        return elements * attributes["pooling_height"] * attributes["pooling_width"]
    if kind == "GlobalAvgPooling2d":
        return math.prod(first)
    if kind in _MOVING:
        return 0
    return elements * {"Softmax": _SOFTMAX, "StaticResizeBilinear2D": _BILINEAR}.get(kind, 1)


def kernel_flops(name: str, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int | None:
    """Operations of a kernel such as ``aten::mul.out``; None if unknown."""
    operator = name.rpartition("::")[2].partition(".")[0]
    if operator in _KERNELS_THAT_MOVE:
        return 0
    elements = sum(math.prod(shape) for shape in outputs)
    if operator in _KERNELS_PER_OUTPUT:
        return elements
    if not inputs:
        return None
    if operator in _KERNELS_PER_INPUT:
        return math.prod(inputs[0])
    if operator in ("mm", "bmm", "linear"):
        return 2 * elements * inputs[0][-1]
    if operator == "addmm" and len(inputs) == 3:
        return 2 * elements * inputs[1][-1]
    return None
