"""What an optimisation tried, and what it brought."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from workbench.errors import UsageError
from workbench.frames import VARIANTS, check
from workbench.options import ExportOptions
from workbench.records.codec import parse_json, structure, upgrade
from workbench.records.optimize import Study, Variant
from workbench.remedies import NO_REMEDY

STUDY = "optimize.json"
#: Rules whose findings only another dtype helps against.
_FLOORS = ("compute-bound", "dtype")
#: The rule whose findings say that something is slow, and not why.
_SYMPTOM = "other runtimes"
#: What an objective other than latency makes small.
SIZES = {"size": "size_bytes", "memory": "peak_bytes", "start": "start_ms"}


def read_study(path: str | Path) -> Study:
    """Read ``optimize.json``, given its path, its folder, or the folder of a model's output.

    Raises
    ------
    UsageError
        There is none.
    StoreError
        It is corrupt.

    Examples
    --------
    >>> wb.read_study(wb.sample_file("out_Tiny")).conclusion
    '07-int8-mixed: 1.08x [1.06, 1.09] the speed of the baseline, SQNR 54.6 dB, 0.0253 MB'
    """
    path = Path(path)
    places = (path, path / STUDY, path / "optimize" / STUDY)
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise UsageError("no optimisation here", where=path, hint="workbench optimize MODEL")
    content = upgrade(parse_json(found.read_bytes(), found), found)
    if isinstance(options := content.get("options"), dict):
        options.pop("runner", None)  # which older versions recorded
    return structure(Study, content, found)


def name_change(before: ExportOptions, after: ExportOptions) -> str:
    """The remedy in which two exports differ; empty if it is nothing, or more."""
    new = [name for name in after.rewrite if name not in before.rewrite]
    if before != after == replace(before, dtype=after.dtype):
        return after.dtype
    if before != after == replace(before, channels_last=True):
        return "channels_last"
    if len(new) == 1 and after == replace(before, rewrite=(*before.rewrite, *new)):
        return new[0]
    return ""


def add_measured(
    findings: pd.DataFrame, study: Study, sha256: str, threads: int = 1
) -> pd.DataFrame:
    """The findings of a program, with what a study measured of the changes that they suggest.

    Its gain, with as many threads, replaces that of the only finding that suggests it, with the
    basis ``measured``.
    """
    findings = findings.copy()
    alike = [variant for variant in study.variants if variant.threads == threads]
    parents = {v.name: v for v in alike if v.sha256 == sha256 and v.latency_ms}
    for variant in alike:
        parent, gain = parents.get(variant.parent), variant.gain
        if parent is None or parent.latency_ms is None or gain is None or gain.ms is None:
            continue
        change = name_change(parent.options, variant.options)
        found = findings[(findings["remedy"] == change) & (change != "")]
        interval = ", ".join(f"{end:.3g}" for end in (gain.low_ms, gain.high_ms))
        text = f"; {variant.name} of `workbench optimize` saved {gain.ms:.3g} ms [{interval}]"
        text += f", but {variant.flaw}" * bool(variant.flaw)
        findings.loc[found.index, "action"] += text
        if len(found) == 1:
            values = [gain.ms, gain.low_ms, gain.high_ms, gain.ms / parent.latency_ms, "measured"]
            columns = ["gain_ms", "low_ms", "high_ms", "share", "basis"]
            findings.loc[found.index, columns] = values
    return rank_findings(findings)


def rank_findings(findings: pd.DataFrame, by_gain: bool = True) -> pd.DataFrame:
    """Findings, largest expected gain of latency first, each cause once.

    Of a gain with only an upper bound, half is expected. Findings that only another dtype helps
    against follow: they are the floor of this one. Then come those about the start and memory, and
    those whose gain could not be measured. A finding whose operators all belong to one
    with a larger gain is told with that one. The first three share no operator. What another
    runtime computes faster is told with a cause of at least half of it, if one was found.
    """
    if by_gain:
        expected = findings["gain_ms"].fillna(findings["high_ms"] / 2)
        floor = findings["rule"].isin(_FLOORS) & (findings["basis"] != "measured")
        latency = findings["of"] == "latency"
        hopeless = findings["rule"] == NO_REMEDY
        group = np.select([latency & expected.isna(), ~latency, hopeless, floor], [4, 3, 2, 1], 0)
        order = pd.DataFrame({"group": group, "gain": -expected}, findings.index)
        findings = findings.loc[order.sort_values(["group", "gain"], kind="stable").index]
    causes: list[dict[str, Any]] = []
    rows = findings.to_dict("records")
    for row in [row for row in rows if row["rule"] == _SYMPTOM]:
        if cause := next((each for each in rows if _is_cause(each, row)), None):
            cause["action"] += f"; this also explains: {row['title']}"
            rows.remove(row)
    for row in rows:
        keys = {*row["keys"].splitlines()}
        same = [c for c in causes if keys and keys <= {*c["keys"].splitlines()}]
        if same and by_gain and row["of"] == "latency":
            same[0]["action"] += f"; this also explains: {row['title']}"
        else:
            causes.append(row)
    first: list[dict[str, Any]] = []
    for row in causes if by_gain else ():
        taken = {key for each in first for key in each["keys"].splitlines()}
        if len(first) < 3 and taken.isdisjoint(row["keys"].splitlines()):
            first.append(row)
    table = pd.DataFrame(
        [*first, *(row for row in causes if row not in first)], columns=findings.columns
    )
    return table.astype(findings.dtypes).assign(rank=range(1, len(table) + 1))


def _is_cause(finding: Mapping[str, Any], symptom: Mapping[str, Any]) -> bool:
    """Whether a finding says why at least half of what a symptom loses is slow."""
    expected = np.fmax(finding["gain_ms"], finding["high_ms"] / 2)
    shared = {*finding["keys"].splitlines()} & {*symptom["keys"].splitlines()}
    known = finding["rule"] not in (_SYMPTOM, *_FLOORS)
    return bool(known and shared and expected >= symptom["gain_ms"] / 2)


def pick_best(study: Study) -> list[Variant]:
    """The measured variants without a flaw, the best by the study's objective first."""

    def cost(variant: Variant) -> tuple[float, float]:
        latency = 1 / (variant.speedup or 1.0)
        if study.emulated:
            return -(variant.extension_share or 0.0), float(variant.size_bytes or 0)
        size = getattr(variant, SIZES.get(study.options.objective, ""), None)
        return (latency, 0.0) if size is None else (float(size), latency)

    fit = [v for v in study.variants if v.state == "measured" and not v.flaw]
    return sorted(fit, key=cost)


def tabulate_variants(study: Study) -> pd.DataFrame:
    """Every variant with its prediction and its measurement: ``frames.VARIANTS``.

    The baseline first, then by latency; then those that were not measured.
    """
    rows = []
    for variant in study.variants:
        row = {name: getattr(variant, name, None) for name in VARIANTS.names}
        for prefix, gain in (("predicted", variant.predicted), ("gain", variant.gain)):
            ends = {"ms": None, "low_ms": None, "high_ms": None} if gain is None else vars(gain)
            row |= {f"{prefix}_{end}": ends[end] for end in ("ms", "low_ms", "high_ms")}
        row["basis"] = variant.predicted.basis if variant.predicted else ""
        for name in ("size", "planned", "peak"):
            size = getattr(variant, f"{name}_bytes")
            row[f"{name}_mb"] = size / 1e6 if size else None
        role = {study.best: "recommended", study.whole: "best dtype"}.get(variant.name, "")
        row["note"] = "; ".join(filter(None, [role, variant.flaw or variant.reason]))
        rows.append(row)
    table = pd.DataFrame(rows, columns=VARIANTS.names)
    numbers = [name for name, kind, *_ in VARIANTS.columns if kind == "float"]
    table[numbers] = table[numbers].astype(float)
    speed = table["speedup"].where(table.index > 0, float("inf"))
    order = speed.sort_values(ascending=False, na_position="last", kind="stable").index
    return check(table.loc[order].reset_index(drop=True), VARIANTS)
