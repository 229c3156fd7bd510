"""Export the models of the workbench in every dtype, and write what came of it as a table.

    python tests/benchmarks/zoo.py [--models a,b] [--dtypes fp32,int8] [--out data/zoo.md] [--again]
        [--keep FOLDER]

Each export has a process of its own, with limits of time and memory. They are forked from one that
has lowered a small model before, so no row pays for the first lowering of a process. The table is
written after every row; rows that it has already are kept unless told ``--again``. With ``--keep``
the programs stay in ``FOLDER/out_<model>``. Exit code 1 if an export crashed, or one is wrong and
nobody knows why.
"""

import argparse
import importlib.metadata
import multiprocessing
import platform
import re
import resource
import signal
import sys
import tempfile
import time
import warnings
from pathlib import Path

import workbench as wb
from workbench.errors import WorkbenchError
from workbench.export.lower import DTYPES
from workbench.models.registry import list_models
from workbench.store import load_export

HEADER = ["model", "dtype", "seconds", "MB", "delegates", "left", "SQNR (dB)", "remarks"]
LONGEST_S = 1200
LARGEST_BYTES = 14 * 10**9
EPILOGUE = """
*seconds*: CPU time of the export with its checks; *delegates*: partitions given to
XNNPACK; *left*: operators that portable kernels run; *SQNR*: of the worst output of the program,
run on the machine that exported it, against the eager model in single precision. Weights are
random: an SQNR says whether the graph is sound, not how accurate a trained model would be. Written
by `tests/benchmarks/zoo.py`.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=names, default=list_models())
    parser.add_argument("--dtypes", type=names, default=list(DTYPES))
    parser.add_argument("--out", type=Path, default=Path("data/zoo.md"))
    parser.add_argument("--again", action="store_true", help="measure rows that are there, too")
    parser.add_argument("--keep", type=Path, help="where programs stay")
    options = parser.parse_args()

    rows = read_rows(options.out)
    wanted = [(model, dtype) for model in options.models for dtype in options.dtypes]
    if missing := [row for row in wanted if options.again or row not in rows]:
        warm_up()
    for model, dtype in missing:
        rows[model, dtype] = cells = measure_apart(model, dtype, options.keep)
        print(*cells, sep=" | ", flush=True)
        write_table(options.out, rows)
    remarks = [rows[row][-1] for row in wanted]
    bad = [text for text in remarks if text.startswith("**") and "cause: " not in text]
    print(f"{len(wanted)} exports, {len(bad)} of them bad for no known cause")
    return 1 if bad else 0


def names(text: str) -> list[str]:
    return text.split(",")


def warm_up() -> None:
    """Load what every export needs; without threads, which a fork would not survive."""
    import torch

    from workbench.export.lower import lower_model

    torch.set_num_threads(1)
    lower_model(wb.load_model("toy_cnn"), wb.ExportOptions())


def measure_apart(model: str, dtype: str, keep: Path | None) -> list[str]:
    """The cells of one export, made in a process of its own."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=send_cells, args=(sender, model, dtype, keep))
    process.start()
    sender.close()
    try:
        if receiver.poll(LONGEST_S):
            return receiver.recv()
        problem = f"not done after {LONGEST_S} s"
    except EOFError:
        process.join()
        problem = f"its process ended with {ended_by(process.exitcode)}"
    finally:
        process.kill()
        process.join()
    return [model, dtype, "", "", "", "", "", f"**crash**: {problem}"]


def ended_by(code: int | None) -> str:
    return f"signal {signal.Signals(-code).name}" if code and code < 0 else f"exit code {code}"


def send_cells(sender: object, model: str, dtype: str, keep: Path | None) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (LARGEST_BYTES, LARGEST_BYTES))
    with tempfile.TemporaryDirectory() as folder:
        root = keep / f"out_{model}" if keep else Path(folder)
        sender.send(measure(model, dtype, root))


def measure(model: str, dtype: str, root: Path) -> list[str]:
    """The cells of one export."""
    started = time.process_time()
    with warnings.catch_warnings(action="ignore"):
        try:
            export = load_export(
                wb.export_model(model, wb.ExportOptions(dtype=dtype, fresh=True), root=root)
            )
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
        f"{time.process_time() - started:.1f}",
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
