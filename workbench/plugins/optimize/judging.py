"""Which variants of a search are better."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from workbench import Comparison, Measurement, Run
from workbench.pages import Speedup, format_ratio, format_size
from workbench.plugins.optimize.records import Study, Variant


def judge_variants(run: Run, study: Study, names: Sequence[str]) -> tuple[Variant, ...]:
    """All variants, with what a run showed of its own; the first one is the baseline."""
    best_of = {name: fastest(run, study[name]) for name in names}
    judged = {variant.name: variant for variant in study.variants}
    for name, on in best_of.items():
        row = on.statistics.iloc[0]
        facts: dict[str, Any] = {"state": "measured", "threads": on.threads}
        facts |= {"latency_ms": on.latency_ms, "low_ms": row["low"], "high_ms": row["high"]}
        if name != names[0]:
            row = Comparison(best_of[names[0]], on).latency.iloc[0]
            facts |= {"speedup": row["speedup"], "outcome": str(row["outcome"])}
            facts |= {"speedup_low": row["low"], "speedup_high": row["high"]}
            if parent := best_of.get(study[name].parent):
                facts["helps"] = bool(Comparison(parent, on).latency.iloc[0]["low"] > 1)
        finite: dict[str, Any] = {key: None if v != v else v for key, v in facts.items()}
        judged[name] = replace(judged[name], **finite)
    return tuple(judged.values())


def fastest(run: Run, variant: Variant) -> Measurement:
    """The measurement of a variant in a run at its fastest thread count."""
    alike = (m for m in run.traced if m.program.sha256 == variant.sha256 and not m.control)
    return min(alike, key=lambda m: m.latency_ms)


def is_better(variant: Variant) -> bool:
    """Whether a variant was shown to be faster than the baseline."""
    if variant.outcome == Comparison.WRONG and variant.score is not None:  # the score decides
        return (variant.speedup_low or 0) > 1 + Speedup.margin
    return variant.outcome == "faster"


def describe_variant(variant: Variant) -> str:
    """What a variant brought, in one line."""
    parts = []
    if variant.speedup and variant.speedup_low and variant.speedup_high:
        ratios = sorted((variant.speedup, variant.speedup_low, variant.speedup_high))
        is_faster = variant.speedup >= 1
        low, ratio, high = map(format_ratio, ratios if is_faster else (1 / r for r in ratios[::-1]))
        better = "faster" if is_faster else "slower"
        parts.append(f"{ratio}x {better} than the baseline (95 % interval {low}-{high})")
    parts += [] if variant.score is None else [f"score {variant.score:g}"]
    parts.append("no error" if variant.sqnr_db is None else f"SQNR {variant.sqnr_db:.1f} dB")
    parts.append(format_size(variant.size_bytes or 0))
    return ", ".join(parts)
