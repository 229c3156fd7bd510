"""The files of an analysed run: CSV and JSON, and the report."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.analysis.compare import typical_restarts
from workbench.analysis.quality import summarize_quality
from workbench.analysis.run import Comparison, Measurement, Run, identify_run, open_run
from workbench.analysis.statistics import describe
from workbench.analysis.what_if import rank_bottlenecks
from workbench.frames import ATTRIBUTION, STATISTICS
from workbench.records.codec import to_document
from workbench.records.documents import (
    AnalysisSummary,
    Check,
    ComparisonOutline,
    ComparisonSummary,
    KernelShare,
    MeasurementSummary,
    Metrics,
    PipelineRun,
    PipelineSummary,
    QualityOutline,
    QualitySummary,
    Row,
    Rows,
    RunOutline,
    Side,
    TraceSummary,
)
from workbench.store import METRICS, REPORT_HTML, REPORT_MD, SUMMARY, atomic_write
from workbench.trace.writers.csv_parquet import write_csvs

#: The notebook that every report is.
REPORT_NOTEBOOK = "12_report"


def make_report(run: Run | str | Path) -> tuple[Path, Path]:
    """Write ``report.html`` and ``report.md`` of a run: the notebook ``12_report`` without code.

    Its brief sections become ``<stem>_pipeline_summary.md``.

    Parameters
    ----------
    run
        A run, or its folder.

    Returns
    -------
    tuple of Path
        The page and the Markdown.

    Examples
    --------
    >>> import shutil, tempfile
    >>> folder = shutil.copytree(wb.sample_run("toy_cnn"), tempfile.mkdtemp() + "/run")
    >>> [path.name for path in wb.make_report(folder)]
    ['report.html', 'report.md']
    """
    from workbench.report.html import to_html, to_markdown
    from workbench.report.notebooks import run_notebook

    run = open_run(run)
    # The title takes the place of the notebook's.
    first, *others = run_notebook(REPORT_NOTEBOOK, run_dir=run)
    sections = [replace(first, heading=""), *others]
    stem, title = run.record.plan.stem, f"{run.record.plan.stem}: where the time goes"
    brief = [section for section in sections if section.brief]
    atomic_write(run.path / f"{stem}_pipeline_summary.md", to_markdown(title, brief))
    return (
        atomic_write(run.path / REPORT_HTML, to_html(title, sections)),
        atomic_write(run.path / REPORT_MD, to_markdown(title, sections)),
    )


def write_artifacts(run: Run) -> list[Path]:
    """Write the CSV and JSON files of a run; returns their paths.

    The CSV files are those of the first process of each measurement.
    """
    tables = [path for m in run.measurements if m.sessions for path in _write_csvs(m)]
    return [*tables, *write_documents(run)]


def _write_csvs(measurement: Measurement) -> list[Path]:
    run, export = measurement.run, measurement.run.record.export
    return write_csvs(
        measurement.events,
        run.path / measurement.sessions[0].etdump,
        model_id=run.model,
        delegate_backend=", ".join(export.delegates) if export else "",
    )


def write_documents(run: Run) -> list[Path]:
    """Write ``metrics.json``, ``analysis_summary.json`` and the pipeline summary of a run."""
    documents = {
        METRICS: summarize_metrics(run),
        SUMMARY: summarize_analysis(run),
        f"{run.record.plan.stem}_pipeline_summary.json": summarize_pipeline(run),
    }
    return [
        atomic_write(run.path / name, to_document(record)) for name, record in documents.items()
    ]


def summarize_metrics(run: Run) -> Metrics:
    """The latencies of a run; ``restarts_ms`` has the typical one of every process."""
    identity = identify_run(run.record)
    return Metrics(
        model=run.model,
        program=identity["program"],
        device=identity["device"],
        build=identity["build"],
        emulated=run.emulated,
        started=run.record.started,
        floor=run.floor,
        latencies=tuple(_latency(measurement) for measurement in run.measurements),
    )


def _latency(measurement: Measurement) -> Row:
    key = (measurement.name, measurement.threads)
    sessions = [s for s in measurement.run.record.sessions if (s.experiment, s.threads) == key]
    return {
        **_rows(measurement.statistics)[0],
        "control": measurement.control,
        "restarts_ms": typical_restarts(measurement.latencies),
        "tracer_overhead": measurement.run.tracer_overhead.get(key),
        "load_ms": [s.load_ms for s in sessions],
        "startup_ms": [s.startup_ms for s in sessions],
    }


def summarize_analysis(run: Run) -> AnalysisSummary:
    """All that a run shows; the figures at the top are those of its subject."""
    measurements = {m: _measurement(m) for m in run.measurements if m.sessions}
    traces = [
        TraceSummary(s.etdump, s.experiment, s.threads, s.process, _e2e(m.ledger, s.process))
        for m in measurements
        for s in m.sessions
    ]
    export = run.record.export
    return AnalysisSummary(
        **vars(measurements[run.subject]),
        run_dir=_folder(run.path),
        model=run.model,
        emulated=run.emulated,
        etrecord=export.etrecord if export else None,
        etdump_count=len(traces),
        per_etdump=tuple(traces),
        findings=tuple({**row, "keys": row["keys"].splitlines()} for row in _rows(run.findings)),
        comparisons=tuple(_comparison(comparison) for comparison in run.comparisons),
        ladder=_optional(run.isa_levels),
        scaling=_optional(run.scaling),
        crossovers=run.crossovers,
        kernel_changes={name: _rows(changes) for name, changes in run.kernel_changes.items()},
        measurements=tuple(measurements.values()),
        checks=tuple(Check(**row) for row in run.checks.to_dict("records")),
        quality=QualitySummary(
            **vars(_quality(run)), criteria=_rows(run.quality), readings=run.record.readings
        ),
    )


def summarize_pipeline(run: Run) -> PipelineSummary:
    """The verdicts of a run, with what was exported and measured, and where it is."""
    record = run.record
    return PipelineSummary(
        model=run.model,
        verdicts=tuple(comparison.text for comparison in run.comparisons),
        export=record.export,
        run=PipelineRun(
            dir=_folder(run.path),
            state=record.state,
            platform=record.platform,
            emulated=record.emulated,
            host=record.host,
            runner=record.runner,
            versions=record.versions,
            started=record.started,
            finished=record.finished,
            plan=record.plan,
        ),
    )


def outline_run(run: Run) -> RunOutline:
    """The verdicts of a run with their latencies, and its grade."""
    return RunOutline(
        run_dir=str(run.path),
        model=run.model,
        platform=run.record.platform,
        emulated=run.emulated,
        comparisons=tuple(_outline(comparison) for comparison in run.comparisons),
        quality=_quality(run),
    )


def _quality(run: Run) -> QualityOutline:
    return QualityOutline(run.quality["grade"].iloc[0], summarize_quality(run.quality))


def _measurement(measurement: Measurement) -> MeasurementSummary:
    categories = measurement.categories
    return MeasurementSummary(
        experiment=measurement.name,
        threads=measurement.threads,
        latency=_rows(measurement.statistics[["clock", *STATISTICS.names]])[0],
        e2e=_e2e(measurement.ledger),
        bottlenecks=_rows(rank_bottlenecks(measurement.ledger)),
        category_totals_ms=dict(zip(categories["category"], categories["mean_ms"], strict=True)),
        operator_details=tuple(
            {
                **{name: row.get(name) for name in ATTRIBUTION.names if name != "module"},
                "name": row["operator"],
                "category": row["category"],
                "family": row["family"],
                "rule": row["rule"],
                "avg_ms": row["mean_ms"] / row["calls"],
                "count": row["calls"],
                "total_ms": row["mean_ms"],
                "share": row["share"],
                **describe_kernel(row, measurement.kernels),
                "layer": row.get("module"),
            }
            for row in _rows(measurement.operators)
        ),
        layers=_optional(measurement.layers),
    )


def describe_kernel(row: Row, kernels: pd.DataFrame) -> dict[str, Any]:
    """The microkernel of an operator with its share of the samples, or what its name tells."""
    if row["key"] not in kernels.index:
        return {"kernel_hint": kernel_hint(row["operator"]), "kernel_evidence": None}
    kernel = kernels.loc[row["key"]]
    evidence = {name: kernel[name] for name in ("code", "share", "low", "high", "samples")}
    return {"kernel_hint": kernel["function"], "kernel_evidence": KernelShare(**evidence)}


def kernel_hint(operator: str) -> str | None:
    """Layout, types and microkernel in a logged name.

    Examples
    --------
    >>> kernel_hint("Convolution (NHWC, PF32) IGEMM")
    'NHWC, PF32, IGEMM'
    """
    found = re.fullmatch(r"[^(]+\((?P<types>[^)]+)\)(?: (?P<ukernel>.+))?", operator)
    return ", ".join(part for part in found.groups() if part) if found else None


def _outline(comparison: Comparison) -> ComparisonOutline:
    before, after = comparison.baseline, comparison.candidate
    return ComparisonOutline(
        label=comparison.label,
        baseline=Side(before.name, before.threads),
        candidate=Side(after.name, after.threads),
        verdict=comparison.text,
        latency=_rows(comparison.latency)[0],
    )


def _comparison(comparison: Comparison) -> ComparisonSummary:
    return ComparisonSummary(
        **vars(_outline(comparison)),
        code=comparison.proof,
        categories=_rows(comparison.categories),
        operators=_rows(comparison.operators),
        layers=_optional(comparison.layers),
        shift=_rows(comparison.shift),
        kernels=_optional(comparison.kernels),
    )


def _e2e(ledger: pd.DataFrame, process: int | None = None) -> Row:
    """Statistics of ``Method::execute`` in the traced runs, of one process or of all."""
    ledger = ledger if process is None else ledger[ledger["process"] == process]
    runs = ledger.groupby(["process", "run"], sort=False)["duration_ns"].sum() / 1e6
    return describe(runs.to_numpy())


def _rows(frame: pd.DataFrame) -> Rows:
    return tuple(frame.to_dict("records"))


def _optional(frame: pd.DataFrame | None) -> Rows | None:
    return None if frame is None else _rows(frame)


def _folder(run_dir: Path) -> str:
    """The run's folder as ``out_<model>/runs/<platform>``."""
    return "/".join(run_dir.resolve().parts[-3:])
