"""A portfolio on disk: its storage, the outcome of every cell, and the overview of all."""

import contextlib
import hashlib
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

from workbench import store
from workbench.errors import StoreError, UsageError, WorkbenchError
from workbench.frames import EMULATED, WRONG, plural
from workbench.portfolio.matrix import Matrix
from workbench.records.codec import to_json
from workbench.records.portfolio import Cell, Outcome, Portfolio, Row
from workbench.report.html import render_page
from workbench.trace.writers import to_csv

PORTFOLIO, TABLE, INDEX, OUTCOMES = "portfolio.json", "portfolio.csv", "index.html", "cells"
#: Axes that the page can be filtered by.
AXES = ("model", "dtype", "target", "toggle", "state")
#: Columns that are left out where all rows have the same value.
SHARED = ("target", "toggle", "threads", "state")
#: Fields of an outcome that are columns of ``portfolio.csv``.
FACTS = (
    *("platform", "cpu", "emulated", "state", "grade", "size_bytes", "sqnr_db", "undelegated"),
    *("problem", "error", "run_dir", "report", "notebook"),
)
#: Those of its program, which rows of other programs lack.
FACTS_OF_PROGRAM = ("size_bytes", "sqnr_db", "undelegated")


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
        return (
            store.cache_folder() / "portfolios" / hashlib.sha256(self.url.encode()).hexdigest()[:16]
        )

    def fetch(self, name: str) -> None:
        """Download a folder of the portfolio; complete files only."""
        if not self.url:
            return
        files, root = self._open()
        with self._convert_errors(name):
            for remote in files.find(f"{root}/{name}"):
                if not remote.endswith(store.PARTIAL):
                    local = self.folder / name / remote.split(f"{root}/{name}/", 1)[-1]
                    if not local.resolve().is_relative_to((self.folder / name).resolve()):
                        raise StoreError(f"has a file {remote!r:.100}", where=self.url)
                    store.atomic_write(local, files.cat_file(remote))

    def send(self, name: str) -> None:
        """Upload a file or folder, without hidden files."""
        if not self.url:
            return
        files, root = self._open()
        with self._convert_errors(name):
            path = self.folder / name
            for local in [path] if path.is_file() else sorted(path.rglob("[!.]*")):
                if not local.is_file():
                    continue
                remote = f"{root}/{local.relative_to(self.folder).as_posix()}"
                files.makedirs(remote.rpartition("/")[0], exist_ok=True)
                # A reader sees the old file or the new one, if the file system can move files.
                files.pipe_file(f"{remote}{store.PARTIAL}", local.read_bytes())
                files.mv(f"{remote}{store.PARTIAL}", remote)

    def write(self, name: str, content: str) -> None:
        """Write a small file."""
        store.atomic_write(self.folder / name, content)
        self.send(name)

    def _open(self) -> tuple[Any, str]:
        try:
            import fsspec
        except ModuleNotFoundError:
            raise WorkbenchError("fsspec is not installed", install="fsspec") from None
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
        errors = (OSError, *([botocore.BotoCoreError] if botocore else []))
        try:
            yield
        except errors as error:
            reason = f"cannot be read or written: {getattr(error, 'strerror', None) or error}"
            raise StoreError(reason, where=f"{self.url}/{name}") from None


def open_storage(location: str | Path) -> Storage:
    """The storage at a folder or a URL (``s3://...``, ``memory://...``)."""
    scheme, found, rest = str(location).partition("://")
    if found and scheme != "file":
        return Storage(str(location).rstrip("/"))
    return Storage(str(Path("/", rest) if found else Path(location).resolve()))


def publish(storage: Storage, matrix: Matrix, outcomes: Iterable[Outcome]) -> Portfolio:
    """Write ``portfolio.json``, ``portfolio.csv`` and ``index.html``."""
    updated = datetime.now(UTC).isoformat(timespec="seconds")
    portfolio = Portfolio(asdict(matrix), updated, tuple(outcomes))
    storage.write(PORTFOLIO, to_json(portfolio))
    storage.write(TABLE, write_csv(portfolio.outcomes))
    storage.write(INDEX, render_index(portfolio))
    return portfolio


def outcome_path(cell: Cell) -> str:
    """The file of a cell's outcome, relative to the portfolio."""
    return f"{OUTCOMES}/{store.safe_name(cell.name)}.json"


def load_outcomes(
    cells: Iterable[Cell], storage: Storage, notebook: str = ""
) -> dict[str, Outcome]:
    """The outcomes to go on with, by cell name; reports are those of a notebook."""
    storage.fetch(OUTCOMES)
    template = store.sha256_of(Path(notebook)) if notebook else ""
    return {cell.name: _load_outcome(cell, storage, template) for cell in cells}


def _load_outcome(cell: Cell, storage: Storage, template: str) -> Outcome:
    """The saved outcome, if its cache key matches and its recorded files are intact."""
    saved = read_outcome(storage.folder / outcome_path(cell))
    if saved is None or saved.cell.cache_key != cell.cache_key:
        return Outcome(cell, template=template)
    if saved.run_dir:
        storage.fetch(saved.run_dir)
        found = dict[str, str]()
        with contextlib.suppress(WorkbenchError):
            found = hash_run_files(storage.folder / saved.run_dir)
        if not found or found != saved.files:
            return Outcome(cell, damaged=True, template=template)
        reported = (storage.folder / saved.run_dir / store.REPORT_HTML).is_file()
        if saved.state == "done" and reported and saved.template == template:
            return replace(saved, cell=cell)
    opened = replace(saved, state="open", doing="", failed_stage="", error="", retry="")
    return replace(opened, cell=cell, template=template)


def read_outcome(path: Path) -> Outcome | None:
    """The outcome in a file; None if it cannot be read, which loses nothing but time."""
    with contextlib.suppress(WorkbenchError, OSError):
        return store.load_record(Outcome, path)
    return None


def hash_run_files(run_dir: Path) -> dict[str, str]:
    """The SHA-256 of all recorded files of a run; everything else can be regenerated."""
    suffixes, files = (".etdump", ".samples", ".log"), sorted(run_dir.rglob("*"))
    recorded = [run_dir / store.MANIFEST, *(path for path in files if path.suffix in suffixes)]
    return {path.relative_to(run_dir).as_posix(): store.sha256_of(path) for path in recorded}


def list_failures(portfolio: Portfolio) -> list[str]:
    """Two lines per failure: the error, and the command to retry."""
    failed = [o for o in portfolio.outcomes if o.state == "failed"]
    errors = [(f"{o.cell.name}: {o.failed_stage} failed: {o.error}", o.retry) for o in failed]
    return [line for error, retry in errors for line in (error, f"  retry: {retry}")]


def write_csv(outcomes: Iterable[Outcome]) -> str:
    """One line per measurement, and one for a cell without measurements."""
    lines = list[dict[str, object]]()
    for outcome in outcomes:
        axes = {axis: value for axis, value in _axes(outcome).items() if axis != "state"}
        facts = {name: getattr(outcome, name) for name in FACTS}
        for row in [asdict(row) for row in outcome.rows] or [{}]:
            of_other = dict.fromkeys(FACTS_OF_PROGRAM if row.get("program") else (), "")
            lines.append({**axes, **row, **facts, **of_other, "cache_key": outcome.cell.cache_key})
    return to_csv(pd.DataFrame(lines, dtype=object))


def render_index(portfolio: Portfolio) -> str:
    """The page of a portfolio: a sparkline per model, all failures, all measurements."""
    outcomes = portfolio.outcomes
    rows = [(_axes(o), o, row) for o in outcomes for row in o.rows or (None,)]
    values = {axis: list(dict.fromkeys(axes[axis] for axes, *_ in rows)) for axis in AXES}
    values["threads"] = list({f"{row.threads}" for *_, row in rows if row})
    shared = {name: values[name][0] for name in SHARED if len(values[name]) == 1}
    if any(outcome.problem or outcome.state == "open" for outcome in outcomes):
        shared.pop("state", None)
    states = [outcome.state for outcome in outcomes]
    models, dtypes = values["model"], values["dtype"]
    more = f" and {len(models) - 3} more" * (len(models) > 3)
    return render_page(
        f"{', '.join(models[:3])}{more}: {', '.join(dtypes)}" if models else "Portfolio",
        "portfolio/index.html.j2",
        script=(resources.files("workbench.portfolio") / "index.js").read_text(),
        counts={s: states.count(s) for s in ("done", "failed", "open") if s in states},
        updated=portfolio.updated.replace("T", " ").replace("+00:00", " UTC"),
        answer=_summarize_speedups(row for o in outcomes for row in o.rows if not o.emulated),
        models=_list_latencies(outcomes),
        failures=[outcome for outcome in outcomes if outcome.state == "failed"],
        filters={axis: values[axis] for axis in AXES if len(values[axis]) > 1},
        shared=shared,
        emulated=EMULATED,
        rows=rows,
    )


def _axes(outcome: Outcome) -> dict[str, str]:
    cell = outcome.cell
    values = (cell.label, cell.dtype, cell.target, cell.isa, outcome.state)
    return dict(zip(AXES, values, strict=True))


def _summarize_speedups(rows: Iterable[Row]) -> str:
    """How many of the comparisons were faster, and by how much; empty without comparisons."""
    judged = [row for row in rows if row.speedup]
    counts = Counter(row.outcome for row in judged)
    gains = [row.speedup for row in judged if row.speedup and row.outcome == "faster"]
    text = ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
    if gains:
        least, most = f"{min(gains):.2f}x", f"{max(gains):.2f}x"
        text += f"; faster by {most}" if least == most else f"; faster by {least} to {most}"
        text += f", median {median(gains):.2f}x" if len(gains) > 2 else ""
    return f"Speed-ups over the baselines: {text}." if judged else ""


def _list_latencies(outcomes: Iterable[Outcome]) -> dict[str, list[dict[str, Any]]]:
    """The latencies of every model."""
    models: dict[str, list[dict[str, Any]]] = {}
    for outcome in outcomes:
        cell, bars = outcome.cell, models.setdefault(outcome.cell.label, [])
        for row in outcome.rows:
            name = f"{cell.dtype}, {cell.target}, {row.experiment}, {plural(row.threads, 'thread')}"
            name += f", {WRONG}" if row.outcome == WRONG else ""
            bar = {"name": name, "ms": row.latency_ms}
            bars += [bar] if row.latency_ms and bar not in bars else []
    return models
