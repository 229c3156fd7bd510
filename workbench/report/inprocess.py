"""An engine for papermill without a kernel: cells run in this very process."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import nbformat
from IPython.core.displayhook import DisplayHook
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell
from IPython.core.pylabtools import select_figure_formats
from IPython.utils.capture import capture_output
from matplotlib_inline.config import InlineBackend
from papermill.engines import Engine, papermill_engines
from traitlets import Type

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
