"""Match the operators that a delegate is predicted to run with the logged ones, in order."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workbench.analysis.xnnpack.operators import Operator, half_kinds, predict_operators
from workbench.analysis.xnnpack.rewrites import EVERYTHING
from workbench.records.layers import Instruction

#: Costs: another type than expected; one operator too many or too few, of a light kind or not.
_WRONG_TYPE, _LIGHT, _HEAVY = 5, 12, 20
NEVER = 10**6

#: Another pairing is possible if it costs at most this much more than the best one.
DOUBT = _HEAVY

#: Larger problems are skipped: they take seconds, and explain nothing.
MOST_CELLS = 4_000_000

_LIGHT_NAMES = re.compile(r"Convert|Copy|Transpose|Clamp|Static Reshape|Pack")


@dataclass(frozen=True)
class Alignment:
    """The number of each name's operator (-1 for none), and of the others that are possible.

    At ``cost`` 0 all names are explained and no operator is missing.
    """

    cost: int
    pairs: tuple[int, ...]
    alternatives: tuple[frozenset[int], ...]


def align(operators: Sequence[Operator], names: Sequence[str]) -> Alignment:
    """Pair names, without their ordinals, with operators, in order."""
    nothing_else = (frozenset[int](),) * len(names)
    if len(operators) == len(names) and not any(map(_cost, operators, names)):
        return Alignment(0, tuple(range(len(names))), nothing_else)
    if len(operators) * len(names) > MOST_CELLS:
        return Alignment(NEVER, (-1,) * len(names), nothing_else)
    distinct, codes = np.unique(np.array(names, object), return_inverse=True)
    table = np.array([[_cost(o, name) for name in distinct] for o in operators], np.int64)
    pairing = table.reshape(len(operators), len(distinct))[:, codes]
    skip = np.array([_LIGHT if o.light else _HEAVY for o in operators], np.int64)
    extra = np.array([_LIGHT if _LIGHT_NAMES.match(n) else _HEAVY for n in names], np.int64)
    before = prefix_costs(pairing, skip, extra)
    after = prefix_costs(pairing[::-1, ::-1], skip[::-1], extra[::-1])[::-1, ::-1]
    best = int(before[-1, -1])
    possible = before[:-1, :-1] + pairing + after[1:, 1:] <= best + DOUBT
    pairs = trace_back(before, pairing, skip)
    alternatives = (
        frozenset(np.flatnonzero(possible[:, place]).tolist()) - {pair}
        for place, pair in enumerate(pairs)
    )
    return Alignment(best, pairs, tuple(alternatives))


def _cost(operator: Operator, name: str) -> int:
    if not operator.fits(name):
        return NEVER
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


#: What CPUs are known to lack fp16 kernels for: nothing, bilinear resizing (x86), anything.
_KNOWN = (frozenset[str](), frozenset({"resize"}), frozenset({EVERYTHING}))


@dataclass(frozen=True)
class GraphMatch:
    """Predicted operators, their pairing with the log, and the kernels assumed to be lacking."""

    operators: list[Operator]
    alignment: Alignment
    lacking: frozenset[str]

    @property
    def complete(self) -> bool:
        """Whether every logged operator is explained and none is missing."""
        return self.alignment.cost == 0


def match_graph(
    delegate: Instruction, names: Sequence[str], learned: frozenset[str] = frozenset()
) -> GraphMatch:
    """Match a delegate with its logged names, which also shows what the CPU lacks kernels for.

    ``learned``, what explained another delegate of the same trace, and the likely cases are tried
    first, then one kind of operator after another.
    """

    def attempt(lacking: frozenset[str]) -> GraphMatch:
        operators = predict_operators(delegate.xvalues, delegate.xnodes, lacking)
        return GraphMatch(operators, align(operators, names), lacking)

    def best_of(matches: Sequence[GraphMatch]) -> GraphMatch:
        return min(matches, key=lambda match: match.alignment.cost)

    kinds = half_kinds(delegate.xvalues, delegate.xnodes)
    first, *others = dict.fromkeys((learned, *_KNOWN)) if kinds else _KNOWN[:1]
    best = attempt(first)
    for lacking in others:
        if best.complete:
            return best
        best = best_of([best, attempt(lacking)])
    if best.complete:
        return best
    for _ in kinds:
        better = best_of([best, *(attempt(best.lacking ^ {kind}) for kind in kinds)])
        if better is best:
            break
        best = better
    return best
