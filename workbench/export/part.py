"""A part of a program as a program, with the inputs that it has in the whole."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Interpreter, Node

from workbench.errors import UsageError
from workbench.upstream import tree_leaves, tree_map_tensors

if TYPE_CHECKING:
    from workbench.models.loader import LoadedModel


def record_values(
    module: GraphModule, inputs: Sequence[Any], wanted: Collection[Node] | None = None
) -> dict[Node, Any]:
    """Run a graph, and keep the values of all its nodes, or of those that are wanted."""
    values: dict[Node, Any] = {}

    class Recorder(Interpreter):
        def run_node(self, n: Node) -> Any:
            result = super().run_node(n)
            if wanted is None or n in wanted:
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


def extract(
    model: LoadedModel, exported: ExportedProgram, names: Collection[str], margin: int = 1
) -> LoadedModel:
    """The part of a traced model around some operators, as a model with its real inputs.

    Parameters
    ----------
    model
        The model, whose example inputs are run once.
    exported
        Its trace, in the dtype that it has there.
    names
        Operators of the trace.
    margin
        So many operators before and after them are taken along: what is delegated with them.

    Raises
    ------
    UsageError
        The trace has no such operators.
    """
    module = exported.module()
    nodes = [node for node in module.graph.nodes if node.op == "call_function"]
    chosen = {node for node in nodes if node.name in {*names}}
    if not chosen:
        raise UsageError("these operators are not in the model", where=", ".join(sorted(names)[:3]))
    for _ in range(margin):
        around = {other for node in chosen for other in (*node.all_input_nodes, *node.users)}
        chosen |= {node for node in around if node.op == "call_function"}
    # What a tuple has is read by calls that belong to it.
    chosen |= {user for node in chosen for user in node.users if user.name.startswith("getitem")}
    part = [node for node in nodes if node in chosen]
    results = [
        node for node in part
        if isinstance(node.meta.get("val"), torch.Tensor)
        and (not node.users or any(user not in chosen for user in node.users))
    ]  # fmt: skip
    inputs = tree_leaves(exported.example_inputs)
    values = record_values(module, inputs, list_sources(part))
    graph, given = cut_out(module, part, values, results)
    return replace(
        model,
        name=f"a part of {model.name}",
        module=graph,
        example_inputs=tuple(given),
        kwargs={},
        dynamic_shapes=None,
        input_source=f"what these operators read in {model.name}",
        calibration=(),
        traced_inputs=None,
        metadata={},
    )
