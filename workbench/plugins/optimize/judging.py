"""Which variants of a search are better, and what each gains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from workbench import Comparison, Measurement, Run
from workbench.api import WRONG, Speedup, format_ms, format_ratio, format_size
from workbench.plugins.optimize import proposals as propose
from workbench.plugins.optimize.records import Study, Variant, VariantGain
from workbench.plugins.optimize.study import SIZES

#: Classes of machine code of the strongest extension of an architecture.
STRONGEST = ("sme", "sme2", "avx512")


def is_open(variant: Variant) -> bool:
    """Whether a variant is still to be measured: it may be chosen, or mixes are made of it."""
    useful = not variant.flaw or (variant.whole and variant.options.dtype in propose.MIXED)
    return variant.state == "planned" or (variant.state == "exported" and useful)


def judge_variants(
    run: Run, study: Study, names: Sequence[str], number: int
) -> tuple[Variant, ...]:
    """All variants, with what a round showed of its own."""
    best_of = {name: fastest(run, place) for place, name in enumerate(names)}
    judged = {variant.name: variant for variant in study.variants}
    for name, on in best_of.items():
        facts: dict[str, Any] = {"state": "measured", "round": number, "threads": on.threads}
        loads = [s.load_ms for s in run.record.sessions if s.experiment == on.name]
        row = on.statistics.iloc[0]
        if run.emulated:
            facts["extension_share"] = extension_share(on)
        else:
            facts |= {"latency_ms": on.latency_ms, "load_ms": sorted(loads)[len(loads) // 2]}
            facts |= {"low_ms": float(row["low"]), "high_ms": float(row["high"])}
            needs = on.needs.items()
            measured = {name: values.mean() for name, (_, values) in needs}
            facts["peak_bytes"] = round(measured.get("peak memory", 0) * 1e6) or None
            facts["start_ms"] = measured.get(start_of(on.threads))
        if name != names[0] and not run.emulated:
            resources = Comparison(best_of[names[0]], on).resources.set_index("resource")["outcome"]
            facts["less_memory"] = resources.get("peak memory") == "less"
            facts["earlier"] = resources.get(start_of(on.threads)) == "less"
            row = Comparison(best_of[names[0]], on).latency.iloc[0]
            facts |= {"speedup": float(row["speedup"]), "outcome": str(row["outcome"])}
            facts |= {"speedup_low": float(row["low"]), "speedup_high": float(row["high"])}
            if study[name].parent in best_of and study[name].gain is None:
                facts["gain"] = measured_gain(Comparison(best_of[study[name].parent], on))
        finite: dict[str, Any] = {key: None if v != v else v for key, v in facts.items()}
        judged[name] = replace(judged[name], **finite)
    return tuple(judged.values())


def start_of(threads: int) -> str:
    """The resource that a start is judged by: other programs do not decide CPU time."""
    return "CPU time of a start" if threads == 1 else "first output"


def fastest(run: Run, place: int) -> Measurement:
    """The measurement of a program of a run at its fastest thread count."""
    name = [e.name for e in run.record.plan.experiments if not e.control][place]
    alike = [m for m in run.traced if m.name == name]
    return alike[0] if run.emulated else min(alike, key=lambda m: m.latency_ms)


def measured_gain(ab: Comparison) -> VariantGain | None:
    """By how much the candidate is faster than its parent, in ms; None without an interval."""
    row = ab.latency.iloc[0]
    ms = float(row["baseline_ms"])
    gain, low, high = (ms * (1 - 1 / float(row[end])) for end in ("speedup", "low", "high"))
    return VariantGain(gain, low, high, "measured") if math.isfinite(low + high) else None


def extension_share(on: Measurement) -> float | None:
    """The part of the arithmetic in operators that mostly ran code of the strongest extension."""
    if on.machine_code is None or "flops" not in on.operators:
        return None
    evidence = on.machine_code
    counts = evidence["samples"].where(evidence["code"].isin(STRONGEST), 0).groupby(evidence["key"])
    mostly = counts.sum() > evidence.groupby("key")["samples"].sum() / 2
    rows = on.operators.dropna(subset="flops")
    flops = rows["flops"] * rows["calls"]
    return float(flops[rows["key"].isin(mostly.index[mostly])].sum() / max(flops.sum(), 1))


def is_better(variant: Variant, base: Variant, objective: str) -> bool:
    """Whether a variant was shown to be better than the baseline."""
    if variant.extension_share is not None:
        return variant.extension_share > (base.extension_share or 0.0)
    if objective == "latency":
        scored = variant.outcome == WRONG and variant.score is not None  # the score decides
        return variant.outcome == "faster" or (
            scored and (variant.speedup_low or 0) > 1 + Speedup.margin
        )
    if objective in ("memory", "start"):
        return variant.less_memory if objective == "memory" else variant.earlier
    ours, theirs = (getattr(each, SIZES[objective]) for each in (variant, base))
    return None not in (ours, theirs) and ours < theirs


def describe_variant(variant: Variant) -> str:
    """What a variant brought, in one line."""
    parts = []
    if variant.extension_share is not None:
        share = f"{100 * variant.extension_share:.0f} %"
        parts.append(f"{share} of the arithmetic in kernels of the extension (emulated: no times)")
    elif variant.speedup and variant.speedup_low and variant.speedup_high:
        ratios = sorted((variant.speedup, variant.speedup_low, variant.speedup_high))
        is_faster = variant.speedup >= 1
        low, ratio, high = map(format_ratio, ratios if is_faster else (1 / r for r in ratios[::-1]))
        better = "faster" if is_faster else "slower"
        parts.append(f"{ratio}x {better} than the baseline (95 % interval {low}-{high})")
    parts += [] if variant.score is None else [f"score {variant.score:g}"]
    parts.append("no error" if variant.sqnr_db is None else f"SQNR {variant.sqnr_db:.1f} dB")
    parts.append(format_size(variant.size_bytes or 0))
    if variant.peak_bytes:
        parts.append(f"peak memory {format_size(variant.peak_bytes)}")
    parts += [f"start {format_ms(variant.start_ms)}"] if variant.start_ms else []
    return ", ".join(parts)
