"""The command line: one subcommand per stage, each a few lines over one function."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from pathlib import Path

import click

from workbench.cli import advice as cli_advice
from workbench.cli.options import (
    EXPORT_OPTIONS,
    OUT,
    PATH,
    RUN_OPTIONS,
    Percent,
    show_progress,
)
from workbench.errors import UsageError, WorkbenchError

INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 failed job, 2 usage, 130 interrupted."""
    debug = "--debug" in (sys.argv[1:] if arguments is None else arguments)
    try:
        sys.exit(workbench.main(arguments, "workbench", standalone_mode=False) or 0)
    except click.ClickException as error:
        error.show(sys.stderr)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted; the same command goes on with what was measured", err=True)
        sys.exit(INTERRUPTED)
    except (WorkbenchError, OSError) as error:
        if debug:
            raise
        click.echo(f"error: {error}", err=True)
        sys.exit(getattr(error, "exit_code", 1))


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(package_name="executorch-workbench")
def workbench(debug: bool) -> None:
    """Find performance bottlenecks in ExecuTorch models, with evidence."""


@workbench.command()
def doctor() -> None:
    """Say what this machine can do, with the fix for what it cannot."""
    from workbench.run.doctor import examine_machine

    findings = examine_machine()
    width = max(len(finding.subject) for finding in findings)
    for finding in findings:
        fix = f"  -> {finding.fix}" if finding.fix else ""
        click.echo(f"{finding.status:4}  {finding.subject:{width}}  {finding.detail}{fix}")
    if any(finding.status == "fail" for finding in findings):
        raise WorkbenchError("the main job cannot run here", hint="mend what says fail")


@workbench.command()
def models() -> None:
    """List the registered models."""
    from workbench.models import list_models

    for name in list_models():
        click.echo(name)


@workbench.command()
@click.argument("model")
@EXPORT_OPTIONS
@OUT
def export(model: str, out: Path | None, **choices) -> None:
    """Export MODEL to a .pte.

    MODEL is a registered name, path/to/file.py:NAME, torchvision:NAME or timm:NAME. An export that
    lies there is kept if nothing has changed.

    What the partitioner left behind, and whether the program computes what the model does, is said
    on stderr.
    """
    from workbench.export import describe_export, export_model
    from workbench.store import load_export

    with warnings.catch_warnings(action="ignore"):
        pte = export_model(model, root=out, tell=lambda text: click.echo(text, err=True), **choices)
    for line in describe_export(load_export(pte)):
        click.echo(line, err=True)
    click.echo(pte)


@workbench.command()
@click.argument("subject", type=PATH, metavar="MODEL.pte|CONFIG.json")
@RUN_OPTIONS
@OUT
@click.pass_context
def run(context: click.Context, subject: Path, out: Path | None, **choices) -> None:
    """Measure a .pte with a CPU extension off and on; prints the run's folder.

    A config, the JSON of Arm's profiling kit, says itself what is measured and how.
    """
    from workbench.report import (
        analyze_run,
        describe_quality,
        measure_config,
        measure_program,
    )

    with show_progress() as progress:
        if subject.suffix == ".json":
            refuse_options(context, choices)
            run_dir = measure_config(subject, root=out, progress=progress)
        else:
            run_dir = measure_program(subject, root=out, progress=progress, **choices)
    analysis = analyze_run(run_dir)
    for comparison in analysis.comparisons:
        click.echo(comparison.text)
    click.echo(describe_quality(analysis))
    click.echo(run_dir)


@workbench.command()
@click.argument("run_dir", type=PATH)
def analyze(run_dir: Path) -> None:
    """Make the CSV, JSON and Markdown files of a run anew from its ETDumps."""
    from workbench.report import analyze_run, write_artifacts

    for path in write_artifacts(analyze_run(run_dir)):
        click.echo(path)


@workbench.command()
@click.argument("names", nargs=-1, required=True, metavar="BASELINE CANDIDATE...")
@click.option("--across", multiple=True, help="What may differ: program, threads, device, build.")
@click.option("--by", help="Which parts to compare, too: layer, category or operator.")
@click.option("--fail-above", type=Percent(), help="Exit 1 if surely slower by more than this.")
def compare(
    names: tuple[str, ...], across: tuple[str, ...], by: str | None, fail_above: float | None
) -> None:
    """Compare measurements, each RUN_DIR[:EXPERIMENT[:THREADS]], with the first.

    Two give a verdict, more a table by layer. With --fail-above the 95 % interval decides, not the
    estimate; whatever the table has, too, must not be slower.
    """
    from workbench.report import compare_many

    text, is_slower = compare_many(names, across=across, by=by, fail_above=fail_above)
    click.echo(text)
    if is_slower:
        sys.exit(1)


@workbench.command()
@click.argument("etdump", type=PATH)
@click.option("--to", required=True, help="csv, parquet, perfetto or speedscope.")
@click.option("--out", type=PATH, help="The file, or for csv the folder [default: beside ETDUMP].")
@click.option("--baseline", type=PATH, help="A second ETDump to show it against.")
def trace(etdump: Path, to: str, out: Path | None, baseline: Path | None) -> None:
    """Write an ETDump in another format; prints the files."""
    from workbench.report import export_trace

    for path in export_trace(etdump, to, out=out, baseline=baseline):
        click.echo(path)


@workbench.command()
@click.argument("log", type=PATH)
@click.option("--baseline", type=PATH, help="The log with the extension off.")
def kernels(log: Path, baseline: Path | None) -> None:
    """List the microkernels that an XNNPACK log names, as CSV.

    With --baseline: which of them an extension replaced. LOG is what a runner printed whose XNNPACK
    was built with XNN_LOG_LEVEL=4; a microkernel that was registered need not have run.
    """
    from workbench.analyze import compare_kernels
    from workbench.trace import read_xnn_log

    table = read_xnn_log(log)
    if baseline:
        table = compare_kernels(table, read_xnn_log(baseline))
    click.echo(table.to_csv(index=False, lineterminator="\n"), nl=False)


@workbench.command()
@click.argument("run_dir", type=PATH)
def report(run_dir: Path) -> None:
    """Make report.html and report.md of a run."""
    from workbench.report import make_report

    for path in make_report(run_dir):
        click.echo(path)


@workbench.command()
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@EXPORT_OPTIONS
@RUN_OPTIONS
@OUT
def profile(models: tuple[str, ...], out: Path | None, **choices) -> None:
    """Export, run, analyze and report: the main job.

    MODEL is what `workbench export` takes.
    """
    from workbench.report import find_next_steps, list_findings, profile_model

    if out and len(models) > 1:
        raise UsageError("is one folder, for one model", where="--out")
    for model in models:
        with show_progress() as progress:
            result = profile_model(model, root=out, progress=progress, **choices)
        for verdict in result.verdicts:
            click.echo(verdict)
        for line in list_findings(find_next_steps(result.analysis), rows=3):
            click.echo(line)
        click.echo(f"report: {result.html}")


@workbench.command()
@click.argument("matrix", type=PATH, metavar="MATRIX.yaml")
@click.option("--out", help="The portfolio: a folder or URL [default: portfolio_<matrix>].")
@click.option("--jobs", type=click.IntRange(1, 256), help="Processes for exports and reports.")
@click.option("--dask", default="", metavar="ADDRESS", help="A Dask scheduler, or local[:WORKERS].")
@click.option("--only", default="", metavar="PATTERN", help="Cells to do, such as 'toy_cnn/*'.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and how long it takes.")
def batch(matrix: Path, dry_run: bool, **choices) -> None:
    """Export, measure and report a matrix of models; prints the page of the portfolio.

    What is done already is not done again: after an interruption, or a failure that was mended, the
    same command goes on. Exit code 1 if a cell failed.
    """
    from workbench.portfolio import INDEX, list_failures, list_plan, place_for, run_batch

    if dry_run:
        for line in list_plan(matrix, out=choices["out"], only=choices["only"]):
            click.echo(line)
        return
    with show_progress() as progress:
        portfolio = run_batch(matrix, progress=progress, **choices)
    for line in list_failures(portfolio):
        click.echo(line, err=True)
    click.echo(f"{place_for(matrix, choices['out'])}/{INDEX}")
    if any(outcome.state == "failed" for outcome in portfolio.outcomes):
        sys.exit(1)


@workbench.command()
@click.argument("run_dir", type=PATH)
@click.option("--known-good", type=PATH, help="A run to be like: operators, shares of categories.")
def validate(run_dir: Path, known_good: Path | None) -> None:
    """Check that a run is whole and its files say the same; exit 1 if not."""
    from workbench.report import validate_run

    table = validate_run(run_dir, known_good)
    for check, status, evidence in table.itertuples(index=False, name=None):
        click.echo(f"{status:4}  {check}: {evidence}")
    if (table["status"] == "fail").any():
        sys.exit(1)


@workbench.command(context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def lab(arguments: tuple[str, ...]) -> None:
    """Open JupyterLab on the notebooks; ARGUMENTS go to JupyterLab."""
    from workbench.report import open_lab

    open_lab(arguments)


def refuse_options(context: click.Context, names: Iterable[str]) -> None:
    """Refuse options that a config would contradict."""
    for name in names:
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            raise UsageError("a config says that itself", where=f"--{name.replace('_', '-')}")


@workbench.command(context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def app(arguments: tuple[str, ...]) -> None:
    """Serve the explorer of runs to a browser, without code; ARGUMENTS go to Voila."""
    from workbench.report import open_app

    open_app(arguments)


for advice in cli_advice.COMMANDS:
    workbench.add_command(advice)
