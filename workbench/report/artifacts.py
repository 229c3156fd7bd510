"""The files of an analysed run: CSV and JSON, and the report."""

import itertools
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from IPython.display import display

from workbench.analysis.describe import identify_run
from workbench.analysis.open import open_run
from workbench.analysis.quality import summarize_quality
from workbench.analysis.run import Comparison, Measurement, Run
from workbench.analysis.statistics import describe, pick_timed, restart_latencies
from workbench.analysis.what_if import rank_bottlenecks
from workbench.explorer.page import explorer_page
from workbench.frames import ATTRIBUTION, STATISTICS
from workbench.records import documents
from workbench.records.codec import to_document
from workbench.records.documents import Row, Rows
from workbench.records.runs import KitMetrics, KitResult
from workbench.store import (
    EXPLORER_HTML,
    METRICS,
    SUMMARY,
    artifacts_dir,
    atomic_write,
)
from workbench.trace.writers import write_csvs
from workbench.trace.xnn_log import read_xnn_log


def write_explorer(names: dict[str, Any]) -> None:
    """Write ``explore.html`` of the run that a notebook shows, and display what it is called."""
    path = Path(names["run_dir"])
    opened = (value for value in names.values() if isinstance(value, Run))
    run = next((run for run in opened if run.path == path), None) or open_run(path)
    atomic_write(run.output / EXPLORER_HTML, explorer_page(run))
    programs = ", ".join(program.stem for program in run.record.plan.all_programs)
    title = {"programs": programs, "stem": run.record.plan.stem}
    display({"application/json": title}, raw=True)


def write_artifacts(run: Run) -> list[Path]:
    """Write the JSON files of a run and the CSV files of each measurement's first process.

    A run of kernel logs alone gets a CSV file of each.
    """
    if not run.traced:
        logs = [run.locate(s.log) for s in run.record.sessions if s.log]
        return [
            atomic_write(
                log.with_name(f"{log.stem}_kernels.csv"), read_xnn_log(log).to_csv(index=False)
            )
            for log in logs
        ]
    tables = [
        write_csvs(
            m.events,
            run.output / m.sessions[0].etdump,
            model_id=m.program.model,
            delegate_backend=", ".join(m.export.delegates) if m.export else "",
        )
        for m in run.measurements
        if m.sessions
    ]
    return [*itertools.chain(*tables), *write_documents(run)]


def write_documents(run: Run) -> list[Path]:
    """Write ``metrics.json``, ``analysis_summary.json`` and the pipeline summary of a run."""
    return [atomic_write(run.output / name, text) for name, text in summarize_run(run).items()]


def summarize_run(run: Run) -> dict[str, str]:
    """The JSON files of a run: their texts by name."""
    records = {
        METRICS: summarize_metrics(run),
        SUMMARY: summarize_analysis(run),
        f"{run.record.plan.stem}_pipeline_summary.json": summarize_pipeline(run),
    }
    return {name: to_document(record) for name, record in records.items()}


def summarize_metrics(run: Run) -> documents.Metrics:
    """The latencies of a run; ``restarts_ms`` has the typical one of every process."""
    identity = identify_run(run.record)
    return documents.Metrics(
        model=run.model,
        program=identity["program"],
        device=identity["device"],
        build=identity["build"],
        emulated=run.emulated,
        started=run.record.started,
        floor=run.noise_floor,
        latencies=tuple(map(_latency, run.measurements)),
        problem=run.wrong,
        results=tuple(map(_kit_result, run.measurements)),
        programs={
            m.name: identify_run(run.record, m.program)["program"]
            for m in run.measurements
            if m.program.name
        },
    )


def _latency(measurement: Measurement) -> Row:
    key = (measurement.name, measurement.threads)
    sessions = [s for s in measurement.run.record.sessions if (s.experiment, s.threads) == key]
    return {
        **_rows(measurement.statistics)[0],
        "control": measurement.control,
        "restarts_ms": restart_latencies(measurement.latencies).to_list(),
        "tracer_overhead": measurement.run.tracer_overhead.get(key),
        "load_ms": [s.load_ms for s in sessions if s.load_ms],
        "startup_ms": [s.startup_ms for s in sessions if s.startup_ms],
    }


def _kit_result(measurement: Measurement) -> KitResult:
    wall_ms = pick_timed(measurement.latencies)["wall_ns"].to_numpy() / 1e6
    first = measurement.sessions[0] if measurement.sessions else None
    return KitResult(
        measurement.name,
        KitMetrics(
            threads=measurement.threads,
            runs=len(wall_ms),
            etdump=first.etdump if first else "",
            log=first.log if first else "",
            latency_ms=tuple(wall_ms.tolist()),
            median_ms=float(np.median(wall_ms)),
            min_ms=float(wall_ms.min()),
            max_ms=float(wall_ms.max()),
        ),
    )


def summarize_analysis(run: Run) -> documents.AnalysisSummary:
    """All that a run shows; the figures at the top are those of its subject."""
    measurements = {m: _measurement(m) for m in run.measurements if m.sessions}
    traces = [
        documents.TraceSummary(s.etdump, m.name, m.threads, s.process, _e2e(m.ledger, s.process))
        for m in measurements
        for s in m.sessions
    ]
    pte, export = Path(run.subject.program.pte), run.subject.export
    places = (pte.parent, artifacts_dir(run.path.parent.parent))
    record = export.etrecord if export else ""
    return documents.AnalysisSummary(
        **vars(measurements[run.subject]),
        run_dir=_folder(run.path),
        model=run.model,
        emulated=run.emulated,
        etrecord=record if record and any((p / record).is_file() for p in places) else None,
        etdump_count=len(traces),
        per_etdump=tuple(traces),
        findings=tuple({**row, "keys": row["keys"].splitlines()} for row in _rows(run.findings)),
        comparisons=tuple(map(_comparison, run.comparisons)),
        ladder=_optional(run.isa_levels),
        scaling=_optional(run.scaling),
        phases=_optional(run.phases),
        size_fits=_optional(run.size_fits),
        crossovers=run.crossovers,
        kernel_changes={name: _rows(changes) for name, changes in run.kernel_changes.items()},
        measurements=tuple(measurements.values()),
        checks=tuple(documents.CheckSummary(**row) for row in run.checks.to_dict("records")),
        categories=run.scheme.label,
        quality=documents.QualitySummary(
            **vars(_quality(run)), criteria=_rows(run.quality), readings=run.record.readings
        ),
    )


def summarize_pipeline(run: Run) -> documents.PipelineSummary:
    """The verdicts of a run, with what was exported and measured, and where it is."""
    known = {entry.name for entry in fields(documents.PipelineRun)}
    shared = {name: value for name, value in vars(run.record).items() if name in known}
    return documents.PipelineSummary(
        model=run.model,
        verdicts=tuple(comparison.text for comparison in run.comparisons),
        export=run.record.export,
        run=documents.PipelineRun(dir=_folder(run.path), **shared),
    )


def outline_run(run: Run) -> documents.RunOutline:
    """The verdicts of a run with their latencies, and its grade."""
    return documents.RunOutline(
        run_dir=str(run.path),
        model=run.model,
        platform=run.record.platform,
        emulated=run.emulated,
        comparisons=tuple(map(_outline, run.comparisons)),
        quality=_quality(run),
    )


def _quality(run: Run) -> documents.QualityOutline:
    return documents.QualityOutline(run.quality["grade"].iloc[0], summarize_quality(run.quality))


def _measurement(measurement: Measurement) -> documents.MeasurementSummary:
    categories = measurement.categories
    return documents.MeasurementSummary(
        experiment=measurement.name,
        threads=measurement.threads,
        latency=_rows(measurement.statistics[["clock", *STATISTICS.names]])[0],
        e2e=_e2e(measurement.ledger),
        bottlenecks=_rows(rank_bottlenecks(measurement.ledger)),
        category_totals_ms=dict(zip(categories["category"], categories["mean_ms"], strict=True)),
        operator_details=tuple(
            {
                **{name: row.get(name) for name in ATTRIBUTION.names if name != "module"},
                **{name: row[name] for name in ("category", "family", "rule", "share")},
                "name": row["operator"],
                "avg_ms": row["mean_ms"] / row["calls"],
                "count": row["calls"],
                "total_ms": row["mean_ms"],
                **describe_kernel(row, measurement.kernels),
                "layer": row.get("module"),
            }
            for row in _rows(measurement.operators)
        ),
        layers=_optional(measurement.layers),
        layer_types=_optional(measurement.layer_types),
        kind_totals_ms=measurement.operators.groupby("kind")["mean_ms"].sum().to_dict(),
    )


def describe_kernel(row: Row, kernels: pd.DataFrame) -> dict[str, Any]:
    """The microkernel of an operator with its share of the samples, or what its name tells."""
    if row["key"] not in kernels.index:
        # Layout, types and microkernel of an operator such as ``Convolution (NHWC, PF32) IGEMM``.
        found = re.fullmatch(r"[^(]+\(([^)]+)\)(?: (.+))?", row["operator"])
        hint = ", ".join(filter(None, found.groups())) if found else None
        return {"kernel_hint": hint, "kernel_evidence": None}
    kernel = kernels.loc[row["key"]]
    evidence = {name: kernel[name] for name in ("code", "share", "low", "high", "samples")}
    return {"kernel_hint": kernel["function"], "kernel_evidence": documents.KernelShare(**evidence)}


def _outline(comparison: Comparison) -> documents.ComparisonOutline:
    before, after = comparison.baseline, comparison.candidate
    return documents.ComparisonOutline(
        label=comparison.label,
        baseline=documents.SideSummary(before.name, before.threads),
        candidate=documents.SideSummary(after.name, after.threads),
        verdict=comparison.text,
        latency=_rows(comparison.latency)[0],
    )


def _comparison(comparison: Comparison) -> documents.ComparisonSummary:
    return documents.ComparisonSummary(
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
    return describe(runs.to_numpy(), runs.index.get_level_values("process"))


def _rows(frame: pd.DataFrame) -> Rows:
    return tuple(frame.to_dict("records"))


def _optional(frame: pd.DataFrame | None) -> Rows | None:
    return None if frame is None else _rows(frame)


def _folder(run_dir: Path) -> str:
    """The run's folder as ``out_<model>/runs/<name>``."""
    return "/".join(run_dir.resolve().parts[-3:])
