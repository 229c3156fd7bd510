"""Commands that export and measure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from workbench.cli.analysis import measure_applied, show_categories
from workbench.cli.checks import check_request
from workbench.cli.command import (
    CATEGORIES,
    EXPORT_OPTIONS,
    OUT,
    PATH,
    QUIET,
    RUN_OPTIONS,
    Output,
    command,
    command_line,
    print_now,
    say,
)
from workbench.errors import UsageError
from workbench.options import ExportOptions, MeasureOptions
from workbench.progress import show_progress
from workbench.store import REPORT_HTML

if TYPE_CHECKING:
    from workbench.analysis.run import Run
    from workbench.records.trials import Trial

#: Findings that `profile` prints.
_BEST = 3


@command()
def doctor() -> Output:
    """Check what this machine can do; each problem has a fix."""
    from workbench.run.doctor import examine_machine

    findings = examine_machine()
    width = max(len(finding.subject) for finding in findings)
    lines = [
        f"{f.status:4}  {f.subject:{width}}  {f.detail}" + (f"  -> {f.fix}" if f.fix else "")
        for f in findings
    ]
    ready = all(finding.status != "fail" for finding in findings)
    if not ready:
        click.echo("error: this machine cannot profile models -> fix what says `fail`", err=True)
    step = command_line("profile", "mobilenet_v3_small") if ready else ""
    return Output(lines, {"ready": ready, "findings": findings}, exit_code=not ready, step=step)


@command()
@click.argument("model")
@EXPORT_OPTIONS
@OUT
def export(model: str, out: Path | None, export: ExportOptions) -> Output:
    """Export MODEL to a .pte.

    MODEL is a registered name, path/to/file.py:NAME, the folder of one model of Arm's profiling
    kit, executorch:NAME (a model definition of its wheel), torchvision:NAME, timm:NAME, or a name
    with the prefix of a plug-in, such as llm:smollm2_135m,layers=4. An up-to-date export is reused.

    Operators that were not delegated, and differences from the outputs of the PyTorch model, are
    listed on stderr.
    """
    check_request([model], export)
    from workbench.export.artifact import describe_export, export_model, list_faults

    with show_progress() as progress:
        program = export_model(model, options=export, root=out, progress=progress)
    pte, record = program.path, program.export
    for line in describe_export(record) if record else ():
        say(line)
    record_of = {"pte": pte, "export": record}
    return Output([pte], record_of, step=command_line("run", pte), failures=list_faults([record]))


@command()
@click.argument("subject", type=PATH, metavar="MODEL.pte")
@RUN_OPTIONS
@OUT
def run(subject: Path, out: Path | None, measure: MeasureOptions) -> Output:
    """Measure a .pte with a CPU extension off and on, or several side by side.

    Prints the run's folder.
    """
    check_request([str(subject)], measure=measure)
    from workbench import workflow
    from workbench.report.artifacts import outline_run

    with show_progress() as progress:
        result = workflow.measure(subject, options=measure, root=out, progress=progress)
    lines = [*(ab.text for ab in result.comparisons), *_summarize(result), str(result.path)]
    step, failures = command_line("report", result.path), _list_failures(result)
    return Output(lines, outline_run(result), step=step, failures=failures)


def _summarize(run: Run) -> list[str]:
    """The latencies of a run, what ran in its dtype, and the measurement's grade."""
    from workbench.analysis.describe import (
        describe_latency,
        describe_methods,
        describe_rate,
    )
    from workbench.analysis.dtypes import describe_dtypes
    from workbench.analysis.use import describe_use

    latencies = [
        f"{m.label}: {describe_latency(m.statistics)}{describe_rate(m.phase, m.latency_ms)}"
        for m in run.measurements
        if not (m.control or run.emulated)
    ]
    dtypes = [] if run.subject.dtypes is None else [describe_dtypes(run.subject.dtypes)]
    texts = describe_methods(run.record, run.methods)
    quality = [*describe_use([m.use for m in run.measurements if not m.control]), run.grade]
    return [
        *texts,
        *latencies,
        *chain.from_iterable(run.list_shown("printed").values()),
        *dtypes,
        *quality,
    ]


@command(
    epilog="""\b
Examples:
  workbench profile mobilenet_v3_small
  workbench profile my_model.py:Net --dtype int8 --threads 1,2
  workbench profile timm:resnet18 --isa-ladder --budget 2m"""
)
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@EXPORT_OPTIONS
@RUN_OPTIONS
@click.option(
    "--effort",
    type=click.Choice(["full", "quick"]),
    default="full",
    show_default=True,
    help="quick: latency and operators in about three seconds, unless options say otherwise.",
)
@click.option(
    "--apply",
    default="",
    metavar="ID|all",
    help="Then measure the model with the remedy of a finding, or of all that were shown to help, "
    "beside the original.",
)
@CATEGORIES
@QUIET
@OUT
def profile(
    models: tuple[str, ...],
    effort: str,
    apply: str,
    categories: str,
    quiet: bool,
    out: Path | None,
    export: ExportOptions,
    measure: MeasureOptions,
) -> Output:
    """Export, measure, analyse and report, in one command.

    MODEL is what `workbench export` takes.
    """
    if out and len(models) > 1:
        raise UsageError("needs exactly one model", where="--out")
    check_request(models, export, measure)
    if measure.target == "host":
        _build_beside()
    from workbench import workflow

    sources, typed = click.get_current_context(), click.core.ParameterSource.COMMANDLINE
    given = [name for name in sources.params if sources.get_parameter_source(name) == typed]
    measure = workflow.apply_effort(measure, effort, given)
    run = partial(
        workflow.profile, export=export, measure=measure, categories=categories, root=out,
        report=True,
    )  # fmt: skip
    profiles, folders, failures = list[dict[str, Any]](), list[Path](), list[str]()

    def profile_each() -> Iterator[object]:
        for model in models:
            answer = _Answer(quiet)
            with show_progress() as progress:
                profiled = run(
                    model, progress=progress, answer=answer.print, tried=answer.print_trial
                )
            yield from _report_profile(profiled, answer, profiles, failures)
            folders.append(profiled.path)
            if apply:
                applied = measure_applied(profiled, apply, model)
                profiles.append({**applied.record})
                yield from applied.lines

    def list_next() -> str:
        return "; ".join(command_line("findings", path) for path in folders)

    return Output(profile_each(), {"profiles": profiles}, step=list_next, failures=failures)


def _report_profile(
    run: Run, answer: _Answer, profiles: list[dict[str, Any]], failures: list[str]
) -> Iterator[object]:
    """The last lines of a profile; adds its record, and what is missing or wrong."""
    from workbench.analysis.findings.commands import combine_remedies
    from workbench.analysis.findings.text import to_record
    from workbench.export.artifact import list_faults
    from workbench.report.artifacts import outline_run
    from workbench.run.execute import optional

    page = run.path / REPORT_HTML
    failures += _list_failures(run, page)
    failures += list_faults([run.record.export, *run.record.exports.values()])
    with optional("findings", lambda text, _: failures.append(text)):
        findings = run.opportunities
        records = [to_record(each, rank) for rank, each in enumerate(findings, 1)]
        outputs = {"findings": records, "report": page if page.is_file() else None}
        profiles.append(outline_run(run) | outputs)
        yield from answer.add(run)
        together = combine_remedies(run.subject, findings)
        if together and not answer.quiet:
            yield f"all rewrites: {together}"
    if page.is_file():
        yield f"report: {page}"


@dataclass
class _Answer:
    """What `profile` prints of a run: after its last restart, then at its end what is new."""

    quiet: bool
    #: Lines, and findings by their ids and gains.
    printed: set[str] = field(default_factory=set)

    def add(self, run: Run) -> list[object]:
        """The lines that were not printed before."""
        from workbench.analysis.findings.text import write_finding

        if self.quiet:
            return []
        texts: dict[str, list[object]] = {ab.text: [ab.text] for ab in run.comparisons}
        for rank, finding in enumerate(run.opportunities[:_BEST], 1):
            texts[f"{finding.id} {finding.gain}"] = [*write_finding(finding, rank)]
        texts |= {str(part): [part] for part in (*_summarize(run), *show_categories(run))}
        new = [key for key in texts if key not in self.printed]
        self.printed.update(new)
        return [line for key in new for line in texts[key]]

    def print(self, run: Run) -> None:
        """Print what was not printed before."""
        print_now(self.add(run))

    def print_trial(self, trial: Trial) -> None:
        """Print a line of a remedy that was tried."""
        from workbench.analysis.findings.text import describe_outcome

        print_now([] if self.quiet else [f"tried {trial.remedy}: {describe_outcome(trial)}"])


def _build_beside() -> None:
    """Compile the runner at its first use while this process imports, which takes seconds, too.

    What fails here fails again where the runner is found.
    """
    from workbench.run.build import build_runner, work_beside

    beside = click.get_current_context().with_resource(work_beside())
    beside.submit(build_runner)


def _list_failures(run: Run, *pages: Path) -> list[str]:
    """The files of a run that a command promised and that are not there, with what makes them."""
    from workbench.report.artifacts import list_artifacts

    commands = dict.fromkeys(list_artifacts(run), "analyze") | dict.fromkeys(pages, "report")
    return [
        f"{path} was not written (see above) -> fix that, then: {command_line(name, run.path)}"
        for path, name in commands.items()
        if not path.is_file()
    ]


COMMANDS = (doctor, export, run, profile)
