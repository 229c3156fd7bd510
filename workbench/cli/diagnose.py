"""The commands that advise: what to do next, how near to the roof a run is, a layer alone.

The commands that say no: comparisons held to a limit, and runs that are not whole.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from workbench.cli.options import PATH, Percent, show_progress
from workbench.cli.output import Answer, command
from workbench.errors import UsageError
from workbench.options import MeasureOptions


@command()
@click.argument("run_dir", type=PATH)
@click.option("--experiment", default="", help="Which one [default: the first candidate].")
@click.option("--threads", type=int, help="At which thread count [default: the first].")
def findings(run_dir: Path, experiment: str, threads: int | None) -> Answer:
    """Say what to do next about a run, what brings most first."""
    from workbench.analysis.compat import analyze_run, find_next_steps
    from workbench.plots.text import list_findings

    analysis = analyze_run(run_dir)
    found = find_next_steps(analysis, experiment, threads)
    lines = list_findings(found, top=len(found)) or ["nothing stands out"]
    record = {"run_dir": run_dir, "emulated": analysis.run.emulated, "findings": found}
    return Answer(lines, record)


@command()
@click.argument("run_dir", type=PATH)
@click.option("--again", is_flag=True, help="Measure anew what is kept of this machine.")
@click.option("--top", default=12, show_default=True, help="Operators to list.")
def roofline(run_dir: Path, again: bool, top: int) -> Answer:
    """Measure what this machine can do, and how near a run's operators come to it."""
    from workbench.analysis.compat import analyze_run, find_roofline, list_ceilings
    from workbench.plots.text import show_roofline
    from workbench.workflow import measure_roof, write_artifacts

    with show_progress() as progress:
        measure_roof(run_dir, again=again, progress=progress)
    analysis = analyze_run(run_dir)
    write_artifacts(analysis)
    record = {
        "run_dir": run_dir,
        "ceilings": list_ceilings(analysis),
        "operators": find_roofline(analysis),
    }
    return Answer([show_roofline(analysis.subject, top=top)], record)


@command()
@click.argument("run_dir", type=PATH)
@click.option("--layer", required=True, help="Path of the module, such as features.3.block.0.")
@click.option("--model", default="", help="What was exported [default: the run's model].")
@click.option("--runs", default=50, show_default=True, help="Minimum timed inferences.")
@click.option("--processes", default=5, show_default=True, help="Restarts of every runner.")
def replay(run_dir: Path, layer: str, model: str, runs: int, processes: int) -> Answer:
    """Measure one layer of a run's model alone, against its time within the model."""
    from workbench.workflow import replay_layer

    options = MeasureOptions(runs=runs, processes=processes)
    with show_progress() as progress:
        result = replay_layer(run_dir, layer, options, model=model, progress=progress)
    return Answer([*result.texts, result.run_dir], asdict(result))


COMMANDS = (findings, roofline, replay)


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
    return Answer(describe_compared(found), found.record, exit_code=not found.passed)


@command()
@click.argument("run_dir", type=PATH)
@click.option("--known-good", type=PATH, help="A run to be like: operators, shares of categories.")
def validate(run_dir: Path, known_good: Path | None) -> Answer:
    """Check that a run is whole and its files say the same; exit 1 if not."""
    from workbench.report.validate import validate_run

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
    from workbench.plots.history import plot_history
    from workbench.portfolio.history import read_history, write_figure
    from workbench.store import atomic_write

    found = read_history(roots or (Path(),), across=across)
    for problem in found.problems:
        click.echo(f"left out: {problem}", err=True)
    if found.rows.empty:
        raise UsageError("no run was found", where=" ".join(map(str, roots)) or ".")
    if figure:
        write_figure(plot_history(found.rows, found.changes), figure)
    if csv:
        atomic_write(csv, found.rows.to_csv(index=False, lineterminator="\n"))
    slower = fail_above is not None and not found.slower_by(fail_above).empty
    record = {"runs": found.rows, "changes": found.changes, "problems": found.problems}
    lines = [text for table in found.tables for text in (table, "")]
    return Answer(lines, {"passed": not slower, **record}, exit_code=slower)


GATE_COMMANDS = (compare, validate, history)
