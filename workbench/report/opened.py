"""The page of a file that somebody opens: a run, a trace, or a program that was not run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from workbench.analysis.compare_runs import compare
from workbench.analysis.open import open_run
from workbench.analysis.run import Comparison, Run
from workbench.export.program import open_program
from workbench.models.registry import list_model_classes
from workbench.plots.map import map_exported, map_source
from workbench.plots.views import show
from workbench.report.html import Section, render_html
from workbench.report.report import make_report
from workbench.store import MANIFEST

#: What draws the map of a file that was not run.
MAPS: dict[str, Callable[[Path], list[Any]]] = {
    ".pte": lambda path: [show(open_program(path), "map")],
    ".pt2": map_exported,
    ".py": map_source,
}


def write_code(path: Path) -> str:
    """The line that measures a file from a notebook beside it; empty for what was measured."""
    if path.suffix not in MAPS:
        return ""
    name = path.name
    if path.suffix == ".py":
        classes = list_model_classes(path, "forward") or list_model_classes(path, "get_eager_model")
        if not classes:
            return ""
        name = f"{name}:{classes[-1][1]}"
    return f"run = wb.profile({name!r})\nrun"


def make_page(view: str, path: Path, *baselines: Path) -> str:
    """The report of a run, its comparison with another one, or what a file contains."""
    if path.suffix in MAPS:
        return render_html(path.name, [Section("", items=MAPS[path.suffix](path))])
    source, *before = (
        each.parent if each.name == MANIFEST else each for each in (path, *baselines)
    )
    if view == "report":
        return make_report(source)[0].read_text()
    run = open_run(source)
    subject: Run | Comparison = run
    if before:  # another device is another question, which the command line answers
        subject = compare(open_run(before[0]), run, across=("program", "build"))
    pages = filter(None, subject.list_shown("page").values())
    return next(pages, "") or render_html(
        path.name, [Section("", items=[show(subject, "overview")])]
    )
