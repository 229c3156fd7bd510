"""The runs below some folders over time, and where latency, starts and memory changed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from workbench import Comparison, Measurement, Run, WorkbenchError, open_run
from workbench.api import Table, UsageError, show_table
from workbench.pages import plural
from workbench.plugins.history.change_points import find_changes

if TYPE_CHECKING:
    pass
from workbench.api import Frame

#: What a measurement needs besides time, as columns.
RESOURCES = ("first_output_ms", "peak_mb", "anonymous_mb", "size_mb")
HISTORY = Frame.make(
    "history",
    ("line", "text", "", "comparable over time: same model, inputs, device, experiment, threads"),
    ("run_dir", "text", "", "folder of the run"),
    ("run", "text", "", "its label, or what it ran"),
    ("started", "text", "", "when it began, UTC"),
    "model program device build experiment threads emulated",
    ("clock", "text", "", "cpu_ns | wall_ns"),
    ("problem", "text", "", "what is wrong with the program's outputs; such runs are no change"),
    ("restarts", "int", "", "process restarts"),
    "latency_ms",
    *Frame.interval("its", "ms", suffix="_ms"),
    " ".join(RESOURCES),
)


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
            change=outcome.fillna("none").mask(last["problem"] != "", Comparison.WRONG),
        )
        columns = ["line", "program", "experiment", "threads", "device", "runs", "latest"]
        resources = [name for name in RESOURCES if lines[name].notna().any()]
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


def read_history(roots: Iterable[str | Path] = (".",)) -> History:
    """Find all runs below some folders, and where latency, starts and memory changed.

    A line has the runs of one model, exported alike, with the same inputs, experiment, threads,
    device and kind of runner; builds and versions may differ. A program of an unknown model is a
    line of its own. Emulated runs have lines without times.

    Parameters
    ----------
    roots
        Folders that hold ``runs/<name>/manifest.json`` at any depth.

    Raises
    ------
    UsageError
        A folder is not there.

    Examples
    --------
    >>> history = wb.read_history([wb.sample_run().parent])
    >>> history.rows["experiment"].tolist()
    ['avx512_off', 'avx512_on']
    """
    from scipy.special import stdtrit  # which takes a tenth of a second to import

    rows: list[dict[str, Any]] = []
    problems, names = [], dict[str, str]()
    for run_dir in find_all_runs(roots):
        try:
            rows += _rows_of(open_run(run_dir), run_dir, names)
        except WorkbenchError as error:
            problems.append(str(error))
    kinds = {"threads": "int64", "restarts": "int64", "emulated": "bool"}
    table = pd.DataFrame(rows, columns=[*HISTORY.names, "error_ms"]).astype(kinds)
    errors_ms = table.pop("error_ms").to_numpy()
    half_ms = errors_ms * stdtrit(table["restarts"].to_numpy() - 1.0, 0.975)
    table["low_ms"] = (table["latency_ms"] - half_ms).clip(lower=0)
    table["high_ms"] = table["latency_ms"] + half_ms
    table = (
        table[HISTORY.names]
        .sort_values(["started", "run_dir"], kind="stable")
        .reset_index(drop=True)
    )
    return History(HISTORY.check(table), find_changes(table), tuple(problems))


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
            elif "manifest.json" in files:
                runs.setdefault(Path(folder).resolve(), Path(folder))
    return list(runs.values())


def _rows_of(run: Run, run_dir: Path, names: dict[str, str]) -> Iterator[dict[str, Any]]:
    """The rows of a run; ``names`` has what the programs of each line are called."""
    started, runner = _in_utc(run), f"{run.record.runner.get('kind')} runner"
    has_times = any(batch.wall_ns for session in run.record.counted for batch in session.batches)
    for m in run.measurements if has_times else ():
        if m.control:
            continue
        shapes = ", ".join(f"{t.dtype} {'x'.join(map(str, t.shape))}" for t in m.program.inputs)
        shared, facts = _identify(m), m.facts
        program = names.setdefault(shared, f"{m.program.stem} {shared[:12]}")
        parts = [program, shapes, m.name, plural(m.threads, "thread"), facts["device"]]
        yield {
            **facts,
            "line": "; ".join([*parts, runner, m.clock]),
            "run_dir": str(run_dir),
            "run": run.title,
            "started": started,
            "clock": m.clock,
            "problem": m.wrong,
            "restarts": len(m.restarts),
            **_sum_up(np.array([] if run.emulated else m.restarts)),
        }


def _identify(m: Measurement) -> str:
    """The hash of what the programs of a line share."""
    if m.export is None or not m.export.graph:
        return m.identity.sha256
    shared = repr([m.export.graph, *m.export.settings.items()])
    return hashlib.sha256(shared.encode()).hexdigest()


def _in_utc(run: Run) -> str:
    started = run.record.started
    try:
        moment = datetime.fromisoformat(started)
        if not 1970 <= moment.year < 2200:  # no clock says so, and no axis reaches there
            raise ValueError
    except ValueError:
        raise WorkbenchError(f"bad start time {started!r:.40}", where=run.path) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC).isoformat()


def _sum_up(restarts_ms: np.ndarray) -> dict[str, float]:
    """The mean of latencies, and its standard error."""
    if not len(restarts_ms) or restarts_ms.min() <= 0:
        return {}
    error = np.nan
    if len(restarts_ms) > 1:
        error = restarts_ms.std(ddof=1) / np.sqrt(len(restarts_ms))
    return {"latency_ms": float(restarts_ms.mean()), "error_ms": float(error)}
