"""An engine for papermill without a kernel: cells run in this very process.

Run the numbered notebooks headless, through papermill.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import nbformat
from IPython.core.displayhook import DisplayHook
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell
from IPython.core.pylabtools import select_figure_formats
from IPython.utils.capture import capture_output
from matplotlib_inline.config import InlineBackend
from papermill.engines import Engine, papermill_engines
from traitlets import Type

import workbench
from workbench.errors import ReportError, SetupError, unknown_name

ENGINE = "inprocess"


class Publisher(DisplayHook):
    """Shows what a cell ends with as it shows all else, instead of printing it."""

    def write_output_prompt(self) -> None:
        """Leave out ``Out[1]:``."""

    def write_format_data(
        self, data: dict[str, Any], metadata: dict[str, Any] | None = None
    ) -> None:
        """Show it."""
        self.shell.display_pub.publish(data, metadata or {})

    def finish_displayhook(self) -> None:
        """Leave out the line break."""


class Shell(InteractiveShell):
    """An IPython that no terminal and no kernel belongs to."""

    displayhook_class = Type(Publisher)


class InProcessEngine(Engine):
    """What the process has imported and analysed already need not be so again.

    Only for processes that have no IPython of their own to lose, one notebook at a time.
    """

    @classmethod
    def execute_managed_notebook(cls, nb_man: Any, kernel_name: str, **options: Any) -> None:
        """Run the cells until one fails; what they show becomes their outputs."""
        shell = open_shell()
        # Nobody watches it grow: papermill writes it when it is done, or has failed.
        nb_man.output_path = None
        for index, cell in enumerate(nb_man.nb.cells):
            nb_man.cell_start(cell, index)
            failed = None
            if cell.cell_type == "code":
                with capture_output() as shown:
                    failed = run_cell(shell, cell.source)
                cell.outputs = list(collect_outputs(shown, failed, shell))
            if failed is not None:
                nb_man.cell_exception(cell, index, exception=failed)
                return
            nb_man.cell_complete(cell, index)


def open_shell() -> InteractiveShell:
    """An IPython without names, which draws figures as notebooks do."""
    import matplotlib as mpl

    mpl.use("agg")
    shell = Shell.instance()
    shell.reset(new_session=True)
    drawing = InlineBackend.instance(parent=shell)
    select_figure_formats(shell, drawing.figure_formats, **drawing.print_figure_kwargs)
    return shell


def run_cell(shell: InteractiveShell, source: str) -> BaseException | None:
    """Run a cell's code; the error that it ended with, if it did."""
    result: ExecutionResult = shell.run_cell(source, store_history=False)
    return result.error_before_exec or result.error_in_exec


def collect_outputs(
    shown: Any, error: BaseException | None, shell: InteractiveShell
) -> Iterator[nbformat.NotebookNode]:
    """Outputs of a cell as a notebook has them."""
    for output in shown.outputs:
        data = {kind: as_text(content) for kind, content in output.data.items()}
        yield nbformat.v4.new_output("display_data", data, metadata=output.metadata or {})
    for name, text in (("stdout", shown.stdout), ("stderr", shown.stderr)):
        if text and error is None:
            yield nbformat.v4.new_output("stream", name=name, text=text)
    if error is not None:
        trace = shell.InteractiveTB.structured_traceback(type(error), error, error.__traceback__)
        yield nbformat.v4.new_output(
            "error", ename=type(error).__name__, evalue=str(error), traceback=trace
        )


def as_text(content: Any) -> Any:
    """What a figure is drawn as, in a form that JSON can say."""
    return base64.b64encode(content).decode() if isinstance(content, bytes) else content


papermill_engines.register(ENGINE, InProcessEngine)


#: Seconds one cell may take.
CELL_TIMEOUT = 600

#: The notebook that ``workbench app`` serves.
EXPLORER = "05_categories_and_the_ledger"


def notebooks_dir() -> Path:
    """The folder of the numbered notebooks, in the checkout that this package runs from.

    Raises
    ------
    SetupError
        The package is installed without its checkout.
    """
    path = Path(workbench.__file__).resolve().parents[1] / "notebooks"
    if not path.is_dir():
        raise SetupError("the notebooks are not here", where=path, hint="work from a clone")
    return path


def find_notebook(name: str) -> Path:
    """The notebook whose file name without ending is ``name``.

    Raises
    ------
    UsageError
        There is none; names the nearest.
    """
    known = {path.stem: path for path in notebooks_dir().glob("[0-9]*.ipynb")}
    if name not in known:
        raise unknown_name("notebook", name, known)
    return known[name]


def execute_notebook(
    name: str, output: Path, parameters: dict[str, Any], *, in_process: bool = False
) -> Path:
    """Run a notebook with these parameters; returns ``output``, the notebook with its results.

    With ``in_process`` no kernel is started: see `InProcessEngine`.

    Raises
    ------
    UsageError
        A parameter that the notebook does not have.
    ReportError
        A cell failed; ``output`` holds what ran, with the error.
    """
    import papermill
    from traitlets.config import Config

    # Where the kernel's transport can be encrypted, it is.
    config = Config({"KernelManager": {"transport_encryption": "auto"}})
    source = find_notebook(name)
    with _quiet():
        known = papermill.inspect_notebook(str(source))
        for parameter in parameters:
            if parameter not in known:
                raise unknown_name("parameter", parameter, known, where=source.name)
        try:
            papermill.execute_notebook(
                str(source),
                str(output),
                parameters=parameters,
                kernel_name="python3",
                progress_bar=False,
                execution_timeout=CELL_TIMEOUT,
                config=config,
                extra_arguments=["--log-level=CRITICAL"],  # the kernel's log, not the notebook's
                engine_name=_engine(in_process),
            )
        except papermill.PapermillExecutionError as error:
            raise ReportError(
                f"cell {error.exec_count} failed: {error.ename}: {error.evalue}",
                where=source.name,
                hint=f"open {output} to see where",
            ) from None
    return output


def _engine(in_process: bool) -> str | None:
    """The name of papermill's engine; None for its own, which starts a kernel."""
    if not in_process:
        return None

    return ENGINE


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep papermill's log and its dependencies' deprecation notes off the terminal."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loggers = [logging.getLogger(name) for name in ("papermill", "traitlets")]
        levels = [logger.level for logger in loggers]
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def open_lab(arguments: Sequence[str]) -> None:
    """Replace this process by JupyterLab on the notebooks, with their list open.

    Raises
    ------
    SetupError
        JupyterLab is not installed.
    """
    # A workspace of its own: what else is open in the user's JupyterLab stays as it is.
    page = "/lab/workspaces/workbench/tree/README.md"
    settings = Path(__file__).parent / "lab"
    options = [f"--LabApp.default_url={page}", f"--LabApp.app_settings_dir={settings}"]
    _become("jupyterlab", *options, str(notebooks_dir()), *arguments)


def open_app(arguments: Sequence[str]) -> None:
    """Replace this process by a web server of the explorer: its notebook without the code.

    Raises
    ------
    SetupError
        Voila is not installed.
    """
    _become("voila", str(find_notebook(EXPLORER)), *arguments)


def _become(module: str, *arguments: str) -> None:
    from importlib.util import find_spec

    if not find_spec(module):
        raise SetupError(
            f"{module} is not installed", hint=f"pip install -c constraints.txt {module}"
        )
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])
