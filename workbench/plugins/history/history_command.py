"""The command ``workbench history``."""

import io
from pathlib import Path

import click

from workbench.api import Output, UsageError, command
from workbench.jobs import EXISTING, unknown_name, with_limits

#: Formats of the figure.
FORMATS = ("pdf", "png", "svg")


@command()
@click.argument("roots", nargs=-1, type=EXISTING, metavar="[FOLDER]...")
@click.option(
    "--figure",
    type=click.Path(path_type=Path),
    help="Plot latency over time into this file (.png, .svg).",
)
@click.option("--csv", type=click.Path(path_type=Path), help="Also write all runs into this file.")
@with_limits
def history(
    roots: tuple[Path, ...],
    figure: Path | None,
    csv: Path | None,
    limits: dict[str, float],
) -> Output:
    """List the runs below FOLDERs [default: here], and when latency, starts and memory changed.

    A line has the comparable runs of a model, exported alike. Two successive runs must show
    a change.
    """
    kind = figure.suffix.removeprefix(".").lower() if figure else ""
    if figure and kind not in FORMATS:
        raise unknown_name("format", kind, FORMATS, where=figure)
    from workbench.jobs import atomic_write, to_csv
    from workbench.plugins.history.read import read_history

    past = read_history(roots or (Path(),))
    if past.rows.empty:
        where, hint = " ".join(map(str, roots)) or ".", "; ".join(past.problems[:3])
        raise UsageError("no runs found", where=where, hint=hint)
    timeless = figure and past.rows["latency_ms"].isna().all()
    if figure and not timeless:
        from workbench.plugins.history.history_figure import plot_history

        content = io.BytesIO()
        plot_history(past.rows, past.changes).savefig(content, format=kind)
        atomic_write(figure, content.getvalue())
    if csv:
        atomic_write(csv, to_csv(past.rows))
    if "peak memory" in limits:
        limits["anonymous memory"] = limits["peak memory"]
    grown = past.exceeding(limits)
    record = {"runs": past.rows, "changes": past.changes, "problems": past.problems}
    lines = [text for table in filter(str, past.tables) for text in (table, "")]
    step = f"open {figure}" if figure else "--figure history.svg plots these runs"
    notes = tuple(f"skipped: {problem}" for problem in past.problems)
    if timeless:
        notes, step = (*notes, "no figure: emulated runs have no times"), ""
    record = {"passed": grown.empty, **record}
    return Output(lines, record, exit_code=not grown.empty, step=step, notes=notes)
