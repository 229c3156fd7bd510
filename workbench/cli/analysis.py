"""Commands that read what was recorded: runs, traces and logs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from workbench.cli.checks import (
    check_experiment,
    check_subjects,
    check_threads,
    one_of,
)
from workbench.cli.command import (
    ASSIGNMENT,
    BASELINE,
    CATEGORIES,
    DURATION,
    EXISTING,
    MEASURED,
    PATH,
    QUIET,
    RECORDED,
    Output,
    command,
    command_line,
    read_value,
    variables,
    with_limits,
)
from workbench.errors import UsageError
from workbench.progress import show_progress
from workbench.records.pairing import AXES, PARTS

if TYPE_CHECKING:
    from workbench.analysis.run import Measurement, Run
    from workbench.plots.tables import Table


@command()
@click.argument("run_dir", type=RECORDED)
@BASELINE
@CATEGORIES
@click.option(
    "--etrecord",
    type=EXISTING,
    help="Of a program exported elsewhere: its layers, kept with the run.",
)
@click.option("--whole", is_flag=True, help="Timelines of all traced inferences, not the first.")
@click.option("--check", is_flag=True, help="Exit 1 if a check of the run fails.")
@QUIET
def analyze(
    run_dir: Path, baseline: str, categories: str, etrecord: Path | None, whole: bool, check: bool,
    quiet: bool,
) -> Output:  # fmt: skip
    """Regenerate the CSV and JSON files of a run from its ETDumps; print the time by category.

    Checks that failed are printed, such as outputs that differ, or a program that is not the one
    that ran; --json has all.
    """
    check_experiment(run_dir, baseline, "--baseline")
    from workbench.analysis.open import open_run
    from workbench.report.artifacts import check_run, write_artifacts

    run = open_run(run_dir, baseline=baseline, categories=categories, etrecord=etrecord or "")
    files = write_artifacts(run, whole=whole)
    checks = check_run(run)
    failed = checks[checks["status"] == "fail"]
    problems = [f"fail  {row.check}: {row.evidence}" for row in failed.itertuples()]
    record = {"run_dir": run_dir, "files": files, "ok": not problems, "checks": checks}
    lines = [*([] if quiet else show_categories(run)), *problems, *files]
    step = command_line("report", run_dir) if run.traced else ""
    return Output(lines, record, exit_code=check and bool(problems), step=step)


def show_categories(run: Run) -> list[Table]:
    """The time of a run's categories of operators, on both sides if there are two; or nothing."""
    from workbench.plots.tables import show_table

    if run.emulated or not run.traced:
        return []
    comparison = next(iter(run.comparisons), None)
    if comparison is None:
        columns = ["category", "mean_ms", "share", "operators"]
        return [show_table(run.subject.categories, columns, caption=run.subject.label)]
    columns = ["name", "baseline_ms", "candidate_ms", "speedup", "outcome"]
    return [show_table(comparison.categories, columns, caption=comparison.label)]


@command()
@click.argument("runs", nargs=-1, required=True, type=MEASURED, metavar="RUN_DIR...")
@click.option("--out", type=PATH, help="Folder for several runs [default: combined_MODEL].")
@click.option("--notebook", type=EXISTING, help="Notebook to execute [default: 16_report].")
@click.option(
    "-p", "--parameter", "parameters", type=ASSIGNMENT, multiple=True,
    help="Value of a parameter of the notebook, such as top=30.",
)  # fmt: skip
@BASELINE
@CATEGORIES
def report(
    runs: tuple[str, ...],
    out: Path | None,
    notebook: Path | None,
    parameters: tuple[tuple[str, str], ...],
    baseline: str,
    categories: str,
) -> Output:
    """Execute the report notebook for a run, or write one report of several runs.

    The report of one run is report.html, report.md and report.ipynb in its folder. A notebook of
    your own needs a cell tagged `parameters` that sets run_dir.

    Several runs, each RUN_DIR[:EXPERIMENT[:THREADS]], are shown side by side, layer by layer: other
    platforms, or other versions of a model. Emulated runs show which code ran, without times.
    """
    if len(runs) == 1 and out:
        hint = "the report of one run is in its folder"
        raise UsageError("needs several runs", where="--out", hint=hint)
    if len(runs) > 1 and (notebook or parameters or categories):
        where = "--notebook" if notebook or parameters else "--categories"
        raise UsageError("is for the report of one run", where=where)
    if len(runs) > 1 and baseline:
        raise UsageError("of several runs, the first is the baseline", where="--baseline")
    check_experiment(Path(runs[0]), baseline, "--baseline")
    if len(runs) > 1:
        from workbench.report.combined import write_combined

        files = write_combined(runs, out)
    else:
        from workbench.report.report import make_report

        with show_progress() as progress:
            paths = make_report(
                runs[0], baseline=baseline, categories=categories, notebook=notebook or "",
                parameters={name: read_value(text) for name, text in parameters},
                progress=progress,
            )  # fmt: skip
        files = list(paths)
    return Output(files, {"runs": runs, "files": files}, step=f"open {files[0]} in a browser")


@command()
@click.argument("run_dir", type=RECORDED)
@click.option("--experiment", default="", help="Which one [default: the first candidate].")
@click.option("--threads", type=int, help="At which thread count [default: the first].")
@BASELINE
@click.option(
    "--check",
    is_flag=False,
    flag_value="first",
    default="",
    metavar="[ID]",
    help="Try the remedies of the first findings, then those that help together; or that of one "
    "finding, or with `together` all that help.",
)
@click.option("--budget", type=DURATION, help="With --check: the longest that one may take.")
@click.option(
    "--apply",
    is_flag=False,
    flag_value="all",
    default="",
    metavar="[ID]",
    help="Measure the model with the remedy of one finding, or of all that were shown to help, "
    "beside the original.",
)
@click.option(
    "--model", default="", help="With --check, --apply: the run's model, if it is code in a file."
)
def findings(
    run_dir: Path, experiment: str, threads: int | None, baseline: str, check: str,
    budget: float | None, apply: str, model: str,
) -> Output:  # fmt: skip
    """List optimisation opportunities, the most promising first."""
    if check and apply:
        raise UsageError("--check tries remedies on parts, --apply on the whole: choose one")
    check_experiment(run_dir, experiment)
    check_experiment(run_dir, baseline, "--baseline")
    check_threads(run_dir, threads)
    check_subjects([model] if model else [])
    from workbench.analysis.describe import NO_PROGRAM, describe_latency
    from workbench.analysis.findings.commands import advise_next, combine_remedies
    from workbench.analysis.findings.text import NONE, to_record, write_findings
    from workbench.analysis.open import open_run
    from workbench.emulation import EMULATED

    run = open_run(run_dir, baseline=baseline)
    if apply:
        return measure_applied(run, apply, model)
    name = experiment or run.subject.name
    measurement = run[name, threads] if threads else run[name]
    notes = try_findings(measurement, model, check, budget) if check else ()
    opportunities = measurement.opportunities
    records = [to_record(each, rank) for rank, each in enumerate(opportunities, 1)]
    record = {"run_dir": run_dir, "emulated": measurement.emulated, "findings": records}
    time = EMULATED if measurement.emulated else describe_latency(measurement.statistics)
    lines = [
        f"{measurement.label}: {time}",
        *(write_findings(opportunities) if opportunities else [NONE]),
    ]
    if len(measurement.potential.gains) > 1:
        from workbench.plots.gain import describe_potential

        lines.append(f"together: {' '.join(describe_potential(measurement.potential))}")
    if together := combine_remedies(measurement, opportunities):
        lines.append(f"all rewrites: {together}")
    variable = (variables() or {}).get(str(run_dir), "")
    step = advise_next(measurement, opportunities, variable)
    lines += [] if measurement.sidecar else [NO_PROGRAM]
    return Output(lines, record, step=step, notes=notes)


def try_findings(
    measurement: Measurement, model: str, check: str, budget: float | None
) -> tuple[str, ...]:
    """Try the remedies of findings; a note if none was tried."""
    from workbench.analysis.findings_frame import find_trials

    finding, limits = "" if check == "first" else check, {"budget_s": budget} if budget else {}
    with show_progress() as progress:
        tried = find_trials()(
            measurement, model or None, finding=finding, progress=progress, **limits
        )
    if tried:
        return ()
    return ("nothing was tried: no finding has a remedy that was not tried before",)


def measure_applied(run: Run, name: str, model: str) -> Output:
    """Measure the model of a run with remedies beside the original."""
    from workbench.plots.views import show
    from workbench.report.artifacts import outline_run

    with show_progress() as progress:
        applied = run.apply(name, model or None, progress=progress)
    record = outline_run(applied) | {"applied": applied.applied}
    return Output([show(applied)], record, step=command_line("report", applied.path))


@command()
@click.argument("names", nargs=-1, required=True, type=MEASURED, metavar="RUN_DIR...")
@click.option(
    "--baseline", type=RECORDED, help="An earlier run, or its manifest.json: the same of both."
)
@click.option(
    "--across",
    multiple=True,
    callback=one_of("axis", AXES, "--across"),
    help="What may differ: program, threads, device, build.",
)
@click.option(
    "--by",
    callback=one_of("part", PARTS, "--by"),
    help="Also compare by layer, category or operator.",
)
@with_limits
@click.option("--junit", type=PATH, help="Also write JUnit XML; with --fail-above.")
def compare(
    names: tuple[str, ...],
    baseline: Path | None,
    across: tuple[str, ...],
    by: str | None,
    junit: Path | None,
    limits: dict[str, float],
) -> Output:
    """Compare measurements, each RUN_DIR[:EXPERIMENT[:THREADS]], with the first one.

    Of one run, its two sides; two runs may be of different programs, such as before and after an
    edit. Two measurements give a verdict, more a row each; --by adds a table
    of their layers, categories or operators, which needs their traces. With --fail-above, the
    command fails if the whole 95 % interval of a row is beyond the limit. With --baseline, every
    measurement of one run is compared with the same of an earlier one, or of its manifest.json.
    """
    from workbench.analysis.compare_runs import split_name
    from workbench.analysis.open import open_run
    from workbench.report.gate import compare_named, show_gate, write_junit

    if junit and not limits:
        raise UsageError("needs --fail-above", where="--junit")
    if baseline and (len(names) > 1 or by):
        raise UsageError("compares the whole of one run", where="--baseline")
    gate = compare_named(names, baseline=baseline or "", across=across, by=by, limits=limits)
    if junit:
        write_junit(gate, junit)
    run = open_run(split_name(names[-1])[0])
    step = command_line("findings", run.path) if run.traced else ""
    return Output(show_gate(gate), gate.record, exit_code=not gate.passed, step=step)


@command(context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def lab(arguments: tuple[str, ...]) -> Output:
    """Open JupyterLab on the notebooks; ARGUMENTS go to JupyterLab."""
    from workbench.report.notebooks import open_lab

    return Output([], {"opens": "lab", "arguments": arguments}, 0, lambda: open_lab(arguments))


COMMANDS = (analyze, report, findings, compare, lab)
