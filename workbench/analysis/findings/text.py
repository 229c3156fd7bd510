"""Findings in words: one function for each part of what is said, whatever the surface."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

from workbench.analysis.findings.finding import LEAST_SHARE, REST, Finding
from workbench.records.trials import Trial
from workbench.wording import (
    begin_sentence,
    fit_decimals,
    format_estimate,
    format_range,
    format_share,
    plural,
)

#: What a gain was concluded from.
_BASES = {
    "checked": "measured with the remedy",
    "removal": "estimate: measured time of the removed operators",
    "twin": "estimate from similar operators of this run",
    "roofline": "estimate from the best rates that were measured",
}
#: How much more than its operators take a finding gains at most whose interval is theirs alone.
_SPLITS = 2.0
NONE = "No findings: no rule found a gain of 1 % or more."

#: Outputs of a lower signal to noise ratio are those of another function.
_AGREES_DB = 30.0


def describe_cause(finding: Finding) -> str:
    """What was seen, as the beginning of a sentence; with the phase where there are several."""
    cause = " ".join(finding.cause.split())
    return begin_sentence(f"{finding.phase}: {cause}" if finding.phase else cause)


def describe_place(finding: Finding) -> str:
    """The time and layers of a finding: ``10 % of the time, in classifier.3 (net.py:120)``."""
    spent = "" if math.isnan(finding.spent) else f"{format_share(finding.spent)} of the time"
    return ", ".join(filter(None, (spent, finding.place and f"in {finding.place}")))


def describe_gain(finding: Finding) -> str:
    """The gain of a finding in a few words: ``at most 1.50 ms (15 %)``."""
    gain, latency_ms = finding.gain, finding.latency_ms
    if finding.rule == REST:
        return "none is known"
    if gain.basis == "unknown":
        return _describe_unknown(finding)
    if gain.basis == "unmeasurable":
        return "unknown, as the shares are: see the caveats"
    if gain.basis == "refused":
        trial = finding.trial
        return "none" if trial is None or trial.answer != "gains" else "less than 1 %"
    if gain.of != "latency":
        most = "at most " if gain.basis == "bound" else ""
        text = f"{most}{format_share(finding.share)} of the {gain.of}"
        ends = format_range(gain.low, gain.high) if gain.high > 0 else ()
        return f"{text}, between {' and '.join(ends)}" if ends else text
    if gain.basis == "bound":
        return _describe_bound(finding) + "; estimate" * _is_promise(finding)
    ms, low, high = format_estimate(latency_ms, gain.ms, gain.low, gain.high)
    text = f"{ms} ({_write_share(finding)}), between {low} and {high}; "
    text += _BASES.get(gain.basis, gain.basis)
    more = "; more than these operators take: what is around gets faster, too"
    return text + more * finding.gains_beside


def _describe_bound(finding: Finding) -> str:
    _, high = format_range(finding.latency_ms, finding.gain.high)
    text = f"at most {high} ({format_share(finding.share)})"
    # What joining delegates saves is a part of the bound.
    splits = finding.gain.high > _SPLITS * finding.spent_ms
    text += ", with calls of the delegates that they split" * splits
    return text if _is_promise(finding) else f"unknown; these operators take {text}"


def _is_promise(finding: Finding) -> bool:
    """Whether something is known to help, so that an upper bound is one of its gain."""
    return not (finding.nearest or finding.is_hopeless)


def _describe_unknown(finding: Finding) -> str:
    gain, trial = finding.gain, finding.trial
    if trial and trial.answer == "not shown":
        low, high = format_range(trial.low_ms, trial.high_ms)
        return f"not shown: between {low} and {high}, in {plural(trial.restarts, 'restart')}"
    if math.isnan(gain.high):
        return "unknown, the run was emulated: measure on the device"
    _, high = format_range(finding.latency_ms, gain.high)
    return f"unknown, at most {high}" + ": try it" * (finding.rewrite is not None)


def abridge_gain(finding: Finding) -> str:
    """The gain without its interval; of an estimate, that it is one."""
    gain = finding.gain
    is_known = gain.of == "latency" and gain.basis not in ("unknown", "unmeasurable", "refused")
    if finding.rule == REST or not is_known:
        return describe_gain(finding)
    if gain.basis == "bound":
        return _describe_bound(finding) + ", estimated" * _is_promise(finding)
    ms, *_ = format_estimate(finding.latency_ms, gain.ms, gain.low, gain.high)
    estimated = "" if gain.basis in ("checked", "measured") else ", estimated"
    return f"{ms} ({_write_share(finding)}){estimated}"


def _write_share(finding: Finding) -> str:
    """The gain as a share, with no more digits than its interval allows."""
    gain = finding.gain
    error = 50 * (gain.high - gain.low) / finding.latency_ms
    return format_share(finding.share, fit_decimals(100 * finding.share, error, 2))


def describe_action(finding: Finding) -> str:
    """What to do in words, with its caveat."""
    action = finding.action or REST
    if finding.nearest and not finding.remedy:
        action = f"another way to write it: {action}"
    if finding.by_hand:
        return f"{action}; by hand: --rewrite {finding.remedy} makes another part slower"
    return action


def describe_trial(finding: Finding) -> str:
    """What trying the remedy brought; empty if nobody did."""
    return describe_outcome(finding.trial, finding.latency_ms) if finding.trial else ""


def describe_outcome(trial: Trial, latency_ms: float = math.nan) -> str:
    """What a trial showed, in a program of that latency, and how long it took."""
    took = f"; this took {trial.seconds:.0f} s" if trial.seconds else ""
    return _describe_answer(trial, latency_ms) + took


def _describe_answer(trial: Trial, latency_ms: float) -> str:
    if trial.answer == "wrong":
        return f"its outputs are wrong: {trial.problem}"
    if trial.answer == "untried":
        return f"not tried: {trial.problem}"
    where = "the whole program" if trial.whole else "this part"
    if trial.tried < trial.parts:
        where = f"{trial.tried} of {trial.parts} parts"
    before, after, gain, low, high = format_range(
        trial.before_ms, trial.after_ms, trial.gain_ms, trial.low_ms, trial.high_ms
    )
    text = f"on {where}, {before} -> {after}"
    if trial.sqnr_db is not None:
        agree = "agree to" if trial.sqnr_db >= _AGREES_DB else "differ, with a SQNR of"
        text += f", outputs {agree} {trial.sqnr_db:.0f} dB"
    saves = f"it saves {gain}, between {low} and {high}"
    if trial.answer == "loses":
        return f"{text}; it does not help: {saves}"
    if trial.answer == "not shown":
        return f"{text}; not shown to help: {saves}"
    is_small = trial.gain_ms < LEAST_SHARE * latency_ms
    return f"{text}; {saves}" + f", less than {format_share(LEAST_SHARE)}" * is_small


def list_commands(finding: Finding) -> list[str]:
    """What to run; nothing of a remedy that does not help, or only by hand."""
    if finding.by_hand or finding.is_hopeless or not finding.command:
        return []
    return [finding.command]


def list_code(finding: Finding) -> list[str]:
    """The lines of code that do what a finding advises."""
    return [] if finding.is_hopeless else finding.code.splitlines()


def write_hint(finding: Finding) -> str:
    """What to run, and the code: as comments below a command, which a shell then skips."""
    commands, code = list_commands(finding), list_code(finding)
    return "\n".join([*commands, *(f"# {line}" if commands else line for line in code)])


def count_also(finding: Finding) -> str:
    """How many findings about the same operators it explains; empty without one."""
    return f"{plural(len(finding.also), 'more finding')} about these operators" * bool(finding.also)


def write_findings(findings: Iterable[Finding]) -> Iterator[str]:
    """Findings as lines of text, in order."""
    for rank, finding in enumerate(findings, 1):
        yield from write_finding(finding, rank)


def write_finding(finding: Finding, rank: int) -> Iterator[str]:
    """A finding as lines of text: its cause, then where, gain, action, trial and command."""
    yield f"{rank}. {describe_cause(finding)}  [{finding.id}]"
    facts = {
        "where": describe_place(finding),
        "gain": describe_gain(finding),
        "do": describe_action(finding),
        "tried": describe_trial(finding),
        "run": "; ".join(list_commands(finding)),
        "also": count_also(finding),
    }
    if finding.rule == REST:  # the cause says it
        facts = {"where": facts["where"]}
    yield from (f"   {name}: {text}" for name, text in facts.items() if text)


def to_record(finding: Finding, rank: int = 0) -> dict[str, Any]:
    """A finding as what JSON files have: facts by name, and the texts that are made of them."""
    gain, spent = finding.gain, finding.spent
    return {
        "rank": rank,
        "id": finding.id,
        "rule": finding.rule,
        "cause": finding.cause,
        "phase": finding.phase,
        "place": finding.place,
        "spent": None if math.isnan(spent) else spent,
        "gain_ms": gain.ms,
        "low_ms": gain.low,
        "high_ms": gain.high,
        "share": finding.share,
        "of": gain.of,
        "basis": gain.basis,
        "gain": describe_gain(finding),
        "action": describe_action(finding),
        "command": "; ".join(list_commands(finding)),
        "code": "\n".join(list_code(finding)),
        "remedy": finding.remedy,
        "operators": list(finding.operators),
        "heading": finding.heading,
        "trial": finding.trial,
        "also": [each.id for each in finding.also],
    }
