"""Run the numbered notebooks headless, through papermill."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import workbench
from workbench.errors import ReportError, SetupError, unknown_name

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
    from workbench.report.inprocess import ENGINE

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
