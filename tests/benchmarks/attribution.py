"""Check the layer of every event of the registered models against the ground truth.

    python tests/benchmarks/attribution.py [--models a,b] [--dtypes fp32,int8] [--again]
        [--out tests/benchmarks/records/attribution.md] [--programs FOLDER]

XNNPACK's own plan is the ground truth (`tests/layer_truth.py`); it needs Linux and a C++ compiler.
Each program runs once with all extensions of this CPU and once at the lowest ISA level. Programs in
``FOLDER/out_<model>`` are reused, the others are exported there. The table is written after every
row; existing rows are kept unless ``--again`` is given. Exits 1 if the claim does not hold: at
least 99.9 % of the events and 95 % of the operators' time on the correct layer, and no wrong
attribution that is not marked ambiguous.
"""

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))

from layer_truth import Record, probe_command, read_plans, true_modules, true_nodes
from zoo import line, names

import workbench as wb
from workbench.analysis.attribution import attribute_layers
from workbench.analysis.ledger import build_ledger
from workbench.errors import WorkbenchError
from workbench.models.registry import list_models
from workbench.run.build import find_compiler
from workbench.run.isa import read_isa
from workbench.run.runner import find_runner
from workbench.store import default_root, load_layers
from workbench.trace.etdump import read_etdump

DTYPES = ("fp32", "fp16", "int8", "int8dyn")
SURE = ("exact", "fitted")
HEADER = [
    "model", "dtype", "events", "correct", "wrong", "wrong, not ambiguous", "unattributed",
    "no truth", "delegated", "same operators", "ms", "ms correct",
]  # fmt: skip
PROLOGUE = """# Attribution compared with the ground truth

Events of one inference with all extensions of the CPU and of one at its lowest ISA level, on
{machine}. XNNPACK's own plan gives the ground truth: the values that each operator reads and writes
identify the exported operators behind an event.

- *correct*: the attributed layer is that of one of these operators; *wrong*: it is not.
- *unattributed*: no layer is given.
- *no truth*: the ETRecord names no layer; these events are not counted.
- *delegated*: events of XNNPACK delegates; *same operators*: those whose attributed operators are
  exactly XNNPACK's. The others are casts that XNNPACK inserted; no operators are given for them.
- *ms*: time of the operators, without delegate overhead.

Written by `tests/benchmarks/attribution.py`.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=names, default=list_models())
    parser.add_argument("--dtypes", type=names, default=list(DTYPES))
    parser.add_argument("--out", type=Path, default=Path("tests/benchmarks/records/attribution.md"))
    parser.add_argument("--programs", type=Path)
    parser.add_argument("--again", action="store_true", help="measure existing rows again")
    options = parser.parse_args()

    rows = read_rows(options.out)
    with tempfile.TemporaryDirectory() as folder:
        scratch, programs = Path(folder), options.programs or Path(folder)
        probe = scratch / "xnn_plan.so"
        subprocess.run(probe_command(find_compiler(), probe), check=True)
        for model in options.models:
            for dtype in options.dtypes:
                if options.again or (model, dtype) not in rows:
                    cells = measure(model, dtype, programs, probe, scratch)
                    rows[model, dtype] = [model, dtype, *cells]
                    print(*rows[model, dtype], sep=" | ", flush=True)
                    write_table(options.out, rows)
    return 0 if meets_claim(rows) else 1


def measure(model: str, dtype: str, programs: Path, probe: Path, scratch: Path) -> list[str]:
    """The cells of a program, from ``events`` on."""
    root = programs / default_root(model).name
    pte = root / "artifacts" / f"{model}_xnnpack_{dtype}.pte"
    if not pte.exists():
        with warnings.catch_warnings(action="ignore"):
            try:
                options = wb.ExportOptions(dtype=dtype, etrecord=True)
                pte = wb.export_model(model, options=options, root=root).path
            except WorkbenchError as error:
                return [error.what.split(" -> ")[0], *[""] * 9]
    isa = read_isa(find_runner().command)
    parts = [judge(pte, level, probe, scratch) for level in ("native", list(isa.levels)[-1])]
    rows = pd.concat(parts)
    known = rows[rows["truth"].map(bool)]
    right = known["truth_has_it"]
    wrong = ~right & (known["confidence"] != "unattributed")
    sure = wrong & known["confidence"].isin(SURE)
    counts = (len(known), right.sum(), wrong.sum(), sure.sum())
    unattributed = (known["confidence"] == "unattributed").sum()
    times = (known["ms"].sum(), known.loc[right, "ms"].sum())
    return [
        *(str(count) for count in (*counts, unattributed, len(rows) - len(known))),
        str(rows["delegated"].sum()),
        str(rows["same"].sum()),
        *(f"{time:.2f}" for time in times),
    ]


def judge(pte: Path, level: str, probe: Path, scratch: Path) -> pd.DataFrame:
    """One row per operator of a run, with its true modules and whether one was attributed."""
    plan, etdump = scratch / "plan.txt", scratch / "run.etdump"
    plan.write_text("")
    inputs = [str(pte.with_name(each.file)) for each in wb.open_program(pte).export.inputs]
    command = [*find_runner().command, "--model_path", str(pte), "--cpu_threads", "1"]
    command += ["--isa", level, "--num_executions", "1", "--warmup", "1"]
    for path in inputs:
        command += ["--inputs", path]
    environment = {**os.environ, "LD_PRELOAD": str(probe), "XNN_PLAN": str(plan)}
    subprocess.run(
        [*command, "--etdump_path", str(etdump)], env=environment, check=True, capture_output=True
    )
    ledger = build_ledger(read_etdump(etdump))
    layers = load_layers(
        pte.with_name(f"{pte.name}.layers.json"), wb.open_program(pte).export.sha256
    )
    record = Record(pte.with_name(f"{pte.name}.etrecord"))
    nodes = true_nodes(pte.read_bytes(), layers, read_plans(plan.read_text()), ledger)
    truth = true_modules(layers, nodes, record, ledger)
    rows = attribute_layers(ledger, layers)
    rows = rows[rows["key"].isin(truth)].set_index("key")
    rows["truth"] = pd.Series(truth)
    rows["truth_has_it"] = [
        module in modules for module, modules in zip(rows["module"], rows["truth"], strict=True)
    ]
    rows["delegated"] = rows.index.isin(nodes)
    named = rows["xnodes"].fillna("").astype(str)
    rows["same"] = [
        delegated and ",".join(map(str, sorted(nodes[key]))) == ",".join(sorted_numbers(text))
        for key, delegated, text in zip(rows.index, rows["delegated"], named, strict=True)
    ]
    rows["ms"] = ledger.groupby("key", observed=True)["duration_ns"].mean() / 1e6
    return rows


def sorted_numbers(text: str) -> list[str]:
    return sorted(filter(None, text.split(",")), key=int)


def meets_claim(rows: dict[tuple[str, str], list[str]]) -> bool:
    events, right, _, sure, _, _, _, _, time, time_right = totals(rows)
    print(f"{right:.0f} of {events:.0f} events correct, {sure:.0f} wrong and not ambiguous, "
          f"{time_right / time:.2%} of the time correct")  # fmt: skip
    return right >= 0.999 * events and time_right >= 0.95 * time and sure == 0


def totals(rows: dict[tuple[str, str], list[str]]) -> list[float]:
    """The sums of all columns from ``events`` on, over all exported programs."""
    cells = [row[2:] for row in rows.values() if row[-1]]
    return [sum(map(float, column)) for column in zip(*cells, strict=True)]


def read_rows(path: Path) -> dict[tuple[str, str], list[str]]:
    """The rows of an existing table, by model and dtype."""
    text = path.read_text() if path.exists() else ""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    return {(row[0], row[1]): row for row in rows if len(row) == len(HEADER) and row[1] in DTYPES}


def write_table(path: Path, rows: dict[tuple[str, str], list[str]]) -> None:
    ordered = [rows[key] for key in sorted(rows, key=lambda key: (key[0], DTYPES.index(key[1])))]
    total = [
        f"{number:.2f}" if place > 7 else f"{number:.0f}"
        for place, number in enumerate(totals(rows))
    ]
    lines = [line(HEADER), line(["---"] * len(HEADER)), *map(line, ordered)]
    lines.append(line(["all", "", *total]))
    path.write_text(PROLOGUE.format(machine=platform.machine()) + "\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
