"""A model traced once: its graph, and the hash that identifies it."""

from __future__ import annotations

import copy
import hashlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.export import ExportedProgram

from workbench.export import failure
from workbench.export.control_flow import name_layers
from workbench.export.program import bind_constants
from workbench.models.sources import (
    UserFrame,
    UserFrames,
    find_user_frame,
    user_line_of_stack,
)
from workbench.process import collect_stderr, silence
from workbench.upstream import (
    keep_lines,
    tree_leaves,
)

if TYPE_CHECKING:
    from workbench.models.loader import LoadedModel


@dataclass(frozen=True)
class TracedModel:
    """A model as `torch.export` traced it, and hashes that identify it.

    ``graph`` covers operators, weights, constants, and the shapes and dtypes of inputs; ``inputs``
    the values of the inputs; ``lines`` the places of operators in its source.
    ``module`` is the copy that was traced.
    """

    module: nn.Module
    exported: ExportedProgram
    graph: str
    inputs: str
    lines: str

    def find_line(self, name: str) -> UserFrame | None:
        """The innermost line of the user's code that an operator of the trace is called in."""
        node = next(node for node in self.exported.graph.nodes if node.name == name)
        return find_user_frame(node.meta.get("stack_trace"))


def trace_model(model: LoadedModel) -> TracedModel:
    """Trace a copy of a model as its user wrote it, in its own dtype."""
    with silence(), failure.explain(failure.TRACING, model.origin):
        if model.exported is not None:
            return _hash_trace(model, model.module, copy_program(model.exported))
        # Tracing computes with no weight: the copy shares them.
        weights = {id(each): each for each in model.module.parameters()}
        module = copy.deepcopy(model.module, weights).eval()
        example = model.traced_inputs or (model.example_inputs, model.kwargs)
        bound = bind_constants(module, *example)
        exported = trace_program(*bound, model.dynamic_shapes, strict=bool(model.metadata))
    return _hash_trace(model, module, exported)


def _hash_trace(model: LoadedModel, module: nn.Module, exported: ExportedProgram) -> TracedModel:
    inputs = _hash_values((model.example_inputs, model.kwargs, model.calibration))
    return TracedModel(
        module, exported, _hash_graph(model, exported), inputs, _hash_lines(exported)
    )


def copy_program(exported: ExportedProgram) -> ExportedProgram:
    """A copy of an exported program whose graph can be changed; it shares the tensors."""
    tensors = [*exported.state_dict.values(), *exported.constants.values()]
    return copy.deepcopy(exported, {id(tensor): tensor for tensor in tensors})


def _hash_graph(model: LoadedModel, exported: ExportedProgram) -> str:
    digest = hashlib.sha256(_hash_values((exported.state_dict, exported.constants)).encode())
    for graph in _list_graphs(exported):
        digest.update(str(graph).encode())
    arguments = map(_describe_value, tree_leaves(exported.example_inputs))
    limits = sorted(map(repr, exported.range_constraints.items()))
    settings = sorted(map(repr, model.metadata.items()))
    digest.update(repr((*arguments, limits, settings)).encode())
    return digest.hexdigest()


def _hash_values(values: Any) -> str:
    """A hash of the tensors and other values in nested containers."""
    digest = hashlib.sha256()
    for value in tree_leaves(values):
        digest.update(_describe_value(value).encode())
        if isinstance(value, torch.Tensor):
            digest.update(value.detach().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _describe_value(value: Any) -> str:
    """The dtype and shape of a tensor; any other value itself."""
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {tuple(value.shape)}"
    return repr(value)


def _hash_lines(exported: ExportedProgram) -> str:
    digest = hashlib.sha256()
    for graph in _list_graphs(exported):
        for node in graph.nodes:
            line = user_line_of_stack(node.meta.get("stack_trace"))
            digest.update(f"{line} {node.meta.get('nn_module_stack')}".encode())
    return digest.hexdigest()


def _list_graphs(exported: ExportedProgram) -> Iterator[torch.fx.Graph]:
    """The graph of a program, and those of the branches and loops in it."""
    for module in exported.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            yield module.graph


def trace_program(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    shapes: Any,
    strict: bool = False,
) -> ExportedProgram:
    """``torch.export``, without the graph that it prints to stderr when it fails.

    It keeps the lines of functions that ``forward`` calls, not only those of ``forward`` itself,
    and the layers in the bodies of control flow.
    """
    with collect_stderr() as printed, keep_lines(UserFrames()):
        exported = torch.export.export(module, args, kwargs, dynamic_shapes=shapes, strict=strict)
    sys.stderr.write(printed.getvalue())
    name_layers(exported, module)
    return exported
