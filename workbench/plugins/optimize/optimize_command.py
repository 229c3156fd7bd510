"""The command ``workbench optimize``, and what ``%workbench optimize`` returns."""

import shlex
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from workbench import ExportOptions
from workbench.api import Output, command
from workbench.jobs import check_request, options_of, parse_name, show_progress
from workbench.plugins.optimize.records import Study
from workbench.plugins.optimize.search_options import OptimizeOptions


def make_study(subject: Any, inputs: Any, params: Mapping[str, Any]) -> Study:
    """What the command makes of a model of a notebook."""
    from workbench.plugins.optimize.search import optimize as search

    export, limits = (
        {each.name: params[each.name] for each in fields(record)}
        for record in (ExportOptions, OptimizeOptions)
    )
    options = ExportOptions(**export), OptimizeOptions(**limits)
    return search(subject, inputs, *options, root=params["out"])


@command(maker=make_study)
@click.argument("model")
@options_of(ExportOptions, "export", "Export")
@options_of(OptimizeOptions, "optimize", "Search")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Output folder [default: out_<model>]."
)
def optimize(
    model: str, out: Path | None, export: ExportOptions, optimize: OptimizeOptions
) -> Output:
    """Search for a faster program of MODEL; write the recipe of the best one.

    The export options describe the baseline. After an interruption, run the same command again:
    what was exported and measured is found. Exit code 1 if nothing helped.
    """
    check_request([model], export)
    optimize.check()
    from workbench import show
    from workbench.jobs import default_root
    from workbench.plugins.optimize.search import FOLDER, RECIPE
    from workbench.plugins.optimize.search import optimize as search

    with show_progress() as progress:
        study = search(model, None, export, optimize, root=out, progress=progress)
    lines: list[object] = [show(study), *(f"warning: {text}" for text in study.warnings)]
    lines.append(study.conclusion)
    step = "`workbench findings RUN` shows what else takes the time"
    if study.best:
        lines.append(recipe := (out or default_root(parse_name(model).label)) / FOLDER / RECIPE)
        step = shlex.join(["workbench", "export", model, "--recipe", str(recipe)])
    return Output(lines, {"study": study}, exit_code=not study.best, step=step)
