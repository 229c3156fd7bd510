"""Changes of a graph: parts replaced, equal operators joined, double precision made single."""

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.node import map_aggregate, map_arg

from workbench.graphs import (
    add_constant,
    drop_unused,
    fake_mode_of,
    find_root,
    is_overwritten,
    is_pure,
    list_aliases,
    overwrites,
    readers,
)
from workbench.plugins.remedies.equivalence import Equivalent, Finder, evaluate
from workbench.plugins.remedies.traced_parts import trace


def is_double(node: Node) -> bool:
    """Whether an operator computes in double precision."""
    tensor = node.meta.get("val")
    is_tensor = isinstance(tensor, torch.Tensor) and node.op == "call_function"
    return is_tensor and tensor.dtype == torch.float64


def use_single_precision(exported: ExportedProgram) -> int:
    """Make constants and casts in double precision single, and with them what they lead to."""
    signature = exported.graph_signature
    names = signature.inputs_to_parameters | signature.inputs_to_buffers
    names |= signature.inputs_to_lifted_tensor_constants
    count = 0
    for store in (exported.constants, exported.state_dict):
        for name, tensor in list(store.items()):
            if isinstance(tensor, torch.Tensor) and tensor.dtype == torch.float64:
                store[name] = tensor.float()
                count += 1
    doubles = [node for node in exported.graph.nodes if is_double(node)]
    for node in exported.graph.nodes:
        tensor = node.meta.get("val")
        if node.op == "placeholder" and node.name in names and isinstance(tensor, torch.Tensor):
            if tensor.dtype == torch.float64:
                node.meta["val"] = tensor.float()
        elif node.op == "call_function" and doubles:
            node.args = map_aggregate(node.args, _single)
            node.kwargs = map_aggregate(node.kwargs, _single)
            _set_value(node, fake_mode_of(exported))
    return count + len(doubles)


def _set_value(node: Node, fake_mode: Any) -> None:
    """Compute the example value of a node from those of others."""
    args, kwargs = map_arg((node.args, node.kwargs), lambda source: source.meta["val"])
    with fake_mode:
        node.meta["val"] = node.target(*args, **kwargs)  # type: ignore[operator]


def _single(argument: Any) -> Any:
    return torch.float32 if argument is torch.float64 else argument


def find_equal(exported: ExportedProgram) -> dict[Node, Node]:
    """The operators that compute what an earlier one does, and that one.

    Those of quantisation stay: partitioners look for one at each reader. What is not read is
    computed in no program.
    """
    read: set[Node] = set()
    for node in reversed(exported.graph.nodes):
        if node.op == "output" or overwrites(node) or node in read:
            read.update(node.all_input_nodes)
    calls = [node for node in exported.graph.nodes if node.op == "call_function"]
    if any(overwrites(node) and not is_pure(node) for node in calls):
        return {}  # the same operands may have other values later
    first: dict[str, Node] = {}
    equal: dict[Node, Node] = {}
    for node in (node for node in calls if node in read):
        is_read_only = not any(map(overwrites, node.users))
        if is_pure(node) and is_read_only and "quantize" not in str(node.target):
            args = map_arg((node.args, node.kwargs), lambda source: equal.get(source, source))
            earlier = first.setdefault(f"{node.target} {args}", node)
            if earlier is not node:
                equal[node] = earlier
    return equal


def join_equal(exported: ExportedProgram) -> int:
    """Compute once what several operators compute alike; how many went."""
    equal = find_equal(exported)
    for node, earlier in equal.items():
        node.replace_all_uses_with(earlier)
        exported.graph.erase_node(node)
    return len(equal)


@torch.no_grad()
def fold(exported: ExportedProgram, made: Collection[Node]) -> None:
    """Compute what some operators, and those that they read, make of constants alone."""
    finder = Finder(exported)
    values = {node: each for node, each in finder.constants.items() if node in finder.fixed}
    folded: dict[Node, None] = {}
    for node in exported.graph.nodes:
        is_call = node.op == "call_function" and "quantize" not in str(node.target)
        if not is_call or not is_pure(node) or not values.keys() >= {*node.all_input_nodes}:
            continue
        around = (node, *node.users, *(each for each in node.all_input_nodes if each in folded))
        if any(each in made or each in folded for each in around):
            values.setdefault(node, evaluate(node, values))  # however large
            folded[node] = None
    for node in folded:
        ends = any(user.op == "output" for user in node.users) or {*node.users} <= folded.keys()
        if not ends and isinstance(values[node], torch.Tensor):
            node.replace_all_uses_with(add_constant(exported, values[node].contiguous()))
    drop_unused(exported.graph)


def separate_constants(exported: ExportedProgram, given: Collection[str]) -> None:
    """Give each reader of a constant that is not ``given`` a node of its own, in the same memory.

    Of one that several delegates read, ExecuTorch 1.5.1 makes a copy for each reader under one
    name, and fails where one delegate reads two of them.
    """
    targets = exported.graph_signature.inputs_to_lifted_tensor_constants
    for node in list(exported.graph.nodes):
        target = targets.get(node.name, "")
        if target and target not in given:
            tensor: Any = exported.constants[target]
            for reader in list(node.users)[1:]:
                copy = add_constant(exported, tensor.view_as(tensor))
                reader.replace_input_with(node, copy)


def _needs_copy(node: Node, result: Node, sources: Sequence[Node]) -> bool:
    """Whether what replaces a node shares memory with a source, as the node did not, and differs.

    It differs later, where either is overwritten.
    """
    overwritten = any(map(is_overwritten, sources)) or any(map(overwrites, readers(node)))
    aliases = [each for source in sources if overwritten for each in list_aliases(source)]
    return result in aliases and node not in aliases


def replace_part(exported: ExportedProgram, each: Equivalent) -> list[Node]:
    """Replace a part by what is built from its sources, with its origin; the new nodes."""
    graph, node = exported.graph, each.result
    sources = [*each.sources, *(add_constant(exported, tensor) for tensor in each.constants)]
    *nodes, output = trace(each).graph.nodes
    copies = dict(zip(nodes, sources, strict=False))  # the inputs come first
    with graph.inserting_before(node):
        for new in nodes[len(sources) :]:
            # Named by its operator: a part of a graph has names that it does not know.
            operands = map_arg((new.args, new.kwargs), copies.__getitem__)
            copies[new] = graph.create_node(new.op, new.target, *operands)
            copies[new].meta = node.meta | {"val": new.meta["val"]}
    result: Any = map_arg(output.args[0], copies.__getitem__)
    if isinstance(result, Node):
        if _needs_copy(node, result, sources):
            with graph.inserting_before(node):
                copy = graph.call_function(torch.ops.aten.clone.default, (result,))
            copy.meta, result = dict(result.meta), copy
        if overwrites(node):  # others read the tensor that it overwrites
            root = find_root(node)
            for reader in [reader for reader in root.users if reader > node]:
                reader.replace_input_with(root, result)
        node.replace_all_uses_with(result)
    else:  # its readers are calls of ``getitem``
        for reader in list(node.users):
            reader.replace_all_uses_with(result[reader.args[1]])
            graph.erase_node(reader)
    graph.erase_node(node)
    for other in reversed(each.nodes):  # what overwrites its operand counts as used
        if other is not node and not readers(other):
            for check in list(other.users):
                graph.erase_node(check)
            graph.erase_node(other)
    return [copies[new] for new in nodes[len(sources) :]]
