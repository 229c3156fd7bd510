"""The rewrite `in_place`: a cache that is a buffer is written without a copy of it."""

from collections import Counter
from typing import Any

import torch
from torch.export import ExportedProgram

from workbench.export.sidecar import count_calls
from workbench.records.layer_sidecar import Layers

aten: Any = torch.ops.aten
#: The kernel that is left of an ``index_put`` and a ``copy_``.
KERNEL = "aten::index_put_"


def prepare(exported: ExportedProgram) -> None:
    """Give values as many dimensions as the tensor has that they are written into.

    The kernel that writes in place asks for them; PyTorch leaves those of one element out.
    """
    graph = exported.graph
    for node in [*graph.nodes]:
        if node.target not in (aten.index_put_.default, aten.index_put.default):
            continue
        tensor, indices, value = node.args[:3]
        vectors = [index for index in indices if index is not None]
        if len(vectors) != 1 or vectors[0].meta["val"].dim() != 1:
            continue
        for _ in range(tensor.meta["val"].dim() - value.meta["val"].dim()):
            with graph.inserting_before(node):
                wider = graph.call_function(aten.unsqueeze.default, (value, 0))
            wider.meta = dict(node.meta, val=value.meta["val"].unsqueeze(0))
            value = wider
        node.update_arg(2, value)


def count(layers: Layers) -> Counter[str]:
    """How often a program writes in place."""
    return Counter(in_place=count_calls(layers, "kernel")[KERNEL])
