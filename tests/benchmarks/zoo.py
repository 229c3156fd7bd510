"""Export the models of the workbench in every dtype, and write what came of it as a table.

    python tests/benchmarks/zoo.py [--models a,b] [--dtypes fp32,int8] [--out data/zoo.md]

Rows of the same model and dtype in an earlier table are replaced, the others kept. All exports
run in one process: the first one is the slowest. Exit code 1 if an export is wrong.
"""

import argparse
import importlib.metadata
import platform
import re
import sys
import tempfile
import warnings
from pathlib import Path

import workbench as wb
from workbench.errors import WorkbenchError
from workbench.export import DTYPES
from workbench.models import list_models
from workbench.store import load_export

HEADER = ["model", "dtype", "seconds", "MB", "delegates", "left", "SQNR (dB)", "remarks"]
EPILOGUE = """
*delegates*: partitions given to XNNPACK; *left*: operators that portable kernels run; *SQNR*: of
the worst output of the program, run on the machine that exported it, against the eager model in
single precision. Weights are random: an SQNR says whether the graph is sound, not how accurate a
trained model would be. Written by `tests/benchmarks/zoo.py`.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=names, default=list_models())
    parser.add_argument("--dtypes", type=names, default=list(DTYPES))
    parser.add_argument("--out", type=Path, default=Path("data/zoo.md"))
    options = parser.parse_args()

    rows = read_rows(options.out)
    wrong = 0
    for model in options.models:
        for dtype in options.dtypes:
            rows[model, dtype] = cells = measure(model, dtype)
            wrong += cells[-1].startswith("**wrong")
            print(*cells, sep=" | ", flush=True)
            write_table(options.out, rows)
    return 1 if wrong else 0


def names(text: str) -> list[str]:
    return text.split(",")


def measure(model: str, dtype: str) -> list[str]:
    """The cells of one export."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"):
        try:
            export = load_export(wb.export_model(model, dtype=dtype, root=Path(folder)))
        except WorkbenchError as error:
            return [model, dtype, "", "", "", "", "", error.what.split(" -> ")[0]]
    ratios = [output.sqnr_db for output in export.fidelity if output.sqnr_db is not None]
    done = export.options.get("rewritten", "nothing")
    remarks = "" if done == "nothing" else f"rewritten: {done}"
    if export.problem:
        remarks = f"**wrong**: {export.problem}"
    return [
        model,
        dtype,
        f"{export.seconds:.1f}",
        f"{export.size_bytes / 1e6:.2f}",
        str(sum(export.delegates.values())),
        str(sum(row.count for row in export.undelegated)),
        f"{min(ratios):.1f}" if ratios else "equal" if export.fidelity else "",
        remarks,
    ]


def read_rows(path: Path) -> dict[tuple[str, str], list[str]]:
    """The rows of an earlier table by model and dtype."""
    text = path.read_text() if path.exists() else ""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    return {(row[0], row[1]): row for row in rows if len(row) == len(HEADER) and row[1] in DTYPES}


def write_table(path: Path, rows: dict[tuple[str, str], list[str]]) -> None:
    order = list(DTYPES)
    ordered = [rows[key] for key in sorted(rows, key=lambda key: (key[0], order.index(key[1])))]
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("executorch", "torch", "torchao")
    )
    lines = ["# The zoo, exported", "", f"With {versions}, on {platform.machine()}.", ""]
    lines += [line(HEADER), line(["---"] * len(HEADER)), *map(line, ordered)]
    path.write_text("\n".join(lines) + "\n" + EPILOGUE)


def line(cells: list[str]) -> str:
    return "| " + " | ".join(re.sub(r"[|\n]", " ", cell) for cell in cells) + " |"


if __name__ == "__main__":
    sys.exit(main())
