"""A run against what an earlier one has left of itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from workbench.analyze import (
    clock_of,
    compare_restarts,
    pick_timed,
    reach_verdict,
    summarize_verdict,
    typical_restarts,
)
from workbench.emulation import EMULATED
from workbench.errors import ComparisonError, unknown_name
from workbench.records import count_threads
from workbench.report.analysis import Analysis, analyze_run
from workbench.report.comparison import check_axes, check_comparable, split_name
from workbench.report.documents import read_document
from workbench.report.facts import identify_run
from workbench.report.gates import Compared, judge_rows


def compare_with_metrics(
    metrics_json: str | Path,
    name: str,
    *,
    across: Collection[str] = (),
    fail_above: float | None = None,
) -> Compared:
    """Compare a run with the ``metrics.json`` that an earlier one has left.

    The two did not take turns. The interval is over the process restarts of both; what else
    changed on the machine between them is in the difference, and not in the interval.

    Parameters
    ----------
    metrics_json
        A copy of the earlier run's file.
    name
        ``RUN_DIR[:EXPERIMENT[:THREADS]]``. Without an experiment, every measurement of the earlier
        run is compared, controls apart, and all as one family.
    across, fail_above
        As for ``compare_many``; threads are those of the name.

    Raises
    ------
    StoreError
        The file is no such file.
    ComparisonError
        The runs are not comparable, one was emulated, or a measurement is missing.
    """
    check_axes(across)
    metrics = read_document(Path(metrics_json), "metrics")
    folder, experiment, threads = split_name(name)
    analysis = analyze_run(folder)
    check_comparable(metrics, identify_run(analysis.run), across)
    if metrics["emulated"] or analysis.run.emulated:
        raise ComparisonError(f"no speed to compare; {EMULATED}", hint="measure on silicon")
    wanted = [
        row
        for row in metrics["latencies"]
        if not row["control"]
        and experiment in ("", row["experiment"])
        and threads in ("", str(row["threads"]))
    ]
    if not wanted:
        known = sorted({f"{row['experiment']}:{row['threads']}" for row in metrics["latencies"]})
        raise unknown_name("measurement", f"{experiment}:{threads}", known, where=metrics_json)
    subjects = [
        f"{metrics['model']}, {row['experiment']}, {count_threads(row['threads'])}"
        for row in wanted
    ]
    table = compare_restarts(
        subjects,
        [row["restarts_ms"] for row in wanted],
        [find_restarts(analysis, row) for row in wanted],
        floor=max(metrics["floor"] or 0.0, analysis.floor),
    )
    verdicts = tuple(
        summarize_verdict(reach_verdict(subject, "", table.iloc[[number]]))
        for number, subject in enumerate(subjects)
    )
    apart = f"measured apart: the baseline at {metrics['started']}, this at {analysis.run.started}"
    rows = table.rename(columns={"name": "subject"})
    return judge_rows(rows, fail_above, verdicts=verdicts, notes=(apart,))


def find_restarts(analysis: Analysis, row: Mapping[str, Any]) -> list[float]:
    """The typical latencies of the restarts of what a row of ``metrics.json`` measured.

    Raises
    ------
    ComparisonError
        It was not measured, or on another clock.
    """
    latencies = pick_timed(analysis.select(analysis.latencies, row["experiment"], row["threads"]))
    if latencies.empty:
        raise ComparisonError(
            f"{row['experiment']} with {count_threads(row['threads'])} was not measured",
            where=analysis.run_dir,
            hint="name what to compare: RUN_DIR:EXPERIMENT",
        )
    if clock_of(latencies) != row["clock"]:
        raise ComparisonError(
            f"the clocks differ: {row['clock']} against {clock_of(latencies)}",
            where=analysis.run_dir,
            hint="measure both with the same runner",
        )
    return typical_restarts(latencies)
