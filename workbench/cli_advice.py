"""The commands that advise: what to do next, and how near to the roof a run is."""

from __future__ import annotations

from pathlib import Path

import click

from workbench.cli_common import PATH, show_progress


@click.command()
@click.argument("run_dir", type=PATH)
@click.option("--experiment", default="", help="Which one [default: the first candidate].")
@click.option("--threads", type=int, help="At which thread count [default: the first].")
def findings(run_dir: Path, experiment: str, threads: int | None) -> None:
    """Say what to do next about a run, what brings most first."""
    from workbench.report import analyze_run, find_next_steps, list_findings

    found = find_next_steps(analyze_run(run_dir), experiment, threads)
    for line in list_findings(found, rows=len(found)) or ["nothing stands out"]:
        click.echo(line)


@click.command()
@click.argument("run_dir", type=PATH)
@click.option("--again", is_flag=True, help="Measure anew what is kept of this machine.")
@click.option("--top", default=12, show_default=True, help="Operators to list.")
def roofline(run_dir: Path, again: bool, top: int) -> None:
    """Measure what this machine can do, and how near a run's operators come to it."""
    from workbench.report import analyze_run, describe_roofline, measure_roof, write_artifacts

    with show_progress() as progress:
        measure_roof(run_dir, again=again, progress=progress)
    analysis = analyze_run(run_dir)
    write_artifacts(analysis)
    click.echo(describe_roofline(analysis, top))


COMMANDS = (findings, roofline)
