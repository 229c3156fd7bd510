"""Quantise weights and activations in the patterns that the XNNPACK partitioner supports."""

import copy
import operator
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from workbench.export.purity import drop_unused
from workbench.options import ExportOptions, ModuleDtypes, dtype_of_module
from workbench.upstream import keep_in_float, schema_name

_SUMS = ("aten::add", "aten::add_")
_ACTIVATIONS = ("aten::relu", "aten::relu_", "aten::hardtanh", "aten::hardtanh_", "aten::clamp")
_DYNAMIC = ("int8dyn", "8da4c")
_LAYERS = ("aten::conv1d", "aten::conv2d", "aten::linear", "aten::conv_transpose2d")


def quantize_activations(
    exported: ExportedProgram,
    options: ExportOptions,
    batches: Iterable[tuple[tuple[Any, ...], dict[str, Any]]],
    counts: Counter[str],
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """Post-training quantisation of an exported program (PT2E), to be exported once more.

    Also returns the program before, with the same names of operators, and with observers.

    By default this is upstream's recipe: weights have one symmetric scale per output channel;
    activations one scale and zero point, from histograms of ``batches`` (int8) or found at run time
    (int8dyn). 8da4c quantises linear layers only. ``counts`` gets how often each rewrite of
    ``options`` changed that:

    - ``sums`` that a layer norm reads (the residual stream of a transformer), and
      ``concatenations`` with values that no layer computed, such as a class token, stay in floating
      point: values of different magnitude would share a scale. Either reduces vit_tiny from 29 to
      less than 10 dB SQNR.
    - ``scalars``: the XNNPACK backend cannot lay out a quantised tensor without dimensions.
    - ``linears``: dynamically quantised convolutions with fused activations are not lowered
      reliably.
    - ``readers``: ExecuTorch 1.5.1 lowers two quantised readers of one dequantised value as one,
      which must not depend on another reader of that value.
    """
    from torchao.quantization.pt2e import quantize_pt2e
    from torchao.quantization.pt2e.quantizer import ComposableQuantizer

    dtypes = {options.dtype, *dict(options.module_dtypes).values()} & {"int8", *_DYNAMIC}
    graph = exported.module()
    if "copies" in options.rewrite:
        counts["copies"] += _copy_shared(graph)
    in_float: Kept = defaultdict(set)
    quantizers = [_make_quantizer(dtype, options, in_float) for dtype in sorted(dtypes)]
    # The quantiser's filter does not apply to concatenations.
    if "concatenations" in options.rewrite:
        in_float["concatenations"] = {*filter(_is_uneven, graph.graph.nodes)}
    keep_in_float(in_float["concatenations"] | _list_other(graph.graph, options))
    quantizer = quantizers[0] if len(quantizers) == 1 else ComposableQuantizer(quantizers)
    prepared = quantize_pt2e.prepare_pt2e(graph, quantizer)
    with torch.no_grad():
        for args, kwargs in batches:
            prepared(*args, **kwargs)
        before = torch.fx.GraphModule(prepared, copy.deepcopy(prepared.graph))
        graph = quantize_pt2e.convert_pt2e(prepared)
    counts.update({name: len(nodes) for name, nodes in in_float.items()})
    if "readers" in options.rewrite:
        counts["readers"] += _split_dequantized(graph)
    return graph, before


#: What keeps an operator in floating point, by name of the rewrite.
Kept = dict[str, set[torch.fx.Node]]


def _make_quantizer(dtype: str, options: ExportOptions, in_float: Kept) -> Any:
    """Upstream's quantiser for one dtype; it has a filter only where something may be ``kept``."""
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )

    is_dynamic = dtype in _DYNAMIC
    weights = {"weight_qmin": -8, "weight_qmax": 7} if dtype == "8da4c" else {}
    config = get_symmetric_quantization_config(
        is_per_channel=True, is_dynamic=is_dynamic, **weights
    )
    rules = {"sums": _is_residual, "scalars": _takes_scalar}
    chosen = {name: rules[name] for name in options.rewrite if name in rules}

    def may_be_quantized(node: torch.fx.Node) -> bool:
        if not schema_name(node.target):  # a weight, which has no layer
            return True
        reasons = [name for name, applies in chosen.items() if applies(node)]
        for name in reasons:
            in_float[name].add(node)
        wanted = options.dtype_of(module_path(node))
        return wanted == dtype and not reasons

    quantizer = XNNPACKQuantizer()
    if chosen or options.module_dtypes:
        quantizer.set_filter_function(may_be_quantized)
    if dtype == "8da4c" or (is_dynamic and "linears" in options.rewrite):
        return quantizer.set_operator_type(torch.ops.aten.linear.default, config)
    return quantizer.set_global(config)


def matching_exceptions(graph: torch.fx.Graph, dtype: str) -> list[str]:
    """The rewrites of the quantiser that may change a graph in a dtype, the likeliest first."""
    rules = {"sums": _is_residual, "concatenations": _is_uneven}
    names = [name for name, applies in rules.items() if any(map(applies, graph.nodes))]
    # Numbers become tensors without dimensions, and values get their readers, only later.
    shared = ["copies"] if dtype == "int8" and _has_shared(graph) else []
    return [*shared, *names, "scalars", *(["readers"] if dtype == "int8" else ["linears"])]


def _has_shared(graph: torch.fx.Graph) -> bool:
    """Whether some layer is called more than once."""
    sources: Counter[Any] = Counter()
    for node in graph.nodes:
        if schema_name(node.target) in _LAYERS:
            sources.update(node.args[1:3])
    return any(count > 1 for source, count in sources.items() if isinstance(source, torch.fx.Node))


def _list_other(graph: torch.fx.Graph, options: ExportOptions) -> set[torch.fx.Node]:
    """Concatenations of modules in another dtype than int8: the quantiser's filter misses them."""
    if not options.module_dtypes:
        return set()
    joined = [node for node in graph.nodes if schema_name(node.target) == "aten::cat"]
    wanted = {node: options.dtype_of(module_path(node)) for node in joined}
    return {node for node, dtype in wanted.items() if dtype != "int8"}


def _is_residual(node: torch.fx.Node) -> bool:
    """Whether a node is a sum that a layer norm reads, or that adds to such a sum."""
    # The last sum of a residual stream may have another reader.
    sums = [each for each in (node, *node.all_input_nodes) if schema_name(each.target) in _SUMS]
    readers = {schema_name(user.target) for each in sums for user in each.users}
    return node in sums and "aten::layer_norm" in readers


def _is_uneven(node: torch.fx.Node) -> bool:
    """Whether a node joins values of layers with others."""
    joins = schema_name(node.target) == "aten::cat"
    return joins and not all(map(_is_made, node.all_input_nodes))


def _takes_scalar(node: torch.fx.Node) -> bool:
    """Whether an operator takes a tensor without dimensions."""
    values = [source.meta.get("val") for source in node.all_input_nodes]
    return bool(schema_name(node.target)) and any(getattr(v, "ndim", 1) == 0 for v in values)


def _split_dequantized(graph: torch.fx.GraphModule) -> int:
    """Give every quantised reader of a value its own dequantisation; how many were added."""
    added = 0
    for node in list(graph.graph.nodes):
        if schema_name(node.target).endswith("::dequantize_per_tensor") and len(node.users) > 1:
            for reader in filter(_is_quantized, list(node.users)):
                with graph.graph.inserting_after(node):
                    reader.replace_input_with(node, graph.graph.node_copy(node))
                added += 1
    drop_unused(graph.graph)
    graph.recompile()
    return added


def _copy_shared(graph: torch.fx.GraphModule) -> int:
    """Give each call of a layer its own weights and bias; how many layers were copied.

    ExecuTorch 1.5.1 quantises a bias once, with the scale of the input of one of the calls.
    """
    count = 0
    for node in list(graph.graph.nodes):
        users = [user for user in node.users if schema_name(user.target) in _LAYERS]
        if node.op != "get_attr" or len(users) < 2:
            continue
        for number, user in enumerate(users[1:], 1):
            name = f"{str(node.target).replace('.', '_')}_copy{number}"
            tensor: Any = operator.attrgetter(str(node.target))(graph)
            graph.register_buffer(name, tensor.detach().clone())
            with graph.graph.inserting_before(user):
                copied = graph.graph.get_attr(name)
            copied.meta = dict(node.meta)
            user.replace_input_with(node, copied)
            count += 1
    graph.recompile()
    return count


def _is_quantized(node: torch.fx.Node) -> bool:
    """Whether a node's result, after activations, is quantised."""
    while len(node.users) == 1 and schema_name(next(iter(node.users)).target) in _ACTIVATIONS:
        node = next(iter(node.users))
    return any("::quantize" in schema_name(user.target) for user in node.users)


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
        node.name: (module_path(node), schema_name(node.target).removeprefix("aten::"))
        for node in graph.nodes
    }


def has_quantized(exported: ExportedProgram) -> bool:
    """Whether some convolution or linear layer has quantised weights."""
    layers = [node for node in exported.graph.nodes if schema_name(node.target) in _LAYERS]
    weights: list[Any] = [layer.args[1] for layer in layers]
    return any("dequantize" in schema_name(weight.target) for weight in weights)


def module_path(node: torch.fx.Node) -> str:
    """The path of the innermost module of a node in an exported program."""
    stack = node.meta.get("nn_module_stack") or {}
    path = next(reversed(stack.values()))[0] if stack else ""
    return re.sub(r"^L\['self'\]\.?", "", path)


def _is_made(node: torch.fx.Node) -> bool:
    """Whether a layer computed a value: no input, parameter or view of these."""
    while schema_name(node.target) and len(node.all_input_nodes) == 1:
        node = node.all_input_nodes[0]
    return bool(schema_name(node.target))
