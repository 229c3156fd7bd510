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
    attended to with tokens, and positions of which tables are made. Attention asks by what tokens
    or layers make, not by positions alone.
    """
    nodes, inputs = list(exported.graph.nodes), {*dependence.inputs}
    read = [
        (frozenset().union(*map(dependence.of, asked)), dependence.of(values))
        for asked, values in _list_attention(nodes)
    ]
    tokens = _list_tokens(nodes, dependence)
    made = [dependence.of(node) for node in nodes if node.target in PRODUCTS]
    asking = tokens.union(*(each for each in made if len(each & inputs) == 1)) & inputs
    staying: set[str] = set()
    for asked, values in read:
        if values <= inputs and (asked & asking) - values - staying:
            staying |= values
    several = {
        node.name
        for node in nodes
        if node.name in inputs and getattr(node.meta.get("val"), "shape", (1,))[-1:] != (1,)
    }
    for name in dependence.inputs:
        partners = [(asked | values) - {name} for asked, values in read if name in asked | values]
        alone = {node.target for node in nodes if dependence.of(node) == {name}}
        projects = name not in tokens and not alone.isdisjoint(PRODUCTS)
        if projects and any(tokens - staying & each for each in partners):
            staying.add(name)
        waves = name in several and not alone.isdisjoint(_WAVES)
        if waves and any(inputs - staying & each for each in partners):
            staying.add(name)
    return tuple(name for name in dependence.inputs if name in staying)


def _list_attention(nodes: list[Node]) -> Iterator[tuple[list[Node], Node]]:
    """What each attention compares, without masks, and the values of which it makes a mean."""
    for node in nodes:
        name = schema_name(node.target)
        if "scaled_dot_product" in name:
            query, key, value, *_ = node.args
            yield [query, key], value  # type: ignore[list-item, misc]
        if name not in _SOFTMAX:
            continue
        weights = [node]
        for each in weights:  # which grows
            weights += [user for user in each.users if user.target in _BETWEEN]
        for reader in dict.fromkeys(user for each in weights for user in each.users):
            values = [each for each in reader.all_input_nodes if each not in weights]
            if reader.target in PRODUCTS | {aten.mul.Tensor} and values:
                yield _list_scores(node), values[0]


def _list_scores(softmax: Node) -> list[Node]:
    """The products that a softmax is computed from: what is added to them is a mask."""
    pending, seen = [softmax], {softmax}
    for each in pending:  # which grows
        if each.target not in PRODUCTS:
            pending += [other for other in each.all_input_nodes if other not in seen]
            seen.update(each.all_input_nodes)
    return [each for each in pending if each.target in PRODUCTS]


def _list_tokens(nodes: list[Node], dependence: Dependence) -> set[str]:
    """The inputs that number rows of a table."""
    lookups = (node for node in nodes if node.target is aten.embedding.default)
    sources = [dependence.of(node) for node in lookups]
    return {name for each in sources if len(each) == 1 for name in each}
