"""Experts of a mixture that are computed although their gate is zero, or none selects them.

Of parts of a graph that compute the same, each with weights of its own, only those are computed
that ``topk`` or a maximum chose: their weights are read from those of all.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import torch
from torch.fx import Node

from workbench.graphs import VIEWS, function_of, is_pure, readers
from workbench.plugins.remedies.equivalence import (
    Equivalent,
    Finder,
    elements,
    evaluate,
    is_float,
    is_pointwise,
    is_static,
    least_db,
    sqnr,
    value,
)

aten: Any = torch.ops.aten
#: Experts at least, operators of all of their gates at most, and random choices that are tried.
_LEAST, _MOST_NODES, _DRAWS = 3, 400, 8
#: Of so many experts, one may be chosen at most: weights that are read from those of all are moved
#: once more than a product moves them.
_LEAST_CHOICE = 2
_CHOOSING = {aten.topk.default, aten.argmax.default, aten.max.dim}
_SELECTIONS = {aten.gather.default, aten.index.Tensor, aten.index_select.default}
_NOTHING = {aten.zeros_like.default, aten.zeros.default, aten.new_zeros.default}


def find_experts(finder: Finder, last: Node) -> Equivalent | None:
    """Compute only the experts that are chosen, for one token or a few."""
    if not is_pure(last) or not is_float(last) or not is_static(last):
        return None
    stack: Any = last.args[0] if last.args else None
    if last.target in _SELECTIONS and stack.target is aten.stack.default:
        return _find_selected(finder, last, stack)
    is_sum = function_of(last) in (aten.add.Tensor, aten.sum.dim_IntList)
    if not is_sum or [function_of(reader) for reader in readers(last)] == [aten.add.Tensor]:
        return None  # none, or a part of a larger one
    terms, sums = _list_terms(last)
    weighted = [term for term in terms if _is_weighted(term, value(last).shape)]
    for place in (0, 1) if len(weighted) >= _LEAST else ():
        chosen, nodes = _find_choice(finder, [term.args[place] for term in weighted])
        gated = [t for t in weighted if chosen in _list_before(finder, [t.args[place]])]
        if chosen and len(gated) >= _LEAST:
            gates, outputs = ([term.args[each] for term in gated] for each in (place, 1 - place))
            plain_terms = [term for term in terms if term not in gated]
            choice = _Choice(chosen, gates, nodes)
            part = _find_weighted(finder, last, outputs, choice, [*gated, *sums], plain_terms)
            if part:
                return part
    return None


def _list_before(
    finder: Finder, ends: Sequence[Any], starts: Collection[Node] = ()
) -> dict[Node, None]:
    """Nodes and what they come from, nearest first, up to choices, constants and ``starts``."""
    seen, waiting = dict[Node, None](), [*ends]
    while waiting and len(seen) <= _MOST_NODES:
        node = waiting.pop(0)
        if node not in seen and node not in finder.constants and node not in starts:
            seen[node] = None
            waiting += [] if node.target in _CHOOSING else node.all_input_nodes
    return seen


def _is_weighted(term: Node, shape: Sequence[Any]) -> bool:
    """Whether a term is the product of two tensors, one of them of a number for each row."""
    if function_of(term) is not aten.mul.Tensor or len(term.all_input_nodes) < 2:
        return False
    sizes = sorted(map(elements, term.all_input_nodes))
    return bool(shape) and value(term).shape == shape and sizes[0] * shape[-1] == sizes[1]


def _list_terms(last: Node) -> tuple[list[Node], list[Node]]:
    """What is added, and the operators that do so."""
    terms, sums, waiting = list[Node](), list[Node](), [last]
    while waiting and len(terms) < _MOST_NODES:
        node = waiting.pop(0)
        alone = node is last or len(readers(node)) == 1
        if alone and function_of(node) is aten.add.Tensor and not node.kwargs:
            sums.append(node)
            waiting += node.all_input_nodes
        elif node is last and node.all_input_nodes[0].target is aten.stack.default:
            sums += [node.all_input_nodes[0], node]
            waiting += node.all_input_nodes[0].all_input_nodes
        else:
            (sums if node.target in _NOTHING else terms).append(node)
    return terms, sums


@dataclass(frozen=True)
class _Choice:
    """The places that are ``chosen``, the ``gates`` that they open, and all up to it."""

    chosen: Node
    gates: Sequence[Node]
    nodes: Sequence[Node]


@dataclass
class _Experts:
    """Parts that compute the same of one ``source``, each with constants of its own.

    ``steps`` are the operators of the first of the ``outputs``, ``nodes`` those of all, ``copies``
    compute the source again, and ``constants`` has those of all by the one of the first.
    """

    finder: Finder
    outputs: Sequence[Node]
    source: Node | None = None
    steps: list[Node] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    copies: set[Node] = field(default_factory=set)
    constants: dict[Node, tuple[Node, ...]] = field(default_factory=dict)
    joined: dict[tuple[Node, ...], bool] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """How many rows each expert computes."""
        return elements(self.outputs[0]) // value(self.outputs[0]).shape[-1]

    def are_alike(self) -> bool:
        """Whether the parts compute the same, and each row by itself."""
        if not self.join((*self.outputs,)) or self.source is None or not self.constants:
            return False
        rows = {elements(node) // value(node).shape[-1] for node in (*self.steps, self.source)}
        views = [node for node in self.steps if node.target in VIEWS]
        widths = [(value(n).shape[-1], value(n.all_input_nodes[0]).shape[-1]) for n in views]
        return rows == {self.tokens} and all(one == other for one, other in widths)

    def join(self, group: tuple[Any, ...]) -> bool:
        """Whether some arguments are the same one of each expert."""
        if not all(isinstance(each, Node) for each in group):
            return all(not isinstance(each, Node) and each == group[0] for each in group)
        if group not in self.joined:
            self.joined[group] = self._is_leaf(group) or self._is_step(group)
        return self.joined[group]

    def _is_leaf(self, group: tuple[Node, ...]) -> bool:
        """Whether it is the source, or constants of one shape that nothing else reads."""
        if all(node in self.finder.constants for node in group):
            self.constants[group[0]] = group
            alone = len({*group}) == len(group) and all(len(readers(node)) == 1 for node in group)
            return alone and len({tuple(value(node).shape) for node in group}) == 1
        calls = {node.op + f"{node.target}{node.args}{node.kwargs}" for node in group}
        alike = len({*group}) == 1 or (len(calls) == 1 and is_pure(group[0]))
        if not alike or not is_float(group[0]) or not is_static(group[0]):
            return False
        self.source = self.source or group[0]
        self.copies |= {*group} - {self.source}
        return self.source is group[0]

    def _is_step(self, group: tuple[Node, ...]) -> bool:
        first, target = group[0], function_of(group[0])
        is_row_by_row = is_pointwise(first) or target in VIEWS
        if len({*group}) < len(group) or not (is_row_by_row or target is aten.linear.default):
            return False
        for node in group:
            alike = node.op == "call_function" and function_of(node) is target and is_pure(node)
            if not alike or node.kwargs != first.kwargs or len(node.args) != len(first.args):
                return False
            if value(node).shape != value(first).shape:
                return False
        if target not in VIEWS and not all(
            map(self.join, zip(*(n.args for n in group), strict=True))
        ):
            return False
        if target in VIEWS and not self.join(tuple(node.args[0] for node in group)):
            return False
        self.nodes += group
        self.steps.append(first)
        return True

    def stack(self) -> tuple[torch.Tensor, ...]:
        """The constants of all experts: matrices turned, others as a row each."""
        layers = [step for step in self.steps if function_of(step) is aten.linear.default]
        matrices, stacks = {layer.args[1] for layer in layers}, list[torch.Tensor]()
        for first, group in self.constants.items():
            tensors = [self.finder.constants[node] for node in group]
            rows = [t.t() if first in matrices else t.reshape(1, -1) for t in tensors]
            stacks.append(torch.stack(rows).contiguous())
        return tuple(stacks)

    def compute(self, x: Any, chosen: Any, stacks: Sequence[Any]) -> Any:
        """What the chosen experts compute of each row, one after the other."""
        rows, many = self.tokens, chosen.shape[0] // self.tokens
        x = aten.reshape.default(x, [rows, 1, x.shape[-1]])
        if many > 1:
            x = aten.expand.default(x, [rows, many, x.shape[-1]])
            x = aten.reshape.default(x, [rows * many, 1, x.shape[-1]])
        values: dict[Any, Any] = {None: None, self.source: x}
        for first, stack in zip(self.constants, stacks, strict=True):
            values[first] = aten.index_select.default(stack, 0, chosen)
        for node in self.steps:
            if function_of(node) is aten.linear.default:
                x, weights, bias = (values[each] for each in [*node.args, None][:3])
                x = aten.bmm.default(x, weights)
                values[node] = x if bias is None else aten.add.Tensor(x, bias)
            elif node.target in VIEWS:
                values[node] = values[node.all_input_nodes[0]]
            else:
                values[node] = evaluate(node, values)
        return values[self.outputs[0]]


def _find_weighted(
    finder: Finder, last: Node, outputs: Sequence[Node], choice: _Choice, more: list[Node],
    plain_terms: Sequence[Node],
) -> Equivalent | None:  # fmt: skip
    """A sum of terms and of experts times a gate, as one of those whose gate is not zero."""
    chosen, gates = choice.chosen, choice.gates
    shapes = [value(each).shape == value(last).shape for each in outputs]
    rows, result = elements(gates[0]), list(value(last).shape)
    whole = rows * result[-1] == elements(last)
    if not whole or not all(shapes) or elements(chosen) % rows:
        return None
    if any(value(each).shape != value(last).shape for each in plain_terms):
        return None
    for weights in choice.nodes:
        read = _read_gates(finder, gates, chosen, weights) if weights is not chosen else None
        if read is not None:
            break
    else:
        return None
    masks, order = read
    experts = _Experts(finder, [outputs[place] for place in order])
    if not experts.are_alike():
        return None

    def join(y: Any, weights: Any, *terms: Any) -> Any:
        y = aten.reshape.default(y, [rows, y.shape[0] // rows, y.shape[-1]])
        weights = aten.reshape.default(weights, [rows, 1, y.shape[1]])
        y = aten.reshape.default(aten.bmm.default(weights, y), result)
        return reduce(aten.add.Tensor, terms, y)

    return _write(finder, last, experts, (chosen, weights, *plain_terms), join, [*masks, *more])


def _find_selected(finder: Finder, last: Node, stack: Node) -> Equivalent | None:
    """Some of the results of experts, which are put together, as those alone."""
    experts, result = _Experts(finder, stack.all_input_nodes), list(value(last).shape)
    operands = [node for node in finder.varying(last) if node is not stack]
    chosen, _ = _find_choice(finder, operands)
    if chosen is None or len(readers(stack)) > 1 or not experts.are_alike():
        return None
    places = _list_between(finder, operands, {chosen})
    whole = elements(chosen) // experts.tokens * elements(experts.outputs[0])
    if places is None or whole != elements(last):
        return None
    join = lambda y: aten.reshape.default(y, result)  # noqa: E731
    return _write(finder, last, experts, (chosen,), join, [*places, stack, last])


def _find_choice(finder: Finder, ends: Sequence[Node]) -> tuple[Node | None, list[Node]]:
    """The places that were chosen, nearest to some nodes that depend on them; all up to these."""
    calls = [node for node in _list_before(finder, ends) if node.op == "call_function"]
    tensors = [node for node in calls if isinstance(node.meta.get("val"), torch.Tensor)]
    chosen = [
        node for node in tensors
        if value(node).dtype == torch.int64
        and not _CHOOSING.isdisjoint(each.target for each in (node, *node.all_input_nodes))
    ]  # fmt: skip
    return (chosen[0] if chosen else None), [n for n in tensors if is_float(n)]


def _read_gates(
    finder: Finder, gates: Sequence[Node], chosen: Node, weights: Node
) -> tuple[list[Node], list[int]] | None:
    """What makes gates of the weights of those that are chosen, and the gate of each of these.

    That all other gates are zero is shown on random choices.
    """
    inside = _list_between(finder, gates, {chosen, weights})
    if inside is None or elements(weights) != elements(chosen):
        return None
    rows, count = elements(gates[0]), len(gates)
    generator, many = torch.Generator().manual_seed(0), elements(chosen) // rows

    def run(places: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        values = {**finder.constants, chosen: places.view(value(chosen).shape)}
        values[weights] = given.to(value(weights).dtype).view(value(weights).shape)
        for node in inside:
            values[node] = evaluate(node, values)
        return torch.stack([values[gate].reshape(rows).float() for gate in gates], 1)

    first = torch.arange(many).expand(rows, many)
    answers = [run((first + n) % count, (first == 0).float())[0] for n in range(count)]
    order = torch.stack(answers).argmax(1)
    for _ in range(_DRAWS):
        places = _draw(chosen, rows, count, generator)
        given = torch.rand(places.shape, generator=generator) + 0.5
        expected = torch.zeros(rows, count).scatter(1, places.long(), given)
        if not torch.allclose(run(places, given)[:, order], expected, rtol=1e-3):
            return None
    return inside, order.tolist()


def _draw(chosen: Node, rows: int, count: int, generator: torch.Generator) -> torch.Tensor:
    """A random choice for each row, none of them twice."""
    order = torch.rand(rows, count, generator=generator).argsort(1)
    return order[:, : elements(chosen) // rows].to(value(chosen).dtype)


def _list_between(finder: Finder, ends: Sequence[Node], starts: set[Node]) -> list[Node] | None:
    """The nodes from some to others, in order; None if they read anything else."""
    inside = _list_before(finder, ends, starts)
    reads_more = any(node.target in _CHOOSING or not is_pure(node) for node in inside)
    is_whole = len(inside) <= _MOST_NODES and not reads_more
    return sorted(inside, key=finder.place.__getitem__) if is_whole else None


def _write(
    finder: Finder, last: Node, experts: _Experts, given: tuple[Node, ...],
    join: Callable[..., Any], more: Sequence[Node],
) -> Equivalent | None:  # fmt: skip
    """The chosen experts, if these are fewer than all, which were shown to compute the same."""
    count, rows, source, chosen = len(experts.outputs), experts.tokens, experts.source, given[0]
    work_share = elements(chosen) / count
    nodes = sorted({*experts.nodes, *more}, key=finder.place.__getitem__)
    inside, copies = {*nodes}, sorted(experts.copies, key=finder.place.__getitem__)
    alone = all(inside.issuperset(readers(node)) for node in experts.nodes)
    if source is None or _LEAST_CHOICE * work_share >= 1 or not alone:
        return None

    sources, stacks = tuple(dict.fromkeys((source, *given))), experts.stack()

    def build(*tensors: Any) -> Any:
        values = dict(zip(sources, tensors, strict=False))
        places = aten.reshape.default(values[chosen], [elements(chosen)])
        results = experts.compute(values[source], places, tensors[len(sources) :])
        return join(results, *(values[node] for node in given[1:]))

    generator, worst = torch.Generator().manual_seed(0), math.inf
    for _ in range(2):
        values = {node: finder.sample(node) for node in sources}
        order = _draw(chosen, rows, count, generator)
        values[chosen] = order.view(value(chosen).shape)
        result = build(*values.values(), *stacks)
        values |= dict.fromkeys(copies, values[source])
        worst = min(worst, sqnr(result, finder.run(nodes, values)))
    if worst < least_db(value(last)):
        return None
    text = f"{elements(chosen) // rows} of {count} experts, those that are chosen, instead of all"
    return Equivalent(
        "experts",
        text,
        (*copies, *nodes),
        last,
        sources,
        build,
        work_share,
        worst,
        constants=stacks,
    )
