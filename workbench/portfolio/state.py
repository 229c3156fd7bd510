"""A portfolio on disk: its storage, the outcome of every cell, and the overview of all."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

from workbench.errors import SetupError, StoreError, UsageError, WorkbenchError
from workbench.frames import EMULATED
from workbench.portfolio.matrix import Matrix
from workbench.records.codec import from_json, to_json
from workbench.records.portfolio import Cell, Outcome, Portfolio, Row, TimeBreakdown
from workbench.records.runs import count_threads
from workbench.report.html import render_page
from workbench.store import (
    MANIFEST,
    PARTIAL,
    REPORT_HTML,
    atomic_write,
    cache_folder,
    safe_name,
    sha256_of,
)

PORTFOLIO, TABLE, INDEX, OUTCOMES = "portfolio.json", "portfolio.csv", "index.html", "cells"
#: Axes that the page can be filtered by.
AXES = ("model", "dtype", "target", "toggle", "state")
#: Columns that are left out where all rows have the same value.
SHARED = ("target", "toggle", "threads", "state")
#: Fields of an outcome that are columns of ``portfolio.csv``.
FACTS = (
    *("platform", "cpu", "emulated", "state", "grade", "size_bytes", "sqnr_db", "undelegated"),
    *("problem", "error", "run_dir", "report"),
)


@dataclass(frozen=True)
class Storage:
    """Where a portfolio is: a folder that all workers see, or a URL that fsspec knows."""

    location: str

    @property
    def url(self) -> str:
        """The URL; empty for a folder."""
        return self.location if "://" in self.location else ""

    @property
    def folder(self) -> Path:
        """The local folder to work in."""
        if not self.url:
            return Path(self.location)
        scratch = hashlib.sha256(self.url.encode()).hexdigest()[:16]
        return cache_folder() / "portfolios" / scratch

    def fetch(self, name: str) -> None:
        """Download a folder of the portfolio; complete files only."""
        if not self.url:
            return
        files, root = self._open()
        with self._convert_errors(name):
            for remote in files.find(f"{root}/{name}"):
                if not remote.endswith(PARTIAL):
                    local = self.folder / name / remote.split(f"{root}/{name}/", 1)[-1]
                    atomic_write(local, files.cat_file(remote))

    def send(self, name: str) -> None:
        """Upload a file or folder, without hidden files."""
        if not self.url:
            return
        files, root = self._open()
        with self._convert_errors(name):
            for local in _list_files(self.folder / name):
                remote = f"{root}/{local.relative_to(self.folder).as_posix()}"
                files.makedirs(remote.rpartition("/")[0], exist_ok=True)
                # A reader sees the old file or the new one, if the file system can move files.
                files.pipe_file(f"{remote}{PARTIAL}", local.read_bytes())
                files.mv(f"{remote}{PARTIAL}", remote)

    def write(self, name: str, content: str) -> None:
        """Write a small file."""
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
        files.invalidate_cache()  # other machines write there, too
        return files, root.rstrip("/")

    @contextlib.contextmanager
    def _convert_errors(self, name: str) -> Iterator[None]:
        # Without a connection or credentials, S3 raises what is no OSError.
        botocore: Any = sys.modules.get("botocore.exceptions")
        errors: tuple[type[Exception], ...] = (OSError,)
        errors += (botocore.BotoCoreError,) if botocore else ()
        try:
            yield
        except errors as error:
            reason = getattr(error, "strerror", None) or error
            raise StoreError(
                f"cannot be read or written: {reason}", where=f"{self.url}/{name}"
            ) from None


def open_storage(location: str | Path) -> Storage:
    """The storage at a folder or a URL (``s3://...``, ``memory://...``)."""
    scheme, found, rest = str(location).partition("://")
    if found and scheme != "file":
        return Storage(str(location).rstrip("/"))
    return Storage(str(Path("/", rest) if found else Path(location).resolve()))


def _list_files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(p for p in path.rglob("*") if p.is_file() and not p.name.startswith("."))


class PortfolioState:
    """The outcomes of all cells, always up to date on disk."""

    def __init__(self, matrix: Matrix, cells: Iterable[Cell], storage: Storage):
        self.matrix, self.storage = matrix, storage
        self.outcomes = load_outcomes(cells, storage)
        self._next_time = 0.0

    def update(self, outcome: Outcome) -> None:
        """Replace the outcome of its cell."""
        self.outcomes[outcome.cell.name] = outcome
        self.storage.write(outcome_path(outcome.cell), to_json(outcome))
        if time.monotonic() > self._next_time:
            self.publish()

    def publish(self, time_breakdown: TimeBreakdown | None = None) -> Portfolio:
        """Write ``portfolio.json``, ``portfolio.csv`` and ``index.html``."""
        started = time.monotonic()
        portfolio = Portfolio(
            matrix=asdict(self.matrix),
            updated=datetime.now(UTC).isoformat(timespec="seconds"),
            outcomes=tuple(self.outcomes.values()),
            time_breakdown=time_breakdown,
        )
        self.storage.write(PORTFOLIO, to_json(portfolio))
        self.storage.write(TABLE, write_csv(portfolio.outcomes))
        self.storage.write(INDEX, render_index(portfolio))
        # Spend at most 5 % of the time on this; with thousands of cells it is slow.
        self._next_time = time.monotonic() + 20 * (time.monotonic() - started)
        return portfolio


def outcome_path(cell: Cell) -> str:
    """The file of a cell's outcome, relative to the portfolio."""
    return f"{OUTCOMES}/{safe_name(cell.name)}.json"


def load_outcomes(cells: Iterable[Cell], storage: Storage) -> dict[str, Outcome]:
    """The outcomes to go on with, by cell name."""
    storage.fetch(OUTCOMES)
    return {cell.name: _load_outcome(cell, storage) for cell in cells}


def _load_outcome(cell: Cell, storage: Storage) -> Outcome:
    """The saved outcome, if its cache key matches and its recorded files are intact."""
    saved = read_outcome(storage.folder / outcome_path(cell))
    if saved is None or saved.cell.cache_key != cell.cache_key:
        return Outcome(cell)
    if saved.run_dir:
        storage.fetch(saved.run_dir)
        if not is_intact(saved, storage.folder):
            return Outcome(cell, damaged=True)
        if saved.state == "done" and (storage.folder / saved.run_dir / REPORT_HTML).is_file():
            return replace(saved, cell=cell)
    return replace(saved, cell=cell, state="open", failed_stage="", error="", retry="")


def read_outcome(path: Path) -> Outcome | None:
    """The outcome in a file; None if it cannot be read, which loses nothing but time."""
    with contextlib.suppress(WorkbenchError, OSError):
        return from_json(Outcome, path.read_bytes(), path)
    return None


def is_intact(outcome: Outcome, folder: Path) -> bool:
    """Whether the recorded files of a run are as they were written."""
    try:
        return bool(outcome.files) and hash_files(folder / outcome.run_dir) == outcome.files
    except WorkbenchError:
        return False


def hash_files(run_dir: Path) -> dict[str, str]:
    """The SHA-256 of all recorded files of a run; everything else can be regenerated."""
    recorded = [
        p for p in sorted(run_dir.rglob("*")) if p.suffix in (".etdump", ".samples", ".log")
    ]
    files = [run_dir / MANIFEST, *recorded]
    return {path.relative_to(run_dir).as_posix(): sha256_of(path) for path in files}


def list_failures(portfolio: Portfolio) -> list[str]:
    """Two lines per failure: the error, and the command to retry."""
    return [
        line
        for o in portfolio.outcomes
        if o.state == "failed"
        for line in (f"{o.cell.name}: {o.failed_stage} failed: {o.error}", f"  retry: {o.retry}")
    ]


def write_csv(outcomes: Iterable[Outcome]) -> str:
    """One line per measurement, and one for a cell without measurements."""
    lines = [line for outcome in outcomes for line in _flatten(outcome)]
    text = io.StringIO()
    columns = list(dict.fromkeys(name for line in lines for name in line))
    table = csv.DictWriter(text, columns, lineterminator="\n")
    table.writeheader()
    table.writerows(lines)
    return text.getvalue()


def _flatten(outcome: Outcome) -> Iterator[dict[str, object]]:
    cell = outcome.cell
    axes = {"model": cell.label, "dtype": cell.dtype, "target": cell.target, "toggle": cell.isa}
    facts = {name: getattr(outcome, name) for name in FACTS} | {"cache_key": cell.cache_key}
    for row in [asdict(row) for row in outcome.rows] or [{}]:
        yield axes | row | facts


def render_index(portfolio: Portfolio) -> str:
    """The page of a portfolio: a sparkline per model, all measurements, all failures."""
    outcomes = portfolio.outcomes
    states = [outcome.state for outcome in outcomes]
    counts = ", ".join(f"{states.count(s)} {s}" for s in ("done", "failed", "open") if s in states)
    updated = portfolio.updated.replace("T", " ").replace("+00:00", " UTC")
    rows = [row for outcome in outcomes for row in _list_rows(outcome)]
    values = {name: {row["cells"][name] for row in rows} - {""} for name in SHARED}
    shared = {name: found.pop() for name, found in values.items() if len(found) == 1}
    choices = {axis: list(dict.fromkeys(row["axes"][axis] for row in rows)) for axis in AXES}
    return render_page(
        "Portfolio",
        "portfolio/index.html.j2",
        script=(resources.files("workbench.portfolio") / "index.js").read_text(),
        summary=f"{len(outcomes)} cells: {counts}. {updated}",
        models=_list_models(outcomes),
        failures=[outcome for outcome in outcomes if outcome.state == "failed"],
        filters={axis: found for axis, found in choices.items() if len(found) > 1},
        shared=shared,
        heads=[name for name in rows[0]["cells"] if name not in shared],
        rows=rows,
    )


def _list_models(outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """The models, each with the latency of every measurement."""
    bars: dict[str, list[dict[str, Any]]] = {}
    for outcome in outcomes:
        cell, known = outcome.cell, bars.setdefault(outcome.cell.label, [])
        for row in outcome.rows:
            name = f"{cell.dtype}, {cell.target}, {row.experiment}, {count_threads(row.threads)}"
            known += [{"name": name, "ms": row.median_ms}] if row.median_ms else []
    return [
        {
            "name": name,
            "bars": found,
            "fastest": min(found, key=lambda bar: bar["ms"], default=None),
        }
        for name, found in bars.items()
    ]


def _list_rows(outcome: Outcome) -> Iterator[dict[str, Any]]:
    """The table rows of a cell: texts by column, with links, tooltips and filter values."""
    cell = outcome.cell
    axes = (cell.label, cell.dtype, cell.target, cell.isa, outcome.state)
    state = outcome.state + (f": {outcome.problem}" if outcome.problem else "")
    size = None if outcome.size_bytes is None else outcome.size_bytes / 1e6
    for row in outcome.rows or (Row("", "", 0),):
        speedup = f"{row.speedup:.2f}x" if row.speedup is not None else ""
        unclear = f" ({row.outcome})" if speedup and row.outcome != "faster" else ""
        share = f" {100 * row.share:.0f} %" if row.share is not None else ""
        interval = f"{_number(row.low_ms, '.3f')} to {_number(row.high_ms, '.3f')}"
        titles = {
            "median ms": f"{row.n} inferences, {row.clock}",
            "speed-up": f"{_number(row.speedup_low, '.2f')} to {_number(row.speedup_high, '.2f')}, "
            f"against {row.against}",
        }
        yield {
            "axes": dict(zip(AXES, axes, strict=True)),
            "links": {"model": outcome.report} if outcome.report else {},
            "titles": titles if row.median_ms is not None else {},
            "cells": {
                **dict(zip(AXES[:-1], axes, strict=False)),
                "experiment": row.experiment,
                "threads": row.threads or "",
                "median ms": EMULATED if outcome.emulated else _number(row.median_ms, ".3f"),
                "95 % interval": interval if row.median_ms is not None else "",
                "speed-up": speedup + unclear,
                "bottleneck": row.bottleneck + share,
                "quality": outcome.grade,
                "MB": _number(size, ".2f"),
                "SQNR dB": _number(outcome.sqnr_db, ".1f"),
                "state": state,
            },
        }


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
