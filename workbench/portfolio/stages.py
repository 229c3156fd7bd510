"""The stages of a cell: export, measure, report. Any worker process can run them."""

import contextlib
import glob
import math
import os
import platform
import shutil
import time
import traceback
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from workbench.analysis.open import open_run
from workbench.analysis.run import Measurement
from workbench.errors import ExportError, WorkbenchError
from workbench.export.artifact import export_model, versions
from workbench.export.program import Program, open_program
from workbench.frames import WRONG
from workbench.options import Progress
from workbench.portfolio.executor import limit_time
from workbench.portfolio.matrix import Matrix
from workbench.portfolio.state import Storage, hash_run_files
from workbench.records.portfolio import STAGES, Cell, CellStage, Outcome, Row
from workbench.run.locks import device_behind, lock_device, share_machine
from workbench.store import artifacts_dir, new_run_dir, safe_name


@dataclass(frozen=True)
class Job:
    """A stage of a cell to run; ``attempt`` identifies this job when it is retried."""

    stage: str
    outcome: Outcome
    matrix: Matrix
    storage: Storage
    versions: dict[str, str] = field(default_factory=versions)
    attempt: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def cell(self) -> Cell:
        """The cell to work on."""
        return self.outcome.cell

    @property
    def root(self) -> Path:
        """The folder of the cell's artifacts and runs."""
        return self.storage.folder / self.cell.folder

    @property
    def device(self) -> str:
        """The device that the job needs exclusively; empty if any machine will do."""
        return device_behind(self.cell.target) if self.stage == "measure" else ""

    @property
    def log(self) -> str:
        """The path of the log, relative to the portfolio."""
        return f"logs/{safe_name(self.cell.name)}.{self.stage}.log"


def run_job(job: Job) -> Outcome:
    """Run a job once its device or this machine is free; returns the new outcome of its cell."""
    _check_worker(job)
    with contextlib.ExitStack() as stack:
        progress = stack.enter_context(_open_log(job))
        asked = time.monotonic()

        def wait(text: str, _: float) -> None:
            job.storage.write(job.log, f"{text}\n")

        stack.enter_context(lock_device(job.device, wait) if job.device else share_machine(wait))
        if read_waiting(job):
            job.storage.write(job.log, "")
        started, clock = datetime.now(UTC), time.monotonic()
        if job.stage == "export":  # the other stages have time limits of their own
            note = (job.storage.folder / job.log).with_suffix(".where")
            stack.enter_context(limit_time(note, job.attempt, job.matrix.export_limit_s))
        outcome, cached = STAGE_FUNCTIONS[job.stage](job, progress)
        seconds = time.monotonic() - clock
    stage = CellStage(
        job.stage,
        started.isoformat(timespec="milliseconds"),
        seconds=round(seconds, 3),
        waited_s=round(clock - asked, 3),
        machine=platform.node(),
        process=os.getpid(),
        cached=cached,
    )
    return add_stage(outcome, stage)


def read_waiting(job: Job) -> str:
    """What a job waits for before it begins; empty if it does not."""
    try:
        text = (job.storage.folder / job.log).read_text()
    except (OSError, ValueError):
        return ""
    return text.strip() if text.endswith(": waiting\n") and text.count("\n") == 1 else ""


def add_stage(outcome: Outcome, stage: CellStage) -> Outcome:
    """The outcome after a stage; a cached result keeps the stage that made it."""
    stages = outcome.stages
    if not (stage.cached and any(s.name == stage.name for s in stages)):
        stages = (*(s for s in stages if s.name != stage.name), stage)
    return replace(outcome, stages=stages, state="done" if stage.name == STAGES[-1] else "open")


def adopt_export(outcome: Outcome, other: Outcome) -> Outcome:
    """The outcome of a cell whose program was exported for another cell."""
    (stage,) = (s for s in other.stages if s.name == "export")
    names = ("size_bytes", "sqnr_db", "undelegated", "problem")
    return add_stage(replace(outcome, **{name: getattr(other, name) for name in names}), stage)


def export_cell(job: Job, progress: Progress) -> tuple[Outcome, bool]:
    """Export the program of a cell, unless that was done before."""
    cell, options = job.cell, replace(job.matrix.export, dtype=job.cell.dtype)
    if cell.model in job.matrix.programs:
        return keep_program(job)
    job.storage.fetch(f"{cell.folder}/artifacts")
    started = datetime.now(UTC).isoformat(timespec="seconds")
    program = export_model(cell.model, options=options, root=job.root, progress=progress)
    export = program.export
    cached = export is not None and export.created < started
    if not cached:
        job.storage.send(f"{cell.folder}/artifacts")
    if export is None:
        raise WorkbenchError("has no export record", where=program.path)
    if not export.runs:
        raise ExportError(export.problem, where=program.path)
    how = "cached" if cached else "exported"
    progress(f"{program.path.name}: {how}. {export.problem}", 1.0)
    return _describe_program(job.outcome, program), cached


def keep_program(job: Job) -> tuple[Outcome, bool]:
    """Copy a finished program, and what lies beside it under its name, to its cell."""
    source, folder = Path(job.cell.model), artifacts_dir(job.root)
    folder.mkdir(parents=True, exist_ok=True)
    for path in source.parent.glob(f"{glob.escape(source.name)}*"):
        if path.is_file():
            shutil.copyfile(path, folder / path.name)
    program = open_program(folder / source.name)
    job.storage.send(f"{job.cell.folder}/artifacts")
    return _describe_program(job.outcome, program), False


def _describe_program(outcome: Outcome, program: Program) -> Outcome:
    if (export := program.export) is None:
        return replace(outcome, size_bytes=program.size_bytes)
    return replace(
        outcome,
        size_bytes=export.size_bytes,
        sqnr_db=export.sqnr_db,
        undelegated=sum(left.count for left in export.undelegated),
        problem=export.problem,
    )


def measure_cell(job: Job, progress: Progress) -> tuple[Outcome, bool]:
    """Measure a cell: resume an interrupted run, or use a finished one."""
    from workbench.workflow import measure

    cell, storage = job.cell, job.storage
    storage.fetch(f"{cell.folder}/artifacts")
    started = datetime.now(UTC).isoformat(timespec="seconds")
    run = measure(
        artifacts_dir(job.root) / f"{cell.stem}.pte",
        options=job.matrix.measure_options(cell.target, cell.isa),
        root=job.root,
        again=job.outcome.damaged,
        artifacts=False,
        progress=progress,
    )
    run_dir, manifest = run.path, run.record
    if storage.url and cell.cache_key not in run_dir.name:
        # Behind a URL, no worker sees which names the others have used.
        unique = new_run_dir(run_dir.parents[1], f"{run_dir.name}-{cell.cache_key}")
        run_dir = run_dir.replace(unique)
    name = run_dir.relative_to(storage.folder).as_posix()
    storage.send(name)
    outcome = replace(
        job.outcome,
        run_dir=name,
        files=hash_run_files(run_dir),
        platform=manifest.platform,
        cpu=str(manifest.host.get("cpu") or ""),
        emulated=manifest.emulated,
        damaged=False,
    )
    return outcome, manifest.finished < started


def report_cell(job: Job, progress: Progress) -> tuple[Outcome, bool]:
    """Analyse the run of a cell, write its files and report, and validate them."""
    from workbench.analysis.quality import summarize_quality
    from workbench.report.artifacts import write_artifacts
    from workbench.report.gate import validate_run
    from workbench.report.report import make_report

    storage, name = job.storage, job.outcome.run_dir
    storage.fetch(name)
    storage.fetch(f"{job.cell.folder}/artifacts")
    run = open_run(storage.folder / name)
    write_artifacts(run)
    page, _, notebook = make_report(run, notebook=job.matrix.notebook)
    storage.send(name)
    checks = validate_run(run)
    failures = checks[checks["status"] == "fail"]
    progress(f"{page.name}: quality {summarize_quality(run.quality)}", 1.0)
    outcome = replace(
        job.outcome,
        report=f"{name}/{page.name}",
        notebook=f"{name}/{notebook.name}",
        problem="; ".join(failures["check"] + ": " + failures["evidence"]),
        grade=str(run.quality["grade"].iloc[0]),
        verdicts=tuple(comparison.text for comparison in run.comparisons),
        rows=tuple(row for m in run.measurements if not m.control for row in tabulate_rows(m)),
    )
    return outcome, False


def tabulate_rows(m: Measurement) -> Iterator[Row]:
    """A row for each comparison of a measurement, at least one; an emulated one has no times."""
    row = Row(m.name, m.experiment.isa, m.threads, program=m.experiment.program)
    if m.emulated or m.statistics.empty:
        yield row
        return
    found = m.statistics.iloc[0]
    resources = dict(zip(m.resources["resource"], m.resources["value"], strict=True))
    largest = m.categories.loc[m.categories["mean_ms"].idxmax()]
    if "shares" in m.use[0]:
        row = replace(row, bottleneck=str(largest["category"]), share=float(largest["share"]))
    row = replace(
        row,
        clock=str(found["clock"]),
        n=int(found["n"]),
        restarts=int(found["restarts"]),
        latency_ms=float(found["latency"]),
        median_ms=float(found["median"]),
        low_ms=_finite(found["low"]),
        high_ms=_finite(found["high"]),
        first_output_ms=resources.get("first output"),
        peak_mb=resources.get("peak memory"),
    )
    compared = [ab for ab in m.run.comparisons if ab.candidate is m]
    if m.wrong or not compared:
        yield replace(row, outcome=WRONG if m.wrong else "")
        return
    for ab in compared:
        if ab.wrong:
            yield replace(row, outcome=WRONG)
            continue
        latency = ab.latency.iloc[0]
        yield replace(
            row,
            against=ab.baseline.name,
            speedup=float(latency["speedup"]),
            speedup_low=_finite(latency["low"]),
            speedup_high=_finite(latency["high"]),
            outcome=ab.verdict.outcome,
        )


def _finite(end: float) -> float | None:
    """The end of an interval; a single restart has none."""
    return float(end) if math.isfinite(end) else None


STAGE_FUNCTIONS = {"export": export_cell, "measure": measure_cell, "report": report_cell}


def _check_worker(job: Job) -> None:
    """Refuse a worker with other versions, or one that does not see the portfolio."""
    found, machine, folder = versions(), platform.node(), job.storage.folder
    if found != job.versions:
        pairs = [(name, found.get(name), wanted) for name, wanted in job.versions.items()]
        different = ", ".join(f"{name} {has} instead of {w}" for name, has, w in pairs if has != w)
        hint = "install the same versions everywhere"
        raise WorkbenchError(f"this worker has {different}", where=machine, hint=hint)
    if not job.storage.url and not folder.is_dir():
        hint = "--out a folder that all machines share, or a URL"
        reason = f"this worker ({machine}) cannot see the portfolio"
        raise WorkbenchError(reason, where=folder, hint=hint)


@contextlib.contextmanager
def _open_log(job: Job) -> Iterator[Progress]:
    """Collect the lines of a job, with the traceback of an error, and write its log."""
    lines: list[str] = []
    try:
        yield lambda text, _: lines.append(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} {text}")
    except BaseException as error:
        lines += traceback.format_exception(error)
        raise
    finally:
        job.storage.write(job.log, "\n".join([*lines, ""]))
