"""Remedies of single operators: from a node to what replaces it."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from workbench.plugins.remedies.equivalence import (
    Equivalent,
    Finder,
    multiply_batches,
    rows_along,
)
from workbench.plugins.remedies.formulas import (
    constant_row,
    hard_sigmoid,
    normalise,
    root_mean_square,
)
from workbench.remedies import REMEDIES

aten: Any = torch.ops.aten
#: From a node to a function of its tensors that replaces it, if any.
Rule = Callable[[Node], Callable[..., Any] | None]
# Of GELU's approximation by tanh (Hendrycks and Gimpel 2016, section 2).
_GELU_CUBIC = 0.044715


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


def _normalise_rows(node: Any) -> Callable[..., Any] | None:
    """A norm over the last dimensions, of groups of channels or of images, of single precision."""
    shape = _static_shape(node)
    if _tensor(node.args[0]).dtype != torch.float32 or shape is None:
        return None
    arguments = _read_norm(node, shape)
    if arguments is None:
        return None
    width, affine, scales, epsilon = arguments
    build = root_mean_square if node.target is aten.rms_norm.default else normalise

    def replacement(x: Any, *tensors: Any) -> Any:
        given = iter(tensors)
        rows = aten.reshape.default(x, [math.prod(shape) // width, width])
        x = aten.reshape.default(build(width, epsilon, torch.float32, rows), shape)
        if scales[0] is not None:
            x = aten.mul.Tensor(x, aten.reshape.default(next(given), affine))
        if scales[1] is not None:
            x = aten.add.Tensor(x, aten.reshape.default(next(given), affine))
        return x

    return replacement


def _read_norm(node: Any, shape: list[int]) -> tuple[int, list[int], list[Any], float] | None:
    """The width of a norm's rows, the shape of its scale and shift, these, and epsilon.

    None if it keeps statistics.
    """
    arguments: list[Any] = [*node.args[1:], *[None] * 7]
    if node.target is aten.rms_norm.default:
        sizes, scale, epsilon = arguments[:3]
        return math.prod(sizes), list(sizes), [scale, None], 1.2e-7 if epsilon is None else epsilon
    if node.target is aten.layer_norm.default:
        sizes, epsilon = arguments[0], arguments[3]
        return math.prod(sizes), list(sizes), arguments[1:3], 1e-5 if epsilon is None else epsilon
    groups, scales, epsilon = shape[1], arguments[:2], arguments[6]
    if node.target is aten.group_norm.default:
        groups, scales, epsilon = arguments[0], arguments[1:3], arguments[3]
    elif not arguments[4]:
        return None
    affine = [1, shape[1], *[1] * (len(shape) - 2)]
    return math.prod(shape[1:]) // groups, affine, scales, 1e-5 if epsilon is None else epsilon


def _variance(node: Any) -> Callable[..., Any] | None:
    """A variance or standard deviation over some axes, with means as products."""
    shape, dtype = _static_shape(node), _tensor(node.args[0]).dtype
    dims = node.args[1] if len(node.args) > 1 else None
    if shape is None or isinstance(dims, bool) or dtype != torch.float32:
        return None
    correction = node.kwargs.get("correction", 1)
    if "correction" not in str(node.target):
        correction = int(node.args[2]) if len(node.args) > 2 else 1
    width, gather_rows = rows_along(shape, dims or range(len(shape)))
    with_mean, is_root = "mean" in str(node.target), "std" in str(node.target)
    value = node.meta["val"][0] if with_mean else node.meta["val"]
    result = list(value.shape)
    if correction is None or width <= correction:
        return None

    def replacement(x: Any) -> Any:
        x = gather_rows(x)
        mean = aten.linear.default(x, constant_row(x, width, 1 / width, dtype))
        x = aten.sub.Tensor(x, mean)
        divisor = constant_row(x, width, 1 / (width - correction), dtype)
        power = aten.reshape.default(aten.linear.default(aten.mul.Tensor(x, x), divisor), result)
        power = aten.sqrt.default(power) if is_root else power
        return [power, aten.reshape.default(mean, result)] if with_mean else power

    return replacement


def _length(node: Any) -> Callable[..., Any] | None:
    """A norm along some axes, of which the squares or absolute values are summed by a product."""
    shape, given = _static_shape(node), node.args[2] if len(node.args) > 2 else None
    order = node.args[1] if len(node.args) > 1 else 2
    order = 2 if order is None else order
    if shape is None or order not in (1, 2) or node.kwargs:
        return None
    dtype, result = _tensor(node).dtype, list(_tensor(node).shape)
    if not dtype.is_floating_point:
        return None
    width, gather_rows = rows_along(shape, given or range(len(shape)))

    def replacement(x: Any) -> Any:
        x = gather_rows(x)
        terms = aten.abs.default(x) if order == 1 else aten.mul.Tensor(x, x)
        total = aten.linear.default(terms, constant_row(x, width, 1.0, dtype))
        return aten.reshape.default(total if order == 1 else aten.sqrt.default(total), result)

    return replacement


def _similarity(node: Any) -> Callable[..., Any] | None:
    """The cosine between vectors along an axis, with sums as products."""
    shapes = [list(_tensor(argument).shape) for argument in node.args[:2]]
    axis = node.args[2] if len(node.args) > 2 else 1
    epsilon = node.args[3] if len(node.args) > 3 else 1e-8
    dtype, result = _tensor(node).dtype, list(_tensor(node).shape)
    is_static = all(isinstance(size, int) for size in (*shapes[0], *shapes[1]))
    if len(shapes[0]) != len(shapes[1]) or not is_static:
        return None
    width, gather_rows = rows_along(shapes[0], [axis])
    if shapes[1][axis] != width:
        return None

    def move_axis(x: Any) -> Any:
        if shapes[0] == shapes[1]:
            return gather_rows(x)
        return x if axis in (-1, len(result)) else aten.transpose.int(x, axis, -1)

    def replacement(a: Any, b: Any) -> Any:
        a, b = move_axis(a), move_axis(b)
        row = constant_row(a, width, 1.0, dtype)
        product, first, second = (
            aten.linear.default(aten.mul.Tensor(x, y), row) for x, y in ((a, b), (a, a), (b, b))
        )
        lengths = (aten.clamp.default(aten.sqrt.default(each), epsilon) for each in (first, second))
        cosine = aten.div.Tensor(product, aten.mul.Tensor(*lengths))
        if shapes[0] != shapes[1] and axis not in (-1, len(result)):
            cosine = aten.transpose.int(cosine, axis, -1)
        return aten.reshape.default(cosine, result)

    return replacement


def _attention(node: Node) -> Callable[..., Any] | None:
    shapes = [tuple(_tensor(argument).shape) for argument in node.args[:3]]
    width = shapes[0][-1]
    is_plain = not any(node.args[3:]) and not (node.kwargs.keys() - {"scale"})
    batches = {str(shape[:-2]) for shape in shapes}  # sizes of dynamic dimensions have no hash
    if not is_plain or not isinstance(width, int) or len(batches) != 1:
        return None
    scale = node.kwargs.get("scale") or 1 / math.sqrt(width)

    is_static = all(isinstance(size, int) for shape in shapes for size in shape)
    result = list(_tensor(node).shape)

    def replacement(query: Any, key: Any, value: Any) -> Any:
        if not is_static:
            return attend(query, key, value, aten.matmul.default)
        query, key, value = (
            aten.reshape.default(x, [math.prod(shape[:-2]), *shape[-2:]])
            for x, shape in zip((query, key, value), shapes, strict=True)
        )
        return aten.reshape.default(attend(query, key, value, aten.bmm.default), result)

    def attend(query: Any, key: Any, value: Any, product: Any) -> Any:
        # A product of batches of three dimensions expands nothing.
        scores = product(aten.mul.Tensor(query, scale), aten.transpose.int(key, -2, -1))
        return product(aten.softmax.int(scores, -1), value)

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


def _shares_batch(left: list[int], right: list[int]) -> bool:
    """Whether a batch is that of another, or has one element for all along its last axes."""
    whole = len(right)
    while whole and right[whole - 1] == 1:
        whole -= 1
    return len(left) == len(right) and left[:whole] == right[:whole]


def find_product(finder: Finder, node: Any) -> Equivalent | None:
    """A product of matrices that both depend on inputs, as one batch, which expands nothing."""
    if node.target not in _PRODUCTS or not finder.is_outside(node):
        return None
    left, right = (list(_tensor(argument).shape) for argument in node.args[:2])
    fixed = node.args[1] in finder.fixed or len(node.all_input_nodes) < 2
    # The second operand may be the same for the last axes of a batch: these are rows, too.
    alike = len(right) == 2 or _shares_batch(left[:-2], right[:-2])
    if fixed or not alike or min(len(left), len(right)) < 2:
        return None
    shape = list(_tensor(node).shape)
    if not all(isinstance(size, int) for size in left + right):
        return None
    turned = node.target is aten.linear.default

    def replacement(x: Any, weights: Any, *bias: Any) -> Any:
        result = aten.reshape.default(multiply_batches(x, left, weights, right, turned), shape)
        return aten.add.Tensor(result, bias[0]) if bias else result

    sources = tuple(dict.fromkeys(a for a in node.args if isinstance(a, Node)))
    if len(sources) < sum(isinstance(argument, Node) for argument in node.args):
        once = replacement  # both operands are one tensor
        replacement = lambda x, *bias: once(x, x, *bias)  # noqa: E731
    text = REMEDIES["products"].text
    return Equivalent("products", text, (node,), node, sources, replacement)


def _mean(node: Node) -> Callable[..., Any] | None:
    rank, axes = len(_tensor(node.args[0]).shape), node.args[1] if len(node.args) > 1 else ()
    of_images = rank == 4 and sorted(int(axis) % 4 for axis in axes or ()) == [2, 3]
    if not of_images or _static_shape(node) is None or node.args[2:3] == (True,) or node.kwargs:
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


#: By name of the remedy and by operator.
RULES: dict[str, dict[Any, Rule]] = {
    "layer_norm": {aten.layer_norm.default: _layer_norm},
    "mean": {aten.mean.dim: _mean},
    "powers": {aten.pow.Tensor_Scalar: _power},
    "gelu_tanh": {aten.gelu.default: lambda node: _gelu},
    "norms": {
        **dict.fromkeys(
            (
                aten.layer_norm.default,
                aten.rms_norm.default,
                aten.group_norm.default,
                aten.instance_norm.default,
            ),
            _normalise_rows,
        ),
        **dict.fromkeys(
            (
                aten.var.dim,
                aten.var.correction,
                aten.var_mean.dim,
                aten.var_mean.correction,
                aten.std.dim,
                aten.std.correction,
                aten.std_mean.dim,
                aten.std_mean.correction,
            ),
            _variance,
        ),
        **dict.fromkeys(
            (
                aten.linalg_vector_norm.default,
                aten.linalg_norm.default,
                aten.norm.Scalar,
                aten.norm.ScalarOpt_dim,
            ),
            _length,
        ),
        aten.cosine_similarity.default: _similarity,
    },
}
XNNPACK_RULES: dict[str, dict[Any, Rule]] = {
    "hardsigmoid": {aten.hardsigmoid.default: lambda node: hard_sigmoid},
    "gelu": {aten.gelu.default: lambda node: _gelu if _is_half(node) else None},
    "silu": {aten.silu.default: _silu, aten.silu_.default: _silu},
    "softmax": {aten.softmax.int: _softmax},
    "attention": {aten.scaled_dot_product_attention.default: _attention},
}
