"""Whether a run is complete, and its files are those that it names."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from workbench import store
from workbench.analysis.ledger import build_ledger, closed_runs
from workbench.analysis.open import open_run
from workbench.analysis.quality import Row
from workbench.analysis.run import Run
from workbench.errors import UsageError, WorkbenchError
from workbench.records.codec import SCHEMA_VERSION
from workbench.records.documents import METRICS
from workbench.wording import plural

#: Where a program lies in ``out_<model>``, from the run's folder.
PROGRAM = Path("..") / ".." / "artifacts"
#: CSV files beside the first ETDump of every experiment.
TABLES = ("_all_runs_timeline.csv", "_run0_timeline.csv", "_ops_stats.csv")


def validate_run(run: Run | str | Path) -> pd.DataFrame:
    """Check that a run is complete and its files are those that it names.

    Parameters
    ----------
    run
        A run, its folder, or what else `open_run` takes: then every trace is checked by itself.

    Returns
    -------
    DataFrame
        ``check``, ``status`` (``ok``, ``note`` or ``fail``), ``evidence``.

    Raises
    ------
    UsageError, StoreError
        There is nothing to check.

    Examples
    --------
    >>> table = wb.validate_run(wb.sample_run())
    >>> table.loc[table["check"] == "ledger closes", "status"].item()
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
        rows = [("manifest", "ok", version), _artifacts(run), *_programs(run)]
    else:
        rows = [row for trace in run.recording.traces.items() for row in _trace(run, *trace)]
        rows += [_artifacts(run)] if (run.output / store.SUMMARY).is_file() else []
    rows += [*_metrics(run), *checks]
    return _table(rows)


def _table(rows: list[Row]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["check", "status", "evidence"])


def _row(check: str, failures: list[str], evidence: str) -> Row:
    shown = "; ".join(failures[:3]) + (f"; {len(failures) - 3} more" if failures[3:] else "")
    return (check, "fail", shown) if failures else (check, "ok", evidence)


def _artifacts(run: Run) -> Row:
    wanted = [store.METRICS, store.SUMMARY, f"{run.record.plan.stem}_pipeline_summary.json"]
    for measurement in run.measurements:
        for session in measurement.sessions[:1]:
            wanted += [session.etdump.removesuffix(".etdump") + table for table in TABLES]
    missing = [name for name in wanted if not (run.output / name).is_file()]
    if missing:
        missing[:3] = [f"{', '.join(missing[:3])}: `workbench analyze` writes them"]
    return _row("artifacts are there", missing, plural(len(wanted), "file"))


def _metrics(run: Run) -> Iterator[Row]:
    """Whether ``metrics.json``, if there is one, fits its schema."""
    if (path := run.output / store.METRICS).is_file():
        try:
            store.load_record(METRICS, path, least=2)
            yield f"{path.name} fits its schema", "ok", f"version {SCHEMA_VERSION}"
        except WorkbenchError as error:
            yield f"{path.name} fits its schema", "fail", str(error)


def _programs(run: Run) -> Iterator[Row]:
    programs = run.record.plan.all_programs
    for program in programs:
        pte, ending = run.path / PROGRAM / Path(program.pte).name, f" {program.name}".rstrip()
        name = f"program{ending} is the one that ran"
        if pte.is_file():
            same = store.sha256_of(pte) in [
                p.sha256 for p in programs if Path(p.pte).name == pte.name
            ]
            failures = [] if same else [f"{pte.name} is not the program that ran (SHA-256)"]
            yield _row(name, failures, f"SHA-256 {program.sha256[:16]}")
        else:
            yield name, "note", f"{pte.name} is missing"
        path = store.kept_layers(run.path, program.name)
        if path.exists():
            fits = store.load_layers(path, program.sha256) is not None
            failures = [] if fits else [f"{path.name} is of another program"]
            evidence = "SHA-256 is that of the manifest"
            yield _row(f"sidecar is of that program{ending}", failures, evidence)


def _trace(run: Run, name: str, events: pd.DataFrame) -> Iterator[Row]:
    closed = closed_runs(events, build_ledger(events))
    failures = [] if closed.all() else [f"{(~closed).sum()} of {len(closed)} do not add up"]
    yield _row(name, failures, f"{plural(len(closed), 'run')}, rows sum to Method::execute")
    path = run.locate(name)
    tables = (path.with_name(path.stem + end) for end in (TABLES[0], f"_exec{TABLES[0]}"))
    for table in [table for table in tables if table.is_file()][:1]:
        inference = events.loc[(events["kind"] == "method") & (events["run"] >= 0), "duration_ns"]
        try:
            ratio = pd.read_csv(table)["duration_ms"].sum() / (inference.sum() / 1e6)
        except (ValueError, KeyError, UnicodeDecodeError, pd.errors.ParserError) as error:
            yield table.name, "fail", f"not a timeline table: {error}"
            continue
        nested = " its spans are nested: do not add up its rows" if ratio > 1.01 else ""
        evidence = f"rows sum to {ratio:.1f}x the latency;{nested}"
        yield table.name, "note" if nested else "ok", evidence
