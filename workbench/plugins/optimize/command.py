"""The command ``workbench optimize``, and what ``%workbench optimize`` returns."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from workbench import ExportOptions, MeasureOptions
from workbench.api import Output, command, show_progress
from workbench.cli.checks import check_export, check_measure, check_subjects
from workbench.cli.options import EXPORT_OPTIONS, OUT, call, collect_options, options_of
from workbench.models.registry import parse_name
from workbench.plugins.optimize.options import OptimizeOptions
from workbench.plugins.optimize.records import Study

OPTIMIZE_OPTIONS = options_of(OptimizeOptions, "optimize", "Search")


def make_study(subject: Any, inputs: Any, params: Mapping[str, Any]) -> Study:
    """What the command makes of a model of a notebook."""
    from workbench.plugins.optimize.search import optimize as search

    export, limits = (
        collect_options(ExportOptions, params),
        collect_options(OptimizeOptions, params),
    )
    return search(subject, inputs, export, limits, root=params["out"])


@command(maker=make_study)
@click.argument("model")
@EXPORT_OPTIONS
@OPTIMIZE_OPTIONS
@OUT
def optimize(
    model: str, out: Path | None, export: ExportOptions, optimize: OptimizeOptions
) -> Output:
    """Search for a faster or smaller program of MODEL; write the recipe of the best one.

    The export options describe the baseline. Finished steps are skipped: after an interruption, run
    the same command again. Exit code 1 if nothing helped.
    """
    check_subjects([model])
    check_export(export)
    check_measure(MeasureOptions(target=optimize.target))
    from workbench import show
    from workbench.plugins.optimize.search import FOLDER, RECIPE
    from workbench.plugins.optimize.search import optimize as search
    from workbench.store import default_root

    with show_progress() as progress:
        study = search(model, None, export, optimize, root=out, progress=progress)
    lines: list[object] = [show(study), *(f"warning: {text}" for text in study.warnings)]
    lines.append(study.conclusion)
    step = "`workbench findings RUN` shows what else takes the time"
    if study.best:
        lines.append(recipe := (out or default_root(parse_name(model).label)) / FOLDER / RECIPE)
        step = call("export", model, "--recipe", recipe)
    return Output(lines, {"study": study}, exit_code=not study.best, step=step)
