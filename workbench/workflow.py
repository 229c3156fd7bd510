"""The main jobs: profile a model, replay a layer, convert a trace, measure a machine's peaks."""

import contextlib
import hashlib
import math
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.analysis.attribution import attribute_layers
from workbench.analysis.compare import compare_latencies
from workbench.analysis.compare_runs import compare
from workbench.analysis.exports import model_spec
from workbench.analysis.findings.gains import time_spent
from workbench.analysis.layers import add_layers
from workbench.analysis.ledger import build_ledger
from workbench.analysis.machine_code import keep_functions
from workbench.analysis.open import open_run
from workbench.analysis.operators import (
    describe_spans,
    label_operators,
    load_scheme,
    summarize_operators,
)
from workbench.analysis.roofline import build_roof, can_probe, ceilings_name
from workbench.analysis.run import Measurement, Run
from workbench.analysis.statistics import tabulate_latencies
from workbench.errors import (
    ComparisonError,
    SetupError,
    StoreError,
    UsageError,
    WorkbenchError,
    unknown_name,
)
from workbench.explorer.model_explorer import write_node_data
from workbench.frames import EMULATED, SPANS, format_range
from workbench.options import ExportOptions, MeasureOptions
from workbench.records.codec import to_json
from workbench.records.layers import Layers
from workbench.records.runs import LADDER_TOGGLE, Ceilings, Probe, RunRecord
from workbench.report.artifacts import write_artifacts
from workbench.report.report import make_report
from workbench.store import (
    artifacts_dir,
    atomic_write,
    default_root,
    is_ours,
    kept_layers,
    load_export,
    load_record,
    load_run,
    safe_name,
    save_layers,
)
from workbench.trace.etdump import read_etdump
from workbench.trace.writers.csv_parquet import write_csvs, write_parquet
from workbench.trace.writers.perfetto import write_perfetto
from workbench.trace.writers.speedscope import write_speedscope

Progress = Callable[[str, float], None]


def profile(
    model: str,
    export: ExportOptions = ExportOptions(),
    measure: MeasureOptions = MeasureOptions(),
    *,
    categories: str | Path = "",
    root: str | Path | None = None,
    progress: Progress = lambda text, part: None,
) -> Run:
    """Export a model, measure it with an extension off and on, analyse and report: the main job.

    Exports and reports wait while something else is measured on this machine.

    Parameters
    ----------
    model
        What `load_model` takes.
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
    from workbench.export.artifact import export_model
    from workbench.run.locks import share_machine
    from workbench.run.plan import check_toggle, read_sweep
    from workbench.run.runner import find_runner
    from workbench.run.targets import open_target

    def tell(text: str, part: float = 0.0) -> None:
        progress(f"{model}: {text}", part)

    load_scheme(categories or "workbench")
    name, sizes = read_sweep(measure.sweep) if measure.sweep else ("", [])
    with open_target(measure.target) as there:
        check_toggle(measure, find_runner(measure.runner, there, measure.ops))
    with share_machine(tell):
        pte = export_model(model, export, root=root, tell=tell)
        root, known = pte.parents[1], load_export(pte)
        if sizes and not measure.against and known and not any(t.dynamic for t in known.inputs):
            sized = [replace(export, sizes=(*export.sizes, (name, size))) for size in sizes]
            pte, *others = (
                export_model(model, each, root=root / f"{name}_{size}", tell=tell)
                for each, size in zip(sized, sizes, strict=True)
            )
            measure = replace(measure, against=tuple(map(str, others)))
    run = record(pte, measure, root=root, progress=tell)
    if measure.roof and not run.emulated and not measure.power:
        try:
            measure_roof(run.path, target=measure.target, progress=tell)
        except WorkbenchError as error:
            tell(f"warning: the machine's peaks were not measured: {error}")
    run = open_run(run, categories=categories)
    write_artifacts(run)
    tell("reporting", 1.0)
    with share_machine(tell):
        make_report(run)
    return run


def measure(
    pte: str | Path | Sequence[str | Path],
    options: MeasureOptions = MeasureOptions(),
    *,
    root: str | Path | None = None,
    again: bool = True,
    progress: Progress = lambda text, part: None,
) -> Run:
    """Measure a program and write the CSV and JSON files of the run.

    Parameters
    ----------
    pte
        The program; or several, which are measured interleaved and compared with the first one.
    options
        What to measure, and where.
    root
        The output folder; None takes the one that the program lies in, or ``out_<program>``.
    again
        Measure even if there is a finished run of the same plan with the same runner.
    progress
        Called with what is being done and the fraction done.

    Raises
    ------
    WorkbenchError
        The program cannot be measured; what was measured is kept.

    Examples
    --------
    >>> pte = wb.export_model("toy_cnn")  # doctest: +SKIP
    >>> wb.measure(pte, wb.MeasureOptions(threads=(1, 2))).compare().text  # doctest: +SKIP
    >>> wb.measure([pte, "smaller.pte"]).compare().text  # doctest: +SKIP
    """
    first, *others = [pte] if isinstance(pte, str | Path) else pte
    options = replace(options, against=(*map(str, others), *options.against))
    run = record(Path(first), options, root=root, again=again, progress=progress)
    write_artifacts(run)
    return run


def record(
    pte: Path,
    options: MeasureOptions = MeasureOptions(),
    *,
    root: str | Path | None = None,
    again: bool = True,
    progress: Progress = lambda text, part: None,
) -> Run:
    """Measure a program as `measure` does, without writing files of the analysis."""
    from workbench.run.execute import run_plan
    from workbench.run.plan import make_plan, shape_of
    from workbench.run.recorder import find_run
    from workbench.run.runner import find_runner
    from workbench.run.targets import open_target

    with open_target(options.target, power=options.power) as there:
        runner = find_runner(options.runner, there, options.ops)
        plan = make_plan(pte, options, runner)
        for program in plan.programs:
            if list(map(shape_of, program.inputs)) != list(map(shape_of, plan.inputs)):
                progress(f"{program.name} takes other inputs than {plan.stem}: its own", 0.0)
        place = Path(root) if root else root_of(pte)
        run_dir = None if again else find_run(plan, runner, place, "complete")
        run_dir = run_dir or run_plan(plan, runner, place, progress=progress, enough=is_precise)
    run = open_run(run_dir)
    complete_folder(run, runner.libraries)
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
    progress: Progress = lambda text, part: None,
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
    from workbench.run.config import (
        complete_plan,
        output_place,
        plan_config,
        read_config,
        select_experiments,
    )
    from workbench.run.custom_runner import run_processes
    from workbench.run.execute import run_plan
    from workbench.run.runner import find_runner
    from workbench.run.targets import open_target

    path = Path(path)
    config = read_config(path, lambda text: progress(text, 0.0))
    config = replace(config, target=target or config.target, power=power or config.power)
    config = select_experiments(config, only) if only else config
    plan = plan_config(config, path.parent, baseline)
    place, name = output_place(config)
    place = Path(root or place)
    libraries = None
    with open_target(config.target, power=config.power) as there:
        if config.experiments[0].runner_path:
            run_dir = run_processes(plan, place, name, target=there, progress=progress)
        else:
            runner = find_runner(config.experiments[0].runner, there, ops)
            plan = complete_plan(plan, runner, config.phases)
            run_dir = run_plan(plan, runner, place, progress=progress)
            libraries = runner.libraries
    run = open_run(run_dir)
    complete_folder(run, libraries)
    write_artifacts(run)
    return run


def complete_folder(run: Run, libraries: Path | None) -> None:
    """Add what makes a run's folder independent of this machine: sidecars and functions.

    A program without a sidecar gets one: shapes and costs, and layers if there is an ETRecord
    (``<program>.pte.etrecord``) beside it. One that only the runtime can read goes without.
    """
    from workbench.export.layers import describe_pte

    for program in run.record.plan.all_programs:
        pte, path = Path(program.pte), kept_layers(run.path, program.name)
        etrecord = pte.with_name(f"{pte.name}.etrecord")
        known = etrecord if etrecord.exists() else None
        if not path.exists():
            with contextlib.suppress(StoreError, SetupError):
                save_layers(describe_pte(pte.read_bytes(), pte, etrecord=known), path)
    if libraries is not None:
        keep_functions(run.path, run.record, [libraries])


def root_of(pte: Path) -> Path:
    """The output folder that a program belongs to."""
    folder = pte.parent
    return folder.parent if folder == artifacts_dir(folder.parent) else default_root(pte.stem)


#: Times closer than this count as the same.
SAME = 0.10


@dataclass(frozen=True)
class Replay:
    """A layer's times within its model and alone, and the run in which it was alone.

    ``times`` has one row per experiment: ``experiment``, ``threads``, ``within_ms``, ``alone_ms``,
    and of each the ends of the 95 % interval over the restarts (``within_low_ms`` ...); and
    ``ratio``, alone / within, with ``ratio_low`` and ``ratio_high``.
    """

    layer: str
    times: pd.DataFrame
    run_dir: Path

    @property
    def texts(self) -> list[str]:
        """One line per experiment, and what it suggests."""
        found = []
        for row in self.times.to_dict("records"):
            ends = [
                f"{side}{end}_ms" for side in ("within", "alone") for end in ("", "_low", "_high")
            ]
            within, low, high, alone, alone_low, alone_high = format_range(*(row[e] for e in ends))
            within, alone = f"{within} ({low} to {high})", f"{alone} ({alone_low} to {alone_high})"
            takes = f"takes {within} in the model, {alone} alone"
            found.append(f"{row['experiment']}: {self.layer} {takes}: {judge(row)}")
        return found


def replay_layer(
    run_dir: str | Path,
    layer: str,
    options: MeasureOptions = MeasureOptions(),
    *,
    model: str = "",
    target: str = "",
    progress: Progress = lambda text, part: None,
) -> Replay:
    """Export one layer of a run's model as a program, and measure it like the run.

    The layer gets the inputs that it has in the model, with the same dtype, toggle, thread counts
    and target. The times of its operators in traced inferences are compared; delegate calls, and
    layout conversions that the exporter adds at the layer's ends, are excluded on both sides.

    Parameters
    ----------
    run_dir
        The run.
    layer
        Path of the module in the model, such as ``features.3.block.0``.
    options
        How long to measure; toggle and threads are the run's.
    model
        What ``load_model`` takes; by default the run's, if that is not code in a file.
    target
        Where to run; by default where the run was made, if that was this machine.

    Raises
    ------
    UsageError
        The model or the layer is unknown, or the run has no layers.
    ComparisonError
        The layer has no operator of its own in the run.

    Examples
    --------
    >>> wb.replay_layer("out_vit_tiny/runs/RUN", "blocks.0.mlp").texts  # doctest: +SKIP
    """
    from workbench.export.artifact import export_model
    from workbench.models.loader import load_model, take_layer
    from workbench.models.registry import parse_name

    within = open_run(run_dir)
    run = within.record
    export = within.subject.export
    if export is None:
        raise UsageError("the run's program was not exported here", where=run_dir)
    target = target or trusted_target(run, within.path)
    spec = model or model_spec(export)
    if not model and parse_name(spec).file:
        hint = f"if you trust it: --model {shlex.quote(spec)}"
        raise UsageError(f"the run's model is code in {spec}", where=run_dir, hint=hint)
    progress(f"{layer}: exporting", 0.0)
    part = take_layer(load_model(spec), layer)
    root = within.path.parent.parent / "replay" / safe_name(layer)
    rewrite = export.options.get("rewrite") != "no"
    exporting = ExportOptions(export.dtype, export.backend, rewrite=rewrite)
    pte = export_model(part, exporting, root=root, tell=lambda text: progress(text, 0.0))
    plan, ladder = run.plan, run.plan.toggle == LADDER_TOGGLE
    toggle = "auto" if ladder else plan.toggle or "none"
    same = replace(
        options, toggle=toggle, isa_ladder=ladder, threads=plan.threads, target=target, against=()
    )
    return compare_replay(within, layer, measure(pte, same, root=root, progress=progress))


def trusted_target(run: RunRecord, run_dir: Path) -> str:
    """The target of a run; UsageError if it is not this machine: a file must not choose a host."""
    from workbench.run.locks import THIS_MACHINE, device_behind

    if device_behind(target := run.plan.target) != THIS_MACHINE:
        hint = f"name it to go there: --target {shlex.quote(target)}"
        raise UsageError(f"was made on {target}", where=run_dir, hint=hint)
    return target


def compare_replay(within: Run, layer: str, alone: Run) -> Replay:
    """The times of a layer in the run of its model, and in a run of its own."""
    rows = []
    program = within.subject.program
    for measurement in (m for m in within.traced if not m.control and m.program == program):
        other = _find_alike(measurement, alone)
        keys = keys_of_layer(measurement, layer)
        if not keys:
            problem = f"no operator of the run belongs to layer {layer!r}"
            hint = 'its work may be folded into another layer\'s: see `wb.show(run, "layers")`'
            raise ComparisonError(problem, where=within.path, hint=hint)
        one, two = time_spent(measurement, keys), time_spent(other, keys_of_layer(other, ""))
        row: dict[str, Any] = {"experiment": measurement.name, "threads": measurement.threads}
        for side, spent in (("within", one), ("alone", two)):
            row |= {f"{side}_ms": spent.ms, f"{side}_low_ms": spent.low}
            row[f"{side}_high_ms"] = spent.high
        row["ratio"] = two.ms / one.ms if one.ms else math.nan
        row["ratio_low"] = two.low / one.high if one.high else math.nan
        row["ratio_high"] = two.high / one.low if one.low else math.nan
        rows.append(row)
    return Replay(layer, pd.DataFrame(rows), alone.path)


def keys_of_layer(measurement: Measurement, layer: str) -> list[str]:
    """The operators of a layer and its sublayers; of all layers if the name is empty."""
    rows = measurement.costs
    if "module" not in rows:
        raise UsageError("the run has no layers", hint="run a program exported by the workbench")
    known = rows[rows["module"].notna() & ~rows["role"].isin(["overhead", "layout"])]
    path = f"{layer}." if layer else ""
    return [key for key, module in known["module"].items() if f"{module}.".startswith(path)]


def _find_alike(measurement: Measurement, run: Run) -> Measurement:
    """The measurement of another run at the same ISA level and thread count."""
    level, threads = measurement.experiment.isa, measurement.threads
    traced = [m for m in run.traced if not m.control and m.threads == threads]
    found = {m.name: m for m in traced if m.experiment.isa == level}
    if not found:
        raise ComparisonError(f"nothing was measured at level {level}", where=run.path)
    return found.get(measurement.name) or next(iter(found.values()))


def judge(row: dict[str, Any]) -> str:
    """What the two times suggest."""
    if not math.isfinite(row["ratio"]):
        return "too short to be compared"
    if row["ratio_high"] < 1 - SAME / 2 and row["ratio"] < 1 - SAME:
        reason = "so in the model it waits for data that other layers evicted from the caches"
        return f"faster alone, {reason}"
    if row["ratio_low"] > 1 + SAME / 2 and row["ratio"] > 1 + SAME:
        reason = "so in the model its inputs are still in a cache, or part of its work is done"
        return f"slower alone, {reason} with another layer's"
    if row["ratio_low"] > 1 - 2 * SAME and row["ratio_high"] < 1 + 2 * SAME:
        return "the same alone: the time is spent in the kernel"
    return "the intervals are too wide to tell: measure more runs and processes"


#: The formats, and the suffix of each one's file.
_FORMATS = {
    "model-explorer": "",
    "csv": ".csv",
    "parquet": ".parquet",
    "perfetto": ".perfetto.json",
    "speedscope": ".speedscope.json",
}
_COMPARING = ("model-explorer", "perfetto", "speedscope")


def export_trace(
    etdump: str | Path,
    to: str,
    *,
    out: str | Path | None = None,
    baseline: str | Path | None = None,
) -> list[Path]:
    """Convert an ETDump to another format.

    Parameters
    ----------
    etdump
        The trace.
    to
        ``csv``: the three tables of ``write_csvs``. ``parquet``: the events with their rows of the
        ledger, `workbench.frames.SPANS`. ``perfetto``: a timeline for the Perfetto UI.
        ``speedscope``: a flame graph of the mean time of every category, module and operator. If
        the trace is one of a run, both have the layer, source line and shapes of each operator.
        ``model-explorer``: times and speed-ups as node data for graphs of Arm's adapters for
        ``.pte`` and ``.etrecord``; ``etdump`` may be the folder of a run.
    out
        The file, or for ``csv`` and ``model-explorer`` the folder; by default beside the trace.
    baseline
        A second trace: ``perfetto`` draws both side by side, ``speedscope`` has a profile of each,
        ``model-explorer`` also writes speed-ups.

    Returns
    -------
    list of Path
        The files.

    Raises
    ------
    UsageError
        The format is unknown or takes one trace only, or ``out`` is one of the traces.
    TraceError
        A trace is malformed.
    ComparisonError
        A trace without a complete inference has no mean times.
    StoreError
        A file cannot be written.

    Examples
    --------
    >>> run = wb.open_run(wb.sample_run())
    >>> etdump = run.path / run.record.sessions[-1].etdump
    >>> [path.name for path in wb.export_trace(etdump, "perfetto", out="trace.json")]
    ['trace.json']
    """
    if to not in _FORMATS:
        raise unknown_name("format", to, _FORMATS, where="--to")
    if baseline is not None and to not in _COMPARING:
        raise UsageError(
            f"{to} holds one trace", where="--baseline", hint=f"it is for {', '.join(_COMPARING)}"
        )
    etdump = Path(etdump)
    if to == "model-explorer":
        run = open_run(etdump)
        shown = run.comparisons[0] if run.comparisons else run.subject
        shown = shown if baseline is None else compare(open_run(baseline).subject, run.subject)
        return write_node_data(shown, run.output / to if out is None else Path(out))
    paths = {"": etdump}
    if baseline is not None:
        paths = {"baseline: ": Path(baseline), "candidate: ": etdump}
    if to == "csv":
        target = (etdump.parent if out is None else Path(out)) / etdump.name
    else:
        target = etdump.with_suffix(_FORMATS[to]) if out is None else Path(out)
        if target.resolve() in (path.resolve() for path in paths.values()):
            raise UsageError("is a trace to read; write elsewhere", where=target)
    names = {  # bytes of a name that are no text become question marks
        side + path.stem.encode(errors="replace").decode(): path for side, path in paths.items()
    }
    traces = {name: read_etdump(path) for name, path in names.items()}
    label, events = next(iter(traces.items()))
    if to == "csv":
        return write_csvs(events, target, model_id=label)
    if to == "parquet":
        return [write_parquet(describe_spans(events), SPANS, target, about={"trace": label})]
    if to == "speedscope":
        tables = {name: _list_operators(traces[name], path) for name, path in names.items()}
        return [write_speedscope(tables, target)]
    spans = {name: _describe_spans(traces[name], path) for name, path in names.items()}
    return [write_perfetto(spans, target)]


def _list_operators(events: pd.DataFrame, etdump: Path) -> pd.DataFrame:
    """The operators of a trace in the order in which they run, with layers if its run has them."""
    ledger = build_ledger(events)
    operators = summarize_operators(ledger)
    if sidecar := _find_sidecar(etdump):
        operators = add_layers(operators, attribute_layers(ledger, sidecar))
    operators = operators.assign(label=label_operators(operators), ns=1e6 * operators["mean_ms"])
    operators = operators.set_index("key").loc[ledger["key"].drop_duplicates().astype(object)]
    return operators.assign(stack=[_stack_of(row) for row in operators.to_dict("records")])


def _find_sidecar(etdump: Path) -> Layers | None:
    """What the instructions of a trace's program were in the model, if a run is around it."""
    etdump = etdump.resolve()
    with contextlib.suppress(WorkbenchError):
        for run in map(open_run, filter(is_ours, etdump.parents[:2])):
            for m in run.measurements:
                if etdump in [run.locate(session.etdump).resolve() for session in m.sessions]:
                    return m.sidecar
    return None


def _stack_of(row: dict[Any, Any]) -> list[str]:
    """Category, modules and operator; without a layer, its family takes the place of modules."""
    module, shapes = row.get("module"), row.get("shapes")
    parts = module.split(".") if isinstance(module, str) else []
    modules = [".".join(parts[: end + 1]) for end in range(len(parts))]
    label = f"{row['label']}: {shapes}" if isinstance(shapes, str) and shapes else row["label"]
    return [row["category"], *(modules or [row["family"]]), label]


def _describe_spans(events: pd.DataFrame, etdump: Path) -> pd.DataFrame:
    """The spans of a trace with label, layer, source line and shapes of their operators."""
    spans = describe_spans(events)
    if spans["key"].notna().any():
        operators = _list_operators(events, etdump).rename(columns={"module": "layer"})
        operators["logged"] = operators["name"]
        for column in operators.columns.intersection(
            ["label", "layer", "source", "shapes", "logged"]
        ):
            spans[column] = spans["key"].astype(object).map(operators[column])
    return spans


#: What matrix products are probed in.
_PROBED = ("fp32", "fp16", "int8")
_PROBES = "probes.json"
#: Peaks that vary by more between processes are not kept: the machine was busy.
STEADY = 0.25


def measure_roof(
    run_dir: str | Path,
    *,
    again: bool = False,
    target: str = "",
    progress: Progress = lambda text, part: None,
) -> list[Ceilings]:
    """Measure the peaks of a run's machine, at each of the run's ISA levels and thread counts.

    Peaks are cached by machine, runner, level and thread count; a copy is written into the run's
    folder.

    Parameters
    ----------
    run_dir
        The run's folder.
    again
        Measure again even if the peaks are cached, for example because the machine was busy.
    target
        Where to measure; by default where the run was made, if that was this machine.
    progress
        Called with a text and the part that is done, from 0 to 1.

    Raises
    ------
    UsageError
        The run was emulated, or recorded on another machine.
    SetupError, RunnerError
        The probes cannot be made or run.

    Examples
    --------
    >>> peaks = wb.measure_roof("out_toy_cnn/runs/RUN")  # doctest: +SKIP
    """
    run_dir = Path(run_dir)
    run = load_run(run_dir)
    if run.emulated:
        raise UsageError("an emulated run has no ceilings", where=run_dir, hint=EMULATED)
    found: list[Ceilings] = []
    started, new = time.monotonic(), 0
    for isa, threads in list_roofs(run):
        peaks = None if again else find_peaks(run, isa, threads)
        if peaks is None:
            there = target or trusted_target(run, run_dir)
            peaks, new = _measure(run, run_dir, isa, threads, there, progress), new + 1
            if build_roof(peaks).spread <= STEADY:
                atomic_write(_cache_path(run, isa, threads), to_json(peaks))
        save_peaks(peaks, run_dir)
        found.append(peaks)
    if new:
        text = f"machine peaks measured in {time.monotonic() - started:.0f} s; later runs use these"
        progress(text, 1.0)
    return found


def list_roofs(run: RunRecord) -> list[tuple[str, int]]:
    """The ISA levels and thread counts whose peaks a run can be compared with."""
    if run.emulated:
        return []
    levels = dict.fromkeys(e.isa for e in run.plan.experiments if can_probe(e))
    return [(isa, threads) for isa in levels for threads in run.plan.threads]


def find_peaks(run: RunRecord, isa: str, threads: int) -> Ceilings | None:
    """The peaks of a run's machine, if an earlier run measured them."""
    path = _cache_path(run, isa, threads)
    with contextlib.suppress(StoreError, UsageError):  # of another version
        return load_record(Ceilings, path) if path.is_file() else None
    return None


def save_peaks(peaks: Ceilings, run_dir: Path) -> None:
    """Write peaks into a run's folder."""
    atomic_write(run_dir / ceilings_name(peaks.isa, peaks.threads), to_json(peaks))


def _measure(
    run: RunRecord, run_dir: Path, isa: str, threads: int, target: str, progress: Progress
) -> Ceilings:
    from workbench.run.ceilings import device_of, measure_ceilings
    from workbench.run.runner import find_runner
    from workbench.run.targets import open_target

    folder, probes = find_probes(progress)
    with open_target(target) as there:
        runner = find_runner(target=there)
        here, then = (
            device_of(there.describe(), runner.description),
            device_of(run.host, run.runner),
        )
        if here != then:
            raise UsageError(
                f"was made on {then['cpu']} with the {then['runner']}, this is "
                f"{here['cpu']} with the {here['runner']}",
                where=run_dir,
                hint="measure the ceilings where the run was made, or repeat the run here",
            )
        return measure_ceilings(
            probes, folder, runner, isa, threads, tell=lambda text: progress(text, 1.0)
        )


def find_probes(progress: Progress) -> tuple[Path, tuple[Probe, ...]]:
    """The probes' folder in the cache, exported on first use, and what is in it."""
    from importlib import metadata

    from workbench.export.probes import PROBES_VERSION, export_probes
    from workbench.store import cache_folder, cached

    def make(folder: Path) -> None:
        progress("exporting the probes, once", 0.0)
        folder.mkdir()
        blank = Ceilings("", "", "", 0, "", tuple(export_probes(_PROBED, folder)))
        atomic_write(folder / _PROBES, to_json(blank))

    folder = cached(f"probes/{PROBES_VERSION}-{metadata.version('executorch')}", make)
    index = folder / _PROBES
    if not index.is_file():
        raise StoreError("is incomplete", where=cache_folder(), hint="delete its folder probes")
    return folder, load_record(Ceilings, index).probes


def _cache_path(run: RunRecord, isa: str, threads: int) -> Path:
    from workbench.run.ceilings import device_of
    from workbench.store import cache_folder

    device = device_of(run.host, run.runner)
    digest = hashlib.sha256(f"{device['cpu']} {device['runner']}".encode()).hexdigest()[:16]
    return cache_folder() / "ceilings" / digest / ceilings_name(isa, threads)
