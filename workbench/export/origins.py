"""Which layer each instruction of an emitted program comes from, by the exporter's graphs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.export.xnnpack_blob import NO_HANDLE
from workbench.export.xnode_links import EdgeNode, link_xnodes
from workbench.models.blame import user_line_of_stack
from workbench.records import Instruction, Method, Origin

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import GraphModule, Node

_ROOT = re.compile(r"^(L\['self'\]|_export_root)\.?")
#: What wraps a graph that is exported a second time, as quantisation does; it is no layer.
_WRAPPERS = ("_non_strict_export", "GraphModule")
_REPOSITORY = f"{Path(__file__).parents[2]}/"


def add_origins(method: Method, program: ExportedProgram, handles: Mapping[int, Any]) -> Method:
    """The method with the layer of every instruction, and of every node of its delegates.

    Parameters
    ----------
    method
        As read from the emitted program.
    program
        The graph that it was emitted from; its nodes bear the numbers of their instructions.
    handles
        The debug handles that the nodes had before, by the number of the instruction.
    """
    graph = program.graph_module
    nodes = defaultdict(list)
    for node in _calls(graph):
        nodes[node.meta.get("debug_handle")].append(node)
    origins: list[Origin] = []
    edges: list[list[EdgeNode]] = []
    for number, instruction in enumerate(method.instructions):
        calls = _calls_of(instruction, nodes[number], graph)
        found = [_edge_node(place, call) for place, call in enumerate(calls, len(origins))]
        if instruction.kind == "kernel":
            found = [replace(edge, handle=handles.get(number)) for edge in found]
        edges.append(found)
        origins += map(_origin, calls)
    share_layers(origins, chain.from_iterable(edges))
    return replace(
        method,
        instructions=tuple(
            _add_to_instruction(instruction, found, origins)
            for instruction, found in zip(method.instructions, edges, strict=True)
        ),
        origins=tuple(origins),
        modules=_modules(graph),
    )


def share_layers(origins: list[Origin], edges: Iterable[EdgeNode]) -> None:
    """Give nodes without a layer that of the node whose debug handle they share; in place.

    Quantisation is put around an operator after it was traced, and bears the handle of the one
    whose result it changes, be that in another delegate or none.
    """
    alike = defaultdict(list)
    for edge in edges:
        if edge.handle not in (None, NO_HANDLE):
            alike[edge.handle].append(edge.number)
    for numbers in alike.values():
        owner = next((origins[n] for n in numbers if origins[n].module_class), None)
        for number in numbers:
            if owner and not origins[number].module_class:
                origins[number] = replace(
                    origins[number], module=owner.module, module_class=owner.module_class
                )


def _calls_of(instruction: Instruction, nodes: list[Node], graph: GraphModule) -> list[Node]:
    """The nodes that an instruction runs; of ``nodes``, those not emitted bear stale numbers."""
    name = instruction.name if instruction.kind == "kernel" else instruction.kind
    node = next((node for node in nodes if _runtime_name(node) == name), None)
    if node is None:
        return []
    if instruction.kind == "kernel":
        return [node]
    return list(_calls(getattr(graph, node.args[0].target).original_module.graph_module))


def _add_to_instruction(
    instruction: Instruction, edges: list[EdgeNode], origins: list[Origin]
) -> Instruction:
    if instruction.kind == "kernel":
        return replace(instruction, origin=edges[0].number if edges else None)
    return replace(instruction, xnodes=link_xnodes(instruction.xnodes, edges, origins))


def _calls(graph: GraphModule) -> Iterator[Node]:
    return (node for node in graph.graph.nodes if node.op == "call_function")


def _runtime_name(node: Node) -> str:
    """What the emitted program calls a node: ``aten::mean.out``, or ``delegate``."""
    import torch

    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload):
        target = getattr(target, "_op", target)
    if isinstance(target, torch._ops.OpOverload):
        overload = target._schema.overload_name
        return target._schema.name + (f".{overload}" if overload else "")
    return "delegate" if _name(node) == "executorch_call_delegate" else _name(node)


def _name(node: Node) -> str:
    return getattr(node.target, "__name__", str(node.target))


def _edge_node(number: int, node: Node) -> EdgeNode:
    return EdgeNode(
        number=number,
        name=node.name,
        operator=_name(node),
        handle=node.meta.get("debug_handle"),
        arguments=tuple(argument.name for argument in node.all_input_nodes),
    )


def _origin(node: Node) -> Origin:
    line = user_line_of_stack(node.meta.get("stack_trace"))
    return make_origin(node.name, _name(node), _module_stack(node), line)[0]


def make_origin(
    node: str, operator: str, stack: Iterable[tuple[str, str]], line: str
) -> tuple[Origin, dict[str, str]]:
    """The origin of a node, and the classes of the modules around it by their paths.

    ``stack`` has their paths as the exporter spells them, and full names of classes.
    """
    modules = {
        _ROOT.sub("", path): full.rpartition(".")[2]
        for path, full in stack
        if not full.endswith(_WRAPPERS) and "_non_strict_export" not in full
    }
    path, kind = next(reversed(modules.items()), ("", ""))
    return Origin(node, operator, path, kind, line.removeprefix(_REPOSITORY)), modules


def _modules(graph: GraphModule) -> dict[str, str]:
    """The class of every module that some operator lies in, by its path."""
    graphs = [graph]
    for node in _calls(graph):
        if _name(node) == "executorch_call_delegate":
            graphs.append(getattr(graph, node.args[0].target).original_module.graph_module)
    stacks = (_module_stack(node) for g in graphs for node in _calls(g))
    return {
        path: kind for stack in stacks for path, kind in make_origin("", "", stack, "")[1].items()
    }


def _module_stack(node: Node) -> list[tuple[str, str]]:
    """Path and class of the modules around a node, the model itself first."""
    stack = (node.meta.get("nn_module_stack") or {}).values()
    return [
        (path, kind if isinstance(kind, str) else kind.__qualname__) for path, kind, *_ in stack
    ]
