"""What XNNPACK does with half precision on a CPU that lacks kernels for it: compute in fp32."""

from __future__ import annotations

from workbench.analyze.xnnpack.graph import Graph, Node

#: Every kind of node, in a set of kinds without kernels.
EVERYTHING = "*"

#: These move data, whatever its type is.
_MOVING = ("concat", "copy", "pad", "reshape", "slice", "transpose")


def kind_of(node: Node) -> str:
    """What a CPU has half-precision kernels for, or not: ``resize``, ``unary:Exp``, ..."""
    return f"{node.kind}:{node.operator}" if node.operator else node.kind


def compute_in_single(graph: Graph, dtype: str, lacking: frozenset[str]) -> None:
    """Let nodes without kernels of a 16-bit type compute in fp32, with conversions around them.

    Parameters
    ----------
    graph
        The rewritten graph; changed in place.
    dtype
        ``fp16`` or ``bf16``, which no node but matrix products computes in.
    lacking
        Kinds of nodes (`kind_of`) without fp16 kernels.
    """
    graph.count()
    widened: dict[int, int] = {}
    changes = [
        _is_half(graph, node, dtype)
        and (
            _elide_conversion(graph, node, dtype)
            if _converts_alike(graph, node, dtype)
            else _widen(graph, node, dtype, lacking, widened)
        )
        for node in graph.live_nodes()
    ]
    if any(changes):
        graph.clean_up()


def _is_half(graph: Graph, node: Node, dtype: str) -> bool:
    tensors = (graph.values[value] for value in (*node.inputs, *node.outputs))
    return node.live and any(tensor.dtype == dtype or tensor.was_half for tensor in tensors)


def _converts_alike(graph: Graph, node: Node, dtype: str) -> bool:
    """Whether a conversion no longer converts, since both sides have become the same type."""
    types = {graph.values[value].dtype for value in (node.inputs[0], node.outputs[0])}
    return node.is_unary("Convert") and len(types) == 1 and types <= {dtype, "fp32"}


def _elide_conversion(graph: Graph, node: Node, dtype: str) -> bool:
    source, result = graph.values[node.inputs[0]], graph.values[node.outputs[0]]
    if not result.is_output:
        kept, dropped = source, result
    elif not source.external and source.producer is not None:
        kept, dropped = result, source
        source.producer.outputs = [
            result.id if value == source.id else value for value in source.producer.outputs
        ]
        result.producer = source.producer
    else:
        return False
    for reader in graph.nodes:
        reader.inputs = [kept.id if value == dropped.id else value for value in reader.inputs]
    node.live = False
    return True


def _widen(
    graph: Graph, node: Node, dtype: str, lacking: frozenset[str], widened: dict[int, int]
) -> bool:
    inputs = [graph.values[value] for value in node.inputs]
    outputs = [graph.values[value] for value in node.outputs]
    if node.is_unary("Convert") and dtype in (inputs[0].dtype, outputs[0].dtype):
        return False
    lacks = dtype == "bf16" or EVERYTHING in lacking or kind_of(node) in lacking
    follows = any(tensor.dtype == "fp32" and tensor.was_half for tensor in inputs)
    if not follows and (node.kind in _MOVING or not lacks):
        return False
    changed = False
    for place, tensor in enumerate(outputs):
        if tensor.dtype != dtype:
            continue
        changed = True
        if not tensor.external:
            tensor.dtype, tensor.was_half = "fp32", True
            continue
        wide = graph.new_tensor("fp32", tensor.shape)
        wide.was_half = True
        node.outputs[place] = wide.id
        for reader in graph.nodes:
            reader.inputs = [wide.id if value == tensor.id else value for value in reader.inputs]
        _append_conversion(graph, wide.id, tensor.id, node)
    for place, tensor in enumerate(inputs):
        if tensor.dtype != dtype:
            continue
        changed = True
        if tensor.id not in widened:
            wide = graph.new_tensor("fp32", tensor.shape)
            wide.constant = tensor.constant
            widened[tensor.id] = wide.id
            if not tensor.constant:
                _append_conversion(graph, tensor.id, wide.id, node)
        node.inputs[place] = widened[tensor.id]
    return changed


def _append_conversion(graph: Graph, source: int, result: int, node: Node) -> None:
    serves = list(node.sources)
    graph.nodes.append(Node("unary", "Convert", [source], [result], [], serves=serves))
