"""Do the findings name a planted cause, and is what they promise true?

Each model of ``_planted.py`` has one cause of slowness that was put there. It is measured ten
times: the first finding has to be that cause, every time. Then what the finding suggests is done,
and the measured gain has to lie within the interval that was predicted, of the first of the ten.

    python tests/benchmarks/findings.py [--runs 10] [NAME...]
"""

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path

import _planted as planted

from workbench.analyze import describe_latencies
from workbench.export import export_model
from workbench.models import LoadedModel
from workbench.report import analyze_run, find_next_steps, measure_program, measure_roof


@dataclass(frozen=True)
class Case:
    """A planted model, the rule that has to find it, and the model with the cause removed."""

    name: str
    rule: str
    mended: str
    dtype: str = "fp32"
    rewrite: bool = True


CASES = (
    Case("product", "undelegated", "product_mended"),
    Case("transposes", "needless transposes", "transposes_mended"),
    Case("wide", "memory-bound", "wide", dtype="int8dyn"),
    Case("deep", "compute-bound", "deep", dtype="int8"),
)


def export(name, dtype, root):
    module, inputs = getattr(planted, name)()
    return export_model(LoadedModel(name, module.eval(), inputs), dtype=dtype, root=root)


def measure(pte, root):
    return measure_program(pte, root=root, toggle="none", runs=30, processes=3)


def median_ms(analysis):
    table = describe_latencies(analysis.latencies).set_index("experiment")
    return float(table.loc[analysis.comparisons[0].pair.candidate, "median"])


def try_case(case, runs, folder):
    before = export(case.name, "fp32", folder / "before")
    after = export(case.mended, case.dtype, folder / "after")
    hits, first = 0, None
    for _ in range(runs):
        run_dir = measure(before, folder / "before")
        measure_roof(run_dir)
        analysis = analyze_run(run_dir)
        found = find_next_steps(analysis)
        hits += found["rule"].iloc[0] == case.rule
        if first is None:
            first = (analysis, found)
    analysis, found = first
    gain = median_ms(analysis) - median_ms(analyze_run(measure(after, folder / "after")))
    row = found[found["rule"] == case.rule].iloc[0] if case.rule in set(found["rule"]) else None
    print(f"{case.name}: {found['rule'].iloc[0]}: {found['title'].iloc[0]}")
    print(f"  first in {hits} of {runs} runs; latency {median_ms(analysis):.3f} ms", flush=True)
    if row is None:
        return False
    within = row["low_ms"] <= gain <= row["high_ms"]
    print(
        f"  predicted {row['gain_ms']:.3f} ms ({row['low_ms']:.3f} to {row['high_ms']:.3f}), "
        f"measured {gain:.3f} ms: {'within' if within else 'OUTSIDE'}",
        flush=True,
    )
    return hits == runs and within


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    cases = [case for case in CASES if not options.names or case.name in options.names]
    with tempfile.TemporaryDirectory() as folder:
        good = [try_case(case, options.runs, Path(folder) / case.name) for case in cases]
    raise SystemExit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
