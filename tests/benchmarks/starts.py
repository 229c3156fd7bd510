"""Starts that pack XNNPACK's weights against starts that map them from a file.

``python tests/benchmarks/starts.py [--pte FILE...] [--folder FOLDER]`` measures the programs of the
memory table, one of them in int8 too, and a language model (or these programs): the first output
and the CPU time of a start, with files in the page cache and without, the start that writes the
file, anonymous and peak memory. Each is packed / cached: means, the ratio with its 95 % interval,
and that of an A/A control. Then come the findings on the packed side: what they promised, and what
cached weights brought.

Exits 1 if outputs differ in any bit, a start of the cached side packed, rows of the memory ledger
leave more than 2 % open, anonymous memory is not less, or fewer than 5 of 6 promises overlap with
what was measured.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

import workbench as wb

MODELS = (
    *(("mobilenet_v3_small", "fp32"), ("mobilenet_v3_small", "int8"), ("toy_cnn", "fp32")),
    *(("vit_tiny", "fp32"), ("unet_small", "fp32"), ("squeezesam", "fp32")),
    ("llm:smollm2_135m,layers=4", "8da4w"),
)
SIDES = wb.MeasureOptions(
    weights=("packed", "cached"), runs=2, warmup=1, processes=5, evidence=False, roof=False
)
SHOWN = (
    *("first output", "cold first output", "CPU time of a start"),
    *("anonymous memory", "peak memory"),
)
OPEN, OVERLAPS = 0.02, 5 / 6
#: What a finding promises of the set-up of delegates, at least.
LEAST_SAVED = 0.25


def measure(pte, root):
    """The run of a program, what is wrong with it, and whether each promise was kept."""
    run = wb.measure(pte, options=SIDES, root=root)
    packed, cached = run["packed"], run["cached"]
    changes = run.compare().resources.set_index("resource")
    print(f"\n{Path(pte).name}, load {os.getloadavg()[0]:.1f}")
    for name in SHOWN:
        if name in changes.index:
            row = changes.loc[name]
            print(
                f"  {name:20} {row['baseline']:8.2f} -> {row['candidate']:8.2f} {row['unit']}, "
                f"{row['ratio']:.2f} [{row['low']:.2f}, {row['high']:.2f}], "
                f"control {row['control']:.2f}"
            )
    own = cached.resources.set_index("resource")
    if "writing first output" in own.index:
        print(f"  the start that writes the file: {own.at['writing first output', 'value']:.1f} ms")
    wrong = [
        *("outputs differ" for a in run.record.agreements if a.max_abs != 0),
        *("a start packed" for s in cached.starts if s.weights not in ("mapped", "written")),
    ]
    for side in (packed, cached):
        left = side.memory.set_index("part").at["not accounted for", "share"]
        wrong += [f"{left:.1%} of {side.name} is open"] if abs(left) > OPEN else []
    if changes.at["anonymous memory", "outcome"] != "less":
        wrong.append("anonymous memory is not less")
    kept = [*judge_start(packed, changes), *judge_memory(packed, changes)]
    return wrong, kept


def judge_start(packed, changes):
    """Whether what a finding promised of the first output, and of its CPU time, was measured.

    The promise is in wall time, of which other programs decide most on a busy machine: the same
    part of the CPU time of the set-up is held against the CPU time of a start.
    """
    found = packed.findings.query("rule == 'slow start'")
    for promise in found[["low_ms", "high_ms"]].itertuples(index=False):
        setup = [
            sum(stage.cpu_ns for stage in start.stages if stage.name == "delegate") / 1e6
            for start in packed.starts
            if start.mode == "time"
        ]
        cpu = sum(setup) / len(setup)
        for name, least, most in (
            ("first output", *promise),
            ("CPU time of a start", LEAST_SAVED * cpu, cpu),
        ):
            row = changes.loc[name]
            low, high = (row["baseline"] * (1 - row[end]) for end in ("high", "low"))
            print(
                f"  {name}: promised {least:.1f} to {most:.1f} ms less, "
                f"measured {low:.1f} to {high:.1f}"
            )
            yield low <= most and least <= high


def judge_memory(packed, changes):
    """Whether the peak fell, by what a finding promised at most."""
    for share in packed.findings.query("rule == 'weights twice'")["share"]:
        row = changes.loc["peak memory"]
        print(f"  peak memory: promised at most {share:.0%} less, measured {1 - row['ratio']:.0%}")
        yield row["high"] < 1 and 1 - row["ratio"] <= share + OPEN


def main():
    """Measure every program; the exit code says if all claims hold."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pte", nargs="+", type=Path)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root, faults, kept = options.folder or Path(folder), [], []
        made = (
            wb.export_model(name, options=wb.ExportOptions(dtype=dtype), root=root).path
            for name, dtype in MODELS
        )
        ptes = options.pte or list(made)
        for pte in ptes:
            wrong, promises = measure(pte, root)
            faults += [f"{Path(pte).name}: {text}" for text in wrong]
            kept += promises
    print(f"\n{sum(kept)} of {len(kept)} promises overlap with what was measured")
    print(*faults, sep="\n")
    return bool(faults or sum(kept) < OVERLAPS * len(kept))


if __name__ == "__main__":
    sys.exit(main())
