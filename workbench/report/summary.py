"""The JSON files of the workbench: what is in each, as a schema that others can check it with.

The machine-readable artifacts of an analysed run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.analysis.compare import typical_restarts
from workbench.analysis.compat import (
    Analysis,
    check_run,
    grade_quality,
    select_kernels,
    tracer_overhead,
)
from workbench.analysis.quality import summarize_quality
from workbench.analysis.run import MEASUREMENT, Comparison, identify_run
from workbench.analysis.statistics import describe
from workbench.analysis.what_if import rank_bottlenecks
from workbench.frames import (
    ATTRIBUTION,
    BOTTLENECKS,
    COMPARISON,
    KERNEL_EVIDENCE,
    LAYERS,
    SHIFT,
    STATISTICS,
)
from workbench.records.codec import to_document
from workbench.store import METRICS, SUMMARY, atomic_write

#: What an outline has of a comparison.
_OUTLINED = ("label", "baseline", "candidate", "verdict", "latency")


def write_summary(analysis: Analysis, findings: pd.DataFrame) -> Path:
    """Write ``analysis_summary.json``: E2E, categories, operators and comparisons.

    The figures at the top are those of the candidate of the first comparison; ``measurements``
    holds them for every experiment and thread count. ``e2e`` is ``Method::execute`` of the traced
    runs, to whose mean the categories add up; ``latency`` is that of the untraced ones;
    ``findings`` are those of `find_next_steps`.
    """
    subject = analysis.comparisons[0]
    measurements = {
        measured: _write_measurement(analysis, *measured)
        for measured, _ in analysis.operators.groupby(MEASUREMENT, sort=False)
    }
    etdumps = [s for s in analysis.run.sessions if s.complete and s.etdump]
    export = analysis.run.export
    content = {
        "run_dir": _place(analysis.run_dir),
        "model": analysis.run.plan.model,
        "emulated": analysis.run.emulated,
        "etrecord": export.etrecord if export else None,
        "etdump_count": len(etdumps),
        **measurements[subject.pair.candidate, subject.threads],
        "per_etdump": [
            {
                "etdump": session.etdump,
                "experiment": session.experiment,
                "threads": session.threads,
                "process": session.process,
                "e2e": _e2e(_of_session(analysis.ledger, session)),
            }
            for session in etdumps
        ],
        "findings": _list_findings(findings),
        "comparisons": [_write_comparison(comparison) for comparison in analysis.comparisons],
        "ladder": _frame(analysis.ladder),
        "scaling": _frame(analysis.scaling),
        "crossovers": list(analysis.crossovers),
        "kernel_changes": {
            name: _frame(changes) for name, changes in analysis.kernel_changes.items()
        },
        "measurements": list(measurements.values()),
        "checks": check_run(analysis).to_dict("records"),
        "quality": _quality(analysis),
    }
    return atomic_write(analysis.run_dir / SUMMARY, to_document(content))


def write_metrics(analysis: Analysis) -> Path:
    """Write ``metrics.json``: untraced latency, tracer overhead and start-up of everything.

    ``restarts_ms`` has the typical latency of every process, from which a later run is compared
    with this one, on the same ``program``, ``device`` and ``build``.
    """
    run = analysis.run
    content = {
        "unit": "ms",
        "model": run.plan.model,
        **identify_run(run),
        "emulated": run.emulated,
        "started": run.started,
        "floor": analysis.floor,
        "latencies": list(_latencies(analysis)),
    }
    return atomic_write(analysis.run_dir / METRICS, to_document(content))


def _latencies(analysis: Analysis) -> Iterator[dict[str, Any]]:
    overhead = tracer_overhead(analysis)
    controls = {e.name: e.control for e in analysis.run.plan.experiments}
    for row in analysis.statistics.to_dict("records"):
        key = (row["experiment"], row["threads"])
        sessions = [s for s in analysis.run.sessions if (s.experiment, s.threads) == key]
        yield {
            **row,
            "control": controls[row["experiment"]],
            "restarts_ms": typical_restarts(analysis.select(analysis.latencies, *key)),
            "tracer_overhead": overhead.get(key),
            "load_ms": [s.load_ms for s in sessions],
            "startup_ms": [s.startup_ms for s in sessions],
        }


def write_pipeline_summary(analysis: Analysis) -> Path:
    """Write ``<stem>_pipeline_summary.json``: what was exported, run and found, and where it is."""
    run = analysis.run
    content = {
        "model": run.plan.model,
        "verdicts": [comparison.text for comparison in analysis.comparisons],
        "export": asdict(run.export) if run.export else None,
        "run": {
            "dir": _place(analysis.run_dir),
            "state": run.state,
            "platform": run.platform,
            "emulated": run.emulated,
            "host": run.host,
            "runner": run.runner,
            "versions": run.versions,
            "started": run.started,
            "finished": run.finished,
            "plan": asdict(run.plan),
        },
    }
    path = analysis.run_dir / f"{run.plan.stem}_pipeline_summary.json"
    return atomic_write(path, to_document(content))


def outline_run(analysis: Analysis) -> dict[str, Any]:
    """What there is to say first of a run: verdicts with their latencies, and the grade."""
    quality = grade_quality(analysis)
    return {
        "run_dir": analysis.run_dir,
        "model": analysis.run.plan.model,
        "platform": analysis.run.platform,
        "emulated": analysis.run.emulated,
        "comparisons": [
            {name: value for name, value in _write_comparison(c).items() if name in _OUTLINED}
            for c in analysis.comparisons
        ],
        "quality": {"grade": quality["grade"].iloc[0], "summary": summarize_quality(quality)},
    }


def _quality(analysis: Analysis) -> dict[str, Any]:
    quality = grade_quality(analysis)
    return {
        "grade": quality["grade"].iloc[0],
        "summary": summarize_quality(quality),
        "criteria": quality.to_dict("records"),
        "readings": [asdict(reading) for reading in analysis.run.readings],
    }


def _write_measurement(analysis: Analysis, experiment: str, threads: int) -> dict[str, Any]:
    ledger = analysis.select(analysis.ledger, experiment, threads)
    operators = analysis.select(analysis.operators, experiment, threads)
    categories = analysis.select(analysis.categories, experiment, threads)
    statistics = analysis.select(analysis.statistics, experiment, threads)
    kernels = select_kernels(analysis.evidence, experiment, threads)
    layers = analysis.layers
    if layers is not None:
        layers = analysis.select(layers, experiment, threads)
    return {
        "experiment": experiment,
        "threads": threads,
        "latency": {
            **_records(statistics, ["clock", *STATISTICS.names])[0],
        },
        "e2e": _e2e(ledger),
        "bottlenecks": _records(rank_bottlenecks(ledger), BOTTLENECKS.names),
        "category_totals_ms": dict(zip(categories["category"], categories["mean_ms"], strict=True)),
        "operator_details": [
            {
                "name": row["operator"],
                "category": row["category"],
                "family": row["family"],
                "rule": row["rule"],
                "avg_ms": row["mean_ms"] / row["calls"],
                "count": row["calls"],
                "total_ms": row["mean_ms"],
                "share": row["share"],
                **describe_kernel(row, kernels),
                **_layer(row),
                "key": row["key"],
            }
            for row in operators.to_dict("records")
        ],
        "layers": _frame(layers, LAYERS.names),
    }


def _list_findings(findings: pd.DataFrame) -> list[dict[str, Any]]:
    """What to do next; the keys of its evidence as a list."""
    return [{**row, "keys": row["keys"].splitlines()} for row in findings.to_dict("records")]


def _layer(row: dict[str, Any]) -> dict[str, Any]:
    """What is known of an operator's layer; ``layer`` is its path, None where nothing is known."""
    if "confidence" not in row:
        return {"layer": None}
    facts = {name: row[name] for name in ATTRIBUTION.names if name not in ("key", "module")}
    return {"layer": row["module"], **facts}


def describe_kernel(row: dict[str, Any], kernels: pd.DataFrame) -> dict[str, Any]:
    """The microkernel of an operator with its share of the samples; else what its name says."""
    if row["key"] not in kernels.index:
        return {"kernel_hint": kernel_hint(row["operator"]), "kernel_evidence": None}
    kernel = kernels.loc[row["key"]]
    evidence = {name: kernel[name] for name in ("code", "share", "low", "high", "samples")}
    return {"kernel_hint": kernel["function"], "kernel_evidence": evidence}


def kernel_hint(operator: str) -> str | None:
    """What the logged name says of the kernel: layout, types, microkernel.

    Examples
    --------
    >>> kernel_hint("Convolution (NHWC, PF32) IGEMM")
    'NHWC, PF32, IGEMM'
    """
    found = re.fullmatch(r"[^(]+\((?P<types>[^)]+)\)(?: (?P<ukernel>.+))?", operator)
    return ", ".join(part for part in found.groups() if part) if found else None


def _write_comparison(comparison: Comparison) -> dict[str, Any]:
    return {
        "label": comparison.pair.label,
        "baseline": dict(zip(MEASUREMENT, comparison.sides[0], strict=True)),
        "candidate": dict(zip(MEASUREMENT, comparison.sides[1], strict=True)),
        "verdict": comparison.text,
        "code": asdict(comparison.proof) if comparison.proof else None,
        "latency": _records(comparison.latency, COMPARISON.names)[0],
        "categories": _records(comparison.categories, COMPARISON.names),
        "operators": _records(comparison.operators, ["key", *COMPARISON.names]),
        "layers": None
        if comparison.layers is None
        else _records(comparison.layers, COMPARISON.names),
        "shift": _records(comparison.shift, SHIFT.names),
        "kernels": None
        if comparison.kernels is None
        else _records(comparison.kernels, KERNEL_EVIDENCE.names),
    }


def _e2e(ledger: pd.DataFrame) -> dict[str, float]:
    runs = ledger.groupby(["process", "run"], sort=False)["duration_ns"].sum() / 1e6
    return describe(runs.to_numpy())


def _of_session(ledger: pd.DataFrame, session: Any) -> pd.DataFrame:
    keys = ("experiment", "threads", "process")
    chosen = pd.concat([ledger[key] == getattr(session, key) for key in keys], axis=1)
    return ledger[chosen.all(axis=1)]


def _records(frame: pd.DataFrame, columns: list[str]) -> list[dict[str, Any]]:
    return frame[columns].to_dict("records")


def _frame(frame: pd.DataFrame | None, columns: list[str] | None = None) -> list | None:
    return None if frame is None else _records(frame, columns or list(frame.columns))


def _place(run_dir: Path) -> str:
    """The run's folder as ``out_<model>/runs/<platform>``, wherever that lies."""
    return "/".join(run_dir.resolve().parts[-3:])
