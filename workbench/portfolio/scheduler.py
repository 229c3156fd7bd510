"""Run a matrix: export, measure and report every cell, once."""

import os
import shlex
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from workbench.errors import TraceError
from workbench.portfolio.executor import LOCAL, Executor, open_executor
from workbench.portfolio.matrix import HOST, plan_cells, read_matrix, select_cells
from workbench.portfolio.stages import Job, adopt_export, run_job
from workbench.portfolio.state import PortfolioState, load_outcomes, open_storage
from workbench.records.portfolio import STAGES, Cell, CellStage, Outcome, Portfolio, TimeBreakdown
from workbench.run.locks import THIS_MACHINE, device_behind, is_locked, lock_folder
from workbench.run.plan import check_toggle
from workbench.run.runner import find_runner
from workbench.store import remove_partials, safe_name

Progress = Callable[[str, float], None]

#: One export needs about two gigabytes of memory.
MAX_JOBS = 4


def batch(
    matrix: str | Path,
    *,
    out: str | Path | None = None,
    jobs: int | None = None,
    dask: str = "",
    only: str = "",
    progress: Progress = lambda text, part: None,
) -> Portfolio:
    """Export, measure and report every cell of a matrix; finished cells are skipped.

    Exports run first, in parallel, then measurements, one at a time per device, then reports. If a
    cell fails, the others go on.

    Parameters
    ----------
    matrix
        A YAML file with ``models``, ``dtypes``, ``targets``, ``isa``, and any option of exports
        and measurements.
    out
        The portfolio: a folder, or a URL that fsspec knows; ``portfolio_<matrix>`` by default.
    jobs
        Processes for exports and reports; by default one per usable core, at most four.
    dask
        A scheduler's address, or ``local`` or ``local:WORKERS`` for a cluster on this machine.
    only
        A pattern of cell names, such as ``toy_cnn/*``.
    progress
        Receives one line per stage, and the fraction done (0 to 1).

    Raises
    ------
    UsageError
        The matrix is bad, an extension is not supported here, or another batch uses the folder.
    StoreError
        The portfolio cannot be written.

    Examples
    --------
    >>> portfolio = wb.batch("matrix.yaml", only="toy_cnn/*")  # doctest: +SKIP
    >>> [outcome.state for outcome in portfolio.outcomes]  # doctest: +SKIP
    ['done', 'done']
    """
    path, started = Path(matrix), time.time()
    content = read_matrix(path)
    cells = plan_cells(content)
    selected = select_cells(cells, only)
    if HOST in content.targets and (not dask or dask.startswith(LOCAL)):
        runner = find_runner()
        for isa in content.isa:
            check_toggle(content.measure_options(HOST, isa), runner)
    storage = open_storage(portfolio_location(path, out))
    with lock_folder(storage.folder):
        remove_partials(storage.folder)
        state = PortfolioState(content, cells, storage)
        state.publish()
        todo = [cell for cell in selected if remaining_stages(state.outcomes[cell.name])]
        if todo:
            if is_locked(THIS_MACHINE):
                progress("another measurement is running on this machine: taking turns", 0.0)
            retry = ["workbench", "batch", str(path)]
            retry += [*(["--out", str(out)] if out else []), *(["--dask", dask] if dask else [])]
            scheduler = Scheduler(state, todo, jobs or default_jobs(), retry, progress)
            devices = {device_behind(cell.target) for cell in todo}
            with open_executor(scheduler.jobs, devices, dask) as executor:
                scheduler.run(executor)
        stages = [stage for outcome in state.outcomes.values() for stage in outcome.stages]
        return state.publish(divide_time(started, time.time(), stages))


@dataclass
class Scheduler:
    """Runs the remaining stages of cells: which jobs wait, and which are running."""

    state: PortfolioState
    cells: list[Cell]
    jobs: int
    retry: list[str]
    progress: Progress
    waiting: list[Job] = field(default_factory=list)
    running: dict[Future[Outcome], Job] = field(default_factory=dict)

    def run(self, executor: Executor) -> None:
        """Run everything that the cells need."""
        exported = set()
        for cell in self.cells:
            outcome = self.state.outcomes[cell.name]
            stage = remaining_stages(outcome)[0]
            # Cells with the same program share its export.
            if stage != "export" or cell.stem not in exported:
                self._enqueue(stage, outcome)
            exported |= {cell.stem} if stage == "export" else set()
        while self.waiting or self.running:
            self._start_jobs(executor)
            for future in wait(self.running, return_when=FIRST_COMPLETED).done:
                self._finish(self.running.pop(future), future)

    def _enqueue(self, stage: str, outcome: Outcome) -> None:
        self.waiting.append(Job(stage, outcome, self.state.matrix, self.state.storage))

    def _start_jobs(self, executor: Executor) -> None:
        """Start all jobs that disturb no measurement on this machine."""
        unfinished = [*self.waiting, *self.running.values()]
        exports = any(job.stage == "export" for job in unfinished)
        measures_here = any(job.device == THIS_MACHINE for job in unfinished)
        reports = any(job.stage == "report" for job in self.running.values())
        blocked = {"measure": exports or reports, "report": exports or measures_here}
        waiting, self.waiting = self.waiting, []
        for job in waiting:
            # Other devices are not disturbed by this machine.
            if blocked.get(job.stage) and job.device in ("", THIS_MACHINE):
                self.waiting.append(job)
            else:
                self.running[executor.submit(run_job, job, job.device)] = job

    def _finish(self, job: Job, future: Future[Outcome]) -> None:
        """Update the cells that a job was for, and enqueue their next stage."""
        error = future.exception()
        for cell in self.cells:
            outcome = self.state.outcomes[cell.name]
            shared = job.stage == "export" and cell.stem == job.cell.stem
            if cell != job.cell and not (shared and "export" in remaining_stages(outcome)):
                continue
            if error:
                outcome = self._fail(outcome, job, error)
            elif cell == job.cell:
                outcome = future.result()
            else:
                outcome = adopt_export(outcome, future.result())
            self.state.update(outcome)
            if not error and job.stage != STAGES[-1]:
                self._enqueue(STAGES[STAGES.index(job.stage) + 1], outcome)
        self._report_progress(job, error)

    def _fail(self, outcome: Outcome, job: Job, error: BaseException) -> Outcome:
        return replace(
            outcome,
            state="failed",
            failed_stage=job.stage,
            error=" ".join(f"{error}".split()) or type(error).__name__,
            log=job.log,
            retry=shlex.join([*self.retry, "--only", outcome.cell.name]),
            # A trace that cannot be read has to be measured again, whatever its hash.
            files={} if isinstance(error, TraceError) else outcome.files,
        )

    def _report_progress(self, job: Job, error: BaseException | None) -> None:
        outcomes = [self.state.outcomes[cell.name] for cell in self.cells]
        todo = [(s, o.cell) for o in outcomes if o.state == "open" for s in remaining_stages(o)]
        timings = StageTimings(self.state.outcomes.values())
        left = f", {format_duration(timings.estimate(todo, self.jobs))} left" if todo else ""
        states = [outcome.state for outcome in outcomes]
        failed = f", {states.count('failed')} failed" if "failed" in states else ""
        result = f"failed: {error}" if error else "done"
        count = f"{states.count('done')} of {len(states)} cells done{failed}{left}"
        part = 1 - len(todo) / (len(STAGES) * len(outcomes))
        self.progress(f"{job.cell.name}: {job.stage} {result} ({count})", part)


@dataclass(frozen=True)
class PlannedCell:
    """The stages that a cell still needs, and the seconds that they will take if known."""

    cell: Cell
    todo: tuple[str, ...]
    seconds: float | None


def list_plan(
    path: str | Path, *, out: str | Path | None = None, only: str = ""
) -> list[PlannedCell]:
    """What `batch` would do; times are estimated from the stages that the portfolio has."""
    cells, plan = plan_cells(read_matrix(Path(path))), []
    outcomes = load_outcomes(cells, open_storage(portfolio_location(Path(path), out)))
    timings = StageTimings(outcomes.values())
    for cell in select_cells(cells, only):
        todo = remaining_stages(outcomes[cell.name])
        seconds = timings.estimate([(stage, cell) for stage in todo], 1)
        plan.append(PlannedCell(cell, todo, seconds))
    return plan


def describe_plan(plan: list[PlannedCell]) -> Iterator[str]:
    """One line per cell, and one for all of them, run one after the other."""
    for cell in plan:
        needs = f"{', '.join(cell.todo)}: {format_duration(cell.seconds)}"
        yield f"{cell.cell.name}  {needs if cell.todo else 'done'}"
    times = [cell.seconds for cell in plan if cell.todo]
    known = [seconds for seconds in times if seconds is not None]
    total = sum(known) if len(known) == len(times) else None
    left = f"; {format_duration(total)} left, exports and reports one by one" if times else ""
    yield f"{len(plan)} cells, {len(plan) - len(times)} done{left}"


def default_jobs() -> int:
    """One process per usable core, at most ``MAX_JOBS``."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(usable or 1, MAX_JOBS))


def portfolio_location(path: Path, out: str | Path | None) -> str | Path:
    """Where the portfolio of a matrix is; ``portfolio_<matrix>`` by default."""
    return out or f"portfolio_{safe_name(path.stem)}"


def remaining_stages(outcome: Outcome) -> tuple[str, ...]:
    """The stages that a cell still needs."""
    if outcome.state == "done":
        return ()
    return ("report",) if outcome.run_dir else STAGES


class StageTimings:
    """Seconds that stages took, those of cached ones left out."""

    def __init__(self, outcomes: Iterable[Outcome]):
        pairs = ((outcome.cell.name, s) for outcome in outcomes for s in outcome.stages)
        self._seconds = {(s.name, cell): s.seconds for cell, s in pairs if not s.cached}
        by_stage: dict[str, list[float]] = {}
        for (stage, _), seconds in self._seconds.items():
            by_stage.setdefault(stage, []).append(seconds)
        self._medians = {stage: statistics.median(times) for stage, times in by_stage.items()}

    def estimate(self, todo: Iterable[tuple[str, Cell]], jobs: int) -> float | None:
        """The seconds of all these stages, measurements one by one; None if one is unknown."""
        total = 0.0
        for stage, cell in todo:
            seconds = self._seconds.get((stage, cell.name), self._medians.get(stage))
            if seconds is None:
                return None
            total += seconds if stage == "measure" else seconds / jobs
        return total


def format_duration(seconds: float | None) -> str:
    """``about 40 s``, ``about 3 min``, ``about 2.5 h``, or ``unknown``."""
    if seconds is None:
        return "unknown"
    if seconds < 100:
        return f"about {seconds:.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 6000 else f"about {seconds / 3600:.1f} h"


def divide_time(started: float, ended: float, stages: Iterable[CellStage]) -> TimeBreakdown:
    """Divide the time between two moments (seconds since the epoch) among the stages."""
    begins = [(s, datetime.fromisoformat(s.started).timestamp()) for s in stages if not s.cached]
    spans = [(stage.name, begin, begin + stage.seconds) for stage, begin in begins]
    moments = {min(max(moment, started), ended) for _, *span in spans for moment in span}
    total = dict.fromkeys((*STAGES, "other"), 0.0)
    for before, after in pairwise(sorted({started, ended, *moments})):
        running = {name for name, begin, end in spans if begin <= before and after <= end}
        total[next((name for name in STAGES if name in running), "other")] += after - before
    return TimeBreakdown(
        round(ended - started, 3), **{f"{name}_s": round(total[name], 3) for name in total}
    )
