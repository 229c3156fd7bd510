"""Starts that pack XNNPACK's weights against starts that map them from a file.

``python tests/benchmarks/starts.py [--folder FOLDER] [NAME|FILE.pte...]`` measures programs: the
first output and the CPU time of a start, with files in the page cache and without, anonymous and
peak memory. Each is packed / cached: means, the ratio with its 95 % interval, and that of an A/A
control. Then come the findings on the packed side: what they promised, and what cached weights
brought. The rules were set on the programs of `SET_ON`, not on `FURTHER` (which need torchvision
and timm).

Exits 1 if outputs differ in any bit, a start of the cached side packed, rows of the memory ledger
leave more than 2 % open, anonymous memory is not less, or fewer than 5 of 6 promises overlap with
what was measured.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

import pandas as pd

import workbench as wb

SET_ON = (
    *("mobilenet_v3_small fp32", "mobilenet_v3_small int8", "toy_cnn fp32", "vit_tiny fp32"),
    *("unet_small fp32", "squeezesam fp32", "llm:smollm2_135m,layers=4 8da4w"),
)
FURTHER = (
    *("torchvision:resnet18 fp32", "torchvision:densenet121 fp32"),
    *("torchvision:regnet_y_400mf fp32", "timm:mobilevit_s fp32"),
    *("timm:deit_tiny_patch16_224 int8dyn", "llm:smollm2_135m,layers=6 fp32"),
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


def measure(pte, name, root):
    """What is wrong with the run of a program, what it needs, and whether promises were kept."""
    run = wb.measure(pte, options=SIDES, root=root)
    packed, cached = run["packed"], run["cached"]
    changes = run.compare().resources.set_index("resource")
    needs = {"program": name, "load": f"{os.getloadavg()[0]:.1f}"}
    for row in changes.loc[changes.index.isin(SHOWN)].itertuples():
        needs[f"{row.Index}, {row.unit}"] = (
            f"{row.baseline:.3g} → {row.candidate:.3g}, {row.ratio:.2f}x "
            f"[{row.low:.2f}, {row.high:.2f}], control {row.control:.2f}x"
        )
    wrong = [
        *("outputs differ" for a in run.record.agreements if a.max_abs != 0),
        *("a start packed" for s in cached.starts if s.weights != "mapped"),
    ]
    for side in (packed, cached):
        left = side.memory.set_index("part").at["not accounted for", "share"]
        needs[f"open, {side.name}"] = f"{left:+.2%}"
        wrong += [f"{left:.1%} of {side.name} is open"] if abs(left) > OPEN else []
    if changes.at["anonymous memory", "outcome"] != "less":
        wrong.append("anonymous memory is not less")
    promises = [*judge_start(packed, changes), *judge_memory(packed, changes)]
    return wrong, needs, [{"program": name} | promise for promise in promises]


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
            yield {
                "of": name,
                "promised less": f"{least:.1f} to {most:.1f} ms",
                "measured less": f"{low:.1f} to {high:.1f} ms",
                "overlap": low <= most and least <= high,
            }


def judge_memory(packed, changes):
    """Whether the peak fell, by what a finding promised at most."""
    for share in packed.findings.query("rule == 'weights twice'")["share"]:
        row = changes.loc["peak memory"]
        least, less, most = (row["baseline"] * (1 - row[end]) for end in ("high", "ratio", "low"))
        yield {
            "of": "peak memory",
            "promised less": f"at most {share * row['baseline']:.1f} MB",
            "measured less": f"{less:.1f} MB [{least:.1f}, {most:.1f}]",
            "overlap": row["high"] < 1 and 1 - row["ratio"] <= share + OPEN,
        }


def main():
    """Measure every program; the exit code says if all claims hold."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path)
    parser.add_argument("names", nargs="*", default=[*SET_ON, *FURTHER])
    options = parser.parse_args()
    faults, needs, promises = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        root = options.folder or Path(folder)
        for name in options.names:
            model, _, dtype = name.partition(" ")
            pte, own = Path(name), root / str(len(needs))
            if pte.suffix != ".pte":
                pte = wb.export_model(model, options=wb.ExportOptions(dtype=dtype), root=own).path
            wrong, row, kept = measure(pte, name, own)
            faults += [f"{name}: {text}" for text in wrong]
            needs.append(row)
            promises += kept
            print(row, *kept, sep="\n", flush=True)
    print(pd.DataFrame(needs).to_markdown(index=False))
    print(pd.DataFrame(promises).replace({True: "yes", False: "no"}).to_markdown(index=False))
    overlaps = sum(promise["overlap"] for promise in promises)
    print(f"\n{overlaps} of {len(promises)} promises overlap with what was measured")
    print(*faults, sep="\n")
    return bool(faults or overlaps < OVERLAPS * len(promises))


if __name__ == "__main__":
    sys.exit(main())
