"""All runs that are found, in the order in which they were made, and what changed."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from workbench.analysis.compare import list_restarts
from workbench.analysis.history import find_changes
from workbench.analysis.run import identify_run
from workbench.analysis.statistics import half_width
from workbench.errors import StoreError, UsageError, WorkbenchError, unknown_name
from workbench.frames import HISTORY, check
from workbench.plots.tables import Table, show_table
from workbench.records.runs import RunRecord, count_threads
from workbench.store import MANIFEST, atomic_write, load_run

#: What may be declared to differ within a line.
AXES = ("program",)


@dataclass(frozen=True)
class History:
    """Runs and what changed between them.

    ``rows`` are ``frames.HISTORY``, ``changes`` ``frames.CHANGES``; ``problems`` says which runs
    could not be read, and why.
    """

    rows: pd.DataFrame
    changes: pd.DataFrame
    problems: tuple[str, ...]

    @property
    def tables(self) -> tuple[Table, Table]:
        """The lines, each with its latest latency, and what changed in which of them."""
        last = self.rows.drop_duplicates("line", keep="last").set_index("line")
        changes = self.changes.drop_duplicates("line", keep="last").set_index("line")
        status = (changes["outcome"] + ", " + changes["status"]).reindex(last.index)
        lines = last.assign(
            line=range(1, len(last) + 1),
            runs=self.rows["line"].value_counts().reindex(last.index),
            latest=last["started"],
            change=status.fillna("none"),
        )
        columns = ["line", "program", "experiment", "threads", "device", "runs", "latest"]
        numbered = self.changes.assign(line=self.changes["line"].map(lines["line"]))
        return (
            show_table(lines, [*columns, "latency_ms", "change"]),
            show_table(numbered, caption="What changed") if len(numbered) else Table("", ""),
        )

    def slower_by(self, fraction: float) -> pd.DataFrame:
        """The lines that were confirmed, last of all, to be slower by more than a fraction."""
        confirmed = self.changes[self.changes["status"] == "confirmed"]
        last = confirmed.drop_duplicates("line", keep="last")
        return last[(last["outcome"] == "slower") & (last["high"] < 1 / (1 + fraction))]


def read_history(roots: Iterable[str | Path] = (".",), *, across: Collection[str] = ()) -> History:
    """Index all runs below some folders, and find where they became faster or slower.

    A line has the runs of one program with the same inputs, experiment and threads on the same
    device with the same kind of runner; the build may change on the way. Emulated runs have lines
    of their own, without times.

    Parameters
    ----------
    roots
        Folders that hold ``runs/<platform>/manifest.json`` at any depth.
    across
        ``program``: a line goes on when a program of the same name has another content, as when
        a model is developed.

    Raises
    ------
    UsageError
        There is no such axis, or no such folder.
    """
    for axis in across:
        if axis not in AXES:
            raise unknown_name("axis", axis, AXES, where="--across")
    rows: list[dict[str, Any]] = []
    problems = []
    for run_dir in find_all_runs(roots):
        try:
            rows += _rows_of(run_dir, load_run(run_dir), across)
        except WorkbenchError as error:
            problems.append(str(error))
    table = pd.DataFrame(rows, columns=HISTORY.names).astype(
        {"threads": "int64", "restarts": "int64", "emulated": "bool"}
    )
    table = table.sort_values(["started", "run_dir"], kind="stable").reset_index(drop=True)
    return History(check(table, HISTORY), find_changes(table), tuple(problems))


def write_figure(figure: Figure, path: Path) -> Path:
    """Write a figure in the format that the name ends in; returns the path.

    Raises
    ------
    UsageError
        matplotlib knows no such format.
    """
    kind = path.suffix.removeprefix(".").lower()
    known = figure.canvas.get_supported_filetypes()
    if kind not in known:
        raise unknown_name("format", kind, known, where=path)
    content = io.BytesIO()
    figure.savefig(content, format=kind)
    return atomic_write(path, content.getvalue())


def find_all_runs(roots: Iterable[str | Path]) -> list[Path]:
    """Every run's folder at any depth, each once.

    Raises
    ------
    UsageError
        There is no such folder.
    """
    found: dict[Path, Path] = {}
    for root in map(Path, roots):
        if not root.is_dir():
            raise UsageError("no such folder", where=root)
        for path in sorted(root.rglob(MANIFEST)):
            found[path.parent.resolve()] = path.parent
    return list(found.values())


def _rows_of(run_dir: Path, run: RunRecord, across: Collection[str]) -> Iterator[dict[str, Any]]:
    identity, started = identify_run(run), _in_utc(run.started, run_dir)
    shapes = ", ".join(f"{t.dtype} {'x'.join(map(str, t.shape))}" for t in run.plan.inputs)
    program = run.plan.stem if "program" in across else identity["program"]
    runner = f"{run.runner.get('kind')} runner"
    controls = {e.name for e in run.plan.experiments if e.control}
    for (experiment, threads), (clock, restarts) in list_restarts(run).items():
        if experiment in controls:
            continue
        parts = [program, shapes, experiment, count_threads(threads), identity["device"]]
        yield {
            **identity,
            "line": "; ".join([*parts, runner, clock]),
            "run_dir": str(run_dir),
            "started": started,
            "model": run.plan.model,
            "experiment": experiment,
            "threads": threads,
            "emulated": run.emulated,
            "clock": clock,
            "restarts": len(restarts),
            **_interval(() if run.emulated else restarts),
        }


def _in_utc(started: str, run_dir: Path) -> str:
    try:
        moment = datetime.fromisoformat(started)
    except ValueError:
        raise StoreError(f"started at {started!r:.40}, which is no time", where=run_dir) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC).isoformat()


def _interval(restarts: Collection[float]) -> dict[str, float]:
    """The geometric mean of some latencies, with its 95 % interval by Student's t."""
    if not restarts or min(restarts) <= 0:
        return dict.fromkeys(("latency_ms", "low_ms", "high_ms"), np.nan)
    logs = np.log(list(restarts))
    centre, half = logs.mean(), half_width(logs)
    ends = np.exp([centre, centre - half, centre + half])
    return dict(zip(("latency_ms", "low_ms", "high_ms"), ends.tolist(), strict=True))
