"""What an optimisation tried, and what it brought."""

import contextlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from workbench import ExportOptions, Measurement, Run
from workbench.api import Finding, Gain, Rule, StoreError, UsageError
from workbench.plugins.optimize.frames import VARIANTS
from workbench.plugins.optimize.records import STUDY, Study, Variant

#: What an objective other than latency makes small.
SIZES = {"size": "size_bytes", "memory": "peak_bytes", "start": "start_ms"}


def find_study(run: Run) -> Study | None:
    """The optimisation that a run was measured for, if any."""
    folder = run.path.resolve().parent.parent
    study = Study.read(folder) if (folder / STUDY).is_file() else None
    programs = {program.sha256 for program in run.record.plan.all_programs}
    # A later one, of another model of that name, replaces it.
    return study if study and programs & {v.sha256 for v in study.variants} else None


def add_gains(m: Measurement, findings: list[Finding]) -> list[Finding]:
    """The findings of a measurement, with what an optimisation of its model measured here."""
    with contextlib.suppress(UsageError, StoreError):  # without a study that can be read
        study = Study.read(m.run.path.resolve().parent.parent)
        if m.export and study.machine == str(m.run.record.host.get("cpu")):
            return add_measured(findings, study, m.export.sha256, m.threads)
    return findings


GAINS = Rule(revise=add_gains)


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
    findings: Sequence[Finding], study: Study, sha256: str, threads: int = 1
) -> list[Finding]:
    """The findings of a program, with what a study measured of the changes that they suggest.

    Its gain, with as many threads, replaces that of the only finding that suggests it, with the
    basis ``measured``.
    """
    alike = [variant for variant in study.variants if variant.threads == threads]
    parents = {v.name: v for v in alike if v.sha256 == sha256 and v.latency_ms}
    gains: dict[str, Variant] = {}
    for variant in alike:
        parent = parents.get(variant.parent)
        if parent and variant.gain and variant.gain.ms is not None:
            gains[name_change(parent.options, variant.options)] = variant
    counts = Counter(finding.remedy for finding in findings)
    return [_add_gain(each, gains.get(each.remedy), counts[each.remedy]) for each in findings]


def _add_gain(finding: Finding, variant: Variant | None, count: int) -> Finding:
    """A finding with what its change gained alone; of one of several, who has measured them all."""
    if variant is None or variant.gain is None or variant.gain.ms is None or not finding.remedy:
        return finding
    name = f"{variant.name} of `workbench optimize`"
    measured = replace(finding, tried_by=name, flaw=variant.flaw)
    if count > 1:
        return measured
    gain = Gain(variant.gain.ms, variant.gain.low_ms, variant.gain.high_ms, "measured")
    return replace(measured, gain=gain)


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
    return VARIANTS.check(table.loc[order].reset_index(drop=True))
