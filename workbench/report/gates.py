"""Comparisons held to a limit: what is surely slower than it may be, and what is not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.report.notes import show_note
from workbench.schema import JUDGED, check
from workbench.show import Table, show_table
from workbench.show.style import format_ms
from workbench.store import write_whole

#: Rows of a gate's table.
MOST_ROWS = 50


@dataclass(frozen=True)
class Compared:
    """What was compared, and whether it keeps to a limit.

    ``rows`` are ``schema.JUDGED``; ``verdicts`` sentences on what has one, ``aligned``
    (``schema.ALIGNED``) the parts if they were asked for; ``notes`` what is to be kept in mind.
    ``fail_above`` is the limit as a fraction of the baseline's time, None without one.
    """

    rows: pd.DataFrame
    verdicts: tuple[str, ...] = ()
    aligned: pd.DataFrame | None = None
    notes: tuple[str, ...] = ()
    fail_above: float | None = None

    @property
    def passed(self) -> bool:
        """Whether nothing is surely slower than it may be."""
        return not (self.rows["gate"] == "failed").any()

    @property
    def texts(self) -> list[str]:
        """Verdicts, the table of parts, and notes."""
        table = [] if self.aligned is None else ["", show_aligned(self.aligned)]
        return [*self.verdicts, *table, *self.notes]

    @property
    def record(self) -> dict[str, Any]:
        """The same for programs."""
        return {"passed": self.passed, **asdict(self)}


def judge_rows(rows: pd.DataFrame, fail_above: float | None, **facts: Any) -> Compared:
    """Hold comparisons to a limit.

    A row has ``failed`` if it was shown to be slower and its whole 95 % interval lies beyond the
    limit; it has ``passed`` if the whole interval lies within. In between, or without an interval,
    it is ``undecided``: more restarts would tell.

    Parameters
    ----------
    rows
        ``schema.COMPARISON`` with ``subject``.
    fail_above
        By which fraction of the baseline's time something may be slower; None: no limit.
    facts
        As ``Compared`` has them.
    """
    gate = pd.Series("open", index=rows.index)
    if fail_above is not None:
        least = 1 / (1 + fail_above)
        gate[:] = "undecided"
        gate[rows["low"] >= least] = "passed"
        gate[(rows["high"] < least) & (rows["outcome"] == "slower")] = "failed"
    judged = check(rows.assign(gate=gate)[JUDGED.names].reset_index(drop=True), JUDGED)
    return Compared(judged, fail_above=fail_above, **facts)


def write_junit(compared: Compared, path: Path) -> Path:
    """Write a gate as JUnit XML, what is undecided as skipped; returns the path."""
    from junitparser import Failure, JUnitXml, Skipped, TestCase, TestSuite

    suite = TestSuite(f"not slower by more than {100 * compared.fail_above:g} %")
    for row in compared.rows.to_dict("records"):
        # XML has no way to write control characters.
        name = "".join(c if c.isprintable() else "?" for c in row["subject"])
        case = TestCase(name, f"workbench.{row['level']}")
        if row["gate"] == "failed":
            case.result = [Failure(describe_row(row), "slower")]
        elif row["gate"] == "undecided":
            case.result = [Skipped(describe_row(row))]
        case.system_out = describe_row(row)
        suite.add_testcase(case)
    document = JUnitXml("workbench compare")
    document.add_testsuite(suite)
    return write_whole(path, document.tostring())


def write_gate_summary(compared: Compared, path: Path) -> Path:
    """Write a gate as Markdown, what failed first; returns the path."""
    order = {"failed": 0, "undecided": 1, "open": 2, "passed": 3}
    rows = compared.rows.sort_values("gate", key=lambda gate: gate.map(order), kind="stable")
    counts = compared.rows["gate"].value_counts()
    limit = compared.fail_above
    title = "Comparison" if limit is None else f"No more than {100 * limit:g} % slower"
    found = ", ".join(f"{count} {gate}" for gate, count in counts.items() if gate != "open")
    hidden = len(rows) - MOST_ROWS
    parts = [
        f"# {title}" + (f": {found}" if found else ""),
        show_note(*compared.verdicts),
        show_table(rows, rows=MOST_ROWS),
        *([f"{hidden} further rows."] if hidden > 0 else []),
        show_note(*compared.notes),
    ]
    return write_whole(path, "\n\n".join(map(str, parts)) + "\n")


def describe_row(row: dict[str, Any]) -> str:
    """One row of a gate in a line.

    Examples
    --------
    >>> describe_row({"baseline_ms": 10.0, "candidate_ms": 11.0, "low": 0.9, "high": 0.92,
    ...               "outcome": "slower"})
    'slower: 10.0 ms -> 11.0 ms, latency +8.7 % to +11.1 % (95 % CI)'
    """
    text = f"{row['outcome']}: {format_ms(row['baseline_ms'])} -> {format_ms(row['candidate_ms'])}"
    if math.isnan(row["low"]):
        return f"{text}, too few restarts for an interval"
    low, high = (100 * (1 / row[end] - 1) for end in ("high", "low"))
    return f"{text}, latency {low:+.1f} % to {high:+.1f} % (95 % CI)"


def show_aligned(aligned: pd.DataFrame, *, rows: int = 12) -> Table:
    """The parts with the most time in any run, one column per run: time and speed-up.

    A speed-up since the first run is said only where one was shown; E2E comes first.
    """
    largest = aligned.groupby("name", sort=False)["time_ms"].max()
    parts = largest.drop("E2E", errors="ignore").nlargest(rows).index
    chosen = ["E2E", *parts] if "E2E" in largest else list(parts)
    cells = aligned.assign(
        text=[
            format_ms(row.time_ms)
            + (f" ({row.speedup:.2f}x)" if row.outcome in ("faster", "slower") else "")
            for row in aligned.itertuples()
        ]
    )
    wide, caption = put_side_by_side(cells, chosen)
    wide.insert(0, aligned["level"].iloc[-1], chosen)
    return show_table(wide, caption=caption)


def put_side_by_side(cells: pd.DataFrame, names: Sequence[str]) -> tuple[pd.DataFrame, str]:
    """The ``text`` of each ``name``, a column per ``run``; and what the columns' heads mean."""
    runs = list(dict.fromkeys(cells["run"]))
    heads = {run: f"[{number}]" for number, run in enumerate(runs, 1)}
    wide = cells.pivot(index="name", columns="run", values="text").loc[names, runs]
    caption = "; ".join(f"{head} {run}" for run, head in heads.items())
    return wide.rename(columns=heads).reset_index(drop=True), caption
