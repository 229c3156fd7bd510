"""Shortcuts through ExecuTorch's lowering, which give the same program sooner.

Lowering mobilenet_v3_small retraces its graph 25 times; a third of these find it as the last one
left it. Each retrace copies every node's provenance, decompositions are applied that have nothing
left to decompose, and patterns are exported that no operator of the graph could match.
"""

import contextlib
import importlib.metadata
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule
from torch.fx.passes.infra.pass_base import PassResult
from torch.fx.traceback import NodeSource

from workbench.models.process import replaced

#: The versions whose lowering was read and compared; with others, nothing is changed.
COMPARED = {"executorch": "1.5.1", "torch": "2.13"}
#: What a pass over a graph may change while it retraces it; a pass that defines none of these
#: changes the graph before, or nothing.
_HOOKS = (
    "ExportTracer", "ExportInterpreter", "_fx", "inputs", "on_attr", "placeholder", "output",
    "call_submodule", "call_operator", "call_size_operator", "call_sym", "call_cond", "call_while",
    "call_map", "call_scan", "call_getitem", "call_delegate",
)  # fmt: skip


@contextlib.contextmanager
def take_shortcuts() -> Iterator[None]:
    """Leave out what lowering does in vain, if the installed versions are those compared."""
    installed = {name: importlib.metadata.version(name) for name in COMPARED}
    if not all(f"{installed[name]}.".startswith(f"{v}.") for name, v in COMPARED.items()):
        yield
        return
    from executorch.backends.xnnpack._passes.convert_to_sdpa import ConvertToSDPAPass
    from executorch.backends.xnnpack._passes.convert_to_upsample_bilinear2d import (
        ConvertToUpsampleBilinear2d,
    )
    from executorch.exir.pass_base import ExportPass, _ExportPassBase

    retrace, decompose = _ExportPassBase.call, ExportedProgram.run_decompositions
    traced: WeakKeyDictionary[Graph, list[Any]] = WeakKeyDictionary()
    decomposed: WeakSet[ExportedProgram] = WeakSet()

    def retrace_changed(self: Any, module: GraphModule) -> PassResult:
        has_hooks = any(
            getattr(type(self), name) is not getattr(ExportPass, name) for name in _HOOKS
        )
        known = None if has_hooks else traced.get(module.graph)
        if known and _is_same(known, _describe(module)):
            return PassResult(module, True)
        result = retrace(self, module)
        traced[result.graph_module.graph] = _describe(result.graph_module)
        return result

    def decompose_present(self: Any, decomp_table: Any = None, *more: Any) -> ExportedProgram:
        if self in decomposed and decomp_table and not _branches(self.graph_module):
            table = dict(decomp_table)
            if not any(node.target in table for node in self.graph.nodes):
                return self
        result = decompose(self, decomp_table, *more)
        decomposed.add(result)
        return result

    def only_with(word: str, match: Any) -> Any:
        def call(self: Any, module: GraphModule) -> PassResult:
            found = any(word in str(node.target) for node in module.graph.nodes)
            return match(self, module) if found else ExportPass.call(self, module)

        return call

    with contextlib.ExitStack() as stack:
        for owner, name, shortcut in (
            (NodeSource, "__deepcopy__", lambda self, memo: self),  # nothing changes one
            (_ExportPassBase, "call", retrace_changed),
            (ExportedProgram, "run_decompositions", decompose_present),
            (ConvertToSDPAPass, "call", only_with("softmax", ConvertToSDPAPass.call)),
            (
                ConvertToUpsampleBilinear2d, "call",
                only_with("upsample_bilinear", ConvertToUpsampleBilinear2d.call),
            ),
        ):  # fmt: skip
            stack.enter_context(replaced(owner, name, shortcut))
        yield


def _branches(module: GraphModule) -> bool:
    """Whether a graph has others inside, such as those of a condition."""
    return any(isinstance(child, GraphModule) for child in module.children())


def _describe(module: GraphModule) -> list[Any]:
    """What a retrace reads and sets of each node; nothing for a graph with others inside."""
    if _branches(module):
        return []
    return [
        (node, node.meta.get("val"), (node.name, node.op, node.target, node.args, node.kwargs))
        for node in module.graph.nodes
    ]


def _is_same(before: list[Any], after: list[Any]) -> bool:
    """Whether nodes are the same objects, of the same values, computed in the same way."""
    return len(before) == len(after) and all(
        a[0] is b[0] and a[1] is b[1] and a[2] == b[2] for a, b in zip(before, after, strict=True)
    )
