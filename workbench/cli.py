"""The command line: one subcommand per stage, each a few lines over one function."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import click

from workbench.arguments import Duration, Floats, Numbers, Percent, Size
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


def _options(*options):
    def add(command):
        for option in reversed(options):
            command = option(command)
        return command

    return add


PATH = click.Path(path_type=Path)
OUT = click.option("--out", type=PATH, help="Output folder [default: out_<model>].")
EXPORT_OPTIONS = _options(
    click.option(
        "--dtype",
        default="fp32",
        show_default=True,
        help="fp32, fp16, fp16w, bf16, int8, int8dyn or 8da4w.",
    ),
    click.option("--backend", default="xnnpack", show_default=True, help="xnnpack or portable."),
    click.option(
        "--state-dict", type=PATH, help="Weights: a file that torch.save(state_dict) wrote."
    ),
    click.option(
        "--inputs",
        multiple=True,
        metavar="SOURCE",
        help="Inputs: .npy, .pt, .safetensors, an image or a folder of them, random:SEED; "
        "one for each input. Several samples calibrate int8, and the first one is run.",
    ),
    click.option(
        "--size",
        "sizes",
        type=Size(),
        multiple=True,
        help="Run at this size of a dynamic dimension, such as batch=4.",
    ),
    click.option("--mean", type=Floats(), default=(), help="Of images, per channel, from 0 to 1."),
    click.option("--std", type=Floats(), default=(), help="Of images, per channel."),
    click.option(
        "--keep-float", multiple=True, metavar="PATTERN", help="Module paths not to quantise."
    ),
    click.option("--rewrite/--no-rewrite", default=True, help="Spell out what XNNPACK lacks."),
    click.option("--fresh", is_flag=True, help="Export again even if nothing has changed."),
)
RUN_OPTIONS = _options(
    click.option(
        "--toggle",
        default="auto",
        show_default=True,
        help="CPU extension to switch off and on; auto: the strongest; none: an A/A run.",
    ),
    click.option("--isa-ladder", is_flag=True, help="Measure every ISA level of this CPU instead."),
    click.option("--threads", type=Numbers(), default="1", show_default=True, help="CPU threads."),
    click.option("--runs", default=50, show_default=True, help="Least timed inferences of each."),
    click.option(
        "--budget",
        "budget_s",
        type=Duration(),
        default=0.0,
        help="Time to measure for, such as 30s, instead of --runs.",
    ),
    click.option(
        "--precision",
        type=Percent(),
        default="1%",
        show_default=True,
        help="With --budget: stop when half the interval's width is below this.",
    ),
    click.option("--warmup", default=3, show_default=True, help="Inferences before timing."),
    click.option("--processes", default=5, show_default=True, help="Restarts of every runner."),
    click.option("--evidence/--no-evidence", default=True, help="Sample the machine code, too."),
    click.option("--runner", default="wheel", show_default=True, help="wheel, native or python."),
    click.option(
        "--target",
        default="host",
        show_default=True,
        help="Where it runs: host, qemu[:CPU], android[:SERIAL] or ssh:HOST.",
    ),
    click.option(
        "--power",
        default="",
        help="Put an Android device into a mode for the run: boost or developer.",
    ),
    click.option(
        "--timeout", "timeout_s", default=120.0, show_default=True, help="Seconds for one answer."
    ),
)


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
@click.argument("run_dir", type=PATH)
@click.option("--experiment", default="", help="Which one [default: the first candidate].")
@click.option("--threads", type=int, help="At which thread count [default: the first].")
def findings(run_dir: Path, experiment: str, threads: int | None) -> None:
    """Say what to do next about a run, what brings most first."""
    from workbench.report import analyze_run, find_next_steps, list_findings

    found = find_next_steps(analyze_run(run_dir), experiment, threads)
    for line in list_findings(found, rows=len(found)) or ["nothing stands out"]:
        click.echo(line)


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


@contextlib.contextmanager
def show_progress() -> Iterator[Callable[[str, float], None]]:
    """A bar on a terminal, plain lines elsewhere; all on stderr."""
    from tqdm import tqdm

    if not sys.stderr.isatty():
        yield lambda text, part: click.echo(text, err=True)
        return
    bar_format = "{percentage:3.0f} % |{bar}| {elapsed} {desc}"
    with tqdm(total=1.0, bar_format=bar_format, leave=False) as bar:

        def show(text: str, part: float) -> None:
            bar.set_description_str(text)
            bar.update(part - bar.n)

        yield show
