"""Which layer each instruction of an emitted program comes from, by the exporter's graphs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

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


def add_origins(method: Method, program: ExportedProgram) -> Method:
    """The method with the layer of every instruction, and of every node of its delegates.

    Parameters
    ----------
    method
        As read from the emitted program.
    program
        The graph that it was emitted from; its nodes bear the numbers of their instructions.
    """
    graph = program.graph_module
    nodes = defaultdict(list)
    for node in _calls(graph):
        nodes[node.meta.get("debug_handle")].append(node)
    origins: list[Origin] = []
    instructions = tuple(
        _add_to_instruction(instruction, nodes[number], graph, origins)
        for number, instruction in enumerate(method.instructions)
    )
    return replace(
        method,
        instructions=instructions,
        origins=tuple(origins),
        modules=_modules(graph),
    )


def _add_to_instruction(
    instruction: Instruction, nodes: list[Node], graph: GraphModule, origins: list[Origin]
) -> Instruction:
    """Add what is known of an instruction; of ``nodes``, those not emitted bear stale numbers."""
    name = instruction.name if instruction.kind == "kernel" else instruction.kind
    node = next((node for node in nodes if _runtime_name(node) == name), None)
    if node is None:
        return instruction
    if instruction.kind == "kernel":
        origins.append(_origin(node))
        return replace(instruction, origin=len(origins) - 1)
    lowered = getattr(graph, node.args[0].target)
    calls = list(_calls(lowered.original_module.graph_module))
    first = len(origins)
    origins += map(_origin, calls)
    edges = [_edge_node(number, call) for number, call in enumerate(calls, first)]
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
