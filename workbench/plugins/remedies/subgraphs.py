"""Subgraphs of a model as programs, with the inputs that they have in the whole."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from operator import getitem
from typing import TYPE_CHECKING, Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.nn import Module

from workbench.api import UsageError
from workbench.graphs import (
    PRODUCTS,
    cut_out,
    is_overwritten,
    is_pure,
    mark_overwritten,
    record_values,
    tree_leaves,
)

if TYPE_CHECKING:
    from workbench.graphs import LoadedModel

#: Operators that are taken along before and after a part, one after the other, at most.
_MOST_AROUND = 4


class Subgraphs:
    """Subgraphs of a traced model as models with their real inputs: the model is run once for all.

    Parameters
    ----------
    model
        The model.
    exported
        Its trace, with its example inputs, in the dtype that it has there.
    names
        The operators of each part. One before and after each is taken along, which may be delegated
        with them, and what they read that depends on no input.
    products
        Those around them are taken along up to a convolution or matrix product, which is quantised.
    alone
        Of each part, only what these operators themselves read has values.
    calls
        The inputs of each call of the model; the last call is looked at. By default, one call on
        its example.
    """

    def __init__(
        self, model: LoadedModel, exported: ExportedProgram, names: Iterable[Collection[str]],
        *, products: bool = False, alone: bool = False, calls: Sequence[Sequence[Any]] = (),
    ) -> None:  # fmt: skip
        self.model, self.module, self.products = model, exported.module(), products
        *self.before, self.inputs = calls or [tree_leaves(exported.example_inputs)]
        nodes = self.module.graph.nodes
        self.nodes = {node.name: node for node in nodes if node.op == "call_function"}
        self.fixed = list_fixed(list(nodes))
        parts = (
            [self.nodes[name] for name in each] if alone else self._surround(each) for each in names
        )
        self.sources = {
            source
            for part in map(set, parts)
            for node in part
            for source in node.all_input_nodes
            if source not in part
        }

    @cached_property
    def values(self) -> dict[Node, Any]:
        """What the parts read in the whole model."""
        for inputs in self.before:  # which fill the model's state
            record_values(self.module, inputs)
        return record_values(self.module, self.inputs, self.sources)

    def extract(self, names: Collection[str]) -> LoadedModel:
        """One of the parts; UsageError if the model has no such operators."""
        part = self._surround(names)
        if not part:
            what = "these operators are not in the model"
            raise UsageError(what, where=", ".join(sorted(names)[:3]))
        results = [
            node for node in part
            if isinstance(node.meta.get("val"), torch.Tensor) and node not in self.fixed
            and any(user not in part for user in node.users)
        ]  # fmt: skip
        return self.wrap(*cut_out(self.module, [*part], self.values, results))

    def wrap(self, module: Module, inputs: Sequence[Any]) -> LoadedModel:
        """A module that stands for a part, with inputs of its own, as a model."""
        return replace(
            self.model,
            name=f"a part of {self.model.name}",
            module=module,
            example_inputs=tuple(inputs),
            kwargs={},
            dynamic_shapes=None,
            input_source=f"what these operators read in {self.model.name}",
            calibration=(),
            traced_inputs=None,
            metadata={},
            exported=None,
        )

    def _surround(self, names: Collection[str]) -> dict[Node, None]:
        """Operators with those around them, in order."""
        chosen = {self.nodes[name] for name in names if name in self.nodes}
        for taken in range(_MOST_AROUND):
            if taken and (not self.products or any(node.target in PRODUCTS for node in chosen)):
                break
            around = {other for node in chosen for other in (*node.all_input_nodes, *node.users)}
            chosen |= {node for node in around if node.op == "call_function"}
        # What a tuple has is read by calls that belong to it.
        chosen |= {user for node in chosen for user in node.users if user.target is getitem}
        pending = [*chosen]
        for node in pending:  # which grows
            sources = [other for other in node.all_input_nodes if other in self.fixed - chosen]
            chosen.update(sources)
            pending += sources
        return dict.fromkeys(node for node in self.nodes.values() if node in chosen)


def list_fixed(nodes: Sequence[Node], given: Collection[Node] = ()) -> set[Node]:
    """The operators that depend on no input, or only on ``given`` ones."""
    mark_overwritten(nodes)
    computable = {node for node in nodes if node.op == "get_attr" and not is_overwritten(node)}
    computable.update(node for node in given if not is_overwritten(node))
    fixed: set[Node] = set()
    for node in nodes:
        if (
            node.op == "call_function"
            and is_pure(node)
            and computable.issuperset(node.all_input_nodes)
        ):
            computable.add(node)
            fixed.add(node)
    return fixed
