"""Export every registered model in every dtype, and write the results as a table.

    python tests/benchmarks/zoo.py [--models a,b] [--dtypes fp32,int8] [--out FILE] [--again]
        [--keep FOLDER]

Each export runs in its own process, with time and memory limits. The processes are forked from one
that has lowered a small model, so no row includes the cost of a first lowering. The table is
written after every row; existing rows are kept unless ``--again`` is given. With ``--keep``, the
programs stay in ``FOLDER/out_<model>``. Exits 1 if an export crashed, or if one is wrong for no
known cause.
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
from workbench.export.precision import DTYPES
from workbench.models.registry import list_models

HEADER = ["model", "dtype", "seconds", "MB", "delegates", "undelegated", "SQNR (dB)", "remarks"]
MAX_SECONDS = 1200
MAX_BYTES = 14 * 10**9
EPILOGUE = """
- *seconds*: CPU time of the export, including its checks.
- *delegates*: partitions delegated to XNNPACK; *undelegated*: operators that portable kernels run.
- *SQNR*: of the program's worst output, compared with the eager model in fp32, on the machine that
  exported it. The weights are random: the SQNR shows whether the graph is correct, not how accurate
  a trained model would be.

Written by `tests/benchmarks/zoo.py`.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=names, default=list_models())
    parser.add_argument("--dtypes", type=names, default=list(DTYPES))
    parser.add_argument("--out", type=Path, default=Path("tests/benchmarks/records/zoo.md"))
    parser.add_argument("--again", action="store_true", help="export existing rows again")
    parser.add_argument("--keep", type=Path, help="keep the programs here")
    options = parser.parse_args()

    rows = read_rows(options.out)
    wanted = [(model, dtype) for model in options.models for dtype in options.dtypes]
    if missing := [row for row in wanted if options.again or row not in rows]:
        warm_up()
    for model, dtype in missing:
        rows[model, dtype] = cells = measure_in_process(model, dtype, options.keep)
        print(*cells, sep=" | ", flush=True)
        write_table(options.out, rows)
    remarks = [rows[row][-1] for row in wanted]
    bad = [text for text in remarks if text.startswith("**") and "cause: " not in text]
    print(f"{len(wanted)} exports, {len(bad)} wrong for no known cause")
    return 1 if bad else 0


def names(text: str) -> list[str]:
    return text.split(",")


def warm_up() -> None:
    """Load what every export needs; single-threaded, because threads do not survive a fork."""
    import torch

    from workbench.export.lower import lower_model

    torch.set_num_threads(1)
    lower_model(wb.load_model("toy_cnn"), wb.ExportOptions())


def measure_in_process(model: str, dtype: str, keep: Path | None) -> list[str]:
    """The cells of one export, from its own process."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=send_cells, args=(sender, model, dtype, keep))
    process.start()
    sender.close()
    try:
        if receiver.poll(MAX_SECONDS):
            return receiver.recv()
        problem = f"not finished after {MAX_SECONDS} s"
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
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_BYTES, MAX_BYTES))
    with tempfile.TemporaryDirectory() as folder:
        root = keep / f"out_{model}" if keep else Path(folder)
        sender.send(measure(model, dtype, root))


def measure(model: str, dtype: str, root: Path) -> list[str]:
    """The cells of one export."""
    started = time.process_time()
    with warnings.catch_warnings(action="ignore"):
        try:
            options = wb.ExportOptions(dtype=dtype, fresh=True)
            export = wb.export_model(model, options=options, root=root).export
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
    """The rows of an existing table, by model and dtype."""
    text = path.read_text() if path.exists() else ""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    return {(row[0], row[1]): row for row in rows if len(row) == len(HEADER) and row[1] in DTYPES}


def write_table(path: Path, rows: dict[tuple[str, str], list[str]]) -> None:
    order = list(DTYPES)
    ordered = [rows[key] for key in sorted(rows, key=lambda key: (key[0], order.index(key[1])))]
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("executorch", "torch", "torchao")
    )
    lines = ["# Registered models, exported", "", f"With {versions}, on {platform.machine()}.", ""]
    lines += [line(HEADER), line(["---"] * len(HEADER)), *map(line, ordered)]
    path.write_text("\n".join(lines) + "\n" + EPILOGUE)


def line(cells: list[str]) -> str:
    return "| " + " | ".join(re.sub(r"[|\n]", " ", cell) for cell in cells) + " |"


if __name__ == "__main__":
    sys.exit(main())
