"""Shortcuts through ExecuTorch's lowering, which give the same program sooner.

Lowering mobilenet_v3_small retraces its graph 25 times; a third of these find it as the last one
left it. Each retrace copies every node's provenance, and writes and compiles Python code that is
never run, decompositions are applied that have nothing left to decompose, and patterns are exported
that no operator of the graph could match.
"""

import contextlib
import functools
import importlib
import importlib.metadata
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import yaml
from torch._ops import HigherOrderOperator
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule
from torch.fx.graph import _PyTreeCodeGen
from torch.fx.passes.infra.pass_base import PassResult
from torch.fx.traceback import NodeSource

from workbench.models.process import PROCESS_LOCK, replaced

#: The versions whose lowering was read and compared; with others, nothing is changed.
COMPARED = {"executorch": "1.5.1", "torch": "2.13"}
#: What a pass over a graph may change while it retraces it; a pass that defines none of these
#: changes the graph before, or nothing.
_HOOKS = (
    "ExportTracer", "ExportInterpreter", "_fx", "inputs", "on_attr", "placeholder", "output",
    "call_submodule", "call_operator", "call_size_operator", "call_sym", "call_cond", "call_while",
    "call_map", "call_scan", "call_getitem", "call_delegate",
)  # fmt: skip


def import_exir() -> None:
    """Import ExecuTorch's exporter as shortly as possible.

    It asks Inductor for one function, which few graphs need, and parses its table of operators in
    pure Python: together a tenth of the first export of mobilenet_v3_small.
    """
    if "executorch.exir" in sys.modules or not (_is_compared() and yaml.__with_libyaml__):
        return
    from ruamel.yaml import YAML

    inductor = ModuleType("torch._inductor.fx_passes.post_grad")
    inductor.__dict__["decompose_auto_functionalized"] = _decompose_functionalized
    with PROCESS_LOCK, replaced(YAML, "load", lambda _, text: yaml.load(text, yaml.CSafeLoader)):
        if inductor.__name__ not in sys.modules:
            sys.modules[inductor.__name__] = inductor
            try:
                importlib.import_module("torch.export._remove_auto_functionalized_pass")
            finally:
                del sys.modules[inductor.__name__]
        importlib.import_module("executorch.exir")


def _decompose_functionalized(graph: Graph) -> None:
    for node in graph.nodes:
        is_unused = node.op == "get_attr" and not node.users
        is_higher_order = isinstance(node.target, HigherOrderOperator)
        if is_unused or (is_higher_order and str(node.target) != "executorch_call_delegate"):
            from torch._inductor.fx_passes.post_grad import decompose_auto_functionalized

            decompose_auto_functionalized(graph)
            return


def _is_compared() -> bool:
    installed = {name: importlib.metadata.version(name) for name in COMPARED}
    return all(f"{installed[name]}.".startswith(f"{v}.") for name, v in COMPARED.items())


@contextlib.contextmanager
def take_shortcuts() -> Iterator[None]:
    """Leave out what lowering does in vain, if the installed versions are those compared."""
    if not _is_compared():
        yield
        return
    from executorch.backends.xnnpack._passes.convert_to_sdpa import ConvertToSDPAPass
    from executorch.backends.xnnpack._passes.convert_to_upsample_bilinear2d import (
        ConvertToUpsampleBilinear2d,
    )
    from executorch.exir.pass_base import ExportPass, _ExportPassBase

    retrace, write_code = _ExportPassBase.call, GraphModule.recompile
    decompose = ExportedProgram.run_decompositions
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

    def write_code_later(self: Any) -> None:
        if isinstance(self.graph._codegen, _PyTreeCodeGen):
            tree = self.graph._codegen.pytree_info
            self._in_spec, self._out_spec = tree.in_spec, tree.out_spec
        self.__dict__.pop("_code", None)
        # Each of these modules has a class of its own; with the code, it gets the other attributes.
        cls = type(self)
        cls._code = functools.cached_property(lambda self: write_code(self).src)
        cls._code.__set_name__(cls, "_code")

        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            write_code(self)
            return self.forward(*args, **kwargs)

        cls.forward = forward
        self._recompile_submodules()

    def only_with(word: str, match: Any) -> Any:
        def call(self: Any, module: GraphModule) -> PassResult:
            found = any(word in str(node.target) for node in module.graph.nodes)
            return match(self, module) if found else ExportPass.call(self, module)

        return call

    with contextlib.ExitStack() as stack:
        for owner, name, shortcut in (
            (NodeSource, "__deepcopy__", lambda self, memo: self),  # nothing changes one
            (_ExportPassBase, "call", retrace_changed),
            (GraphModule, "recompile", write_code_later),
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
