"""The commands ``workbench atlas`` and ``workbench project``."""

from pathlib import Path

import click

from workbench.cli.checks import check_measure
from workbench.cli.options import EXISTING, OUT, PATH, Output, call, command
from workbench.options import MeasureOptions
from workbench.progress import show_progress
from workbench.store import EXPLORER_HTML, atomic_write


@command()
@click.argument("run_dir", type=EXISTING)
@click.option("--device", type=PATH, help="Its atlas, m4-like or c1-like [default: the run's own].")
@click.option("--level", default="", help="ISA level there [default: the highest].")
@click.option("--experiment", default="", help="Which one [default: the baseline].")
@click.option("--top", default=12, show_default=True, help="Operators to list.")
def project(run_dir: Path, device: Path | None, level: str, experiment: str, top: int) -> Output:
    """Project a run to another ISA level or device, with an interval: not measured.

    Needs an atlas of the run's own device (`workbench atlas`), or a device of published figures;
    refuses what these do not cover. The run's explore.html then has the projections, too.
    """
    from workbench.analysis.open import open_run
    from workbench.explorer.page import explorer_page
    from workbench.plots.views import show
    from workbench.plugins.project.atlas import describe_projections, project_levels

    run = open_run(run_dir)
    source = next(iter(run.comparisons)).baseline if run.comparisons else run.subject
    source = run[experiment] if experiment else source
    projections = project_levels(source, level, device or "")
    page = atomic_write(run.output / EXPLORER_HTML, explorer_page(run, projections=projections))
    table = projections[-1].table
    columns = table.columns.drop(["key", "kind"])
    lines = [describe_projections(projections), show(table[1:], columns=columns, top=top), page]
    record = {"run_dir": run_dir, "projected": True, "experiment": source.name, "level": level}
    record |= {"projection": table, "explorer": page}
    return Output(lines, record, step="measure on the device to be sure")


@command()
@click.option("--list", "listing", is_flag=True, help="List the atlases that are known here.")
@click.option("--again", is_flag=True, help="Measure again what was measured.")
@click.option("--target", default="host", show_default=True, help="host, android or ssh:HOST.")
@OUT
def atlas(listing: bool, again: bool, target: str, out: Path | None) -> Output:
    """Measure a few hundred operators on a device, for projections without the device.

    Takes some minutes, with one thread; after an interruption, run the same command again. The file
    is for everybody: `workbench project RUN --device FILE`.
    """
    check_measure(MeasureOptions(target=target))
    from workbench.plugins.project.atlas import list_atlases
    from workbench.plugins.project.measure import measure_atlas

    if listing:
        atlases = list_atlases()
        lines = [f"{path}  {text}" for path, text in atlases.items()]
        step = call("project", "RUN") if atlases else call("atlas")
        return Output(lines or ["no atlas here"], {"atlases": [*atlases]}, step=step)
    with show_progress() as progress:
        path, made = measure_atlas(target, root=out or "out_atlas", again=again, progress=progress)
    record = {"atlas": path, "device": made.device}
    return Output([made.facts, path], record, step=call("project", "RUN"))
