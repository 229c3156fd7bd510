"""The main jobs: profile a model, measure programs, run a config."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pandas as pd

from workbench.analysis.compare import MARGIN, Speedup, compare_latencies, reach_verdict
from workbench.analysis.findings.rules import find_bottlenecks
from workbench.analysis.machine_code import keep_places
from workbench.analysis.open import open_run
from workbench.analysis.operators import load_scheme
from workbench.analysis.run import Run
from workbench.analysis.statistics import tabulate_latencies
from workbench.analysis.sweeps import find_control
from workbench.analysis.trials import check_findings
from workbench.errors import StoreError, UsageError, WorkbenchError, unknown_name
from workbench.export.artifact import apply_recipe, export_model, keep_models
from workbench.export.program import SUFFIXES, Program, open_program
from workbench.export.reload import reload_model
from workbench.frames import format_share, plural
from workbench.options import ExportOptions, MeasureOptions, Progress, silent
from workbench.progress import SO_FAR, show_progress
from workbench.records.runs import PlannedProgram, RunRecord
from workbench.report.artifacts import write_artifacts
from workbench.report.report import make_report, prepare_kernel
from workbench.run.allocation import (
    LEAST_RESTARTS,
    MIN_RESTARTS,
    count_measured,
    project_restarts,
)
from workbench.run.build import describe_build
from workbench.run.ceilings import (
    find_peaks,
    list_roofs,
    measure_roof,
    save_peaks,
)
from workbench.run.execute import execute, optional
from workbench.run.phases import read_sweep
from workbench.run.plan import check_toggle, make_plan
from workbench.run.recorder import find_run
from workbench.run.runner import Runner, find_runner
from workbench.run.sides import check_side, open_side
from workbench.run.targets import open_target
from workbench.run.targets.host import HOST

if TYPE_CHECKING:  # these import PyTorch
    from torch import nn

    from workbench.models.loader import LoadedModel

    Subject: TypeAlias = str | Path | nn.Module | LoadedModel | Program | Run
#: More restarts than this are not suggested.
MOST_RESTARTS = 200
#: Seconds in which a runner is found that was compiled before; a new one takes longer.
COMPILED_S = 0.5
#: Seconds after which `profile` tries no further remedy.
CHECKED_S = 6.0
#: What `profile` measures, by how long it may take.
EFFORTS: dict[str, dict[str, Any]] = {
    "full": {},
    "quick": {"budget_s": 3.0, "evidence": False, "cold_start": False, "roof": False},
}


def profile(
    model: Subject | Sequence[Subject],
    inputs: Any = None,
    export: ExportOptions = ExportOptions(),
    measure: MeasureOptions = MeasureOptions(),
    *,
    dtype: str = "",
    against: Sequence[str] = (),
    name: str = "",
    effort: str = "full",
    report: bool = False,
    categories: str | Path = "",
    root: str | Path | None = None,
    progress: Progress | None = None,
) -> Run:
    """Export a model, measure it with an extension off and on, and analyse it: the main job.

    Only measurements wait for each other. What fails after the measurement costs its own part only.

    Parameters
    ----------
    model
        An ``nn.Module``, for example of a cell; what `load_model` takes or returns; a program: a
        ``.pte``, or what `export_model` returned; or a run, whose program is measured again.
        Several are measured interleaved, and compared with the first one.
    inputs
        What a module is run on, as for `load_model`.
    export, measure
        How to export, and what to measure.
    dtype
        Short for ``export=ExportOptions(dtype=...)``.
    against
        Short for ``measure=MeasureOptions(against=...)``: other runtimes, ``.pte`` or ``.onnx``.
    name
        What a module is called; its class by default.
    effort
        ``quick`` measures latency and operators for about three seconds: wider intervals, and
        neither memory, machine code nor peaks. It sets only options that have their defaults, and
        no time if ``runs`` is given.
    report
        Also make ``report.html``, CSV and JSON files, as the command line does.
    categories
        As for `open_run`.
    root
        The output folder, ``out_<model>`` by default.
    progress
        Called with what is being done and the fraction done; shown by default.

    Raises
    ------
    WorkbenchError
        A stage failed; what earlier stages made is kept.

    Examples
    --------
    >>> before = wb.profile(net, torch.randn(1, 3, 224, 224))  # doctest: +SKIP
    >>> after = wb.profile(net.half_as_wide(), torch.randn(1, 3, 224, 224))  # doctest: +SKIP
    >>> wb.compare(before, after)  # doctest: +SKIP
    >>> wb.profile([before, after]).compare()  # side by side  # doctest: +SKIP
    >>> wb.profile("toy_cnn", dtype="fp16", report=True)  # doctest: +SKIP
    >>> wb.profile(net, x, against=["eager", "onnx"]).comparisons  # doctest: +SKIP
    """
    if effort not in EFFORTS:
        raise unknown_name("effort", effort, EFFORTS)
    measure = apply_effort(measure, effort)
    measure = replace(measure, against=tuple(against)) if against else measure
    export = replace(export, dtype=dtype) if dtype else export
    subjects = list_subjects(model)
    label = ", ".join(map(label_subject, subjects))
    load_scheme(categories or "workbench")
    with (
        show_progress(progress) as show,
        open_target(measure.target, power=measure.power) as target,
        contextlib.ExitStack() as stack,
    ):

        def tell(text: str, fraction: float = 0.0) -> None:
            show(f"{label}: {text}", fraction)

        # Its first use compiles the runner, and a kernel starts for seconds: beside the export.
        beside = stack.enter_context(ThreadPoolExecutor(1))

        def find() -> Runner:
            runner = find_runner(target, measure.ops)
            check_toggle(measure, runner)
            return runner

        compiling = beside.submit(find)
        # Only then the kernel: three at once would slow down the imports on two cores.
        started = beside.submit(stack.enter_context, prepare_kernel()) if report else None
        with contextlib.suppress(TimeoutError):  # an export takes longer
            compiling.result(COMPILED_S)
        stack.enter_context(keep_models())
        programs = _make_programs(subjects, inputs, export, measure, root, tell, name)
        if not compiling.done() and measure.target == HOST.name:
            tell(describe_build())
        runner = compiling.result()
        if kernel := started.result() if started else None:
            kernel.wait()  # nothing else runs while programs are timed
        place = Path(root or programs[0].root)
        run = measure_programs(programs, measure, runner, place, progress=tell)
        if measure.roof and not run.emulated and not measure.power:
            with optional("the machine's peaks", tell):
                measure_roof(run.path, runner=runner, progress=tell)
        run = open_run(run, categories=categories)
        if effort == "full" and measure.evidence and target is HOST:
            with optional("trying remedies", tell):
                check_findings(run, within_s=CHECKED_S, runner=runner, progress=tell)

        def write() -> None:
            with optional("CSV and JSON files", tell):
                write_artifacts(run)

        if report:
            beside.submit(write)
            tell("reporting", 1.0)
            with optional("report", tell):
                make_report(run, kernel=kernel)
    return run


def apply_effort(
    measure: MeasureOptions, effort: str, given: Collection[str] = ()
) -> MeasureOptions:
    """Options with those of an effort, where the caller has not ``given`` others.

    Of options whose names are not given, those that differ from the default count as given.
    """
    default = MeasureOptions()
    kept = {*given} | {
        field.name
        for field in fields(measure)
        if getattr(measure, field.name) != getattr(default, field.name)
    }
    if kept & {"runs", "processes"}:  # a time would take their place
        kept.add("budget_s")
    settings = {name: value for name, value in EFFORTS[effort].items() if name not in kept}
    return replace(measure, **settings)


def label_subject(subject: Any) -> str:
    """What progress calls a model or program."""
    if isinstance(subject, str | Path | Program):
        return Path(subject).name if Path(subject).suffix in SUFFIXES else str(subject)
    return str(getattr(subject, "name", type(subject).__name__))


def list_subjects(
    model: Subject | Sequence[Subject],
) -> list[Program | str | nn.Module | LoadedModel]:
    """One or several, each opened if it is a program or a run, else a model."""

    def resolve(subject: Any) -> Any:
        if isinstance(subject, Run):
            subject = open_planned(subject.subject.program)
        if isinstance(subject, str | Path):
            is_program = Path(subject).suffix in SUFFIXES
            return open_program(subject) if is_program else str(subject)
        return subject

    return list(map(resolve, model if isinstance(model, list | tuple) else [model]))


def open_planned(planned: PlannedProgram) -> Program:
    """The program that a run measured; StoreError if its file is another one by now."""
    program = open_program(planned.pte)
    if program.sha256 != planned.sha256:
        what = "is no longer the program of the run: it was exported again"
        hint = "give each export a folder of its own: --out"
        raise StoreError(what, where=program.path, hint=hint)
    return program


def _make_programs(
    subjects: Sequence[Any], inputs: Any, export: ExportOptions, measure: MeasureOptions,
    root: str | Path | None, progress: Progress, name: str = "",
) -> list[Program]:  # fmt: skip
    """The programs to measure: those given, and of each model, one.

    Or one for each size of a sweep that the model's shapes do not allow.
    """
    for text in measure.against:
        check_side(text)  # an export takes longer
    programs: list[Program] = []
    for subject in subjects:
        if isinstance(subject, Program):
            if export != ExportOptions() or inputs is not None:
                hint = "name a model instead"
                raise UsageError("is exported already", where=subject.path, hint=hint)
            programs.append(subject)
            continue
        make = partial(export_model, subject, inputs, name=name, progress=progress)
        program = make(export, root=root)
        is_dynamic = any(tensor.dynamic for tensor in program.inputs)
        if not measure.sweep or measure.against or is_dynamic:
            programs.append(program)
            continue
        dimension, sizes = read_sweep(measure.sweep)
        for size in sizes:
            sized = replace(export, sizes=(*export.sizes, (dimension, size)))
            programs.append(make(sized, root=program.root / f"{dimension}_{size}"))
    load = partial(_load, subjects[0], programs[0], inputs, export, name)
    return programs + [open_side(text, programs[0], load, progress) for text in measure.against]


def _load(
    subject: Any, program: Program, inputs: Any, options: ExportOptions, name: str
) -> LoadedModel:
    """The model that a program was exported from, with the inputs of the export."""
    if isinstance(subject, Program):
        return reload_model(program)
    from workbench.models.inputs import choose_inputs
    from workbench.models.loader import LoadedModel, load_model

    options, model = apply_recipe(options), subject
    if not isinstance(model, LoadedModel):
        model = load_model(model, inputs, name=name, state_dict=options.state_dict or None)
    return choose_inputs(model, options)


def measure(
    model: Subject | Sequence[Subject],
    inputs: Any = None,
    options: MeasureOptions = MeasureOptions(),
    *,
    root: str | Path | None = None,
    again: bool = True,
    artifacts: bool = True,
    progress: Progress | None = None,
    watch: Callable[[RunRecord], None] = lambda run: None,
) -> Run:
    """Measure a program and write the CSV and JSON files of the run.

    Parameters
    ----------
    model, inputs
        As for `profile`; a model is exported in fp32.
    options
        What to measure, and where.
    root
        The output folder; None takes the one that the program lies in, or ``out_<program>``.
    again
        Measure even if there is a finished run of the same plan with the same runner.
    artifacts
        Write the files of the analysis too.
    progress
        Called with what is being done and the fraction done; shown by default.
    watch
        Called before each step with the record of the run so far.

    Raises
    ------
    WorkbenchError
        The program cannot be measured; what was measured is kept.

    Examples
    --------
    >>> program = wb.export_model("toy_cnn")  # doctest: +SKIP
    >>> options = wb.MeasureOptions(threads=(1, 2))
    >>> wb.measure(program, options=options).compare().text  # doctest: +SKIP
    >>> wb.measure([program, "smaller.pte"]).compare().text  # doctest: +SKIP
    """
    subjects = list_subjects(model)
    with (
        show_progress(progress) as show,
        open_target(options.target, power=options.power) as target,
    ):
        runner = find_runner(target, options.ops, show)
        check_toggle(options, runner)
        programs = _make_programs(subjects, inputs, ExportOptions(), options, root, show)
        place = Path(root or programs[0].root)
        run = measure_programs(
            programs, options, runner, place, again=again, progress=show, watch=watch
        )
        if artifacts:
            with optional("CSV and JSON files", show):
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
    told = list[str]()

    def look(record: RunRecord) -> None:
        watch(record)
        if not told:
            told.extend(judge_restarts(record, options))
            for text in told:
                progress(text, count_measured(record) / project_restarts(record, 1))

    run_dir = run_dir or execute(
        plan, programs, runner, root,
        progress=progress, watch=look, enough=partial(is_precise, find=options.find),
    )  # fmt: skip
    with optional("names of machine code", progress):
        keep_places(run_dir, [runner.libraries])
    run = open_run(run_dir)
    with optional("the machine's peaks", progress):
        for isa, threads in list_roofs(run.record) if options.roof and not options.power else ():
            if known := find_peaks(run.record, isa, threads):
                save_peaks(known, run.path)
    return run


def _compare_pairs(record: RunRecord) -> pd.DataFrame:
    """The E2E latencies of all pairs of a run that goes on: ``frames.COMPARISON``."""
    latencies, rows = tabulate_latencies(record), []
    for pair, threads in itertools.product(record.plan.pairs, record.plan.threads):
        repeated, control = find_control(record.plan, pair.baseline)
        rows.append(
            compare_latencies(
                latencies, pair.baseline, pair.candidate,
                control=control, control_of=repeated, threads=threads,
            )
        )  # fmt: skip
    return pd.concat(rows)


def is_precise(record: RunRecord, find: float = 0.0) -> bool:
    """Whether every speed-up is as precise as the plan wants it, or would show a change."""
    rows = _compare_pairs(record)
    if find:
        return bool((rows["detectable"] <= find).all())
    return bool((np.log(rows["high"] / rows["low"]) / 2 <= record.plan.precision).all())


def _judge_so_far(record: RunRecord) -> str:
    """The first verdict of a run that goes on."""
    ab = Run(Path(), record, find_bottlenecks).compare()
    verdict = reach_verdict("", ab.label, ab.latency, emulated=ab.emulated, wrong=ab.wrong)
    return f"{SO_FAR}{verdict.text}"


def _warn(text: str) -> list[str]:
    """A text if it is a warning."""
    return [text] * text.startswith("warning")


def judge_restarts(record: RunRecord, options: MeasureOptions) -> list[str]:
    """What a run that goes on can say so far: its first verdict, and what it will find."""
    done = count_measured(record)
    # Of long restarts there are few: what cannot be decided is known from the second.
    is_long = not (options.budget_s or options.processes)
    is_long = is_long and project_restarts(record, done) == LEAST_RESTARTS
    if done < (2 if is_long else MIN_RESTARTS) or not record.plan.pairs:
        return []
    texts = list[str]()
    with contextlib.suppress(WorkbenchError):  # times that cannot be compared
        texts.append(_judge_so_far(record))
        if options.find or record.plan.programs:
            texts.append(foresee(record, options.find))
        elif is_long:
            texts += _warn(foresee(record, _difference_so_far(record)))
    return texts


def _difference_so_far(record: RunRecord) -> float:
    """The least difference (ratio - 1) of a run's speed-ups, or the margin: what is to be found."""
    speedups = _compare_pairs(record)["speedup"]
    return max(MARGIN, float(np.expm1(np.abs(np.log(speedups)).min())))


def foresee(record: RunRecord, find: float = 0.0) -> str:
    """Which changes a run will find after its first restarts, and what finds smaller ones."""
    plan, done = record.plan, count_measured(record)
    least = float(_compare_pairs(record)["detectable"].max())
    step_s = record.spent_s / done
    planned = project_restarts(record, done)
    found = Speedup.project(least, done, planned)
    text = f"{plural(planned, 'restart')} will show changes above {format_share(found, 1)}"
    if found <= find or not find:
        return text
    counts = range(planned, MOST_RESTARTS + 1)
    needed = next((n for n in counts if Speedup.project(least, done, n) <= find), 0)
    more = f"--budget {math.ceil(step_s * needed)}s" if plan.budget_s else f"--processes {needed}"
    hint = f"{more}, about {step_s * needed / 60:.1f} minutes" if needed else "stop other programs"
    return f"warning: {text}; for {format_share(find, 1)}: {hint}"
