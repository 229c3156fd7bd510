"""Commands that analyse runs, traces and logs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from workbench.cli.options import PATH, show_progress
from workbench.cli.output import Output, command
from workbench.errors import UsageError
from workbench.options import MeasureOptions


@command()
@click.argument("run_dir", type=PATH)
def analyze(run_dir: Path) -> Output:
    """Regenerate the CSV, JSON and Markdown files of a run from its ETDumps."""
    from workbench.analysis.run import analyze_run
    from workbench.workflow import write_artifacts

    files = write_artifacts(analyze_run(run_dir))
    return Output(files, {"run_dir": run_dir, "files": files})


@command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN_DIR...")
@click.option("--out", type=PATH, help="Folder for several runs [default: combined_MODEL].")
def report(runs: tuple[str, ...], out: Path | None) -> Output:
    """Write report.html and report.md of a run, or one report of several runs.

    Several runs, each RUN_DIR[:EXPERIMENT[:THREADS]], are shown side by side, layer by layer: other
    platforms, or other versions of a model. Emulated runs show which code ran, without times.
    """
    from workbench.portfolio.combined import write_combined
    from workbench.workflow import make_report

    if len(runs) == 1 and out:
        raise UsageError(
            "needs several runs", where="--out", hint="the report of one run is in its folder"
        )
    files = write_combined(runs, out) if len(runs) > 1 else list(make_report(runs[0]))
    return Output(files, {"runs": runs, "files": files})


@command()
@click.argument("run_dir", type=PATH)
@click.option("--experiment", default="", help="Which one [default: the first candidate].")
@click.option("--threads", type=int, help="At which thread count [default: the first].")
def findings(run_dir: Path, experiment: str, threads: int | None) -> Output:
    """List optimisation opportunities, largest gain first."""
    from workbench.analysis.findings.rules import find_next_steps
    from workbench.analysis.run import analyze_run
    from workbench.plots.text import list_findings

    analysis = analyze_run(run_dir)
    found = find_next_steps(analysis, experiment, threads)
    lines = list_findings(found, rows=len(found)) or ["no findings"]
    record = {"run_dir": run_dir, "emulated": analysis.run.emulated, "findings": found}
    return Output(lines, record)


@command()
@click.argument("run_dir", type=PATH)
@click.option("--again", is_flag=True, help="Measure again, even if the peaks are cached.")
@click.option("--top", default=12, show_default=True, help="Operators to list.")
def roofline(run_dir: Path, again: bool, top: int) -> Output:
    """Measure the peaks of this machine, and compare a run's operators with them."""
    from workbench.analysis.roofline import find_roofline, list_ceilings
    from workbench.analysis.run import analyze_run
    from workbench.plots.text import describe_roofline
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
    return Output([describe_roofline(analysis, top)], record)


@command()
@click.argument("run_dir", type=PATH)
@click.option("--layer", required=True, help="Path of the module, such as features.3.block.0.")
@click.option("--model", default="", help="The model that was exported [default: the run's].")
@click.option("--runs", default=50, show_default=True, help="Minimum timed inferences.")
@click.option("--processes", default=5, show_default=True, help="Restarts of every runner process.")
def replay(run_dir: Path, layer: str, model: str, runs: int, processes: int) -> Output:
    """Measure one layer of a model alone, and compare with its time in the model."""
    from workbench.workflow import replay_layer

    options = MeasureOptions(runs=runs, processes=processes)
    with show_progress() as progress:
        result = replay_layer(run_dir, layer, options, model=model, progress=progress)
    return Output([*result.texts, result.run_dir], asdict(result))


@command()
@click.argument("etdump", type=PATH)
@click.option("--to", required=True, help="csv, parquet, perfetto or speedscope.")
@click.option("--out", type=PATH, help="The file, or for csv the folder [default: beside ETDUMP].")
@click.option("--baseline", type=PATH, help="A second ETDump to compare with.")
def trace(etdump: Path, to: str, out: Path | None, baseline: Path | None) -> Output:
    """Convert an ETDump to another format; prints the files."""
    from workbench.workflow import export_trace

    files = export_trace(etdump, to, out=out, baseline=baseline)
    return Output(files, {"files": files})


@command()
@click.argument("log", type=PATH)
@click.option("--baseline", type=PATH, help="The log with the extension off.")
def kernels(log: Path, baseline: Path | None) -> Output:
    """List the microkernels in an XNNPACK log, as CSV.

    With --baseline, list those that an extension replaced. LOG is the output of a runner whose
    XNNPACK was built with XNN_LOG_LEVEL=4; it names the registered microkernels, which need not
    have run.
    """
    from workbench.analysis.machine_code import compare_kernels
    from workbench.trace.xnn_log import read_xnn_log

    table = read_xnn_log(log)
    if baseline:
        table = compare_kernels(table, read_xnn_log(baseline))
    return Output([table.to_csv(index=False, lineterminator="\n").rstrip()], {"kernels": table})


COMMANDS = (analyze, report, findings, roofline, replay, trace, kernels)
