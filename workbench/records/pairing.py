"""Which of the experiments of a run are compared: by name, or by what their kernels show."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from workbench.errors import unknown_name
from workbench.records.runs import Pair, Plan

#: Properties of two measurements that must match unless the user says that they may differ.
AXES = ("program", "threads", "device", "build")
#: What the rows of a table of several measurements can be.
PARTS = ("layer", "category", "operator")
#: How `pair_experiments` chose, where nothing shows which side has the extension off.
BY_ORDER = "the first experiment; neither names nor kernels show which one lacks the extension"
#: Words in names of experiments for an extension that is off, and on.
_OFF = {"off", "without", "no", "non", "disabled", "baseline", "base", "reference", "ref", "before"}
_ON = {"on", "with", "enabled", "candidate", "after"}
#: ``nosme2`` and ``sme2off`` are two words.
_JOINED = re.compile(r"(no|non|without|with)?((?:sme|sve|neon|kleidi|i8mm|avx|amx)\w*?)(on|off)?")


def pair_experiments(
    names: Sequence[str], *, baseline: str = "", lacking: Collection[str] = (), evidence: str = ""
) -> tuple[tuple[Pair, ...], str]:
    """Every experiment against one with the extension off, and a text: how that was decided.

    ``baseline`` decides if given. Else the names do (``sme2_off``, ``nosme2``, ``baseline``): each
    candidate is paired with the baseline that differs only in being off, if there is one. Else the
    first of ``lacking`` is the baseline, for the reason ``evidence``; else the first of ``names``.
    """
    if baseline and baseline not in names:
        raise unknown_name("experiment", baseline, names, where="--baseline")
    sides = _read_names(names)
    baselines, how = [baseline], f"{baseline}, as asked for"
    if not baseline:
        baselines, how = _choose_baselines(names, sides, lacking, evidence)
    features = {name: sides[name][1] for name in names}
    alike = {features[name]: name for name in reversed(baselines)}
    candidates = [name for name in names if name not in baselines]
    matches = {name: alike.get(features[name]) for name in candidates}
    lonely = [name for name in baselines if name not in matches.values()]
    default = [*lonely, *baselines][:1]
    pairs = [(matches[name] or default[0], name) for name in candidates]
    used = {before for before, _ in pairs}
    for name in baselines:  # one that no candidate has is compared with the first
        if name not in used and candidates:
            pairs.append((name, candidates[0]))
    return tuple(
        Pair(before, after, f"in {after} against {before}") for before, after in pairs
    ), how


def _choose_baselines(
    names: Sequence[str],
    sides: Mapping[str, tuple[str, tuple[str, ...]]],
    lacking: Collection[str],
    evidence: str,
) -> tuple[list[str], str]:
    """The experiments with the extension off: by name, by what is shown, or the first."""
    off = [name for name in names if sides[name][0] == "off"]
    if not off and any(side == "on" for side, _ in sides.values()):
        off = [name for name in names if not sides[name][0]]
    if 0 < len(off) < len(names):
        return off, f"{' and '.join(off)}, by name"
    first = [name for name in names if name in lacking][:1]
    if first and not set(names) <= set(lacking):
        return first, evidence
    return list(names[:1]), BY_ORDER


def _read_names(names: Sequence[str]) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Of every name, ``off``, ``on`` or empty; and its other words that not all names share."""
    words = {name: _split_name(name) for name in names}
    shared = set.intersection(*map(set, words.values())) if len(words) > 1 else set()
    sides = {}
    for name, parts in words.items():
        distinct = [part for part in parts if part not in shared]
        off, on = not _OFF.isdisjoint(distinct), not _ON.isdisjoint(distinct)
        side = "off" if off else "on"
        sides[name] = (
            side if off != on else "",
            tuple(part for part in distinct if part not in _OFF | _ON),
        )
    return sides


def _split_name(name: str) -> list[str]:
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).lower()
    joined = (_JOINED.fullmatch(word) or [word] for word in re.findall(r"[a-z0-9]+", parted))
    return [
        part
        for word in joined
        for part in (word if isinstance(word, list) else filter(None, word.groups()))
    ]


def find_control(plan: Plan, experiment: str) -> tuple[str | None, str | None]:
    """An experiment and its repetition, which show the noise; its own if it has one."""
    controls = [
        (e.name, c.name)
        for c in plan.experiments
        for e in plan.experiments
        if c.control and replace(e, name=c.name, control=True) == c and not e.control
    ]
    repeated = (pair for pair in controls if pair[0] == experiment)
    return next(repeated, (*controls, (None, None))[0])
