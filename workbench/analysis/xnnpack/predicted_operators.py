"""The operators that a delegate is predicted to run, matched with the logged names, in order."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np

from workbench.analysis.xnnpack import rewrites
from workbench.analysis.xnnpack.graph import Node, XGraph, define_graph
from workbench.records.layer_sidecar import Instruction, XNode, XValue

_NAMES = {
    "argmaxpool": r"Arg ?Max Pooling \(", "avgpool": r"Average Pooling \(",
    "bmm": r"Batch Matrix Multiply \(", "concat": r"(Copy|Concatenate) \(",
    "conv": r"Convolution \(N", "copy": r"Copy \(", "deconv": r"Deconvolution \(",
    "dwconv": r"Convolution \(N", "fc": r"(Dynamic )?Fully Connected \(",
    "lut": r"Invalid Unary Op|Unary Elementwise|LUT", "maxpool": r"Max Pooling \(",
    "mean": r"(Mean|Global Average Pooling) \(", "meansq": r"Mean Squared \(",
    "pad": r"Constant Pad \(", "reshape": r"(Static Reshape|Copy) \(",
    "resize": r"Resize Bilinear \(", "slice": r"(Static )?Slice \(", "softmax": r"Softmax \(",
    "transpose": r"Transpose \(",
}  # fmt: skip
_TYPES = {"fp32": "F32", "fp16": "F16", "bf16": "BF16", "qint8": "QS8", "quint8": "QU8"}
_PRODUCTS = ("conv", "dwconv", "deconv", "fc", "bmm")
_SIZED = ("transpose", "pad", "copy", "concat", "slice")
_LIGHT = ("Clamp", "Convert")
_LIGHT_KINDS = ("transpose", "reshape", "copy", "convert", "pad", "concat")


@dataclass(frozen=True)
class Operator:
    """One operator that is expected to run.

    Its name begins with ``pattern`` and should contain ``types``; ``sources`` number the exported
    operators whose work it does. A conversion has no sources, but ``serves`` some. A ``light``
    operator is of a kind that comes and goes between versions and CPUs.
    """

    pattern: str
    types: str
    sources: tuple[int, ...]
    serves: tuple[int, ...]
    light: bool


def predict_operators(
    xvalues: Sequence[XValue], xnodes: Sequence[XNode], lacking: frozenset[str] = frozenset()
) -> list[Operator]:
    """The operators of an exported delegate, in order; ``lacking`` as for `compute_in_single`."""
    graph = define_graph(xvalues, xnodes)
    rewrites.apply_rewrites(graph)
    rewrites.compute_in_single(graph, "fp16", lacking)
    rewrites.compute_in_single(graph, "bf16", frozenset())
    return [_operator(graph, node) for node in graph.live_nodes()]


def _operator(graph: XGraph, node: Node) -> Operator:
    pattern = _NAMES.get(node.kind, re.escape(node.kind))
    return Operator(
        pattern=re.escape(node.operator) + r" \(" if node.operator else pattern,
        types=_expected_types(graph, node),
        sources=tuple(node.sources),
        serves=tuple(node.serves),
        light=node.kind in _LIGHT_KINDS or node.operator in _LIGHT,
    )


def _expected_types(graph: XGraph, node: Node) -> str:
    """The types in the name: a type, ``Q`` for quantised ones, or a width."""
    types = [graph.values[value].dtype for value in node.inputs]
    base = _TYPES.get(types[0], "")
    if node.kind in _PRODUCTS:
        by_weights = node.kind in ("fc", "bmm") and len(types) > 1 and types[1].startswith("q")
        return "Q" if types[0].startswith("q") or by_weights else base
    if node.kind in ("softmax", "avgpool"):
        return base
    if node.kind in _SIZED:
        width = re.search(r"\d+$", graph.values[node.outputs[0]].dtype)
        return f"X{max(8, int(width[0])) if width else 32}"
    return ""


#: Costs: another type than expected; one operator too many or too few, of a light kind or not.
_WRONG_TYPE, _LIGHT_COST, _HEAVY_COST = 5, 12, 20
IMPOSSIBLE = 10**6

#: Another pairing is possible if it costs at most this much more than the best one.
_DOUBT = _HEAVY_COST

#: Larger problems are skipped: they take seconds, and explain nothing.
MOST_CELLS = 4_000_000

_LIGHT_NAMES = re.compile(r"Convert|Copy|Transpose|Clamp|Static Reshape|Pack")


@dataclass(frozen=True)
class GraphMatch:
    """Predicted operators and the logged names, paired in order.

    ``pairs`` has the number of each name's operator (-1 for none), ``alternatives`` the others that
    are possible, and ``lacking`` the kinds of kernels that the CPU is assumed to lack.
    """

    operators: Sequence[Operator]
    cost: int
    pairs: tuple[int, ...]
    alternatives: tuple[frozenset[int], ...]
    lacking: frozenset[str] = frozenset()

    @property
    def complete(self) -> bool:
        """Whether every logged operator is explained and none is missing."""
        return self.cost == 0


#: What CPUs are known to lack fp16 kernels for: nothing, bilinear resizing (x86), anything.
_KNOWN = (frozenset[str](), frozenset({"resize"}), frozenset({rewrites.EVERYTHING}))


def match_graph(
    delegate: Instruction, names: Sequence[str], learned: frozenset[str] = frozenset()
) -> GraphMatch:
    """Match a delegate with its logged names, which also shows what the CPU lacks kernels for.

    ``learned``, what explained another delegate of the same trace, and the likely cases are tried
    first, then one kind of operator after another.
    """

    def attempt(lacking: frozenset[str]) -> GraphMatch:
        operators = predict_operators(delegate.xvalues, delegate.xnodes, lacking)
        return replace(match_names(operators, names), lacking=lacking)

    kinds = list[str]()  # those that may lack kernels
    if any(value.dtype == "fp16" for value in delegate.xvalues):
        nodes = define_graph(delegate.xvalues, delegate.xnodes).nodes
        kinds = sorted({rewrites.kind_of(node) for node in nodes})
    first, *cases = dict.fromkeys((learned, *_KNOWN)) if kinds else _KNOWN[:1]
    best = attempt(first)
    for lacking in cases:
        if not best.complete:
            best = min(best, attempt(lacking), key=attrgetter("cost"))
    for _ in kinds:
        if best.complete:
            break
        attempts = [attempt(best.lacking ^ {kind}) for kind in kinds]
        best, before = min(best, *attempts, key=attrgetter("cost")), best
        if best is before:
            break
    return best


def match_names(operators: Sequence[Operator], names: Sequence[str]) -> GraphMatch:
    """Pair names, without their ordinals, with operators, in order."""
    nothing_else = (frozenset[int](),) * len(names)
    if len(operators) == len(names) and not any(map(_cost, operators, names)):
        return GraphMatch(operators, 0, tuple(range(len(names))), nothing_else)
    if len(operators) * len(names) > MOST_CELLS:
        return GraphMatch(operators, IMPOSSIBLE, (-1,) * len(names), nothing_else)
    distinct, codes = np.unique(np.array(names, object), return_inverse=True)
    table = np.array([[_cost(o, name) for name in distinct] for o in operators], np.int64)
    pairing = table.reshape(len(operators), len(distinct))[:, codes]
    lights = [o.light for o in operators], [bool(_LIGHT_NAMES.match(name)) for name in names]
    skip, extra = (np.where(light, _LIGHT_COST, _HEAVY_COST) for light in lights)
    before = prefix_costs(pairing, skip, extra)
    after = prefix_costs(pairing[::-1, ::-1], skip[::-1], extra[::-1])[::-1, ::-1]
    best = int(before[-1, -1])
    possible = before[:-1, :-1] + pairing + after[1:, 1:] <= best + _DOUBT
    pairs = trace_back(before, pairing, skip)
    alternatives = (
        frozenset(np.flatnonzero(possible[:, place]).tolist()) - {pair}
        for place, pair in enumerate(pairs)
    )
    return GraphMatch(operators, best, pairs, tuple(alternatives))


def _cost(operator: Operator, name: str) -> int:
    if not re.match(operator.pattern, name):
        return IMPOSSIBLE
    return 0 if operator.types in name else _WRONG_TYPE


def prefix_costs(pairing: np.ndarray, skip: np.ndarray, extra: np.ndarray) -> np.ndarray:
    """Least cost of aligning the first ``i`` of one list with the first ``j`` of another.

    After S. B. Needleman, C. D. Wunsch, J. Mol. Biol. 48 (1970). ``pairing`` has the cost of each
    pair, ``skip`` and ``extra`` those of leaving out one of the first and of the second list.
    """
    extras = np.append(0, np.cumsum(extra))
    costs = np.empty((len(skip) + 1, len(extras)), np.int64)
    costs[0] = extras
    for i in range(len(skip)):
        row = costs[i] + skip[i]
        row[1:] = np.minimum(row[1:], costs[i, :-1] + pairing[i])
        # Extras may follow at any place: the minimum over all places before.
        costs[i + 1] = np.minimum.accumulate(row - extras) + extras
    return costs


def trace_back(costs: np.ndarray, pairing: np.ndarray, skip: np.ndarray) -> tuple[int, ...]:
    """For each of the second list its partner in the first, -1 for none."""
    i, j = (length - 1 for length in costs.shape)
    pairs = [-1] * j
    while i and j:
        if costs[i, j] == costs[i - 1, j - 1] + pairing[i - 1, j - 1]:
            i, j = i - 1, j - 1
            pairs[j] = i
        elif costs[i, j] == costs[i - 1, j] + skip[i - 1]:
            i -= 1
        else:
            j -= 1
    return tuple(pairs)
