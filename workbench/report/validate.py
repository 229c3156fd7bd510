"""Whether the artifacts of a run are all there, whole, and say the same."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from workbench.analysis.compat import Analysis, analyze_run, check_run
from workbench.analysis.ledger import build_ledger
from workbench.analysis.run import MEASUREMENT
from workbench.errors import StoreError, WorkbenchError
from workbench.records.codec import from_json
from workbench.records.documents import read_document
from workbench.records.runs import RunRecord
from workbench.store import (
    LAYERS,
    MANIFEST,
    METRICS,
    REPORT_MD,
    SUMMARY,
    inside,
    load_layers,
    sha256_of,
)
from workbench.trace.etdump import read_etdump

#: Shares of categories may differ by this much from those of a known good run.
SHARE_TOLERANCE = 0.05
#: Relative error that writing a figure to JSON and reading it may bring.
ROUNDING = 1e-9
#: Parts of ``out_<model>/artifacts`` that a program is looked for in, from the run's folder.
PROGRAM = Path("..") / ".." / "artifacts"
#: CSV files beside the first ETDump of every experiment.
TABLES = ("_all_runs_timeline.csv", "_run0_timeline.csv", "_ops_stats.csv")

Row = tuple[str, str, str]


def validate_run(
    run_dir: str | Path | Analysis, known_good: str | Path | None = None
) -> pd.DataFrame:
    """Check that a run is complete, that its files fit together, and that it is like another.

    A folder without our manifest is looked at trace by trace, as the kit of the learning path and
    other tools leave them.

    Parameters
    ----------
    run_dir
        A run's folder.
    known_good
        Another run of the same program: the same operators and, within
        :data:`SHARE_TOLERANCE`, the same shares of categories are wanted.

    Returns
    -------
    DataFrame
        ``check``, ``status`` (``ok``, ``note`` or ``fail``), ``evidence``.

    Raises
    ------
    UsageError, StoreError
        There is nothing to check, or the known good run cannot be read.
    """
    opened = run_dir if isinstance(run_dir, Analysis) else None
    run_dir = opened.path if opened else Path(run_dir)
    if not (run_dir / MANIFEST).is_file() or not _is_ours(run_dir):
        rows = list(_foreign(run_dir))
        if not rows:
            raise StoreError("neither a manifest nor an ETDump here", where=run_dir)
        return _table(rows)
    rows = [*_attempt(_manifest, run_dir)]
    try:
        analysis = opened or analyze_run(run_dir)
        analysis.checks  # noqa: B018  (reads every trace)
    except WorkbenchError as error:
        return _table([*rows, ("run can be analysed", "fail", str(error))])
    rows += [*_traces(analysis), *_artifacts(analysis)]
    for look in (_summary, _metrics, _pipeline):
        rows += _attempt(look, analysis)
    rows += [*_program(analysis), *check_run(analysis).itertuples(index=False, name=None)]
    if known_good is not None:
        rows += _like(analysis, analyze_run(known_good))
    return _table(rows)


def _table(rows: list[Row]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["check", "status", "evidence"])


def _row(check: str, failures: list[str], evidence: str) -> Row:
    shown = "; ".join(failures[:3]) + (f"; {len(failures) - 3} more" if failures[3:] else "")
    return (check, "fail", shown) if failures else (check, "ok", evidence)


def _attempt(check: Callable[[Any], Iterator[Row]], subject: Any) -> Iterator[Row]:
    """The rows of a check; one that fails where it cannot be done."""
    try:
        yield from check(subject)
    except WorkbenchError as error:
        yield f"{check.__name__.strip('_')} can be read", "fail", str(error)


def _is_ours(run_dir: Path) -> bool:
    """Whether a manifest is one of the workbench, which says so by its plan."""
    try:
        content = json.loads((run_dir / MANIFEST).read_bytes())
    except (ValueError, RecursionError):
        return True  # to be told what is wrong with it
    return not isinstance(content, dict) or "plan" in content


def _manifest(run_dir: Path) -> Iterator[Row]:
    run = from_json(RunRecord, (run_dir / MANIFEST).read_bytes(), run_dir / MANIFEST)
    yield "manifest", "ok", f"schema version {run.schema_version}, {len(run.sessions)} sessions"


def _traces(analysis: Analysis) -> Iterator[Row]:
    """Every ETDump is read anew: its ledger closes, and no run is missing."""
    failures, runs = [], 0
    for session in analysis.run.sessions:
        if not (session.complete and session.etdump):
            continue
        path = inside(analysis.run_dir, session.etdump)
        try:
            found = _open_runs(path)
        except WorkbenchError as error:
            failures.append(str(error))
            continue
        wanted = sum(len(batch.wall_ns) for batch in session.batches)
        if len(found) != wanted:
            failures.append(f"{session.etdump}: {len(found)} runs, the manifest has {wanted}")
        if not found.all():
            failures.append(f"{session.etdump}: {np.count_nonzero(~found)} runs do not add up")
        runs += len(found)
    yield _row("every trace closes", failures, f"{runs} runs, rows sum to Method::execute")


def _open_runs(path: Path) -> np.ndarray:
    """For every run of a trace whether the rows of its ledger sum to ``Method::execute``."""
    events = read_etdump(path)
    methods = events[(events["kind"] == "method") & (events["run"] >= 0)]
    sums = build_ledger(events).groupby("run")["duration_ns"].sum()
    executes = methods.set_index("run")["duration_ns"]
    return (sums.reindex(executes.index) == executes).to_numpy()


def _artifacts(analysis: Analysis) -> Iterator[Row]:
    """Everything that can be made anew is there."""
    run, run_dir = analysis.run, analysis.run_dir
    stem = run.plan.stem
    wanted = [METRICS, SUMMARY, REPORT_MD]
    wanted += [f"{stem}_pipeline_summary.{kind}" for kind in ("json", "md")]
    for session in run.sessions:
        if session.complete and session.etdump and session.process == 0:
            wanted += [session.etdump.removesuffix(".etdump") + table for table in TABLES]
    missing = [name for name in wanted if not (run_dir / name).is_file()]
    row = _row("artifacts are there", missing, f"{len(wanted)} files")
    yield (*row[:2], f"{row[2]}; `workbench analyze` makes them anew") if missing else row


def _summary(analysis: Analysis) -> Iterator[Row]:
    """The summary says what the traces and the manifest say."""
    path = analysis.run_dir / SUMMARY
    if not path.is_file():
        return
    summary = read_document(path, "analysis_summary")
    yield "summary fits its schema", "ok", f"version {summary['schema_version']}"
    keys = ["experiment", "threads", "process", "run"]
    runs = analysis.ledger.groupby(keys, sort=False)["duration_ns"].sum() / 1e6
    traced = runs.groupby(keys[:3], sort=False).mean()
    failures = []
    for entry in summary["per_etdump"]:
        key = tuple(entry[name] for name in keys[:3])
        said, found = entry["e2e"]["mean"], traced.get(key, math.nan)
        if not _same(said, found):
            failures.append(f"{entry['etdump']}: {said} ms, the trace has {found:.6f}")
    if len(summary["per_etdump"]) != len(traced):
        failures.append(f"{len(summary['per_etdump'])} of {len(traced)} traces")
    yield _row("summary has the latency of the traces", failures, f"{len(traced)} traces")

    said = [comparison["verdict"] for comparison in summary["comparisons"]]
    found = [comparison.text for comparison in analysis.comparisons]
    failures = [] if said == found else [f"says {said}, the data {found}"]
    yield _row("summary has the verdicts of the data", failures, "; ".join(found))


def _metrics(analysis: Analysis) -> Iterator[Row]:
    """The metrics say what the manifest says."""
    path = analysis.run_dir / METRICS
    if not path.is_file():
        return
    metrics = read_document(path, "metrics")
    yield "metrics fit their schema", "ok", f"version {metrics['schema_version']}"
    medians = analysis.statistics.set_index(MEASUREMENT)["median"]
    failures = [
        f"{row['experiment']}: {row['median']} ms"
        for row in metrics["latencies"]
        if not _same(row["median"], medians.get((row["experiment"], row["threads"]), math.nan))
    ]
    failures += [] if metrics["latencies"] else ["there are none"]
    yield _row("metrics have the latencies of the manifest", failures, f"{len(medians)} medians")


def _pipeline(analysis: Analysis) -> Iterator[Row]:
    """The pipeline summary is what its schema says."""
    path = analysis.run_dir / f"{analysis.run.plan.stem}_pipeline_summary.json"
    if path.is_file():
        version = read_document(path, "pipeline_summary")["schema_version"]
        yield "pipeline summary fits its schema", "ok", f"version {version}"


def _program(analysis: Analysis) -> Iterator[Row]:
    """The program and its sidecar are those that ran."""
    plan, run_dir = analysis.run.plan, analysis.run_dir
    pte = run_dir / PROGRAM / Path(plan.pte).name
    if pte.is_file():
        same = sha256_of(pte) == plan.sha256
        failures = [] if same else [f"{pte.name} is not the program that ran (SHA-256)"]
        yield _row("program is the one that ran", failures, f"SHA-256 {plan.sha256[:16]}")
    else:
        yield "program is the one that ran", "note", f"{Path(plan.pte).name} is not here any more"
    if (run_dir / LAYERS).exists():
        fits = load_layers(run_dir / LAYERS, plan.sha256) is not None
        failures = [] if fits else [f"{LAYERS} is of another program"]
        yield _row("sidecar is of that program", failures, "SHA-256 is that of the manifest")


def _like(analysis: Analysis, good: Analysis) -> Iterator[Row]:
    """The same operators as in a known good run, in about the same proportions."""
    for name in analysis.experiments:
        pairs = [(a, name) for a in (good, analysis)]
        parts = [a.operators[a.operators["experiment"] == name] for a, name in pairs]
        if any(part.empty for part in parts):
            yield f"{name} is in the known good run", "fail", "it has other experiments"
            continue
        wanted, found = (set(part["operator"].astype(str)) for part in parts)
        failures = [f"missing: {key}" for key in sorted(wanted - found)]
        failures += [f"new: {key}" for key in sorted(found - wanted)]
        yield _row(f"operators of {name}", failures, f"the same {len(found)} kinds")
        before, after = (
            a.categories[a.categories["experiment"] == name].groupby("category")["share"].mean()
            for a, name in pairs
        )
        failures = [
            f"{category}: {100 * before[category]:.0f} % -> {100 * share:.0f} %"
            for category, share in after.items()
            if abs(share - before.get(category, 0.0)) > SHARE_TOLERANCE
        ]
        evidence = f"within {100 * SHARE_TOLERANCE:.0f} points"
        yield _row(f"shares of categories of {name}", failures, evidence)


def _foreign(run_dir: Path) -> Iterator[Row]:
    """What can be said of traces alone, and of tables beside them."""
    if (run_dir / MANIFEST).is_file():
        yield "manifest", "note", "not of the workbench: only traces and tables are looked at"
    for path in sorted(run_dir.rglob("*.etdump")):
        name = str(path.relative_to(run_dir))
        try:
            found = _open_runs(path)
        except WorkbenchError as error:
            yield name, "fail", str(error)
            continue
        if not len(found):
            yield name, "fail", "holds no whole Method::execute"
            continue
        failures = [] if found.all() else [f"{np.count_nonzero(~found)} runs do not add up"]
        yield _row(name, failures, f"{len(found)} runs, rows sum to Method::execute")
        yield from _attempt(_totals, path)


def _totals(path: Path) -> Iterator[Row]:
    """Whether a timeline table beside a trace adds up to its latency."""
    table = path.with_name(path.stem + TABLES[0])
    if not table.is_file():
        return
    events = read_etdump(path)
    inference = events.loc[(events["kind"] == "method") & (events["run"] >= 0), "duration_ns"]
    try:
        total = pd.read_csv(table)["duration_ms"].sum()
    except (ValueError, KeyError, UnicodeDecodeError, pd.errors.ParserError) as error:
        yield table.name, "fail", f"not a timeline table: {error}"
        return
    ratio = total / (inference.sum() / 1e6)
    nested = " it has nested spans: never add up its rows" if ratio > 1.01 else ""
    yield table.name, "note" if nested else "ok", f"rows sum to {ratio:.1f}x the latency;{nested}"


def _same(said: object, found: float) -> bool:
    return isinstance(said, int | float) and math.isclose(said, found, rel_tol=ROUNDING)
