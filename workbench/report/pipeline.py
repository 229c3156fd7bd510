"""The stages in one go: model -> export -> run -> trace -> analyze -> show -> report."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.analyze import compare_latencies, tabulate_latencies
from workbench.errors import SetupError, StoreError
from workbench.records import Run, Session
from workbench.report.analysis import Analysis, analyze_run, remember
from workbench.report.checks import describe_quality
from workbench.report.evidence import keep_functions
from workbench.report.findings import find_next_steps, list_findings
from workbench.report.html import export_html
from workbench.report.markdown import write_markdown
from workbench.report.notebooks import execute_notebook
from workbench.report.summary import (
    outline_run,
    write_metrics,
    write_pipeline_summary,
    write_summary,
)
from workbench.store import (
    LAYERS,
    REPORT_HTML,
    REPORT_MD,
    artifacts_dir,
    default_root,
    load_run,
    save_layers,
)
from workbench.trace import read_etdump, write_csvs

Progress = Callable[[str, float], None]

#: The notebook that every report is.
REPORT_NOTEBOOK = "12_report"


@dataclass(frozen=True)
class Profile:
    """What the main job leaves behind."""

    analysis: Analysis
    html: Path
    markdown: Path

    @property
    def verdicts(self) -> list[str]:
        """One line for each comparison, and one for the quality of the measurement."""
        texts = [comparison.text for comparison in self.analysis.comparisons]
        return [*texts, describe_quality(self.analysis)]

    @property
    def texts(self) -> list[str]:
        """The verdicts, what to do next, and where the report is."""
        findings = list_findings(find_next_steps(self.analysis), rows=3)
        return [*self.verdicts, *findings, f"report: {self.html}"]

    @property
    def outline(self) -> dict[str, Any]:
        """The same as a record, with all findings."""
        findings = find_next_steps(self.analysis)
        return {**outline_run(self.analysis), "findings": findings, "report": self.html}


def profile_model(
    model: str,
    *,
    root: Path | None = None,
    progress: Progress = lambda text, part: None,
    **choices: Any,
) -> Profile:
    """Export a model, measure it with an extension off and on, analyse and report: the main job.

    Exports and reports wait while something else is measured on this machine.

    Parameters
    ----------
    model
        What ``load_model`` takes.
    root
        The output folder, ``out_<model>`` by default.
    progress
        Told what is being done, and which part of it is done (0 to 1).
    choices
        As for ``export_model`` and ``measure_program``.

    Raises
    ------
    WorkbenchError
        Any stage failed; what the stages before it made is kept.
    """
    from workbench.export import export_model
    from workbench.run import check_toggle, find_runner, open_target
    from workbench.run.locks import share_machine

    def tell(text: str, part: float = 0.0) -> None:
        progress(f"{model}: {text}", part)

    toggle, ladder = choices.get("toggle", "auto"), choices.get("isa_ladder", False)
    with open_target(choices.get("target", "host")) as there:
        check_toggle(toggle, find_runner(choices.get("runner", "wheel"), there), isa_ladder=ladder)
    known = inspect.signature(export_model).parameters
    exporting = {name: choices.pop(name) for name in known.keys() & choices.keys()}
    tell(f"exporting {exporting.get('dtype', 'fp32')}")
    with share_machine(tell):
        pte = export_model(model, root=root, tell=lambda text: progress(text, 0.0), **exporting)
    run_dir = measure_program(pte, progress=tell, **choices)
    tell("reporting", 1.0)
    with share_machine(tell):
        analysis = analyze_run(run_dir)
        html = make_page(analysis)
    return Profile(analysis, html, run_dir / REPORT_MD)


def measure_program(pte: Path, **choices: Any) -> Path:
    """Measure a program and write the artifacts of the run; returns the run's folder.

    Takes what `record_program` takes.
    """
    run_dir = record_program(pte, **choices)
    write_artifacts(analyze_run(run_dir))
    return run_dir


def record_program(
    pte: Path,
    *,
    root: Path | None = None,
    runner: str = "wheel",
    target: str = "host",
    power: str = "",
    again: bool = True,
    progress: Progress = lambda text, part: None,
    **choices: Any,
) -> Path:
    """Measure a program, and leave it at that: the analysis can be had later; the run's folder.

    Parameters
    ----------
    pte
        The program.
    root
        The output folder; None takes the one that the program lies in, or ``out_<model>``.
    runner
        ``wheel``, ``native`` or ``python``.
    target, power
        As for ``open_target``: where it runs, and the mode that an Android device is put into.
    again
        Measure also if a finished run of the very same plan and runner lies there.
    choices
        As for ``make_plan``: ``toggle``, ``isa_ladder``, ``threads``, ``runs``, ``warmup``,
        ``processes``, ``evidence``, ``timeout_s``, ``budget_s``, ``precision``.
    """
    from workbench.run import find_run, find_runner, make_plan, open_target, run_plan

    pte = Path(pte)
    with open_target(target, power=power) as there:
        found = find_runner(runner, there)
        plan = make_plan(pte, runner=found, **choices)
        place = root or root_of(pte)
        run_dir = None if again else find_run(plan, found, place, "complete")
        run_dir = run_dir or run_plan(plan, found, place, progress=progress, enough=is_precise)
    describe_foreign(pte, run_dir)
    keep_functions(run_dir, load_run(run_dir), [found.libraries])
    return run_dir


def is_precise(run: Run) -> bool:
    """Whether the interval of every speed-up is as narrow as the plan wants it."""
    latencies = tabulate_latencies(run)
    rows = [
        compare_latencies(latencies, p.baseline, p.candidate, threads=threads).iloc[0]
        for p in run.plan.pairs
        for threads in run.plan.threads
    ]
    return all(math.log(row["high"] / row["low"]) / 2 <= run.plan.precision for row in rows)


def measure_config(
    path: Path, *, root: Path | None = None, progress: Progress = lambda text, part: None
) -> Path:
    """Measure the experiments of a config file, the kit's or ours; returns the run's folder.

    Parameters
    ----------
    path
        The JSON file, as ``read_config`` has it.
    root
        The output folder; None takes the config's ``output_root``, or ``out_<model>``.

    Raises
    ------
    UsageError, StoreError
        The config asks for what is not there, or is none.
    RunnerError
        A runner failed.
    """
    from workbench.run import (
        complete_plan,
        find_runner,
        open_target,
        output_place,
        plan_config,
        read_config,
        run_plan,
        run_processes,
    )

    path = Path(path)
    config = read_config(path)
    plan = plan_config(config, path.parent)
    place, name = output_place(config)
    place = root or place
    with open_target(config.target) as there:
        if config.experiments[0].runner_path:
            run_dir = run_processes(plan, place, name, target=there, progress=progress)
        else:
            runner = find_runner(config.experiments[0].runner, there)
            run_dir = run_plan(complete_plan(plan, runner), runner, place, progress=progress)
            keep_functions(run_dir, load_run(run_dir), [runner.libraries])
    describe_foreign(Path(plan.pte), run_dir)
    write_artifacts(analyze_run(run_dir))
    return run_dir


def describe_foreign(pte: Path, run_dir: Path) -> None:
    """Make a sidecar for a run of a program that came without one.

    It tells shapes and costs, and layers if an ETRecord (``<program>.pte.etrecord``) lies beside. A
    program that only the runtime can read is analysed all the same.
    """
    from workbench.export import describe_pte

    path = run_dir / LAYERS
    if not path.exists():
        with contextlib.suppress(StoreError, SetupError):
            etrecord = pte.with_name(f"{pte.name}.etrecord")
            known = etrecord if etrecord.exists() else None
            save_layers(describe_pte(pte.read_bytes(), pte, etrecord=known), path)


def root_of(pte: Path) -> Path:
    """The output folder that a program belongs to."""
    folder = pte.parent
    return folder.parent if folder == artifacts_dir(folder.parent) else default_root(pte.stem)


def write_artifacts(analysis: Analysis) -> list[Path]:
    """Write all that can be made anew from the ETDumps and the manifest; returns the paths.

    The CSVs are those of the first process of each experiment.
    """
    written = [
        path
        for session in analysis.run.sessions
        if session.complete and session.etdump and session.process == 0
        for path in write_trace_csvs(analysis, session)
    ]
    findings = find_next_steps(analysis)
    return [
        *written,
        write_metrics(analysis),
        write_summary(analysis, findings),
        write_pipeline_summary(analysis),
        *write_markdown(analysis, findings),
    ]


def write_trace_csvs(analysis: Analysis, session: Session) -> list[Path]:
    """Write the three CSVs of one ETDump, beside it."""
    path = analysis.run_dir / session.etdump
    export = analysis.run.export
    backends = ", ".join(export.delegates) if export else ""
    events = read_etdump(path)
    return write_csvs(events, path, model_id=analysis.run.plan.model, delegate_backend=backends)


def make_report(run_dir: str | Path) -> tuple[Path, Path]:
    """Make ``report.html`` and ``report.md`` of a run; returns their paths.

    The page is the notebook ``12_report``, run headless; should a cell of it fail, the notebook
    stays beside the report with the error in it.
    """
    analysis = analyze_run(run_dir)
    markdown, *_ = write_markdown(analysis, find_next_steps(analysis))
    return make_page(analysis), markdown


def make_page(analysis: Analysis, *, in_process: bool = False) -> Path:
    """Make ``report.html`` alone, as `make_report` does; returns its path.

    ``in_process`` is for processes that make many and nothing else: the notebook runs in this one,
    and takes the analysis as it is.
    """
    run_dir = analysis.run_dir
    notebook = run_dir / f".{REPORT_NOTEBOOK}.ipynb"
    parameters = {"run_dir": str(run_dir.resolve()), "headless": True}
    with remember(analysis) if in_process else contextlib.nullcontext():
        execute_notebook(REPORT_NOTEBOOK, notebook, parameters, in_process=in_process)
    plan = analysis.run.plan
    title = f"{plan.stem}: {plan.toggle or 'profile'}"
    page = export_html(notebook, run_dir / REPORT_HTML, title)
    with contextlib.suppress(FileNotFoundError):
        notebook.unlink()
    return page
