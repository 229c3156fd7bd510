"""Do the findings name a cause of slowness, and does the fix gain what they promise?

Each case of ``_planted.py`` is a network of timm, torchvision, transformers or ExecuTorch's
examples with one cause, planted or as published, and the same network with the cause fixed. Both
are exported, and measured interleaved in one run; thread counts, in two. The table has the rank of
the finding that names the cause, the gain that it promises with its interval, and the gain that
the fixed program has. Libraries that are not installed are skipped.

    python tests/benchmarks/findings.py [--folder FOLDER] [--processes 5] [--runs 20] [NAME...]

With ``--folder``, exports and runs stay there, and the next call resumes; ``--export-only`` leaves
the measuring to a quieter time. Exits with 1 if a cause is not found, or if fewer than 80 % of the
measured gains are within the promised intervals, given the errors of the measurement.
"""

import argparse
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import _planted as planted
import pandas as pd
import torch

import workbench as wb
from workbench.analysis.open import open_run
from workbench.export.artifact import export_model
from workbench.models.loader import LoadedModel
from workbench.options import ExportOptions, MeasureOptions
from workbench.run.ceilings import measure_roof
from workbench.store import find_runs
from workbench.workflow import measure

#: The folders of a case's programs.
SIDES = ("before", "after")
#: Share of outcomes that must be within the promised interval and the errors of the measurement.
LEAST_INSIDE = 0.8


@dataclass(frozen=True)
class Case:
    """A cause, the rule and the words that name it, and what is done about it."""

    name: str
    network: str
    rule: str
    word: str = ""
    dtypes: tuple[str, str] = ("fp32", "fp32")
    threads: tuple[int, int] = (1, 1)
    rewrite: bool = True


CASES = (
    Case("power", "timm mobilenetv4_conv_small", "undelegated", "pow"),
    Case("chunks", "torchvision shufflenet_v2_x1_0", "fragments"),
    Case("whole_slices", "timm ghostnet_100", "undelegated", "alias_copy"),
    Case(
        "silu_casts",
        "timm mobilevit_xxs fp16",
        "undelegated",
        "_to_dim",
        ("fp16", "fp16"),
        rewrite=False,
    ),
    Case("transposes", "torchvision resnet18", "needless transposes"),
    Case("edges", "torchvision resnet18, stem", "layout", "inputs and outputs"),
    Case("groups", "timm regnetx_002", "sizes", "groups, which"),
    Case("large_filters", "timm convnext_atto", "sizes", "filters of"),
    Case("weights", "transformers BERT, 1 token", "memory-bound", dtypes=("fp32", "int8dyn")),
    Case("arithmetic", "torchvision resnet18", "compute-bound", dtypes=("fp32", "int8")),
    Case("norms", "timm mobilenetv4_conv_small", "batch norm"),
    Case("biases", "timm levit_128s", "fixed work"),
    Case("guards", "transformers BERT", "remedy"),
    Case("chains", "timm regnetx_002", "remedy", "hard swish"),
    Case("tiny", "executorch ds_cnn", "threads", threads=(2, 1)),
)
#: Causes that cost nothing on this CPU: the findings must not promise a gain.
SILENT = (
    Case("half_weights", "timm mobilenetv4_conv_small", "wide weights", "", ("fp16", "fp16w")),
)


def export(case, fixed, root):
    """The program of one side of a case; an existing one is reused."""
    dtype, name = case.dtypes[fixed], f"{case.name}_{'after' if fixed else 'before'}"
    pte = root / "artifacts" / f"{name}_xnnpack_{dtype}.pte"
    if not pte.with_name(f"{pte.name}.export.json").is_file():
        torch.manual_seed(0)
        module, inputs = getattr(planted, case.name)(fixed)
        how = ExportOptions(dtype=dtype, rewrite=case.rewrite)
        export_model(LoadedModel(name, module, inputs), options=how, root=root)
    return pte


def measured(case, root, options):
    """The runs of both sides of a case, one run if programs differ; existing ones are reused."""
    sides = [export(case, fixed, root / side) for fixed, side in enumerate(SIDES)]
    one, other = case.threads
    if one == other:
        plans = [(sides, (one,), root)]
    else:
        # A promise about threads is itself measured: the outcome needs a run of its own.
        plans = [
            (sides[:1], case.threads, root / SIDES[0]),
            (sides[1:], (other,), root / SIDES[1]),
        ]
    paths = []
    for programs, threads, place in plans:
        finished = find_runs(place)
        run = (
            None
            if finished
            else measure(programs, options=replace(options, threads=threads), root=place)
        )
        paths.append(run.path if run else finished[0])
    return paths[0], paths[-1]


def judge(case, before, after):
    """One row of the table: what was promised and what came of it."""
    shared = before == after
    before, after = open_run(before), open_run(after)
    names = [experiment.name for experiment in after.record.plan.experiments]
    subject = before[before.record.plan.experiments[0].name, case.threads[0]]
    fixed = after[names[shared], case.threads[1]]
    row = wb.compare(subject, fixed, across=["program", "threads"]).latency.iloc[0]
    ms = float(row["baseline_ms"])
    gain, low, high = (ms * (1 - 1 / float(row[end])) for end in ("speedup", "low", "high"))
    table = subject.findings
    rows = table[(table["rule"] == case.rule) & table["cause"].str.contains(case.word, regex=False)]
    result = {"network": case.network, "cause": case.name, "latency ms": f"{ms:.3g}"}
    outcome = f"{gain:.3g} [{low:.3g}, {high:.3g}]"
    if rows.empty:
        return result | {"rank": "not found", "measured ms": outcome, "inside": "no"}
    found = rows.iloc[0]
    promised = f"{found['gain_ms']:.3g} [{found['low_ms']:.3g}, {found['high_ms']:.3g}]"
    inside = low <= found["high_ms"] and high >= found["low_ms"]
    alone = found["low_ms"] <= gain <= found["high_ms"]
    return result | {
        "rank": f"{found['rank']} of {len(table)}",
        "basis": found["basis"],
        "promised ms": promised,
        "measured ms": outcome,
        "inside": "yes" if alone else "with errors" if inside else "no",
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--export-only", action="store_true")
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    options = MeasureOptions(
        toggle="none", runs=given.runs, processes=given.processes, evidence=False
    )
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for case in (*CASES, *SILENT):
            if given.names and case.name not in given.names:
                continue
            folder = (given.folder or Path(scratch)) / case.name
            try:
                for fixed, side in enumerate(SIDES):
                    export(case, fixed, folder / side)
            except ImportError as error:
                print(f"{case.name}: skipped, {error.name} is not installed", flush=True)
                continue
            if given.export_only:
                print(f"{case.name}: exported", flush=True)
                continue
            before, after = measured(case, folder, options)
            measure_roof(before)
            rows.append(judge(case, before, after))
            print(rows[-1], flush=True)
    if given.export_only:
        return
    table = pd.DataFrame(rows)
    print(table.to_markdown(index=False) if len(table) else "nothing was measured")
    silent = table["cause"].isin([case.name for case in SILENT])
    missed = (table["rank"] == "not found") & ~silent
    inside = (table["inside"] != "no") & ~silent
    raise SystemExit(int(missed.any() or inside.sum() < LEAST_INSIDE * (~silent).sum()))


if __name__ == "__main__":
    main()
