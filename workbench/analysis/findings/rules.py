"""The table of rules, and their findings by rank."""

import math
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from workbench import plugin
from workbench.analysis.findings import bounds, chains, graph, layouts, times
from workbench.analysis.findings.gains import (
    Finding,
    Gain,
    layers_of,
    share_of,
    time_spent,
)
from workbench.analysis.findings.ranking import LEAST_SHARE, rank_findings
from workbench.analysis.run import Measurement
from workbench.frames import FINDINGS, check
from workbench.remedies import NO_REMEDY

_NUMBERS = ("gain_ms", "low_ms", "high_ms", "share")
#: A gain that the traces do not show.
_UNMEASURED: dict[str, Any] = {"basis": "unmeasurable"}
_UNMEASURED |= dict.fromkeys(("spent", *_NUMBERS), math.nan)
#: The notebook that shows the evidence.
NOTEBOOK = "16_report"


#: A rule looks at the rows that no earlier one explained.
Find = Callable[[Measurement, Collection[str]], Iterator[Finding]]

_OPERATORS = "Which operators cost the most?"
_LAYERS = "Which layers?"
_DTYPES = "What ran in the dtype that was asked for?"
_UNDELEGATED = "What was not delegated?"
_SPEEDUPS = "What became faster?"
_LATENCY = "How long does one inference take?"
_CATEGORIES = "Where does the time go?"

#: Each with the section of the report that has the evidence, whether its findings explain their
#: rows, which later rules then skip, and whether it needs times that mean something. The best
#: explanation comes first.
RULES: tuple[tuple[str, Find, str, bool, bool], ...] = (
    ("dtype outside", graph.find_dtype_outside, _UNDELEGATED, True, False),
    ("remedy", graph.find_replaceable, _OPERATORS, True, False),
    ("fixed work", graph.find_fixed, _OPERATORS, True, False),
    ("logits", graph.find_logits, _OPERATORS, True, False),
    ("KV cache", graph.find_caches, _UNDELEGATED, True, False),
    ("undelegated", graph.find_undelegated, _UNDELEGATED, True, False),
    ("needless transposes", layouts.find_needless_transposes, _OPERATORS, True, False),
    ("batch norm", chains.find_batch_norm, _LAYERS, True, False),
    ("grouped convolution", times.find_grouped, _OPERATORS, True, True),
    ("memory-bound", bounds.find_memory_bound, _OPERATORS, True, True),
    ("weight bandwidth", bounds.find_weight_bandwidth, _OPERATORS, True, True),
    ("weight groups", bounds.find_weight_groups, _OPERATORS, False, True),
    ("compute-bound", bounds.find_compute_bound, _OPERATORS, True, True),
    ("head", graph.find_head, _OPERATORS, False, False),
    ("layout", layouts.find_layout_changes, _CATEGORIES, False, False),
    ("overhead", graph.find_overhead, _CATEGORIES, False, True),
    ("fragments", graph.find_fragments, _UNDELEGATED, False, False),
    ("slower", times.find_slower, _SPEEDUPS, False, True),
    ("no speed-up", times.find_slow_products, _SPEEDUPS, False, True),
    ("wide weights", times.find_wide_weights, _OPERATORS, False, False),
    ("pointwise chain", chains.find_chains, _OPERATORS, False, False),
    ("tiny operators", times.find_tiny_operators, _CATEGORIES, False, True),
    ("threads", times.find_threads, _LATENCY, False, True),
    ("other runtimes", times.find_slower_layers, _LAYERS, False, True),
    ("dtype", times.find_dtype, _LATENCY, False, True),
    ("float layers", times.find_float_layers, _DTYPES, False, False),
    ("far from the roof", bounds.find_far_from_roof, _OPERATORS, False, True),
    (NO_REMEDY, graph.find_rest, _OPERATORS, False, True),
)


class Rule(NamedTuple):
    """A rule of a plug-in, with the section of the report that has the evidence.

    ``timed`` is whether it needs times that mean something.
    """

    find: Find
    heading: str = _OPERATORS
    timed: bool = True


def list_rules() -> list[tuple[str, Find, str, bool, bool]]:
    """The rules, with those of plug-ins, which explain no rows, before the last one."""
    rules = [*RULES]
    for name, added in plugin.collect("rules").items():
        rule = added if isinstance(added, Rule) else Rule(added)
        find = partial(_apply, name, rule.find)
        rules.insert(-1, (name, find, rule.heading, False, rule.timed))
    return rules


def _apply(name: str, find: Find, m: Measurement, keys: Collection[str]) -> Iterator[Finding]:
    """The findings of a plug-in's rule, as many as it yields before it fails."""
    try:
        yield from find(m, keys)
    except Exception as error:  # the code of others may raise anything
        plugin.warn(f"rule {name}", error)


def find_bottlenecks(m: Measurement) -> pd.DataFrame:
    """Optimisation opportunities above 1 % of latency: ``frames.FINDINGS``.

    `rank_findings` has their order. Gains do not add up: two findings may have one cause. For an
    emulated run, only rules that need no times apply: their findings in the order of the rules,
    those with the most operators first, without gain or share. Where the parts of a measurement
    are impossible, rules that need times are left out, too, and no gain is stated.
    """
    unclaimed, rest = set(m.costs.index), set(m.costs.index)
    holds, findings = "shares" in m.use.uses, list[dict[str, Any]]()
    for name, find, heading, claims, timed in list_rules():
        untimed = m.emulated or m.impossible
        if m.runtime or (untimed and timed):  # the rules are about ExecuTorch
            continue
        about = {"rule": name, "notebook": NOTEBOOK, "heading": heading}
        rows = [
            about | _row(finding, m)
            for finding in find(m, rest if name == NO_REMEDY else unclaimed)
        ]
        if m.emulated:
            rows.sort(key=lambda row: -len(row["keys"].splitlines()))
        else:
            rows = [row for row in rows if row["share"] >= LEAST_SHARE]
        if not (holds or m.emulated):
            for row in rows:  # gains that follow from the times of traced operators
                if row["of"] == "latency" and row["keys"] and row["basis"] != "measured":
                    row |= _UNMEASURED
        findings += rows
        explained = {key for row in rows for key in row["keys"].splitlines()}
        rest -= explained
        if claims:
            unclaimed -= explained
    table = pd.DataFrame(findings, columns=FINDINGS.names)
    table = table.astype({"rank": int} | dict.fromkeys(_NUMBERS, float))
    return check(rank_findings(table, by_gain=not m.emulated), FINDINGS)


def _bound_scale(finding: Finding, m: Measurement) -> tuple[float, float]:
    """How far off the times of a finding's rows may be because they are scaled: least and most.

    Tracing lengthens inferences by an amount that is spread over the rows by their time, as the
    scale has it, by the number of events, or not over these rows at all.
    """
    if not (finding.keys and m.traced_ms and m.latency_ms):
        return 1.0, 1.0
    longer = m.traced_ms / m.latency_ms  # as traced, over the latency
    spent, added = time_spent(m, finding.keys).ms, m.traced_ms - m.latency_ms
    least = min(1.0, longer)
    if added > 0 and spent:
        calls = m.costs["calls"]
        by_calls = longer - added * calls[[*finding.keys]].sum() / calls.sum() / spent
        least = min(least, max(0.0, by_calls))
    return least, max(1.0, longer)


def _row(finding: Finding, m: Measurement) -> dict[str, Any]:
    stated = not m.emulated or finding.gain.basis == "planned"
    gain, keys = finding.gain if stated else Gain(basis="unknown"), [*finding.keys]
    timed = keys and not m.emulated and math.isnan(gain.share)
    latency = m.latency_ms
    least, most = _bound_scale(finding, m)
    if gain.basis == "bound":
        most = 1.0
    high = most * gain.high
    if gain.of == "latency":
        high = min(high, latency)
    share = (high if gain.basis == "bound" else gain.ms) / latency if latency else math.nan
    return {
        "rank": 0,
        "title": finding.title,
        "spent": share_of(m, time_spent(m, keys).ms) if timed else np.nan,
        "place": finding.place or layers_of(m.costs.loc[keys]),
        "gain_ms": gain.ms,
        "low_ms": least * gain.low,
        "high_ms": high,
        "share": share if math.isnan(gain.share) else gain.share,
        "of": gain.of,
        "basis": gain.basis,
        "action": finding.action,
        "hint": finding.hint,
        "remedy": finding.remedy,
        "keys": "\n".join(finding.keys),
    }
