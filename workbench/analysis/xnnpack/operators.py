"""The operators that a delegate runs, predicted from the export, and their logged names."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from workbench.analysis.xnnpack.graph import Graph, Node, define_graph
from workbench.analysis.xnnpack.rewrites import compute_in_single, kind_of, optimize
from workbench.records.layers import XNode, XValue

_NAMES = {
    "argmaxpool": r"Arg ?Max Pooling \(", "avgpool": r"Average Pooling \(",
    "bmm": r"Batch Matrix Multiply \(", "concat": r"(Copy|Concatenate) \(",
    "conv": r"Convolution \(N", "copy": r"Copy \(", "deconv": r"Deconvolution \(",
    "dwconv": r"Convolution \(N", "fc": r"(Dynamic )?Fully Connected \(",
    "lut": r"Invalid Unary Op|Unary Elementwise|LUT", "maxpool": r"Max Pooling \(",
    "mean": r"(Mean|Global Average Pooling) \(", "meansq": r"Mean Squared \(",
    "pad": r"Constant Pad \(", "reshape": r"(Static Reshape|Copy) \(",
    "resize": r"Resize Bilinear \(", "slice": r"(Static )?Slice \(", "softmax": r"Softmax \(",
    "transpose": r"Transpose \(",
}  # fmt: skip
_TYPES = {"fp32": "F32", "fp16": "F16", "bf16": "BF16", "qint8": "QS8", "quint8": "QU8"}
_PRODUCTS = ("conv", "dwconv", "deconv", "fc", "bmm")
_SIZED = ("transpose", "pad", "copy", "concat", "slice")
_LIGHT = ("Clamp", "Convert")
_LIGHT_KINDS = ("transpose", "reshape", "copy", "convert", "pad", "concat")


@dataclass(frozen=True)
class Operator:
    """One operator that is expected to run.

    Its name begins with ``pattern`` and should contain ``types``; ``sources`` number the exported
    operators whose work it does. A conversion has no sources, but ``serves`` some. A ``light``
    operator is of a kind that comes and goes between versions and CPUs.
    """

    pattern: str
    types: str
    sources: tuple[int, ...]
    serves: tuple[int, ...]
    light: bool

    def fits(self, name: str) -> bool:
        """Whether it may have this name in a log, types aside."""
        return re.match(self.pattern, name) is not None


def predict_operators(
    xvalues: Sequence[XValue], xnodes: Sequence[XNode], lacking: frozenset[str] = frozenset()
) -> list[Operator]:
    """The operators of an exported delegate, in order; ``lacking`` as for `compute_in_single`."""
    graph = define_graph(xvalues, xnodes)
    optimize(graph)
    compute_in_single(graph, "fp16", lacking)
    compute_in_single(graph, "bf16", frozenset())
    return [_operator(graph, node) for node in graph.live_nodes()]


def half_kinds(xvalues: Sequence[XValue], xnodes: Sequence[XNode]) -> list[str]:
    """The kinds of operators that may lack fp16 kernels; none without fp16 tensors."""
    if all(value.dtype != "fp16" for value in xvalues):
        return []
    return sorted({kind_of(node) for node in define_graph(xvalues, xnodes).nodes})


def _operator(graph: Graph, node: Node) -> Operator:
    pattern = _NAMES.get(node.kind, re.escape(node.kind))
    return Operator(
        pattern=re.escape(node.operator) + r" \(" if node.operator else pattern,
        types=_expected_types(graph, node),
        sources=tuple(node.sources),
        serves=tuple(node.serves),
        light=node.kind in _LIGHT_KINDS or node.operator in _LIGHT,
    )


def _expected_types(graph: Graph, node: Node) -> str:
    """The types in the name: a type, ``Q`` for quantised ones, or a width."""
    types = [graph.values[value].dtype for value in node.inputs]
    base = _TYPES.get(types[0], "")
    if node.kind in _PRODUCTS:
        by_weights = node.kind in ("fc", "bmm") and len(types) > 1 and types[1].startswith("q")
        return "Q" if types[0].startswith("q") or by_weights else base
    if node.kind in ("softmax", "avgpool"):
        return base
    if node.kind in _SIZED:
        width = re.search(r"\d+$", graph.values[node.outputs[0]].dtype)
        return f"X{max(8, int(width[0])) if width else 32}"
    return ""
