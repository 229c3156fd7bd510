"""From a PyTorch module to an ExecuTorch program: dtypes, lowering, and what was delegated."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.utils._pytree import tree_leaves

from workbench.errors import ExportError
from workbench.export import accuracy, failure, quantize
from workbench.export.layers import count_calls, count_quantized, describe_program, read_interface
from workbench.export.precision import DTYPES, PRECISIONS
from workbench.export.program import bind_constants, cast_floats
from workbench.export.rewrite import (
    list_rewrites,
    offer_rewrites,
    rewrite_operators,
    transform_passes,
    unroll_recurrences,
)
from workbench.export.shortcuts import import_exir, take_shortcuts
from workbench.models.process import PROCESS_LOCK, collect_stderr, replaced, silence
from workbench.models.sources import UserFrames, user_line_of_stack
from workbench.options import Progress, silent
from workbench.records.runs import LayerNoise, Partition, Rewrite, Tensor

if TYPE_CHECKING:
    from executorch.exir import EdgeProgramManager, ExecutorchProgramManager

    from workbench.models.loader import Call, LoadedModel
    from workbench.options import ExportOptions, ModuleDtypes
    from workbench.records.layers import Layers


@dataclass(frozen=True)
class Lowered:
    """A program, its ETRecord (empty where PyTorch cannot write one), its layers, and its inputs.

    ``inputs`` are in the dtype and the order of the program, which takes ``arguments``; ``notes``
    say what was done to it.
    """

    pte: bytes
    etrecord: bytes
    inputs: list[torch.Tensor]
    arguments: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    layers: Layers
    notes: dict[str, str]
    partition: tuple[Partition, ...]
    rewrites: tuple[Rewrite, ...] = ()
    measure_noise: Callable[[], tuple[LayerNoise, ...]] | None = None
    #: Of the number of an output that is wrong, the smallest part that is, and its operators.
    find_wrong_part: Callable[[int], tuple[str, bytes] | None] | None = None


def lower_model(model: LoadedModel, options: ExportOptions, progress: Progress = silent) -> Lowered:
    """Export a model and lower it to a backend; the model itself is not modified."""
    progress("importing ExecuTorch", 0.15)
    import_exir()
    from executorch.extension.pybindings.portable_lib import _get_operator_names

    dtype, backend = options.dtype, options.backend
    torch_dtype = getattr(torch, DTYPES[dtype])
    progress(f"exporting in {dtype}", 0.2)
    with failure.explain(failure.FORWARD, model.origin):
        module = copy.deepcopy(model.module).to(torch_dtype).eval()
        args, kwargs = cast_floats((model.example_inputs, model.kwargs), torch_dtype)
        traced = cast_floats(model.traced_inputs, torch_dtype) or (args, kwargs)
    exported, notes, noise = _quantize(module, (args, kwargs), traced, model, options)
    failure.check_operands(exported, dtype, model.origin)
    if "slices" in options.also_rewrite:
        exported = unroll_recurrences(exported)
    if options.rewrite or options.also_rewrite:
        counts = sorted(rewrite_operators(exported, options).items())
        notes["rewritten"] = ", ".join(f"{count} {name}" for name, count in counts) or "nothing"
    offered = [] if PRECISIONS[dtype].quantizes else offer_rewrites(exported)
    progress(f"lowering to {backend}", 0.4)
    weights = keep_half_weights() if PRECISIONS[dtype].half_weights else contextlib.nullcontext()
    with failure.explain(failure.LOWERING, model.origin, exported), weights, torch.no_grad():
        try:
            with take_shortcuts():
                program, edge, partition = _lower(exported, options, model.metadata)
        except Exception:  # upstream's own error, if there is one
            program, edge, partition = _lower(exported, options, model.metadata)
    rewrites = list_rewrites(offered, edge)
    with failure.explain(failure.LOWERING, model.origin, exported):
        etrecord, layers = _write_etrecord(exported, edge, program), describe_program(program)
    if missing := sorted(count_calls(layers, "kernel").keys() - set(_get_operator_names())):
        raise failure.no_kernel_error(missing, program.exported_program(), model.origin)
    _, args, kwargs = bind_constants(module, args, kwargs)
    inputs = tree_leaves((args, {name: kwargs[name] for name in exported.example_inputs[1]}))
    pte = program.buffer
    arguments, outputs = read_interface(pte)
    if PRECISIONS[dtype].quantizes:
        quantized, products = count_quantized(layers)
        notes["quantized"] = f"{quantized} of {products} convolutions and matrix products"

    def reduce(output: int) -> tuple[str, bytes] | None:
        from workbench.export.reduce import find_wrong_part

        least_db = PRECISIONS[dtype].least_sqnr_db
        return find_wrong_part(
            exported, inputs, output, lambda part: _lower(part, options, {})[0], least_db
        )

    return Lowered(
        pte, etrecord, inputs, arguments, outputs, layers, notes, partition, rewrites, noise,
        None if PRECISIONS[dtype].quantizes else reduce,
    )  # fmt: skip


def identify_graph(model: LoadedModel) -> str:
    """A hash of what a model computes, with which weights, on which inputs, in which lines."""
    run = (model.example_inputs, model.kwargs)
    with silence(), failure.explain(failure.TRACING, model.origin):
        exported = trace_model(model)
    digest = hashlib.sha256(str(exported.graph).encode())
    for node in exported.graph.nodes:
        line = user_line_of_stack(node.meta.get("stack_trace"))
        digest.update(f"{line} {node.meta.get('nn_module_stack')}".encode())
    values = tree_leaves((exported.state_dict, exported.constants, run, model.calibration))
    for value in values:
        is_tensor = isinstance(value, torch.Tensor)
        text = f"{value.dtype} {tuple(value.shape)}" if is_tensor else repr(value)
        digest.update(text.encode())
        if is_tensor:
            digest.update(value.detach().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def trace_model(model: LoadedModel) -> ExportedProgram:
    """The graph of a model as it is."""
    bound = bind_constants(
        model.module, *(model.traced_inputs or (model.example_inputs, model.kwargs))
    )
    return _trace(*bound, model.dynamic_shapes, strict=bool(model.metadata))


def _quantize(
    module: nn.Module, run: Call, traced: Call, model: LoadedModel, options: ExportOptions
) -> tuple[ExportedProgram, dict[str, str], Callable[[], tuple[LayerNoise, ...]] | None]:
    """The exported graph, quantised if the dtype is; notes; and what measures the noise."""
    precision, modules = PRECISIONS[options.dtype], options.module_dtypes
    ways = {PRECISIONS[each].quantizes for each in (options.dtype, *dict(modules).values())}
    with failure.explain(failure.TRACING, model.origin):
        if "weights" in ways:
            quantize.quantize_weights(module, options.dtype, modules, options.group_size)
        # As upstream's exporter of language models; others may have code that Dynamo cannot trace.
        strict = bool(model.metadata)
        exported = _trace(*bind_constants(module, *traced), model.dynamic_shapes, strict=strict)
        if "graph" in ways:
            walks, graph = _quantize_graph(exported, module, run, model, options.dtype, modules)
            exported = _trace(graph, *bind_constants(module, *traced)[1:], model.dynamic_shapes)
    if not precision.quantizes:
        return exported, {}, None
    if not quantize.has_quantized(exported):
        text = f"nothing to quantise for {options.dtype} ({precision.meaning})"
        other = "fp16" if options.dtype == "int8" else "int8, which also takes convolutions"
        hint = f"choose {other}; check the patterns of --module-dtype"
        raise ExportError(text, where=model.origin, hint=hint)
    notes = {}
    if precision.calibrated or "int8" in dict(modules).values():
        notes["calibration"] = f"{1 + len(model.calibration)} batches: {model.input_source}"
    if "graph" in ways:
        return exported, notes, partial(accuracy.rank_noisy_layers, *walks)
    places = {path: (path, type(layer).__name__) for path, layer in module.named_modules()}
    exact, noisy = (partial(accuracy.walk_module, it, run) for it in (model.module, module))
    return exported, notes, partial(accuracy.rank_noisy_layers, exact, noisy, places)


def _quantize_graph(
    exported: ExportedProgram,
    module: nn.Module,
    run: Call,
    model: LoadedModel,
    dtype: str,
    module_dtypes: ModuleDtypes = (),
) -> tuple[tuple[accuracy.Walk, accuracy.Walk, dict[str, tuple[str, str]]], torch.fx.GraphModule]:
    """Walks of the graph before and after quantisation, its places, and the quantised graph."""
    batches = [bind_constants(module, *each)[1:] for each in (run, *model.calibration)]
    graph, before = quantize.quantize_activations(exported, dtype, batches, module_dtypes)
    inputs = tree_leaves(exported.example_inputs)
    exact, noisy = (partial(accuracy.walk_graph, it, inputs) for it in (before, graph))
    return (exact, noisy, quantize.list_places(graph.graph)), graph


def measure_layer_noise(
    model: LoadedModel, dtype: str, order: Sequence[str], seconds: float
) -> dict[str, float]:
    """`accuracy.measure_each_layer` of a dtype that quantises the graph, on the first sample."""
    module, run = copy.deepcopy(model.module).eval(), (model.example_inputs, model.kwargs)
    with silence(), failure.explain(failure.TRACING, model.origin):
        exported = _trace(*bind_constants(module, *run), model.dynamic_shapes)
        walks, _ = _quantize_graph(exported, module, run, model, dtype)
        return accuracy.measure_each_layer(*walks, order, seconds)


def _trace(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    shapes: Any,
    strict: bool = False,
) -> ExportedProgram:
    """``torch.export``, without the graph that it prints to stderr when it fails.

    It keeps the lines of functions that ``forward`` calls, not only those of ``forward`` itself.
    """
    anchors = replaced(torch.fx.proxy, "_STACK_TRACE_ANCHORS", UserFrames())
    with collect_stderr() as printed, torch.no_grad(), anchors:
        exported = torch.export.export(module, args, kwargs, dynamic_shapes=shapes, strict=strict)
    sys.stderr.write(printed.getvalue())
    return exported


def _lower(
    exported: ExportedProgram, options: ExportOptions, metadata: dict[str, Any]
) -> tuple[ExecutorchProgramManager, ExportedProgram, tuple[Partition, ...]]:
    """The program, the edge program before partitioning, and what was delegated."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
        XnnpackDynamicallyQuantizedPartitioner,
        XnnpackPartitioner,
    )
    from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower

    partitioners: list[Any] = [XnnpackPartitioner()] if options.backend == "xnnpack" else []
    if metadata and partitioners:  # as upstream's exporter of language models
        partitioners.insert(0, XnnpackDynamicallyQuantizedPartitioner())

    seen: list[ExportedProgram] = []
    # Which library PyTorch would use for a convolution depends on whether the batch is 16 or more:
    # the answer becomes a limit of a dynamic batch, of 15 for an example of less.
    nnpack, mkldnn = torch.backends.nnpack.flags(False), torch.backends.mkldnn.flags(False)
    with collect_reasons() as reasons, nnpack, mkldnn:
        edge = to_edge_transform_and_lower(
            exported,
            transform_passes=transform_passes(options, seen.append),
            partitioner=partitioners,
            constant_methods=metadata or None,
            # The check rejects operators outside Core ATen that the runtime does have kernels for
            # (bitwise shifts, masked_select); missing kernels are looked for in the program.
            compile_config=EdgeCompileConfig(_check_ir_validity=False),
        )
        partition = tabulate_partition(edge, reasons, options.backend)
        program = edge.to_executorch()
    return program, seen[0], partition


def _write_etrecord(
    exported: ExportedProgram, edge: ExportedProgram, program: ExecutorchProgramManager
) -> bytes:
    """The ETRecord; empty for the few graphs that PyTorch emits but cannot serialise.

    The exporter's own option copies and writes the edge program twice if there are passes.
    """
    from executorch.devtools.etrecord import ETRecord
    from executorch.exir.serde.export_serialize import SerializeError

    record = ETRecord(edge_dialect_program=edge)
    record.add_exported_program(exported)
    record.add_executorch_program(program)
    buffer = io.BytesIO()
    try:
        record.save(buffer)
    except SerializeError:
        return b""
    return buffer.getvalue()


@contextlib.contextmanager
def keep_half_weights() -> Iterator[None]:
    """Serialise convolution weights and biases in fp16 for what is lowered inside.

    ExecuTorch widens them to fp32, which transposed convolutions need, but XNNPACK's fp16 fully
    connected kernels, which run 1x1 convolutions, need fp16 weights.
    """
    from executorch.backends.xnnpack.operators.node_visitor import _node_visitor_dict as visitors

    operator = "aten.convolution.default"
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
    from executorch.exir.backend.utils import WhyNoPartition

    reasons: dict[str, str] = {}
    log = WhyNoPartition.__call__

    def collect(self: WhyNoPartition, node: torch.fx.Node, reason: str) -> None:
        reasons.setdefault(node.name, " ".join(reason.split()))
        log(self, node, reason)

    with replaced(WhyNoPartition, "__call__", collect):
        yield reasons


def tabulate_partition(
    edge: EdgeProgramManager, reasons: dict[str, str], backend: str
) -> tuple[Partition, ...]:
    """The operators of a lowered program: undelegated ones first, then the most frequent."""
    modules: dict[tuple[bool, str, str, str], list[str]] = defaultdict(list)
    for node, delegated in _operators(edge):
        target: Any = node.target
        source = reason = ""
        if not delegated:
            source = user_line_of_stack(node.meta.get("stack_trace"))
            reason = "" if backend == "portable" else reasons.get(node.name) or _missing(target)
        operator = target.__name__.removesuffix(".default")
        path = "" if delegated else quantize.module_path(node)
        modules[delegated, operator, source, reason].append(path)
    ordered = sorted(modules.items(), key=lambda item: (item[0][0], -len(item[1]), item[0]))
    rows = []
    for (delegated, operator, source, reason), paths in ordered:
        inside = tuple(filter(None, dict.fromkeys(paths)))
        rows.append(Partition(operator, len(paths), delegated, reason, source, inside))
    return tuple(rows)


def _operators(edge: EdgeProgramManager) -> Iterator[tuple[torch.fx.Node, bool]]:
    """Each operator of a program, and whether it is delegated; no inputs, calls or tuples."""
    from executorch.exir.lowered_backend_module import LoweredBackendModule

    graph = edge.exported_program().graph_module
    delegates = [child for child in graph.children() if isinstance(child, LoweredBackendModule)]
    inner = [delegate.original_module.graph_module for delegate in delegates]
    for number, module in enumerate([graph, *inner]):
        for node in module.graph.nodes:
            if node.op == "call_function" and hasattr(node.target, "_op"):
                yield node, number > 0


def _missing(target: Any) -> str:
    from executorch.backends.xnnpack.partition.config import ALL_PARTITIONER_CONFIGS
    from executorch.exir.backend.canonical_partitioners.config_partitioner import format_target_name

    name = format_target_name(target.__name__)
    has_rule = any(config.target_name == name for config in ALL_PARTITIONER_CONFIGS)
    return "XNNPACK does not support this form" if has_rule else "XNNPACK has no node for it"
