"""The graph that ExecuTorch builds in XNNPACK from a delegate, before anything is rewritten."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.analyze.xnnpack.graph import Graph, Node, Tensor
from workbench.records import XNode, XValue

_UNARY = {
    "Abs": "Abs", "Ceiling": "Ceiling", "Clamp": "Clamp", "Convert": "Convert", "Cos": "Cosine",
    "ELU": "ELU", "Exp": "Exp", "Floor": "Floor", "Gelu": "GELU", "Hardswish": "HardSwish",
    "LeakyReLU": "LeakyReLU", "Log": "Log", "Negate": "Negate",
    "ReciprocalSquareRoot": "Reciprocal Square Root", "Sigmoid": "Sigmoid", "Sin": "Sine",
    "Square": "Square", "SquareRoot": "Square Root", "Tanh": "TanH",
}  # fmt: skip
_BINARY = {
    "Add": "Add", "Div": "Divide", "Maximum": "Maximum", "Minimum": "Minimum",
    "Multiply": "Multiply", "PReLU": "PReLU", "Subtract": "Subtract",
}  # fmt: skip
_KINDS = {
    "ArgMaxPooling2d": "argmaxpool", "AvgPooling2d": "avgpool", "BatchMatrixMultiply": "bmm",
    "Concatenate2": "concat", "Concatenate3": "concat", "Concatenate4": "concat",
    "Concatenate5": "concat", "Conv2d": "conv", "ConvTranspose2d": "deconv", "Copy": "copy",
    "DepthwiseConv2d": "dwconv", "FullyConnected": "fc", "GlobalAvgPooling2d": "mean",
    "MaxPooling2d": "maxpool", "Softmax": "softmax", "StaticConstantPad": "pad",
    "StaticReshape": "reshape", "StaticResizeBilinear2D": "resize", "StaticSlice": "slice",
    "StaticTranspose": "transpose",
}  # fmt: skip

#: Where a fused activation becomes a node of its own.
_CLAMPED_APART = ("Add", "Subtract", "Multiply", "Div", "GlobalAvgPooling2d")


def define_graph(xvalues: Sequence[XValue], xnodes: Sequence[XNode]) -> Graph:
    """The graph of a delegate's operators, each with the number of its exported one."""
    graph = Graph()
    for value in xvalues:
        constant = value.role == "constant"
        graph.values[value.id] = Tensor(
            id=value.id,
            dtype=value.dtype,
            shape=value.shape,
            constant=constant,
            is_input=value.role == "input",
            is_output=value.role == "output",
            zero_point=value.zero_point,
            shape_known=constant,
        )
    for number, xnode in enumerate(xnodes):
        _define(graph, number, xnode)
    return graph


def _define(graph: Graph, number: int, xnode: XNode) -> None:
    node = Node("", "", list(xnode.inputs), list(xnode.outputs), [number], dict(xnode.attributes))
    bounds = xnode.clamp if xnode.clamp and set(xnode.clamp) != {None} else None
    source, result = (graph.values[ids[0]] for ids in (xnode.inputs, xnode.outputs))
    if xnode.type in _UNARY:
        node.kind, node.operator = "unary", _UNARY[xnode.type]
        if xnode.type == "Clamp":
            node.parameters["bounded"] = bounds is not None
        if xnode.type == "Convert" and _packs(source.dtype, result.dtype):
            node.kind = "convert"
    elif xnode.type in _BINARY:
        node.kind, node.operator = "binary", _BINARY[xnode.type]
    elif xnode.type == "Conv2d" and _is_pointwise(xnode):
        node.kind = "fc"
        node.parameters["flags"] = 0
    else:
        node.kind = _KINDS.get(xnode.type, xnode.type)
    graph.nodes.append(node)
    if bounds and xnode.type in _CLAMPED_APART:
        _append_unary(graph, node, "Clamp", result.dtype)
    if xnode.type == "FullyConnected" and _all_bf16(graph, node):
        _append_unary(graph, node, "Convert", "fp32")


def _append_unary(graph: Graph, node: Node, operator: str, dtype: str) -> None:
    """Let a function of its own make the result of a node that makes ``dtype``."""
    between = graph.new_tensor(dtype, graph.values[node.outputs[0]].shape)
    last = Node("unary", operator, [between.id], node.outputs, list(node.sources))
    last.parameters["bounded"] = True
    node.outputs = [between.id]
    graph.nodes.append(last)


def _is_pointwise(xnode: XNode) -> bool:
    """Whether a convolution is a matrix product, which XNNPACK runs it as."""
    get = xnode.attributes.get
    padding = any(get(f"padding_{side}") for side in ("top", "left", "bottom", "right"))
    ones = ("kernel_height", "kernel_width", "subsampling_height", "subsampling_width", "groups")
    channels = get("group_input_channels", 0) + get("group_output_channels", 0)
    return not padding and all(get(name) == 1 for name in ones) and channels > 2


def _packs(source: str, result: str) -> bool:
    """Whether a conversion quantises per row or per channel, an operator of its own."""
    return result in ("qdint8", "qduint8") or (source, result) == ("qint8", "qcint8")


def _all_bf16(graph: Graph, node: Node) -> bool:
    operands = (*node.inputs[:2], node.outputs[0])
    return all(graph.values[value].dtype == "bf16" for value in operands)
