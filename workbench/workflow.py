"""The main jobs: profile a model, measure programs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from workbench import plugin
from workbench.analysis.describe import describe_latency
from workbench.analysis.findings.rules import find_bottlenecks
from workbench.analysis.findings_frame import find_trials
from workbench.analysis.machine_code import keep_places
from workbench.analysis.open import open_run
from workbench.analysis.operators import Scheme, load_scheme
from workbench.analysis.run import Run
from workbench.analysis.verdict import reach_verdict
from workbench.errors import StoreError, UsageError, WorkbenchError, unknown_name
from workbench.export.artifact import apply_recipe, export_model, keep_models
from workbench.export.program import Program, open_program
from workbench.export.reload import reload_model
from workbench.models.registry import check_name
from workbench.names import check_label, find_variables
from workbench.options import ExportOptions, MeasureOptions, Progress, silent
from workbench.progress import ANSWER, SO_FAR, show_progress
from workbench.records.runs import PlannedProgram, RunRecord
from workbench.records.trials import Trial
from workbench.report.artifacts import write_artifacts
from workbench.report.report import make_report, prepare_kernel
from workbench.run.allocation import MIN_RESTARTS, count_measured, project_restarts
from workbench.run.build import describe_build, work_beside
from workbench.run.ceilings import Peaks
from workbench.run.execute import measure_rest, measure_restarts, optional
from workbench.run.phases import read_sweep
from workbench.run.plan import CONTROL, check_toggle, make_plan
from workbench.run.recorder import RunRecorder, find_run, open_record
from workbench.run.runner import Runner, find_runner
from workbench.run.sides import check_side, open_side
from workbench.run.targets import open_target
from workbench.run.targets.host import HOST, Host

if TYPE_CHECKING:  # these import PyTorch
    from executorch.exir import EdgeProgramManager, ExecutorchProgramManager
    from torch import nn
    from torch.export import ExportedProgram

    from workbench.models.loader import LoadedModel
    from workbench.report.kernel import Kernel

    Lowered: TypeAlias = EdgeProgramManager | ExecutorchProgramManager
    Model: TypeAlias = str | nn.Module | LoadedModel | ExportedProgram
    Subject: TypeAlias = Model | Path | Lowered | Program | Run
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
    label: str = "",
    effort: str = "full",
    report: bool = False,
    categories: str | Path = "",
    root: str | Path | None = None,
    progress: Progress | None = None,
    answer: Callable[[Run], None] | None = None,
    tried: Callable[[Trial], None] = lambda trial: None,
) -> Run:
    """Export a model, measure it with an extension off and on, and analyse it: the main job.

    Only measurements wait for each other. What fails after the measurement costs its own part only.

    Parameters
    ----------
    model
        An ``nn.Module``, for example of a cell; what `load_model` takes or returns; a program: a
        ``.pte``, or what `export_model` returned; what your own script exported or lowered, an
        ``ExportedProgram`` (or its ``.pt2``), ``EdgeProgramManager`` or
        ``ExecutorchProgramManager``; or a run, whose program is measured again.
        Several are measured interleaved, compared with the first one, and called as your variables
        that hold them.
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
    label
        Short for ``measure=MeasureOptions(label=...)``: what lists, pages and files call the run.
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
    answer
        Called with the run as soon as its last restart is analysed, before starts, memory, samples,
        peaks, trials of remedies and the report; by default, progress shows the verdict.
    tried
        Called with each trial of a remedy as it is made.

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
    >>> wb.profile(net, x, against="before.pte").comparisons  # doctest: +SKIP
    """
    measure = _complete_options(measure, effort, against, label)
    export = replace(export, dtype=dtype) if dtype else export
    subjects, titles = list_subjects(model, inputs, root), name_subjects(model)
    scheme = load_scheme(categories or "workbench")
    with (
        show_progress(progress) as show,
        open_target(measure.target, power=measure.power) as target,
        prepare_tools(target, measure) as warm,
        keep_models(),
    ):
        tell = _name_progress(show, subjects, titles)
        programs = _make_programs(subjects, inputs, export, measure, root, tell, name, titles)
        runner, place = warm.finish(tell), Path(root or programs[0].root)
        run = measure_programs(
            programs, measure, runner, place, scheme=scheme, complete_peaks=True, progress=tell,
            given=tuple(each for each in subjects if not isinstance(each, Program)),
            answer=partial(_give_answer, answer, warm if report else None, tell),
        )  # fmt: skip
        if effort == "full" and measure.evidence and target is HOST:
            _try_remedies(run, runner, tell, tried)
        if report:
            _report(run, warm, categories, tell)
    return run


def _complete_options(
    measure: MeasureOptions, effort: str, against: Sequence[str], label: str
) -> MeasureOptions:
    """Options with those that have short forms; UsageError if there is no such effort or label."""
    if effort not in EFFORTS:
        raise unknown_name("effort", effort, EFFORTS)
    measure = apply_effort(measure, effort)
    label = check_label(label or measure.label)
    return replace(measure, against=tuple(against) or measure.against, label=label)


def _name_progress(show: Progress, subjects: Sequence[Any], titles: Sequence[str]) -> Progress:
    """The progress that names what is profiled."""
    pairs = zip(titles, subjects, strict=True)
    named = ", ".join(title or label_subject(subject) for title, subject in pairs)

    def tell(text: str, fraction: float = 0.0) -> None:
        show(f"{named}: {text}", fraction)

    return tell


def _give_answer(
    answer: Callable[[Run], None] | None, warm: Warmup | None, progress: Progress, run: Run
) -> None:
    """Hand on a run whose restarts are analysed, or show its verdicts, or else its latencies."""
    if answer:
        answer(run)
    else:
        texts = [ab.text for ab in run.comparisons]
        texts = texts or [f"{m.label}: {describe_latency(m.statistics)}" for m in run.measurements]
        progress(ANSWER + "; ".join(texts), 1.0)
    if warm:
        warm.start_kernel()


def _try_remedies(
    run: Run, runner: Runner, progress: Progress, tried: Callable[[Trial], None]
) -> None:
    """Try the remedies of the first findings, if a plug-in does that."""
    if "check_findings" in plugin.attributes_of("workbench"):
        with optional("trying remedies", progress):
            find_trials()(run, within_s=CHECKED_S, runner=runner, progress=progress, tried=tried)


def _report(run: Run, warm: Warmup, categories: str | Path, progress: Progress) -> None:
    """Make the report of a run, and beside it the files of its analysis."""
    warm.beside.submit(write_files, run, progress)
    progress("reporting", 1.0)
    with optional("report", progress):
        make_report(run, categories=categories, kernel=warm.kernel)


def write_files(run: Run, progress: Progress = silent) -> None:
    """Write the CSV and JSON files of a run; what hinders that is a warning."""
    with optional("CSV and JSON files", progress):
        write_artifacts(run)


@dataclass
class Warmup:
    """What a profile needs later: the runner, found beside the export, and a report's kernel."""

    beside: ThreadPoolExecutor
    compiling: Future[Runner]
    kernels: contextlib.ExitStack
    kernel: Kernel | None = None

    def finish(self, progress: Progress) -> Runner:
        """The runner, when it is ready."""
        if not self.compiling.done():
            progress(describe_build(), 0.0)
        return self.compiling.result()

    def start_kernel(self) -> None:
        """Start a kernel and wait for it: nothing else runs while programs are timed."""
        self.kernel = self.kernels.enter_context(prepare_kernel())
        if self.kernel:
            self.kernel.wait()


@contextlib.contextmanager
def prepare_tools(target: Host, measure: MeasureOptions) -> Iterator[Warmup]:
    """Start finding the runner, whose first use compiles it."""
    with contextlib.ExitStack() as kernels:
        beside = kernels.enter_context(work_beside())

        def find() -> Runner:
            runner = find_runner(target, measure.ops)
            check_toggle(measure, runner)
            return runner

        compiling = beside.submit(find)
        with contextlib.suppress(TimeoutError):  # an export takes longer
            compiling.result(COMPILED_S)
        yield Warmup(beside, compiling, kernels)


def apply_effort(
    measure: MeasureOptions, effort: str, given: Collection[str] = ()
) -> MeasureOptions:
    """Options with those of an effort, where the caller has not ``given`` others.

    Of options whose names are not given, those that differ from the default count as given.
    """
    default = MeasureOptions()
    named = {*given} | {
        field.name
        for field in fields(measure)
        if getattr(measure, field.name) != getattr(default, field.name)
    }
    if named & {"runs", "processes"}:  # a time would take their place
        named.add("budget_s")
    settings = {name: value for name, value in EFFORTS[effort].items() if name not in named}
    return replace(measure, **settings)


def label_subject(subject: Any) -> str:
    """What progress calls a model or program."""
    if isinstance(subject, Program) and subject.name:
        return subject.name
    if isinstance(subject, str | Path | Program):
        return Path(subject).name if Path(subject).suffix in Program.SUFFIXES else str(subject)
    return str(getattr(subject, "name", type(subject).__name__))


def list_subjects(
    model: Subject | Sequence[Subject], inputs: Any = None, root: str | Path | None = None
) -> list[Program | Model]:
    """One or several, each opened if it is a program or a run, else a model.

    What a script lowered is written below ``root`` with its ``inputs``.
    """

    def resolve(subject: Any) -> Any:
        if isinstance(subject, Run):
            subject = open_planned(subject.subject.program)
        if isinstance(subject, str | Path):
            if Path(subject).suffix in Program.SUFFIXES:
                return open_program(subject)
            check_name(subject := str(subject))  # before torch is imported
        if type(subject).__module__.startswith("executorch."):  # which is imported, then
            from workbench.export.given import is_lowered, write_program

            subject = write_program(subject, inputs, root) if is_lowered(subject) else subject
        return subject

    return list(map(resolve, model if isinstance(model, list | tuple) else [model]))


def name_subjects(model: Subject | Sequence[Subject]) -> list[str]:
    """What each of several is called: the variable of the caller; empty where none is known."""
    subjects = model if isinstance(model, list | tuple) else [model]
    names = find_variables(subjects) if len(subjects) > 1 else [""]
    # Names of models and files are names already; the control of every run has one, too.
    return [
        "" if isinstance(subject, str | Path) or name == CONTROL else name
        for name, subject in zip(names, subjects, strict=True)
    ]


def open_planned(planned: PlannedProgram) -> Program:
    """The program that a run measured; StoreError if its file is another one by now."""
    program = open_program(planned.pte)
    if program.sha256 != planned.sha256:
        what = "is no longer the program of the run: it was exported again"
        hint = "give each export a folder of its own: --out"
        raise StoreError(what, where=program.path, hint=hint)
    if not program.inputs and any(tensor.file for tensor in planned.inputs):
        program = replace(program, bundled=planned.inputs)
    return _add_data(program, planned.data)


def _make_programs(
    subjects: Sequence[Any], inputs: Any, export: ExportOptions, measure: MeasureOptions,
    root: str | Path | None, progress: Progress, name: str = "", titles: Sequence[str] = (),
) -> list[Program]:  # fmt: skip
    """The programs to measure: those given, and of each model, one; called as ``titles``.

    Or one for each size of a sweep that the model's shapes do not allow.
    """
    for text in measure.against:
        check_side(text)  # an export takes longer
    if measure.data and not (len(subjects) == 1 and isinstance(subjects[0], Program)):
        hint = "put the file of each program beside it"
        raise UsageError("needs exactly one .pte", where="--data", hint=hint)
    programs: list[Program] = []
    for title, subject in zip(titles or [""] * len(subjects), subjects, strict=True):
        if isinstance(subject, Program):
            subject = _add_data(subject, measure.data)
            # What a script lowered has a name already, and was written with its inputs.
            if export != ExportOptions() or (inputs is not None and not subject.name):
                hint = "name a model instead"
                raise UsageError("is exported already", where=subject.path, hint=hint)
            programs.append(_call(subject, title))
            continue
        make = partial(export_model, subject, inputs, name=name, progress=progress)
        program = make(export, root=root)
        is_dynamic = any(tensor.dynamic for tensor in program.inputs)
        if not measure.sweep or measure.against or is_dynamic:
            programs.append(_call(program, title))
            continue
        dimension, sizes = read_sweep(measure.sweep)
        for size in sizes:
            sized = replace(export, sizes=(*export.sizes, (dimension, size)))
            programs.append(make(sized, root=program.root / f"{dimension}_{size}"))
    load = partial(_load, subjects[0], programs[0], inputs, export, name)
    return programs + [open_side(text, programs[0], load, progress) for text in measure.against]


def _call(program: Program, title: str) -> Program:
    """A program with a title, if there is one; else the same, which may know its layers."""
    return replace(program, name=title) if title else program


def _add_data(program: Program, data: str) -> Program:
    """A program with the file of its weights, if one is named; StoreError if there is none."""
    if data and not Path(data).is_file():
        raise StoreError("no such file", where=data, hint="name the .ptd file of its weights")
    return replace(program, data=Path(data)) if data else program


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
    subjects = list_subjects(model, inputs, root)
    with (
        show_progress(progress) as show,
        open_target(options.target, power=options.power) as target,
    ):
        runner = find_runner(target, options.ops, show)
        check_toggle(options, runner)
        programs = _make_programs(
            subjects, inputs, ExportOptions(), options, root, show, titles=name_subjects(model)
        )
        place = Path(root or programs[0].root)
        finished = None if again else _find_finished(programs, options, runner, place)
        run = finished or measure_programs(programs, options, runner, place, progress=show)
        if artifacts and not finished:
            write_files(run, show)
    return run


def _find_finished(
    programs: Sequence[Program], options: MeasureOptions, runner: Runner, root: Path
) -> Run | None:
    """The last finished run of the same plan with the same runner."""
    run_dir = find_run(make_plan(programs, options, runner), runner, root, "complete")
    return open_run(run_dir) if run_dir else None


def _finish(recorder: RunRecorder, progress: Progress) -> None:
    """Starts and samples, whose machine code is named while libraries are at hand."""
    measure_rest(recorder, progress)
    progress("analysing", 1.0)
    with optional("names of machine code", progress):
        folders = [recorder.runner.libraries]
        recorder.run = keep_places(recorder.run, recorder.run_dir, folders)


def judge_so_far(record: RunRecord) -> str:
    """The first verdict of a run that goes on."""
    ab = Run(Path(), record, find_bottlenecks).compare()
    verdict = reach_verdict("", ab.label, ab.latency, emulated=ab.emulated, wrong=ab.wrong)
    return f"{SO_FAR}{verdict.text}"


def measure_programs(
    programs: Sequence[Program],
    options: MeasureOptions,
    runner: Runner,
    root: Path,
    *,
    scheme: Scheme | None = None,
    given: tuple[Any, ...] = (),
    complete_peaks: bool = False,
    progress: Progress = silent,
    answer: Callable[[Run], None] | None = None,
) -> Run:
    """Plan and carry out a run of opened programs; it has the machine's peaks if these are known.

    ``answer`` gets the run after its last restart; ``complete_peaks`` measures what is not known.
    """
    plan = make_plan(programs, options, runner)
    told = list[str]()

    def look(record: RunRecord) -> None:
        done = count_measured(record)
        if not told and done >= MIN_RESTARTS and plan.pairs:
            with contextlib.suppress(WorkbenchError):  # times that cannot be compared
                told.append(judge_so_far(record))
                progress(told[0], done / project_restarts(record, 1))

    with open_record(plan, programs, runner, root, progress) as recorder:
        measure_restarts(recorder, progress, watch=look)
        # Of what the answer says, nothing more will be measured.
        record = replace(recorder.run, state="complete")
        run = Run(recorder.run_dir, record, find_bottlenecks, scheme or load_scheme(), given=given)
        peaks = None
        with optional("the machine's peaks", progress):
            peaks = Peaks.recall(record, run.path) if options.roof and not options.power else None
        if answer:
            progress("analysing the restarts", 1.0)
            with optional("the first answer", progress):
                answer(run)
        _finish(recorder, progress)
    with optional("the machine's peaks", progress):
        if complete_peaks and peaks and peaks.is_due:
            peaks.measure(runner, progress)
    return run.extend(recorder.run)
