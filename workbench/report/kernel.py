"""Execute a notebook by papermill, in a kernel of this Python."""

import ast
import logging
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import nbformat
import papermill
from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from jupyter_core.utils import run_sync
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from papermill.engines import NBClientEngine, papermill_engines
from traitlets import List

from workbench import errors
from workbench.errors import UsageError, WorkbenchError, printable, unknown_name
from workbench.options import Progress, silent
from workbench.plots.style import FIGURES
from workbench.plots.views import list_sections
from workbench.plugin import Section
from workbench.process import child_environment
from workbench.report.notebooks import notebooks_dir
from workbench.store import atomic_write, cache_folder

ENGINE = "workbench"
#: Seconds that a kernel may take to start, and that a cell may run.
START_LIMIT_S, CELL_LIMIT_S = 120, 1800
#: A kernel without its debugger, which takes half a second to import, and without a history. It has
#: imported what a report needs when it is ready: it may be started before there is a run.
LAUNCH = "import sys; sys.modules['debugpy'] = None; "
LAUNCH += "import workbench.plots.views, workbench.report.artifacts, workbench.plugin; "
LAUNCH += "workbench.plugin.import_shown('page'); "
LAUNCH += "from ipykernel.kernelapp import launch_new_instance as launch; launch()"
COMMAND = [sys.executable, "-P", "-c", LAUNCH, "-f", "{connection_file}"]
COMMAND += ["--HistoryManager.enabled=False"]
#: For notebooks of the package: modules in the working directory are not imported.
IGNORE_FOLDER = "--InteractiveShellApp.ignore_cwd=True"
KERNELSPEC = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
PARAMETERS = "parameters"  #: The tag of the cell with the parameters.
SECTIONS = "sections"  #: The tag of the cell in whose place plug-ins put their sections.
MAY_FAIL = "raises-exception"  #: The tag of cells whose failure costs their part of a report only.
FAILED = "this part failed"


class Kernel(AsyncKernelManager):
    """A kernel of this Python, without the user's kernels, start-up files and widgets."""

    clients: Any = List()

    @property
    def kernel_spec(self) -> KernelSpec:
        """How to start it."""
        return KernelSpec(argv=COMMAND, language="python")

    async def _async_start_kernel(self, **options: Any) -> None:
        folder = str(cache_folder() / "ipython")
        options["env"] = {
            **child_environment(),
            "IPYTHONDIR": folder,
            "WORKBENCH_WIDGETS": "0",
            FIGURES: "svg",
        }
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        await super()._async_start_kernel(**options, **quiet)

    start_kernel = _async_start_kernel

    def client(self, **options: Any) -> AsyncKernelClient:
        """A client of the kernel, kept to be closed."""
        self.clients.append(super().client(**options))
        return self.clients[-1]

    def wait(self) -> None:
        """Wait until it is ready, and has imported what it imports, or has died."""
        client = self.client()
        client.start_channels()
        with suppress(RuntimeError):
            run_sync(client.wait_for_ready)(START_LIMIT_S)


@contextmanager
def open_kernel(packaged: bool = True) -> Iterator[Kernel]:
    """A kernel that was started, for a notebook of the package or another; killed at the end."""
    kernel = Kernel(kernel_name="python3", clients=[])
    try:
        run_sync(kernel.start_kernel)(extra_arguments=[IGNORE_FOLDER] if packaged else [])
        yield kernel
    finally:
        run_sync(kernel.shutdown_kernel)(now=True)
        for client in kernel.clients:
            client.stop_channels()


class Engine(NBClientEngine):  # type: ignore[misc]  # papermill has no types
    """papermill's engine; ``notebooks`` gets the notebook, to be there also after a failure."""

    @classmethod
    def execute_managed_notebook(
        cls, manager: Any, kernel_name: str, *, notebooks: list[NotebookNode], **options: Any
    ) -> None:
        """Execute the notebook that the manager holds; of cells that may fail, show why."""
        notebooks.append(manager.nb)
        super().execute_managed_notebook(manager, kernel_name, **options)
        for cell in manager.nb.cells:
            if MAY_FAIL in cell.metadata.get("tags", []):
                cell.outputs = [_show_failure(output) for output in cell.outputs]


def _show_failure(output: NotebookNode) -> NotebookNode:
    """What a page shows of an error; any other output."""
    if output.output_type != "error":
        return output
    text = printable(" ".join(f"{FAILED}: {output.ename}: {output.evalue}".split()))
    return nbformat.v4.new_output("display_data", {"text/plain": text})


papermill_engines.register(ENGINE, Engine)


@contextmanager
def _silence_papermill() -> Iterator[None]:
    """Drop what papermill logs meanwhile: it raises whatever it logs as an error."""

    def drop(_: logging.LogRecord) -> bool:
        return False

    logger = logging.getLogger("papermill")
    logger.addFilter(drop)
    try:
        yield
    finally:
        logger.removeFilter(drop)


def run_notebook(
    template: Path,
    parameters: Mapping[str, object],
    *,
    closing: str = "",
    failed: Path | None = None,
    kernel: Kernel | None = None,
    progress: Progress = silent,
) -> tuple[NotebookNode, dict[str, Any]]:
    """Execute a notebook, and then ``closing``, which is code that becomes no part of it.

    Returns the notebook with its outputs, and the JSON that ``closing`` displays. If a cell fails,
    what was executed is written to ``failed``. Runs in ``kernel``, or in one of its own.

    Raises
    ------
    UsageError
        The notebook cannot be read, or has no such parameter.
    WorkbenchError
        A cell raised an error or took too long, or the kernel died.
    """
    notebook = read_template(template, parameters)
    insert_sections(notebook)
    packaged = template.resolve().parent == notebooks_dir()
    notebook.cells += [nbformat.v4.new_code_cell(closing)] if closing else []
    execution = Execution(notebook, template.name, parameters, packaged, progress)
    failure = execution.run(kernel)
    if failure is None:
        execution.warn_of_failed_parts()
        return _finish(execution.executed[0], template, closing)
    kind, reason = failure
    what, _, hint = reason.partition(" -> ")
    if packaged and kind:  # the run is at fault, and not the notebook
        raise kind(what, hint=hint or None)
    if failed and execution.executed:
        partial, _ = _finish(execution.executed[0], template, closing)
        atomic_write(failed, nbformat.writes(partial))
        hint = hint or f"what ran is in {failed}"
    where = f"{template.name}, cell {execution.number}"
    raise (kind or WorkbenchError)(what, where=where, hint=hint or None)


@dataclass
class Execution:
    """A notebook that papermill executes; ``number`` is that of the cell that runs."""

    notebook: NotebookNode
    name: str
    parameters: Mapping[str, object]
    packaged: bool
    progress: Progress
    number: int = 0
    executed: list[NotebookNode] = field(default_factory=list)

    def run(self, kernel: Kernel | None) -> tuple[type[WorkbenchError] | None, str] | None:
        """Execute it, in another kernel if one dies at start; the kind of a failure, and why."""
        try:
            try:
                self._execute(kernel)
            except RuntimeError:  # it died, or did not start
                if self._has_begun():
                    raise
                self.executed.clear()
                self._execute(None)
        except papermill.PapermillExecutionError as error:
            # The cell with the values comes after that with the parameters.
            self.number = error.cell_index
            kind = getattr(errors, error.ename, None)
            if isinstance(kind, type) and issubclass(kind, WorkbenchError):
                return kind, error.evalue
            return None, f"{error.ename}: {error.evalue}"
        except CellTimeoutError:
            return None, f"took longer than {CELL_LIMIT_S} s"
        except DeadKernelError:
            return None, "the kernel died; it may have run out of memory"
        except RuntimeError as error:
            return None, f"the kernel did not start: {error}"
        return None

    def warn_of_failed_parts(self) -> None:
        """Say which cells that may fail did."""
        heading = self.name
        for cell in self.executed[0].cells:
            if cell.cell_type == "markdown":
                heading = cell.source.partition("\n")[0]
            for output in cell.get("outputs", []):
                text = output.get("data", {}).get("text/plain", "")
                if MAY_FAIL in cell.metadata.get("tags", []) and text.startswith(FAILED):
                    self.progress(f"warning: {heading.strip('# ')}: {text}", 1.0)

    def _execute(self, kernel: Kernel | None) -> None:
        opening = nullcontext(kernel) if kernel else open_kernel(self.packaged)
        with _silence_papermill(), opening as running:
            papermill.execute_notebook(
                self.notebook, None, dict(self.parameters), engine_name=ENGINE,
                kernel_name="python3", request_save_on_cell_execute=False, progress_bar=False,
                start_timeout=START_LIMIT_S, execution_timeout=CELL_LIMIT_S,
                on_cell_start=self._follow, notebooks=self.executed, km=running,
            )  # fmt: skip

    def _follow(self, cell: NotebookNode, cell_index: int) -> None:
        self.number = cell_index
        self.progress(f"running {self.name}", cell_index / len(self.notebook.cells))

    def _has_begun(self) -> bool:
        cells = (cell for each in self.executed for cell in each.cells)
        return any(cell.get("execution_count") for cell in cells)


def _list_assigned(source: str) -> set[str]:
    """The names that code assigns."""
    names = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name))
    return {name.id for name in names if isinstance(name.ctx, ast.Store)}


def read_template(template: Path, parameters: Mapping[str, object]) -> NotebookNode:
    """A notebook whose cell with the parameters assigns all of these."""
    try:
        notebook = nbformat.v4.upgrade(nbformat.read(template, as_version=4))
        nbformat.validate(notebook, relax_add_props=True)
        tagged = [c.source for c in notebook.cells if PARAMETERS in c.metadata.get("tags", [])]
        assigned = _list_assigned("\n".join(tagged))
    except FileNotFoundError:
        raise UsageError("no such notebook", where=template) from None
    except SyntaxError as error:
        raise UsageError(f"cannot read its parameters: {error}", where=template) from None
    except Exception as error:  # nbformat raises almost anything
        text = str(error).partition("\n")[0]
        raise UsageError(f"is not a notebook: {text}", where=template) from None
    if not tagged:
        hint = f'tag the cell with `run_dir = ""` as `{PARAMETERS}`'
        raise UsageError(f"has no cell that is tagged `{PARAMETERS}`", where=template, hint=hint)
    for name in parameters:
        if name not in assigned:
            raise unknown_name("parameter", name, assigned, where=template)
    notebook.metadata["kernelspec"] = KERNELSPEC
    return notebook


def insert_sections(notebook: NotebookNode) -> None:
    """Put the sections of plug-ins into a notebook that has a cell tagged ``sections``.

    They stand in the place of this cell, or after the section that they name. Such a notebook has
    its run in ``run``. A section that fails costs itself only.
    """
    cells = notebook.cells
    marks = [cell for cell in cells if SECTIONS in cell.metadata.get("tags", [])]
    for view, section in list_sections().items() if marks else ():
        place = _find_end(cells, section.after) or cells.index(marks[0])
        cells[place:place] = _make_section(section, view)
    notebook.cells = [cell for cell in cells if cell not in marks]


def _find_end(cells: Sequence[NotebookNode], heading: str) -> int:
    """Where the section with this heading ends; 0 if there is none."""
    starts = [n for n, cell in enumerate(cells) if cell.source.startswith("## ")]
    for start, end in pairwise([*starts, len(cells)]):
        if cells[start].source.partition("\n")[0] == f"## {heading}":
            return end
    return 0


def _make_section(section: Section, view: str) -> tuple[NotebookNode, NotebookNode]:
    tags = {"tags": ["folded"]} if section.folded else {}
    text = nbformat.v4.new_markdown_cell(f"## {section.heading}\n\n{section.text}", metadata=tags)
    code = f"wb.show(run, {view!r})"
    return text, nbformat.v4.new_code_cell(code, metadata={"tags": [MAY_FAIL]})


def _finish(
    notebook: NotebookNode, template: Path, closing: str
) -> tuple[NotebookNode, dict[str, Any]]:
    """The notebook without the closing cell, and what that displayed."""
    notebook.metadata.papermill["input_path"] = template.name
    outputs = notebook.cells.pop().outputs if closing else []
    documents = [output.data for output in outputs if output.output_type == "display_data"]
    return notebook, next((data["application/json"] for data in documents), {})
