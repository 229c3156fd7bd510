"""Run a matrix as tasks of Dask: export, measure and report every cell, once."""

from __future__ import annotations

import contextlib
import faulthandler
import filecmp
import glob
import logging
import os
import platform
import shlex
import time
import traceback
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench import WorkbenchError, export_model, find_runner, make_report, open_run
from workbench.api import UsageError
from workbench.graphs import versions
from workbench.jobs import (
    Progress,
    atomic_write,
    check_toggle,
    device_behind,
    is_reported,
    lock_device,
    lock_folder,
    safe_name,
    silent,
    write_artifacts,
)
from workbench.plugins.batch.matrix import HOST, Cell, Matrix, plan_cells, read_matrix, select_cells
from workbench.plugins.batch.portfolio import Portfolio, list_rows, publish, recall_cells

if TYPE_CHECKING:
    from distributed import Client, Future, SpecCluster

#: ``--dask local:2``: two workers on this machine.
LOCAL = "local"
#: One export needs about two gigabytes of memory.
MAX_JOBS = 4
CONNECT_S = 20
#: How often a task is started whose worker dies: the first time, it may have been another's fault.
MAX_STARTS = 2
TIMEOUT = "Timeout ("  #: What `faulthandler` writes before the tracebacks.
#: Of workers on this machine: a task that kills them fails alone (`count_starts`), and those that
#: wait take no time from a measurement.
SETTINGS: dict[str, Any] = {
    "distributed.scheduler.allowed-failures": 10**6,
    "distributed.scheduler.worker-ttl": None,
    "distributed.nanny.pre-spawn-environ": {
        "PYTHONDONTWRITEBYTECODE": ""
    },  # workers keep what they compile
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
}


def batch(
    matrix: str | Path,
    *,
    out: str | Path | None = None,
    jobs: int | None = None,
    dask: str = "",
    only: str = "",
    progress: Progress = silent,
) -> Portfolio:
    """Export, measure and report every cell of a matrix; what is finished is not done again.

    Exports run first, in parallel, then measurements, one at a time per device, then reports. If a
    cell fails, the others go on.

    Parameters
    ----------
    matrix
        A YAML file with ``models``, ``dtypes``, ``targets``, ``isa``, and any option of exports
        and measurements. ``notebook`` is the report's, with a cell tagged ``parameters``.
    out
        The portfolio's folder, which all workers see; ``portfolio_<matrix>`` by default.
    jobs
        Workers on this machine; by default one per usable core, at most four.
    dask
        A scheduler's address, or ``local:WORKERS``, which is ``jobs``.
    only
        A pattern of cell names, such as ``toy_cnn/*``.
    progress
        Receives what is being done, and the fraction done (0 to 1).

    Returns
    -------
    Portfolio
        Its ``cells`` have a ``state``, and a ``run`` and a ``report`` in its ``folder``.

    Raises
    ------
    UsageError
        The matrix is bad, an extension is not supported here, or another batch uses the folder.
    StoreError
        The portfolio cannot be written.
    WorkbenchError
        The Dask scheduler does not answer, or has no worker with a device.

    Examples
    --------
    >>> portfolio = wb.batch("matrix.yaml", only="toy_cnn/*")  # doctest: +SKIP
    >>> [cell.state for cell in portfolio.cells]  # doctest: +SKIP
    ['done', 'done']
    >>> wb.open_run(f"{portfolio.folder}/{portfolio.cells[0].run}")  # doctest: +SKIP
    """
    path, content = Path(matrix), read_matrix(Path(matrix))
    cells = plan_cells(content)
    selected = select_cells(cells, only)
    if HOST in content.targets and (not dask or dask.startswith(LOCAL)):
        _check_toggles(content)
    folder, devices = locate_portfolio(path, out).resolve(), name_devices(selected)
    with lock_folder(folder), open_client(jobs or count_jobs(), devices, dask) as client:
        by_name = {c.name: c for c in (*recall_cells(cells, content, folder), *selected)}
        command = _write_command(path, out, dask)
        work = RunningBatch(content, folder, by_name, command, client, progress)
        work.run_all(selected)
        return publish(folder, content, [*work.cells.values()])


def _check_toggles(matrix: Matrix) -> None:
    """UsageError if this machine has not a CPU extension of a matrix."""
    runner = find_runner()
    for isa in matrix.isa:
        check_toggle(matrix.measure_options(HOST, isa), runner)


def name_devices(cells: Sequence[Cell]) -> list[str]:
    """The devices that some cells are measured on."""
    return sorted({device_behind(cell.target) for cell in cells})


def _write_command(path: Path, out: str | Path | None, dask: str) -> list[str]:
    """The command that does the same."""
    command = ["workbench", "batch", str(path), *(["--out", str(out)] if out else [])]
    return [*command, "--dask", dask] if dask else command


@dataclass
class RunningBatch:
    """A batch in progress: its cells by name; the page on disk follows."""

    matrix: Matrix
    folder: Path
    cells: dict[str, Cell]
    command: list[str]
    client: Client
    progress: Progress
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    doing: str = ""
    fraction: float = 0.0
    publish_at: float = 0.0

    def run_all(self, cells: Sequence[Cell]) -> None:
        """Run all stages of these cells, and say what the workers do."""
        self.client.subscribe_topic(self.name, lambda event: self.tell(event[1]))
        for stage in STAGES:
            self.run(stage, cells)

    def run(self, stage: str, cells: Sequence[Cell]) -> None:
        """Run a stage of these cells, unless they failed; those of one program share its export."""
        from distributed import as_completed

        groups = defaultdict[str, list[Cell]](list)
        for cell in (self.cells[each.name] for each in cells):
            if cell.state == "open":
                groups[cell.stem if stage == "export" else cell.name].append(cell)
                self.cells[cell.name] = replace(cell, doing=STAGES[stage][0])
        todo = {self.submit(stage, group[0]): group for group in groups.values()}
        futures = as_completed(list(todo))
        while todo:
            done = len(groups) - len(todo)
            self.doing = f"{STAGES[stage][0]} {done + 1} of {len(groups)}"
            self.fraction = ([*STAGES].index(stage) + done / len(groups)) / len(STAGES)
            self.tell(next(iter(todo.values()))[0].name)
            self.publish()
            future = next(futures)
            for cell in todo.pop(future):
                self.cells[cell.name] = self.finish(stage, cell, future)

    def submit(self, stage: str, cell: Cell) -> Future:
        """Let a worker run a stage of a cell, one with the device if it measures."""
        device = {resource_of(device_behind(cell.target)): 1} if stage == "measure" else None
        task = Task(stage, cell, self.matrix, self.folder, self.name, versions())
        return self.client.submit(run_task, task, resources=device, pure=False)

    def finish(self, stage: str, cell: Cell, future: Future) -> Cell:
        """The cell after a stage."""
        if future.cancelled():
            hint = "start it, and run the same command again to resume"
            raise WorkbenchError("the Dask scheduler is gone", hint=hint)
        error = future.exception()
        if not error:
            return replace(cell, **future.result())
        text = f"{stage} failed: {' '.join(f'{error}'.split()) or type(error).__name__}"
        if stage == "report":
            text += f"; to measure again, delete {self.folder / cell.run}"
        self.progress(f"{cell.name}: {text}", self.fraction)
        retry = shlex.join([*self.command, "--only", cell.name])
        return replace(cell, state="failed", error=text, retry=retry)

    def tell(self, text: str) -> None:
        """Say what runs."""
        self.progress(f"{self.doing}: {text}", self.fraction)

    def publish(self) -> None:
        """Write the page, in at most 5 % of the time: of thousands of cells it takes seconds."""
        started = time.monotonic()
        if started > self.publish_at:
            publish(self.folder, self.matrix, [*self.cells.values()])
            self.publish_at = time.monotonic() + 20 * (time.monotonic() - started)


@dataclass(frozen=True)
class Task:
    """A stage of a cell of a batch, which began with these versions."""

    stage: str
    cell: Cell
    matrix: Matrix
    folder: Path
    batch: str
    versions: dict[str, str]

    @property
    def root(self) -> Path:
        """The local folder of the cell."""
        return self.folder / self.cell.folder


def run_task(task: Task) -> dict[str, Any]:
    """Run a task on a worker, once the machine is free; returns the cell's new fields."""
    from distributed import get_worker

    def tell(text: str, _: float) -> None:
        get_worker().log_event(task.batch, f"{task.cell.name}: {text}")

    cell, folder = task.cell, task.folder
    # A measurement locks its device itself.
    is_timed = task.stage == "measure"
    free = contextlib.nullcontext() if is_timed else lock_device(HOST, tell, shared=True)
    try:
        if (here := versions()) != task.versions:
            hint = f"install the same everywhere: {task.versions}"
            raise WorkbenchError(f"this worker has {here}", where=platform.node(), hint=hint)
        if not folder.is_dir():
            what = f"this worker ({platform.node()}) cannot see the portfolio"
            raise WorkbenchError(what, where=folder, hint="--out a shared folder")
        with free, count_starts(task, folder / f"{cell.log}.starts"):
            return STAGES[task.stage][1](task, tell)
    except BaseException as error:
        atomic_write(folder / cell.log, "".join(traceback.format_exception(error)))
        if isinstance(error, Exception):
            raise
        raise WorkbenchError(f"raised {type(error).__name__}") from error  # or the worker ends


@contextlib.contextmanager
def count_starts(task: Task, note: Path) -> Iterator[None]:
    """Refuse a task in which a worker hung, or two died; limit the time of an export.

    Only the end of the worker stops native code. The file ``note`` has the starts, and where it
    hung.
    """
    limit_s, start = task.matrix.export_limit_s, f"{task.batch} {task.stage}\n"
    earlier = note.read_text(errors="replace") if note.exists() else ""
    note.unlink(missing_ok=True)
    if start in earlier and TIMEOUT in earlier:
        error = WorkbenchError(f"took longer than {limit_s:g} s", hint="its log has the traceback")
        error.add_note(earlier)
        raise error
    if earlier.count(start) == MAX_STARTS:
        hint = "if it ran out of memory (see `dmesg`), use fewer --jobs"
        raise WorkbenchError(f"the worker process died {MAX_STARTS} times", hint=hint)
    atomic_write(note, start * (earlier.count(start) + 1))
    with open(note, "a") as file:
        if task.stage == "export":
            faulthandler.dump_traceback_later(limit_s, exit=True, file=file)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
            note.unlink(missing_ok=True)


def export_cell(task: Task, progress: Progress) -> dict[str, Any]:
    """Export the program of a cell, unless it is up to date; copy one that was given."""
    model = task.cell.model
    path = task.root / "artifacts" / Path(model).name
    if model in task.matrix.programs:
        for source in filter(Path.is_file, Path(model).parent.glob(f"{glob.escape(path.name)}*")):
            copy = path.with_name(source.name)
            if not (copy.is_file() and filecmp.cmp(source, copy, shallow=False)):
                atomic_write(copy, source.read_bytes())
    else:
        options = replace(task.matrix.export, dtype=task.cell.dtype)
        program = export_model(model, options=options, root=task.root, progress=progress)
        path = program.path
        if program.export and not program.export.runs:
            raise WorkbenchError(program.export.problem, where=path)
    return {"program": path.relative_to(task.folder).as_posix()}


def measure_cell(task: Task, progress: Progress) -> dict[str, Any]:
    """Measure a cell, unless there is a finished run of its plan; continue an interrupted one."""
    from workbench import measure

    cell = task.cell
    options = task.matrix.measure_options(cell.target, cell.isa)
    path = measure(
        task.folder / cell.program, options=options, root=task.root,
        again=False, artifacts=False, progress=progress,
    ).path  # fmt: skip
    return {"run": path.relative_to(task.folder).as_posix()}


def report_cell(task: Task, progress: Progress) -> dict[str, Any]:
    """Write the files and the report of a run, unless they are there; tabulate and validate it."""
    name, notebook = task.cell.run, task.matrix.notebook
    run = open_run(task.folder / name)
    if not is_reported(run.path, notebook):
        write_artifacts(run)
        make_report(run, notebook=notebook)
    checks = run.checks
    failures = checks[checks["status"] == "fail"]
    problem = "; ".join(failures["check"] + ": " + failures["evidence"])
    fields = {"report": f"{name}/report.html", "rows": list_rows(run)}
    return {"state": "done", "problem": problem, **fields}


#: What a stage is called while it runs, and what it does.
STAGES: dict[str, tuple[str, Callable[[Task, Progress], dict[str, Any]]]] = {
    "export": ("exporting", export_cell),
    "measure": ("measuring", measure_cell),
    "report": ("reporting", report_cell),
}


@contextlib.contextmanager
def open_client(jobs: int, devices: Sequence[str], dask: str) -> Iterator[Client]:
    """A client of workers on this machine, which end with it, or of a Dask cluster's."""
    try:
        from dask import config
        from distributed import Client
    except ModuleNotFoundError:
        what, install = "Dask is not installed", "executorch-workbench[batch]"
        raise WorkbenchError(what, install=install) from None
    kind, _, count = dask.partition(":")
    if count and kind == LOCAL and not (count.isdecimal() and 1 <= int(count) <= 256):
        raise UsageError("bad number of workers", where=f"--dask {dask}", hint="local:2")
    with contextlib.ExitStack() as stack:
        try:
            cluster: str | SpecCluster = dask
            if kind in ("", LOCAL):
                stack.enter_context(config.set(SETTINGS))
                cluster = stack.enter_context(start_cluster(int(count or jobs), devices))
            client = stack.enter_context(Client(cluster, timeout=CONNECT_S))
        except Exception as error:  # whatever parsing the answer of another program raises
            if kind in ("", LOCAL):
                hint = "mount /dev/shm, which has the semaphores of processes"
                raise WorkbenchError(f"cannot start workers: {error}", hint=hint) from None
            hint = "start one with `dask scheduler`; its address looks like tcp://HOST:8786"
            reason = f"no Dask scheduler answers: {error}"
            raise WorkbenchError(reason, where=dask, hint=hint) from None
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        offered = {name for worker in workers for name in worker.get("resources", {})}
        for device in devices:
            if (resource := resource_of(device)) not in offered:  # its jobs would wait for ever
                hint = f"dask worker ADDRESS --nthreads 1 --resources '{resource}=1'"
                raise WorkbenchError("no Dask worker has the device", where=device, hint=hint)
        yield client


def start_cluster(count: int, devices: Sequence[str]) -> SpecCluster:
    """Workers on this machine, which only it can reach; each device is one worker's."""
    from distributed import Nanny, Scheduler, SpecCluster

    place = {"host": "127.0.0.1", "dashboard": False}
    options = {**place, "nthreads": 1, "memory_limit": 0, "silence_logs": logging.CRITICAL}
    workers = {}
    for number in range(count):
        resources = {resource_of(device): 1 for device in devices[number::count]}
        workers[number] = {"cls": Nanny, "options": {**options, "resources": resources}}
    scheduler = {"cls": Scheduler, "options": {**place, "port": 0, "dashboard_address": ":0"}}
    return SpecCluster(workers, scheduler, silence_logs=logging.CRITICAL)


def resource_of(device: str) -> str:
    """The Dask resource of a worker that may measure on a device."""
    return f"device:{device}"


def count_jobs() -> int:
    """One worker for each usable core, as far as memory allows on most machines."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(cores or 1, MAX_JOBS)


def locate_portfolio(path: Path, out: str | Path | None) -> Path:
    """Where the portfolio of a matrix is; ``portfolio_<matrix>`` by default."""
    return Path(out or f"portfolio_{safe_name(path.stem)}")


def list_cells(path: str | Path, *, out: str | Path | None = None, only: str = "") -> list[Cell]:
    """The cells of a batch as the last one left them; a change of a model is seen by an export."""
    matrix, folder = read_matrix(Path(path)), locate_portfolio(Path(path), out).resolve()
    selected = select_cells(plan_cells(matrix), only)
    return recall_cells(selected, matrix, folder)
