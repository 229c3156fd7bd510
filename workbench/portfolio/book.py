"""The portfolio on disk: an outcome for each cell, and the files that are made of all of them."""

from __future__ import annotations

import contextlib
import csv
import io
import shlex
import time
from collections.abc import Iterable
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

from workbench.codec import from_json, to_json
from workbench.errors import WorkbenchError
from workbench.portfolio.depot import Depot
from workbench.portfolio.index import render_index
from workbench.portfolio.matrix import Matrix
from workbench.portfolio.work import hash_files
from workbench.records import Accounting, Cell, Outcome, Portfolio
from workbench.store import REPORT_HTML, safe_name

PORTFOLIO, TABLE, INDEX, OUTCOMES = "portfolio.json", "portfolio.csv", "index.html", "cells"


class Book:
    """The outcomes of a matrix's cells, on disk at all times."""

    def __init__(self, matrix: Matrix, cells: Iterable[Cell], depot: Depot, retry: str):
        self.matrix, self.depot, self._retry = matrix, depot, retry
        self.outcomes = look_up(cells, depot)
        self._next_time = 0.0

    def note(self, cell: Cell, **facts: object) -> Outcome:
        """Add to a cell's outcome what is known now."""
        outcome = replace(self.outcomes[cell.name], **facts)
        if outcome.state == "failed":
            outcome = replace(outcome, retry=f"{self._retry} --only {shlex.quote(cell.name)}")
        self.outcomes[cell.name] = outcome
        self.depot.write(place_of(cell), to_json(outcome))
        if time.monotonic() > self._next_time:
            self.publish()
        return outcome

    def publish(self, accounting: Accounting | None = None) -> Portfolio:
        """Write ``portfolio.json``, ``portfolio.csv`` and ``index.html`` anew."""
        started = time.monotonic()
        portfolio = Portfolio(
            matrix=asdict(self.matrix),
            updated=datetime.now(UTC).isoformat(timespec="seconds"),
            outcomes=tuple(self.outcomes.values()),
            accounting=accounting,
        )
        self.depot.write(PORTFOLIO, to_json(portfolio))
        self.depot.write(TABLE, write_csv(portfolio.outcomes))
        self.depot.write(INDEX, render_index(portfolio))
        # With thousands of cells this takes a while: it shall not take most of the time.
        self._next_time = time.monotonic() + 20 * (time.monotonic() - started)
        return portfolio


def place_of(cell: Cell) -> str:
    """The file of a cell's outcome, within the portfolio."""
    return f"{OUTCOMES}/{safe_name(cell.name)}.json"


def read_outcome(path: Path) -> Outcome | None:
    """The outcome in a file; None if there is none, or none that can be read.

    Nothing is lost by that: outcomes are made again from the runs that they tell of.
    """
    with contextlib.suppress(WorkbenchError, OSError):
        return from_json(Outcome, path.read_bytes(), path)
    return None


def look_up(cells: Iterable[Cell], depot: Depot) -> dict[str, Outcome]:
    """Where to go on with every cell, by its name."""
    depot.fetch(OUTCOMES)
    return {cell.name: _look_up(cell, depot) for cell in cells}


def _look_up(cell: Cell, depot: Depot) -> Outcome:
    """Where to go on with a cell: what was done for this very one counts, if it is intact."""
    earlier = read_outcome(depot.folder / place_of(cell))
    if earlier is None or earlier.cell.address != cell.address:
        return Outcome(cell)
    if earlier.run_dir:
        depot.fetch(earlier.run_dir)
        if not is_intact(earlier, depot.folder):
            return Outcome(cell, damaged=True)
        if earlier.state == "done" and (depot.folder / earlier.run_dir / REPORT_HTML).is_file():
            return replace(earlier, cell=cell)
    return replace(earlier, cell=cell, state="open", failed_stage="", error="", retry="")


def is_intact(outcome: Outcome, folder: Path) -> bool:
    """Whether everything that was measured is as it was written."""
    try:
        return bool(outcome.files) and hash_files(folder / outcome.run_dir) == outcome.files
    except WorkbenchError:
        return False


def list_failures(portfolio: Portfolio) -> list[str]:
    """What failed, in two lines each: the error, and how to try again."""
    return [
        line
        for o in portfolio.outcomes
        if o.state == "failed"
        for line in (f"{o.cell.name}: {o.failed_stage} failed: {o.error}", f"  retry: {o.retry}")
    ]


def write_csv(outcomes: Iterable[Outcome]) -> str:
    """One line for each row of each cell, and one for a cell without rows."""
    lines = [line for outcome in outcomes for line in flatten(outcome)]
    text = io.StringIO()
    columns = list(dict.fromkeys(name for line in lines for name in line))
    table = csv.DictWriter(text, columns, lineterminator="\n")
    table.writeheader()
    table.writerows(lines)
    return text.getvalue()


def flatten(outcome: Outcome) -> list[dict[str, object]]:
    """The rows of a cell as plain dictionaries; what is not known is None."""
    cell = outcome.cell
    before = {"model": cell.label, "dtype": cell.dtype, "target": cell.target, "toggle": cell.isa}
    kept = ("platform", "cpu", "emulated", "state", "grade", "size_bytes", "sqnr_db")
    kept += ("undelegated", "problem", "error", "run_dir", "report")
    after = {name: getattr(outcome, name) for name in kept} | {"address": cell.address}
    rows = [asdict(row) for row in outcome.rows] or [{}]
    return [before | row | after for row in rows]
