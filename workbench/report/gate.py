"""The verdict of a comparison for CI: JUnit, Markdown and terminal."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.analysis.compare_runs import Compared
from workbench.errors import printable
from workbench.frames import WRONG, format_range
from workbench.plots.tables import Table, show_note, show_table
from workbench.store import atomic_write

MOST_ROWS = 50  #: Rows of a gate's table.


def write_junit(compared: Compared, path: Path) -> Path:
    """Write a gate as JUnit XML, undecided rows as skipped; returns the path."""
    from junitparser import Failure, JUnitXml, Skipped, TestCase, TestSuite

    suite = TestSuite(compared.limits)
    rows = compared.rows.to_dict("records")
    cases = [(row["subject"], row["level"], row, describe_row(row)) for row in rows]
    if compared.resources is not None:  # their latencies are among the rows
        for row in compared.resources[compared.resources["resource"] != "latency"].to_dict(
            "records"
        ):
            name = ": ".join(filter(None, (row.get("subject"), row["resource"])))
            text = "{outcome}: {baseline:.4g} -> {candidate:.4g} {unit}, {ratio:.2f}x"
            text += " [{low:.2f}, {high:.2f}]"
            cases.append((name, "resources", row, text.format_map(row)))
    for name, kind, row, text in cases:
        case = TestCase(printable(name), f"workbench.{kind}")
        if row["gate"] == "failed":
            case.result = [Failure(text, row["outcome"])]
        elif row["gate"] == "undecided":
            case.result = [Skipped(text)]
        case.system_out = text
        suite.add_testcase(case)
    document = JUnitXml("workbench compare")
    document.add_testsuite(suite)
    return atomic_write(path, document.tostring())


def write_gate_summary(compared: Compared, path: Path) -> Path:
    """Write a gate as Markdown, failures first; returns the path."""
    order = {"failed": 0, "undecided": 1, "open": 2, "passed": 3}
    rows = compared.rows.sort_values("gate", key=lambda gate: gate.map(order), kind="stable")
    counts = compared.rows["gate"].value_counts()
    title = compared.limits.capitalize() or "Comparison"
    found = ", ".join(f"{count} {gate}" for gate, count in counts.items() if gate != "open")
    hidden = len(rows) - MOST_ROWS
    parts = [
        f"# {title}" + (f": {found}" if found else ""),
        show_note(*compared.verdicts),
        show_table(rows, top=MOST_ROWS),
        *([f"{hidden} further rows."] if hidden > 0 else []),
        *([show_table(compared.resources)] if compared.resources is not None else []),
        show_note(*compared.notes),
    ]
    return atomic_write(path, "\n\n".join(map(str, parts)) + "\n")


def describe_row(row: dict[str, Any]) -> str:
    """One row of a gate: ``slower: 10.0 ms -> 11.0 ms, latency +8.7 % to +11.1 % (95 % CI)``."""
    times = format_range(row["baseline_ms"], row["candidate_ms"])
    text = f"{row['outcome']}: {' -> '.join(times)}"
    if row["outcome"] == WRONG:
        return text
    if math.isnan(row["low"]):
        return f"{text}, too few restarts for an interval"
    low, high = (100 * (1 / row[end] - 1) for end in ("high", "low"))
    return f"{text}, latency {low:+.1f} % to {high:+.1f} % (95 % CI)"


def show_aligned(aligned: pd.DataFrame, *, top: int = 12) -> Table:
    """E2E and the parts with the most time in any run; speed-ups only where significant."""
    largest = aligned.groupby("name", sort=False)["time_ms"].max()
    parts = largest.drop("E2E", errors="ignore").nlargest(top).index
    chosen = ["E2E", *parts] if "E2E" in largest else list(parts)
    significant = aligned["outcome"].isin(["faster", "slower"])
    ratios = aligned["speedup"].map(" ({:.2f}x)".format).where(significant, "")
    times = aligned["time_ms"]
    cells = aligned.assign(text=format_range(times.max(), *times)[1:] + ratios)
    wide, caption = put_side_by_side(cells, chosen)
    wide.insert(0, aligned["level"].iloc[-1], chosen)
    return show_table(wide, caption=caption)


def put_side_by_side(cells: pd.DataFrame, names: Sequence[str]) -> tuple[pd.DataFrame, str]:
    """The ``text`` of each ``name`` with a column per ``run``, and a legend of the columns."""
    runs = list(dict.fromkeys(cells["run"]))
    heads = {run: f"[{number}]" for number, run in enumerate(runs, 1)}
    wide = cells.pivot(index="name", columns="run", values="text").loc[names, runs]
    caption = "; ".join(f"{head} {run}" for run, head in heads.items())
    return wide.rename(columns=heads).reset_index(drop=True), caption


def describe_compared(compared: Compared) -> list[object]:
    """Verdicts, the table of parts, and notes."""
    table = [] if compared.aligned is None else ["", show_aligned(compared.aligned)]
    resources = [] if compared.resources is None else ["", show_table(compared.resources), ""]
    return [*compared.verdicts, *table, *resources, *compared.notes]
