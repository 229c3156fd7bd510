"""The numbered notebooks: find one, or open them in JupyterLab."""

import os
import shutil
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import workbench
from workbench.errors import WorkbenchError


def notebooks_dir() -> Path:
    """The folder of the numbered notebooks; in a checkout, the package has a link to it."""
    return (Path(workbench.__file__).parent / "notebooks").resolve()


def copy_notebooks() -> Path:
    """The notebooks to work with: the checkout's, or copies in the working directory.

    Files that exist there are kept.
    """
    source, copies = notebooks_dir(), Path("workbench-notebooks").absolute()
    if Path(workbench.__file__).resolve().parent not in source.parents:
        return source
    copies.mkdir(exist_ok=True)
    for path in source.iterdir():
        if not (copies / path.name).exists():
            shutil.copy(path, copies)
    return copies


def open_lab(arguments: Sequence[str]) -> None:
    """Replace this process by JupyterLab on the notebooks, with their list open."""
    # A separate workspace: what else is open in the user's JupyterLab stays as it is.
    page = "/lab/workspaces/workbench/tree/README.md"
    settings = Path(__file__).parent / "lab"
    options = [f"--LabApp.default_url={page}", f"--LabApp.app_settings_dir={settings}"]
    # Traces, programs and runs open by double click; nothing has to be installed for that.
    options += [f"--LabApp.extra_labextensions_path={settings / 'extensions'}"]
    options += ["--ServerApp.jpserver_extensions=workbench.report.jupyter=True"]
    if not find_spec("jupyterlab"):
        setup = Path(sys.prefix).parent / "dev.py"
        if setup.is_file():  # a checkout in which only the demo ran: add what is missing
            python = str(Path(sys.base_prefix) / "bin" / "python3")
            os.execv(python, [python, str(setup), "lab", *arguments])
        raise WorkbenchError("JupyterLab is not installed", install="executorch-workbench[lab]")
    command = [sys.executable, "-m", "jupyterlab", *options, str(copy_notebooks()), *arguments]
    os.execv(sys.executable, command)
