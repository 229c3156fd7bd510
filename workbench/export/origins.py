"""Which layer of the model each instruction and each XNNPACK operator of a program comes from.

Each operator of a delegate keeps the debug handle of the exporter's node that it was made from.
Handles may be shared (by the parts of a decomposed operator) or lost (a pass replaced the node),
and most nodes have no operator of their own: they were folded into one.
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

#: How many steps away a layer may be borrowed from.
_REACH = 6
_TO_NHWC = [0, 2, 3, 1]

#: Part of an exporter's operator, and the types that it can become; the first match counts.
_TYPES = {
    "upsample": "StaticResizeBilinear2D", "convolution": "Conv2d DepthwiseConv2d ConvTranspose2d",
    "linear": "FullyConnected", "batch_norm": "DepthwiseConv2d", "addmm": "FullyConnected",
    "bmm": "BatchMatrixMultiply", "mm": "FullyConnected BatchMatrixMultiply",
    "quantize": "Convert", "permute": "StaticTranspose", "transpose": "StaticTranspose",
    "t_copy": "StaticTranspose", "view": "StaticReshape", "squeeze": "StaticReshape",
    "expand": "StaticReshape Copy", "hardtanh": "Clamp", "relu6": "Clamp", "prelu": "PReLU",
    "leaky_relu": "LeakyReLU", "relu": "Clamp", "clamp": "Clamp", "hardswish": "Hardswish",
    "gelu": "Gelu", "elu": "ELU", "sigmoid": "Sigmoid", "tanh": "Tanh",
    "rsqrt": "ReciprocalSquareRoot", "sqrt": "SquareRoot", "softmax": "Softmax",
    "cat": "Concatenate2 Concatenate3 Concatenate4 Concatenate5",
    "avg_pool": "AvgPooling2d GlobalAvgPooling2d", "max_pool": "MaxPooling2d",
    "mean": "GlobalAvgPooling2d", "pad": "StaticConstantPad", "slice": "StaticSlice",
    "add": "Add", "sub": "Subtract", "mul": "Multiply", "div": "Div", "maximum": "Maximum",
    "minimum": "Minimum", "pow": "Square", "_to_copy": "Convert StaticTranspose Copy",
    "_to_dim_order_copy": "Convert StaticTranspose Copy", "clone": "Copy StaticTranspose",
    "abs": "Abs", "neg": "Negate", "exp": "Exp", "log": "Log", "floor": "Floor",
    "ceil": "Ceiling", "sin": "Sin", "cos": "Cos",
}  # fmt: skip


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
    """The operators of a delegate with ``origins``, ``absorbed`` and ``borrows``."""
    return _Links(xnodes, edges).linked(origins) if edges else xnodes


class _Links:
    """Operators of a delegate, by index, and the exporter's nodes, by name."""

    def __init__(self, xnodes: tuple[XNode, ...], edges: list[EdgeNode]):
        self.xnodes, self.edges = xnodes, {edge.name: edge for edge in edges}
        self.users: dict[str, list[str]] = defaultdict(list)
        for edge in edges:
            for argument in edge.arguments:
                self.users[argument].append(edge.name)
        self.producer = {out: i for i, node in enumerate(xnodes) for out in node.outputs}
        self.readers: dict[int, list[int]] = defaultdict(list)
        for number, node in enumerate(xnodes):
            for value in node.inputs:
                self.readers[value].append(number)
        self.owner: dict[str, int] = {}
        self.origins: list[list[int]] = [[] for _ in xnodes]
        self.absorbed: list[list[int]] = [[] for _ in xnodes]
        self.link_by_handle()
        self.link_by_producer()
        self.absorb_rest()

    def before(self, number: int) -> list[int]:
        return [self.producer[v] for v in self.xnodes[number].inputs if v in self.producer]

    def after(self, number: int) -> list[int]:
        return [reader for v in self.xnodes[number].outputs for reader in self.readers[v]]

    def arguments(self, name: str) -> Iterable[str]:
        return self.edges[name].arguments

    def claim(self, number: int, edge: EdgeNode) -> None:
        self.owner.setdefault(edge.name, number)
        self.origins[number].append(edge.number)

    def link_by_handle(self) -> None:
        by_handle: dict[int | None, list[EdgeNode]] = defaultdict(list)
        for edge in self.edges.values():
            if edge.handle not in (None, NO_HANDLE):
                by_handle[edge.handle].append(edge)
        for number, node in enumerate(self.xnodes):
            free = (e for e in by_handle.get(node.handle, ()) if e.name not in self.owner)
            if match := next((e for e in free if node.type in e.types), None):
                self.claim(number, match)
        for number, node in enumerate(self.xnodes):
            known = by_handle.get(node.handle, [])
            if known and not self.origins[number]:
                self.claim(number, next((e for e in known if e.name not in self.owner), known[0]))

    def link_by_producer(self) -> None:
        """Link operators that lost their handle to free nodes of their type and their input."""
        for number, node in enumerate(self.xnodes):
            if self.origins[number] or node.type in ("StaticTranspose", "Convert"):
                continue
            source = _nearest(number, self.before, lambda i: bool(self.origins[i]))
            edges = (e for e in self.edges.values() if e.name not in self.owner)
            alike = (edge for edge in edges if node.type in edge.types)
            nearest = (e for e in alike if self.nearest_owner(e, self.arguments) == source)
            if match := next(nearest, None):
                self.claim(number, match)

    def absorb_rest(self) -> None:
        """Give each node without an operator to the one before it; a dequantisation to the next."""
        for edge in [edge for edge in self.edges.values() if edge.name not in self.owner]:
            ways = [self.arguments, self.users.__getitem__]
            if "dequantize" in edge.operator:
                ways.reverse()
            owners = (self.nearest_owner(edge, way) for way in ways)
            owner = next((owner for owner in owners if owner is not None), None)
            if owner is not None:
                self.absorbed[owner].append(edge.number)

    def nearest_owner(self, edge: EdgeNode, step: Callable[[str], Iterable[str]]) -> int | None:
        """The operator of the first owned node in one direction, depth first."""
        seen, stack = {edge.name}, list(step(edge.name))[::-1]
        while stack:
            name = stack.pop()
            if name in seen or name not in self.edges:
                continue
            seen.add(name)
            if name in self.owner:
                return self.owner[name]
            stack += list(step(name))[::-1]
        return None

    def linked(self, origins: list[Origin]) -> tuple[XNode, ...]:
        """The operators; those without a layer borrow their producer's, or the reader's if NHWC."""
        has_layer = [bool(own) and bool(origins[own[0]].module_class) for own in self.origins]

        def lends(number: int) -> bool:
            return self.xnodes[number].role == "compute" and has_layer[number]

        linked = []
        for number, node in enumerate(self.xnodes):
            borrows = None
            if not has_layer[number]:
                to_nhwc = node.role == "layout" and node.attributes.get("perm") == _TO_NHWC
                ways = [self.after, self.before] if to_nhwc else [self.before, self.after]
                found = (_nearest(number, way, lends, _REACH) for way in ways)
                borrows = next((i for i in found if i is not None), None)
            own, absorbed = tuple(self.origins[number]), tuple(self.absorbed[number])
            linked.append(replace(node, origins=own, absorbed=absorbed, borrows=borrows))
        return tuple(linked)


def _nearest(
    start: int, step: Callable[[int], list[int]], fits: Callable[[int], bool], reach: int = 2**31
) -> int | None:
    """The nearest fitting operator in one direction, breadth first, at most ``reach`` steps."""
    seen, front = {start}, [start]
    while front and reach > 0:
        front = [i for i in dict.fromkeys(n for f in front for n in step(f)) if i not in seen]
        seen.update(front)
        if found := [i for i in front if fits(i)]:
            return found[0]
        reach -= 1
    return None


_ROOT = re.compile(r"^(L\['self'\]|_export_root)\.?")
#: Wrappers of a graph that is exported a second time, as for quantisation; they are no layers.
_WRAPPERS = ("_non_strict_export", "GraphModule")
_REPOSITORY = f"{Path(__file__).parents[2]}/"


def add_origins(method: Method, program: ExportedProgram, handles: Mapping[int, Any]) -> Method:
    """The method with the layer of every instruction, and of every operator of its delegates.

    ``program`` is the graph that it was emitted from; ``handles`` are the debug handles that the
    nodes had before, by the number of the instruction.
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
    instructions = tuple(
        replace(call, origin=found[0].number if found else None)
        if call.kind == "kernel"
        else replace(call, xnodes=link_xnodes(call.xnodes, found, origins))
        for call, found in zip(method.instructions, edges, strict=True)
    )
    inner = (_delegate_calls(node, graph) for node in _calls(graph) if _name(node) == _DELEGATE)
    modules: dict[str, str] = {}
    for node in chain(_calls(graph), chain.from_iterable(inner)):
        modules |= module_classes(_module_stack(node))
    return replace(method, instructions=instructions, origins=tuple(origins), modules=modules)


def share_layers(origins: list[Origin], edges: Iterable[EdgeNode]) -> None:
    """Give nodes without a layer that of the node whose debug handle they share; in place.

    Quantisation has the handle of the operator whose result it changes, in any delegate.
    """
    alike = defaultdict(list)
    for edge in edges:
        if edge.handle not in (None, NO_HANDLE):
            alike[edge.handle].append(edge.number)
    for numbers in alike.values():
        owner = next((origins[n] for n in numbers if origins[n].module_class), None)
        for number in numbers:
            own = origins[number]
            if owner and not own.module_class:
                origins[number] = replace(own, module=owner.module, module_class=owner.module_class)


def module_classes(stack: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The class names of the modules around a node by their paths, the model itself first."""
    return {
        _ROOT.sub("", path): full.rpartition(".")[2]
        for path, full in stack
        if not full.endswith(_WRAPPERS) and "_non_strict_export" not in full
    }


def make_origin(node: str, operator: str, modules: dict[str, str], trace: str | None) -> Origin:
    """The origin of a node in ``modules``, with the user's line of its stack trace."""
    path, kind = next(reversed(modules.items()), ("", ""))
    line = user_line_of_stack(trace).removeprefix(_REPOSITORY)
    return Origin(node, operator, path, kind, line)


_DELEGATE = "executorch_call_delegate"


def _calls_of(instruction: Instruction, nodes: list[Node], graph: GraphModule) -> list[Node]:
    """The nodes that an instruction runs, of those with its number, which may be stale."""
    name = instruction.name if instruction.kind == "kernel" else instruction.kind
    node = next((node for node in nodes if _runtime_name(node) == name), None)
    if node is None:
        return []
    return [node] if instruction.kind == "kernel" else list(_delegate_calls(node, graph))


def _calls(graph: GraphModule) -> Iterator[Node]:
    return (node for node in graph.graph.nodes if node.op == "call_function")


def _delegate_calls(node: Node, graph: GraphModule) -> Iterator[Node]:
    delegate: Any = node.args[0]
    return _calls(getattr(graph, delegate.target).original_module.graph_module)


def _runtime_name(node: Node) -> str:
    """What the emitted program calls a node: ``aten::mean.out``, or ``delegate``."""
    import torch

    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload):
        target = getattr(target, "_op", target)
    if isinstance(target, torch._ops.OpOverload):
        overload = target._schema.overload_name
        return target._schema.name + (f".{overload}" if overload else "")
    return "delegate" if _name(node) == _DELEGATE else _name(node)


def _name(node: Node) -> str:
    return getattr(node.target, "__name__", str(node.target))


def _edge_node(number: int, node: Node) -> EdgeNode:
    arguments = tuple(argument.name for argument in node.all_input_nodes)
    return EdgeNode(number, node.name, _name(node), node.meta.get("debug_handle"), arguments)


def _origin(node: Node) -> Origin:
    modules = module_classes(_module_stack(node))
    return make_origin(node.name, _name(node), modules, node.meta.get("stack_trace"))


def _module_stack(node: Node) -> Iterator[tuple[str, str]]:
    for path, kind, *_ in (node.meta.get("nn_module_stack") or {}).values():
        yield path, kind if isinstance(kind, str) else kind.__qualname__
