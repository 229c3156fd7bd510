"""The main jobs: profile a model, measure programs, run a config."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.analysis.compare import compare_latencies
from workbench.analysis.machine_code import keep_functions
from workbench.analysis.open import open_run
from workbench.analysis.operators import load_scheme
from workbench.analysis.run import Run
from workbench.analysis.statistics import tabulate_latencies
from workbench.errors import UsageError, WorkbenchError
from workbench.export.artifact import export_model
from workbench.export.program import Program, open_program
from workbench.options import ExportOptions, MeasureOptions, Progress, silent
from workbench.records.runs import Experiment, RunRecord
from workbench.report.artifacts import write_artifacts
from workbench.report.report import make_report
from workbench.run.ceilings import find_peaks, list_roofs, measure_roof, save_peaks
from workbench.run.config import output_place, plan_config, read_config, select_experiments
from workbench.run.custom_runner import run_processes
from workbench.run.execute import execute
from workbench.run.locks import share_machine
from workbench.run.plan import check_toggle, make_plan, read_sweep
from workbench.run.recorder import find_run
from workbench.run.runner import Runner, find_runner
from workbench.run.targets import open_target

if TYPE_CHECKING:  # imports PyTorch
    from workbench.models.loader import LoadedModel


def profile(
    model: str | Path | LoadedModel | Program,
    export: ExportOptions = ExportOptions(),
    measure: MeasureOptions = MeasureOptions(),
    *,
    categories: str | Path = "",
    root: str | Path | None = None,
    progress: Progress = silent,
) -> Run:
    """Export a model, measure it with an extension off and on, analyse and report: the main job.

    Exports and reports wait while something else is measured on this machine.

    Parameters
    ----------
    model
        What `load_model` takes or returns; or a program: a ``.pte``, or what `export_model`
        returned.
    export, measure
        How to export, and what to measure.
    categories
        As for `open_run`.
    root
        The output folder, ``out_<model>`` by default.
    progress
        Called with what is being done and the fraction done.

    Returns
    -------
    Run
        With ``report.html`` and ``report.md`` in its folder.

    Raises
    ------
    WorkbenchError
        A stage failed; what earlier stages made is kept.

    Examples
    --------
    >>> wb.profile("toy_cnn", wb.ExportOptions(dtype="fp16"))  # doctest: +SKIP
    """
    label = model.path.name if isinstance(model, Program) else str(getattr(model, "name", model))

    def report(text: str, fraction: float = 0.0) -> None:
        progress(f"{label}: {text}", fraction)

    load_scheme(categories or "workbench")
    with open_target(measure.target, power=measure.power) as target:
        runner = find_runner(target, measure.ops)
        check_toggle(measure, runner)  # an export takes longer
        with share_machine(report):
            programs = _export(model, export, measure, root, report)
        programs += map(open_program, measure.against)
        place = Path(root or programs[0].root)
        run = measure_programs(programs, measure, runner, place, progress=report)
        if measure.roof and not run.emulated and not measure.power:
            try:
                measure_roof(run.path, runner=runner, progress=report)
            except WorkbenchError as error:
                report(f"warning: the machine's peaks were not measured: {error}")
    run = open_run(run, categories=categories)
    write_artifacts(run)
    report("reporting", 1.0)
    with share_machine(report):
        make_report(run)
    return run


def _export(
    model: str | Path | LoadedModel | Program,
    options: ExportOptions,
    measure: MeasureOptions,
    root: str | Path | None,
    progress: Progress,
) -> list[Program]:
    """The program of a model, or one for each size of a sweep that its shapes do not allow."""
    if isinstance(model, str | Path) and Path(model).suffix == ".pte":
        model = open_program(model)
    if isinstance(model, Program):
        if options != ExportOptions():
            raise UsageError("is exported already", where=model.path, hint="name a model instead")
        return [model]
    model = str(model) if isinstance(model, Path) else model
    program = export_model(model, options=options, root=root, progress=progress)
    is_dynamic = any(tensor.dynamic for tensor in program.inputs)
    if not measure.sweep or measure.against or is_dynamic:
        return [program]
    name, sizes = read_sweep(measure.sweep)
    return [
        export_model(
            model,
            replace(options, sizes=(*options.sizes, (name, size))),
            root=program.root / f"{name}_{size}",
            progress=progress,
        )
        for size in sizes
    ]


def measure(
    program: Program | str | Path | Sequence[Program | str | Path],
    options: MeasureOptions = MeasureOptions(),
    *,
    root: str | Path | None = None,
    again: bool = True,
    artifacts: bool = True,
    progress: Progress = silent,
    watch: Callable[[RunRecord], None] = lambda run: None,
) -> Run:
    """Measure a program and write the CSV and JSON files of the run.

    Parameters
    ----------
    program
        The program, or its ``.pte``; or several, which are measured interleaved and compared with
        the first one.
    options
        What to measure, and where.
    root
        The output folder; None takes the one that the program lies in, or ``out_<program>``.
    again
        Measure even if there is a finished run of the same plan with the same runner.
    artifacts
        Write the files of the analysis too.
    progress
        Called with what is being done and the fraction done.
    watch
        Called before each step with the record of the run so far.

    Raises
    ------
    WorkbenchError
        The program cannot be measured; what was measured is kept.

    Examples
    --------
    >>> program = wb.export_model("toy_cnn")  # doctest: +SKIP
    >>> wb.measure(program, wb.MeasureOptions(threads=(1, 2))).compare().text  # doctest: +SKIP
    >>> wb.measure([program, "smaller.pte"]).compare().text  # doctest: +SKIP
    """
    given = [program] if isinstance(program, Program | str | Path) else program
    programs = [open_program(each) for each in (*given, *options.against)]
    with open_target(options.target, power=options.power) as target:
        runner = find_runner(target, options.ops)
        place = Path(root or programs[0].root)
        run = measure_programs(
            programs, options, runner, place, again=again, progress=progress, watch=watch
        )
    if artifacts:
        write_artifacts(run)
    return run


def measure_programs(
    programs: Sequence[Program],
    options: MeasureOptions,
    runner: Runner,
    root: Path,
    *,
    again: bool = True,
    progress: Progress = silent,
    watch: Callable[[RunRecord], None] = lambda run: None,
) -> Run:
    """Plan and execute a run of opened programs; it has the machine's peaks if these are known."""
    plan = make_plan(programs, options, runner)
    run_dir = None if again else find_run(plan, runner, root, "complete")
    run_dir = run_dir or execute(
        plan, programs, runner, root, progress=progress, watch=watch, enough=is_precise
    )
    run = open_run(run_dir)
    keep_functions(run.path, run.record, [runner.libraries])
    for isa, threads in list_roofs(run.record) if options.roof and not options.power else ():
        if known := find_peaks(run.record, isa, threads):
            save_peaks(known, run.path)
    return run


def is_precise(record: RunRecord) -> bool:
    """Whether the interval of every speed-up is as narrow as the plan wants it."""
    latencies = tabulate_latencies(record)
    rows = [
        compare_latencies(latencies, p.baseline, p.candidate, threads=threads).iloc[0]
        for p in record.plan.pairs
        for threads in record.plan.threads
    ]
    return all(math.log(row["high"] / row["low"]) / 2 <= record.plan.precision for row in rows)


def run_config(
    path: str | Path,
    *,
    root: str | Path | None = None,
    only: Sequence[str] = (),
    target: str = "",
    power: str = "",
    ops: Sequence[str] = (),
    baseline: str = "",
    progress: Progress = silent,
) -> Run:
    """Measure the experiments of a config file, the kit's or ours.

    Experiments of mode ``xnntrace`` alone make a run without times: only `Run.kernel_changes`.

    Parameters
    ----------
    path
        The JSON file, as `read_config` describes it.
    root
        The output folder; None takes the config's ``output_root``, or ``out_<model>``.
    only
        Names of the experiments to run; all by default.
    target, power
        Where to run, and the Android power mode; empty for the config's.
    ops
        Shared libraries that register operators; a config cannot name them.
    baseline
        The experiment to compare all others with; by default the config's comparisons, else the
        side whose name says that the extension is off.
    progress
        Called with what is being done and the fraction done.

    Raises
    ------
    UsageError, StoreError
        The config is malformed, or names what does not exist.
    RunnerError
        A runner failed.

    Examples
    --------
    >>> wb.run_config("mac_sme2.json").findings  # doctest: +SKIP
    """
    path = Path(path)
    config = read_config(path, progress)
    config = replace(config, target=target or config.target, power=power or config.power)
    config = select_experiments(config, only) if only else config
    place, name = output_place(config)
    place = Path(root or place)
    with open_target(config.target, power=config.power) as there:
        if config.experiments[0].runner == Experiment.runner:
            runner = find_runner(there, ops)
            plan, programs = plan_config(config, path.parent, baseline, runner)
            run = open_run(execute(plan, programs, runner, place, progress=progress))
            keep_functions(run.path, run.record, [runner.libraries])
        else:
            plan, programs = plan_config(config, path.parent, baseline)
            run_dir = run_processes(plan, programs, place, name, target=there, progress=progress)
            run = open_run(run_dir)
    write_artifacts(run)
    return run
