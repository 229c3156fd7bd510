"""From a PyTorch module to an ExecuTorch program: dtypes, lowering, and what was delegated."""

from __future__ import annotations

import contextlib
import copy
import io
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import has_free_unbacked_symbols

from workbench.export import accuracy, failure, in_place, quantize
from workbench.export.constants import copy_filters
from workbench.export.dependence import Dependence
from workbench.export.lowered import Lowered, MeasureNoise
from workbench.export.precision import DTYPES, PRECISIONS
from workbench.export.program import bind_constants, cast_floats
from workbench.export.rewriter import Changes, find_rewriter, mark_operators, read_mark
from workbench.export.sidecar import count_calls, count_quantized, outline_program, read_interface
from workbench.export.staying_inputs import guess_staying
from workbench.export.traced import TracedModel, copy_program, trace_model, trace_program
from workbench.models.inputs import choose_inputs
from workbench.models.sources import user_line_of_node
from workbench.options import QUANTISER_REWRITES, ExportOptions, Progress, silent
from workbench.process import silence
from workbench.records.exports import Cause, Partition
from workbench.upstream import (
    collect_reasons,
    edge_config,
    keep_half_weights,
    list_edge_operators,
    operator_refusal,
    schema_name,
    tree_leaves,
)

if TYPE_CHECKING:
    from executorch.exir import EdgeProgramManager, ExecutorchProgramManager

    from workbench.models.loader import Call, LoadedModel
    from workbench.records.layer_sidecar import Layers


#: The least signal to noise ratio of values in a quantised program, against its graph, in dB.
_PART_DB = 20.0


def lower_model(
    model: LoadedModel, options: ExportOptions, trace: TracedModel, progress: Progress = silent,
    *, whole: bool = True,
) -> Lowered:  # fmt: skip
    """Lower a traced model to a backend; the model itself is not modified.

    Without rewrites among ``options``, the program is that of upstream's documented lines. A part
    of a model, which is not ``whole``, is not searched for remedies and may have nothing to
    quantise.
    """
    progress("importing ExecuTorch", 0.15)
    import executorch.runtime  # noqa: F401  # which takes seconds

    progress(f"exporting in {options.dtype}", 0.2)
    counts = Changes()
    graph = _make_graph(model, options, trace, counts, whole=whole)
    progress(f"lowering to {options.backend}", 0.4)
    match = partial(find_rewriter().match, graph.exported, options.backend)
    with failure.explain(failure.LOWERING, model.origin, graph.exported, match):
        made = _lower(graph.exported, options, model.metadata, counts)
        etrecord = _write_etrecord(made.program) if options.etrecord else b""
        layers = outline_program(made.program)
    if "in_place" in options.rewrite:
        counts += in_place.count(layers)
    _check_kernels(layers, made, graph.searched, model, options)
    lowered = _describe(graph, made, layers, options, counts, etrecord)
    if not whole:
        return lowered
    progress("looking for remedies", 0.7)
    return _offer_remedies(lowered, graph.searched, made, options)


@dataclass(frozen=True)
class _Graph:
    """The graph that is lowered, of a ``module`` that is run on some arguments.

    ``searched`` is the one in which remedies are looked for: that before quantisation. ``noise``
    measures that of each layer.
    """

    exported: ExportedProgram
    searched: ExportedProgram
    module: nn.Module
    run: Call
    notes: dict[str, str]
    noise: MeasureNoise


def _make_graph(
    model: LoadedModel, options: ExportOptions, trace: TracedModel, counts: Counter[str],
    *, whole: bool,
) -> _Graph:  # fmt: skip
    """Cast, quantise and rewrite the graph of a model."""
    module, graph, run, traced = _cast(model, options, trace)
    exported, searched, notes, noise = _quantize(module, graph, run, traced, model, options, counts)
    if whole and PRECISIONS[options.dtype].quantizes and not quantize.has_quantized(exported):
        raise failure.nothing_quantised(options.dtype, model.origin)
    failure.check_operands(exported, options.dtype, model.origin)
    rewriter = find_rewriter(options.rewrite)
    exported = rewriter.prepare(exported, options.rewrite)
    counts += rewriter.apply(exported, options.rewrite, options.backend)
    searched = searched or exported
    if "in_place" in options.rewrite:
        in_place.prepare(exported)
    mark_operators(searched)
    return _Graph(exported, searched, module, run, notes, noise)


def _describe(
    graph: _Graph, made: _Made, layers: Layers, options: ExportOptions, counts: Counter[str],
    etrecord: bytes,
) -> Lowered:  # fmt: skip
    """A program that was lowered, with its inputs in its order."""
    _, args, kwargs = bind_constants(graph.module, *graph.run)
    named = {name: kwargs[name] for name in graph.exported.example_inputs[1]}
    inputs, run_graph, pte = tree_leaves((args, named)), None, made.program.buffer
    if PRECISIONS[options.dtype].quantizes == "graph":
        run_graph = partial(accuracy.run_eagerly, graph.exported.module(), args, kwargs)
    arguments, outputs = read_interface(pte)
    return Lowered(
        pte, etrecord, inputs, arguments, outputs, layers,
        graph.notes | _describe_changes(made, layers, options, counts), made.partition,
        tuple(name for name in options.rewrite if counts[name]), measure_noise=graph.noise,
        find_cause=partial(_find_cause, graph.exported, inputs, options), run_graph=run_graph,
    )  # fmt: skip


def _offer_remedies(
    lowered: Lowered, searched: ExportedProgram, made: _Made, options: ExportOptions
) -> Lowered:
    """A program with what its graph could have instead, and what its operators depend on."""
    dependence, origins = Dependence(searched), _list_origins(made)
    return replace(
        lowered,
        rewrites=find_rewriter().offer(searched, options.backend, *origins, options.rewrite),
        dependence=dependence.list_cones(searched.graph.nodes),
        staying=guess_staying(searched, dependence),
    )


def _check_kernels(
    layers: Layers, made: _Made, searched: ExportedProgram, model: LoadedModel,
    options: ExportOptions,
) -> None:  # fmt: skip
    """Fail if the runtime has no kernel for some operator, with the remedies of it."""
    if missing := _list_missing(layers):
        names = _list_remedies_of(missing, made, searched, options)
        program = made.program.exported_program()
        raise failure.no_kernel_error(missing, program, model.origin, names)


def _find_cause(
    exported: ExportedProgram, inputs: list[Any], options: ExportOptions, output: int
) -> tuple[str, Cause] | None:
    """The operator after which an output of a graph is wrong, as `find_cause`."""
    from workbench.export.cause import find_cause

    precision = PRECISIONS[options.dtype]
    least_db = _PART_DB if precision.quantizes else precision.least_sqnr_db
    return find_cause(
        exported, inputs, output, lambda part: _lower(part, options, {}).program, least_db
    )


def _cast(
    model: LoadedModel, options: ExportOptions, trace: TracedModel
) -> tuple[nn.Module, ExportedProgram | None, Call, Call]:
    """The traced module in a dtype, its trace if that holds there, and what it is run on.

    The last is what it is traced on.
    """
    dtype = getattr(torch, DTYPES[options.dtype])
    module, graph = trace.module, None
    run = model.example_inputs, model.kwargs
    traced = model.traced_inputs or run
    with failure.explain(failure.FORWARD, model.origin):
        if _needs_cast(model, dtype):
            module = copy.deepcopy(module).to(dtype)
            run, traced = cast_floats((run, traced), dtype)
        elif not options.rewrite:
            graph = trace.exported
        elif model.exported is not None:  # which rewrites would change for others
            graph = copy_program(trace.exported)
    return module, graph, run, traced


def _list_missing(layers: Layers) -> list[str]:
    """The operators for which the runtime of this machine has no kernel."""
    from executorch.runtime import Runtime

    names = Runtime.get().operator_registry.operator_names
    return sorted(count_calls(layers, "kernel").keys() - names)


def _describe_changes(
    made: _Made, layers: Layers, options: ExportOptions, counts: Counter[str]
) -> dict[str, str]:
    """What was quantised, what the documented lines lack, and what was rewritten."""
    notes = {}
    if PRECISIONS[options.dtype].quantizes:
        quantized, products = count_quantized(layers)
        notes["quantized"] = f"{quantized} of {products} convolutions and matrix products"
    if made.needs:
        notes["needs"] = made.needs
    if options.rewrite:
        notes["rewritten"] = str(counts)
    return notes


def _needs_cast(model: LoadedModel, dtype: torch.dtype) -> bool:
    """Whether a model or its inputs have floating-point values that are cast to a dtype.

    Double precision is not cast to single: that would be another program than the user's.
    """
    calls = (model.example_inputs, model.kwargs, model.traced_inputs, model.calibration)
    tensors = [*model.module.parameters(), *model.module.buffers(), *tree_leaves(calls)]
    dtypes = {each.dtype for each in tensors if isinstance(each, torch.Tensor)}
    floats = {torch.float32, torch.float64} if dtype == torch.float32 else {dtype}
    return any(each.is_floating_point and each not in floats for each in dtypes)


def suggest_rewrites(
    model: LoadedModel, options: ExportOptions, trace: TracedModel, operator: str = ""
) -> list[str]:
    """The rewrites that could avoid a fault of a program, the likeliest first.

    Those that replace an ``operator`` of the trace, by its name, if there are such.
    """
    exported, dtype = trace.exported, getattr(torch, DTYPES[options.dtype])
    if _needs_cast(model, dtype):
        with silence(), failure.explain(failure.TRACING, model.origin):
            module = copy.deepcopy(trace.module).to(dtype)
            call = cast_floats(model.traced_inputs or (model.example_inputs, model.kwargs), dtype)
            bound = bind_constants(module, *call)
            exported = trace_program(*bound, model.dynamic_shapes, strict=bool(model.metadata))
    rewriter = find_rewriter()
    if operator and (names := rewriter.match(exported, options.backend, operator)):
        return [name for name in names if name not in options.rewrite]
    names = rewriter.match(exported, options.backend)
    if PRECISIONS[options.dtype].quantizes == "graph":
        names = [*quantize.matching_exceptions(exported.graph, options.dtype), *names]
    if exported.range_constraints:
        names.insert(0, "batch")
    return [name for name in dict.fromkeys(names) if name not in options.rewrite]


def _quantize(
    module: nn.Module, exported: ExportedProgram | None, run: Call, traced: Call,
    model: LoadedModel, options: ExportOptions, counts: Counter[str],
) -> tuple[ExportedProgram, ExportedProgram | None, dict[str, str], MeasureNoise]:  # fmt: skip
    """The exported graph, quantised if the dtype is, and before; notes; what measures the noise."""
    precision, modules = PRECISIONS[options.dtype], options.module_dtypes
    ways = {PRECISIONS[each].quantizes for each in (options.dtype, *dict(modules).values())}
    # As upstream's exporter of language models; others may have code that Dynamo cannot trace.
    strict = bool(model.metadata)
    with failure.explain(failure.TRACING, model.origin):
        if "weights" in ways:
            module, exported = copy.deepcopy(module), None
            quantize.quantize_weights(module, options.dtype, modules, options.group_size)
        if exported is None:
            bound = bind_constants(module, *traced)
            exported = trace_program(*bound, model.dynamic_shapes, strict=strict)
        exported.graph_module.meta["quantised"] = options.dtype == "int8"
        before = None
        if "graph" in ways:
            rewriter = find_rewriter(options.rewrite)
            counts += rewriter.apply(exported, options.rewrite, options.backend, quantised=True)
            mark_operators(exported)
            before = exported
            walks, graph = _quantize_graph(exported, module, run, model, options, counts)
            exported = trace_program(
                graph, *bind_constants(module, *traced)[1:], model.dynamic_shapes
            )
    if not precision.quantizes:
        return exported, None, {}, None
    notes = {}
    if precision.calibrated or "int8" in dict(modules).values():
        notes["calibration"] = f"{1 + len(model.calibration)} batches: {model.input_source}"
    if "graph" in ways:
        return exported, before, notes, walks.rank_layers
    places = {path: (path, type(layer).__name__) for path, layer in module.named_modules()}
    exact, noisy = (partial(accuracy.walk_module, it, run) for it in (model.module, module))
    return exported, before, notes, accuracy.Walks(exact, noisy, places).rank_layers


def _quantize_graph(
    exported: ExportedProgram,
    module: nn.Module,
    run: Call,
    model: LoadedModel,
    options: ExportOptions,
    counts: Counter[str],
) -> tuple[accuracy.Walks, torch.fx.GraphModule]:
    """Walks of the graph before and after quantisation, its places, and the quantised graph."""
    batches = [bind_constants(module, *each)[1:] for each in (run, *model.calibration)]
    graph, before = quantize.quantize_activations(exported, options, batches, counts)
    inputs = tree_leaves(exported.example_inputs)
    exact, noisy = (partial(accuracy.walk_graph, it, inputs) for it in (before, graph))
    return accuracy.Walks(exact, noisy, quantize.list_places(graph.graph)), graph


def walk_quantised(model: LoadedModel, options: ExportOptions) -> accuracy.Walks:
    """The walks of a dtype that quantises the graph, on the first sample."""
    model = choose_inputs(model, options)
    run, trace = (model.example_inputs, model.kwargs), trace_model(model)
    with silence(), failure.explain(failure.TRACING, model.origin):
        options = ExportOptions(dtype=options.dtype, rewrite=QUANTISER_REWRITES)
        return _quantize_graph(trace.exported, trace.module, run, model, options, Counter())[0]


@dataclass(frozen=True)
class _Made:
    """A lowered program, its operators in the edge dialect, and what was delegated.

    ``operators`` come with whether they are delegated; ``needs`` is what the documented lines lack
    for this graph.
    """

    program: ExecutorchProgramManager
    operators: list[tuple[torch.fx.Node, bool]]
    partition: tuple[Partition, ...]
    needs: str = ""


def _lower(
    exported: ExportedProgram,
    options: ExportOptions,
    metadata: dict[str, Any],
    counts: Counter[str] | None = None,
) -> _Made:
    """Lower a graph as documented; where only that refuses it, with what makes it pass.

    The program then says so: whoever exports it needs the same.
    """
    counts = Counter() if counts is None else counts
    try:
        return _lower_once(exported, options, metadata, counts)
    except Exception as error:  # passes wrap what they raise in others
        needs = _find_need(error) or (FILTERS if copy_filters(exported) else "")
        if not needs:
            raise
    checked, graded = needs != UNCHECKED, needs != UNGRADED
    made = _lower_once(exported, options, metadata, counts, checked=checked, graded=graded)
    return replace(made, needs=needs)


#: What upstream's own lines need for a few graphs.
UNCHECKED = "EdgeCompileConfig(_check_ir_validity=False): upstream's check refuses an operator"
UNGRADED = "torch.no_grad(): a buffer is overwritten in place"
FILTERS = "a filter for each call of a conv1d: upstream refuses two calls with the same one"


def _find_need(error: BaseException | None) -> str:
    """What lowering needs, from what it raised; empty if nothing is known to help."""
    while error is not None:
        if isinstance(error, operator_refusal()):
            return UNCHECKED
        if isinstance(error, RuntimeError) and "requires grad" in str(error):
            return UNGRADED
        error = error.__cause__ or error.__context__
    return ""


def _lower_once(
    exported: ExportedProgram,
    options: ExportOptions,
    metadata: dict[str, Any],
    counts: Counter[str],
    *,
    checked: bool = True,
    graded: bool = True,
) -> _Made:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
        XnnpackDynamicallyQuantizedPartitioner,
        XnnpackPartitioner,
    )
    from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower

    partitioners: list[Any] = [XnnpackPartitioner()] if options.backend == "xnnpack" else []
    if metadata and partitioners:  # as upstream's exporter of language models
        partitioners.insert(0, XnnpackDynamicallyQuantizedPartitioner())
    half = PRECISIONS[options.dtype].half_weights
    weights = keep_half_weights() if half else contextlib.nullcontext()
    # Not under no_grad() as a rule: programs in bfloat16 then have other constants.
    batch, grads = _free_batch(exported, options, counts), torch.set_grad_enabled(graded)
    with collect_reasons() as reasons, weights, batch, grads, _keep_constants(exported):
        edge = to_edge_transform_and_lower(
            exported,
            transform_passes=find_rewriter().make_passes(options.rewrite, counts),
            partitioner=partitioners,
            constant_methods=metadata or None,
            compile_config=edge_config(checked=checked),
            generate_etrecord=options.etrecord,
        )
        partition = list_partitions(edge, reasons, options.backend)
        operators = list(list_edge_operators(edge))
        config = ExecutorchBackendConfig(run_reinplace_pass="in_place" in options.rewrite)
        return _Made(edge.to_executorch(config), operators, partition)


@contextlib.contextmanager
def _keep_constants(exported: ExportedProgram) -> Iterator[None]:
    """Give a graph back the constants that lowering moves into delegates: it is run later."""
    constants = dict(exported.constants)
    try:
        yield
    finally:
        exported.constants.update(constants)


def _list_remedies_of(
    kernels: Sequence[str], made: _Made, exported: ExportedProgram, options: ExportOptions
) -> list[str]:
    """The remedies that replace all operators that need some kernels; empty if some have none."""
    lacking = {
        read_mark(node)
        for node, _ in made.operators
        if any(schema_name(node.target) == kernel.partition(".")[0] for kernel in kernels)
    }
    operators, outside = _list_origins(made)
    names: list[str] = []
    offer = find_rewriter().offer
    for rewrite in offer(exported, options.backend, operators, outside, options.rewrite):
        if not lacking.isdisjoint(rewrite.nodes):
            names.append(rewrite.name)
            lacking -= {*rewrite.nodes}
    return [] if lacking else list(dict.fromkeys(names))


def _list_origins(made: _Made) -> tuple[dict[str, list[str]], set[str]]:
    """The traced operators that the edge program still has, and those not delegated as a whole."""
    marks = [(read_mark(node), delegated) for node, delegated in made.operators]
    operators = {mark: [mark] for mark, _ in marks if mark}
    return operators, {mark for mark, delegated in marks if mark and not delegated}


@contextlib.contextmanager
def _free_batch(
    exported: ExportedProgram, options: ExportOptions, counts: Counter[str]
) -> Iterator[None]:
    """With the rewrite ``batch``: let no library of PyTorch limit a dynamic batch.

    Which library PyTorch would use for a convolution depends on whether the batch is 16 or more:
    the answer becomes a limit of a dynamic batch, of 15 for an example of less.
    """
    if "batch" not in options.rewrite or not exported.range_constraints:
        yield
        return
    counts["batch"] += 1
    with torch.backends.nnpack.flags(False), torch.backends.mkldnn.flags(False):
        yield


def _write_etrecord(program: ExecutorchProgramManager) -> bytes:
    """The ETRecord; empty for the few graphs that PyTorch emits but cannot serialise."""
    from executorch.exir.serde.export_serialize import SerializeError

    buffer = io.BytesIO()
    try:
        program.get_etrecord().save(buffer)
    except SerializeError:
        return b""
    return buffer.getvalue()


def list_partitions(
    edge: EdgeProgramManager, reasons: dict[str, str], backend: str
) -> tuple[Partition, ...]:
    """The operators of a lowered program: undelegated ones first, then the most frequent."""
    modules: dict[tuple[bool, str, str, str], list[str]] = defaultdict(list)
    top = edge.exported_program().graph
    for node, delegated in list_edge_operators(edge):
        target: Any = node.target
        source = reason = ""
        if not delegated:
            source = user_line_of_node(node)
            if backend != "portable":
                reason = reasons.get(node.name) or _missing(target)
                reason = reason if node.graph is top else _IN_BODY
                reason = _AT_RUN_TIME if reason == _DTYPE and _reads_sizes(node) else reason
        operator = target.__name__.removesuffix(".default")
        path = "" if delegated else quantize.module_path(node)
        modules[delegated, operator, source, reason].append(path)
    ordered = sorted(modules.items(), key=lambda item: (item[0][0], -len(item[1]), item[0]))
    rows = []
    for (delegated, operator, source, reason), paths in ordered:
        inside = tuple(filter(None, dict.fromkeys(paths)))
        rows.append(Partition(operator, len(paths), delegated, reason, source, inside))
    return tuple(rows)


_DTYPE, _AT_RUN_TIME = "invalid dtype", "a size that is known only at run time"
_IN_BODY = "in the body of control flow, where XNNPACK's partitioner does not look"


def _reads_sizes(node: torch.fx.Node) -> bool:
    """Whether the first operand that the partitioner refuses is a number, or of unknown size.

    It calls that an invalid dtype.
    """
    lists = (each if isinstance(each, list | tuple) else [each] for each in node.args)
    for operand in chain.from_iterable(lists):
        value = operand.meta.get("val") if isinstance(operand, torch.fx.Node) else None
        if isinstance(value, torch.Tensor):
            if value.dtype not in (torch.float32, torch.float16):
                return False
            if any(
                isinstance(size, torch.SymInt) and has_free_unbacked_symbols(size)
                for size in value.shape
            ):
                return True
        elif isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return True
    return False


def _missing(target: Any) -> str:
    from executorch.backends.xnnpack.partition.config import ALL_PARTITIONER_CONFIGS
    from executorch.exir.backend.canonical_partitioners.config_partitioner import format_target_name

    name = format_target_name(target.__name__)
    has_rule = any(config.target_name == name for config in ALL_PARTITIONER_CONFIGS)
    return "XNNPACK does not support this form" if has_rule else "XNNPACK has no node for it"
