"""Carry out a matrix: every cell is exported, measured and reported, once."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from pathlib import Path

from workbench.errors import TraceError
from workbench.portfolio.executor import LOCAL, Office, open_cluster, open_office
from workbench.portfolio.matrix import HOST, Matrix, plan_cells, read_matrix, select_cells
from workbench.portfolio.stages import Facts, Job, carry_out
from workbench.portfolio.state import Book, look_up, open_depot
from workbench.portfolio.timings import (
    Planned,
    add_up,
    divide_time,
    gather_experience,
    remaining,
    tell_duration,
)
from workbench.records.portfolio import STAGES, Cell, Portfolio, Stage
from workbench.run.locks import THIS_MACHINE, device_behind, is_taken, take_folder
from workbench.run.plan import check_toggle
from workbench.run.runner import find_runner
from workbench.store import remove_partials, safe_name

Progress = Callable[[str, float], None]

#: An export takes two gigabytes or so.
MOST_JOBS = 4


def run_batch(
    path: str | Path,
    *,
    out: str | Path | None = None,
    jobs: int | None = None,
    dask: str = "",
    only: str = "",
    progress: Progress = lambda text, part: None,
) -> Portfolio:
    """Carry out a matrix, or go on with it: what is done and intact is not done again.

    On this machine exports come first, side by side, then the measurements, one at a time, then the
    reports: nothing of ours runs beside a measurement. A cell that fails takes no other with it.

    Parameters
    ----------
    path
        The matrix, as `read_matrix` has it.
    out
        The portfolio: a folder, or a URL that fsspec knows; ``portfolio_<name of the matrix>`` by
        default.
    jobs
        Processes for exports and reports; by default one for each usable core, at most four.
    dask
        A scheduler's address, or ``local`` or ``local:WORKERS`` for a cluster on this machine,
        instead of processes.
    only
        A pattern of cells' names, such as ``toy_cnn/*``.
    progress
        Told what was done, and which part of it all is done (0 to 1).

    Raises
    ------
    UsageError
        The matrix is bad, an extension is not there, or another batch is at work on the folder.
    StoreError
        The portfolio cannot be written.
    """
    path, started = Path(path), time.time()
    matrix = read_matrix(path)
    everything = plan_cells(matrix)
    chosen = select_cells(everything, only)
    jobs = jobs or default_jobs()
    if not dask or dask.startswith(LOCAL):
        _check_toggles(matrix)
    depot = open_depot(place_for(path, out))
    with take_folder(depot.folder):
        remove_partials(depot.folder)
        book = Book(matrix, everything, depot, retry=_retry(path, out, dask))
        book.publish()
        todo = [cell for cell in chosen if remaining(book.outcomes[cell.name])]
        batch = Batch(book, todo, jobs, progress)
        if todo:
            if is_taken(THIS_MACHINE):
                progress("something else is measured on this machine: the two take turns", 0.0)
            devices = {device_behind(cell.target) for cell in todo}
            with _open_office(dask, jobs, devices) as office:
                batch.carry_out(office)
        return book.publish(divide_time(started, time.time(), batch.stages))


@dataclass
class Batch:
    """The work on a portfolio: the cells to do, what waits, what is at work, and what was done."""

    book: Book
    cells: list[Cell]
    jobs: int
    progress: Progress
    waiting: list[Job] = field(default_factory=list)
    working: dict[Future, Job] = field(default_factory=dict)
    stages: list[Stage] = field(default_factory=list)

    def carry_out(self, office: Office) -> None:
        """Do all that the cells need."""
        for cell in self.cells:
            stage = remaining(self.book.outcomes[cell.name])[0]
            # A program is exported once, for the first of its cells.
            same = [job for job in self.waiting if job.cell.stem == cell.stem]
            if stage != "export" or not any(job.stage == stage for job in same):
                self.waiting.append(self._job(stage, cell))
        while self.waiting or self.working:
            self._start_what_may(office)
            for future in wait(self.working, return_when=FIRST_COMPLETED).done:
                job = self.working.pop(future)
                self._settle(job, future)

    def _job(self, stage: str, cell: Cell) -> Job:
        outcome = self.book.outcomes[cell.name]
        return Job(stage, cell, self.book.matrix, self.book.depot, outcome.run_dir, outcome.damaged)

    def _start_what_may(self, office: Office) -> None:
        """Start all that nothing is in the way of: other work disturbs what is measured here."""
        working = [job.stage for job in self.working.values()]
        unfinished = [*self.waiting, *self.working.values()]
        exports = any(job.stage == "export" for job in unfinished)
        measured_here = any(job.device == THIS_MACHINE for job in unfinished)
        blocked = {
            "export": False,
            "measure": exports or "report" in working,
            "report": exports or measured_here,
        }
        waiting, self.waiting = self.waiting, []
        for job in waiting:
            # A device elsewhere does not care what this machine does.
            if blocked[job.stage] and job.device in ("", THIS_MACHINE):
                self.waiting.append(job)
            else:
                self.working[office.start(carry_out, job, job.device)] = job

    def _settle(self, job: Job, future: Future) -> None:
        """Note what a job brought, for all cells it was done for, and what comes next."""
        shared = job.stage == "export"
        cells = [c for c in self.cells if c == job.cell or (shared and self._needs(c, job))]
        error = future.exception()
        for cell in cells:
            if error:
                self._note_failure(job, cell, error)
                continue
            stage, facts = future.result()
            if cell == job.cell:
                self.stages.append(stage)
            self._note_success(cell, stage, facts)
            if job.stage != STAGES[-1]:
                self.waiting.append(self._job(STAGES[STAGES.index(job.stage) + 1], cell))
        self._tell(job, error)

    def _needs(self, cell: Cell, job: Job) -> bool:
        """Whether another cell waits for the program that a job exported."""
        to_do = remaining(self.book.outcomes[cell.name])
        return cell.stem == job.cell.stem and to_do[:1] == ("export",)

    def _note_success(self, cell: Cell, stage: Stage, facts: Facts) -> None:
        earlier = self.book.outcomes[cell.name].stages
        if not (stage.kept and any(s.name == stage.name for s in earlier)):
            earlier = (*(s for s in earlier if s.name != stage.name), stage)
        state = "done" if stage.name == STAGES[-1] else "open"
        self.book.note(cell, stages=earlier, state=state, **facts)

    def _note_failure(self, job: Job, cell: Cell, error: BaseException) -> None:
        # A trace that cannot be read is to be measured anew, whatever its hash says.
        doubtful = {"files": {}} if isinstance(error, TraceError) else {}
        self.book.note(
            cell,
            state="failed",
            failed_stage=job.stage,
            error=" ".join(f"{error}".split()) or type(error).__name__,
            log=job.log,
            **doubtful,
        )

    def _tell(self, job: Job, error: BaseException | None) -> None:
        outcomes = [self.book.outcomes[cell.name] for cell in self.cells]
        todo = [(stage, o.cell) for o in outcomes if o.state == "open" for stage in remaining(o)]
        experience = gather_experience(self.book.outcomes.values())
        left = f", {tell_duration(add_up(todo, experience, self.jobs))} left" if todo else ""
        states = [outcome.state for outcome in outcomes]
        failed = f", {states.count('failed')} failed" if "failed" in states else ""
        what = f"{job.cell.name}: {job.stage} {f'failed: {error}' if error else 'done'}"
        count = f"{states.count('done')} of {len(states)} cells done{failed}{left}"
        self.progress(f"{what} ({count})", 1 - len(todo) / (len(STAGES) * len(outcomes)))


def list_plan(path: str | Path, *, out: str | Path | None = None, only: str = "") -> list[Planned]:
    """What `run_batch` would do: every cell with the stages that it needs, and how long they take.

    Times are those that stages in the portfolio took before; without any they are unknown.
    """
    path = Path(path)
    cells = plan_cells(read_matrix(path))
    depot = open_depot(place_for(path, out))
    outcomes = look_up(cells, depot)
    experience = gather_experience(outcomes.values())
    return [
        Planned(cell, todo, add_up([(stage, cell) for stage in todo], experience, 1))
        for cell in select_cells(cells, only)
        for todo in [remaining(outcomes[cell.name])]
    ]


def default_jobs() -> int:
    """One process for each core that can be used, but no more than memory is likely to hold."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(usable or 1, MOST_JOBS))


def place_for(path: Path, out: str | Path | None) -> str | Path:
    """The portfolio of a matrix, where nobody says otherwise."""
    return out or f"portfolio_{safe_name(path.stem)}"


def _retry(path: Path, out: str | Path | None, dask: str) -> str:
    """The command that goes on with a batch."""
    words = ["workbench", "batch", str(path)]
    words += ["--out", str(out)] if out else []
    words += ["--dask", dask] if dask else []
    return shlex.join(words)


def _check_toggles(matrix: Matrix) -> None:
    """Refuse an extension that this machine lacks before any long work."""
    if HOST not in matrix.targets:
        return
    runner = find_runner(matrix.runner)
    for isa in matrix.isa:
        check_toggle(matrix.measure_options(HOST, isa), runner)


def _open_office(
    dask: str, jobs: int, devices: Iterable[str]
) -> contextlib.AbstractContextManager[Office]:
    return open_cluster(dask, devices) if dask else open_office(jobs, devices)
