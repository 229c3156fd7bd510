"""The runs below some folders over time, and where latency, starts and memory changed."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from workbench import WorkbenchError
from workbench.analysis import statistics
from workbench.analysis.describe import identify_run, name_record
from workbench.analysis.resources import SUMMARY, summarize_resources
from workbench.api import (
    StoreError,
    Table,
    UsageError,
    atomic_write,
    plural,
    show_table,
    unknown_name,
)
from workbench.emulation import WRONG
from workbench.plugins.history.change_points import find_changes
from workbench.plugins.history.frames import HISTORY
from workbench.records.exports import Export, Identity
from workbench.records.runs import RunRecord, Session
from workbench.store import MANIFEST, load_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: What may be declared to differ within a line.
AXES = ("program",)


@dataclass(frozen=True)
class History:
    """Runs over time, where they changed, and one line per run that could not be read."""

    rows: pd.DataFrame
    changes: pd.DataFrame
    problems: tuple[str, ...]

    @property
    def tables(self) -> tuple[Table, Table]:
        """The lines with their latest latency, and the changes."""
        last = self.rows.drop_duplicates("line", keep="last").set_index("line")
        changes = self._last_changes
        texts = changes["outcome"].where(
            changes["resource"] == "latency", changes["resource"] + ": " + changes["outcome"]
        )
        outcome = texts.groupby(changes["line"]).agg(", ".join).reindex(last.index)
        lines = last.assign(
            line=range(1, len(last) + 1),
            runs=self.rows["line"].value_counts().reindex(last.index),
            latest=last["run"],
            change=outcome.fillna("none").mask(last["problem"] != "", WRONG),
        )
        columns = ["line", "program", "experiment", "threads", "device", "runs", "latest"]
        resources = [name for name in SUMMARY if lines[name].notna().any()]
        numbered = self.changes.assign(line=self.changes["line"].map(lines["line"]))
        return (
            show_table(lines, [*columns, "latency_ms", *resources, "change"]),
            show_table(numbered.drop(columns="run_dir"), caption="What changed")
            if len(numbered)
            else Table("", ""),
        )

    @property
    def _last_changes(self) -> pd.DataFrame:
        return self.changes.drop_duplicates(["line", "resource"], keep="last")

    def exceeding(self, limits: Mapping[str, float]) -> pd.DataFrame:
        """The last changes by which a resource of a line grew by more than its limit."""
        last = self._last_changes
        return last[last["low"] > 1 + last["resource"].map(limits).astype(float)]


def read_history(roots: Iterable[str | Path] = (".",), *, across: Collection[str] = ()) -> History:
    """Find all runs below some folders, and where latency, starts and memory changed.

    A line has the runs of one program with the same inputs, experiment, threads, device and kind of
    runner; builds may differ. Emulated runs have lines without times.

    Parameters
    ----------
    roots
        Folders that hold ``runs/<name>/manifest.json`` at any depth.
    across
        ``program``: programs of one model that were exported alike share a line, whatever compiled
        them. Those of an unknown model are lines of their own.

    Raises
    ------
    UsageError
        An unknown axis or folder.

    Examples
    --------
    >>> history = wb.read_history([wb.sample_run().parent])
    >>> history.rows["experiment"].tolist()
    ['avx512_off', 'avx512_on']
    """
    for axis in across:
        if axis not in AXES:
            raise unknown_name("axis", axis, AXES, where="--across")
    rows: list[dict[str, Any]] = []
    problems, names = [], dict[str, str]()
    for run_dir in find_all_runs(roots):
        try:
            rows += _rows_of(run_dir, load_run(run_dir), across, names)
        except WorkbenchError as error:
            problems.append(str(error))
    kinds = {"threads": "int64", "restarts": "int64", "emulated": "bool"}
    table = pd.DataFrame(rows, columns=[*HISTORY.names, "error_ms"]).astype(kinds)
    errors_ms = table.pop("error_ms").to_numpy()
    half_ms = errors_ms * statistics.student_quantile(table["restarts"].to_numpy() - 1)
    table["low_ms"] = (table["latency_ms"] - half_ms).clip(lower=0)
    table["high_ms"] = table["latency_ms"] + half_ms
    table = (
        table[HISTORY.names]
        .sort_values(["started", "run_dir"], kind="stable")
        .reset_index(drop=True)
    )
    return History(HISTORY.check(table), find_changes(table), tuple(problems))


def write_figure(figure: Figure, path: Path) -> Path:
    """Write a figure in the format of the path's suffix; returns the path."""
    kind = path.suffix.removeprefix(".").lower()
    formats = figure.canvas.get_supported_filetypes()
    if kind not in formats:
        raise unknown_name("format", kind, formats, where=path)
    content = io.BytesIO()
    figure.savefig(content, format=kind)
    return atomic_write(path, content.getvalue())


def find_all_runs(roots: Iterable[str | Path]) -> list[Path]:
    """The folders of all runs at any depth, each once; no hidden ones, no Python environments."""
    runs: dict[Path, Path] = {}
    for root in map(Path, roots):
        if not root.is_dir():
            raise UsageError("no such folder", where=root)
        for folder, below, files in os.walk(root):
            below[:] = sorted(name for name in below if not name.startswith("."))
            if "pyvenv.cfg" in files:
                below.clear()
            elif MANIFEST in files:
                runs.setdefault(Path(folder).resolve(), Path(folder))
    return list(runs.values())


def _rows_of(
    run_dir: Path, run: RunRecord, across: Collection[str], names: dict[str, str]
) -> Iterator[dict[str, Any]]:
    """The rows of a run; ``names`` has what the programs of each line are called."""
    started, runner = _in_utc(run.started, run_dir), f"{run.runner.get('kind')} runner"
    experiments = {e.name: e for e in run.plan.experiments}
    for (experiment, threads), sessions in _list_timed(run, run_dir).items():
        if experiments[experiment].control:
            continue
        clock, restarts = _measure_restarts(sessions)
        ran = run.plan.program_of(experiments[experiment])
        identity, export = identify_run(run, ran), run.export_of(ran)
        starts = [s for s in run.starts if (s.experiment, s.threads) == (experiment, threads)]
        shapes = ", ".join(f"{t.dtype} {'x'.join(map(str, t.shape))}" for t in ran.inputs)
        shared = _identify(run.identify(ran), export, across)
        program = names.setdefault(shared, f"{ran.stem} {shared[:12]}")
        parts = [program, shapes, experiment, plural(threads, "thread"), identity["device"]]
        yield {
            **identity,
            "line": "; ".join([*parts, runner, clock]),
            "run_dir": str(run_dir),
            "run": name_record(run),
            "started": started,
            "model": ran.model,
            "experiment": experiment,
            "threads": threads,
            "emulated": run.emulated,
            "clock": clock,
            "problem": export.fault if export else "",
            "restarts": len(restarts),
            **_sum_up(np.array([] if run.emulated else restarts)),
            **summarize_resources(starts, export),
        }


def _identify(identity: Identity, export: Export | None, across: Collection[str]) -> str:
    """The SHA-256 of what the programs of a line share."""
    if "program" not in across or export is None or not export.graph:
        return identity.sha256
    return hashlib.sha256(repr([export.graph, *export.settings.items()]).encode()).hexdigest()


def _in_utc(started: str, run_dir: Path) -> str:
    try:
        moment = datetime.fromisoformat(started)
        if not 1970 <= moment.year < 2200:  # no clock says so, and no axis reaches there
            raise ValueError
    except ValueError:
        raise StoreError(f"bad start time {started!r:.40}", where=run_dir) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC).isoformat()


def _list_timed(run: RunRecord, run_dir: Path) -> dict[tuple[str, int], list[Session]]:
    """The sessions with times by experiment and threads; traced ones if there are no others."""
    for batch in chain.from_iterable(session.batches for session in run.counted):
        if {len(batch.wall_ns)} != {len(batch.cpu_ns), len(batch.preempted)}:
            raise StoreError("a batch has times of different lengths", where=run_dir)
    timed = [s for s in run.counted if any(batch.wall_ns for batch in s.batches)]
    timed = [s for s in timed if not s.traced] or timed
    sessions: dict[tuple[str, int], list[Session]] = {}
    for session in timed:
        sessions.setdefault((session.experiment, session.threads), []).append(session)
    return sessions


def _measure_restarts(sessions: Collection[Session]) -> tuple[str, list[float]]:
    """The clock as of `statistics.clock_of`, and the midmean in ms of every restart."""
    times: dict[str, dict[int, list[int]]] = {"cpu_ns": {}, "wall_ns": {}}
    for session in sessions:
        for clock, restarts in times.items():
            restart = restarts.setdefault(session.process, [])
            restart += chain.from_iterable(getattr(batch, clock) for batch in session.batches)
    on_cpu = all(session.threads == 1 for session in sessions)
    on_cpu = on_cpu and any(map(any, times["cpu_ns"].values()))
    clock = "cpu_ns" if on_cpu else "wall_ns"
    return clock, [float(statistics.midmean(np.array(ns)) / 1e6) for ns in times[clock].values()]


def _sum_up(restarts_ms: np.ndarray) -> dict[str, float]:
    """The mean of latencies, and its standard error."""
    if not len(restarts_ms) or restarts_ms.min() <= 0:
        return {}
    error = np.nan
    if len(restarts_ms) > 1:
        error = restarts_ms.std(ddof=1) / np.sqrt(len(restarts_ms))
    return {"latency_ms": float(restarts_ms.mean()), "error_ms": float(error)}
