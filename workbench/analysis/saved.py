"""Compare a run with the metrics of an earlier one."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.analysis.compare import compare_restarts
from workbench.analysis.compare_runs import (
    Compared,
    check_identity,
    check_measured,
    check_silicon,
    judge_rows,
    judge_table,
    split_name,
)
from workbench.analysis.describe import identify_run
from workbench.analysis.open import open_run
from workbench.analysis.resources import compare_measured
from workbench.analysis.run import Measurement, Run
from workbench.analysis.verdict import describe_faults, reach_verdict
from workbench.emulation import WRONG
from workbench.errors import WorkbenchError, unknown_name
from workbench.frames import RESOURCE_CHANGES
from workbench.records.documents import METRICS
from workbench.records.exports import Identity, contrast_models
from workbench.store import load_record
from workbench.wording import plural


def compare_with_metrics(
    metrics_json: str | Path,
    name: str,
    *,
    across: Collection[str] = (),
    limits: Mapping[str, float] = {},
) -> Compared:
    """Compare a run with a saved baseline: the ``metrics.json`` of an earlier run.

    The two were not interleaved. The interval is over the process restarts of both; it does not
    cover what else changed on the machine between them.
    """
    metrics = load_record(METRICS, Path(metrics_json), least=2)
    folder, experiment, threads = split_name(name)
    run = open_run(folder)
    check_silicon(metrics["emulated"] or run.emulated)
    subjects, sides, changes, models = [], [], [], list[str]()
    for row in _pick_saved(metrics, experiment, threads, metrics_json):
        m = _find_measured(run, row)
        models.append(_check_saved(metrics, m, across))
        subjects.append(f"{m.program.model}, {m.name}, {plural(m.threads, 'thread')}")
        sides.append((row["restarts_ms"], m.restarts.to_list()))
        table = _compare_saved_resources(row, m)
        check_measured(table["resource"], limits)
        changes.append(table.assign(subject=subjects[-1]))
    table = compare_restarts(subjects, *zip(*sides, strict=True))
    wrong = describe_faults(run.wrong, metrics.get("problem", ""))
    if wrong:
        table["outcome"] = WRONG
    verdicts = tuple(
        reach_verdict(subject, "", table.iloc[[number]], separate="separate runs", wrong=wrong).text
        for number, subject in enumerate(subjects)
    )
    started = run.record.started
    notes = [f"measured apart: the baseline at {metrics['started']}, this run at {started}"]
    notes += [f"the baseline and this run: {text}" for text in dict.fromkeys(models) if text]
    resources = judge_table(pd.concat(changes, ignore_index=True), limits)
    if len(changes) == 1:
        resources = resources.drop(columns="subject")
    return judge_rows(
        table.rename(columns={"name": "subject"}), limits, verdicts=verdicts, notes=tuple(notes),
        resources=None if resources.empty else resources,
    )  # fmt: skip


def _pick_saved(
    metrics: dict[str, Any], experiment: str, threads: str, where: str | Path
) -> list[dict[str, Any]]:
    """The latencies of a saved baseline that are asked for, without controls."""
    latencies = [row for row in metrics["latencies"] if not row["control"]]
    rows = [
        row
        for row in latencies
        if experiment in ("", row["experiment"]) and threads in ("", str(row["threads"]))
    ]
    if not rows:
        names = sorted({f"{row['experiment']}:{row['threads']}" for row in metrics["latencies"]})
        raise unknown_name("measurement", f"{experiment}:{threads}", names, where=where)
    return rows


def _find_measured(run: Run, row: dict[str, Any]) -> Measurement:
    """The measurement of a run that a saved latency is compared with."""
    for m in run.measurements:
        if (m.name, m.threads) != (row["experiment"], row["threads"]):
            continue
        if m.clock != row["clock"]:
            problem = f"the clocks differ: {row['clock']} against {m.clock}"
            raise WorkbenchError(problem, where=run.path, hint="measure both with the same runner")
        return m
    problem = f"{row['experiment']} with {plural(row['threads'], 'thread')} was not measured"
    hint = "name what to compare: RUN_DIR:EXPERIMENT"
    raise WorkbenchError(problem, where=run.path, hint=hint)


def _compare_saved_resources(row: dict[str, Any], m: Measurement) -> pd.DataFrame:
    """How what a process needs has changed since a saved baseline."""
    earlier = {
        each["resource"]: (each["unit"], pd.Series(each["values"], dtype=float))
        for each in row.get("resources", ())
    }
    rows = compare_measured(earlier, m.needs, separate=True)
    return pd.DataFrame(rows, columns=RESOURCE_CHANGES.names[:-1])


def _check_saved(metrics: dict[str, Any], m: Measurement, across: Collection[str]) -> str:
    """Refuse a baseline of another device or the like; what speaks against both being of a model.

    Of programs, ``metrics.json`` has the first digits of the SHA-256.
    """
    saved = metrics | {"program": metrics.get("programs", {}).get(m.name, metrics["program"])}
    current = identify_run(m.run.record, m.program)
    check_identity(saved, current, across)
    graphs = metrics.get("graphs", {}).get(m.name, ""), m.identity.graph
    digits = (text.rpartition(" ")[2] for text in (saved["program"], current["program"]))
    return contrast_models(*map(Identity, graphs, digits))
