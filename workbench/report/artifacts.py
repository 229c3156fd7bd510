"""The files of an analysed run: CSV and JSON, and the report."""

import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from workbench import plugin
from workbench.analysis.describe import describe_latency, identify_run
from workbench.analysis.findings.text import to_record
from workbench.analysis.ledger import TRACING
from workbench.analysis.open import open_run
from workbench.analysis.quality import Row
from workbench.analysis.run import Comparison, Measurement, Run
from workbench.analysis.statistics import pick_timed, summarize_times
from workbench.frames import ATTRIBUTION, STATISTICS
from workbench.plots.tables import to_markdown
from workbench.records.codec import to_document, to_plain
from workbench.records.runs import kit_result
from workbench.store import (
    METRICS,
    REPORT_MD,
    SUMMARY,
    artifacts_dir,
    atomic_write,
    kept_layers,
    load_layers,
    sha256_of,
)

Document = dict[str, Any]
#: Rows of a timeline, which take about 110 bytes each.
MOST_ROWS = 20_000
#: What the pipeline summary has of a run's record.
_RUN_FIELDS = (
    *("state", "platform", "emulated", "host", "runner", "versions"),
    *("started", "finished", "plan"),
)


def write_pages(run: Run) -> list[str]:
    """Write the pages of a run that plug-ins add beside its report; returns their names."""
    pages = {name: page for name, page in run.list_shown("page").items() if page}
    for name, page in pages.items():
        atomic_write(run.output / name, page)
    return [*pages]


def finish_report(names: dict[str, Any]) -> None:
    """Write the pages of the run that a notebook shows, and display what all is called."""
    from IPython.display import display

    path = Path(names["run_dir"])
    runs = (value for value in names.values() if isinstance(value, Run))
    run = next((run for run in runs if run.path == path), None) or open_run(path)
    programs = ", ".join(program.stem for program in run.record.plan.all_programs)
    title = " and ".join(dict.fromkeys(p.model for p in run.record.plan.all_programs))
    title = run.record.plan.label or title
    names = {"programs": programs, "title": title, "stem": run.record.plan.stem}
    display({"application/json": names | {"pages": write_pages(run)}}, raw=True)


def write_artifacts(run: Run, *, whole: bool = False) -> list[Path]:
    """Write the JSON files of a run, and the CSV files beside each measurement's first trace.

    A plug-in writes the latter. Timelines are of the first inferences of each restart, in
    `MOST_ROWS` rows; if ``whole``, of all. A manifest alone has none of them.
    """
    if not run.traced:
        return []
    write_csvs = plugin.find("attributes", "workbench.write_csvs")
    tables = [
        write_csvs(
            m.read_processes(),
            run.output / m.sessions[0].etdump,
            model_id=m.program.model,
            delegate_backend=", ".join(m.export.delegates) if m.export else "",
            rows=None if whole else MOST_ROWS // len(m.sessions),
        )
        for m in run.measurements
        if m.sessions and write_csvs
    ]
    return [*itertools.chain(*tables), *write_documents(run)]


def list_artifacts(run: Run) -> list[Path]:
    """What `write_artifacts` writes last: if it is there, all is."""
    names = (METRICS, SUMMARY, f"{run.record.plan.stem}_pipeline_summary.json")
    return [run.output / name for name in names]


def write_documents(run: Run) -> list[Path]:
    """Write ``metrics.json``, ``analysis_summary.json`` and the pipeline summary of a run.

    That in Markdown is the report's, once there is one.
    """
    documents = {
        METRICS: summarize_metrics(run),
        SUMMARY: summarize_analysis(run),
        f"{run.record.plan.stem}_pipeline_summary.json": summarize_pipeline(run),
    }
    texts = {name: to_document(content) for name, content in documents.items()}
    if not (run.output / REPORT_MD).is_file():
        texts[f"{run.record.plan.stem}_pipeline_summary.md"] = _summarize_briefly(run)
    return [atomic_write(run.output / name, text) for name, text in texts.items()]


def check_run(run: Run) -> pd.DataFrame:
    """The checks of a run, and whether the programs and layers beside it are those that ran.

    Of a manifest alone, the latter.
    """
    programs = pd.DataFrame(_check_programs(run), columns=["check", "status", "evidence"])
    return pd.concat([run.checks, programs], ignore_index=True) if run.traced else programs


def _check_programs(run: Run) -> Iterator[Row]:
    programs = run.record.plan.all_programs if run.recording is None else ()
    for program in programs:
        pte = artifacts_dir(run.path.parent.parent) / Path(program.pte).name
        # Of another size or dtype, a file of one name may be there again.
        hashes = [each.sha256 for each in programs if Path(each.pte).name == pte.name]
        if pte.is_file() and sha256_of(pte) not in hashes:
            yield pte.name, "fail", "is not the program that ran (SHA-256)"
        layers = kept_layers(run.path, program.name)
        if layers.exists() and load_layers(layers, program.sha256) is None:
            yield layers.name, "fail", "is of another program"


def _summarize_briefly(run: Run) -> str:
    latencies = [] if run.emulated else run.measurements
    facts = [" · ".join(run.facts), *(ab.text for ab in run.comparisons)]
    facts += [f"{m.label}: {describe_latency(m.statistics)}" for m in latencies]
    facts += [f"Note: {note.text}" for note in run.notes]
    lines = [f"# {run.label or run.record.plan.stem}", *facts]
    lines += [f"Caveat: {text}" for text in run.caveats]
    return "\n\n".join(map(to_markdown, lines)) + "\n"


def summarize_metrics(run: Run) -> Document:
    """The latencies of a run; ``restarts_ms`` has the typical one of every process."""
    return {
        **identify_run(run.record).axes,
        "model": run.model,
        "emulated": run.emulated,
        "started": run.record.started,
        "floor": run.noise_floor,
        "latencies": list(map(_latency, run.measurements)),
        "unit": "ms",
        "problem": run.wrong,
        "results": list(map(_kit_result, run.measurements)),
    }


def _latency(measurement: Measurement) -> Document:
    key = (measurement.name, measurement.threads)
    sessions = [s for s in measurement.run.record.sessions if (s.experiment, s.threads) == key]
    return {
        **measurement.statistics.to_dict("records")[0],
        "control": measurement.control,
        "restarts_ms": measurement.restarts.to_list(),
        "tracer_overhead": measurement.run.tracer_overhead.get(key),
        "load_clock": "wall_ns",  # of the next two
        "load_ms": [s.load_ms for s in sessions if s.load_ms],
        "startup_ms": [s.startup_ms for s in sessions if s.startup_ms],
        "resources": [
            {"resource": resource, "unit": unit, "values": values.to_list()}
            for resource, (unit, values) in measurement.needs.items()
        ],
    }


def _kit_result(measurement: Measurement) -> Document:
    timed, clock = pick_timed(measurement.latencies), measurement.clock
    times_ms = (timed[clock].to_numpy() / 1e6).tolist()
    first = measurement.sessions[0] if measurement.sessions else None
    name, threads = measurement.name, measurement.threads
    return kit_result(name, threads, len(times_ms), first, times_ms, clock)


def summarize_analysis(run: Run) -> Document:
    """All that a run shows; the figures at the top are those of its subject."""
    measurements = {m: _measurement(m) for m in run.measurements if m.sessions}
    times = {m: _sum_runs(m.traced_rows("kind")) for m in measurements}
    traces = [
        {
            "etdump": session.etdump,
            "experiment": m.name,
            "threads": m.threads,
            "process": session.process,
            "e2e": {"clock": "wall_ns", **_e2e(times[m], session.process)},
        }
        for m in measurements
        for session in m.sessions
    ]
    pte, export = Path(run.subject.program.pte), run.subject.export
    places = (pte.parent, artifacts_dir(run.path.parent.parent))
    record = export.etrecord if export else ""
    findings = [to_record(each, rank) for rank, each in enumerate(run.opportunities, 1)]
    return {
        **measurements[run.subject],
        "run_dir": _folder(run.path),
        "model": run.model,
        "emulated": run.emulated,
        "etrecord": record if record and any((p / record).is_file() for p in places) else None,
        "etdump_count": len(traces),
        "per_etdump": traces,
        "findings": findings,
        "comparisons": list(map(_comparison, run.comparisons)),
        "phases": run.phases,
        "measurements": list(measurements.values()),
        "checks": run.checks,
        "categories": run.scheme.label,
        "quality": _quality(run) | {"criteria": run.quality, "readings": run.record.readings},
        **run.list_shown("summary"),
    }


def summarize_pipeline(run: Run) -> Document:
    """The verdicts of a run, with what was exported and measured, and where it is."""
    shared = {name: getattr(run.record, name) for name in _RUN_FIELDS}
    return {
        "model": run.model,
        "verdicts": [comparison.text for comparison in run.comparisons],
        "export": run.record.export,
        "run": {"dir": _folder(run.path), **shared},
    }


def outline_run(run: Run) -> Document:
    """The verdicts of a run with their latencies, and its grade."""
    return {
        "run_dir": str(run.path),
        "model": run.model,
        "platform": run.record.platform,
        "emulated": run.emulated,
        "comparisons": list(map(_outline, run.comparisons)),
        "quality": _quality(run),
    }


def _quality(run: Run) -> Document:
    return {"grade": run.quality["grade"].iloc[0], "summary": run.grade}


def _measurement(measurement: Measurement) -> Document:
    categories = measurement.categories
    return {
        "experiment": measurement.name,
        "threads": measurement.threads,
        "latency": measurement.statistics[["clock", *STATISTICS.names]].to_dict("records")[0],
        "category_totals_ms": categories.set_index("category")["mean_ms"].to_dict(),
        "operator_details": [
            {
                **{name: row.get(name) for name in ATTRIBUTION.names if name != "module"},
                **{name: row[name] for name in ("category", "family", "rule", "share")},
                "name": row["operator"],
                "avg_ms": row["mean_ms"] / row["calls"],
                "count": row["calls"],
                "total_ms": row["mean_ms"],
                **find_evidence(row, measurement.kernels),
                "layer": row.get("module"),
            }
            for row in to_plain(measurement.operators)
        ],
        "layers": measurement.layers,
        "use": sorted(measurement.use.uses),
        "busy": measurement.use.busy,
        "taken_by_others": measurement.use.taken,
        "share_error": measurement.use.off,
        "kind_totals_ms": measurement.operators.groupby("kind")["mean_ms"].sum().to_dict()
        | ({TRACING: measurement.times.tracing_ms} if measurement.times.tracing_ms else {}),
    }


def find_evidence(row: Document, kernels: pd.DataFrame) -> Document:
    """The microkernel of an operator with its share of the samples, or what its name tells."""
    if row["key"] not in kernels.index:
        # Layout, types and microkernel of an operator such as ``Convolution (NHWC, PF32) IGEMM``.
        match = re.fullmatch(r"[^(]+\(([^)]+)\)(?: (.+))?", row["operator"])
        hint = ", ".join(filter(None, match.groups())) if match else None
        return {"kernel_hint": hint, "kernel_evidence": None}
    kernel = kernels.loc[row["key"]]
    evidence = kernel[["code", "share", "low", "high", "samples"]].to_dict()
    return {"kernel_hint": kernel["function"], "kernel_evidence": evidence}


def _outline(comparison: Comparison) -> Document:
    sides = {"baseline": comparison.baseline, "candidate": comparison.candidate}
    return {
        "label": comparison.label,
        **{side: {"experiment": m.name, "threads": m.threads} for side, m in sides.items()},
        "verdict": comparison.text,
        "latency": comparison.latency.to_dict("records")[0],
    }


def _comparison(comparison: Comparison) -> Document:
    parts = ("categories", "operators", "layers", "shift", "kernels")
    frames = {name: getattr(comparison, name) for name in parts}
    return _outline(comparison) | {"code": comparison.proof, **frames}


def _sum_runs(ledger: pd.DataFrame) -> pd.Series:
    """The time of every traced inference in ms."""
    return ledger.groupby(["process", "run"], sort=False)["duration_ns"].sum() / 1e6


def _e2e(times: pd.Series, process: int) -> Mapping[str, Any]:
    """Statistics of ``Method::execute`` in the traced runs of a process, as traced."""
    processes = times.index.get_level_values("process").to_numpy()
    is_chosen = processes == process
    return summarize_times(times.to_numpy()[is_chosen], processes[is_chosen])


def _folder(run_dir: Path) -> str:
    """The run's folder as ``out_<model>/runs/<name>``."""
    return "/".join(run_dir.resolve().parts[-3:])
