"""The stages of a cell's work: functions that any process on any machine can be told to do."""

from __future__ import annotations

import contextlib
import os
import platform
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from workbench.errors import SetupError
from workbench.export.artifact import export_model, find_cached_export, versions
from workbench.portfolio.executor import limit_time
from workbench.portfolio.matrix import Matrix
from workbench.portfolio.state import Depot, hash_files
from workbench.records.portfolio import Cell, Stage
from workbench.run.locks import device_behind, share_machine, take_device
from workbench.store import (
    artifacts_dir,
    load_export,
    load_run,
    new_run_dir,
    safe_name,
)

Tell = Callable[[str], None]
#: What a stage found out: fields of the cell's outcome.
Facts = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """A stage of a cell to work at; ``run_dir``, within the portfolio, is known once measured.

    ``again`` says that what lies there is not to be trusted; ``attempt`` tells this job from others
    of its kind when it is tried once more.
    """

    stage: str
    cell: Cell
    matrix: Matrix
    depot: Depot
    run_dir: str = ""
    again: bool = False
    versions: dict[str, str] = field(default_factory=versions)
    attempt: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def device(self) -> str:
        """The device that it needs for itself; empty if it can be done anywhere."""
        return device_behind(self.cell.target) if self.stage == "measure" else ""

    @property
    def pte(self) -> Path:
        """The cell's program, where work is done."""
        return artifacts_dir(self.depot.folder / self.cell.folder) / f"{self.cell.stem}.pte"

    @property
    def log(self) -> str:
        """The log's path within the portfolio."""
        return f"logs/{safe_name(self.cell.name)}.{self.stage}.log"


def carry_out(job: Job) -> tuple[Stage, Facts]:
    """Do a job where we are, when the device or machine is free; what was done, and found.

    Raises
    ------
    WorkbenchError
        It failed; the job's log has the traceback.
    """
    found = versions()
    if found != job.versions:
        raise SetupError(
            f"this worker has {_tell_apart(found, job.versions)}",
            where=platform.node(),
            hint="install the same versions everywhere",
        )
    if not job.depot.url and not job.depot.folder.is_dir():
        raise SetupError(
            f"this worker ({platform.node()}) does not see the portfolio",
            where=job.depot.folder,
            hint="--out a folder that all machines share, or a URL",
        )
    with contextlib.ExitStack() as stack:
        tell = stack.enter_context(_logged(job))
        free = take_device(job.device) if job.device else share_machine()
        waited = stack.enter_context(free)
        started, clock = datetime.now(UTC), time.monotonic()
        if job.stage == "export":  # runners have limits of their own
            note = (job.depot.folder / job.log).with_suffix(".where")
            stack.enter_context(limit_time(note, job.attempt, job.matrix.export_limit_s))
        facts = WORK[job.stage](job, tell)
        seconds = time.monotonic() - clock
    stage = Stage(
        name=job.stage,
        started=started.isoformat(timespec="milliseconds"),
        seconds=round(seconds, 3),
        waited_s=round(waited, 3),
        machine=platform.node(),
        process=os.getpid(),
        kept=facts.pop("kept", False),
    )
    return stage, facts


def export_cell(job: Job, tell: Tell) -> Facts:
    """Export the program of a cell, or keep the one that is there."""
    cell, root = job.cell, job.depot.folder / job.cell.folder
    job.depot.fetch(f"{cell.folder}/artifacts")
    options = job.matrix.export_options(cell.dtype)
    kept = find_cached_export(cell.model, options, root=root) is not None
    pte = export_model(cell.model, options, root=root, tell=tell)
    if not kept:
        job.depot.send(f"{cell.folder}/artifacts")
    export = load_export(pte)
    noise = [f.sqnr_db for f in export.fidelity if f.sqnr_db is not None]
    return {
        "kept": kept,
        "size_bytes": export.size_bytes,
        "sqnr_db": min(noise, default=None),
        "undelegated": sum(left.count for left in export.undelegated),
        "problem": export.problem,
    }


def measure_cell(job: Job, tell: Tell) -> Facts:
    """Measure a cell: go on with an interrupted run of it, or keep a finished one."""
    from workbench.workflow import record_program

    cell, folder = job.cell, job.depot.folder
    job.depot.fetch(f"{cell.folder}/artifacts")
    started = datetime.now(UTC).isoformat(timespec="seconds")
    run_dir = record_program(
        job.pte,
        job.matrix.measure_options(cell.target, cell.isa),
        root=folder / cell.folder,
        again=job.again,
        progress=lambda text, part: tell(text),
    )
    run_dir = _rename(run_dir, job) if job.depot.url else run_dir
    run = load_run(run_dir)
    name = run_dir.relative_to(folder).as_posix()
    job.depot.send(name)
    return {
        "kept": run.finished < started,
        "run_dir": name,
        "files": hash_files(run_dir),
        "platform": run.platform,
        "cpu": str(run.host.get("cpu") or ""),
        "emulated": run.emulated,
        "damaged": False,
    }


def report_cell(job: Job, tell: Tell) -> Facts:
    """Analyse a cell's run, make all its files and its report, and check that they fit together."""
    from workbench.analysis.compat import analyze_run, grade_quality
    from workbench.analysis.quality import summarize_quality
    from workbench.portfolio.state import tabulate_rows
    from workbench.report.validate import validate_run
    from workbench.workflow import make_page, write_artifacts

    job.depot.fetch(job.run_dir)
    job.depot.fetch(f"{job.cell.folder}/artifacts")
    analysis = analyze_run(job.depot.folder / job.run_dir)
    write_artifacts(analysis)
    page = make_page(analysis, in_process=True)
    job.depot.send(job.run_dir)
    checks = validate_run(analysis)
    failures = checks[checks["status"] == "fail"]
    quality = grade_quality(analysis)
    tell(f"{page.name}: quality {summarize_quality(quality)}")
    return {
        "report": f"{job.run_dir}/{page.name}",
        "problem": "; ".join(failures["check"] + ": " + failures["evidence"]),
        "grade": str(quality["grade"].iloc[0]),
        "verdicts": tuple(comparison.text for comparison in analysis.comparisons),
        "rows": tabulate_rows(analysis),
    }


WORK = {"export": export_cell, "measure": measure_cell, "report": report_cell}


def _rename(run_dir: Path, job: Job) -> Path:
    """Call a run after its cell: behind a URL no worker sees which names the others have taken."""
    name = f"{load_run(run_dir).platform}-{job.cell.address}"
    if run_dir.name.startswith(name):
        return run_dir
    return run_dir.replace(new_run_dir(run_dir.parents[1], name))


@contextlib.contextmanager
def _logged(job: Job) -> Iterator[Tell]:
    """Lines of a job, and should it fail its traceback, go to its log."""
    lines: list[str] = []

    def keep() -> None:
        job.depot.write(job.log, "\n".join([*lines, ""]))

    def note_error(kind, error, trace) -> None:
        if error is not None:
            lines.extend(traceback.format_exception(error))
        keep()

    with contextlib.ExitStack() as stack:
        stack.push(note_error)
        yield lambda text: lines.append(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} {text}")


def _tell_apart(found: dict[str, str], wanted: dict[str, str]) -> str:
    unlike = [name for name in wanted if found.get(name) != wanted[name]]
    return ", ".join(f"{name} {found.get(name)} instead of {wanted[name]}" for name in unlike)
