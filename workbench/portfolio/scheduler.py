"""Run a matrix: export, measure and report every cell, once."""

import os
import shlex
import time
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace
from pathlib import Path

from workbench.errors import TraceError
from workbench.options import Progress, silent
from workbench.portfolio.executor import LOCAL, Submit, open_executor
from workbench.portfolio.matrix import HOST, Matrix, plan_cells, read_matrix, select_cells
from workbench.portfolio.stages import Job, adopt_export, read_waiting, run_job
from workbench.portfolio.state import Storage, load_outcomes, open_storage, outcome_path, publish
from workbench.records.codec import to_json
from workbench.records.portfolio import STAGES, Cell, Outcome, Portfolio
from workbench.run.locks import THIS_MACHINE, device_behind, lock_folder
from workbench.run.plan import check_toggle
from workbench.run.runner import find_runner
from workbench.store import remove_partials, safe_name

#: Seconds after which what a job waits for is looked up again.
POLL_S = 5
RUNNING = {"export": "exporting", "measure": "measuring", "report": "reporting"}
#: One export needs about two gigabytes of memory.
MAX_JOBS = 4


def batch(
    matrix: str | Path,
    *,
    out: str | Path | None = None,
    jobs: int | None = None,
    dask: str = "",
    only: str = "",
    progress: Progress = silent,
) -> Portfolio:
    """Export, measure and report every cell of a matrix; finished cells are skipped.

    Exports run first, in parallel, then measurements, one at a time per device, then reports. If a
    cell fails, the others go on.

    Parameters
    ----------
    matrix
        A YAML file with ``models``, ``dtypes``, ``targets``, ``isa``, and any option of exports
        and measurements. ``notebook`` is the report's, with a cell tagged ``parameters``.
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
    path = Path(matrix)
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
        outcomes = load_outcomes(cells, storage, content.notebook)
        publish(storage, content, outcomes.values())
        todo = [cell for cell in selected if remaining_stages(outcomes[cell.name])]
        if todo:
            retry = ["workbench", "batch", str(path)]
            retry += [*(["--out", str(out)] if out else []), *(["--dask", dask] if dask else [])]
            devices = sorted({device_behind(cell.target) for cell in todo})
            cores = os.cpu_count()
            if hasattr(os, "sched_getaffinity"):
                cores = len(os.sched_getaffinity(0))
            jobs = jobs or max(1, min(cores or 1, MAX_JOBS))
            with open_executor(jobs, devices, dask) as submit:
                Scheduler(content, storage, outcomes, todo, retry, submit, progress).run()
        return publish(storage, content, outcomes.values())


class Scheduler:
    """Runs the remaining stages of cells; their outcomes are always up to date on disk."""

    def __init__(
        self, matrix: Matrix, storage: Storage, outcomes: dict[str, Outcome], cells: list[Cell],
        retry: list[str], submit: Submit, progress: Progress,
    ):  # fmt: skip
        self.matrix, self.storage, self.outcomes, self.cells = matrix, storage, outcomes, cells
        self.retry, self.submit, self.progress = retry, submit, progress
        self.waiting, self.running = list[Job](), dict[Future[Outcome], Job]()
        self.finished, self.started, self.publish_at = Counter[str](), time.monotonic(), 0.0
        stages = [(stage, c) for c in cells for stage in remaining_stages(outcomes[c.name])]
        self.todo, self.counts = len(stages), Counter(stage for stage, _ in stages)
        # Cells with the same program share its export.
        self.counts["export"] = len({cell.stem for stage, cell in stages if stage == "export"})

    def run(self) -> None:
        """Run everything that the cells need."""
        exported = set[str]()
        for cell in self.cells:
            stage = remaining_stages(self.outcomes[cell.name])[0]
            if stage != "export" or cell.stem not in exported:
                self._enqueue(stage, cell)
            if stage == "export":
                exported.add(cell.stem)
        while self.waiting or self.running:
            self._start_jobs()
            for future in wait(self.running, POLL_S, return_when=FIRST_COMPLETED).done:
                self._finish(self.running.pop(future), future)

    def _enqueue(self, stage: str, cell: Cell) -> None:
        self.waiting.append(Job(stage, self.outcomes[cell.name], self.matrix, self.storage))

    def _start_jobs(self) -> None:
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
                self.running[self.submit(run_job, job, job.device)] = job
                for cell in self.cells:
                    if cell == job.cell or (job.stage == "export" and cell.stem == job.cell.stem):
                        known = self.outcomes[cell.name]
                        self._update(replace(known, doing=RUNNING[job.stage]))
        first = next(iter(self.running.values()))  # of a device's jobs, this one runs
        count = f"{self.finished[first.stage] + 1} of {self.counts[first.stage]}"
        words = [f"{RUNNING[first.stage]} {count}: {first.cell.name}", read_waiting(first)]
        self._report_progress(": ".join(filter(None, words)))

    def _finish(self, job: Job, future: Future[Outcome]) -> None:
        """Update the cells that a job was for, and enqueue their next stage."""
        error = future.exception()
        self.finished[job.stage] += 1
        later = STAGES[STAGES.index(job.stage) + 1 :]
        for cell in self.cells:
            outcome = self.outcomes[cell.name]
            shared = job.stage == "export" and cell.stem == job.cell.stem
            if cell != job.cell and not (shared and "export" in remaining_stages(outcome)):
                continue
            if error:
                outcome = self._fail(outcome, job, error)
                self.counts.subtract(later)
            elif cell == job.cell:
                outcome = future.result()
            else:
                outcome = adopt_export(outcome, future.result())
            self._update(outcome)
            if not error and later:
                self._enqueue(later[0], cell)
        if error:
            self._report_progress(f"{job.cell.name}: {job.stage} failed: {error}")

    def _fail(self, outcome: Outcome, job: Job, error: BaseException) -> Outcome:
        return replace(
            outcome,
            state="failed",
            doing="",
            failed_stage=job.stage,
            error=" ".join(f"{error}".split()) or type(error).__name__,
            log=job.log,
            retry=shlex.join([*self.retry, "--only", outcome.cell.name]),
            # A trace that cannot be read has to be measured again, whatever its hash.
            files={} if isinstance(error, TraceError) else outcome.files,
        )

    def _update(self, outcome: Outcome) -> None:
        """Replace the outcome of its cell."""
        self.outcomes[outcome.cell.name] = outcome
        self.storage.write(outcome_path(outcome.cell), to_json(outcome))
        if (started := time.monotonic()) > self.publish_at:
            publish(self.storage, self.matrix, self.outcomes.values())
            # Spend at most 5 % of the time on this; with thousands of cells it is slow.
            self.publish_at = time.monotonic() + 20 * (time.monotonic() - started)

    def _report_progress(self, text: str) -> None:
        """Report a text with the time left: the stages to do take as long as those done so far."""
        outcomes = [self.outcomes[cell.name] for cell in self.cells]
        left = sum(len(remaining_stages(o)) for o in outcomes if o.state == "open")
        done = self.todo - left
        seconds = (time.monotonic() - self.started) * left / done if done and left else 0.0
        minutes = f", about {seconds / 60:.0f} min left" if seconds > 90 else ""
        self.progress(text + minutes, done / self.todo)


def list_plan(
    path: str | Path, *, out: str | Path | None = None, only: str = ""
) -> list[tuple[Cell, tuple[str, ...]]]:
    """The cells of a batch, each with the stages that it still needs."""
    matrix = read_matrix(Path(path))
    cells, storage = plan_cells(matrix), open_storage(portfolio_location(Path(path), out))
    outcomes = load_outcomes(cells, storage, matrix.notebook)
    return [(cell, remaining_stages(outcomes[cell.name])) for cell in select_cells(cells, only)]


def portfolio_location(path: Path, out: str | Path | None) -> str | Path:
    """Where the portfolio of a matrix is; ``portfolio_<matrix>`` by default."""
    return out or f"portfolio_{safe_name(path.stem)}"


def remaining_stages(outcome: Outcome) -> tuple[str, ...]:
    """The stages that a cell still needs."""
    if outcome.state == "done":
        return ()
    return ("report",) if outcome.run_dir else STAGES
