"""The commands that say no: comparisons held to a limit, and runs that are not whole."""

from __future__ import annotations

from pathlib import Path

import click

from workbench.cli.answers import Answer, command
from workbench.cli.options import PATH, Percent
from workbench.errors import UsageError


@command()
@click.argument("names", nargs=-1, required=True, metavar="[BASELINE] CANDIDATE...")
@click.option("--baseline", type=PATH, help="metrics.json of an earlier run, instead of BASELINE.")
@click.option("--across", multiple=True, help="What may differ: program, threads, device, build.")
@click.option("--by", help="Which parts to compare, too: layer, category or operator.")
@click.option("--fail-above", type=Percent(), help="Exit 1 if surely slower by more than this.")
@click.option("--junit", type=PATH, help="Write the outcome as JUnit XML, too; with --fail-above.")
@click.option("--markdown", type=PATH, help="Write the outcome as Markdown, too.")
def compare(
    names: tuple[str, ...],
    baseline: Path | None,
    across: tuple[str, ...],
    by: str | None,
    fail_above: float | None,
    junit: Path | None,
    markdown: Path | None,
) -> Answer:
    """Compare measurements, each RUN_DIR[:EXPERIMENT[:THREADS]], with the first.

    Two give a verdict, more a table by layer. With --fail-above the 95 % interval decides, not the
    estimate; whatever the table has, too, must not be slower. With --baseline one run is compared
    with the metrics.json that another one has left.
    """
    from workbench.report import compare_many, compare_with_metrics, write_gate_summary, write_junit

    if junit and fail_above is None:
        raise UsageError("needs --fail-above", where="--junit")
    if baseline is None:
        found = compare_many(names, across=across, by=by, fail_above=fail_above)
    elif len(names) > 1 or by:
        raise UsageError("compares the E2E latency of one run", where="--baseline")
    else:
        found = compare_with_metrics(baseline, names[0], across=across, fail_above=fail_above)
    if junit:
        write_junit(found, junit)
    if markdown:
        write_gate_summary(found, markdown)
    return Answer(found.texts, found.record, exit_code=not found.passed)


@command()
@click.argument("run_dir", type=PATH)
@click.option("--known-good", type=PATH, help="A run to be like: operators, shares of categories.")
def validate(run_dir: Path, known_good: Path | None) -> Answer:
    """Check that a run is whole and its files say the same; exit 1 if not."""
    from workbench.report import validate_run

    table = validate_run(run_dir, known_good)
    rows = table.itertuples(index=False, name=None)
    lines = [f"{status:4}  {check}: {evidence}" for check, status, evidence in rows]
    failed = bool((table["status"] == "fail").any())
    return Answer(lines, {"run_dir": run_dir, "ok": not failed, "checks": table}, exit_code=failed)


@command()
@click.argument("roots", nargs=-1, type=PATH, metavar="[FOLDER]...")
@click.option("--across", multiple=True, help="What may differ within a line: program.")
@click.option("--figure", type=PATH, help="Draw latency over time into this file (.png, .svg).")
@click.option("--csv", type=PATH, help="Write all runs into this file, too.")
@click.option("--fail-above", type=Percent(), help="Exit 1 if a line is confirmed slower by more.")
def history(
    roots: tuple[Path, ...],
    across: tuple[str, ...],
    figure: Path | None,
    csv: Path | None,
    fail_above: float | None,
) -> Answer:
    """List all runs below FOLDERs [default: here] by line, and where they became faster or slower.

    A change is confirmed when two successive runs have it; until then it is suspected.
    """
    from workbench.portfolio import read_history, write_figure
    from workbench.show import plot_history
    from workbench.store import write_whole

    found = read_history(roots or (Path(),), across=across)
    for problem in found.problems:
        click.echo(f"left out: {problem}", err=True)
    if found.rows.empty:
        raise UsageError("no run was found", where=" ".join(map(str, roots)) or ".")
    if figure:
        write_figure(plot_history(found.rows, found.changes), figure)
    if csv:
        write_whole(csv, found.rows.to_csv(index=False, lineterminator="\n"))
    slower = fail_above is not None and not found.slower_by(fail_above).empty
    record = {"runs": found.rows, "changes": found.changes, "problems": found.problems}
    lines = [text for table in found.tables for text in (table, "")]
    return Answer(lines, {"passed": not slower, **record}, exit_code=slower)


COMMANDS = (compare, validate, history)
