"""The table of rules, and what they find."""

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

from workbench import plugin
from workbench.analysis.findings import (
    bounds,
    graph_rules,
    layouts,
    quantised,
    sizes,
    staying,
    times,
)
from workbench.analysis.findings.finding import (
    REST,
    Finding,
    Gain,
    call_unknown,
)
from workbench.analysis.findings.gains import joined_calls_ms, layers_of, scale_error, time_spent
from workbench.analysis.run import Measurement

#: A rule looks at the rows that no earlier one explained.
Find = Callable[[Measurement, Collection[str]], Iterator[Finding]]
#: What changes the findings of all rules.
Revise = Callable[[Measurement, list[Finding]], list[Finding]]

_OPERATORS = "Which operators cost the most?"
_LAYERS = "Which layers and lines?"
_DTYPES = "What ran in the dtype that was asked for?"
_UNDELEGATED = "What was not delegated?"
_SPEEDUPS = "What became faster?"
_LATENCY = "How long does one inference take?"


@dataclass(frozen=True)
class Rule:
    """A rule, with the section of the report that has the evidence.

    ``timed`` is whether it needs times that mean something, ``exact`` whether its findings explain
    their operators, which later rules then skip. A rule that has to ``revise`` is given what all
    rules found, and returns it with what it knows of that, such as measured gains.
    """

    find: Find = lambda m, unclaimed: iter(())
    heading: str = _OPERATORS
    timed: bool = True
    exact: bool = False
    revise: Revise | None = None


def _exact(find: Find, heading: str = _OPERATORS, timed: bool = False) -> Rule:
    return Rule(find, heading, timed, exact=True)


#: The best explanation comes first.
RULES: dict[str, Rule] = {
    "portable": Rule(graph_rules.find_portable, _UNDELEGATED, timed=False),
    "constant inputs": _exact(staying.find_staying),
    "dtype outside": _exact(graph_rules.find_dtype_outside, _UNDELEGATED),
    "fixed work": _exact(graph_rules.find_fixed),
    "remedy": _exact(graph_rules.find_replaceable),
    "head": _exact(graph_rules.find_head),
    "KV cache": _exact(graph_rules.find_caches, _UNDELEGATED),
    "float functions": _exact(quantised.find_float_functions, _DTYPES, timed=True),
    "undelegated": _exact(graph_rules.find_undelegated, _UNDELEGATED),
    "needless transposes": _exact(layouts.find_needless_transposes),
    "sizes": Rule(sizes.find_sizes),
    "memory-bound": _exact(bounds.find_memory_bound, timed=True),
    "compute-bound": _exact(bounds.find_compute_bound, timed=True),
    "layout": Rule(layouts.find_layout_changes, timed=False),
    "fragments": Rule(graph_rules.find_calls, _UNDELEGATED, timed=False),
    "no speed-up": Rule(times.find_slow_operators, _SPEEDUPS),
    "wide weights": Rule(times.find_wide_weights, timed=False),
    "threads": Rule(times.find_threads, _LATENCY),
    "other runtimes": Rule(times.find_slower_layers, _LAYERS),
    "dtype": Rule(times.find_dtype, _LATENCY),
    "float layers": Rule(times.find_float_layers, _DTYPES, timed=False),
}


def list_rules() -> dict[str, Rule]:
    """The rules by name, those of plug-ins after these, and that about the rest last."""
    plugin_rules = {
        name: rule if isinstance(rule, Rule) else Rule(rule)
        for name, rule in plugin.collect("rules").items()
    }
    return RULES | plugin_rules | {REST: Rule(graph_rules.find_rest)}


def find_bottlenecks(m: Measurement) -> list[Finding]:
    """What the rules find in a measurement, above 1 % of the latency; `rank_findings` orders it.

    Gains do not add up: two findings may have one cause. Operators that an exact finding explains
    belong to it; those of a remedy, however little they take. For an emulated run, only rules that
    need no times apply, the findings with the most operators first in each, without gain. Where the
    parts of a measurement are impossible, rules that need times are left out, too, and no gain is
    stated.
    """
    if m.runtime:  # the rules are about ExecuTorch
        return []
    unclaimed, rest, findings = set(m.costs.index), set(m.costs.index), list[Finding]()
    is_untimed = m.emulated or bool(m.impossible)
    for name, rule in list_rules().items():
        if is_untimed and rule.timed:
            continue
        rows = rest if name == REST else unclaimed
        new = [complete(m, name, rule, finding) for finding in _apply(name, rule, m, rows)]
        if m.emulated:
            new.sort(key=lambda finding: -len(finding.operators))
        worth = [finding for finding in new if m.emulated or finding.is_worth_it()]
        findings += worth
        timed = [finding for finding in worth if finding.gain.of == "latency"]
        rest -= {key for finding in timed for key in finding.operators}
        if rule.exact:
            remedied = [finding for finding in new if finding.remedy]
            unclaimed -= {key for finding in [*worth, *remedied] for key in finding.operators}
    return findings


def _apply(name: str, rule: Rule, m: Measurement, rows: Collection[str]) -> Iterator[Finding]:
    """The findings of a rule, as many as it yields before it fails: a rule costs itself only."""
    try:
        yield from rule.find(m, rows)
    except Exception as error:  # also the code of others, which may raise anything
        plugin.warn(name, error, "rule")


def complete(m: Measurement, name: str, rule: Rule, finding: Finding) -> Finding:
    """A finding with what its rule does not say, and a gain that its operators can have."""
    operators = tuple(dict.fromkeys(finding.operators))
    spent = time_spent(m, operators)
    is_timed = bool(operators) and not m.emulated and math.isnan(finding.gain.share)
    most_ms = time_spent(m, [*operators, *finding.beside]).high + joined_calls_ms(m, operators)
    whole = replace(
        finding,
        rule=name,
        heading=rule.heading,
        exact=rule.exact,
        operators=operators,
        gain=_limit_gain(m, finding.gain, operators, spent),
        place=finding.place or layers_of(m.costs.loc[list(operators)]),
        spent_ms=spent.ms if is_timed else math.nan,
        most_ms=most_ms if is_timed else math.nan,
        latency_ms=m.latency_ms,
    )
    return call_unknown(whole, spent)


def _limit_gain(m: Measurement, gain: Gain, operators: Collection[str], spent: Gain) -> Gain:
    """A gain of at most what its operators take, with the calls of delegates that they split."""
    if m.emulated and gain.basis != "planned":
        return Gain(basis="unknown")
    if gain.of != "latency":
        return gain
    if not operators or gain.basis == "measured":
        return replace(gain, high=min(gain.high, m.latency_ms))
    if "shares" not in m.use.uses and not m.emulated:
        return Gain(basis="unmeasurable")
    least, most = (1.0, 1.0) if gain.basis == "bound" else scale_error(m, operators, spent.ms)
    if gain.basis == "removal":  # what stays finds other data in the caches
        least, most = (1 - Gain.LESS) * least, (1 + Gain.MORE) * most
    limit = most * spent.high + joined_calls_ms(m, operators)
    high = min(most * gain.high, limit, m.latency_ms)
    ms = gain.ms if math.isnan(gain.ms) else min(gain.ms, high)
    return replace(gain, ms=ms, low=min(least * gain.low, high), high=high)
