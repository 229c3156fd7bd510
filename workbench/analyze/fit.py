"""The prediction of a delegate's operators that explains what a CPU logged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workbench.analyze.align import Alignment, align
from workbench.analyze.xnnpack import EVERYTHING, Operator, half_kinds, predict_operators
from workbench.records import Instruction

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
