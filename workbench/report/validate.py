"""Whether the files of a run are complete, consistent, and like those of a known good run."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from workbench.analysis.ledger import build_ledger, closed_runs
from workbench.analysis.open import open_run
from workbench.analysis.operators import BUILT_IN
from workbench.analysis.run import MEASUREMENT, Run
from workbench.errors import UsageError, WorkbenchError
from workbench.records.documents import AnalysisSummary, Metrics, PipelineSummary
from workbench.store import (
    METRICS,
    SUMMARY,
    kept_layers,
    load_document,
    load_layers,
    sha256_of,
)

#: Shares of categories may differ by this much from those of a known good run.
SHARE_TOLERANCE = 0.05
ROUNDING = 1e-9  #: Relative error of a number that was written to JSON and read again.
#: Where a program lies in ``out_<model>``, from the run's folder.
PROGRAM = Path("..") / ".." / "artifacts"
#: CSV files beside the first ETDump of every experiment.
TABLES = ("_all_runs_timeline.csv", "_run0_timeline.csv", "_ops_stats.csv")

Row = tuple[str, str, str]


def validate_run(run: Run | str | Path, known_good: Run | str | Path | None = None) -> pd.DataFrame:
    """Check that a run is complete and its files agree, and compare it with a known good run.

    Parameters
    ----------
    run
        A run, its folder, or what else `open_run` takes: then every trace is checked by itself.
    known_good
        Another run of the same program, which must have the same operators and, within
        :data:`SHARE_TOLERANCE`, the same shares of categories.

    Returns
    -------
    DataFrame
        ``check``, ``status`` (``ok``, ``note`` or ``fail``), ``evidence``.

    Raises
    ------
    UsageError, StoreError
        There is nothing to check, or the known good run cannot be read.

    Examples
    --------
    >>> table = wb.validate_run(wb.sample_run())
    >>> table.loc[table["check"] == "every trace closes", "status"].item()
    'ok'
    """
    try:
        run = open_run(run)
        checks = list(run.checks.itertuples(index=False, name=None))
    except UsageError:
        raise
    except WorkbenchError as error:
        return _table([("run can be analysed", "fail", str(error))])
    if run.recording is None:
        version = f"schema version {run.record.schema_version}, {len(run.record.sessions)} sessions"
        rows = [("manifest", "ok", version), _traces(run), _artifacts(run)]
    else:
        rows = [row for trace in run.recording.traces.items() for row in _trace(run, *trace)]
        rows += [_artifacts(run)] if (run.output / SUMMARY).is_file() else []
    for check in (_summary, _metrics, _pipeline):
        rows += _attempt(check, run)
    rows += [*(_program(run) if run.recording is None else ()), *checks]
    if known_good is not None:
        rows += _like(run, open_run(known_good))
    return _table(rows)


def _table(rows: list[Row]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["check", "status", "evidence"])


def _row(check: str, failures: list[str], evidence: str) -> Row:
    shown = "; ".join(failures[:3]) + (f"; {len(failures) - 3} more" if failures[3:] else "")
    return (check, "fail", shown) if failures else (check, "ok", evidence)


def _attempt(check: Callable[[Any], Iterator[Row]], subject: Any) -> Iterator[Row]:
    try:
        yield from check(subject)
    except WorkbenchError as error:
        yield f"{check.__name__.strip('_')} can be read", "fail", str(error)


def _traces(run: Run) -> Row:
    """Every ledger closes; that no run is missing is checked when a trace is read."""
    traced = [m for m in run.measurements if m.sessions]
    failures = [f"{m.label}: {m.open_runs} runs do not add up" for m in traced if m.open_runs]
    count = sum(m.run_count for m in traced)
    return _row("every trace closes", failures, f"{count} runs, rows sum to Method::execute")


def _artifacts(run: Run) -> Row:
    stem = run.record.plan.stem
    wanted = [METRICS, SUMMARY, f"{stem}_pipeline_summary.json"]
    for measurement in run.measurements:
        for session in measurement.sessions[:1]:
            wanted += [session.etdump.removesuffix(".etdump") + table for table in TABLES]
    missing = [name for name in wanted if not (run.output / name).is_file()]
    if missing:
        missing[:3] = [f"{', '.join(missing[:3])}: `workbench analyze` writes them"]
    return _row("artifacts are there", missing, f"{len(wanted)} files")


def _summary(run: Run) -> Iterator[Row]:
    path = run.output / SUMMARY
    if not path.is_file():
        return
    summary = load_document(AnalysisSummary, path)
    yield "summary fits its schema", "ok", f"version {summary.schema_version}"
    keys = ["experiment", "threads", "process", "run"]
    runs = run.ledger.groupby(keys, sort=False)["duration_ns"].sum() / 1e6
    traced = runs.groupby(keys[:3], sort=False).mean()
    failures = []
    for entry in summary.per_etdump:
        found = traced.get((entry.experiment, entry.threads, entry.process), math.nan)
        if not _same(entry.e2e["mean"], found):
            failures.append(f"{entry.etdump}: {entry.e2e['mean']} ms, the trace has {found:.6f}")
    if len(summary.per_etdump) != len(traced):
        failures.append(f"{len(summary.per_etdump)} of {len(traced)} traces")
    yield _row("summary has the latency of the traces", failures, f"{len(traced)} traces")
    if summary.categories not in (*BUILT_IN, run.scheme.label):
        what = f"not checked: its categories are those of {summary.categories}"
        yield "summary has the verdicts of the data", "note", what
        return
    said = [comparison.verdict for comparison in summary.comparisons]
    baseline = "".join(c.baseline.experiment for c in summary.comparisons[:1])
    if baseline in (c.baseline.name for c in run.comparisons[:1]):
        baseline = ""
    if baseline or summary.categories != run.scheme.label:  # as the options of `analyze` did
        run = open_run(run.path, baseline=baseline, categories=summary.categories)
    found = [comparison.text for comparison in run.comparisons]
    failures = [] if said == found else [f"says {said}, the data {found}"]
    yield _row("summary has the verdicts of the data", failures, "; ".join(found))


def _metrics(run: Run) -> Iterator[Row]:
    path = run.output / METRICS
    if not path.is_file():
        return
    metrics = load_document(Metrics, path)
    yield "metrics fit their schema", "ok", f"version {metrics.schema_version}"
    known = run.statistics.set_index(MEASUREMENT)["latency"]
    # Older files have the restarts alone.
    found = {
        (row["experiment"], row["threads"]): row.get("latency", np.mean(row["restarts_ms"]))
        for row in metrics.latencies
    }
    failures = [
        f"{key[0]}: {ms} ms" for key, ms in found.items() if not _same(ms, known.get(key, math.nan))
    ]
    failures += [] if metrics.latencies else ["there are none"]
    yield _row("metrics have the latencies of the manifest", failures, f"{len(known)} latencies")


def _pipeline(run: Run) -> Iterator[Row]:
    path = run.output / f"{run.record.plan.stem}_pipeline_summary.json"
    if path.is_file():
        version = load_document(PipelineSummary, path).schema_version
        yield "pipeline summary fits its schema", "ok", f"version {version}"


def _program(run: Run) -> Iterator[Row]:
    programs = run.record.plan.all_programs
    for program in programs:
        pte, ending = run.path / PROGRAM / Path(program.pte).name, f" {program.name}".rstrip()
        name = f"program{ending} is the one that ran"
        if pte.is_file():
            same = sha256_of(pte) in [p.sha256 for p in programs if Path(p.pte).name == pte.name]
            failures = [] if same else [f"{pte.name} is not the program that ran (SHA-256)"]
            yield _row(name, failures, f"SHA-256 {program.sha256[:16]}")
        else:
            yield name, "note", f"{pte.name} is missing"
        path = kept_layers(run.path, program.name)
        if path.exists():
            fits = load_layers(path, program.sha256) is not None
            failures = [] if fits else [f"{path.name} is of another program"]
            evidence = "SHA-256 is that of the manifest"
            yield _row(f"sidecar is of that program{ending}", failures, evidence)


def _like(run: Run, good: Run) -> Iterator[Row]:
    for name in run.experiments:
        pairs = [(one.operators, one.categories) for one in (good, run)]
        parts = [operators[operators["experiment"] == name] for operators, _ in pairs]
        if any(part.empty for part in parts):
            yield f"{name} is in the known good run", "fail", "it has other experiments"
            continue
        wanted, found = (set(part["operator"].astype(str)) for part in parts)
        failures = [f"missing: {key}" for key in sorted(wanted - found)]
        failures += [f"new: {key}" for key in sorted(found - wanted)]
        yield _row(f"operators of {name}", failures, f"the same {len(found)} kinds")
        before, after = (
            categories[categories["experiment"] == name].groupby("category")["share"].mean()
            for _, categories in pairs
        )
        failures = [
            f"{category}: {100 * before[category]:.0f} % -> {100 * share:.0f} %"
            for category, share in after.items()
            if abs(share - before.get(category, 0.0)) > SHARE_TOLERANCE
        ]
        evidence = f"within {100 * SHARE_TOLERANCE:.0f} points"
        yield _row(f"shares of categories of {name}", failures, evidence)


def _trace(run: Run, name: str, events: pd.DataFrame) -> Iterator[Row]:
    closed = closed_runs(events, build_ledger(events))
    failures = [] if closed.all() else [f"{(~closed).sum()} runs do not add up"]
    yield _row(name, failures, f"{len(closed)} runs, rows sum to Method::execute")
    yield from _totals(run.locate(name), events)


def _totals(path: Path, events: pd.DataFrame) -> Iterator[Row]:
    found = (path.with_name(path.stem + name) for name in (TABLES[0], f"_exec{TABLES[0]}"))
    table = next((table for table in found if table.is_file()), None)
    if table is None:
        return
    inference = events.loc[(events["kind"] == "method") & (events["run"] >= 0), "duration_ns"]
    try:
        total = pd.read_csv(table)["duration_ms"].sum()
    except (ValueError, KeyError, UnicodeDecodeError, pd.errors.ParserError) as error:
        yield table.name, "fail", f"not a timeline table: {error}"
        return
    ratio = total / (inference.sum() / 1e6)
    nested = " its spans are nested: do not add up its rows" if ratio > 1.01 else ""
    yield table.name, "note" if nested else "ok", f"rows sum to {ratio:.1f}x the latency;{nested}"


def _same(said: object, found: float) -> bool:
    return isinstance(said, int | float) and math.isclose(said, found, rel_tol=ROUNDING)
