"""The numbered notebooks: run one as a report, or open them in JupyterLab."""

import ast
import contextlib
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import workbench
from workbench.errors import ReportError, SetupError, WorkbenchError, unknown_name
from workbench.explorer.page import WIDGETS
from workbench.report.html import Section, Shown


def notebooks_dir() -> Path:
    """The folder of the numbered notebooks; in a checkout, the package has a link to it."""
    return (Path(workbench.__file__).parent / "notebooks").resolve()


def find_notebook(name: str) -> Path:
    """The notebook whose file name without ending is ``name``."""
    known = {path.stem: path for path in notebooks_dir().glob("[0-9]*.ipynb")}
    if name not in known:
        raise unknown_name("notebook", name, known)
    return known[name]


def run_notebook(name: str, **parameters: object) -> list[Section]:
    """Run a notebook in this process; returns its sections with the results of their cells.

    Parameters are passed as objects. A section whose cells all have no result is left out.
    """
    path = find_notebook(name)
    names: dict[str, Any] = {}
    sections: list[Section] = []
    with_cells: set[int] = set()
    for number, cell in enumerate(json.loads(path.read_text())["cells"], 1):
        source, tags = "".join(cell["source"]), cell["metadata"].get("tags", [])
        if cell["cell_type"] == "markdown":
            sections.append(_start_section(source, brief="brief" in tags))
            continue
        with _without_widgets():
            result = _run_cell(source, names, f"{path.name}, cell {number}")
        if "parameters" in tags:
            for parameter in parameters:
                if parameter not in names:
                    raise unknown_name("parameter", parameter, names, where=path.name)
            names |= parameters
        sections[-1].items.extend(_flatten(result))
        with_cells.add(len(sections) - 1)
    return [s for place, s in enumerate(sections) if s.items or place not in with_cells]


@contextlib.contextmanager
def _without_widgets() -> Iterator[None]:
    """Show figures in place of widgets, also in a process with a front end."""
    before = os.environ.get(WIDGETS)
    os.environ[WIDGETS] = "0"
    try:
        yield
    finally:
        del os.environ[WIDGETS]
        if before is not None:
            os.environ[WIDGETS] = before


def _start_section(source: str, *, brief: bool) -> Section:
    head, _, text = source.partition("\n")
    if head.startswith("#"):
        return Section(head.lstrip("# "), text.strip(), brief=brief)
    return Section("", source, brief=brief)


def _flatten(result: Any) -> Iterator[Shown]:
    if hasattr(result, "parts"):
        for part in result.parts:
            yield from _flatten(part)
    elif result is not None:
        yield result


def _run_cell(source: str, names: dict[str, Any], where: str) -> Any:
    """Run a cell's code; the value of the expression that it ends with, if it does."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    try:
        exec(compile(tree, where, "exec"), names)  # noqa: S102  (a notebook of this package)
        if isinstance(last, ast.Expr):
            code = compile(ast.Expression(last.value), where, "eval")
            return eval(code, names)  # noqa: S307
    except WorkbenchError:
        raise
    except Exception as error:  # a cell may raise anything
        raise ReportError(f"{type(error).__name__}: {error}", where=where) from error
    return None


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
    if not find_spec("jupyterlab"):
        raise SetupError("JupyterLab is not installed", install="executorch-workbench[lab]")
    command = [sys.executable, "-m", "jupyterlab", *options, str(copy_notebooks()), *arguments]
    os.execv(sys.executable, command)
