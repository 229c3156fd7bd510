"""Rows that are chosen or summed by indices: whole rows are copied, and sums are a product.

Kernels that index several axes, or add, compute the place of each element. Rows of one axis are
copied whole once that axis is the first one. Sums of rows by an index are the product with a
matrix, which counts how often each row is added to each sum. Products with matrices that an index
chose copy these; those of all matrices copy the rows that were chosen.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial, reduce
from itertools import product as product_of
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from workbench.graphs import VIEWS, function_of, readers
from workbench.plugins.remedies.equivalence import (
    MOST_ELEMENTS,
    MOST_KEPT,
    Equivalent,
    Finder,
    arguments_of,
    elements,
    is_float,
    is_static,
    least_db,
    reshape,
    sqnr,
    value,
)

aten: Any = torch.ops.aten
#: What an element costs whose place is computed, in multiplications: some 20 nanoseconds.
PLACED = 1 << 8
#: Of an element of a matrix that is copied, packed and multiplied for each product, the share of
#: the time that reading it once takes, and that multiplying it by a row takes; elements of all
#: matrices at most. Of products of 256 to 1 024 columns, 8 and 32 matrices and 2 to 128 products,
#: on one core of a server.
_READ, _MULTIPLIED, _MOST_CHOSEN_FROM = 0.3, 0.016, 1 << 27
#: Elements of a row at least that is worth a copy of its own.
_LEAST_ROW = 4
_SUMMED = {
    aten.index_add.default, aten.index_add_.default, aten.index_put.default,
    aten.index_put_.default, aten.scatter_add.default, aten.scatter_add_.default,
}  # fmt: skip
_CHOSEN = {aten.index.Tensor, aten.index_select.default, aten.embedding.default}
_PRODUCTS = {aten.bmm.default, aten.matmul.default, aten.einsum.default}
_ARRANGED = VIEWS | {aten.transpose.int, aten.permute.default, aten.mT.default}
_EXPANDED = {aten.expand.default, aten.expand_as.default, aten.repeat.default}
_REPEATED = VIEWS | _EXPANDED


def copy_rows(x: Any, index: Any, rows: int, columns: int) -> Any:
    """Those that an index chooses of the places between some rows and columns, copied whole."""
    x = reshape(x, [rows, x.numel() // (rows * columns), columns])
    if rows == 1:
        return reshape(x, [*x.shape[1:]]).index_select(0, index)
    return x.transpose(0, 1).index_select(0, index).transpose(0, 1)


class _Indexed(NamedTuple):
    """A tensor, an axis and the index of its rows, what is added to them, and all operators."""

    x: Node
    axis: int
    index: Node
    added: Any
    nodes: list[Node]


def _read(node: Any) -> _Indexed | None:
    """What an operator chooses or sums, if all elements of a row have the same index."""
    if getattr(node, "target", None) not in _SUMMED | _CHOSEN:
        return None
    given = arguments_of(node)
    x, index, axis = given.get("self", given.get("weight")), given.get("index"), given.get("dim", 0)
    added = next((given[n] for n in ("source", "values", "src") if n in given), None)
    index = given["indices"] if index is None else index
    if isinstance(index, list | tuple):
        (axis, index), *further_axes = [pair for pair in enumerate(index) if pair[1] is not None]
        if further_axes or not given.get("accumulate", True):
            return None
    axis, nodes = axis % value(x).ndim, [node]
    if isinstance(added, Node) and is_static(added) and value(added).ndim == value(x).ndim:
        while index.target in _REPEATED and elements(index) > value(added).shape[axis]:
            nodes.insert(0, index)
            index = index.args[0]
    is_whole = value(index).dtype == torch.int64 and given.get("alpha", 1) == 1
    sizes_known = is_static(x) and is_static(index) and elements(index) > 0
    return _Indexed(x, axis, index, added, nodes) if is_whole and sizes_known else None


class _Rows(NamedTuple):
    """Rows of a tensor that indices choose along axes from ``first`` on, and all operators.

    An index is a node, of which the first ``dims`` dimensions count, or a constant.
    """

    x: Node
    first: int
    indices: Sequence[Node | torch.Tensor]
    nodes: tuple[Node, ...]
    dims: int | None = None


def find_rows(finder: Finder, last: Node) -> Equivalent | None:
    """Rows that an index chooses, and that a kernel copies by elements, as copies of whole rows."""
    read = _READ_ROWS.get(last.target)
    if read is None or not finder.is_outside(last) or not is_float(last, _MOST_CHOSEN_FROM):
        return None
    rows = read(last)
    if rows is None or not is_static(rows.x):
        return None
    shape, end = value(rows.x).shape, rows.first + len(rows.indices)
    before, sizes, after = shape[: rows.first], shape[rows.first : end], shape[end:]
    steps = [math.prod(sizes[place + 1 :]) for place in range(len(sizes))]
    indices = [finder.constants.get(each, each) for each in rows.indices]  # type: ignore[call-overload]
    factors = list(zip(indices, sizes, steps, strict=True))
    chosen = [each for each in factors if isinstance(each[0], Node)]
    if not chosen or math.prod(after) < _LEAST_ROW:
        return None
    fixed = [each % size * step for each, size, step in factors if isinstance(each, torch.Tensor)]
    sources = tuple(dict.fromkeys((rows.x, *(node for node, *_ in chosen))))

    def build(*tensors: Any) -> Any:
        given, places = dict(zip(sources, tensors, strict=False)), [*tensors[len(sources) :]]
        for node, size, step in chosen:
            index = given[node].reshape(value(node).shape[: rows.dims])
            places.append(index % size * step)  # a negative one counts from the end
        x = reshape(given[rows.x], [*before, math.prod(sizes), *after])
        index = reduce(torch.add, places).reshape(-1)
        return x.index_select(rows.first, index).reshape(value(last).shape)

    part = Equivalent(
        "lookups", "rows that an index chooses copied whole, instead of by elements", rows.nodes,
        last, sources, build, constants=(reduce(torch.add, fixed),) if fixed else (),
        code="x.flatten(0, 1)[(start + index).flatten()].unflatten(0, index.shape)  # for "
        "x.gather(1, ...)",
    )  # fmt: skip
    ratio = finder.compare(part)
    return replace(part, sqnr_db=ratio) if ratio >= least_db(value(last)) else None


def _read_index(last: Node) -> _Rows | None:
    """Rows along axes that follow one another."""
    x: Any = last.args[0]
    given: Any = last.args[1]
    axes = [axis for axis, index in enumerate(given) if index is not None]
    indices = [given[axis] for axis in axes]
    whole = all(is_static(each) and value(each).dtype == torch.int64 for each in indices)
    is_copied = len(indices) == 1 and value(indices[0]).ndim == 1  # as a whole, by the kernel
    is_run = axes == [*range(axes[0], axes[0] + len(axes))]
    return _Rows(x, axes[0], indices, (last,)) if whole and is_run and not is_copied else None


def _read_gather(last: Node) -> _Rows | None:
    """Rows whose elements have one index, which is expanded along them."""
    given = arguments_of(last)
    x, index = given["self"], given["index" if "index" in given else "indices"]
    base = index.args[0] if index.target in _EXPANDED else index
    shape = value(last).shape
    if given["dim"] is None or not is_static(base) or value(base).ndim != len(shape):
        return None
    axis = given["dim"] % len(shape)
    whole = value(x).shape[:axis] + value(x).shape[axis + 1 :] == shape[:axis] + shape[axis + 1 :]
    if not whole or math.prod(value(base).shape[axis + 1 :]) > 1:
        return None
    walked = [torch.arange(size).view(-1, *[1] * (axis - n)) for n, size in enumerate(shape[:axis])]
    nodes = (index, last) if base is not index and len(readers(index)) == 1 else (last,)
    return _Rows(x, 0, [*walked, base], nodes, axis + 1)


#: How the rows are read that an operator copies by elements.
_READ_ROWS = {
    aten.index.Tensor: _read_index, aten.gather.default: _read_gather,
    aten.take_along_dim.default: _read_gather,
}  # fmt: skip


def find_sums(finder: Finder, last: Node) -> Equivalent | None:
    """Sums of rows by an index: as a product with a matrix, or by a kernel that is faster."""
    if last.target not in _SUMMED or not finder.is_outside(last) or not is_float(last):
        return None
    sums = _read(last)
    if sums is None or not isinstance(sums.added, Node) or not is_static(sums.added):
        return None
    shape, count, axis = [*value(last).shape], elements(sums.index), sums.axis
    if [*value(sums.added).shape] != [*shape[:axis], count, *shape[axis + 1 :]]:
        return None
    part = _find_product(finder, sums, last)
    if part or "scatter" in str(last.target):
        return part

    def build(x: Any, index: Any, added: Any) -> Any:
        sizes = [count if place == axis else 1 for place in range(added.ndim)]
        return x.scatter_add(axis, index.reshape(sizes).expand(added.shape), added)

    text = "sums of rows by their index in one kernel"
    return finder.prove(Equivalent(
        "matrices", text, (*sums.nodes,), last, (sums.x, sums.index, sums.added), build,
        code="x.scatter_add(0, index[:, None].expand_as(rows), rows)  # for x.index_add(...)",
    ))  # fmt: skip


def _find_product(finder: Finder, sums: _Indexed, last: Node) -> Equivalent | None:
    """Sums of rows that an index has chosen, perhaps with a factor each, as a product."""
    chosen, factors, nodes = sums.added, list[Node](), sums.nodes
    if chosen.target is aten.mul.Tensor:
        nodes = [chosen, *nodes]
        chosen, *factors = sorted(chosen.all_input_nodes, key=lambda each: -elements(each))
    rows = _read(chosen)
    if rows is None or rows.added is not None or rows.axis != sums.axis:
        return None
    x, axis, count = rows.x, rows.axis, elements(sums.index)
    most, many = value(sums.x).shape[axis], value(x).shape[axis]
    fits = all(elements(each) == count for each in (rows.index, *factors))
    work = most * many * (elements(x) // many + MOST_ELEMENTS.bit_length())
    if not fits or most * many > MOST_ELEMENTS or work > PLACED * elements(chosen):
        return None
    empty = sums.x in finder.constants and not finder.constants[sums.x].count_nonzero()
    base = [] if empty else [sums.x]
    read = [x, rows.index, sums.index, *factors, *base]
    sources = tuple(dict.fromkeys(read))

    def build(*tensors: Any) -> Any:
        given = dict(zip(sources, tensors, strict=True))
        x, chosen, summed, *more = (given[each] for each in read)
        factor = more[0].reshape(count) if factors else torch.ones(count, dtype=x.dtype)
        places = summed.reshape(count) * many + chosen.reshape(count)
        matrix = torch.zeros(most * many, dtype=x.dtype).scatter_add(0, places, factor)
        x = x.transpose(0, axis) if axis else x
        product = torch.bmm(matrix.reshape(1, most, many), x.reshape(1, many, x.numel() // many))
        product = product.reshape(most, *x.shape[1:])
        product = product.transpose(0, axis) if axis else product
        return product if empty else product + more[-1]

    text = "sums of rows by their index as a product with the matrix that counts them"
    return finder.prove(Equivalent(
        "matrices", text, (chosen, *nodes), last, sources, build,
        code="counts = torch.zeros(len(total), len(x)).index_put((target, source), ones, True)\n"
        "total = counts @ x  # for total.index_add(0, target, x[source])",
    ))  # fmt: skip


class _Chosen(NamedTuple):
    """Matrices that an index chose, the constant with all, what multiplies them, all operators."""

    indexed: _Indexed
    matrices: Node
    other: Node
    nodes: list[Node]


def find_chosen_products(finder: Finder, last: Node) -> Equivalent | None:
    """Products with matrices that an index chose, as some rows of the products with all."""
    key = "products with chosen matrices"
    if key not in finder.memory:
        products = filter(None, (_read_chosen(finder, node) for node in finder.nodes))
        finder.memory[key] = {each.nodes[-1]: each for each in products}
    product = finder.memory[key].get(last)
    if product is None or not (is_float(last) and is_static(last)):
        return None
    given = {node: finder.sample(node) for node in (product.other, product.indexed.index)}
    x = finder.constants[product.matrices].reshape(value(product.indexed.x).shape)
    expected = finder.run(product.nodes, {**given, product.indexed.x: x})
    for each in _list_products(finder, product):
        ratio = sqnr(each.build(*given.values(), *each.constants), expected)
        if ratio > least_db(expected):
            return replace(each, sqnr_db=ratio)
    return None


def _read_chosen(finder: Finder, node: Node) -> _Chosen | None:
    """The product with matrices that a node copies, if nothing else reads these."""
    indexed = _read(node)
    if indexed is None or indexed.added is not None or indexed.axis:
        return None
    matrices = indexed.x
    while matrices not in finder.constants and matrices.target in VIEWS:
        matrices = matrices.all_input_nodes[0]
    is_whole = elements(matrices) == elements(indexed.x) <= _MOST_CHOSEN_FROM
    if matrices not in finder.constants or indexed.index in finder.constants or not is_whole:
        return None
    nodes, factors = [node], list[Node]()
    while len(readers(nodes[-1])) == 1:
        nodes.append(readers(nodes[-1])[0])
        function = function_of(nodes[-1])
        factors += [each for each in nodes[-1].all_input_nodes if each is not nodes[-2]]
        if function in (*_PRODUCTS, aten.sum.dim_IntList):
            break
        if not (function in _ARRANGED or (function is aten.mul.Tensor and len(factors) == 1)):
            return None
    if len(factors) != 1 or len(nodes) == 1:
        return None
    other = factors[0]
    while (
        other.target in VIEWS
        and len(readers(other)) == 1
        and elements(other) == elements(other.all_input_nodes[0])
    ):
        nodes.insert(0, other)
        other = other.all_input_nodes[0]
    return (
        _Chosen(indexed, matrices, other, nodes) if is_float(other) and is_static(other) else None
    )


def _list_products(finder: Finder, product: _Chosen) -> Iterator[Equivalent]:
    """The products with all matrices, for each way in which rows and columns may be arranged."""
    (x, _, index, *_), constant, other, nodes = product
    shape, count, many = value(nodes[-1]).shape, elements(index), value(x).shape[0]
    for turned in (False, True)[: value(other).ndim - 1]:
        inner = value(other).shape[-2 if turned else -1]
        width = elements(x) // (many * inner)
        rows = elements(nodes[-1]) // (count * width) if width else 0
        sources = elements(other) // (inner * rows) if rows else 0
        if not sources or count % sources or count * rows * width != elements(nodes[-1]):
            continue
        share = sources / count  # several matrices may be chosen for one row
        work_share = many * (_READ / count + share * _MULTIPLIED * rows) / (1 + _MULTIPLIED * rows)
        matrices = finder.constants[constant]
        ways = [matrices.reshape(many, width, inner), matrices.reshape(many, inner, width).mT]
        for weights, across in product_of(ways, (False, True)[: 1 + (rows > 1)]):
            if work_share > MOST_KEPT:
                break
            build = partial(
                _choose_rows, sizes=(sources, count, rows, many), turned=turned, across=across,
                shape=shape,
            )  # fmt: skip
            yield Equivalent(
                "experts", f"the products with all {many} matrices, without a copy of each that is "
                "chosen", tuple(nodes), nodes[-1], (other, index), build, work_share,
                constants=(weights.reshape(many * width, inner).contiguous(),),
                code="y = F.linear(x, weights.flatten(0, 1)).unflatten(1, weights.shape[:2])\n"
                "y = y[torch.arange(len(x)), chosen]  # for weights[chosen] @ x[..., None]",
            )  # fmt: skip


def _choose_rows(
    x: Any, index: Any, weights: Any, *,
    sizes: tuple[int, int, int, int], turned: bool, across: bool, shape: Sequence[int],
) -> Any:  # fmt: skip
    """Rows of the products with all matrices: for each source, rows of it, and matrix."""
    sources, count, rows, many = sizes
    x = x.mT if turned else x
    products = torch.nn.functional.linear(x.reshape(sources * rows, -1), weights)
    first = torch.arange(count) // (count // sources) * rows
    places = (first[:, None] + torch.arange(rows)) * many
    # A negative index counts from the end.
    places = places + index.reshape(count, 1) % many
    products = products.reshape(sources * rows * many, -1).index_select(0, places.reshape(-1))
    if across:
        products = products.reshape(count, rows, -1).mT
    return products.reshape(shape)
