"""Commands that check runs and compare them with a limit."""

from __future__ import annotations

from pathlib import Path

import click

from workbench.cli.options import PATH, Percent
from workbench.cli.output import Output, command
from workbench.errors import UsageError


@command()
@click.argument("names", nargs=-1, required=True, metavar="[BASELINE] CANDIDATE...")
@click.option("--baseline", type=PATH, help="metrics.json of an earlier run, instead of BASELINE.")
@click.option("--across", multiple=True, help="What may differ: program, threads, device, build.")
@click.option("--by", help="Also compare by layer, category or operator.")
@click.option("--fail-above", type=Percent(), help="Exit 1 if slower by more than this.")
@click.option("--junit", type=PATH, help="Also write JUnit XML; with --fail-above.")
@click.option("--markdown", type=PATH, help="Also write Markdown.")
def compare(
    names: tuple[str, ...],
    baseline: Path | None,
    across: tuple[str, ...],
    by: str | None,
    fail_above: float | None,
    junit: Path | None,
    markdown: Path | None,
) -> Output:
    """Compare measurements, each RUN_DIR[:EXPERIMENT[:THREADS]], with the first one.

    Two measurements give a verdict, more give a table by layer. With --fail-above, the command
    fails if the whole 95 % interval of a row is beyond the limit. With --baseline, one run is
    compared with the metrics.json of an earlier one.
    """
    from workbench.analysis.compare_runs import compare_many, compare_with_metrics
    from workbench.report.gate import describe_compared, write_gate_summary, write_junit

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
    return Output(describe_compared(found), found.record, exit_code=not found.passed)


@command()
@click.argument("run_dir", type=PATH)
@click.option("--known-good", type=PATH, help="Known-good run to compare with.")
def validate(run_dir: Path, known_good: Path | None) -> Output:
    """Check that a run is complete and its files agree; exit 1 if not."""
    from workbench.report.validate import validate_run

    table = validate_run(run_dir, known_good)
    rows = table.itertuples(index=False, name=None)
    lines = [f"{status:4}  {check}: {evidence}" for check, status, evidence in rows]
    failed = bool((table["status"] == "fail").any())
    return Output(lines, {"run_dir": run_dir, "ok": not failed, "checks": table}, exit_code=failed)


@command()
@click.argument("roots", nargs=-1, type=PATH, metavar="[FOLDER]...")
@click.option("--across", multiple=True, help="What may differ within a line: program.")
@click.option("--figure", type=PATH, help="Plot latency over time into this file (.png, .svg).")
@click.option("--csv", type=PATH, help="Also write all runs into this file.")
@click.option("--fail-above", type=Percent(), help="Exit 1 if confirmed slower by more than this.")
def history(
    roots: tuple[Path, ...],
    across: tuple[str, ...],
    figure: Path | None,
    csv: Path | None,
    fail_above: float | None,
) -> Output:
    """List the runs below FOLDERs [default: here], and when they became faster or slower.

    A line has the comparable runs of a program. A change is confirmed once two successive runs show
    it; until then it is suspected.
    """
    from workbench.plots.history import plot_history
    from workbench.portfolio.history import read_history, write_figure
    from workbench.store import atomic_write

    found = read_history(roots or (Path(),), across=across)
    for problem in found.problems:
        click.echo(f"skipped: {problem}", err=True)
    if found.rows.empty:
        raise UsageError("no runs found", where=" ".join(map(str, roots)) or ".")
    if figure:
        write_figure(plot_history(found.rows, found.changes), figure)
    if csv:
        atomic_write(csv, found.rows.to_csv(index=False, lineterminator="\n"))
    slower = fail_above is not None and not found.slower_by(fail_above).empty
    record = {"runs": found.rows, "changes": found.changes, "problems": found.problems}
    lines = [text for table in found.tables for text in (table, "")]
    return Output(lines, {"passed": not slower, **record}, exit_code=slower)


COMMANDS = (compare, validate, history)
