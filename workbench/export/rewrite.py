"""Rewrite operators that a backend does not support, or computes incorrectly."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

#: From a node and ``torch.ops.aten`` to a function of its tensors that replaces it, if any.
Rule = Callable[["torch.fx.Node", Any], Callable[..., Any] | None]
# Of GELU's approximation by tanh (Hendrycks and Gimpel 2016, section 2).
_GELU_CUBIC = 0.044715


def rewrite_graph(exported: ExportedProgram, backend: str) -> Counter[str]:
    """Rewrite operators that a backend lacks or computes incorrectly; returns the counts.

    For every backend, layer norm in half precision and bfloat16 runs in single precision:
    ExecuTorch 1.5.1's kernel returns wrong values for some row lengths, such as 256. For XNNPACK,
    which has no node for these:

    - Hard sigmoid becomes a clamp: PyTorch's decomposition casts its constants at every inference,
      and in half precision all of its arithmetic.
    - GELU in half precision becomes its tanh approximation, with an error of at most 5e-4, the
      resolution of half precision at 1.
    - SiLU in half precision becomes a product with a sigmoid: PyTorch's decomposition computes it
      in single precision, between two casts.
    - Attention without a mask becomes two matrix products and a softmax: PyTorch's decomposition
      guards against fully masked rows with five operators that XNNPACK lacks.
    """
    import torch

    aten = torch.ops.aten
    rules: dict[Any, Rule] = {aten.layer_norm.default: _layer_norm}
    if backend == "xnnpack":
        rules |= {aten.hardsigmoid.default: _hard_sigmoid, aten.gelu.default: _gelu}
        rules |= {aten.silu.default: _silu, aten.silu_.default: _silu}
        rules[aten.scaled_dot_product_attention.default] = _attention
    graph = exported.graph
    done: Counter[str] = Counter()
    for node in list(graph.nodes):
        rule = rules.get(node.target)
        if rule is not None and (spell := rule(node, aten)):
            _replace(node, spell)
            done[node.target._schema.name.removeprefix("aten::")] += 1
    graph.lint()
    exported.graph_module.recompile()
    return done


def transform_passes(rewrite: bool, see: Callable[[ExportedProgram], None]) -> Any:
    """The passes over the edge program before it is partitioned; ``see`` gets a copy of the result.

    With ``rewrite``, they remove expansions to a tensor's own shape, and fold casts of constants.
    """
    from executorch.backends.xnnpack.utils.configs import get_transform_passes
    from executorch.exir.dialects._ops import ops
    from executorch.exir.pass_base import ExportedProgramPassBase, ExportedProgramPassResult
    from executorch.exir.pass_manager import ExportedProgramPassManager
    from executorch.exir.passes.constant_prop_pass import constant_prop_pass

    cast = ops.edge.dim_order_ops._to_dim_order_copy.default

    class FoldCasts(ExportedProgramPassBase):
        def call(self, exported_program: ExportedProgram) -> ExportedProgramPassResult:
            targets = {node.target for node in exported_program.graph.nodes}
            if cast not in targets:
                return ExportedProgramPassResult(exported_program, False)
            skipped = targets - {cast}
            folded = constant_prop_pass(exported_program, skipped, _skip_dim_order=False)
            return ExportedProgramPassResult(folded, True)

    class Show(ExportedProgramPassBase):
        def call(self, exported_program: ExportedProgram) -> ExportedProgramPassResult:
            see(copy.deepcopy(exported_program))
            return ExportedProgramPassResult(exported_program, False)

    cleaning = [*get_transform_passes(), FoldCasts()] if rewrite else []
    return ExportedProgramPassManager([*cleaning, Show()])


def _tensor(argument: Any) -> torch.Tensor:
    """The example value of a node's argument."""
    return argument.meta["val"]


def _hard_sigmoid(node: torch.fx.Node, aten: Any) -> Callable[..., Any]:
    return lambda x: aten.mul.Tensor(aten.clamp.default(aten.add.Tensor(x, 3.0), 0.0, 6.0), 1 / 6)


def _gelu(node: torch.fx.Node, aten: Any) -> Callable[..., Any] | None:
    def spell(x: Any) -> Any:
        cube = aten.mul.Tensor(aten.mul.Tensor(aten.mul.Tensor(x, x), x), _GELU_CUBIC)
        inner = aten.mul.Tensor(aten.add.Tensor(x, cube), math.sqrt(2 / math.pi))
        gate = aten.mul.Tensor(aten.add.Tensor(aten.tanh.default(inner), 1.0), 0.5)
        return aten.mul.Tensor(x, gate)

    return spell if str(_tensor(node.args[0]).dtype) == "torch.float16" else None


def _silu(node: torch.fx.Node, aten: Any) -> Callable[..., Any] | None:
    source: Any = node.args[0]
    # Other readers of a tensor that is overwritten may expect the result.
    overwrites = node.target is aten.silu_.default and len(source.users) > 1
    if overwrites or str(_tensor(source).dtype) != "torch.float16":
        return None
    return lambda x: aten.mul.Tensor(x, aten.sigmoid.default(x))


def _layer_norm(node: torch.fx.Node, aten: Any) -> Callable[..., Any] | None:
    import torch

    dtype = _tensor(node.args[0]).dtype
    shape, rest = node.args[1], node.args[2:]

    def spell(*tensors: Any) -> Any:
        x, *scales = (aten.to.dtype(tensor, torch.float32) for tensor in tensors)
        given = iter(scales)
        affine = [value if value is None else next(given) for value in rest[:2]]
        return aten.to.dtype(aten.layer_norm.default(x, shape, *affine, *rest[2:]), dtype)

    return spell if dtype in (torch.float16, torch.bfloat16) else None


def _attention(node: torch.fx.Node, aten: Any) -> Callable[..., Any] | None:
    shapes = [tuple(_tensor(argument).shape) for argument in node.args[:3]]
    width = shapes[0][-1]
    is_plain = not any(node.args[3:]) and not (node.kwargs.keys() - {"scale"})
    if not is_plain or not isinstance(width, int) or len({shape[:-2] for shape in shapes}) != 1:
        return None
    scale = node.kwargs.get("scale") or 1 / math.sqrt(width)

    def spell(query: Any, key: Any, value: Any) -> Any:
        scores = aten.matmul.default(aten.mul.Tensor(query, scale), aten.transpose.int(key, -2, -1))
        return aten.matmul.default(aten.softmax.int(scores, -1), value)

    return spell


def _replace(node: torch.fx.Node, spell: Callable[..., Any]) -> None:
    """Replace a node by what ``spell`` computes from its tensors, with its origin."""
    from torch.fx import Node, Proxy
    from torch.fx.proxy import GraphAppendingTracer

    graph = node.graph
    known = set(graph.nodes)
    tracer = GraphAppendingTracer(graph)
    with graph.inserting_before(node):
        result = spell(*(Proxy(arg, tracer) for arg in node.args if isinstance(arg, Node))).node
    for new in set(graph.nodes) - known:
        new.meta = dict(node.meta)
    node.replace_all_uses_with(result)
    graph.erase_node(node)
