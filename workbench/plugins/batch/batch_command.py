"""The command ``workbench batch``."""

import shlex
from pathlib import Path

import click

from workbench.api import Output, command
from workbench.jobs import EXISTING, show_progress
from workbench.pages import plural


@command()
@click.argument("matrix", type=EXISTING, metavar="MATRIX.yaml")
@click.option("--out", help="The portfolio's folder [default: portfolio_<matrix>].")
@click.option("--jobs", type=click.IntRange(1, 256), help="Processes for exports and reports.")
@click.option("--dask", default="", metavar="ADDRESS", help="A Dask scheduler, or local[:WORKERS].")
@click.option("--only", default="", metavar="PATTERN", help="Only these cells: `toy_cnn/*`.")
@click.option("--dry-run", is_flag=True, help="List what would be done.")
def batch(
    matrix: Path, out: str | None, jobs: int | None, dask: str, only: str, dry_run: bool
) -> Output:
    """Export, measure and report a matrix of models; prints the overview page.

    Finished cells are skipped: after an interruption or a fixed failure, run the same command
    again. Exit code 1 if a cell failed.
    """
    from workbench.plugins.batch import batches
    from workbench.plugins.batch.portfolio import INDEX

    if dry_run:
        cells = batches.list_cells(matrix, out=out, only=only)
        lines = [f"{cell.name}  {', '.join(cell.todo) or 'done'}" for cell in cells]
        done = sum(not cell.todo for cell in cells)
        todo = [{"cell": cell, "todo": cell.todo} for cell in cells]
        lines.append(f"{plural(len(cells), 'cell')}, {done} done")
        return Output(lines, {"plan": todo}, step=shlex.join(["workbench", "batch", str(matrix)]))
    with show_progress() as progress:
        portfolio = batches.batch(
            matrix, out=out, jobs=jobs, dask=dask, only=only, progress=progress
        )
    failures = [cell for cell in portfolio.cells if cell.state == "failed"]
    notes = tuple(f"{cell.name}: {cell.error}\n  retry: {cell.retry}" for cell in failures)
    index = f"{batches.locate_portfolio(matrix, out)}/{INDEX}"
    step = "fix the failed cells, and run the same command again" if failures else f"open {index}"
    record = {"page": index, "portfolio": portfolio}
    return Output([index], record, exit_code=bool(failures), step=step, notes=notes)
