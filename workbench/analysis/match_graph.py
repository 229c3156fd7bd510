"""Which predicted operator each logged one is: the cheapest way to turn one list into the other.

The prediction of a delegate's operators that explains what a CPU logged.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workbench.analysis.xnnpack.operators import Operator, half_kinds, predict_operators
from workbench.analysis.xnnpack.rewrites import EVERYTHING
from workbench.records.layers import Instruction

#: Costs: another type than expected; one operator too many or too few, of the light sort or not.
_WRONG_TYPE, _LIGHT, _HEAVY = 5, 12, 20
_NEVER = 10**6

#: Another pairing that costs no more than this beyond the best one is possible, too.
DOUBT = _HEAVY

#: Larger problems are not tried: they take seconds, and explain nothing.
_MOST_CELLS = 4_000_000

_LIGHT_NAMES = re.compile(r"Convert|Copy|Transpose|Clamp|Static Reshape|Pack")


@dataclass(frozen=True)
class Alignment:
    """``pairs`` has the operator of each name, -1 for none; ``rivals`` the others it may be.

    At ``cost`` 0 all names are explained and no operator is missing.
    """

    cost: int
    pairs: tuple[int, ...]
    rivals: tuple[frozenset[int], ...]


def align(operators: Sequence[Operator], names: Sequence[str]) -> Alignment:
    """Pair names, without their ordinals, with operators, in order."""
    distinct, codes = np.unique(np.array(names, object), return_inverse=True)
    if len(operators) == len(names) and all(
        _cost(operator, name) == 0 for operator, name in zip(operators, names, strict=True)
    ):
        return Alignment(0, tuple(range(len(names))), (frozenset(),) * len(names))
    if len(operators) * len(names) > _MOST_CELLS:
        return Alignment(_NEVER, (-1,) * len(names), (frozenset(),) * len(names))
    table = np.array([[_cost(o, name) for name in distinct] for o in operators], np.int64)
    pairing = table.reshape(len(operators), len(distinct))[:, codes]
    skip = np.array([_LIGHT if o.light else _HEAVY for o in operators], np.int64)
    extra = np.array([_LIGHT if _LIGHT_NAMES.match(n) else _HEAVY for n in names], np.int64)
    before = _prefix_costs(pairing, skip, extra)
    after = _prefix_costs(pairing[::-1, ::-1], skip[::-1], extra[::-1])[::-1, ::-1]
    best = int(before[-1, -1])
    through = before[:-1, :-1] + pairing + after[1:, 1:]
    pairs = _trace_back(before, pairing, skip)
    possible = through <= best + DOUBT
    rivals = (
        frozenset(np.flatnonzero(possible[:, place]).tolist()) - {pair}
        for place, pair in enumerate(pairs)
    )
    return Alignment(best, pairs, tuple(rivals))


def _cost(operator: Operator, name: str) -> int:
    if not operator.fits(name):
        return _NEVER
    return 0 if operator.types in name else _WRONG_TYPE


def _prefix_costs(pairing: np.ndarray, skip: np.ndarray, extra: np.ndarray) -> np.ndarray:
    """Cost of aligning the first ``i`` operators with the first ``j`` names, for all i and j."""
    extras = np.append(0, np.cumsum(extra))
    costs = np.empty((len(skip) + 1, len(extras)), np.int64)
    costs[0] = extras
    for i in range(len(skip)):
        row = costs[i] + skip[i]
        row[1:] = np.minimum(row[1:], costs[i, :-1] + pairing[i])
        # A name too many may follow at any place: the minimum over all places before.
        costs[i + 1] = np.minimum.accumulate(row - extras) + extras
    return costs


def _trace_back(costs: np.ndarray, pairing: np.ndarray, skip: np.ndarray) -> tuple[int, ...]:
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
_KNOWN = (frozenset(), frozenset({"resize"}), frozenset({EVERYTHING}))


@dataclass(frozen=True)
class Fit:
    """Operators and how they pair with the log; ``lacking`` is what was assumed of the CPU."""

    operators: list[Operator]
    alignment: Alignment
    lacking: frozenset[str]

    @property
    def complete(self) -> bool:
        """Whether every logged operator is explained and none is missing."""
        return self.alignment.cost == 0


def fit_operators(
    delegate: Instruction, names: Sequence[str], learned: frozenset[str] = frozenset()
) -> Fit:
    """Find out what a CPU lacks by what it logged; tries the likely first, then kind by kind.

    Parameters
    ----------
    delegate
        The instruction that calls it.
    names
        Logged names without their ordinals, in order.
    learned
        What explained another delegate of the same trace.
    """

    def attempt(lacking: frozenset[str]) -> Fit:
        operators = predict_operators(delegate.xvalues, delegate.xnodes, lacking)
        return Fit(operators, align(operators, names), lacking)

    kinds = half_kinds(delegate.xvalues, delegate.xnodes)
    tries = dict.fromkeys((learned, *_KNOWN)) if kinds else [_KNOWN[0]]
    best = None
    for lacking in tries:
        fit = attempt(lacking)
        if best is None or fit.alignment.cost < best.alignment.cost:
            best = fit
        if best.complete:
            return best
    for _ in kinds:
        fits = [attempt(best.lacking ^ {kind}) for kind in kinds]
        better = min(fits, key=lambda fit: fit.alignment.cost)
        if better.alignment.cost >= best.alignment.cost:
            break
        best = better
    return best
