"""A part of a graph as a module, with the inputs that it has in the whole."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Interpreter, Node

from workbench.upstream import tree_map_tensors


def record_values(
    module: GraphModule, inputs: Sequence[Any], wanted: Collection[Node] | None = None
) -> dict[Node, Any]:
    """Run a graph, and keep the values of all its nodes, or of those wanted; it ends with these."""
    values: dict[Node, Any] = {}
    pending = {*module.graph.nodes} if wanted is None else {*wanted}

    class Recorder(Interpreter):
        def run_node(self, n: Node) -> Any:
            if not pending:
                return None
            result = super().run_node(n)
            if wanted is None or n in wanted:
                pending.discard(n)
                values[n] = tree_map_tensors(torch.clone, result)  # may be written into
            return result

    with torch.no_grad():
        Recorder(module).run(*inputs, enable_io_processing=False)
    return values


def list_sources(nodes: Iterable[Node]) -> list[Node]:
    """What some nodes read that is none of them."""
    inside = {*nodes}
    sources = (source for node in inside for source in node.all_input_nodes)
    outside = {source for source in sources if source not in inside}
    return sorted(outside, key=lambda node: node.name)


def cut_out(
    module: GraphModule,
    nodes: Sequence[Node],
    values: Mapping[Node, Any],
    results: Sequence[Node],
) -> tuple[GraphModule, list[Any]]:
    """Some nodes as a module of its own, and its inputs from the values of the whole graph.

    It returns the values of ``results``; weights stay attributes.
    """
    graph, copies, inputs = Graph(), dict[Node, Node](), list[Any]()
    for source in list_sources(nodes):
        if source.op == "get_attr":
            copies[source] = graph.get_attr(str(source.target))
        else:
            copies[source] = graph.placeholder(source.name)
            # A program takes no other strides.
            inputs.append(tree_map_tensors(torch.Tensor.contiguous, values[source]))
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    outputs = tuple(copies[node] for node in results)
    graph.output(outputs[0] if len(outputs) == 1 else outputs)
    return GraphModule(module, graph), inputs
