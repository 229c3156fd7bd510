"""The table of rules, and their findings by rank."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from workbench.analysis.findings import graph, times
from workbench.analysis.findings.context import Finding, Gain, RuleContext
from workbench.frames import FINDINGS, check

#: Smaller gains, as a fraction of E2E, are not reported.
LEAST_SHARE = 0.01
_TYPES = {"rank": int} | dict.fromkeys(("gain_ms", "low_ms", "high_ms", "share"), float)
#: The notebook that shows the evidence.
NOTEBOOK = "12_report"


@dataclass(frozen=True)
class Rule:
    """One line of the table of rules.

    With ``claims``, its findings explain their rows and later rules skip these. ``heading`` is the
    section of the report with the evidence. A ``timed`` rule needs times that mean something.
    """

    name: str
    find: Callable[[RuleContext, Collection[str]], Iterator[Finding]]
    claims: bool
    heading: str
    timed: bool = False


_OPERATORS = "Which operators cost the most?"
_LAYERS = "Which layers?"
_UNDELEGATED = "What was not delegated?"
_SPEEDUPS = "What became faster?"
_LATENCY = "How long does one inference take?"
_CATEGORIES = "Where does the time go?"

#: In the order in which they claim rows: the best explanation comes first.
RULES = (
    Rule("fixed work", graph.find_fixed, True, _OPERATORS),
    Rule("safe softmax", graph.find_safe_softmax, True, _UNDELEGATED),
    Rule("undelegated", graph.find_undelegated, True, _UNDELEGATED),
    Rule("needless transposes", graph.find_needless_transposes, True, _OPERATORS),
    Rule("batch norm", graph.find_batch_norm, True, _LAYERS),
    Rule("memory-bound", times.find_memory_bound, True, _OPERATORS, timed=True),
    Rule("compute-bound", times.find_compute_bound, True, _OPERATORS, timed=True),
    Rule("layout", graph.find_layout_changes, False, _CATEGORIES),
    Rule("fragments", graph.find_fragments, False, _UNDELEGATED),
    Rule("no speed-up", times.find_slow_products, False, _SPEEDUPS, timed=True),
    Rule("wide weights", times.find_wide_weights, False, _OPERATORS),
    Rule("pointwise chain", graph.find_chains, False, _OPERATORS),
    Rule("tiny operators", times.find_tiny_operators, False, _CATEGORIES, timed=True),
    Rule("threads", times.find_threads, False, _LATENCY, timed=True),
    Rule("dtype", times.find_dtype, False, _LATENCY, timed=True),
    Rule("far from the roof", times.find_far_from_roof, False, _OPERATORS, timed=True),
)


def find_bottlenecks(facts: RuleContext) -> pd.DataFrame:
    """Optimisation opportunities above 1 % of E2E, largest gain first: ``frames.FINDINGS``.

    Those with only an upper bound come last. Gains do not add up: two findings may have one cause.
    For an emulated run, only rules that need no times apply: their findings in the order of the
    rules, those with the most operators first, without gain or share.
    """
    left = set(facts.rows.index)
    found = []
    for rule in RULES:
        if facts.emulated and rule.timed:
            continue
        findings = list(rule.find(facts, left))
        if facts.emulated:
            findings.sort(key=lambda finding: -len(finding.keys))
        else:
            findings = [each for each in findings if _share(each, facts) >= LEAST_SHARE]
        found += [(rule, finding) for finding in findings]
        if rule.claims:
            left -= {key for finding in findings for key in finding.keys}
    table = pd.DataFrame(
        [_row(rule, finding, facts) for rule, finding in found], columns=FINDINGS.names
    )
    if facts.emulated:
        return _rank(table)
    order = table.assign(bound=table["basis"] == "bound", size=table["gain_ms"].fillna(0.0))
    order = order.sort_values(
        ["bound", "size", "high_ms"], ascending=[True, False, False], kind="stable"
    )
    return _rank(table.loc[order.index])


def _rank(table: pd.DataFrame) -> pd.DataFrame:
    ranks = np.arange(1, len(table) + 1)
    return check(table.reset_index(drop=True).assign(rank=ranks).astype(_TYPES), FINDINGS)


def _share(finding: Finding, facts: RuleContext) -> float:
    """The gain, or its upper bound, as a part of E2E."""
    gain = finding.gain
    reached = gain.high if gain.basis == "bound" else gain.ms
    return facts.share(reached if finding.keys else reached / facts.scale)


def _scales(finding: Finding, facts: RuleContext) -> tuple[float, float, float]:
    """Untraced latency per traced millisecond of a finding: typical, least, most.

    Tracing and interference lengthen traced inferences. Typically this is spread evenly over the
    rows; in the extreme, all or none of it is in the finding's rows.
    """
    if not finding.keys:
        return 1.0, 1.0, 1.0
    spent, latency = facts.spent(finding.keys).ms, facts.scale * facts.e2e_ms
    if not spent:
        return facts.scale, facts.scale, facts.scale
    left = latency - (facts.e2e_ms - spent)
    least, most = sorted((spent, left))
    return facts.scale, max(0.0, least) / spent, min(most, latency) / spent


def _row(rule: Rule, finding: Finding, facts: RuleContext) -> dict[str, object]:
    gain, title, share = finding.gain, finding.title, _share(finding, facts)
    if facts.emulated:
        gain, share = Gain.unknown(), np.nan
    elif finding.keys:
        title += f"; {100 * facts.share(facts.spent(finding.keys).ms):.0f} % of the time"
    scale, least, most = _scales(finding, facts)
    return {
        "rank": 0,
        "rule": rule.name,
        "title": title,
        "gain_ms": scale * gain.ms,
        "low_ms": least * gain.low,
        "high_ms": min(most * gain.high, facts.scale * facts.e2e_ms),
        "share": share,
        "basis": gain.basis,
        "action": finding.action,
        "hint": finding.hint,
        "keys": "\n".join(finding.keys),
        "notebook": NOTEBOOK,
        "heading": rule.heading,
    }
