"""Every reach into a private part of another package: a function each, a probe of its effect.

Nothing here is fatal. Without such a part, its function does less, `find_missing` says what, and
exports, reports and ``workbench doctor`` repeat it. For C++: ``run/native/upstream.h``.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import platform
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.key import make_key
from workbench.process import PROCESS_LOCK, replaced, silence
from workbench.store import atomic_write, cache_folder

if TYPE_CHECKING:
    import torch
    from executorch.exir import EdgeProgramManager
    from torch.fx import Node

#: The versions of ExecuTorch that are tested; others are noted.
TESTED = ("1.5.0", "1.5.1")
#: The releases of the other packages that they are tested with.
TESTED_WITH = {"torch": "2.13.", "torchao": "0.18.", "ipython": "9."}
#: The packages that this module reaches into.
PACKAGES = ("executorch", *TESTED_WITH)


def installed_versions(*packages: str) -> dict[str, str]:
    """The versions of those packages that are installed."""
    versions: dict[str, str] = {}
    for package in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return versions


def describe_version(version: str) -> str:
    """One line on a version of ExecuTorch that is not among `TESTED`; empty for one that is."""
    release = version.partition("+")[0]
    if not release or release in TESTED:
        return ""
    return f"executorch {version} is not among the tested versions, {', '.join(TESTED)}"


# PyTorch: nested values, and what a node calls.


def tree_leaves(values: Any) -> list[Any]:
    """The leaves of nested containers, those that PyTorch knows."""
    from torch.utils import _pytree

    return list(_pytree.tree_leaves(values))


def tree_flatten(values: Any) -> tuple[list[Any], Any]:
    """The leaves of nested containers, and the structure that `tree_unflatten` takes."""
    from torch.utils import _pytree

    leaves, structure = _pytree.tree_flatten(values)
    return list(leaves), structure


def tree_unflatten(leaves: list[Any], structure: Any) -> Any:
    """Nested containers of a structure, with these leaves."""
    from torch.utils import _pytree

    return _pytree.tree_unflatten(leaves, structure)


def tree_map(function: Callable[[Any], Any], values: Any) -> Any:
    """Nested containers with the function of each leaf."""
    from torch.utils import _pytree

    return _pytree.tree_map(function, values)


def tree_map_tensors(function: Callable[[torch.Tensor], Any], values: Any) -> Any:
    """Nested containers with the function of each tensor; other leaves stay."""
    import torch

    return tree_map(lambda leaf: function(leaf) if isinstance(leaf, torch.Tensor) else leaf, values)


def operator_of(target: Any) -> Any:
    """The PyTorch operator that a target of a node is, or is an edge dialect's form of; or None."""
    import torch

    # Each operator of PyTorch has this class, which has no public name.
    kind = type(torch.ops.aten.add.Tensor)
    if isinstance(target, kind):
        return target
    inner = getattr(target, "_op", None)
    return inner if isinstance(inner, kind) else None


def find_schema(target: Any) -> Any:
    """The schema of an operator: ``name``, ``overload_name``, ``is_mutable``; None for others."""
    return getattr(target, "_schema", None)


def schema_name(target: Any) -> str:
    """The name of an operator, such as ``aten::linear``; empty for other targets."""
    schema = find_schema(target)
    return schema.name if schema is not None else ""


def operator_label(target: Any) -> str:
    """The short name of an operator, such as ``linear``; of other targets, their own."""
    return str(getattr(target, "_opname", getattr(target, "__name__", target)))


def find_eager_function(target: Any) -> Any:
    """PyTorch's own function for an operator, which is called faster; the operator without one."""
    import torch

    operator = operator_of(target)
    if operator is None or operator.namespace != "aten":
        return target
    name = schema_name(operator).partition("::")[2]
    owners = [_find("torch._C:_nn"), _find("torch._C:_VariableFunctions"), torch.Tensor]
    functions = (getattr(owner, name, None) for owner in owners)
    return next(filter(None, functions), target)


def user_error() -> type[Exception]:
    """The class of what ``torch.export`` raises for a model that it cannot trace as asked."""
    return _find("torch._dynamo.exc:UserError") or _NeverRaised


def operator_refusal() -> type[Exception]:
    """The class of what the check of an edge program raises for an operator outside Core ATen."""
    return _find("torch._export.verifier:SpecViolationError") or _NeverRaised


class _NeverRaised(Exception):
    """In place of an exception that this version does not have."""


def find_cell_number(file: str) -> int | None:
    """The number of the notebook cell that IPython compiled under a file's name."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return _cell_numbers(shell.compile).get(file) if shell else None


def _cell_numbers(compiler: Any) -> dict[str, int]:
    numbers = getattr(compiler, "_filename_map", {})
    return numbers if isinstance(numbers, dict) else {}


@contextlib.contextmanager
def keep_lines(frames: set[tuple[str, str]]) -> Iterator[None]:
    """Keep the lines of all ``frames`` for each node traced inside, not those of ``forward`` only.

    PyTorch asks the set, which may answer as it likes, for pairs of a file and a function.
    """
    proxy, name = _find("torch.fx.proxy"), "_STACK_TRACE_ANCHORS"
    if not hasattr(proxy, name):
        yield
        return
    with replaced(proxy, name, frames):
        yield


# ExecuTorch: lowering.


def forget_graphs() -> None:
    """Empty the caches of PyTorch and ExecuTorch that hold exported graphs with their weights."""
    for module, name in (
        ("torch._subclasses.fake_tensor", "FakeTensorMode"),
        ("executorch.exir.backend.utils", "is_same_node"),
    ):
        # What is not imported, as after an export that was up to date, holds nothing.
        cached: Any = getattr(sys.modules.get(module), name, None)
        if hasattr(cached, "cache_clear"):
            cached.cache_clear()


def edge_config(*, checked: bool) -> Any:
    """The configuration of the edge program: upstream's own, or without its check of operators.

    The check rejects operators outside Core ATen; the runtime has kernels for some of them.
    """
    from executorch.exir import EdgeCompileConfig

    if checked:
        return EdgeCompileConfig()
    try:
        return EdgeCompileConfig(_check_ir_validity=False)
    except TypeError:
        return EdgeCompileConfig()


def fold_constants(program: Any, only_casts: bool) -> tuple[Any, int]:
    """An edge program whose operators of constants are computed, and how many; or only casts.

    Dequantised weights stay: XNNPACK needs them quantised.
    """
    from executorch.exir.passes.constant_prop_pass import constant_prop_pass

    targets = {node.target for node in program.graph.nodes}
    casts = {target for target in targets if "_to_dim_order_copy" in str(target)}
    if only_casts and not casts:
        return program, 0
    skipped = targets if only_casts else {t for t in targets if "dequantize" in str(t)}

    def count(program: Any) -> int:  # what is folded may leave a constant more
        return sum(node.op == "call_function" for node in program.graph.nodes)

    before = count(program)
    try:
        folded = constant_prop_pass(program, skipped - casts, _skip_dim_order=False)
    except TypeError:  # the option is about to go
        folded = constant_prop_pass(program, skipped - casts)
    return folded, max(0, before - count(folded))


@contextlib.contextmanager
def keep_half_weights() -> Iterator[None]:
    """Serialise convolution weights and biases in fp16 for what is lowered inside.

    ExecuTorch widens them to fp32, which transposed convolutions need, but XNNPACK's fp16 fully
    connected kernels, which run 1x1 convolutions, need fp16 weights.
    """
    operator = "aten.convolution.default"
    where = "executorch.backends.xnnpack.operators.node_visitor:_node_visitor_dict"
    visitors = _find(where)
    if not isinstance(visitors, dict) or operator not in visitors:
        yield
        return
    visitor: Any = visitors[operator]

    class HalfVisitor(visitor):
        def define_node(self, node: Any, *args: Any, **kwargs: Any) -> None:
            self.is_transposed = node.args[6]
            super().define_node(node, *args, **kwargs)

        def define_tensor(self, *args: Any, force_fp32: bool = False, **kwargs: Any) -> None:
            super().define_tensor(*args, force_fp32=force_fp32 and self.is_transposed, **kwargs)

    with PROCESS_LOCK:
        visitors[operator] = HalfVisitor
        try:
            yield
        finally:
            visitors[operator] = visitor


@contextlib.contextmanager
def collect_reasons() -> Iterator[dict[str, str]]:
    """Collect why nodes are not delegated, by name, which the partitioner only logs."""
    reasons: dict[str, str] = {}
    logger = _find("executorch.exir.backend.utils:WhyNoPartition")
    log: Any = vars(logger).get("__call__") if isinstance(logger, type) else None
    if log is None:
        yield reasons
        return

    def collect(self: Any, *args: Any, **kwargs: Any) -> None:
        node, reason = (*args, *kwargs.values(), None, None)[:2]
        if hasattr(node, "name") and reason:
            reasons.setdefault(node.name, " ".join(str(reason).split()))
        log(self, *args, **kwargs)

    with replaced(logger, "__call__", collect):
        yield reasons


def list_edge_operators(edge: EdgeProgramManager) -> Iterator[tuple[Node, bool]]:
    """Each operator of a lowered program, and whether it is delegated; no calls or tuples.

    Those in the bodies of control flow are among them.
    """
    yield from _list_operators(edge.exported_program().graph_module, False)


def _list_operators(graph: torch.fx.GraphModule, delegated: bool) -> Iterator[tuple[Node, bool]]:
    from executorch.exir.lowered_backend_module import LoweredBackendModule
    from torch.fx import GraphModule

    for node in graph.graph.nodes:
        if node.op == "call_function" and operator_of(node.target) is not None:
            yield node, delegated
    for child in graph.children():
        if isinstance(child, LoweredBackendModule):
            yield from _list_operators(child.original_module.graph_module, True)
        elif isinstance(child, GraphModule):
            yield from _list_operators(child, delegated)


def keep_in_float(nodes: Iterable[Node]) -> None:
    """Let torchao's quantisers skip nodes, also those that they annotate without a filter."""
    from torchao.quantization.pt2e.quantizer import QuantizationAnnotation
    from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

    for node in nodes:
        node.meta[Q_ANNOTATION_KEY] = QuantizationAnnotation(_annotated=True)


def list_llm_transforms(**settings: Any) -> list[Callable[[Any], Any]]:
    """What upstream's exporter of language models does to a module, in order.

    ImportError or TypeError if this version has it in another place, or with other settings.
    """
    from executorch.examples.models.llama.export_llama_lib import _get_source_transforms
    from executorch.extension.llm.export.builder import DType

    return list(_get_source_transforms(DType.fp32, **settings))


def _find(path: str) -> Any:
    """A module, or a name of one after a colon; None where there is none."""
    module, _, name = path.partition(":")
    try:
        imported = importlib.import_module(module)
    except ImportError:
        return None
    return getattr(imported, name, None) if name else imported


# Probes: does each function above have its effect?


def find_missing(probed: bool = False) -> dict[str, str]:
    """What this installation lacks, and why: by the effect of each function of this module.

    Each set of versions is probed once, in some seconds; the answer is kept in the cache, unless
    memory or a file failed meanwhile. Tested versions, which CI has probed, are not, unless
    ``probed`` asks for it.
    """
    path = _answer_path()
    with contextlib.suppress(OSError, ValueError):
        return dict(json.loads(path.read_text()))
    if _is_tested() and not probed:
        return {}
    with silence():
        failures = {name: _run_probe(probe) for name, probe in PROBES.items()}
    missing = {name: str(failure) for name, failure in failures.items() if failure}
    if not any(isinstance(failure, _Passing) for failure in failures.values()):
        with contextlib.suppress(OSError):
            atomic_write(path, json.dumps(missing))
    return missing


def _is_tested() -> bool:
    versions = installed_versions(*PACKAGES)
    release = versions.get("executorch", "").partition("+")[0]
    tested = (versions.get(name, "").startswith(each) for name, each in TESTED_WITH.items())
    return release in TESTED and all(tested)


def _answer_path() -> Path:
    versions = platform.python_version(), platform.machine(), installed_versions(*PACKAGES)
    key = make_key(versions, Path(__file__).read_text())
    return cache_folder() / "upstream" / f"{key[:16]}.json"


class _Passing(str):
    """Why a probe failed, if that says something of the moment and nothing of the versions."""


def _run_probe(probe: Callable[[], str]) -> str:
    try:
        return probe()
    except Exception as error:  # another version may raise anything
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        passing = isinstance(error, MemoryError | OSError | subprocess.SubprocessError)
        # PyTorch has no class for memory that the CPU's allocator does not get.
        passing |= "allocate memory" in reason
        lasts = isinstance(error, FileNotFoundError)  # in an installed package
        return _Passing(reason) if passing and not lasts else reason


def _probe_nested() -> str:
    import torch

    values = {"a": [torch.ones(2), 3], "b": (None,)}
    leaves, structure = tree_flatten(values)
    same = str(tree_unflatten(leaves, structure)) == str(values)
    doubled = tree_map_tensors(lambda tensor: 2 * tensor, values)
    doubles = float(doubled["a"][0].sum()) == 4 and doubled["a"][1] == 3
    return "" if same and doubles else "nested values are taken apart in another way"


def _probe_schemas() -> str:
    import torch

    target: Any = torch.ops.aten.add_.Tensor
    schema = find_schema(target)
    named = schema_name(target) == "aten::add_" and operator_of(target) is target
    mutable = schema is not None and schema.is_mutable and schema.overload_name == "Tensor"
    return "" if named and mutable else "operators have no schema"


def _probe_eager_functions() -> str:
    import torch

    target: Any = torch.ops.aten.linear.default
    return "" if find_eager_function(target) is not target else "no functions of operators"


def _probe_errors() -> str:
    return "torch._dynamo.exc has no UserError" if user_error() is _NeverRaised else ""


def _probe_cells() -> str:
    compilers = _find("IPython.core.compilerop:CachingCompiler")
    if compilers is None:
        return "IPython has no CachingCompiler"
    compiler = compilers()
    file = compiler.cache("1 + 1", number=7)
    return "" if _cell_numbers(compiler).get(file) == 7 else "IPython keeps no numbers of cells"


class _Frames(set[tuple[str, str]]):
    """All frames of this file."""

    def __contains__(self, frame: object) -> bool:
        return isinstance(frame, tuple) and frame[0] == __file__


def _double(x: torch.Tensor) -> torch.Tensor:
    return x + x


def _export(forward: Callable[[Any, torch.Tensor], Any], example: torch.Tensor) -> Any:
    import torch

    class Probe(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Conv2d(4, 8, 1)
            self.table = torch.nn.Buffer(torch.arange(4))

    Probe.forward = forward  # type: ignore[method-assign]
    module = Probe().to(example.dtype).eval()
    with torch.no_grad():
        return torch.export.export(module, (example,))


def _lower(exported: Any, **options: Any) -> Any:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    return to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()], **options)


def _image(dtype: str = "float32") -> torch.Tensor:
    import torch

    return torch.ones(1, 4, 4, 4, dtype=getattr(torch, dtype))


def _probe_lines() -> str:
    with keep_lines(_Frames()):
        exported = _export(lambda self, x: _double(x), _image())
    traces = [str(node.meta.get("stack_trace")) for node in exported.graph.nodes]
    line = f"line {_double.__code__.co_firstlineno + 1}, in _double"
    return "" if any(line in trace for trace in traces) else "lines of called functions are lost"


def _probe_forgotten() -> str:
    edge = _lower(_export(lambda self, x: self.layer(x), _image()))
    graph = weakref.ref(edge.exported_program().graph_module)
    del edge
    forget_graphs()
    gc.collect()
    return "" if graph() is None else "exported graphs stay in memory, with their weights"


def _probe_unchecked() -> str:
    exported = _export(lambda self, x: x.int() << 1, _image())
    try:
        _lower(exported)
    except operator_refusal():
        _lower(exported, compile_config=edge_config(checked=False))
    return ""


def _probe_folding() -> str:
    from executorch.exir import to_edge

    exported = _export(lambda self, x: x + self.table.float(), _image())
    return "" if fold_constants(to_edge(exported).exported_program(), True)[1] else "none is folded"


def _probe_half_weights() -> str:
    exported = _export(lambda self, x: self.layer(x), _image("float16"))
    wide = len(_lower(exported).to_executorch().buffer)
    with keep_half_weights():
        half = len(_lower(exported).to_executorch().buffer)
    return "" if half < wide else "weights of convolutions stay fp32"


def _probe_reasons() -> str:
    exported = _export(lambda self, x: x.mean((2, 3)), _image())
    with collect_reasons() as reasons:
        edge = _lower(exported)
    outside = [node.name for node, delegated in list_edge_operators(edge) if not delegated]
    return "" if {*outside} & {*reasons} else "the partitioner gives no reasons"


def _probe_annotations() -> str:
    import torch
    from executorch.backends.xnnpack.quantizer import xnnpack_quantizer
    from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e

    graph: Any = _export(lambda self, x: torch.cat([x, self.layer(x)], 1), _image()).module()
    quantizer = xnnpack_quantizer.XNNPACKQuantizer()
    quantizer.set_global(xnnpack_quantizer.get_symmetric_quantization_config())
    keep_in_float(node for node in graph.graph.nodes if "cat" in node.name)
    prepared = prepare_pt2e(graph, quantizer)
    (joined,) = (node for node in prepared.graph.nodes if node.name == "cat")
    observed = any(user.op == "call_module" for user in joined.users)
    return "concatenations are quantised nevertheless" if observed else ""


def _probe_llm() -> str:
    transforms = list_llm_transforms(use_kv_cache=True, use_sdpa_with_kv_cache=True)
    return "" if transforms else "upstream's exporter has no transforms"


#: What is lost without each private part, and whether it is there: an empty answer, or why not.
PROBES: dict[str, Callable[[], str]] = {
    "nested inputs and outputs": _probe_nested,
    "names of operators": _probe_schemas,
    "eager PyTorch without the overhead of its graph": _probe_eager_functions,
    "reasons why a model cannot be traced": _probe_errors,
    "numbers of notebook cells": _probe_cells,
    "lines of functions that forward() calls": _probe_lines,
    "memory of exported graphs": _probe_forgotten,
    "operators outside Core ATen": _probe_unchecked,
    "folded casts and constants": _probe_folding,
    "fp16w: fp16 weights of convolutions": _probe_half_weights,
    "reasons why operators are not delegated": _probe_reasons,
    "operators kept in floating point": _probe_annotations,
    "language models": _probe_llm,
}
