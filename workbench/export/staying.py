"""Inputs of a model that stay between its calls, guessed from what its graph computes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from workbench.export.dependence import Dependence
from workbench.export.purity import PRODUCTS, VIEWS
from workbench.upstream import schema_name

aten: Any = torch.ops.aten
_SOFTMAX = ("aten::softmax", "aten::_softmax", "aten::_safe_softmax")
#: What may stand between weights and the values that they are of.
_BETWEEN = VIEWS | {aten.transpose.int, aten.permute.default, aten.nan_to_num.default}
#: Functions of positions.
_WAVES = {aten.sin.default, aten.cos.default}


def guess_staying(exported: ExportedProgram, dependence: Dependence) -> tuple[str, ...]:
    """The inputs that probably stay while others change, in order; some input always changes.

    Attention over them by what changes (the states of an encoder, an image), features that are
    attended to with tokens, and positions of which tables are made.
    """
    nodes, inputs = list(exported.graph.nodes), {*dependence.inputs}
    read = [
        (dependence.of(weights), dependence.of(values))
        for weights, values in _list_attention(nodes)
    ]
    staying: set[str] = set()
    for weights, values in read:
        if values <= inputs and (weights & inputs) - values - staying:
            staying |= values
    tokens = _list_tokens(nodes, dependence)
    several = {
        node.name
        for node in nodes
        if node.name in inputs and getattr(node.meta.get("val"), "shape", (1,))[-1:] != (1,)
    }
    for name in dependence.inputs:
        others = [(weights | values) - {name} for weights, values in read if name in weights]
        alone = {node.target for node in nodes if dependence.of(node) == {name}}
        projects = name not in tokens and not alone.isdisjoint(PRODUCTS)
        if projects and any(tokens - staying & each for each in others):
            staying.add(name)
        waves = name in several and not alone.isdisjoint(_WAVES)
        if waves and any(inputs - staying & each for each in others):
            staying.add(name)
    return tuple(name for name in dependence.inputs if name in staying)


def _list_attention(nodes: list[Node]) -> Iterator[tuple[Node, Node]]:
    """What each attention computes, and the values that its weights are multiplied with."""
    for node in nodes:
        name = schema_name(node.target)
        if "scaled_dot_product" in name:
            value: Any = node.args[2]
            yield node, value
        if name not in _SOFTMAX:
            continue
        weights = [node]
        for each in weights:  # which grows
            weights += [user for user in each.users if user.target in _BETWEEN]
        for reader in dict.fromkeys(user for each in weights for user in each.users):
            values = [each for each in reader.all_input_nodes if each not in weights]
            if reader.target in PRODUCTS | {aten.mul.Tensor} and values:
                yield reader, values[0]


def _list_tokens(nodes: list[Node], dependence: Dependence) -> set[str]:
    """The inputs that number rows of a table."""
    lookups = (node for node in nodes if node.target is aten.embedding.default)
    sources = [dependence.of(node) for node in lookups]
    return {name for each in sources if len(each) == 1 for name in each}
