"""The recorded runs give the numbers that they have always given.

After a deliberate change of numbers: ``python tests/test_golden_runs.py``.
"""

import json
import math
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import pytest

import workbench as wb
from workbench.plugin import list_plugins

SAMPLES = wb.sample_run().parents[2]
MEASUREMENT = ["experiment", "threads"]
GOLDEN = Path(__file__).parent / "data" / "golden_runs"
RUNS = {
    path.parts[-4].removeprefix("out_"): path.parent
    for path in SAMPLES.glob("out_*/runs/*/*.json")
    if path.name == "manifest.json"
}
#: An extension off and on; an emulated one; other runtimes.
FAST = {"mobilenet_v3_small", "toy_cnn", "Sentences"}
#: Besides, these in CI: a fault of fp16, and a decoder of several phases.
TELLING = {"squeezesam", "smollm2"}

TOP = 15
#: Tables and findings of plug-ins, which may be absent.
TABLES = {"sweeps": ("isa_levels", "scaling", "crossovers")}
RULES = {"memory": ("memory peak", "weights twice", "slow start", "wide arenas")}

STATISTICS = [
    "clock", "latency", "low", "high", "restarts", "n", "mean", "median", "trimmed_mean", "std",
    "min", "p90", "p95", "p99", "max", "outliers",
]  # fmt: skip
OPERATORS = [
    "key", "operator", "category", "family", "calls", "mean_ms", "std_ms", "module", "shapes",
    "flops", "bytes", "confidence",
]  # fmt: skip
LEVELS = [
    "level", "threads", "latency_ms", "latency_low_ms", "latency_high_ms", "speedup", "low",
    "high", "outcome", "total", "total_low", "total_high", "floor",
]  # fmt: skip
SPEEDUP = [
    "name", "baseline_ms", "candidate_ms", "speedup", "low", "high", "outcome", "q",
    "detectable", "floor", "margin",
]  # fmt: skip


def mark_sample(name):
    """The parameter of a sample, with the lane that it is tested in."""
    if name in FAST:
        return name
    return pytest.param(name, marks=getattr(pytest.mark, "whole" if name in TELLING else "cases"))


def describe(folder):
    run = wb.open_run(folder)
    on = run.subject
    swept = describe_sweeps(run) if "sweeps" in list_plugins() else {}
    return {
        "model": run.model,
        "emulated": run.emulated,
        "floor": run.noise_floor,
        "statistics": columns(run.statistics, [*MEASUREMENT, *STATISTICS]),
        "categories": columns(
            run.categories,
            [*MEASUREMENT, "category", "mean_ms", "share", "operators", "low_ms", "high_ms"],
        ),
        "operators": {
            f"{m.name} {m.threads}": columns(m.operators.nlargest(TOP, "mean_ms"), OPERATORS)
            for m in run.measurements
        },
        "layers": columns(
            run.layers.nlargest(4 * TOP, "own_ms"),
            [*MEASUREMENT, "module", "module_class", "own_ms", "total_ms", "low_ms", "high_ms"],
        ),
        **swept,
        "comparisons": [describe_comparison(ab) for ab in run.comparisons],
        "findings": columns(
            run.findings,
            ["id", "rule", "remedy", "gain_ms", "low_ms", "high_ms", "share", "basis"],
        ),
        "checks": run.checks["status"].tolist(),
        "quality": sorted(run.quality["grade"], reverse=True),
        "tracer_overhead": {" ".join(map(str, m)): cost for m, cost in run.tracer_overhead.items()},
        "roofline": columns(
            None if on.roofline is None else on.roofline.nlargest(TOP, "mean_ms"),
            ["key", "gflops", "gbps", "least_ms", "roof_share", "bound"],
        ),
    }


def describe_sweeps(run):
    return {
        "isa_levels": columns(run.isa_levels, LEVELS),
        "scaling": columns(run.scaling),
        "crossovers": len(run.crossovers),
    }


def describe_comparison(ab):
    layers = None if ab.layers is None else ab.layers.nlargest(TOP, "baseline_ms")
    differs = ["differs"] if ab.baseline.runtime else []
    return {
        "sides": [(m.name, m.threads) for m in (ab.baseline, ab.candidate)],
        "latency": columns(ab.latency, SPEEDUP),
        "categories": columns(ab.categories, SPEEDUP),
        "operators": columns(ab.operators.nlargest(TOP, "baseline_ms"), SPEEDUP),
        "layers": columns(layers, SPEEDUP + differs),
        "shift": columns(ab.shift),
        "outcome": ab.verdict.outcome,
        "kernels": columns(ab.kernels),
        "proof": ab.proof and asdict(ab.proof),
    }


def columns(frame, names=None):
    """A frame as lists by column."""
    return None if frame is None else frame[names or list(frame.columns)].to_dict("list")


def plain(value):
    """JSON with twelve significant digits; what is missing is null."""
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if value is None or isinstance(value, str):
        return value
    if pd.isna(value) or math.isinf(value):
        return None
    value = value.item() if hasattr(value, "item") else value
    return float(f"{value:.12g}") if isinstance(value, float) else value


def differences(found, wanted, where=""):
    """What differs, as one line each."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        names = dict.fromkeys([*wanted, *found])
        return [
            line
            for name in names
            for line in differences(found.get(name), wanted.get(name), f"{where}/{name}")
        ]
    if isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        pairs = enumerate(zip(found, wanted, strict=True))
        return [line for i, pair in pairs for line in differences(*pair, f"{where}/{i}")]
    numbers = all(isinstance(value, int | float) for value in (found, wanted))
    same = math.isclose(found, wanted, rel_tol=1e-9) if numbers else found == wanted
    return [] if same else [f"{where}: {found} instead of {wanted}"]


def read_golden(sample):
    """The numbers of a run, without those of plug-ins that are absent."""
    wanted = json.loads((GOLDEN / f"{sample}.json").read_text())
    for plugin in TABLES.keys() - list_plugins().keys():
        for table in TABLES[plugin]:
            del wanted[table]
    absent = [rule for name in RULES.keys() - list_plugins().keys() for rule in RULES[name]]
    findings = pd.DataFrame(wanted["findings"], dtype=object)
    wanted["findings"] = findings[~findings["rule"].isin(absent)].to_dict("list")
    return wanted


@pytest.mark.parametrize(
    "sample",
    [*map(mark_sample, sorted(RUNS))],
)
def test_a_recorded_run_keeps_its_numbers(sample):
    wanted = read_golden(sample)
    assert differences(plain(describe(RUNS[sample])), wanted) == []


def test_every_golden_has_its_run():
    assert {path.stem for path in GOLDEN.glob("*.json")} == RUNS.keys()


if __name__ == "__main__":
    for name, folder in RUNS.items():
        text = json.dumps(plain(describe(folder)), separators=(",", ":"), allow_nan=False)
        (GOLDEN / f"{name}.json").write_text(text + "\n")
