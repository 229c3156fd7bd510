"""The command line: one subcommand per stage, each a few lines over one function."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import NoReturn

import click

from workbench.cli import batch, diagnose
from workbench.cli.options import EXPORT_OPTIONS, OUT, PATH, RUN_OPTIONS, show_progress
from workbench.cli.output import JSON, Answer, Group, describe_error
from workbench.errors import UsageError, WorkbenchError
from workbench.options import ExportOptions, MeasureOptions
from workbench.records.codec import to_document

INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 failed job, 2 usage, 130 interrupted."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        sys.exit(workbench.main(arguments, "workbench", standalone_mode=False) or 0)
    except click.ClickException as error:
        error.show(sys.stderr)
        fail(error, error.exit_code, arguments)
    except (KeyboardInterrupt, click.Abort) as error:
        click.echo("interrupted; the same command goes on with what was measured", err=True)
        fail(error, INTERRUPTED, arguments)
    except (WorkbenchError, OSError) as error:
        if "--debug" in arguments:
            raise
        click.echo(f"error: {error}", err=True)
        fail(error, getattr(error, "exit_code", 1), arguments)


def fail(error: BaseException, exit_code: int, arguments: list[str]) -> NoReturn:
    """Exit after an error; with ``--json``, which may be what is wrong, stdout has it too."""
    if JSON in arguments:
        click.echo(to_document(describe_error(error, exit_code)), nl=False)
    sys.exit(exit_code)


@click.group(
    cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(package_name="executorch-workbench")
def workbench(debug: bool) -> None:
    """Find performance bottlenecks in ExecuTorch models, with evidence."""


@workbench.command()
def doctor() -> Answer:
    """Say what this machine can do, with the fix for what it cannot."""
    from workbench.run.doctor import examine_machine

    findings = examine_machine()
    width = max(len(finding.subject) for finding in findings)
    lines = [
        f"{finding.status:4}  {finding.subject:{width}}  {finding.detail}"
        + (f"  -> {finding.fix}" if finding.fix else "")
        for finding in findings
    ]
    ready = all(finding.status != "fail" for finding in findings)
    if not ready:
        click.echo("error: the main job cannot run here -> mend what says fail", err=True)
    return Answer(lines, {"ready": ready, "findings": findings}, exit_code=not ready)


@workbench.command()
def models() -> Answer:
    """List the registered models."""
    from workbench.models.registry import list_models

    names = list_models()
    return Answer(names, {"models": names})


@workbench.command()
@click.argument("model")
@EXPORT_OPTIONS
@OUT
def export(model: str, out: Path | None, export: ExportOptions) -> Answer:
    """Export MODEL to a .pte.

    MODEL is a registered name, path/to/file.py:NAME, torchvision:NAME or timm:NAME. An export that
    lies there is kept if nothing has changed.

    What the partitioner left behind, and whether the program computes what the model does, is said
    on stderr.
    """
    from workbench.export.artifact import describe_export, export_model
    from workbench.store import load_export

    tell = functools.partial(click.echo, err=True)
    pte = export_model(model, export, root=out, tell=tell)
    record = load_export(pte)
    for line in describe_export(record):
        click.echo(line, err=True)
    return Answer([pte], {"pte": pte, "export": record})


@workbench.command()
@click.argument("subject", type=PATH, metavar="MODEL.pte|CONFIG.json")
@RUN_OPTIONS
@OUT
@click.pass_context
def run(context: click.Context, subject: Path, out: Path | None, measure: MeasureOptions) -> Answer:
    """Measure a .pte with a CPU extension off and on; prints the run's folder.

    A config, the JSON of Arm's profiling kit, says itself what is measured and how.
    """
    from workbench.analysis.compat import analyze_run, describe_quality
    from workbench.report.summary import outline_run
    from workbench.workflow import measure_config, measure_program

    with show_progress() as progress:
        if subject.suffix == ".json":
            refuse_options(context)
            run_dir = measure_config(subject, root=out, progress=progress)
        else:
            run_dir = measure_program(subject, measure, root=out, progress=progress)
    analysis = analyze_run(run_dir)
    verdicts = [comparison.text for comparison in analysis.comparisons]
    return Answer([*verdicts, describe_quality(analysis), run_dir], outline_run(analysis))


@workbench.command()
@click.argument("run_dir", type=PATH)
def analyze(run_dir: Path) -> Answer:
    """Make the CSV, JSON and Markdown files of a run anew from its ETDumps."""
    from workbench.analysis.compat import analyze_run
    from workbench.workflow import write_artifacts

    files = write_artifacts(analyze_run(run_dir))
    return Answer(files, {"run_dir": run_dir, "files": files})


@workbench.command()
@click.argument("etdump", type=PATH)
@click.option("--to", required=True, help="csv, parquet, perfetto or speedscope.")
@click.option("--out", type=PATH, help="The file, or for csv the folder [default: beside ETDUMP].")
@click.option("--baseline", type=PATH, help="A second ETDump to show it against.")
def trace(etdump: Path, to: str, out: Path | None, baseline: Path | None) -> Answer:
    """Write an ETDump in another format; prints the files."""
    from workbench.workflow import export_trace

    files = export_trace(etdump, to, out=out, baseline=baseline)
    return Answer(files, {"files": files})


@workbench.command()
@click.argument("log", type=PATH)
@click.option("--baseline", type=PATH, help="The log with the extension off.")
def kernels(log: Path, baseline: Path | None) -> Answer:
    """List the microkernels that an XNNPACK log names, as CSV.

    With --baseline: which of them an extension replaced. LOG is what a runner printed whose XNNPACK
    was built with XNN_LOG_LEVEL=4; a microkernel that was registered need not have run.
    """
    from workbench.analysis.machine_code import compare_kernels
    from workbench.trace.xnn_log import read_xnn_log

    table = read_xnn_log(log)
    if baseline:
        table = compare_kernels(table, read_xnn_log(baseline))
    return Answer([table.to_csv(index=False, lineterminator="\n").rstrip()], {"kernels": table})


@workbench.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN_DIR...")
@click.option("--out", type=PATH, help="Folder of several runs' report [default: combined_MODEL].")
def report(runs: tuple[str, ...], out: Path | None) -> Answer:
    """Make report.html and report.md of a run, or one report of several.

    Several runs, each RUN_DIR[:EXPERIMENT[:THREADS]], are put side by side, layer by layer: other
    platforms, other versions of a model. What was emulated shows which code it runs, and no times.
    """
    from workbench.portfolio.pages import write_combined
    from workbench.workflow import make_report

    if len(runs) > 1:
        files = write_combined(runs, out)
    elif out:
        raise UsageError("is for several runs; one has its report in its folder", where="--out")
    else:
        files = make_report(runs[0])
    return Answer(files, {"runs": runs, "files": files})


@workbench.command()
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@EXPORT_OPTIONS
@RUN_OPTIONS
@OUT
def profile(
    models: tuple[str, ...], out: Path | None, export: ExportOptions, measure: MeasureOptions
) -> Answer:
    """Export, run, analyze and report: the main job.

    MODEL is what `workbench export` takes.
    """
    from workbench.workflow import profile_model

    if out and len(models) > 1:
        raise UsageError("is one folder, for one model", where="--out")
    outlines = []

    def profile_each() -> Iterator[str]:
        for model in models:
            with show_progress() as progress:
                result = profile_model(model, export, measure, root=out, progress=progress)
            outlines.append(result.outline)
            yield from result.texts

    return Answer(profile_each(), {"profiles": outlines})


@workbench.command()
@click.argument("name", required=False)
def schema(name: str | None) -> Answer:
    """Print the JSON Schema of a file that the workbench writes; without NAME, list them."""
    from workbench.records.documents import describe_document, list_documents

    if name is None:
        return Answer(list_documents(), {"documents": list_documents()})
    described = describe_document(name)
    return Answer([json.dumps(described, indent=1)], {"schema": described})


@workbench.command()
@click.argument("name", required=False)
def skills(name: str | None) -> Answer:
    """Print a playbook: commands, checks, what to do on failure; without NAME, list them."""
    from workbench.report.skills import find_skill, list_skills

    if name is not None:
        skill = find_skill(name)
        return Answer([skill.text.rstrip()], {"skill": skill, "commands": skill.commands})
    known = list_skills()
    width = max(len(skill.name) for skill in known)
    lines = [f"{skill.name:{width}}  {skill.description}" for skill in known]
    return Answer(
        lines, {"skills": [{"name": s.name, "description": s.description} for s in known]}
    )


@workbench.command(context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def lab(arguments: tuple[str, ...]) -> Answer:
    """Open JupyterLab on the notebooks; ARGUMENTS go to JupyterLab."""
    from workbench.report.notebooks import open_lab

    record = {"opens": "lab", "arguments": arguments}
    return Answer([], record, then=lambda: open_lab(arguments))


def refuse_options(context: click.Context) -> None:
    """Refuse options that a config sets itself."""
    known = {field.name for field in fields(MeasureOptions)}
    for option in context.command.params:
        given = context.get_parameter_source(str(option.name))
        if option.name in known and given is not click.core.ParameterSource.DEFAULT:
            raise UsageError("the config sets this", where=option.opts[0])


@workbench.command(context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def app(arguments: tuple[str, ...]) -> Answer:
    """Serve the explorer of runs to a browser, without code; ARGUMENTS go to Voila."""
    from workbench.report.notebooks import open_app

    record = {"opens": "app", "arguments": arguments}
    return Answer([], record, then=lambda: open_app(arguments))


for added in (*diagnose.COMMANDS, *diagnose.GATE_COMMANDS, *batch.COMMANDS):
    workbench.add_command(added)
