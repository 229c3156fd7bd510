"""Rewrite operators that a backend does not support, or computes incorrectly, if asked to."""

import contextlib
import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch.export import ExportedProgram, default_decompositions
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.fx import Node, Proxy
from torch.fx.node import map_aggregate, map_arg
from torch.fx.proxy import GraphAppendingTracer

from workbench.export.equivalence import (
    Equivalent,
    Finder,
    count_operators,
    evaluate,
    is_overwritten,
    is_pure,
    overwrites,
    readers,
    rows_along,
)
from workbench.export.formulas import (
    constant_row,
    find_function,
    find_lookup,
    find_order,
    hard_sigmoid,
    normalise,
)
from workbench.export.linear_maps import find_matrices
from workbench.export.repeats import find_broadcasts, find_groups, find_loops, find_masks
from workbench.export.windows import find_convolution, find_pooling
from workbench.options import COMMON_REWRITES, ExportOptions
from workbench.records.runs import Rewrite
from workbench.remedies import REMEDIES
from workbench.upstream import fold_constants

aten: Any = torch.ops.aten
#: From a node to a function of its tensors that replaces it, if any.
Rule = Callable[[Node], Callable[..., Any] | None]
# Of GELU's approximation by tanh (Hendrycks and Gimpel 2016, section 2).
_GELU_CUBIC = 0.044715
#: What `slices` does to recurrences.
_UNROLLED = "a recurrence step by step, with slices for its gates"
_RECURRENT = {aten.gru.input, aten.lstm.input, aten.rnn_tanh.input, aten.rnn_relu.input}
#: Remedies whose result is quantised, too; those of others stays in floating point.
BEFORE_QUANTISATION = {
    "pooling", "convolutions", "broadcasts", "groups", "loops", "functions", "order", "lookups",
    "duplicates",
}  # fmt: skip
#: What the same operators on the same values agree to, in dB.
_SAME_DB = 200.0
#: Remedies of what upstream delegates and then refuses, such as maxima over channels.
_AVOIDING = ("pooling",)
#: Rewrites that make others possible end after so many rounds.
_MOST_ROUNDS = 12


def rewrite_operators(
    exported: ExportedProgram, names: Collection[str], backend: str, *, quantised: bool = False
) -> Counter[str]:
    """Apply remedies to a graph, in place, until none applies; how often each changed it.

    Those of `transform_passes` and of the quantiser come later. With ``quantised``, the result is
    quantised, which functions of many operators do not survive: they stay.
    """
    counts: Counter[str] = Counter()
    if "doubles" in names:
        counts["doubles"] = use_single_precision(exported)
    in_graph = not _list_finders(backend).keys().isdisjoint(names)
    made: set[Node] = set()
    for _ in range(_MOST_ROUNDS if in_graph else 0):
        equivalents = list(find_remedies(Finder(exported), names, backend))
        if quantised:
            equivalents = [each for each in equivalents if _survives_quantisation(each)]
        if not equivalents:
            break
        for each in equivalents:
            made.update(_replace(exported, each))
            counts[each.name] += 1
        exported.graph.eliminate_dead_code()
        if "loops" in names:  # each step has got a whole that all of them share
            _join_equal(exported)
    if "duplicates" in names:
        counts["duplicates"] = _join_equal(exported)
    if made:
        _fold(exported, made)
    if counts:
        _free_strides(exported)
        exported.graph.lint()
        exported.graph_module.recompile()
    return counts


@torch.no_grad()
def _fold(exported: ExportedProgram, made: Collection[Node]) -> None:
    """Compute what some operators, and those that they read, make of constants alone."""
    values = Finder(exported).constants
    folded: dict[Node, None] = {}
    for node in exported.graph.nodes:
        is_call = node.op == "call_function" and "quantize" not in str(node.target)
        if not is_call or not is_pure(node) or not values.keys() >= {*node.all_input_nodes}:
            continue
        around = (node, *node.users, *(each for each in node.all_input_nodes if each in folded))
        if any(each in made or each in folded for each in around):
            values.setdefault(node, evaluate(node, values))  # however large
            folded[node] = None
    for node in folded:
        ends = any(user.op == "output" for user in node.users) or {*node.users} <= folded.keys()
        if not ends and isinstance(values[node], torch.Tensor):
            node.replace_all_uses_with(_add_constant(exported, values[node].contiguous()))
    exported.graph.eliminate_dead_code()


def _free_strides(exported: ExportedProgram) -> None:
    """Let no view rely on the strides of a result: what replaces it may have others."""
    for node in exported.graph.nodes:
        if node.target is aten.view.default and node.args[0].target in _MOVING:
            node.target = aten.reshape.default


#: What has the strides of its operand in another order.
_MOVING = {aten.transpose.int, aten.permute.default}


#: Operators of a function whose results are quantised one by one, at most.
_MOST_QUANTISED = 3


def _survives_quantisation(part: Equivalent) -> bool:
    return part.name != "functions" or count_operators(part) <= _MOST_QUANTISED


#: Finds the part of a graph that ends in a node and has a remedy.
Find = Callable[[Finder, Node], Equivalent | None]


def _list_finders(backend: str) -> dict[str, Find]:
    """How each remedy is found in a graph, the best one first."""
    tables = _RULES | (_XNNPACK_RULES if backend == "xnnpack" else {})
    finders: dict[str, Find] = {
        name: partial(_find_by_operator, name, rules) for name, rules in tables.items()
    }
    slices = {"slices": finders.pop("slices")}
    return finders | {
        "transposes": _find_undone,
        "pooling": find_pooling,
        "convolutions": find_convolution,
        "groups": find_groups,
        "masks": find_masks,
        "broadcasts": find_broadcasts,
        "loops": find_loops,
        "functions": find_function,
        "matrices": find_matrices,
        "order": find_order,
        "lookups": find_lookup,
        "products": _find_product,
    } | slices  # fmt: skip


def _find_by_operator(
    name: str, rules: dict[Any, Rule], finder: Finder, node: Node
) -> Equivalent | None:
    rule = rules.get(node.target)
    build = rule(node) if rule and finder.is_outside(node) else None
    if build is None:
        return None
    sources = tuple(argument for argument in node.args if isinstance(argument, Node))
    return Equivalent(name, REMEDIES[name].text, (node,), node, sources, build)


@torch.no_grad()
def find_remedies(finder: Finder, names: Collection[str], backend: str) -> Iterator[Equivalent]:
    """The parts of a graph that have one of some remedies, from its end; none overlaps another."""
    finders = {name: find for name, find in _list_finders(backend).items() if name in names}
    taken: set[Node] = set()
    for node in reversed(finder.nodes):
        if node in taken or node.op != "call_function" or is_overwritten(node):
            continue
        for name, find in finders.items():
            # What depends on no input is the export's to compute, unless asked for by its operator.
            asked = finder.outside is None and (name in _RULES or name in _XNNPACK_RULES)
            if node in finder.constants and not asked:
                continue
            part = None
            with contextlib.suppress(Exception):  # operators may refuse these values
                part = find(finder, node)
            if part and taken.isdisjoint(part.nodes):
                taken.update(part.nodes)
                yield part
                break


def matching_rewrites(exported: ExportedProgram, backend: str) -> list[str]:
    """The remedies that would change a graph, of those that may avoid a fault."""
    parts = find_remedies(Finder(exported), (*COMMON_REWRITES, *_AVOIDING), backend)
    return list(dict.fromkeys(part.name for part in parts))


def unroll_recurrences(exported: ExportedProgram) -> ExportedProgram:
    """Replace PyTorch's recurrent operators by their steps, so that rewrites see these."""
    recurrent = _RECURRENT & {node.target for node in exported.graph.nodes}
    if not recurrent:  # nothing is retraced
        return exported
    table = default_decompositions()
    return exported.run_decompositions({each: table[each] for each in recurrent})


def transform_passes(options: ExportOptions, counts: Counter[str]) -> Any:
    """The passes of some rewrites over the edge program, before it is partitioned; None for none.

    ``expansions`` removes those to a tensor's own shape, ``casts`` folds casts of constants,
    ``constants`` all that depends on no input. ``counts`` gets how often each changed the program.
    """
    from executorch.backends.xnnpack.utils.configs import get_transform_passes
    from executorch.exir.pass_base import ExportedProgramPassBase, ExportedProgramPassResult
    from executorch.exir.pass_manager import ExportedProgramPassManager

    folds_all = "constants" in options.rewrite
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


def _normalise_rows(node: Any) -> Callable[..., Any] | None:
    """A norm over the last dimensions, of groups of channels or of images, of single precision."""
    shape = _static_shape(node)
    if _tensor(node.args[0]).dtype != torch.float32 or shape is None:
        return None
    arguments = _read_norm(node, shape)
    if arguments is None:
        return None
    width, affine, scales, epsilon = arguments
    build = _root_mean_square if node.target is aten.rms_norm.default else normalise

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


def _root_mean_square(width: int, epsilon: float, dtype: torch.dtype, x: Any) -> Any:
    """Rows divided by the root of their mean square."""
    part = constant_row(x, width, 1 / width, dtype)
    power = aten.linear.default(aten.mul.Tensor(x, x), part)
    return aten.mul.Tensor(x, aten.rsqrt.default(aten.add.Tensor(power, epsilon)))


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
    if shapes[0] != shapes[1] or _static_shape(node) is None:
        return None
    width, gather_rows = rows_along(shapes[0], [axis])

    def replacement(a: Any, b: Any) -> Any:
        a, b = gather_rows(a), gather_rows(b)
        row = constant_row(a, width, 1.0, dtype)
        product, first, second = (
            aten.linear.default(aten.mul.Tensor(x, y), row) for x, y in ((a, b), (a, a), (b, b))
        )
        lengths = (aten.clamp.default(aten.sqrt.default(each), epsilon) for each in (first, second))
        cosine = aten.div.Tensor(product, aten.mul.Tensor(*lengths))
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


def _shares_batch(left: list[int], right: list[int]) -> bool:
    """Whether a batch is that of another, or has one element for all along its last axes."""
    whole = len(right)
    while whole and right[whole - 1] == 1:
        whole -= 1
    return len(left) == len(right) and left[:whole] == right[:whole]


def _find_product(finder: Finder, node: Any) -> Equivalent | None:
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
    batch = math.prod(right[:-2])
    rows = math.prod(left[:-1]) // batch

    def replacement(x: Any, weights: Any, *bias: Any) -> Any:
        x = aten.reshape.default(x, [batch, rows, left[-1]])
        weights = aten.reshape.default(weights, [batch, *right[-2:]])
        if node.target is aten.linear.default:
            weights = aten.transpose.int(weights, 1, 2)
        result = aten.reshape.default(aten.bmm.default(x, weights), shape)
        return aten.add.Tensor(result, bias[0]) if bias else result

    sources = tuple(dict.fromkeys(a for a in node.args if isinstance(a, Node)))
    if len(sources) < sum(isinstance(argument, Node) for argument in node.args):
        once = replacement  # both operands are one tensor
        replacement = lambda x, *bias: once(x, x, *bias)  # noqa: E731
    text = REMEDIES["products"].text
    return Equivalent("products", text, (node,), node, sources, replacement)


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


def _reshape(node: Any) -> Callable[..., Any] | None:
    """The same elements in another shape."""
    shape = list(node.meta["val"].shape)
    if _static_shape(node) is None or not _tensor(node).is_floating_point():
        return None
    return lambda x: aten.reshape.default(x, shape)


def _slice(node: Any) -> Callable[..., Any] | None:
    """Nothing, if it is the whole; every nth element as a slice of groups of n."""
    shape, result = _static_shape(node), list(node.meta["val"].shape)
    if shape is None or shape == result:
        return None if shape is None else lambda x: x
    axis = node.args[1] if len(node.args) > 1 else 0
    start = node.args[2] if len(node.args) > 2 and node.args[2] is not None else 0
    step = node.args[4] if len(node.args) > 4 else 1
    axis, count = axis % len(shape), result[axis]
    start += shape[axis] if start < 0 else 0
    # A group may begin earlier, if the last one would reach beyond the end.
    before = max(0, start + count * step - shape[axis])
    if step == 1 or before > min(start, step - 1):
        return None
    first = start - before
    groups = [*shape[:axis], count, step, *shape[axis + 1 :]]

    def replacement(x: Any) -> Any:
        x = aten.slice.Tensor(x, axis, first, first + count * step)
        x = aten.slice.Tensor(aten.reshape.default(x, groups), axis + 1, before, before + 1)
        return aten.reshape.default(x, result)

    return replacement


#: Slices of which windows are put together, at most: XNNPACK concatenates so many at once.
_MOST_PARTS = 5


def _windows(node: Any) -> Callable[..., Any] | None:
    """Windows along an axis, as slices of blocks that are put together."""
    shape, (axis, width, step) = _static_shape(node), node.args[1:4]
    if shape is None or not shape:
        return None
    axis %= len(shape)
    block = math.gcd(width, step)
    count, parts, apart = node.meta["val"].shape[axis], width // block, step // block
    span = count * apart * block
    if parts > _MOST_PARTS or span + width - step > shape[axis]:
        return None
    order = [*(other for other in range(len(shape)) if other != axis), axis]
    rest = [shape[other] for other in order[:-1]]
    back = [*range(axis), len(shape) - 1, *range(axis, len(shape) - 1), len(shape)]

    def replacement(x: Any) -> Any:
        x = aten.permute.default(x, order) if order != sorted(order) else x
        slices = []
        for part in range(parts):
            # Beyond the end, a block is read from earlier ones.
            first = min(part * block, shape[axis] - span)
            inside = part * block - first
            piece = aten.slice.Tensor(x, -1, first, first + span)
            piece = aten.reshape.default(piece, [*rest, count, apart * block])
            slices.append(aten.slice.Tensor(piece, -1, inside, inside + block))
        x = slices[0] if parts == 1 else aten.cat.default(slices, -1)
        return aten.permute.default(x, back) if back != sorted(back) else x

    return replacement


def _split(node: Any) -> Callable[..., Any] | None:
    if _static_shape(node) is None:
        return None
    axis = node.args[2] if len(node.args) > 2 else node.kwargs.get("dim", 0)
    parts = node.meta["val"]
    axis %= parts[0].ndim
    ends = itertools.accumulate((part.shape[axis] for part in parts), initial=0)
    places = list(itertools.pairwise(ends))
    return lambda x: [aten.slice.Tensor(x, axis, start, end) for start, end in places]


def _find_undone(finder: Finder, node: Node) -> Equivalent | None:
    """Two transposes, of which the second gives back what the first one started from."""
    before: Any = node.args[0] if node.args else None
    once, again = (
        (_order(each) for each in (before, node)) if isinstance(before, Node) else ([], [])
    )
    if not once or not again or [once[axis] for axis in again] != sorted(once):
        return None
    sources = (before.args[0],)
    text = REMEDIES["transposes"].text
    return Equivalent("transposes", text, (before, node), node, sources, lambda x: x, kept=0.0)


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
_RULES: dict[str, dict[Any, Rule]] = {
    "layer_norm": {aten.layer_norm.default: _layer_norm},
    "slices": {
        aten.unbind.int: _select,
        aten.split.Tensor: _split,
        aten.split_with_sizes.default: _split,
        aten.chunk.default: _split,
        aten.select.int: _select,
        aten.slice.Tensor: _slice,
        aten.unfold.default: _windows,
        **dict.fromkeys(
            (aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default, aten.unsqueeze.default),
            _reshape,
        ),
    },
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
_XNNPACK_RULES: dict[str, dict[Any, Rule]] = {
    "hardsigmoid": {aten.hardsigmoid.default: lambda node: hard_sigmoid},
    "gelu": {aten.gelu.default: lambda node: _gelu if _is_half(node) else None},
    "silu": {aten.silu.default: _silu, aten.silu_.default: _silu},
    "softmax": {aten.softmax.int: _softmax},
    "attention": {aten.scaled_dot_product_attention.default: _attention},
}


def mark_operators(exported: ExportedProgram) -> None:
    """Write the name of each operator into it, which what it becomes keeps."""
    for node in exported.graph.nodes:
        if node.op == "call_function":
            node.meta["custom"] = {**node.meta.get("custom", {}), "operator": node.name}


def offer_rewrites(
    exported: ExportedProgram, backend: str, operators: Mapping[str, Collection[str]],
    outside: Collection[str], used: Collection[str] = (),
) -> tuple[Rewrite, ...]:  # fmt: skip
    """The remedies of a marked graph that were shown to compute the same.

    ``operators`` has the operators of the edge program by the name of what they come from, and
    ``outside`` those names of which some is not delegated; ``used`` remedies are applied already.
    """
    finder = Finder(exported, outside)
    names = [name for name in _list_finders(backend) if name not in used]
    alike: dict[tuple[str, str, float], list[tuple[Equivalent, list[str]]]] = {}
    for name in names:  # parts of several remedies may overlap
        for part in find_remedies(finder, [name], backend):
            proven = _prove(finder, part)
            rows = [row for n in part.about or part.nodes for row in operators.get(n.name, ())]
            if proven and rows:
                text = "" if name == "loops" else part.text
                key = (name, text, round(part.kept, 3) if text else 0.0)
                alike.setdefault(key, []).append((proven, rows))
    rewrites = [_join_parts(parts) for parts in alike.values()]
    doubles = [node for node in exported.graph.nodes if _is_double(node)]
    equal = _find_equal(exported)
    recurrent = [node for node in exported.graph.nodes if node.target in _RECURRENT]
    wholes = [
        _describe_whole("doubles", doubles, doubles, operators),
        _describe_whole("duplicates", [*equal], [*equal, *equal.values()], operators),
        _describe_whole("slices", recurrent, recurrent, operators),
    ]
    return (*(each for each in wholes if each.nodes and each.name not in used), *rewrites)


def _describe_whole(
    name: str, nodes: list[Node], part: list[Node], operators: Mapping[str, Collection[str]]
) -> Rewrite:
    """The record of a remedy that is applied to a graph as a whole, with all that it takes."""
    rows = tuple(row for node in nodes for row in operators.get(node.name, ()))
    kept, ratio, passes = {
        "doubles": (0.5, None, len(rows)),
        "duplicates": (0.0, _SAME_DB, 0),
        "slices": (1.0, None, 0),
    }[name]
    names = tuple(dict.fromkeys(node.name for node in part))
    text = _UNROLLED if name == "slices" else REMEDIES[name].text
    return Rewrite(name, text, rows, kept, ratio, passes, (names,))


def _prove(finder: Finder, part: Equivalent) -> Equivalent | None:
    """A part that was shown to be equal, or says how it differs; None otherwise."""
    if not math.isnan(part.sqnr_db) or REMEDIES[part.name].differs:
        return part
    with contextlib.suppress(Exception):  # operators may refuse these values
        return finder.prove(part)
    return None


def _join_parts(parts: list[tuple[Equivalent, list[str]]]) -> Rewrite:
    """The record of parts with one remedy."""
    largest = max((part for part, _ in parts), key=lambda part: len(part.nodes))
    nodes = tuple(dict.fromkeys(row for _, rows in parts for row in rows))
    kept = sum(part.kept for part, _ in parts) / len(parts)
    ratios = [round(part.sqnr_db, 1) for part, _ in parts if not math.isnan(part.sqnr_db)]
    ratio = min(ratios) if len(ratios) == len(parts) else None
    passes = sum(count_operators(part) for part, _ in parts)
    names = tuple(tuple(node.name for node in part.nodes) for part, _ in parts)
    return Rewrite(largest.name, largest.text, nodes, round(kept, 3), ratio, passes, names)


def _is_double(node: Node) -> bool:
    tensor = node.meta.get("val")
    is_tensor = isinstance(tensor, torch.Tensor) and node.op == "call_function"
    return is_tensor and tensor.dtype == torch.float64


def use_single_precision(exported: ExportedProgram) -> int:
    """Make constants and casts in double precision single, and with them what they lead to."""
    signature = exported.graph_signature
    names = signature.inputs_to_parameters | signature.inputs_to_buffers
    names |= signature.inputs_to_lifted_tensor_constants
    count = 0
    for store in (exported.constants, exported.state_dict):
        for name, tensor in list(store.items()):
            if isinstance(tensor, torch.Tensor) and tensor.dtype == torch.float64:
                store[name] = tensor.float()
                count += 1
    doubles = [node for node in exported.graph.nodes if _is_double(node)]
    for node in exported.graph.nodes:
        tensor = node.meta.get("val")
        if node.op == "placeholder" and node.name in names and isinstance(tensor, torch.Tensor):
            if tensor.dtype == torch.float64:
                node.meta["val"] = tensor.float()
        elif node.op == "call_function" and doubles:
            node.args = map_aggregate(node.args, _single)
            node.kwargs = map_aggregate(node.kwargs, _single)
            _set_value(node, _fake_mode(exported))
    return count + len(doubles)


def _set_value(node: Node, fake_mode: Any) -> None:
    """Compute the example value of a node from those of others."""
    args, kwargs = map_arg((node.args, node.kwargs), lambda source: source.meta["val"])
    with fake_mode:
        node.meta["val"] = node.target(*args, **kwargs)  # type: ignore[operator]


def _single(argument: Any) -> Any:
    return torch.float32 if argument is torch.float64 else argument


def _fake_mode(exported: ExportedProgram) -> Any:
    values = (node.meta.get("val") for node in exported.graph.nodes)
    return next(v.fake_mode for v in values if isinstance(v, torch.Tensor))  # type: ignore[attr-defined]


def _find_equal(exported: ExportedProgram) -> dict[Node, Node]:
    """The operators that compute what an earlier one does, and that one.

    Those of quantisation stay: partitioners look for one at each reader.
    """
    calls = [node for node in exported.graph.nodes if node.op == "call_function"]
    if any(overwrites(node) and not is_pure(node) for node in calls):
        return {}  # the same operands may have other values later
    first: dict[str, Node] = {}
    equal: dict[Node, Node] = {}
    for node in calls:
        is_read_only = not any(map(overwrites, node.users))
        if is_pure(node) and is_read_only and "quantize" not in str(node.target):
            args = map_arg((node.args, node.kwargs), lambda source: equal.get(source, source))
            earlier = first.setdefault(f"{node.target} {args}", node)
            if earlier is not node:
                equal[node] = earlier
    return equal


def _join_equal(exported: ExportedProgram) -> int:
    """Compute once what several operators compute alike; how many went."""
    equal = _find_equal(exported)
    for node, earlier in equal.items():
        node.replace_all_uses_with(earlier)
        exported.graph.erase_node(node)
    return len(equal)


def _replace(exported: ExportedProgram, each: Equivalent) -> list[Node]:
    """Replace a part by what is built from its sources, with its origin; the new nodes."""
    graph, node = exported.graph, each.result
    sources = [*each.sources, *(_add_constant(exported, tensor) for tensor in each.constants)]
    before, tracer = set(graph.nodes), GraphAppendingTracer(graph)
    with graph.inserting_before(node):
        result = each.build(*(Proxy(source, tracer) for source in sources))
    fake_mode = _fake_mode(exported)
    made = [new for new in graph.nodes if new not in before]
    for new in made:
        new.meta = dict(node.meta)
        _set_value(new, fake_mode)
    if isinstance(result, list):  # its readers are calls of ``getitem``
        for reader in list(node.users):
            reader.replace_all_uses_with(result[int(str(reader.args[1]))].node)
            graph.erase_node(reader)
    else:
        node.replace_all_uses_with(result.node)
    graph.erase_node(node)
    for other in reversed(each.nodes):  # what overwrites its operand counts as used
        if other is not node and not readers(other):
            for check in list(other.users):
                graph.erase_node(check)
            graph.erase_node(other)
    return made


def _add_constant(exported: ExportedProgram, tensor: torch.Tensor) -> Node:
    """A node for a constant that a program did not have; the same one for the same tensor."""
    for name, other in exported.constants.items():
        if other is tensor:
            place = exported.graph_signature.inputs_to_lifted_tensor_constants
            wanted = next(node for node, target in place.items() if target == name)
            return next(node for node in exported.graph.nodes if node.name == wanted)
    signature = exported.graph_signature
    inputs = [node for node in exported.graph.nodes if node.op == "placeholder"]
    given = {*signature.user_inputs}
    position = next((n for n, node in enumerate(inputs) if node.name in given), len(inputs))
    taken = {spec.target for spec in signature.input_specs}
    names = (f"remedy_constant_{number}" for number in itertools.count())
    target = next(name for name in names if name not in taken)
    following = inputs[position] if position < len(inputs) else next(iter(exported.graph.nodes))
    with exported.graph.inserting_before(following):
        node = exported.graph.placeholder(f"c_{target}")
    node.meta["val"] = _fake_mode(exported).from_tensor(tensor, static_shapes=True)
    spec = InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(name=node.name), target)
    signature.input_specs.insert(position, spec)
    exported.constants[target] = tensor
    return node
