"""Constants that are added to a graph, such as a copy of a filter for each call that reads it."""

import itertools
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.fx import Node

from workbench.upstream import schema_name

#: Convolutions of one dimension, which upstream turns into those of two with their filters.
_CONVOLUTIONS = ("aten::conv1d", "aten::conv_transpose1d")


def copy_filters(exported: ExportedProgram) -> int:
    """Give each call of a one-dimensional convolution a filter of its own; how many were added.

    ExecuTorch 1.5.1 changes the shape of a filter at each call in a delegate that reads it.
    """
    signature = exported.graph_signature
    targets = signature.inputs_to_parameters | signature.inputs_to_buffers
    stored: dict[str, Any] = {**exported.state_dict, **exported.constants}
    seen, count = set[Node](), 0
    layers = [n for n in exported.graph.nodes if schema_name(n.target) in _CONVOLUTIONS]
    for layer in layers:
        weight: Any = layer.args[1]
        if weight in seen and weight.name in targets:
            tensor = stored[targets[weight.name]].detach()
            layer.replace_input_with(weight, add_constant(exported, tensor.view_as(tensor)))
            count += 1
        seen.add(weight)
    exported.graph_module.recompile()
    return count


def fake_mode_of(graphed: ExportedProgram | Node) -> Any:
    """The mode of the example values in a graph, that of a program or of a node."""
    values = (node.meta.get("val") for node in graphed.graph.nodes)
    return next(mode for v in values if (mode := getattr(v, "fake_mode", None)) is not None)


def add_constant(exported: ExportedProgram, tensor: torch.Tensor) -> Node:
    """A node for a constant that a program did not have; the same one for the same tensor."""
    for name, other in exported.constants.items():
        if other is tensor:
            place = exported.graph_signature.inputs_to_lifted_tensor_constants
            wanted = next(node for node, target in place.items() if target == name)
            return next(node for node in exported.graph.nodes if node.name == wanted)
    signature = exported.graph_signature
    inputs = [node for node in exported.graph.nodes if node.op == "placeholder"]
    given = {*signature.user_inputs}
    position = next((n for n, node in enumerate(inputs) if node.name in given), len(inputs))
    taken = {spec.target for spec in signature.input_specs}
    names = (f"remedy_constant_{number}" for number in itertools.count())
    target = next(name for name in names if name not in taken)
    nodes = list(exported.graph.nodes)
    following = inputs[position] if position < len(inputs) else nodes[len(inputs)]
    with exported.graph.inserting_before(following):
        node = exported.graph.placeholder(f"c_{target}")
    node.meta["val"] = fake_mode_of(exported).from_tensor(tensor, static_shapes=True)
    spec = InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(name=node.name), target)
    signature.input_specs.insert(position, spec)
    exported.constants[target] = tensor
    return node
