"""Quantise weights and activations in the patterns that the XNNPACK partitioner supports."""

import copy
import re
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from workbench.models.process import replaced
from workbench.options import ModuleDtypes, dtype_of_module

_SUMS = ("aten::add", "aten::add_")
_ACTIVATIONS = ("aten::relu", "aten::relu_", "aten::hardtanh", "aten::hardtanh_", "aten::clamp")
_DYNAMIC = ("int8dyn", "8da4c")
_LAYERS = ("aten::conv1d", "aten::conv2d", "aten::linear", "aten::conv_transpose2d")


def quantize_activations(
    exported: ExportedProgram,
    dtype: str,
    batches: Iterable[tuple[tuple[Any, ...], dict[str, Any]]],
    module_dtypes: ModuleDtypes = (),
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """Post-training quantisation of an exported program (PT2E), to be exported once more.

    Also returns the program before, with the same names of operators, and with observers.

    Weights have one symmetric scale per output channel; activations one scale and zero point, from
    histograms of ``batches``. ``int8`` quantises every pattern of the XNNPACK quantiser, except two
    in which values of different magnitude would share a scale: sums that a layer norm reads (the
    residual stream of a transformer), and concatenations with values that no layer computed, such
    as a class token. Either reduces vit_tiny from 29 to less than 10 dB SQNR. ``int8dyn`` quantises
    linear layers only: dynamically quantised convolutions with fused activations are not lowered
    reliably. ``module_dtypes`` are as in `ExportOptions`.
    """
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )
    from torchao.quantization.pt2e import quantize_pt2e
    from torchao.quantization.pt2e.quantizer import ComposableQuantizer, QuantizationAnnotation
    from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

    def make_quantizer(wanted: str) -> Any:
        is_dynamic = wanted in _DYNAMIC
        weights = {"weight_qmin": -8, "weight_qmax": 7} if wanted == "8da4c" else {}
        config = get_symmetric_quantization_config(
            is_per_channel=True, is_dynamic=is_dynamic, **weights
        )
        chosen = _may_be_quantized(wanted, dtype, module_dtypes)
        quantizer = XNNPACKQuantizer().set_filter_function(chosen)
        if is_dynamic:
            return quantizer.set_operator_type(torch.ops.aten.linear.default, config)
        return quantizer.set_global(config)

    graph = exported.module()
    # The filter does not apply to concatenations; those marked as annotated are skipped.
    is_static = _may_be_quantized("int8", dtype, module_dtypes)
    for node in graph.graph.nodes:
        if _operator(node) == "aten::cat" and not is_static(node):
            node.meta[Q_ANNOTATION_KEY] = QuantizationAnnotation(_annotated=True)
    wanted = {dtype, *dict(module_dtypes).values()} & {"int8", *_DYNAMIC}
    quantizer = ComposableQuantizer([*map(make_quantizer, sorted(wanted))])
    prepared = quantize_pt2e.prepare_pt2e(graph, quantizer)
    with torch.no_grad():
        for args, kwargs in batches:
            prepared(*args, **kwargs)
        before = torch.fx.GraphModule(prepared, copy.deepcopy(prepared.graph))
        # The patterns of quantisation-aware training cannot be here; the search takes 20 s.
        with replaced(quantize_pt2e, "_fold_conv_bn_qat", lambda graph: graph):
            graph = quantize_pt2e.convert_pt2e(prepared)
    _split_dequantized(graph)
    return graph, before


def _split_dequantized(graph: torch.fx.GraphModule) -> None:
    """Give every quantised reader of a value its own dequantisation.

    ExecuTorch 1.5.1 lowers both as one, which must not depend on another reader of that value.
    """
    for node in list(graph.graph.nodes):
        if _operator(node).endswith("::dequantize_per_tensor") and len(node.users) > 1:
            for reader in list(node.users):
                last = reader
                while len(last.users) == 1 and _operator(next(iter(last.users))) in _ACTIVATIONS:
                    last = next(iter(last.users))
                if any("::quantize" in _operator(user) for user in last.users):
                    with graph.graph.inserting_after(node):
                        reader.replace_input_with(node, graph.graph.node_copy(node))
    graph.graph.eliminate_dead_code()
    graph.recompile()


def quantize_weights(
    module: nn.Module, dtype: str, module_dtypes: ModuleDtypes, group_size: int
) -> None:
    """Give linear layers int4 weights in groups, and int8 activations at run time; in place.

    Layers whose input does not divide into groups are left in floating point.
    """
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig, quantize_
    from torchao.quantization.granularity import PerGroup

    def is_wanted(layer: nn.Module, path: str) -> bool:
        divides = isinstance(layer, torch.nn.Linear) and not layer.in_features % group_size
        return divides and dtype_of_module(path, dtype, module_dtypes) == "8da4w"

    config = Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int4,  # type: ignore[attr-defined]
        weight_granularity=PerGroup(group_size),
    )
    quantize_(module, config, filter_fn=is_wanted)


def list_places(graph: torch.fx.Graph) -> dict[str, tuple[str, str]]:
    """The module of every operator, and what it calls, such as ``conv2d``, by its name."""
    return {
        node.name: (module_path(node), _operator(node).removeprefix("aten::"))
        for node in graph.nodes
    }


def has_quantized(exported: ExportedProgram) -> bool:
    """Whether some convolution or linear layer has quantised weights."""
    layers = (node for node in exported.graph.nodes if _operator(node) in _LAYERS)
    return any("dequantize" in _operator(node.args[1]) for node in layers)


def module_path(node: torch.fx.Node) -> str:
    """The path of the innermost module of a node in an exported program."""
    stack = node.meta.get("nn_module_stack") or {}
    path = next(reversed(stack.values()))[0] if stack else ""
    return re.sub(r"^L\['self'\]\.?", "", path)


def _may_be_quantized(
    wanted: str, dtype: str, module_dtypes: ModuleDtypes
) -> Callable[[torch.fx.Node], bool]:
    def may_be_quantized(node: torch.fx.Node) -> bool:
        if not _operator(node):  # a weight, which has no layer
            return True
        # The XNNPACK backend cannot lay out a quantised tensor without dimensions.
        values = [source.meta.get("val") for source in node.all_input_nodes]
        is_scalar = any(getattr(value, "ndim", 1) == 0 for value in values)
        # The last sum of a residual stream may have another reader.
        sums = [each for each in (node, *node.all_input_nodes) if _operator(each) in _SUMS]
        readers = {_operator(user) for each in sums for user in each.users}
        is_residual = node in sums and "aten::layer_norm" in readers
        is_uneven = _operator(node) == "aten::cat" and not all(map(_is_made, node.all_input_nodes))
        is_wanted = dtype_of_module(module_path(node), dtype, module_dtypes) == wanted
        return is_wanted and not (is_scalar or is_residual or is_uneven)

    return may_be_quantized


def _is_made(node: torch.fx.Node) -> bool:
    """Whether a layer computed a value: no input, parameter or view of these."""
    while _operator(node) and len(node.all_input_nodes) == 1:
        node = node.all_input_nodes[0]
    return bool(_operator(node))


def _operator(node: Any) -> str:
    """The name of what a node calls, such as ``aten::linear``; empty if it calls nothing."""
    schema = getattr(getattr(node, "target", None), "_schema", None)
    return schema.name if schema is not None else ""
