"""Which nodes of the exporter's graph an operator of an XNNPACK delegate stands for.

The exporter numbers its nodes with debug handles, and each operator of the delegate bears the
handle of the node that it was made from. But a handle may be shared (a decomposed operator hands
its own to the parts), lost (a pass replaced the node), and most nodes have no operator of their
own: they were folded into one.

Which layer each instruction of an emitted program comes from, by the exporter's graphs.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.export.pte import NO_HANDLE
from workbench.models.sources import user_line_of_stack
from workbench.records.layers import Instruction, Method, Origin, XNode

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import GraphModule, Node


#: Nodes to look at around one that has no layer of its own.
_REACH = 6

_TO_NHWC = [0, 2, 3, 1]

#: Part of an exporter's operator, and the types that it can become; the first match counts.
_TYPES = {
    "upsample": "StaticResizeBilinear2D",
    "convolution": "Conv2d DepthwiseConv2d ConvTranspose2d",
    "linear": "FullyConnected",
    "batch_norm": "DepthwiseConv2d",
    "addmm": "FullyConnected",
    "bmm": "BatchMatrixMultiply",
    "mm": "FullyConnected BatchMatrixMultiply",
    "quantize": "Convert",
    "permute": "StaticTranspose",
    "transpose": "StaticTranspose",
    "t_copy": "StaticTranspose",
    "view": "StaticReshape",
    "squeeze": "StaticReshape",
    "expand": "StaticReshape Copy",
    "hardtanh": "Clamp",
    "relu6": "Clamp",
    "prelu": "PReLU",
    "leaky_relu": "LeakyReLU",
    "relu": "Clamp",
    "clamp": "Clamp",
    "hardswish": "Hardswish",
    "gelu": "Gelu",
    "elu": "ELU",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
    "rsqrt": "ReciprocalSquareRoot",
    "sqrt": "SquareRoot",
    "softmax": "Softmax",
    "cat": "Concatenate2 Concatenate3 Concatenate4 Concatenate5",
    "avg_pool": "AvgPooling2d GlobalAvgPooling2d",
    "max_pool": "MaxPooling2d",
    "mean": "GlobalAvgPooling2d",
    "pad": "StaticConstantPad",
    "slice": "StaticSlice",
    "add": "Add",
    "sub": "Subtract",
    "mul": "Multiply",
    "div": "Div",
    "maximum": "Maximum",
    "minimum": "Minimum",
    "pow": "Square",
    "_to_copy": "Convert StaticTranspose Copy",
    "_to_dim_order_copy": "Convert StaticTranspose Copy",
    "clone": "Copy StaticTranspose",
    "abs": "Abs",
    "neg": "Negate",
    "exp": "Exp",
    "log": "Log",
    "floor": "Floor",
    "ceil": "Ceiling",
    "sin": "Sin",
    "cos": "Cos",
}


@dataclass(frozen=True)
class EdgeNode:
    """A call in the exporter's graph; ``number`` is that of its origin."""

    number: int
    name: str
    operator: str
    handle: int | None
    arguments: tuple[str, ...]

    @property
    def types(self) -> frozenset[str]:
        """The types of delegate operators that it can become."""
        base = self.operator.rpartition("::")[2].partition(".")[2] or self.operator
        found = next((types for part, types in _TYPES.items() if part in base), "")
        return frozenset(found.split())


def link_xnodes(
    xnodes: tuple[XNode, ...], edges: list[EdgeNode], origins: list[Origin]
) -> tuple[XNode, ...]:
    """The operators of a delegate with their roles, origins, and whose layer they borrow."""
    if not edges:
        return xnodes
    links = _Links(xnodes, edges)
    links.link_by_handle()
    links.link_by_producer()
    links.absorb_the_rest()
    return _lend_layers(links.linked(), origins)


class _Links:
    """Delegate operators on one side, the exporter's nodes on the other."""

    def __init__(self, xnodes: tuple[XNode, ...], edges: list[EdgeNode]):
        self.xnodes, self.edges = xnodes, edges
        self.by_name = {edge.name: edge for edge in edges}
        self.users: dict[str, list[str]] = defaultdict(list)
        for edge in edges:
            for argument in edge.arguments:
                self.users[argument].append(edge.name)
        self.producer = {out: i for i, node in enumerate(xnodes) for out in node.outputs}
        self.owner: dict[str, int] = {}
        self.origins: list[list[int]] = [[] for _ in xnodes]
        self.absorbed: list[list[int]] = [[] for _ in xnodes]

    def claim(self, number: int, edge: EdgeNode) -> None:
        self.owner.setdefault(edge.name, number)
        self.origins[number].append(edge.number)

    def link_by_handle(self) -> None:
        by_handle: dict[int, list[EdgeNode]] = defaultdict(list)
        for edge in self.edges:
            if edge.handle is not None:
                by_handle[edge.handle].append(edge)
        by_handle.pop(NO_HANDLE, None)
        for number, node in enumerate(self.xnodes):
            free = (e for e in by_handle.get(node.handle, ()) if e.name not in self.owner)
            if edge := next((e for e in free if node.type in e.types), None):
                self.claim(number, edge)
        for number, node in enumerate(self.xnodes):
            known = by_handle.get(node.handle, [])
            if known and not self.origins[number]:
                free = (edge for edge in known if edge.name not in self.owner)
                self.claim(number, next(free, known[0]))

    def link_by_producer(self) -> None:
        """Link operators that lost their handle to free nodes of their type and their input."""
        for number, node in enumerate(self.xnodes):
            if self.origins[number] or node.type in ("StaticTranspose", "Convert"):
                continue
            source = self.linked_producer(number)
            for edge in self.edges:
                free = edge.name not in self.owner and node.type in edge.types
                if free and self.nearest_owner(edge, _arguments) == source:
                    self.claim(number, edge)
                    break

    def linked_producer(self, number: int) -> int | None:
        """The nearest operator before this one that is linked."""
        seen, front = {number}, [number]
        while front:
            inputs = (value for i in front for value in self.xnodes[i].inputs)
            front = list(dict.fromkeys(self.producer[v] for v in inputs if v in self.producer))
            front = [i for i in front if i not in seen]
            seen.update(front)
            if found := [i for i in front if self.origins[i]]:
                return found[0]
        return None

    def absorb_the_rest(self) -> None:
        """Give each node without an operator to the one before it; a dequantisation to the next."""
        free = [edge for edge in self.edges if edge.name not in self.owner]
        for edge in free:
            ways = [_arguments, self.readers]
            if "dequantize" in edge.operator:
                ways.reverse()
            owners = (self.nearest_owner(edge, way) for way in ways)
            owner = next((owner for owner in owners if owner is not None), None)
            if owner is not None:
                self.absorbed[owner].append(edge.number)

    def readers(self, edge: EdgeNode) -> Iterable[str]:
        return self.users[edge.name]

    def nearest_owner(
        self, edge: EdgeNode, step: Callable[[EdgeNode], Iterable[str]]
    ) -> int | None:
        """The operator of the first owned node that is met going one way, depth first."""
        seen, stack = {edge.name}, list(step(edge))[::-1]
        while stack:
            name = stack.pop()
            if name in seen or name not in self.by_name:
                continue
            seen.add(name)
            if name in self.owner:
                return self.owner[name]
            stack += list(step(self.by_name[name]))[::-1]
        return None

    def linked(self) -> list[XNode]:
        return [
            replace(node, origins=tuple(origins), absorbed=tuple(absorbed))
            for node, origins, absorbed in zip(
                self.xnodes, self.origins, self.absorbed, strict=True
            )
        ]


def _arguments(edge: EdgeNode) -> Iterable[str]:
    return edge.arguments


def _lend_layers(xnodes: list[XNode], origins: list[Origin]) -> tuple[XNode, ...]:
    """Let operators without a layer of their own borrow it from the nearest one that has one.

    A change of layout to NHWC is made for what comes after it; everything else belongs to what
    comes before it, if there is anything.
    """
    producer = {out: i for i, node in enumerate(xnodes) for out in node.outputs}
    readers: dict[int, list[int]] = defaultdict(list)
    for number, node in enumerate(xnodes):
        for value in node.inputs:
            readers[value].append(number)

    def before(number: int) -> list[int]:
        return [producer[v] for v in xnodes[number].inputs if v in producer]

    def after(number: int) -> list[int]:
        return [reader for v in xnodes[number].outputs for reader in readers[v]]

    def owns(number: int) -> bool:
        node = xnodes[number]
        return node.role == "compute" and _has_layer(node, origins)

    lent = []
    for number, node in enumerate(xnodes):
        borrows = None
        if not _has_layer(node, origins):
            to_nhwc = node.role == "layout" and node.attributes.get("perm") == _TO_NHWC
            ways = [after, before] if to_nhwc else [before, after]
            found = (_nearest(number, way, owns) for way in ways)
            borrows = next((i for i in found if i is not None), None)
        lent.append(replace(node, borrows=borrows))
    return tuple(lent)


def _has_layer(node: XNode, origins: list[Origin]) -> bool:
    return bool(node.origins) and bool(origins[node.origins[0]].module_class)


def _nearest(
    number: int, step: Callable[[int], list[int]], fits: Callable[[int], bool]
) -> int | None:
    seen, front = {number}, [number]
    for _ in range(_REACH):
        front = [i for i in dict.fromkeys(n for f in front for n in step(f)) if i not in seen]
        seen.update(front)
        if found := [i for i in front if fits(i)]:
            return found[0]
    return None


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
