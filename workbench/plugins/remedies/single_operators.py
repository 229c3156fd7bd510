"""Remedies of single operators, each written in PyTorch.

The function of a remedy takes the result of an operator, whose shape counts, and its arguments in
the order of its schema. It returns what replaces the result, or None where it does not apply.
"""

import math
import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.fx import Node
from torch.nn import functional as fn

from workbench.graphs import overwrites, readers
from workbench.plugins.remedies.equivalence import (
    Build,
    Equivalent,
    Finder,
    Refused,
    are_fixed,
    arguments_of,
    is_float,
    is_static,
    name_of,
    reshape,
    value,
)
from workbench.plugins.remedies.known_functions import (
    HARD_SIGMOID,
    compile_lines,
    log_sum,
    normalise,
    root_mean_square,
)
from workbench.plugins.remedies.linear import averages_images
from workbench.plugins.remedies.repeats import attend
from workbench.plugins.remedies.windows import convolve

aten: Any = torch.ops.aten
# Of GELU's approximation by tanh (Hendrycks and Gimpel 2016, section 2).
_GELU_CUBIC = 0.044715
_HALF, _SINGLE = frozenset({torch.float16}), frozenset({torch.float32})


@dataclass(frozen=True)
class Rule:
    """What replaces an operator of some dtypes, in fixed shapes or in any; ``when`` asks more.

    It may be about the ``first`` result alone. ``text`` is what follows the name of the operator in
    words, if that is not the text of the remedy.
    """

    build: Build
    dtypes: Collection[torch.dtype] = ()
    static: bool = True
    when: Callable[[Node], bool] = lambda node: True
    first: bool = False
    text: str = ""

    def may_replace(self, node: Node) -> bool:
        """Whether the operands of a node are those that the rule is for."""
        alone = not overwrites(node) or len(readers(node.all_input_nodes[0])) == 1
        fits = not self.dtypes or value(node.args[0]).dtype in self.dtypes
        fixed = not self.static or all(map(is_static, node.all_input_nodes))
        return alone and fits and fixed and self.when(node)


#: By name of the remedy and by operator.
RULES: dict[str, dict[Any, Rule]] = {}
#: Those that only avoid what XNNPACK lacks.
OF_XNNPACK = {"gelu", "hardsigmoid", "silu", "softmax", "attention"}


def _remedy(name: str, *targets: Any, **conditions: Any) -> Callable[[Build], Build]:
    """Make a function what replaces some operators."""

    def add(build: Build) -> Build:
        RULES.setdefault(name, {}).update(dict.fromkeys(targets, Rule(build, **conditions)))
        return build

    return add


def find_operator(
    name: str, rules: dict[Any, Rule], finder: Finder, last: Node
) -> Equivalent | None:
    """An operator that is not delegated, by what replaces it."""
    is_first = last.target is operator.getitem and last.args[1] == 0
    node: Any = last.args[0] if is_first else last
    rule = rules.get(node.target)
    if rule is None or not finder.is_outside(node) or not rule.may_replace(node):
        return None
    if is_first or (rule.first and not isinstance(value(node), torch.Tensor)):
        further_parts = (part for part in readers(node) if part.args[1] != 0)
        if not (rule.first and is_first) or any(map(readers, further_parts)):
            return None
    sources, result = tuple(node.all_input_nodes), last.meta["val"]

    def build(*tensors: Any) -> Any:
        values = dict(zip(sources, tensors, strict=True))
        arguments = arguments_of(node).values()
        return rule.build(result, *(values[a] if isinstance(a, Node) else a for a in arguments))

    with torch.no_grad(), value(sources[0]).fake_mode:  # type: ignore[attr-defined]
        if build(*map(value, sources)) is None:
            return None
    text = f"{name_of(node)} {rule.text}" if rule.text else ""
    nodes = (node, last) if is_first else (last,)
    return Equivalent(name, text, nodes, last, sources, build)


def _rows_along(
    shape: Sequence[int], axes: Iterable[int], result: Sequence[int] = ()
) -> tuple[int, Build]:
    """How many elements some axes have together, and what makes a row of them of a tensor.

    Where these sizes or those of the ``result`` are dynamic, tensors stay as they are: `Refused`
    if the axes are not the last one.
    """
    along = sorted(axis % len(shape) for axis in axes)
    if not are_fixed([*shape, *result]):
        width = shape[-1]
        if along != [len(shape) - 1] or not isinstance(width, int):
            raise Refused("rows of dynamic sizes")
        return width, lambda x: x
    order = [*(axis for axis in range(len(shape)) if axis not in along), *along]
    width = math.prod(shape[axis] for axis in along)

    def gather(x: Any) -> Any:
        x = x.permute(order) if order != sorted(order) else x
        return x.reshape(math.prod(shape) // width, width)

    return width, gather


def _shape_rows(rows: Any, shape: Sequence[int]) -> Any:
    """The one number of each row, in the shape of a result."""
    if are_fixed(shape):
        return rows.reshape(shape)
    return rows if rows.ndim == len(shape) else rows.squeeze(-1)


_WIDER: dict[str, Any] = {"dtypes": {torch.half, torch.bfloat16}, "static": False}


def _widen(
    norm: Build, result: Any, x: Any, size: Any, weight: Any, bias: Any, eps: float, *_: Any
) -> Any:
    """A norm in single precision."""
    weight, bias = (each if each is None else each.float() for each in (weight, bias))
    return norm(x.float(), size, weight, bias, eps).to(x.dtype)


_remedy("layer_norm", aten.layer_norm.default, **_WIDER)(partial(_widen, fn.layer_norm))
_remedy("layer_norm", aten.group_norm.default, **_WIDER)(partial(_widen, fn.group_norm))


@_remedy("mean", aten.mean.dim)
def _mean(result: Any, x: Any, axes: Any, keeps: bool, dtype: Any) -> Any:
    if not averages_images(x, axes) or keeps or dtype is not None:
        return None
    return x.mean(axes, True).reshape(result.shape)


@_remedy("softmax_axis", aten.softmax.int)
def _softmax_of_axis(result: Any, x: Any, axis: int, dtype: Any) -> Any:
    if dtype is not None or axis % x.ndim == x.ndim - 1:
        return None
    turned = x.transpose(axis, -1)
    return turned.flatten(0, -2).softmax(-1).reshape(turned.shape).transpose(axis, -1)


@_remedy("functions", aten.logsumexp.default, text="as a softmax, its logarithm and a product")
def _log_sum(result: Any, x: Any, axes: Any, keeps: bool) -> Any:
    width, gather_rows = _rows_along(x.shape, axes)
    return compile_lines(log_sum(width, 2))(gather_rows(x)).reshape(result.shape)


@_remedy("powers", aten.pow.Tensor_Scalar, static=False)
def _power(result: Any, x: Any, exponent: float) -> Any:
    forms = {2: lambda: x * x, 3: lambda: x * x * x, 0.5: x.sqrt, -0.5: x.rsqrt}
    return forms[exponent]() if exponent in forms and x.is_floating_point() else None


@_remedy("gelu", aten.gelu.default, dtypes=_HALF, static=False)
@_remedy("gelu_tanh", aten.gelu.default, static=False)
def _gelu(result: Any, x: Any, approximate: str) -> Any:
    inner = (x + x * x * x * _GELU_CUBIC) * math.sqrt(2 / math.pi)
    return x * ((inner.tanh() + 1.0) * 0.5)


@_remedy("norms", aten.layer_norm.default, dtypes=_SINGLE, static=False)
def _norm_rows(result: Any, x: Any, sizes: Any, weight: Any, bias: Any, eps: float, _: Any) -> Any:
    return _scale(_normalise(x, math.prod(sizes), eps), sizes, weight, bias)


@_remedy("norms", aten.rms_norm.default, dtypes=_SINGLE, static=False)
def _norm_powers(result: Any, x: Any, sizes: Any, weight: Any, eps: float | None) -> Any:
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    return _scale(_normalise(x, math.prod(sizes), eps, root_mean_square), sizes, weight, None)


@_remedy("norms", aten.group_norm.default, dtypes=_SINGLE)
def _norm_groups(
    result: Any, x: Any, groups: int, weight: Any, bias: Any, eps: float, *_: Any
) -> Any:
    along = [1, x.shape[1], *[1] * (x.ndim - 2)]
    return _scale(_normalise(x, math.prod(x.shape[1:]) // groups, eps), along, weight, bias)


@_remedy("norms", aten.instance_norm.default, dtypes=_SINGLE)
def _norm_images(result: Any, x: Any, weight: Any, bias: Any, *settings: Any) -> Any:
    _, _, uses_inputs, _, eps, _ = settings
    return _norm_groups(result, x, x.shape[1], weight, bias, eps) if uses_inputs else None


def _normalise(x: Any, width: int, eps: float, write: Callable[..., str] = normalise) -> Any:
    build = compile_lines(write(width, eps))
    if not isinstance(x.numel(), int):  # rows along the last axis need no reshape
        if x.shape[-1] != width:
            raise Refused("rows of dynamic sizes")
        return build(x)
    return build(x.reshape(x.numel() // width, width)).reshape(x.shape)


def _scale(x: Any, shape: Any, weight: Any, bias: Any) -> Any:
    x = x if weight is None else x * weight.reshape(shape)
    return x if bias is None else x + bias.reshape(shape)


def _sum(rows: Any, factor: float = 1.0) -> Any:
    """The sum of each row, times a factor: the product with a matrix of one row."""
    return fn.linear(rows, torch.full((1, rows.shape[-1]), factor, dtype=rows.dtype))


def _is_summed(node: Any) -> bool:
    summed = node.args[0]
    return is_float(summed) if is_static(summed) else value(summed).is_floating_point()


_SUMMED: dict[str, Any] = {
    "text": "as a product with constants", "static": False, "when": _is_summed,
}  # fmt: skip


@_remedy("matrices", aten.sum.dim_IntList, aten.sum.default, **_SUMMED)
def _total(result: Any, x: Any, *given: Any, is_mean: bool = False) -> Any:
    """A sum over some axes, or all, as a product with a row of constants."""
    *axes, dtype = given
    if dtype is not None or (is_mean and axes and averages_images(x, axes[0])):
        return None
    given_axes = (axes and axes[0]) or range(x.ndim)
    width, gather_rows = _rows_along(x.shape, given_axes, result.shape)
    return _shape_rows(_sum(gather_rows(x), 1 / width if is_mean else 1.0), result.shape)


_remedy("matrices", aten.mean.dim, aten.mean.default, **_SUMMED)(partial(_total, is_mean=True))


@_remedy("matrices", aten.affine_grid_generator.default, text="as a product with its grid")
def _grid(result: Any, theta: Any, size: Any, aligns: bool) -> Any:
    """The places that affine maps give a grid: a product with the places that it has."""
    batch, rank, columns = theta.shape
    units = fn.pad(torch.eye(columns, dtype=theta.dtype)[:, None], (0, 0, 0, rank - 1))
    places = fn.affine_grid(units, [columns, *size[1:]], aligns)[..., 0].flatten(1).t().contiguous()
    moved = fn.linear(theta.reshape(batch * rank, columns), places)
    moved = moved.reshape(batch, rank, places.shape[0]).transpose(1, 2)
    return moved.reshape(result.shape)


@_remedy(
    "norms",
    *(aten.var.dim, aten.var.correction, aten.var_mean.dim, aten.var_mean.correction),
    dtypes=_SINGLE,
    static=False,
)
def _variance(
    result: Any, x: Any, axes: Any, correction: float | None, keeps: bool, root: bool = False
) -> Any:
    """A variance or standard deviation over some axes, with means as products."""
    with_mean = not isinstance(result, torch.Tensor)
    shape = result[0].shape if with_mean else result.shape
    width, gather_rows = _rows_along(x.shape, axes or range(x.ndim), shape)
    correction = 1 if correction is None else correction
    if width <= correction:
        return None
    rows = gather_rows(x)
    mean = _sum(rows, 1 / width)
    rows = rows - mean
    power = _shape_rows(_sum(rows * rows, 1 / (width - correction)), shape)
    power = power.sqrt() if root else power
    return [power, _shape_rows(mean, shape)] if with_mean else power


_remedy(
    "norms",
    *(aten.std.dim, aten.std.correction, aten.std_mean.dim, aten.std_mean.correction),
    dtypes=_SINGLE,
    static=False,
)(partial(_variance, root=True))


_LENGTHS = (aten.linalg_vector_norm.default, aten.norm.Scalar, aten.norm.ScalarOpt_dim)


@_remedy("norms", *_LENGTHS, static=False)
def _length(
    result: Any,
    x: Any,
    order: float | None = 2,
    axes: Any = None,
    keeps: bool = False,
    dtype: Any = None,
) -> Any:
    """A norm along some axes: a product sums the squares or absolute values."""
    if order not in (None, 1, 2) or dtype is not None or not result.is_floating_point():
        return None
    _, gather_rows = _rows_along(x.shape, axes or range(x.ndim), result.shape)
    rows = gather_rows(x)
    total = _sum(rows.abs() if order == 1 else rows * rows)
    return _shape_rows(total if order == 1 else total.sqrt(), result.shape)


@_remedy("norms", aten.linalg_norm.default)
def _length_of_vectors(result: Any, x: Any, order: float | None, axes: Any, *_: Any) -> Any:
    """With an order, a norm over two axes is one of matrices."""
    of_vectors = order is None or len(axes or x.shape) == 1
    return _length(result, x, order, axes, *_) if of_vectors else None


@_remedy("norms", aten.cosine_similarity.default)
def _similarity(result: Any, a: Any, b: Any, axis: int, eps: float) -> Any:
    """The cosine between vectors along an axis, with sums as products."""
    if a.ndim != b.ndim or a.shape[axis] != b.shape[axis]:
        return None
    _, gather_rows = _rows_along(a.shape, [axis])
    alike, is_last = a.shape == b.shape, axis in (-1, result.ndim)
    if alike:
        a, b = gather_rows(a), gather_rows(b)
    elif not is_last:
        a, b = a.transpose(axis, -1), b.transpose(axis, -1)
    product, first, second = (_sum(x * y) for x, y in ((a, b), (a, a), (b, b)))
    cosine = product / (first.sqrt().clamp(eps) * second.sqrt().clamp(eps))
    cosine = cosine if alike or is_last else cosine.transpose(axis, -1)
    return cosine.reshape(result.shape)


@_remedy("hardsigmoid", aten.hardsigmoid.default, static=False)
def _hard_sigmoid(result: Any, x: Any) -> Any:
    return compile_lines(HARD_SIGMOID)(x)


_SILU = (aten.silu.default, aten.silu_.default)


@_remedy("silu", *_SILU, dtypes=_HALF, static=False)
def _silu(result: Any, x: Any) -> Any:
    return x * torch.sigmoid(x)


def _is_of_image(node: Any) -> bool:
    """Whether a tensor of four dimensions comes from operators that compute channels last."""
    seen, waiting = set[Any](), [*node.all_input_nodes]
    while waiting:
        node = waiting.pop()
        tensor = node.meta.get("val")
        if node in seen or not isinstance(tensor, torch.Tensor) or tensor.ndim != 4:
            continue
        seen.add(node)
        name = str(node.target)
        if any(word in name for word in ("conv", "pool", "upsample")):
            return True
        if not any(word in name for word in ("matmul", "view", "reshape", "linear")):
            waiting += node.all_input_nodes
    return False


@_remedy("softmax", aten.softmax.int, when=_is_of_image)
def _softmax(result: Any, x: Any, axis: int, dtype: Any) -> Any:
    if x.ndim != 4 or axis % 4 != 3:
        return None
    return x.reshape(math.prod(x.shape[:3]), x.shape[3]).softmax(1).reshape(x.shape)


@_remedy("attention", aten.scaled_dot_product_attention.default, static=False)
def _attention(result: Any, query: Any, key: Any, values: Any, mask: Any, *settings: Any) -> Any:
    dropout, causal, scale, grouped = settings
    # Sizes of dynamic dimensions have no hash.
    batches = {str(each.shape[:-2]) for each in (query, key, values)}
    is_plain = mask is None and not (dropout or causal or grouped)
    if not is_plain or not isinstance(query.shape[-1], int) or len(batches) != 1:
        return None
    return attend(scale or query.shape[-1] ** -0.5, query, key, values)


#: Nobody may read the places of the largest elements.
_LARGEST: dict[str, Any] = {"text": "as the largest element of a window", "first": True}


@_remedy("pooling", aten.amax.default, aten.max.dim, **_LARGEST)
def _largest(result: Any, x: Any, axes: Any, keeps: bool = False, least: bool = False) -> Any:
    axes = [axes] if isinstance(axes, int) else axes
    width, gather_rows = _rows_along(x.shape, axes or range(x.ndim))
    if width == 1 or not x.is_floating_point():
        return None
    rows = gather_rows(x).reshape(1, x.numel() // width, 1, width)
    values = fn.max_pool2d(-rows if least else rows, [1, width], [1, width])
    return (-values if least else values).reshape(result.shape)


_remedy("pooling", aten.amin.default, aten.min.dim, **_LARGEST)(partial(_largest, least=True))


@_remedy("pooling", aten.topk.default, **_LARGEST)
def _top(result: Any, x: Any, count: int, axis: int, largest: bool, _: bool) -> Any:
    return _largest(result, x, axis, least=not largest) if count == 1 else None


@_remedy("pooling", aten.adaptive_max_pool2d.default, text="as a pooling", first=True)
def _adapt(result: Any, x: Any, counts: Any) -> Any:
    """The maximum of windows that divide an image."""
    pairs = [*zip(x.shape[-2:], [*counts] * (2 // len(counts)), strict=True)]
    if any(size % count for size, count in pairs):
        return None
    window = [size // count for size, count in pairs]
    return fn.max_pool2d(x, window, window)


@_remedy("pooling", aten.max_pool1d.default, text="in two dimensions, one of size one")
def _maximum(result: Any, x: Any, size: Any, stride: Any, pad: Any, step: Any, ceils: bool) -> Any:
    if ceils or x.ndim != 3 or [*step] != [1]:
        return None
    x = x.reshape(*x.shape[:2], 1, x.shape[2])
    return fn.max_pool2d(x, [1, *size], [1, *(stride or size)], [0, *pad]).reshape(result.shape)


def _average(
    rank: int, result: Any, x: Any, size: Any, stride: Any, pad: Any, ceils: bool, counts: bool,
    divisor: int | None = None,
) -> Any:  # fmt: skip
    """Means of windows as a convolution of each channel, and a factor where these are fewer."""
    rows = [1] * (2 - rank)
    sizes, strides = ([*rows, *each, *each][:2] for each in (size, stride or size))
    pads = [*[0] * len(rows), *pad, *pad][:2]
    lead, shape = x.shape[:-rank], [*rows, *result.shape[-rank:]]
    image = [*[1] * (2 - len(lead)), *lead, *rows, *x.shape[-rank:]]
    # With `ceil_mode`, the last windows reach beyond the padding.
    ends = [
        max(pad, stride * (count - 1) + size - pad - length)
        for stride, count, size, pad, length in zip(
            strides, shape, sizes, pads, image[2:], strict=True
        )
    ]
    margins = [pads[1], ends[1], pads[0], ends[0]]
    weights = torch.full((image[1], 1, *sizes), 1 / (divisor or math.prod(sizes)), dtype=x.dtype)
    means = convolve(reshape(x, image), weights, strides, margins, image[1])
    means = reshape(means, result.shape)
    if divisor or (ends == pads and (counts or not any(pads))):
        return means
    ones = torch.ones(1, 1, *image[2:], dtype=x.dtype)
    border = fn.avg_pool2d(ones, sizes, strides, pads, ceils, counts)
    border = border / convolve(ones, weights[:1], strides, margins, 1)
    return means * border.reshape(1, *result.shape[-rank:])


_AVERAGED: dict[str, Any] = {"text": "as a convolution with constant weights"}
_remedy("pooling", aten.avg_pool1d.default, **_AVERAGED)(partial(_average, 1))
_remedy("pooling", aten.avg_pool2d.default, **_AVERAGED)(partial(_average, 2))


#: Products with a matrix; of a linear layer, it is transposed.
_PRODUCTS = (aten.mm.default, aten.matmul.default, aten.linear.default)


def find_product(finder: Finder, node: Node) -> Equivalent | None:
    """A product of matrices that both depend on inputs, as one batch, which expands nothing."""
    if node.target not in _PRODUCTS or not finder.is_outside(node):
        return None
    operands: list[Any] = [argument for argument in node.args if isinstance(argument, Node)]
    sources = tuple(dict.fromkeys(operands))
    left, right = (value(operand).shape for operand in operands[:2])
    if operands[1] in finder.fixed or not all(map(is_static, operands)):
        return None
    if min(len(left), len(right)) < 2 or not _shares_batch([*left[:-2]], [*right[:-2]]):
        return None

    turns = node.target is aten.linear.default

    def build(*tensors: Any) -> Any:
        values = dict(zip(sources, tensors, strict=True))
        x, y, *bias = (values[operand] for operand in operands)
        batch, width = math.prod(y.shape[:-2]), x.shape[-1]
        # Rows of the left ones that have one right one are those of one matrix.
        rows = x.reshape(batch, x.numel() // (batch * width), width)
        right = y.reshape(batch, *y.shape[-2:])
        product = torch.bmm(rows, right.transpose(1, 2) if turns else right)
        product = product.reshape(*x.shape[:-1], product.shape[-1])
        return product + bias[0] if bias else product

    return Equivalent("products", "", (node,), node, sources, build)


def _shares_batch(left: list[int], right: list[int]) -> bool:
    """Whether a batch is none, that of another, or has one element for all along its last axes."""
    whole = len(right)
    while whole and right[whole - 1] == 1:
        whole -= 1
    return not right or (len(left) == len(right) and left[:whole] == right[:whole])
