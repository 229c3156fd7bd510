"""Which layer of the model each instruction and each XNNPACK operator of a program comes from.

Each operator of a delegate keeps the debug handle of the exporter's node that it was made from.
Handles may be shared (by the parts of a decomposed operator) or lost (a pass replaced the node),
and most nodes have no operator of their own: they were folded into one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from workbench.export.code_lines import Sources
from workbench.export.control_flow import list_calls, place_calls, runtime_name
from workbench.export.pte import NO_HANDLE
from workbench.export.rewriter import read_mark
from workbench.records.layer_sidecar import Instruction, Method, Origin, XNode

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
        names = next((types for part, types in _TYPES.items() if part in base), "")
        return frozenset(names.split())


def link_xnodes(
    xnodes: tuple[XNode, ...], edges: list[EdgeNode], origins: list[Origin]
) -> tuple[XNode, ...]:
    """The operators of a delegate with ``origins``, ``absorbed`` and ``borrows``."""
    linker = Linker(xnodes, edges)
    linker.claim_by_handle()
    linker.claim_by_input()
    linker.absorb()
    return linker.link(origins)


class Linker:
    """Links the operators of a delegate, by number, with the exporter's nodes, by name."""

    def __init__(self, xnodes: Sequence[XNode], edges: Sequence[EdgeNode]):
        self.xnodes, self.edges = xnodes, edges
        self.by_name = {edge.name: edge for edge in edges}
        self.arguments = {edge.name: edge.arguments for edge in edges}
        self.users: dict[str, list[str]] = defaultdict(list)
        self.by_handle: dict[int | None, list[EdgeNode]] = defaultdict(list)
        for edge in edges:
            for argument in edge.arguments:
                self.users[argument].append(edge.name)
            if edge.handle not in (None, NO_HANDLE):
                self.by_handle[edge.handle].append(edge)
        self.before, self.after = _list_neighbours(xnodes)
        #: The operator of a node; the nodes of an operator, and those that it absorbed.
        self.owner: dict[str, int] = {}
        self.own: list[list[int]] = [[] for _ in xnodes]
        self.absorbed: list[list[int]] = [[] for _ in xnodes]

    def claim(self, number: int, edge: EdgeNode) -> None:
        """Give a node to an operator."""
        self.owner.setdefault(edge.name, number)
        self.own[number].append(edge.number)

    def claim_by_handle(self) -> None:
        """Give every operator a node of its handle: one of its type first, then any."""
        for number, node in enumerate(self.xnodes):
            for edge in self.by_handle[node.handle]:
                if edge.name not in self.owner and node.type in edge.types:
                    self.claim(number, edge)
                    break
        for number, node in enumerate(self.xnodes):
            edges = self.by_handle[node.handle]
            if edges and not self.own[number]:
                free = (edge for edge in edges if edge.name not in self.owner)
                self.claim(number, next(free, edges[0]))

    def claim_by_input(self) -> None:
        """Give operators that lost their handle a free node of their type and their input."""
        for number, node in enumerate(self.xnodes):
            if self.own[number] or node.type in ("StaticTranspose", "Convert"):
                continue
            nearest = _nearest(number, self.before, lambda i: bool(self.own[i]))
            for edge in self.edges:
                alike = edge.name not in self.owner and node.type in edge.types
                if alike and self.find_owner(edge, self.arguments) == nearest:
                    self.claim(number, edge)
                    break

    def absorb(self) -> None:
        """Make free nodes a part of the operator before them; a dequantisation, of the next."""
        for edge in self.edges:
            if edge.name in self.owner:
                continue
            ways: list[Mapping[str, Sequence[str]]] = [self.arguments, self.users]
            if "dequantize" in edge.operator:
                ways.reverse()
            owners = (self.find_owner(edge, way) for way in ways)
            first = next((number for number in owners if number is not None), None)
            if first is not None:
                self.absorbed[first].append(edge.number)

    def find_owner(self, edge: EdgeNode, steps: Mapping[str, Sequence[str]]) -> int | None:
        """The operator of the first owned node in one direction, depth first."""
        seen, stack = {edge.name}, [*reversed(steps[edge.name])]
        while stack:
            name = stack.pop()
            if name in seen or name not in self.by_name:
                continue
            seen.add(name)
            if name in self.owner:
                return self.owner[name]
            stack += reversed(steps[name])
        return None

    def link(self, origins: Sequence[Origin]) -> tuple[XNode, ...]:
        """The operators with their nodes; those without a layer borrow one.

        It is that of the operator before, or of the one after a conversion to NHWC.
        """
        layered = [bool(numbers) and bool(origins[numbers[0]].module_class) for numbers in self.own]
        pairs = zip(self.xnodes, layered, strict=True)
        lends = [node.role == "compute" and has_layer for node, has_layer in pairs]
        linked = []
        for number, node in enumerate(self.xnodes):
            borrows = None
            if not layered[number]:
                to_nhwc = node.role == "layout" and node.attributes.get("perm") == _TO_NHWC
                ways = (self.after, self.before) if to_nhwc else (self.before, self.after)
                lenders = (_nearest(number, way, lends.__getitem__, _REACH) for way in ways)
                borrows = next((lender for lender in lenders if lender is not None), None)
            numbers, absorbed = tuple(self.own[number]), tuple(self.absorbed[number])
            linked.append(replace(node, origins=numbers, absorbed=absorbed, borrows=borrows))
        return tuple(linked)


def _list_neighbours(xnodes: Sequence[XNode]) -> tuple[list[list[int]], list[list[int]]]:
    """The operators before and after each one, by the values that they hand on."""
    producer = {value: number for number, node in enumerate(xnodes) for value in node.outputs}
    readers: dict[int, list[int]] = defaultdict(list)
    for number, node in enumerate(xnodes):
        for value in node.inputs:
            readers[value].append(number)
    before = [[producer[v] for v in node.inputs if v in producer] for node in xnodes]
    after = [[reader for v in node.outputs for reader in readers[v]] for node in xnodes]
    return before, after


def _nearest(
    start: int, steps: list[list[int]], fits: Callable[[int], bool], reach: int = 2**31
) -> int | None:
    """The nearest fitting operator in one direction, breadth first, at most ``reach`` steps."""
    seen, front = {start}, [start]
    while front and reach > 0:
        front = [i for i in dict.fromkeys(n for f in front for n in steps[f]) if i not in seen]
        seen.update(front)
        if fitting := [i for i in front if fits(i)]:
            return fitting[0]
        reach -= 1
    return None


_ROOT = re.compile(r"^(L\['self'\]|_export_root)\.?")
#: Wrappers of a graph that is exported a second time, as for quantisation, and what PyTorch gives
#: nodes that its passes add; they are no layers.
_WRAPPERS = ("_non_strict_export", "GraphModule", "_empty_nn_module_stack_from_metadata_hook")


def add_origins(
    method: Method,
    program: ExportedProgram,
    handles: Mapping[int, Any],
    delegates: Mapping[int, Mapping[str, Any]],
    sources: Sources,
) -> Method:
    """The method with the layer of every instruction, and of every operator of its delegates.

    ``program`` is the graph that it was emitted from; ``handles`` are the debug handles that the
    nodes had before, by the number of the instruction; ``delegates`` say which of them each backend
    logs under which name; ``sources`` collects their lines.
    """
    graph = program.graph_module
    placed = place_calls(graph, method.instructions)
    origins: list[Origin] = []
    edges: list[list[EdgeNode]] = []
    for number, instruction in enumerate(method.instructions):
        edges.append([])
        is_kernel = instruction.kind == "kernel"
        for call in _calls_of(instruction, placed.get(number)):
            handle = handles.get(number) if is_kernel else call.meta.get("debug_handle")
            arguments = tuple(argument.name for argument in call.all_input_nodes)
            edges[-1].append(EdgeNode(len(origins), call.name, _name(call), handle, arguments))
            reader = _find_reader(call)
            modules, trace = module_classes(module_stack(reader)), reader.meta.get("stack_trace")
            origin = make_origin(call.name, _name(call), modules, sources.add(trace))
            origins.append(replace(origin, traced=read_mark(call)))
    share_layers(origins, chain.from_iterable(edges))
    instructions = tuple(
        replace(call, origin=nodes[0].number if nodes else None)
        if call.kind == "kernel"
        else replace(call, xnodes=link_xnodes(call.xnodes, nodes, origins))
        for call, nodes in zip(method.instructions, edges, strict=True)
    )
    instructions = tuple(
        replace(call, events=_name_events(delegates[number]["delegate_map"], edges[number]))
        if number in delegates and not call.xnodes
        else call
        for number, call in enumerate(instructions)
    )
    modules = {}
    for node, owner in list_calls(graph):
        inner = _delegate_calls(node, owner) if runtime_name(node) == "delegate" else ()
        for call in (node, *inner):
            modules |= module_classes(module_stack(call))
    return replace(method, instructions=instructions, origins=tuple(origins), modules=modules)


def _name_events(
    logged: Mapping[Any, Any], edges: Sequence[EdgeNode]
) -> dict[str, tuple[int, ...]]:
    """The nodes of a delegate by the name under which its backend logs them."""
    events = {}
    for name, given in logged.items():
        handles = {*given} if isinstance(given, tuple | list) else {given}
        if numbers := tuple(edge.number for edge in edges if edge.handle in handles):
            events[str(name)] = numbers
    return events


def _find_reader(node: Node) -> Node:
    """The first reader of a size that a pass of PyTorch computes in no layer; else the node."""
    import torch

    is_size = isinstance(node.meta.get("val"), torch.SymInt)
    is_added = is_size and not module_classes(module_stack(node))
    return next(iter(node.users), node) if is_added else node


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
            origin = origins[number]
            if owner and not origin.module_class:
                layer = {"module": owner.module, "module_class": owner.module_class}
                origins[number] = replace(origin, **layer)


def module_classes(stack: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The class names of the modules around a node by their paths, the model itself first."""
    return {
        _ROOT.sub("", path): full.rpartition(".")[2]
        for path, full in stack
        if not full.endswith(_WRAPPERS) and "_non_strict_export" not in full
    }


def make_origin(node: str, operator: str, modules: dict[str, str], line: str) -> Origin:
    """The origin of a node in the innermost of ``modules``, and of a line."""
    path, kind = next(reversed(modules.items()), ("", ""))
    return Origin(node, operator, path, kind, line)


def _calls_of(instruction: Instruction, place: tuple[Node, GraphModule] | None) -> list[Node]:
    """The nodes that an instruction runs: those of a delegate, or the one of a kernel."""
    if place is None or instruction.kind not in ("kernel", "delegate"):
        return []
    return [place[0]] if instruction.kind == "kernel" else list(_delegate_calls(*place))


def _delegate_calls(node: Node, graph: GraphModule) -> Iterator[Node]:
    delegate: Any = node.args[0]
    inner = getattr(graph, delegate.target).original_module.graph_module
    return (call for call, _ in list_calls(inner))


def _name(node: Node) -> str:
    return getattr(node.target, "__name__", str(node.target))


def module_stack(node: Node) -> Iterator[tuple[str, str]]:
    """The path and the class of each module around a node, the outermost first."""
    for path, kind, *_ in (node.meta.get("nn_module_stack") or {}).values():
        yield path, kind if isinstance(kind, str) else kind.__qualname__
