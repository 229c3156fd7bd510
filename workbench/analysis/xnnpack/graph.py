"""The graph that ExecuTorch builds in XNNPACK from a delegate, before it is rewritten."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.records.layer_sidecar import XNode, XValue


@dataclass(eq=False)
class GraphValue:
    """A value of the graph.

    `XGraph.count` updates ``producer``, ``reader`` (the first) and ``readers`` (their number, an
    output of the graph counting as one).
    """

    id: int
    dtype: str
    shape: tuple[int, ...] = ()
    constant: bool = False
    is_input: bool = False
    is_output: bool = False
    zero_point: int = 0
    producer: Node | None = None
    reader: Node | None = None
    readers: int = 0
    shape_known: bool = False
    alive: bool = True
    was_half: bool = False

    @property
    def external(self) -> bool:
        """Whether the caller provides or receives it."""
        return self.is_input or self.is_output


@dataclass(eq=False)
class Node:
    """An operator; ``sources`` are the exported ones whose work it does, in order.

    ``operator`` names the function of a ``unary``, ``binary`` or ``convert`` node. ``serves`` are
    the exported operators for which a rewrite inserted it.
    """

    kind: str
    operator: str
    inputs: list[int]
    outputs: list[int]
    sources: list[int]
    parameters: dict[str, Any] = field(default_factory=dict)
    serves: list[int] = field(default_factory=list)
    live: bool = True

    def is_unary(self, operator: str) -> bool:
        """Whether it is this function of one tensor."""
        return self.kind == "unary" and self.operator == operator


def replace(values: list[int], old: int, new: int) -> list[int]:
    """The values with one of them replaced."""
    return [new if value == old else value for value in values]


class XGraph:
    """Nodes in order of execution, and their values by id."""

    def __init__(self) -> None:
        self.values: dict[int, GraphValue] = {}
        self.nodes: list[Node] = []

    def new_tensor(self, dtype: str, shape: tuple[int, ...]) -> GraphValue:
        """Add an intermediate value."""
        tensor = GraphValue(max(self.values, default=-1) + 1, dtype, shape)
        self.values[tensor.id] = tensor
        return tensor

    def live_nodes(self) -> list[Node]:
        """The live nodes in order, in a list that stays valid while the graph changes."""
        return [node for node in self.nodes if node.live]

    def producer_of(self, value: int) -> Node | None:
        """The live node that produces a value."""
        node = self.values[value].producer
        return node if node is not None and node.live else None

    def count(self) -> None:
        """Update who produces and reads each value."""
        for tensor in self.values.values():
            tensor.producer = tensor.reader = None
            tensor.readers = int(tensor.is_output)
        for node in self.live_nodes():
            for value in dict.fromkeys(node.inputs):
                tensor = self.values[value]
                tensor.reader = tensor.reader or node
                tensor.readers += 1
            for value in node.outputs:
                self.values[value].producer = node

    def clean_up(self) -> None:
        """Remove what nothing reads, and restore XNNPACK's order."""
        changed = True
        while changed:
            self.count()
            changed = False
            for tensor in list(self.values.values()):
                if tensor.alive and not tensor.is_input and tensor.readers == 0:
                    changed |= self._remove_producer(tensor)
                    tensor.alive = False
        self._sort()
        self.count()

    def _remove_producer(self, tensor: GraphValue) -> bool:
        node = tensor.producer
        if node is None or not node.live or len(node.outputs) != 1:
            return False
        node.live = False
        for value in dict.fromkeys(node.inputs):
            source = self.values[value]
            if source.is_input:
                continue
            source.readers -= 1
            if source.readers == 0:
                self._remove_producer(source)
                source.alive = False
        return True

    def _sort(self) -> None:
        """Order nodes so that inputs come first: in passes, each keeping the order of the last."""
        ready = {t.id for t in self.values.values() if t.producer is None or t.is_input}
        unsorted, ordered = self.live_nodes(), []
        while unsorted:
            waiting = []
            for node in unsorted:
                if ready.issuperset(node.inputs):
                    ordered.append(node)
                    ready.update(node.outputs)
                else:
                    waiting.append(node)
            if len(waiting) == len(unsorted):
                ordered += waiting
                break
            unsorted = waiting
        self.nodes = ordered

    def short_circuit(self, source: int, result: int) -> bool:
        """Let all readers of ``result`` read ``source`` instead; False if that is impossible."""
        kept, dropped = self.values[source], self.values[result]
        if dropped.is_output:
            maker = kept.producer
            if kept.is_output or maker is None:
                return False
            maker.outputs = replace(maker.outputs, source, result)
            dropped.producer = maker
            kept, dropped = dropped, kept
        kept.readers -= 1
        kept.reader = None
        for node in self.live_nodes():
            reads = {kept.id, dropped.id}.intersection(node.inputs)
            if not reads:
                continue
            kept.reader = kept.reader or node
            if dropped.id in reads:
                kept.readers += kept.id not in reads
                node.inputs = replace(node.inputs, dropped.id, kept.id)
        return True


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

#: Operators whose fused activation becomes a separate node.
_CLAMPED_APART = ("Add", "Subtract", "Multiply", "Div", "GlobalAvgPooling2d")


def define_graph(xvalues: Sequence[XValue], xnodes: Sequence[XNode]) -> XGraph:
    """The graph of a delegate's operators, each with the number of its exported one."""
    graph = XGraph()
    for value in xvalues:
        constant = value.role == "constant"
        tensor = GraphValue(value.id, value.dtype, value.shape, constant, shape_known=constant)
        tensor.is_input, tensor.is_output = value.role == "input", value.role == "output"
        tensor.zero_point = value.zero_point
        graph.values[value.id] = tensor
    for number, xnode in enumerate(xnodes):
        _define(graph, number, xnode)
    return graph


def _define(graph: XGraph, number: int, xnode: XNode) -> None:
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
    elif xnode.is_pointwise:
        node.kind = "fc"
        node.parameters["flags"] = 0
    else:
        node.kind = _KINDS.get(xnode.type, xnode.type)
    graph.nodes.append(node)
    if bounds and xnode.type in _CLAMPED_APART:
        _append_unary(graph, node, "Clamp", result.dtype)
    operands = (*xnode.inputs[:2], xnode.outputs[0])
    if xnode.type == "FullyConnected" and {graph.values[v].dtype for v in operands} == {"bf16"}:
        _append_unary(graph, node, "Convert", "fp32")


def _append_unary(graph: XGraph, node: Node, operator: str, dtype: str) -> None:
    """Append a function that makes the result of a node, which then makes ``dtype``."""
    between = graph.new_tensor(dtype, graph.values[node.outputs[0]].shape)
    last = Node("unary", operator, [between.id], node.outputs, list(node.sources))
    last.parameters["bounded"] = True
    node.outputs = [between.id]
    graph.nodes.append(last)


def _packs(source: str, result: str) -> bool:
    """Whether a conversion quantises per row or per channel, which is a separate operator."""
    return result in ("qdint8", "qduint8") or (source, result) == ("qint8", "qcint8")
