"""The bodies of ``torch.cond``, ``map`` and ``scan``: their operators, layers and instructions.

A body is a graph of its own, an argument of the node that runs it. The emitter writes its
instructions in place, between others that test, slice and copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from workbench.records.layer_sidecar import Instruction
from workbench.upstream import operator_of

if TYPE_CHECKING:
    from torch import nn
    from torch.export import ExportedProgram
    from torch.fx import GraphModule, Node

_DELEGATE = "executorch_call_delegate"
#: A view of a tensor of dynamic size, whose instruction no node has.
_VIEW = "executorch_prim::et_view.default"


def list_calls(graph: GraphModule) -> Iterator[tuple[Node, GraphModule]]:
    """Each call of a graph and its graph; a call with bodies comes before what is in them."""
    for node in graph.graph.nodes:
        if node.op == "call_function":
            yield node, graph
            for body in list_bodies(node, graph):
                yield from list_calls(body)


def list_bodies(node: Node, graph: GraphModule) -> list[GraphModule]:
    """The graphs that a node runs, in the order of its arguments."""
    from torch.fx import GraphModule

    names = (getattr(argument, "target", None) for argument in node.args)
    owned = (getattr(graph, name, None) for name in names if isinstance(name, str))
    return [each for each in owned if isinstance(each, GraphModule)]


def runtime_name(node: Node) -> str:
    """What the emitted program calls a node: ``aten::mean.out``, or ``delegate``."""
    operator = operator_of(node.target)
    if operator is not None:
        return str(operator.name())
    name = getattr(node.target, "__name__", str(node.target))
    return "delegate" if name == _DELEGATE else name


def place_calls(
    graph: GraphModule, instructions: Sequence[Instruction]
) -> dict[int, tuple[Node, GraphModule]]:
    """The node of each instruction, and its graph.

    An instruction of no node, between those of bodies, belongs to the call of these.
    """
    names = [call.name if call.kind == "kernel" else call.kind for call in instructions]
    placed = _place_body(graph, names, 0)
    caller = None
    for number, name in enumerate(names):
        node, owner = placed.get(number, (None, None))
        if node is not None and owner is graph:
            caller = node if list_bodies(node, graph) else None
        elif node is None and caller is not None and name != _VIEW:
            placed[number] = caller, graph
    return placed


def _place_body(
    graph: GraphModule, names: Sequence[str], first: int
) -> dict[int, tuple[Node, GraphModule]]:
    """The nodes of a graph whose first instruction has a number, and of the bodies in it.

    A node's debug handle is the number of its instruction within its graph; nodes without an
    instruction have an older handle.
    """
    placed: dict[int, tuple[Node, GraphModule]] = {}
    following = first
    for node in (node for node in graph.graph.nodes if node.op == "call_function"):
        number, name = first + (node.meta.get("debug_handle") or 0), runtime_name(node)
        if bodies := list_bodies(node, graph):
            while names[following : following + 1] == [_VIEW]:
                following += 1
            placed[following] = node, graph
            following += _count_steps_before(node)
            for body in bodies:
                following = _find_first(body, names, following)
                inner = _place_body(body, names, following)
                placed |= inner
                following = max(inner, default=following - 1) + 1
        elif names[number : number + 1] == [name]:
            placed[number] = node, graph
            following = number + 1
    return placed


def _count_steps_before(node: Node) -> int:
    """How many instructions precede the first body of a call.

    One tests or counts; another slices each tensor that is looped over, or copies a state.
    """
    return 1 + sum(len(each) for each in node.args[1:-1] if isinstance(each, list | tuple))


def _find_first(body: GraphModule, names: Sequence[str], start: int) -> int:
    """The number of a body's first instruction: the first from where all of them fit."""
    calls = [(node.meta.get("debug_handle"), runtime_name(node)) for node in body.graph.nodes
             if node.op == "call_function" and _has_instruction(node)]  # fmt: skip
    for first in range(start, len(names)):
        if all(names[first + (handle or 0) :][:1] == [name] for handle, name in calls):
            return first
    return start


def _has_instruction(node: Node) -> bool:
    return operator_of(node.target) is not None or runtime_name(node) == "delegate"


def name_layers(exported: ExportedProgram, module: nn.Module) -> None:
    """Give nodes in bodies the layer whose parameters they read; others, that of the call.

    PyTorch keeps neither: ``exported`` is changed in place.
    """
    signature = exported.graph_signature
    owners = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    classes = {path: type(layer) for path, layer in module.named_modules() if path}
    layers = {name: path.rpartition(".")[0] for name, path in owners.items()}
    paths = {name: path for name, path in layers.items() if path in classes}
    _name_in_graph(exported.graph_module, paths, classes)


def _name_in_graph(
    graph: GraphModule, paths: Mapping[str, str], classes: Mapping[str, type]
) -> None:
    for node in graph.graph.nodes:
        for body in list_bodies(node, graph):
            around = node.meta.get("nn_module_stack") or {}
            lists = (each for each in node.args if isinstance(each, list | tuple))
            operands = [getattr(each, "name", "") for each in chain.from_iterable(lists)]
            inputs = [each.name for each in body.graph.nodes if each.op == "placeholder"]
            inner = {name: paths[outer] for name, outer in zip(inputs, operands, strict=False)
                     if outer in paths}  # fmt: skip
            for call in body.graph.nodes:
                if call.op == "call_function" and not call.meta.get("nn_module_stack"):
                    read = () if list_bodies(call, body) else call.all_input_nodes
                    path = next((inner[each.name] for each in read if each.name in inner), "")
                    call.meta["nn_module_stack"] = _extend(around, path, classes)
            _name_in_graph(body, inner, classes)


def _extend(around: dict[str, Any], path: str, classes: Mapping[str, type]) -> dict[str, Any]:
    """A stack of modules with those on the way to a path."""
    names = path.split(".") if path else []
    steps = [".".join(names[: number + 1]) for number in range(len(names))]
    named = {each[0] for each in around.values()}
    return around | {
        step: (step, f"{classes[step].__module__}.{classes[step].__qualname__}")
        for step in steps
        if step not in named
    }
