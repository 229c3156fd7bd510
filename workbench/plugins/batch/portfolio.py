"""What a batch publishes: a record of its cells, their measurements as a table, and a page."""

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

from workbench import Measurement, Run, WorkbenchError
from workbench.jobs import (
    SCHEMA_VERSION,
    atomic_write,
    is_reported,
    load_record,
    to_csv,
    to_json,
    to_plain,
)
from workbench.pages import abridge_gain, format_ratio, render_page
from workbench.plugins.batch.matrix import Cell, Matrix

PORTFOLIO, TABLE, INDEX = "portfolio.json", "portfolio.csv", "index.html"
#: By what the page can be filtered, and the fields of a cell that have it.
AXES = {"model": "label", "dtype": "dtype", "target": "target", "toggle": "isa", "state": "state"}
#: Columns that are left out where all rows have the same value.
SHARED = ("target", "toggle", "threads", "state")
#: Columns of a comparison, and of a cell without measurements.
COMPARED = dict.fromkeys(("against", "baseline_ms", "speedup", "low", "high"), None)
EMPTY = COMPARED | dict.fromkeys(
    (
        *("experiment", "threads", "emulated", "latency_ms", "low_ms", "high_ms", "bottleneck"),
        *("share", "first_output_ms", "peak_mb", "size_mb", "grade", "sqnr_db", "outcome"),
        *("shares", "unknown", "pale", "blank", "busy", "finding", "gain", "explorer"),
    )
)
#: Columns that are left out where no row has them.
OPTIONAL = {
    "first output ms": "first_output_ms", "peak MB": "peak_mb", "file MB": "size_mb",
    "SQNR dB": "sqnr_db",
}  # fmt: skip


@dataclass(frozen=True)
class Portfolio:
    """What became of a batch: its matrix and its cells, whose paths are in ``folder``."""

    matrix: dict[str, Any]
    cells: tuple[Cell, ...]
    updated: str
    folder: str = ""
    schema_version: int = SCHEMA_VERSION


def publish(folder: Path, matrix: Matrix, cells: Sequence[Cell]) -> Portfolio:
    """Write ``portfolio.json``, ``portfolio.csv`` and ``index.html``."""
    updated = datetime.now(UTC).isoformat(timespec="seconds")
    portfolio = Portfolio(to_plain(matrix), tuple(cells), updated)
    pages = {PORTFOLIO: to_json(portfolio), TABLE: write_csv(cells), INDEX: render_index(portfolio)}
    for name, content in pages.items():
        atomic_write(folder / name, content)
    return replace(portfolio, folder=str(folder))


def recall_cells(cells: Iterable[Cell], matrix: Matrix, folder: Path) -> list[Cell]:
    """The cells as the last batch with the same options left them, if its reports are there."""
    last = dict[str, Cell]()
    with contextlib.suppress(WorkbenchError):
        path, options = folder / PORTFOLIO, to_plain(matrix)
        portfolio = load_record(Portfolio, path)
        if all(portfolio.matrix.get(key) == options[key] for key in ("export", "measure")):
            last = {cell.name: replace(cell, doing="") for cell in portfolio.cells}
        for name, cell in last.items():
            run_dir = (folder / cell.run).resolve()
            if not run_dir.is_relative_to(folder.resolve()):
                raise WorkbenchError(f"has a run {cell.run!r:.100}", where=path)
            if cell.run and not is_reported(run_dir, matrix.notebook):
                last[name] = replace(cell, state="open")
    return [last.get(cell.name, cell) for cell in cells]


def list_rows(run: Run) -> tuple[dict[str, Any], ...]:
    """A row for each comparison of each measurement, at least one; emulated ones have no times."""
    rows = []
    for m in run.measurements:
        if m.control:
            continue
        row = {**EMPTY, **m.summary}
        row["sqnr_db"] = m.export.sqnr_db if m.export else None
        row |= _explain_time(m)
        row["explorer"] = (run.output / "explore.html").is_file()
        compared = [ab for ab in run.comparisons if ab.candidate is m]
        for ab in compared:
            figures = {name: ab.latency[name].iloc[0] for name in COMPARED if name != "against"}
            outcome = {"against": ab.baseline.name, "outcome": ab.verdict.outcome}
            rows.append(row | outcome if m.emulated or ab.wrong else row | figures | outcome)
        rows += [] if compared else [row]
    return tuple(to_plain(pd.DataFrame(rows)))


def _explain_time(m: Measurement) -> dict[str, Any]:
    """The shares of the categories, or why there are none, and the best finding of the subject."""
    use, facts = m.use, dict[str, Any]()
    if m.emulated:
        facts["unknown"] = "emulated: no times"
    elif not m.sessions:
        facts["unknown"] = "not traced"
    else:
        facts = {"pale": use.pale, "blank": use.blank, "busy": use.busy}
        facts["shares"] = m.categories.set_index("category")["share"].to_dict()
    if facts.get("shares") and "shares" in use.uses:
        largest = m.categories.nlargest(1, "mean_ms").iloc[0]
        facts |= {"bottleneck": largest["category"], "share": largest["share"]}
    elif facts.get("shares"):
        facts["unknown"] = "shares are unknown"
    if m is m.run.subject and m.opportunities:
        facts["finding"] = m.findings["cause"].iloc[0]
        facts["gain"] = abridge_gain(m.opportunities[0])
    return facts


def write_csv(cells: Iterable[Cell]) -> str:
    """One line per measurement and comparison, and one for a cell without measurements."""
    lines = [
        {
            **_axes(cell),
            **{name: value for name, value in row.items() if name not in ("shares", "explorer")},
            **{"problem": cell.problem, "error": cell.error, "report": cell.report},
        }
        for cell in cells
        for row in cell.rows or (EMPTY,)
    ]
    return to_csv(pd.DataFrame(lines, dtype=object))


def render_index(portfolio: Portfolio) -> str:
    """The page of a portfolio: the speed-ups in a sentence, all failures, all measurements."""
    cells = portfolio.cells
    rows = [(_axes(cell), cell, row) for cell in cells for row in _list_rows(cell)]
    values = {axis: list(dict.fromkeys(axes[axis] for axes, *_ in rows)) for axis in AXES}
    values["threads"] = list({f"{row['threads']}" for *_, row in rows if row["threads"]})
    shared = {name: values[name][0] for name in SHARED if len(values[name]) == 1}
    if any(cell.problem or cell.state == "open" for cell in cells):
        shared.pop("state", None)
    models = values["model"]
    more = f" and {len(models) - 3} more" * (len(models) > 3)
    return render_page(
        f"{', '.join(models[:3])}{more}: {', '.join(values['dtype'])}",
        "plugins/batch/index.html.j2",
        script=(resources.files("workbench.plugins.batch") / "index.js").read_text(),
        counts=Counter(cell.state for cell in cells),
        updated=portfolio.updated.replace("T", " ").replace("+00:00", " UTC"),
        answer=_summarize_speedups([row for *_, row in rows if row["speedup"] and row["leads"]]),
        failures=[cell for cell in cells if cell.state == "failed"],
        filters={axis: values[axis] for axis in AXES if len(values[axis]) > 1},
        shared=shared,
        absent=[head for head, name in OPTIONAL.items() if not any(row[name] for *_, row in rows)],
        details=("threads", *OPTIONAL),
        busy=any(row["busy"] for *_, row in rows),
        pale=all(row["pale"] for *_, row in rows if row["shares"]),
        rows=rows,
    )


def _list_rows(cell: Cell) -> Iterator[dict[str, Any]]:
    """The rows of a cell; the one with the finding, or else a comparison, leads the others."""
    rows = cell.rows or (EMPTY,)
    ordered = sorted(rows, key=lambda row: (not row.get("finding"), not row.get("speedup")))
    for place, row in enumerate(ordered):
        yield {**EMPTY, **row, "leads": place == 0, "others": len(rows) - 1}


def _axes(cell: Cell) -> dict[str, str]:
    return {axis: getattr(cell, name) for axis, name in AXES.items()}


def _summarize_speedups(rows: Sequence[dict[str, Any]]) -> str:
    """How many comparisons were faster, and by how much; empty without comparisons."""
    counts = Counter(row["outcome"] for row in rows)
    gains = [row["speedup"] for row in rows if row["outcome"] == "faster"]
    text = ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
    least, most = (format_ratio(end(gains, default=1.0)) for end in (min, max))
    if least != most:
        text += f"; faster by {least}x to {most}x, median {format_ratio(median(gains))}x"
    elif gains:
        text += f"; faster by {most}x"
    return f"Speed-ups over the baselines: {text}." if rows else ""
