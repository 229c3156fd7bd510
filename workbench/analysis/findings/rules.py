"""The table of rules, and their findings by rank."""

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from workbench.analysis.findings import graph, times
from workbench.analysis.findings.gains import (
    Finding,
    Gain,
    layers_of,
    share_of,
    time_spent,
    untraced_scale,
)
from workbench.analysis.run import Measurement
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
    find: Callable[[Measurement, Collection[str]], Iterator[Finding]]
    claims: bool
    heading: str
    timed: bool = False


_OPERATORS = "Which operators cost the most?"
_LAYERS = "Which layers?"
_DTYPES = "What ran in the dtype that was asked for?"
_UNDELEGATED = "What was not delegated?"
_SPEEDUPS = "What became faster?"
_LATENCY = "How long does one inference take?"
_CATEGORIES = "Where does the time go?"
_MEMORY = "How much memory, and how long until the first output?"

#: In the order in which they claim rows: the best explanation comes first.
RULES = (
    Rule("fixed work", graph.find_fixed, True, _OPERATORS),
    Rule("logits", graph.find_logits, True, _OPERATORS),
    Rule("KV cache", graph.find_caches, True, _UNDELEGATED),
    Rule("safe softmax", graph.find_safe_softmax, True, _UNDELEGATED),
    Rule("undelegated", graph.find_undelegated, True, _UNDELEGATED),
    Rule("needless transposes", graph.find_needless_transposes, True, _OPERATORS),
    Rule("batch norm", graph.find_batch_norm, True, _LAYERS),
    Rule("grouped convolution", times.find_grouped, True, _OPERATORS, timed=True),
    Rule("memory-bound", times.find_memory_bound, True, _OPERATORS, timed=True),
    Rule("weight bandwidth", times.find_weight_bandwidth, True, _OPERATORS, timed=True),
    Rule("weight groups", times.find_weight_groups, False, _OPERATORS, timed=True),
    Rule("compute-bound", times.find_compute_bound, True, _OPERATORS, timed=True),
    Rule("head", graph.find_head, False, _OPERATORS),
    Rule("layout", graph.find_layout_changes, False, _CATEGORIES),
    Rule("fragments", graph.find_fragments, False, _UNDELEGATED),
    Rule("no speed-up", times.find_slow_products, False, _SPEEDUPS, timed=True),
    Rule("wide weights", times.find_wide_weights, False, _OPERATORS),
    Rule("pointwise chain", graph.find_chains, False, _OPERATORS),
    Rule("tiny operators", times.find_tiny_operators, False, _CATEGORIES, timed=True),
    Rule("threads", times.find_threads, False, _LATENCY, timed=True),
    Rule("dtype", times.find_dtype, False, _LATENCY, timed=True),
    Rule("float layers", times.find_float_layers, False, _DTYPES),
    Rule("far from the roof", times.find_far_from_roof, False, _OPERATORS, timed=True),
    Rule("memory peak", graph.find_memory_peak, False, _MEMORY),
    Rule("slow start", times.find_slow_start, False, _MEMORY, timed=True),
)


def find_bottlenecks(m: Measurement) -> pd.DataFrame:
    """Optimisation opportunities above 1 % of latency, by expected gain: ``frames.FINDINGS``.

    Of a gain with only an upper bound, half is expected. Gains do not add up: two findings may have
    one cause. For an emulated run, only rules that need no times apply: their findings in the order
    of the rules, those with the most operators first, without gain or share.
    """
    unclaimed = set(m.costs.index)
    found = []
    for rule in RULES:
        if m.emulated and rule.timed:
            continue
        rows = [_row(rule, finding, m) for finding in rule.find(m, unclaimed)]
        if m.emulated:
            rows.sort(key=lambda row: -len(row["keys"].splitlines()))
        else:
            rows = [row for row in rows if row["share"] >= LEAST_SHARE]
        found += rows
        if rule.claims:
            unclaimed -= {key for row in rows for key in row["keys"].splitlines()}
    table = pd.DataFrame(found, columns=FINDINGS.names)
    if not m.emulated:
        expected = table["gain_ms"].fillna(table["high_ms"] / 2)
        table = table.loc[expected.sort_values(ascending=False, kind="stable").index]
    ranks = np.arange(1, len(table) + 1)
    return check(table.reset_index(drop=True).assign(rank=ranks).astype(_TYPES), FINDINGS)


def _scales(finding: Finding, m: Measurement) -> tuple[float, float, float]:
    """Untraced latency per traced millisecond of a finding: typical, least, most.

    Tracing lengthens inferences by an amount that is spread over the rows by their time, by the
    number of events, or not over these rows at all.
    """
    if not finding.keys:
        return 1.0, 1.0, 1.0
    scale = untraced_scale(m)
    spent, added = time_spent(m, finding.keys).ms, m.traced_ms * (1 - scale)
    least = min(scale, 1.0)
    if added > 0 and spent:
        calls = m.costs["calls"]
        by_calls = 1 - added * calls[list(finding.keys)].sum() / calls.sum() / spent
        least = min(least, max(0.0, by_calls))
    return scale, least, max(scale, 1.0)


def _row(rule: Rule, finding: Finding, m: Measurement) -> dict[str, Any]:
    known = not m.emulated or finding.gain.basis == "planned"
    gain, keys = finding.gain if known else Gain(basis="unknown"), list(finding.keys)
    timed = keys and not m.emulated and math.isnan(gain.share)
    latency = untraced_scale(m) * m.traced_ms
    scale, least, most = _scales(finding, m)
    if gain.basis == "bound":
        most = scale
    typical, high = scale * gain.ms, min(most * gain.high, latency)
    share = (high if gain.basis == "bound" else typical) / latency if latency else math.nan
    return {
        "rank": 0,
        "rule": rule.name,
        "title": finding.title,
        "spent": share_of(m, time_spent(m, keys).ms) if timed else np.nan,
        "place": finding.place or layers_of(m.costs.loc[keys]),
        "gain_ms": typical,
        "low_ms": least * gain.low,
        "high_ms": high,
        "share": share if math.isnan(gain.share) else gain.share,
        "of": gain.of,
        "basis": gain.basis,
        "action": finding.action,
        "hint": finding.hint,
        "keys": "\n".join(finding.keys),
        "notebook": NOTEBOOK,
        "heading": rule.heading,
    }
