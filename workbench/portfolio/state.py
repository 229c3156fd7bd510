"""Where a portfolio lies: a folder that all workers see, or a URL that files come from.

What an analysed run says, one row for each experiment and thread count.

The portfolio on disk: an outcome for each cell, and the files that are made of all of them.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import shlex
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from workbench.analysis.compat import Analysis
from workbench.analysis.run import Comparison
from workbench.errors import SetupError, StoreError, UsageError, WorkbenchError
from workbench.portfolio.matrix import Matrix
from workbench.portfolio.pages import render_index
from workbench.records.codec import from_json, to_json
from workbench.records.portfolio import Accounting, Cell, Outcome, Portfolio, Row
from workbench.store import (
    MANIFEST,
    PARTIAL,
    REPORT_HTML,
    atomic_write,
    cache_folder,
    safe_name,
    sha256_of,
)


@dataclass(frozen=True)
class Depot:
    """A portfolio's place: a folder, or a URL that files are sent to and fetched from."""

    place: str

    @property
    def url(self) -> str:
        """The URL; empty where the place is a folder."""
        return self.place if "://" in self.place else ""

    @property
    def folder(self) -> Path:
        """The folder that work is done in, on whatever machine we are."""
        if not self.url:
            return Path(self.place)
        scratch = hashlib.sha256(self.url.encode()).hexdigest()[:16]
        return cache_folder() / "portfolios" / scratch

    def fetch(self, name: str) -> None:
        """Bring a folder of the portfolio here; whole files only."""
        if not self.url:
            return
        files, root = self._open()
        with self._explained(name):
            for remote in files.find(f"{root}/{name}"):
                if remote.endswith(PARTIAL):
                    continue
                local = self.folder / name / remote.split(f"{root}/{name}/", 1)[-1]
                atomic_write(local, files.cat_file(remote))

    def send(self, name: str) -> None:
        """Take a file or folder from here to the portfolio; hidden files stay."""
        if not self.url:
            return
        files, root = self._open()
        with self._explained(name):
            for local in _walk(self.folder / name):
                remote = f"{root}/{local.relative_to(self.folder).as_posix()}"
                files.makedirs(remote.rpartition("/")[0], exist_ok=True)
                # Whoever reads sees the old file or the new one, where the file system can move.
                files.pipe_file(f"{remote}{PARTIAL}", local.read_bytes())
                files.mv(f"{remote}{PARTIAL}", remote)

    def write(self, name: str, content: str) -> None:
        """Write a small file of the portfolio."""
        atomic_write(self.folder / name, content)
        self.send(name)

    def _open(self) -> tuple[Any, str]:
        try:
            import fsspec
        except ModuleNotFoundError:
            raise SetupError("fsspec is not installed", hint="pip install fsspec") from None
        try:
            files, root = fsspec.core.url_to_fs(self.url)
        except (ValueError, ImportError) as error:
            raise UsageError(f"cannot be opened: {error}", where=self.url) from None
        files.invalidate_cache()  # others write there, too
        return files, root.rstrip("/")

    @contextlib.contextmanager
    def _explained(self, name: str):
        try:
            yield
        except (OSError, *_errors_of_s3()) as error:
            reason = getattr(error, "strerror", None) or error
            raise StoreError(
                f"cannot be read or written: {reason}", where=f"{self.url}/{name}"
            ) from None


def open_depot(place: str | Path) -> Depot:
    """The depot at a folder, or at a URL that fsspec knows (``s3://...``, ``memory://...``)."""
    scheme, found, rest = str(place).partition("://")
    if found and scheme != "file":
        return Depot(str(place).rstrip("/"))
    return Depot(str(Path("/", rest) if found else Path(place).resolve()))


def _errors_of_s3() -> tuple[type[Exception], ...]:
    """What S3 raises where there is no connection or no credentials, which is no OSError."""
    botocore = sys.modules.get("botocore.exceptions")
    return (botocore.BotoCoreError,) if botocore else ()


def _walk(path: Path) -> Iterable[Path]:
    if path.is_file():
        return [path]
    return sorted(p for p in path.rglob("*") if p.is_file() and not p.name.startswith("."))


def tabulate_rows(analysis: Analysis) -> tuple[Row, ...]:
    """The rows of a run, without its controls; an emulated one has no times."""
    isa = {e.name: e.isa for e in analysis.run.plan.experiments if not e.control}
    measured = analysis.statistics[analysis.statistics["experiment"].isin(list(isa))]
    rows = []
    for found in measured.to_dict("records"):
        experiment, threads = str(found["experiment"]), int(found["threads"])
        plain = Row(experiment, isa[experiment], threads)
        if analysis.run.emulated:
            rows.append(plain)
            continue
        categories = analysis.select(analysis.categories, experiment, threads)
        largest = categories.loc[categories["mean_ms"].idxmax()]
        rows.append(
            Row(
                experiment=experiment,
                isa=isa[experiment],
                threads=threads,
                clock=str(found["clock"]),
                n=int(found["n"]),
                median_ms=float(found["median"]),
                low_ms=float(found["low"]),
                high_ms=float(found["high"]),
                bottleneck=str(largest["category"]),
                share=float(largest["share"]),
                **_compare(analysis, experiment, threads),
            )
        )
    return tuple(rows)


def _compare(analysis: Analysis, experiment: str, threads: int) -> dict[str, object]:
    """What the first comparison says of which this is the candidate."""
    found = next((c for c in analysis.comparisons if c.sides[1] == (experiment, threads)), None)
    return _speedup(found) if found else {}


def _speedup(comparison: Comparison) -> dict[str, object]:
    latency = comparison.latency.iloc[0]
    return {
        "against": comparison.sides[0][0],
        "speedup": float(latency["speedup"]),
        "speedup_low": float(latency["low"]),
        "speedup_high": float(latency["high"]),
        "outcome": comparison.verdict.outcome,
    }


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


def hash_files(run_dir: Path) -> dict[str, str]:
    """The SHA-256 of everything in a run that was measured, and cannot be made anew."""
    raw = [p for p in sorted(run_dir.rglob("*")) if p.suffix in (".etdump", ".samples", ".log")]
    files = [run_dir / MANIFEST, *raw]
    return {path.relative_to(run_dir).as_posix(): sha256_of(path) for path in files}
