"""The dtypes a program can be exported in: what each means, and how near it must come to eager.

Silence for the exporter's own chatter.

Convolution weights in half precision, which the XNNPACK serialiser widens to single.

From an eager module to an ExecuTorch program.
"""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from workbench.errors import ExportError
from workbench.export.failure import (
    check_operands,
    explain_forward,
    explain_lowering,
    explain_tracing,
    no_kernel_error,
)
from workbench.export.layers import describe_program
from workbench.export.partition import collect_reasons, tabulate_partition
from workbench.export.program import (
    Contents,
    bind_constants,
    cast_floats,
    missing_kernels,
    read_contents,
)
from workbench.export.quantize import count_quantized, quantize_activations, quantize_weights
from workbench.export.rewrite import rewrite_graph, transform_passes

if TYPE_CHECKING:
    import torch
    from executorch.exir import ExecutorchProgramManager
    from torch import nn
    from torch.export import ExportedProgram

    from workbench.models.loader import LoadedModel
    from workbench.options import ExportOptions
    from workbench.records.layers import Layers
    from workbench.records.runs import Partition


@dataclass(frozen=True)
class Recipe:
    """How one dtype is made.

    Attributes
    ----------
    torch_name
        PyTorch's dtype of the inputs, and of everything that is not quantised.
    meaning
        For a reader, in a few words.
    least_sqnr_db
        The signal to quantisation noise ratio, in dB, below which an export is called wrong. The
        bounds lie far below what a sound export of a deep random network reaches (120, 50, 30, 25
        and 15 dB): they tell a broken graph from the price of a dtype.
    quantizes
        What becomes integers, and where: the ``weights`` of the eager module, or the whole
        ``graph`` that was exported from it.
    calibrated
        Whether the ranges of activations are measured on example inputs.
    half_weights
        Whether convolution weights are serialised in half precision.
    """

    torch_name: str
    meaning: str
    least_sqnr_db: float
    quantizes: Literal["", "weights", "graph"] = ""
    calibrated: bool = False
    half_weights: bool = False


RECIPES = {
    "fp32": Recipe("float32", "single precision", 60),
    "fp16": Recipe("float16", "half precision, convolution weights stored as fp32", 25),
    "fp16w": Recipe("float16", "half precision, all weights", 25, half_weights=True),
    "bf16": Recipe("bfloat16", "bfloat16", 10),
    "int8": Recipe("float32", "int8 weights and activations", 10, "graph", calibrated=True),
    "int8dyn": Recipe("float32", "linear layers in int8, ranges found at run time", 10, "graph"),
    "8da4w": Recipe("float32", "linear layers with int4 weights in groups of 32", 5, "weights"),
}

#: What ``--dtype`` takes, and PyTorch's name of the dtype of a program's inputs.
DTYPES = {name: recipe.torch_name for name, recipe in RECIPES.items()}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Drop warnings and log lines below CRITICAL for a while; prints pass.

    An export that goes well still logs dozens of lines about libraries that are not installed
    and functions that are deprecated inside of PyTorch; what goes wrong arrives as an exception.
    """
    level = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


_CONVOLUTION = "aten.convolution.default"


@contextlib.contextmanager
def keep_half_weights() -> Iterator[None]:
    """Let programs lowered in here keep convolution weights and biases in fp16.

    The serialiser of ``executorch.backends.xnnpack`` stores them as fp32 whatever they are, and
    XNNPACK's fp16 fully connected path, which 1x1 convolutions take, wants fp16 weights. Transposed
    convolutions stay as they are: XNNPACK runs these with fp32 weights only.
    """
    from executorch.backends.xnnpack.operators.node_visitor import _node_visitor_dict as visitors

    visitor = visitors[_CONVOLUTION]

    class HalfVisitor(visitor):
        def define_node(self, node: Any, *args: Any, **kwargs: Any) -> None:
            self.is_transposed = node.args[6]
            super().define_node(node, *args, **kwargs)

        def define_tensor(self, *args: Any, force_fp32: bool = False, **kwargs: Any) -> None:
            super().define_tensor(*args, force_fp32=force_fp32 and self.is_transposed, **kwargs)

    visitors[_CONVOLUTION] = HalfVisitor
    try:
        yield
    finally:
        visitors[_CONVOLUTION] = visitor


#: Arguments and keyword arguments.
Call = tuple[tuple[Any, ...], dict[str, Any]]

BACKENDS = ("xnnpack", "portable")


@dataclass(frozen=True)
class Lowered:
    """A program, its ETRecord (empty where PyTorch cannot write one), its layers, and its inputs.

    ``inputs`` are the model's example tensors, in the dtype and the order of the program; ``notes``
    say what was done to the graph.
    """

    pte: bytes
    etrecord: bytes
    contents: Contents
    inputs: list[torch.Tensor]
    layers: Layers
    notes: dict[str, str]
    partition: tuple[Partition, ...]


def lower_model(
    model: LoadedModel, options: ExportOptions, tell: Callable[[str], None] = lambda text: None
) -> Lowered:
    """Export a model and lower it to a backend; the model itself stays as it is.

    Raises
    ------
    ExportError
        With the operator and the line in the user's source, where these are known.
    """
    import torch
    from torch.utils._pytree import tree_leaves

    dtype, backend = options.dtype, options.backend
    torch_dtype = getattr(torch, DTYPES[dtype])
    tell(f"exporting in {dtype}")
    with explain_forward(model.origin):
        module = copy.deepcopy(model.module).to(torch_dtype).eval()
        args, kwargs = cast_floats((model.example_inputs, model.kwargs), torch_dtype)
        traced = cast_floats(model.traced_inputs, torch_dtype) or (args, kwargs)
    exported, notes = _export(module, (args, kwargs), traced, model, options)
    check_operands(exported, dtype, model.origin)
    if options.rewrite:
        counts = sorted(rewrite_graph(exported, backend).items())
        notes["rewritten"] = ", ".join(f"{count} {name}" for name, count in counts) or "nothing"
    tell(f"lowering to {backend}")
    keeping = keep_half_weights() if RECIPES[dtype].half_weights else contextlib.nullcontext()
    with explain_lowering(exported, model.origin), keeping:
        program, edge, partition = _lower(exported, backend, options.rewrite)
    contents = read_contents(program)
    if missing := missing_kernels(contents):
        raise no_kernel_error(missing, program.exported_program(), model.origin)
    _, args, kwargs = bind_constants(module, args, kwargs)
    inputs = tree_leaves((args, {name: kwargs[name] for name in exported.example_inputs[1]}))
    _check_inputs(inputs, contents, model.origin)
    with explain_lowering(exported, model.origin):
        etrecord, layers = _write_etrecord(exported, edge, program), describe_program(program)
    return Lowered(program.buffer, etrecord, contents, inputs, layers, notes, partition)


def _export(
    module: nn.Module,
    run: Call,
    traced: Call,
    model: LoadedModel,
    options: ExportOptions,
) -> tuple[ExportedProgram, dict[str, str]]:
    """The exported program, quantised if the dtype says so, and notes on that."""
    recipe = RECIPES[options.dtype]
    with explain_tracing(model.origin):
        if recipe.quantizes == "weights":
            quantize_weights(module, options.keep_float)
        bound = bind_constants(module, *traced)
        exported = _trace(*bound, model.dynamic_shapes)
        if recipe.quantizes == "graph":
            batches = [bind_constants(module, *call)[1:] for call in (run, *model.calibration)]
            exported = _trace(
                quantize_activations(exported, options.dtype, batches, options.keep_float),
                *bound[1:],
                model.dynamic_shapes,
            )
    if not recipe.quantizes:
        return exported, {}
    quantized, layers = count_quantized(exported)
    if not quantized:
        raise ExportError(
            f"nothing to quantise for {options.dtype} ({recipe.meaning})",
            where=model.origin,
            hint="choose int8 for convolutions; see what --keep-float excludes",
        )
    notes = {"quantized": f"{quantized} of {layers} convolutions and linear layers"}
    if recipe.calibrated:
        notes["calibration"] = f"{1 + len(model.calibration)} batches: {model.input_source}"
    return exported, notes


def _trace(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any
) -> ExportedProgram:
    """``torch.export``, without the graph that it prints to stderr when it fails."""
    import torch

    printed = io.StringIO()
    with contextlib.redirect_stderr(printed), torch.no_grad():
        exported = torch.export.export(module, args, kwargs, dynamic_shapes=dynamic_shapes)
    sys.stderr.write(printed.getvalue())
    return exported


def _lower(
    exported: ExportedProgram, backend: str, rewrite: bool
) -> tuple[ExecutorchProgramManager, ExportedProgram, tuple[Partition, ...]]:
    """The program, the edge program that the partitioner was given, and what it did with it."""
    from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower

    seen: list[ExportedProgram] = []
    with collect_reasons() as reasons:
        edge = to_edge_transform_and_lower(
            exported,
            transform_passes=transform_passes(rewrite, seen.append),
            partitioner=_partitioners(backend),
            # It would turn down operators outside of Core ATen that the runtime does have kernels
            # for (bitwise shifts, masked_select); what it lacks is checked on the emitted program.
            compile_config=EdgeCompileConfig(_check_ir_validity=False),
        )
    partition = tabulate_partition(edge, reasons, backend)
    return edge.to_executorch(), seen[0], partition


def _partitioners(backend: str) -> list[Any]:
    if backend == "portable":
        return []
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    return [XnnpackPartitioner()]


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


def _check_inputs(inputs: list[torch.Tensor], contents: Contents, origin: str) -> None:
    """Make sure that each example tensor is the program's input at the same place."""
    given = [(str(t.dtype).removeprefix("torch."), tuple(t.shape)) for t in inputs]
    taken = [(slot.dtype, slot.shape) for slot in contents.inputs]
    fits = len(given) == len(taken) and all(
        g == t or (slot.dynamic and g[0] == t[0] and len(g[1]) == len(t[1]))
        for g, t, slot in zip(given, taken, contents.inputs, strict=True)
    )
    if not fits:
        raise ExportError(f"the program takes {taken}, the examples are {given}", where=origin)
