"""Rewrite operators that a backend does not support, or computes incorrectly, if asked to."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import torch
from torch.export import ExportedProgram, default_decompositions
from torch.fx import Node, Proxy
from torch.fx.node import map_arg
from torch.fx.proxy import GraphAppendingTracer

from workbench.export.equivalence import (
    EQUIVALENTS,
    Equivalent,
    Finder,
    hard_sigmoid,
    normalise,
    readers,
)
from workbench.options import COMMON_REWRITES, ExportOptions
from workbench.records.runs import Rewrite
from workbench.upstream import fold_constants

aten: Any = torch.ops.aten
#: From a node to a function of its tensors that replaces it, if any.
Rule = Callable[[Node], Callable[..., Any] | None]
# Of GELU's approximation by tanh (Hendrycks and Gimpel 2016, section 2).
_GELU_CUBIC = 0.044715
_RECURRENT = {aten.gru.input, aten.lstm.input, aten.rnn_tanh.input, aten.rnn_relu.input}
#: Rewrites that compute with constants, which the export then folds.
_FOLDING = {"constants", "norms", "lookups", "functions"}
#: Rewrites that make others possible end after so many rounds.
_MOST_ROUNDS = 10


def rewrite_operators(exported: ExportedProgram, options: ExportOptions) -> Counter[str]:
    """Apply the rewrites of ``options`` to a graph, in place; how often each changed it.

    Those of `transform_passes` and of the quantiser come later. Of `COMMON_REWRITES`:

    - ``transposes``: two transposes that undo each other go, such as those of a KV cache.
    - ``layer_norm``: layer norm in half precision and bfloat16 runs in single precision:
      ExecuTorch 1.5.1's kernel returns wrong values for some row lengths, such as 256.

    And for XNNPACK, which has no node for these:

    - ``hardsigmoid`` becomes a clamp: PyTorch's decomposition casts its constants at every
      inference, and in half precision all of its arithmetic.
    - ``gelu`` in half precision becomes its tanh approximation, with an error of at most 5e-4, the
      resolution of half precision at 1.
    - ``silu`` in half precision becomes a product with a sigmoid: PyTorch's decomposition computes
      it in single precision, between two casts.
    - ``attention`` without a mask becomes two matrix products and a softmax: PyTorch's
      decomposition guards against fully masked rows with five operators that XNNPACK lacks.
    - ``softmax`` over the last of an image's four dimensions gets two: ExecuTorch 1.5.1's delegate
      keeps the image channels last and applies it to the channels (errors above 0.05).
    """
    names, counts = options.rewrite, Counter[str]()
    counts += _replace_equivalents(exported, {*names} & {*EQUIVALENTS})
    rules = list_rules(exported, names, options.backend)
    for node in list(exported.graph.nodes):
        name, build_replacement = _match(node, rules)
        if build_replacement:
            _replace(node, build_replacement, [a for a in node.args if isinstance(a, Node)])
            counts[name] += 1
    if counts:
        exported.graph.lint()
        exported.graph_module.recompile()
    return counts


#: Rules with the names of their rewrites, by operator; the first that matches counts.
Rules = dict[Any, list[tuple[str, Rule]]]


def list_rules(exported: ExportedProgram, names: Collection[str], backend: str) -> Rules:
    """The rules of some rewrites for a backend."""
    tables = _RULES | (_XNNPACK_RULES if backend == "xnnpack" else {})
    products = partial(_product, _list_fixed(exported))
    tables |= {"products": dict.fromkeys(_PRODUCTS, products)}
    rules: Rules = {}
    for name in filter(tables.__contains__, names):
        for target, rule in tables[name].items():
            rules.setdefault(target, []).append((name, rule))
    return rules


def _match(node: Node, rules: Rules) -> tuple[str, Callable[..., Any] | None]:
    """The rewrite that changes a node, and what builds its replacement."""
    for name, rule in rules.get(node.target, []):
        build_replacement = rule(node)
        if build_replacement:
            return name, build_replacement
    return "", None


def matching_rewrites(exported: ExportedProgram, backend: str) -> list[str]:
    """The rewrites of operators, of `COMMON_REWRITES`, that would change a graph."""
    rules = list_rules(exported, COMMON_REWRITES, backend)
    names = [_match(node, rules)[0] for node in exported.graph.nodes]
    return list(dict.fromkeys(filter(None, names)))


def unroll_recurrences(exported: ExportedProgram) -> ExportedProgram:
    """Replace PyTorch's recurrent operators by their steps, so that rewrites see these."""
    recurrent = _RECURRENT & {node.target for node in exported.graph.nodes}
    if not recurrent:  # nothing is retraced
        return exported
    table = default_decompositions()
    return exported.run_decompositions({each: table[each] for each in recurrent})


def transform_passes(options: ExportOptions, counts: Counter[str]) -> Any:
    """The passes of some rewrites over the edge program, before it is partitioned; None for none.

    ``expansions`` removes those to a tensor's own shape, ``casts`` folds casts of constants; the
    rewrites that compute with constants fold all that depends on no input. ``counts`` gets how
    often each changed the program.
    """
    from executorch.backends.xnnpack.utils.configs import get_transform_passes
    from executorch.exir.pass_base import ExportedProgramPassBase, ExportedProgramPassResult
    from executorch.exir.pass_manager import ExportedProgramPassManager

    folds_all = not _FOLDING.isdisjoint(options.rewrite)
    folds = folds_all or "casts" in options.rewrite
    cleans = "expansions" in options.rewrite
    if not (folds or cleans):
        return None

    class Fold(ExportedProgramPassBase):
        def call(self, exported_program: ExportedProgram) -> ExportedProgramPassResult:
            if cleans:
                counts["expansions"] = sizes.pop() - len(exported_program.graph.nodes)
            folded = 0
            if folds:
                exported_program, folded = fold_constants(exported_program, not folds_all)
                counts["constants" if folds_all else "casts"] += folded
            return ExportedProgramPassResult(exported_program, folded > 0)

    sizes: list[int] = []

    class Count(ExportedProgramPassBase):
        def call(self, exported_program: ExportedProgram) -> ExportedProgramPassResult:
            sizes.append(len(exported_program.graph.nodes))
            return ExportedProgramPassResult(exported_program, False)

    cleaning = get_transform_passes() if cleans else []
    return ExportedProgramPassManager([Count(), *cleaning, Fold()])


def _tensor(argument: Any) -> torch.Tensor:
    """The example value of a node's argument."""
    return argument.meta["val"]


def _is_half(node: Node) -> bool:
    return _tensor(node.args[0]).dtype == torch.float16


def _gelu(x: Any) -> Any:
    cube = aten.mul.Tensor(aten.mul.Tensor(aten.mul.Tensor(x, x), x), _GELU_CUBIC)
    inner = aten.mul.Tensor(aten.add.Tensor(x, cube), math.sqrt(2 / math.pi))
    gate = aten.mul.Tensor(aten.add.Tensor(aten.tanh.default(inner), 1.0), 0.5)
    return aten.mul.Tensor(x, gate)


def _silu(node: Node) -> Callable[..., Any] | None:
    source: Any = node.args[0]
    # Other readers of a tensor that is overwritten may expect the result.
    overwrites = node.target is aten.silu_.default and len(source.users) > 1
    if overwrites or not _is_half(node):
        return None
    return lambda x: aten.mul.Tensor(x, aten.sigmoid.default(x))


def _layer_norm(node: Node) -> Callable[..., Any] | None:
    dtype = _tensor(node.args[0]).dtype
    shape, rest = node.args[1], node.args[2:]

    def replacement(*tensors: Any) -> Any:
        x, *scales = (aten.to.dtype(tensor, torch.float32) for tensor in tensors)
        given = iter(scales)
        affine = [value if value is None else next(given) for value in rest[:2]]
        return aten.to.dtype(aten.layer_norm.default(x, shape, *affine, *rest[2:]), dtype)

    return replacement if dtype in (torch.float16, torch.bfloat16) else None


def _decompose_layer_norm(node: Any) -> Callable[..., Any] | None:
    (width, *more), scales = node.args[1], node.args[2:4]
    is_affine = len(scales) == 2 and None not in scales
    if more or not is_affine or _tensor(node.args[0]).dtype != torch.float32:
        return None
    epsilon = node.args[4] if len(node.args) > 4 else 1e-5

    def replacement(x: Any, weight: Any, bias: Any) -> Any:
        x = normalise(width, epsilon, torch.float32, x)
        return aten.add.Tensor(aten.mul.Tensor(x, weight), bias)

    return replacement


def _attention(node: Node) -> Callable[..., Any] | None:
    shapes = [tuple(_tensor(argument).shape) for argument in node.args[:3]]
    width = shapes[0][-1]
    is_plain = not any(node.args[3:]) and not (node.kwargs.keys() - {"scale"})
    batches = {str(shape[:-2]) for shape in shapes}  # sizes of dynamic dimensions have no hash
    if not is_plain or not isinstance(width, int) or len(batches) != 1:
        return None
    scale = node.kwargs.get("scale") or 1 / math.sqrt(width)

    def replacement(query: Any, key: Any, value: Any) -> Any:
        scores = aten.matmul.default(aten.mul.Tensor(query, scale), aten.transpose.int(key, -2, -1))
        return aten.matmul.default(aten.softmax.int(scores, -1), value)

    return replacement


def _softmax(node: Node) -> Callable[..., Any] | None:
    shape, axis = _static_shape(node), int(str(node.args[1]))
    if shape is None or len(shape) != 4 or axis % 4 != 3 or not _is_of_image(node.args[0]):
        return None
    rows = [math.prod(shape[:3]), shape[3]]
    return lambda x: aten.reshape.default(aten.softmax.int(aten.reshape.default(x, rows), 1), shape)


def _is_of_image(node: Any) -> bool:
    """Whether a tensor of four dimensions comes from operators that compute channels last."""
    seen, left = set[Any](), [node]
    while left:
        node = left.pop()
        tensor = node.meta.get("val")
        if node in seen or not isinstance(tensor, torch.Tensor) or tensor.ndim != 4:
            continue
        seen.add(node)
        name = str(node.target)
        if any(word in name for word in ("conv", "pool", "upsample")):
            return True
        if not any(word in name for word in ("matmul", "view", "reshape", "linear")):
            left += node.all_input_nodes
    return False


#: Products with a matrix; of a linear layer, it is transposed.
_PRODUCTS = (aten.mm.default, aten.matmul.default, aten.linear.default)


def _product(fixed: Collection[Node], node: Any) -> Callable[..., Any] | None:
    """A product of two matrices that both depend on inputs, as a batch of one."""
    left, right = (list(_tensor(argument).shape) for argument in node.args[:2])
    if node.args[1] in fixed or len(right) != 2 or len(left) < 2 or len(node.all_input_nodes) < 2:
        return None
    shape = list(_tensor(node).shape)
    if not all(isinstance(size, int) for size in left + right):
        return None

    def replacement(x: Any, weights: Any, *bias: Any) -> Any:
        x = aten.reshape.default(x, [1, math.prod(left[:-1]), left[-1]])
        weights = aten.reshape.default(weights, [1, *right])
        if node.target is aten.linear.default:
            weights = aten.transpose.int(weights, 1, 2)
        result = aten.reshape.default(aten.bmm.default(x, weights), shape)
        return aten.add.Tensor(result, bias[0]) if bias else result

    return replacement


def _list_fixed(exported: ExportedProgram) -> set[Node]:
    """The nodes that depend on no input."""
    inputs, fixed = set(exported.graph_signature.user_inputs), set[Node]()
    for node in exported.graph.nodes:
        if node.name not in inputs and fixed.issuperset(node.all_input_nodes):
            fixed.add(node)
    return fixed


def _select(node: Any) -> Callable[..., Any] | None:
    """One part of a tensor along an axis, or all of them, without that axis."""
    shape, axis = _static_shape(node), node.args[1] if len(node.args) > 1 else 0
    if shape is None:
        return None
    axis %= len(shape)
    count, rest = shape[axis], shape[:axis] + shape[axis + 1 :]

    def part(x: Any, index: int) -> Any:
        return aten.reshape.default(aten.slice.Tensor(x, axis, index, index + 1), rest)

    if node.target is aten.select.int:
        return lambda x: part(x, node.args[2] % count)
    return lambda x: [part(x, index) for index in range(count)]


def _split(node: Any) -> Callable[..., Any] | None:
    if _static_shape(node) is None:
        return None
    axis = node.args[2] if len(node.args) > 2 else node.kwargs.get("dim", 0)
    parts = node.meta["val"]
    axis %= parts[0].ndim
    ends = itertools.accumulate((part.shape[axis] for part in parts), initial=0)
    places = list(itertools.pairwise(ends))
    return lambda x: [aten.slice.Tensor(x, axis, start, end) for start, end in places]


def _undo(node: Node) -> Callable[..., Any] | None:
    """What a transpose started from whose result this node transposes back."""
    before = node.args[0]
    once, again = (_order(each) for each in (before, node))
    if not once or not again or [once[axis] for axis in again] != sorted(once):
        return None
    return lambda x: type(x)(x.node.args[0], x.tracer)


def _order(node: Any) -> list[int]:
    """The axes of its input in the order that a transpose gives them; empty for other nodes."""
    if node.target not in (aten.transpose.int, aten.permute.default):
        return []
    axes = list(range(node.meta["val"].ndim))
    if node.target == aten.permute.default:
        return [axes[axis] for axis in node.args[1]]
    one, other = node.args[1:]
    axes[one], axes[other] = axes[other], axes[one]
    return axes


def _mean(node: Node) -> Callable[..., Any] | None:
    if _static_shape(node) is None or node.args[2:3] == (True,) or node.kwargs:
        return None
    shape = list(node.meta["val"].shape)
    return lambda x: aten.reshape.default(aten.mean.dim(x, node.args[1], True), shape)


def _power(node: Any) -> Callable[..., Any] | None:
    forms = {
        2: lambda x: aten.mul.Tensor(x, x),
        3: lambda x: aten.mul.Tensor(aten.mul.Tensor(x, x), x),
        0.5: aten.sqrt.default,
        -0.5: aten.rsqrt.default,
    }
    return forms.get(node.args[1]) if _tensor(node.args[0]).is_floating_point() else None


def _static_shape(node: Node) -> list[int] | None:
    """The shape of a node's first argument; None if it is dynamic."""
    shape = list(_tensor(node.args[0]).shape)
    return shape if all(isinstance(size, int) for size in shape) else None


#: By name of the rewrite and by operator. Which workaround ends with which version stands in
#: `WORKAROUNDS`.
_RULES: dict[str, dict[Any, Rule]] = {
    "layer_norm": {aten.layer_norm.default: _layer_norm},
    "transposes": {aten.transpose.int: _undo, aten.permute.default: _undo},
    "slices": {
        aten.unbind.int: _select,
        aten.split.Tensor: _split,
        aten.split_with_sizes.default: _split,
        aten.chunk.default: _split,
        aten.select.int: _select,
        aten.slice.Tensor: lambda node: (
            (lambda x: x) if [*node.meta["val"].shape] == _static_shape(node) else None
        ),
    },
    "mean": {aten.mean.dim: _mean},
    "powers": {aten.pow.Tensor_Scalar: _power},
    "gelu_tanh": {aten.gelu.default: lambda node: _gelu},
    "norms": {aten.layer_norm.default: _decompose_layer_norm},
}
_XNNPACK_RULES: dict[str, dict[Any, Rule]] = {
    "hardsigmoid": {aten.hardsigmoid.default: lambda node: hard_sigmoid},
    "gelu": {aten.gelu.default: lambda node: _gelu if _is_half(node) else None},
    "silu": {aten.silu.default: _silu, aten.silu_.default: _silu},
    "softmax": {aten.softmax.int: _softmax},
    "attention": {aten.scaled_dot_product_attention.default: _attention},
}
#: What works around a fault, and the first version of ExecuTorch that has to be tried without it.
WORKAROUNDS = {"layer_norm": "1.6", "softmax": "1.6", "batch": "1.6", "readers": "1.6"}


def offer_rewrites(exported: ExportedProgram) -> list[Equivalent]:
    """What has a cheaper equivalent; marks the operators, for `list_rewrites`."""
    offered = list(Finder(exported).find(EQUIVALENTS))
    for number, each in enumerate(offered):
        for node in each.nodes:
            node.meta["custom"] = {**node.meta.get("custom", {}), "rewrite": number}
    return offered


def list_rewrites(offered: list[Equivalent], edge: list[torch.fx.Node]) -> tuple[Rewrite, ...]:
    """What was offered, with the operators of the edge program, alike ones together."""
    nodes: dict[tuple[str, str, float], list[str]] = {}
    worst: dict[tuple[str, str, float], float] = {}
    for node in edge:
        number = node.meta.get("custom", {}).get("rewrite")
        if number is not None:
            each = offered[number]
            key = (each.name, each.text, round(each.kept, 3))
            nodes.setdefault(key, []).append(node.name)
            worst[key] = min(worst.get(key, math.inf), round(each.sqnr_db, 1))
    return tuple(
        Rewrite(name, text, tuple(names), kept, worst[name, text, kept])
        for (name, text, kept), names in nodes.items()
    )


def _replace_equivalents(exported: ExportedProgram, names: Collection[str]) -> Counter[str]:
    """Replace what has a cheaper equivalent, until nothing has; returns the counts."""
    counts: Counter[str] = Counter()
    for _ in range(_MOST_ROUNDS if names else 0):
        equivalents = list(Finder(exported).find(names))
        if not equivalents:
            break
        for each in equivalents:
            _replace(each.result, each.build, each.sources)
            for node in reversed(each.nodes):  # what overwrites its operand counts as used
                if node is not each.result and not readers(node):
                    for check in list(node.users):
                        exported.graph.erase_node(check)
                    exported.graph.erase_node(node)
            counts[each.name] += 1
        exported.graph.eliminate_dead_code()
    return counts


def _replace(node: Node, build_replacement: Callable[..., Any], sources: Sequence[Node]) -> None:
    """Replace a node by what is built from tensors, with its origin."""
    graph = node.graph
    known = set(graph.nodes)
    tracer = GraphAppendingTracer(graph)
    with graph.inserting_before(node):
        result = build_replacement(*(Proxy(source, tracer) for source in sources))
    with _tensor(sources[0]).fake_mode:  # type: ignore[attr-defined]
        for new in graph.nodes:
            if new not in known:
                args = map_arg(new.args, lambda source: source.meta["val"])
                new.meta = {**node.meta, "val": new.target(*args, **new.kwargs)}
    if isinstance(result, list):  # its readers are calls of ``getitem``
        for reader in list(node.users):
            reader.replace_all_uses_with(result[int(str(reader.args[1]))].node)
            graph.erase_node(reader)
    else:
        node.replace_all_uses_with(result.node)
    graph.erase_node(node)
