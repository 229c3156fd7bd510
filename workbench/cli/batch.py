"""The command for many models."""

from __future__ import annotations

from pathlib import Path

import click

from workbench.cli.options import PATH, show_progress
from workbench.cli.output import Answer, command


@command()
@click.argument("matrix", type=PATH, metavar="MATRIX.yaml")
@click.option("--out", help="The portfolio: a folder or URL [default: portfolio_<matrix>].")
@click.option("--jobs", type=click.IntRange(1, 256), help="Processes for exports and reports.")
@click.option("--dask", default="", metavar="ADDRESS", help="A Dask scheduler, or local[:WORKERS].")
@click.option("--only", default="", metavar="PATTERN", help="Cells to do, such as 'toy_cnn/*'.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and how long it takes.")
def batch(matrix: Path, dry_run: bool, **choices) -> Answer:
    """Export, measure and report a matrix of models; prints the page of the portfolio.

    What is done already is not done again: after an interruption, or a failure that was mended, the
    same command goes on. Exit code 1 if a cell failed.
    """
    from workbench.portfolio.scheduler import (
        batch,
        describe_plan,
        list_plan,
        portfolio_location,
    )
    from workbench.portfolio.state import INDEX, list_failures

    if dry_run:
        planned = list_plan(matrix, out=choices["out"], only=choices["only"])
        return Answer(describe_plan(planned), {"plan": planned})
    with show_progress() as progress:
        portfolio = batch(matrix, progress=progress, **choices)
    failures = list_failures(portfolio)
    for line in failures:
        click.echo(line, err=True)
    page = f"{portfolio_location(matrix, choices['out'])}/{INDEX}"
    return Answer([page], {"page": page, "portfolio": portfolio}, exit_code=bool(failures))


COMMANDS = (batch,)
