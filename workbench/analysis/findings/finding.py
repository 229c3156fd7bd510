"""Findings as objects: what was seen, which operators it claims, what helps, and by how much."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

from workbench import plugin
from workbench.export.precision import PRECISIONS
from workbench.records.exports import Rewrite
from workbench.records.trials import Scope, Trial
from workbench.remedies import REMEDIES

#: Smaller gains, as a fraction of the latency, are not reported.
LEAST_SHARE = 0.01
#: An interval from zero to more than this part of the latency says nothing.
_NOTHING_KNOWN = 0.5
#: Findings that share no operator come first.
_APART = 3
#: Rules whose findings only another dtype helps against.
_FLOORS = ("compute-bound", "dtype")
#: The rule about what takes much of the time and has no finding.
REST = "no known remedy"
#: The rule whose findings say that something is slow, and not why.
_SYMPTOM = "other runtimes"


@dataclass(frozen=True)
class Gain:
    """The expected reduction of E2E latency in ms, with its interval.

    ``basis`` is ``measured`` (both sides were), ``checked`` (a trial with the remedy), ``removal``
    (the measured time of what goes away), ``twin`` (what comes instead runs like similar operators
    of this program), ``roofline`` (or at the usual share of the machine's peaks), ``bound`` (only
    the limits ``low`` and ``high`` are known; ``ms`` is NaN), ``unknown`` (only ``high`` is
    known), ``refused`` (a trial showed none) or ``unmeasurable``. Where a finding gains no
    latency, ``of`` says of what it gains the ``share``, which is a ``bound``, or ``planned`` by the
    exporter.
    """

    #: How much less, and more, a program gains than what goes took in it, or than a part of it did
    #: alone, as parts of that time: other data is in the caches. Of the networks of
    #: `tests/benchmarks/field.py` and 24 others, on two machines: 6 % less to 13 % more.
    LESS: ClassVar[float] = 0.08
    MORE: ClassVar[float] = 0.15

    ms: float = math.nan
    low: float = math.nan
    high: float = math.nan
    basis: str = "roofline"
    share: float = math.nan
    of: str = "latency"

    @classmethod
    def at_most(cls, high: float) -> Gain:
        """A gain with only an upper bound."""
        return cls(math.nan, 0.0, high, "bound")


@dataclass(frozen=True)
class Change(Rewrite):
    """A change that a trial makes of layers, which is another network: it is trained again.

    ``of`` is the size that is ``new`` instead of ``now``: ``channels``, ``groups`` of convolutions,
    ``taps`` of their filters, or ``group_size`` of int4 weights; of layers alone. Or it is the
    function that the parts have instead, ``relu``.
    """

    of: str = ""
    now: int = 0
    new: int = 0

    @property
    def is_size(self) -> bool:
        """Whether it changes the shapes of results."""
        return self.of != "relu"


@dataclass(frozen=True)
class Finding:
    """An optimisation opportunity: observation, affected operators, action and gain.

    A rule gives the fields up to ``beside``; the rest is added when all rules have spoken.

    Attributes
    ----------
    cause
        What was seen, a sentence.
    gain
        What removing the cause saves.
    operators
        Keys of the operators frame that it claims, of whose times the gain is a part.
    action, command, code
        What to do in words, as a command, and in code; all empty if nothing is known to help.
    place
        Where it is, if not in the layers of its operators.
    remedy
        The name of a `Remedy`, ``channels_last`` or a dtype, if one of these is what to do.
    rewrite
        What the export has shown to be equal; a trial applies it.
    nearest
        The kernel that ``code`` writes in another way, which was not tried.
    beside
        Keys of operators that stay with the remedy, and read or make what it changes; and of those
        that it changes, and which belong to another finding.
    rule, heading
        Which rule found it, and the section of the report that has the evidence.
    exact
        Whether it explains its operators, which then belong to no other finding.
    spent_ms, most_ms, latency_ms
        The time of its operators; the most that a remedy may gain of them, and of those beside, as
        fewer delegates are called; and the time of the whole.
    trial
        What trying the remedy brought here.
    by_hand
        The remedy gains here, and as an option it makes another part of the program slower.
    also
        Findings that it explains, too.
    phase
        The phase that it is about, where a run has several.
    """

    cause: str
    gain: Gain
    operators: Collection[str]
    action: str = ""
    code: str = ""
    command: str = ""
    place: str = ""
    remedy: str = ""
    rewrite: Rewrite | None = None
    nearest: str = ""
    beside: Collection[str] = ()
    rule: str = ""
    heading: str = ""
    exact: bool = False
    spent_ms: float = math.nan
    most_ms: float = math.nan
    latency_ms: float = math.nan
    trial: Trial | None = None
    by_hand: bool = False
    also: tuple[Finding, ...] = ()
    phase: str = ""

    @cached_property
    def id(self) -> str:
        """Its remedy or rule, and a hash: of what would be changed, else of rule and operators.

        It is the same in each run of a program; so a trial stays known when rules claim others.
        """
        parts = sorted(self.rewrite.parts) if self.rewrite else []
        text = f"{self.rewrite.name} {parts}" if self.rewrite and any(parts) else ""
        if not text:
            text = f"{self.rule} {self.remedy} {sorted(self.operators)}"
            text += "" if self.operators else self.cause.partition(":")[0]
        number = hashlib.sha256(text.encode()).hexdigest()[:6]
        return f"{(self.remedy or self.rule).replace(' ', '_')}-{number}"

    @property
    def share(self) -> float:
        """The gain, or its upper bound, as a part of what it is a gain of."""
        if not math.isnan(self.gain.share):
            return self.gain.share
        is_bound = self.gain.basis in ("bound", "unknown")
        ms = self.gain.high if is_bound else self.gain.ms
        return ms / self.latency_ms if self.latency_ms else math.nan

    @property
    def spent(self) -> float:
        """The time of its operators as a part of the latency."""
        return self.spent_ms / self.latency_ms if self.latency_ms else math.nan

    @property
    def is_hopeless(self) -> bool:
        """Whether nothing is known to help, or the remedy was tried and does not."""
        answer = self.trial.answer if self.trial else ""
        fails = answer == "untried" and self.remedy in PRECISIONS  # there is no such program
        does_not_help = answer in ("loses", "wrong") or fails
        return does_not_help or not (self.action or self.code or self.command)

    @property
    def is_option(self) -> bool:
        """Whether its remedy is an option of the export: a rewrite, a layout or a dtype."""
        return self.remedy in REMEDIES or self.remedy in (*PRECISIONS, "channels_last")

    @property
    def helps(self) -> bool:
        """Whether its remedy was shown to help as an option of the export, in the same dtype."""
        is_proven = self.gain.basis == "checked" and self.gain.of == "latency" and not self.by_hand
        return is_proven and self.is_option and self.remedy not in PRECISIONS

    @property
    def gains_beside(self) -> bool:
        """Whether it was shown to gain more than its operators take: others get faster, too."""
        return self.gain.basis == "checked" and self.gain.low > self.spent_ms

    @property
    def expected_ms(self) -> float:
        """What it is ranked by: its gain; of a bound, half of it or of what its operators take."""
        if not math.isnan(self.gain.ms):
            return self.gain.ms
        limits = [ms for ms in (self.spent_ms, self.gain.high) if not math.isnan(ms)]
        return min(limits) / 2 if limits else math.nan

    def is_worth_it(self) -> bool:
        """Whether it may gain as much as is reported; one that can be tried, at its best.

        Where the shares are unknown, so is that best, and a trial is what tells.
        """
        gain = self.gain
        if gain.of == "latency" and (self.is_hopeless or self.nearest):  # what its operators take
            return (self.share if gain.basis == "measured" else self.spent) >= LEAST_SHARE
        if self.rewrite is not None and gain.of == "latency" and gain.basis != "planned":
            return not gain.high < LEAST_SHARE * self.latency_ms
        return self.share >= LEAST_SHARE


def call_unknown(finding: Finding, spent: Gain) -> Finding:
    """A finding whose interval says nothing, with a gain that is unknown.

    A bound is what its operators take, and says nothing if the interval of that does not.
    """
    gain = finding.gain
    is_estimate = gain.of == "latency" and gain.basis in ("removal", "twin", "roofline", "bound")
    least = spent.low if gain.basis == "bound" else gain.low
    if is_estimate and least <= 0 and gain.high > _NOTHING_KNOWN * finding.latency_ms:
        return replace(finding, gain=Gain(math.nan, math.nan, gain.high, "unknown"))
    return finding


def revise_findings(m: Any, findings: list[Finding]) -> list[Finding]:
    """The findings, as rules of plug-ins revise them one after the other."""
    for name, rule in plugin.collect("rules").items():
        try:
            findings = rule.revise(m, findings) if getattr(rule, "revise", None) else findings
        except Exception as error:  # of a plug-in, which costs itself only
            plugin.warn(name, error, "rule")
    return findings


def apply_trials(
    findings: Iterable[Finding], trials: Sequence[Trial], scope: Scope
) -> list[Finding]:
    """Findings with the trials that were made of them in this scope; the last of each counts."""
    made = {trial.finding: trial for trial in trials if trial.scope == scope}
    losing = {t.remedy for t in made.values() if t.answer in ("loses", "wrong")}
    tried = [_add_trial(finding, made.get(finding.id), losing) for finding in findings]
    # What gained more than its operators took has made these faster.
    faster = {key for each in tried if each.gains_beside for key in each.beside}
    return [each for each in tried if each.rule != REST or not faster.issuperset(each.operators)]


def _add_trial(finding: Finding, trial: Trial | None, losing: Collection[str]) -> Finding:
    if trial is None:
        return finding
    if trial.answer == "untried":
        gain = Gain(basis="refused") if finding.remedy in PRECISIONS else finding.gain
        return replace(finding, trial=trial, gain=gain)
    gain, latency_ms = Gain(basis="refused"), finding.latency_ms
    if trial.answer == "not shown":
        gain = Gain(math.nan, trial.low_ms, min(trial.high_ms, latency_ms), "unknown")
    if trial.answer == "gains":
        gain = read_gain(trial, latency_ms)
        limits = [x for x in (finding.gain.high, finding.most_ms) if not math.isnan(x)]
        if limits and not trial.whole:  # it gains no more than its operators take
            limit = max(limits)
            part = min(1.0, limit / gain.ms)
            high = min(gain.high, (1 + Gain.MORE) * limit)
            gain = replace(gain, ms=part * gain.ms, low=part * gain.low, high=high)
        if gain.ms < LEAST_SHARE * latency_ms:
            gain = Gain(basis="refused")
    by_hand = gain.basis == "checked" and trial.remedy in losing
    return replace(finding, trial=trial, gain=gain, by_hand=by_hand)


def read_gain(trial: Trial, latency_ms: float) -> Gain:
    """What a trial has shown a program of that latency to gain."""
    every_ms = trial.before_ms * trial.gain_ms / (trial.before_ms - trial.after_ms)
    scale = latency_ms / every_ms  # of the moments in which both were measured
    # Parts alone may take longer than the whole program did, or be some of what it runs.
    scale = scale if trial.whole else min(1.0, scale)
    high = min(scale * trial.high_ms, latency_ms)
    return Gain(scale * trial.gain_ms, scale * trial.low_ms, high, "checked")


def rank_findings(findings: Sequence[Finding], by_gain: bool = True) -> tuple[Finding, ...]:
    """Findings, largest gain of latency first, each cause once.

    First come gains that were shown or estimated; then those that only another dtype helps against,
    which are the floor of this one; those with another way to write it; those with an unknown gain,
    or an estimate below what is reported;
    those without a known remedy; those about the start and memory; and remedies that do not help. A
    finding is told with an exact one
    before it that claims all of its operators. The first three share no
    operator. A finding that is not exact comes after the exact ones that claim the same operators.
    Without times, those with the most operators come first in each rule.
    """
    if not by_gain:
        return tuple(findings)
    ordered = sorted(findings, key=lambda each: (_group(each), -_limit(each, findings)))
    causes: list[int] = []
    told: list[list[int]] = [[] for _ in ordered]
    for place, finding in enumerate(ordered):
        host = _find_host(finding, causes, ordered)
        (causes if host is None else told[host]).append(place)
    first: list[int] = []
    taken: set[str] = set()
    for place in causes:
        if len(first) < _APART and taken.isdisjoint(ordered[place].operators):
            first.append(place)
            taken |= {*ordered[place].operators}
    rest = [place for place in causes if place not in first]

    def tell(place: int) -> Finding:
        return replace(ordered[place], also=tuple(map(tell, told[place])))

    return tuple(map(tell, [*first, *rest]))


def _group(finding: Finding) -> int:
    """The place of a finding among others, before its gain counts."""
    gain = finding.gain
    if gain.of != "latency":
        return 5
    if gain.basis in ("unmeasurable", "refused"):
        return 6 + (gain.basis == "refused")
    if finding.is_hopeless:
        return 4
    if gain.basis == "unknown":
        return 3
    is_estimate = gain.basis in ("removal", "twin", "roofline")
    if finding.rewrite is not None and is_estimate and finding.share < LEAST_SHARE:
        return 3  # it can be tried, and is expected to gain less than is reported
    is_floor = finding.rule in _FLOORS and gain.basis not in ("measured", "checked")
    if finding.nearest or (is_floor and math.isnan(gain.ms)):
        return 2
    return int(is_floor)


def _limit(finding: Finding, findings: Sequence[Finding]) -> float:
    """What a finding is ranked by: no more than exact ones that claim some of its operators.

    Another dtype, which computes something else, counts by what it was shown to gain at least.
    """
    expected, was_shown = finding.expected_ms, finding.gain.basis in ("measured", "checked")
    if was_shown and finding.remedy in PRECISIONS:
        expected = finding.gain.low
    if finding.exact or was_shown:
        return 0.0 if math.isnan(expected) else expected
    operators = {*finding.operators}
    exact = [each for each in findings if each.exact and not operators.isdisjoint(each.operators)]
    values = [expected, *(each.expected_ms for each in exact)]
    limit = min((value for value in values if not math.isnan(value)), default=0.0)
    return math.nextafter(limit, -math.inf) if exact else limit


def _find_host(finding: Finding, causes: Sequence[int], findings: Sequence[Finding]) -> int | None:
    """The place of the finding that one is told with: of a cause, or of one of a symptom's."""
    if finding.gain.of != "latency" or not finding.operators:
        return None
    if isinstance(finding.rewrite, Change):  # hidden in another one, it would not be tried
        return None
    for place in range(len(findings)) if finding.rule == _SYMPTOM else causes:
        host = findings[place]
        if finding.rule == _SYMPTOM:
            is_host = _is_cause(host, finding)
        else:
            contains = {*finding.operators} <= {*host.operators}
            is_host = contains and (host.exact or not finding.exact)
        if is_host:
            return place
    return None


def _is_cause(finding: Finding, symptom: Finding) -> bool:
    """Whether a finding says why at least half of what a symptom loses is slow."""
    shares = not {*finding.operators}.isdisjoint(symptom.operators)
    is_eligible = finding.rule not in (_SYMPTOM, *_FLOORS) and not finding.is_hopeless
    return is_eligible and shares and finding.expected_ms >= symptom.gain.ms / 2
