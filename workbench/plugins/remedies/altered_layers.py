"""Layers with another size, and parts with another function, which a trial measures."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from workbench import WorkbenchError
from workbench.plugins.remedies.equivalence import arguments_of

if TYPE_CHECKING:
    from workbench.graphs import Change, LoadedModel
    from workbench.plugins.remedies.subgraphs import Subgraphs

#: Arguments of an operator by name.
Arguments = dict[str, Any]


class _Call(nn.Module):
    """A convolution with weights of its own."""

    def __init__(self, target: Any, arguments: Arguments) -> None:
        super().__init__()
        self.target, self.rest = target, arguments
        self.weight = nn.Parameter(arguments.pop("weight"), requires_grad=False)
        bias = arguments.pop("bias", None)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.target(x, weight=self.weight, bias=self.bias, **self.rest)  # type: ignore[no-any-return]


class _Layers(nn.Module):
    """Layers beside one another, each with an input of its own."""

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(layer(x) for layer, x in zip(self.layers, inputs, strict=True))


def build_layers(parts: Subgraphs, names: Iterable[str], change: Change | None) -> LoadedModel:
    """Layers of a model by their names in its trace, with their real inputs, alone.

    With a change of a size, channels that are added repeat the weights and inputs of others.
    """
    layers, inputs = list[nn.Module](), list[Tensor]()
    for name in names:
        node = parts.nodes[name]
        arguments = _read_arguments(node, parts)
        if change is not None and change.of in _CHANGES:  # else an option of the export differs
            _CHANGES[change.of](arguments, change.now, change.new)
        inputs.append(arguments.pop("input"))
        layers.append(_build_layer(node.target, arguments))
    return parts.wrap(_Layers(layers).eval(), inputs)


def use_function(part: LoadedModel, parts: Iterable[Sequence[str]], function: str) -> LoadedModel:
    """A part of a model with another function in place of some operators of one tensor each."""
    module = copy.deepcopy(part.module)
    assert isinstance(module, GraphModule)
    graph = module.graph
    named = {node.name: node for node in graph.nodes}
    for names in parts:
        inside = [named[name] for name in names]
        read = {source for node in inside for source in node.all_input_nodes} - {*inside}
        (source,) = (node for node in read if node.op != "get_attr")
        last = max(inside, key=[*graph.nodes].index)
        with graph.inserting_after(last):
            target = getattr(torch.ops.aten, function).default
            result = graph.call_function(target, (source,))
        last.replace_all_uses_with(result)
    graph.eliminate_dead_code()
    module.recompile()
    return replace(part, module=module)


def _read_arguments(node: Node, parts: Subgraphs) -> Arguments:
    arguments: Arguments = {
        name: parts.values[each].detach().contiguous() if isinstance(each, Node) else each
        for name, each in arguments_of(node).items()
    }
    if not isinstance(arguments.get("weight"), Tensor) or "input" not in arguments:
        raise WorkbenchError(f"{node.target} is no layer whose size can be changed")
    return arguments


def _build_layer(target: Any, arguments: Arguments) -> nn.Module:
    if target is not torch.ops.aten.linear.default:
        return _Call(target, arguments)
    weight, bias = arguments["weight"], arguments.get("bias")
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    tensors = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
    layer.load_state_dict(tensors)
    return layer


def _set_channels(arguments: Arguments, now: int, new: int) -> None:
    """Other numbers of channels, of what is read and written."""
    x, weight, bias = (arguments.get(name) for name in ("input", "weight", "bias"))
    assert x is not None
    assert weight is not None
    place = 1 if weight.dim() > 2 else x.dim() - 1
    if x.shape[place] == now:
        arguments["input"] = _repeat(x, place, new)
    for dim in (0, 1):
        if weight.shape[dim] == now:
            weight = _repeat(weight, dim, new)
    arguments["weight"] = weight
    if bias is not None and bias.shape[0] == now:
        arguments["bias"] = _repeat(bias, 0, new)
    if arguments.get("groups", 1) == now:
        arguments["groups"] = new


def _set_groups(arguments: Arguments, now: int, new: int) -> None:
    weight = arguments["weight"]
    arguments["weight"] = _repeat(weight, 1, weight.shape[1] * now // new)
    arguments["groups"] = new


def _set_taps(arguments: Arguments, now: int, new: int) -> None:
    """Smaller filters, and less padding, for as many results."""
    less = (now - new) // 2
    arguments["weight"] = arguments["weight"][..., less : less + new, less : less + new].clone()
    padding = arguments.get("padding", 0)
    if isinstance(padding, str):  # "same" and "valid" hold for any filter
        return
    sides = padding if isinstance(padding, list | tuple) else [padding]
    arguments["padding"] = [max(0, side - less) for side in sides]


def _repeat(tensor: Tensor, dim: int, count: int) -> Tensor:
    """The first elements of a dimension, over and over, until there are so many."""
    return tensor.index_select(dim, torch.arange(count) % tensor.shape[dim])


_CHANGES = {"channels": _set_channels, "groups": _set_groups, "taps": _set_taps}
