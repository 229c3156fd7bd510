"""Whether a toggle changed the machine code that ran: what no latency can tell."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import binom

from workbench.schema import KERNEL_EVIDENCE, check

#: Probability of seeing a difference where there is none, over all functions of a comparison.
_ALPHA = 0.001

#: A function counts as gone where less than this part of its share is left: a change of speed
#: moves shares, but never that far.
_LEFT = 0.1

#: To say that nothing changed, code with this share of the time must have been noticed.
_NOTICED_OF_RUN, _NOTICED_OF_OPERATOR = 0.05, 0.5


@dataclass(frozen=True)
class Proof:
    """What samples show of a toggle: ``changed``, ``same``, or ``not shown``.

    ``appeared`` is the share of the candidate's samples in functions that the baseline did not run,
    ``vanished`` the other way round; ``noticed`` is the smallest share that would have shown.
    ``before`` and ``after`` are the classes of machine code by share.
    """

    outcome: str
    appeared: float
    vanished: float
    noticed: float
    samples: tuple[int, int]
    before: dict[str, float]
    after: dict[str, float]


def prove_change(baseline: pd.DataFrame, candidate: pd.DataFrame) -> Proof:
    """Whether the candidate ran other machine code than the baseline, over the whole inference.

    A function shows a change if one side spent samples in it and the other (almost) none, more of
    them than chance would put on one side: a one-sided binomial test at 0.1 %, divided by the
    number of functions.

    Parameters
    ----------
    baseline, candidate
        ``schema.EVIDENCE``, each of one experiment and thread count, of the same libraries.
    """
    counts = _count(baseline, candidate)
    totals = counts.sum().to_numpy()
    appeared, vanished = _moved(counts, totals)
    noticed = _noticed(len(counts), totals)
    return Proof(
        outcome=_outcome(appeared | vanished, noticed, _NOTICED_OF_RUN),
        appeared=_share(counts["candidate"][appeared].sum(), totals[1]),
        vanished=_share(counts["baseline"][vanished].sum(), totals[0]),
        noticed=noticed,
        samples=(int(totals[0]), int(totals[1])),
        before=_classes(baseline),
        after=_classes(candidate),
    )


def compare_evidence(baseline: pd.DataFrame, candidate: pd.DataFrame) -> pd.DataFrame:
    """The microkernel of every operator on both sides, and whether it is another one.

    Parameters
    ----------
    baseline, candidate
        ``schema.EVIDENCE``, each of one experiment and thread count, of the same libraries.

    Returns
    -------
    DataFrame
        ``schema.KERNEL_EVIDENCE``, the most samples first; operators that both sides have. The
        kernel is the function with the most samples.
    """
    sides = [side[side["key"] != ""] for side in (baseline, candidate)]
    parts = [dict(list(side.groupby("key", sort=False))) for side in sides]
    counted = dict(list(_count(*sides, "key").groupby(level="key")))
    rows = []
    for key, before in parts[0].items():
        if (after := parts[1].get(key)) is None:
            continue
        counts = counted[key]
        totals = counts.sum().to_numpy()
        moved = np.logical_or(*_moved(counts, totals))
        rows.append(
            {
                "key": key,
                "operator": before["operator"].iloc[0],
                "candidate_operator": after["operator"].iloc[0],
                "category": before["category"].iloc[0],
                **_kernel("baseline", before),
                **_kernel("candidate", after),
                "change": _outcome(moved, _noticed(len(counts), totals), _NOTICED_OF_OPERATOR),
            }
        )
    table = pd.DataFrame(rows, columns=KERNEL_EVIDENCE.names)
    order = -(table["baseline_samples"] + table["candidate_samples"])
    return check(
        table.iloc[np.argsort(order, kind="stable")].reset_index(drop=True), KERNEL_EVIDENCE
    )


def _count(baseline: pd.DataFrame, candidate: pd.DataFrame, *within: str) -> pd.DataFrame:
    """Samples of both sides by library and function, within columns if there are any."""
    sides = {
        name: side.groupby([*within, "library", "function"])["samples"].sum()
        for name, side in (("baseline", baseline), ("candidate", candidate))
    }
    return pd.DataFrame(sides).fillna(0).astype(int)


def _moved(counts: pd.DataFrame, totals: np.ndarray) -> tuple[pd.Series, pd.Series]:
    """Which functions appeared in the candidate, and which vanished from it."""
    both = counts.sum(axis=1)
    level = _ALPHA / max(len(counts), 1)
    gone = []
    for rare, often in ((0, 1), (1, 0)):
        few, many = counts.iloc[:, rare], counts.iloc[:, often]
        chance = binom.cdf(few, both, totals[rare] / max(totals.sum(), 1))
        left = few * totals[often] <= _LEFT * many * totals[rare]
        gone.append(left & (chance < level))
    return gone[0], gone[1]


def _noticed(functions: int, totals: np.ndarray) -> float:
    """The least share that a function must have on one side to show that the other lacks it."""
    if not totals.all():
        return 1.0
    level = math.log(_ALPHA / (functions + 1))
    needed = np.floor(level / np.log(totals / totals.sum())) + 1
    return float(min(1.0, (needed / totals).max()))


def _outcome(moved: pd.Series, noticed: float, least: float) -> str:
    if moved.any():
        return "changed"
    return "same" if noticed <= least else "not shown"


def _kernel(side: str, evidence: pd.DataFrame) -> dict[str, object]:
    top = evidence.iloc[0]
    return {
        f"{side}_kernel": top["function"],
        f"{side}_code": top["code"],
        f"{side}_share": top["share"],
        f"{side}_samples": int(evidence["samples"].sum()),
    }


def _classes(evidence: pd.DataFrame) -> dict[str, float]:
    counts = evidence.groupby("code")["samples"].sum().sort_values(ascending=False)
    return {name: _share(count, counts.sum()) for name, count in counts.items()}


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole else 0.0
