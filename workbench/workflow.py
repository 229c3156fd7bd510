"""The stages in one go: model -> export -> run -> trace -> analyze -> show -> report.

A layer measured alone, against its time within the model.

A trace in the formats of other tools.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.analysis.compare import compare_latencies
from workbench.analysis.findings.context import RuleContext
from workbench.analysis.ledger import build_ledger
from workbench.analysis.machine_code import keep_functions
from workbench.analysis.operators import describe_spans, summarize_operators
from workbench.analysis.roofline import can_probe, ceilings_name, device_of_run
from workbench.analysis.run import Measurement, Run, model_spec, open_run
from workbench.analysis.statistics import tabulate_latencies
from workbench.errors import ComparisonError, SetupError, StoreError, UsageError, unknown_name
from workbench.frames import EMULATED, SPANS, format_ms
from workbench.options import ExportOptions, MeasureOptions
from workbench.records.codec import from_json, to_json
from workbench.records.runs import LADDER_TOGGLE, Ceilings, Probe, RunRecord, count_threads
from workbench.report.artifacts import make_report, write_artifacts
from workbench.store import (
    LAYERS,
    artifacts_dir,
    atomic_write,
    default_root,
    load_run,
    safe_name,
    save_layers,
)
from workbench.trace.etdump import read_etdump
from workbench.trace.writers.csv_parquet import write_csvs, write_parquet
from workbench.trace.writers.perfetto import write_perfetto
from workbench.trace.writers.speedscope import write_speedscope

Progress = Callable[[str, float], None]


def profile_model(
    model: str,
    export: ExportOptions = ExportOptions(),
    measure: MeasureOptions = MeasureOptions(),
    *,
    root: Path | None = None,
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
    >>> wb.profile_model("toy_cnn", wb.ExportOptions(dtype="fp16"))  # doctest: +SKIP
    """
    from workbench.export.artifact import export_model
    from workbench.run.locks import share_machine
    from workbench.run.plan import check_toggle
    from workbench.run.runner import find_runner
    from workbench.run.targets import open_target

    def tell(text: str, part: float = 0.0) -> None:
        progress(f"{model}: {text}", part)

    with open_target(measure.target) as there:
        check_toggle(measure, find_runner(measure.runner, there))
    with share_machine(tell):
        pte = export_model(model, export, root=root, tell=tell)
    run = open_run(record(pte, measure, progress=tell))
    write_artifacts(run)
    tell("reporting", 1.0)
    with share_machine(tell):
        make_report(run)
    return run


def measure(
    pte: str | Path,
    options: MeasureOptions = MeasureOptions(),
    *,
    root: Path | None = None,
    again: bool = True,
    progress: Progress = lambda text, part: None,
) -> Run:
    """Measure a program and write the CSV and JSON files of the run.

    Parameters
    ----------
    pte
        The program.
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
    """
    run = open_run(record(Path(pte), options, root=root, again=again, progress=progress))
    write_artifacts(run)
    return run


def record(
    pte: Path,
    options: MeasureOptions = MeasureOptions(),
    *,
    root: Path | None = None,
    again: bool = True,
    progress: Progress = lambda text, part: None,
) -> Path:
    """Measure a program without analysing it; returns the run's folder.

    Takes what `measure` takes.
    """
    from workbench.run.execute import run_plan
    from workbench.run.plan import make_plan
    from workbench.run.recorder import find_run
    from workbench.run.runner import find_runner
    from workbench.run.targets import open_target

    with open_target(options.target, power=options.power) as there:
        runner = find_runner(options.runner, there)
        plan = make_plan(pte, options, runner)
        place = root or root_of(pte)
        run_dir = None if again else find_run(plan, runner, place, "complete")
        run_dir = run_dir or run_plan(plan, runner, place, progress=progress, enough=is_precise)
    complete_folder(pte, run_dir, runner.libraries)
    return run_dir


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
    path: str | Path, *, root: Path | None = None, progress: Progress = lambda text, part: None
) -> Run:
    """Measure the experiments of a config file, the kit's or ours.

    Parameters
    ----------
    path
        The JSON file, as `read_config` describes it.
    root
        The output folder; None takes the config's ``output_root``, or ``out_<model>``.
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
    from workbench.run.config import complete_plan, output_place, plan_config, read_config
    from workbench.run.custom_runner import run_processes
    from workbench.run.execute import run_plan
    from workbench.run.runner import find_runner
    from workbench.run.targets import open_target

    path = Path(path)
    config = read_config(path)
    plan = plan_config(config, path.parent)
    place, name = output_place(config)
    place = root or place
    libraries = None
    with open_target(config.target) as there:
        if config.experiments[0].runner_path:
            run_dir = run_processes(plan, place, name, target=there, progress=progress)
        else:
            runner = find_runner(config.experiments[0].runner, there)
            run_dir = run_plan(complete_plan(plan, runner), runner, place, progress=progress)
            libraries = runner.libraries
    complete_folder(Path(plan.pte), run_dir, libraries)
    run = open_run(run_dir)
    write_artifacts(run)
    return run


def complete_folder(pte: Path, run_dir: Path, libraries: Path | None) -> None:
    """Add what makes a run's folder independent of this machine: sidecar and functions.

    A program without a sidecar gets one: shapes and costs, and layers if there is an ETRecord
    (``<program>.pte.etrecord``) beside it. One that only the runtime can read goes without.
    """
    from workbench.export.layers import describe_pte

    path = run_dir / LAYERS
    if not path.exists():
        with contextlib.suppress(StoreError, SetupError):
            etrecord = pte.with_name(f"{pte.name}.etrecord")
            known = etrecord if etrecord.exists() else None
            save_layers(describe_pte(pte.read_bytes(), pte, etrecord=known), path)
    if libraries is not None:
        keep_functions(run_dir, load_run(run_dir), [libraries])


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
        return [_describe(self.layer, row) for row in self.times.to_dict("records")]


def replay_layer(
    run_dir: str | Path,
    layer: str,
    options: MeasureOptions = MeasureOptions(),
    *,
    model: str = "",
    progress: Callable[[str, float], None] = lambda text, part: None,
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
        How long to measure; toggle, threads and target are the run's.
    model
        What ``load_model`` takes; by default the model that the run was exported from.

    Raises
    ------
    UsageError
        The model or the layer is unknown, or the run has no layers.
    ComparisonError
        The layer has no operator of its own in the run.

    Examples
    --------
    >>> wb.replay_layer("out_vit_tiny/runs/linux", "blocks.0.mlp").texts  # doctest: +SKIP
    """
    from workbench.export.artifact import export_model
    from workbench.models.loader import load_model, take_layer

    within = open_run(run_dir)
    run = within.record
    if run.export is None:
        raise UsageError("the run's program was not exported here", where=run_dir)
    progress(f"{layer}: exporting", 0.0)
    part = take_layer(load_model(model or model_spec(run.export)), layer)
    root = within.path.parent.parent / "replay" / safe_name(layer)
    exporting = ExportOptions(
        dtype=run.export.dtype,
        backend=run.export.backend,
        rewrite=run.export.options.get("rewrite") != "no",
    )
    pte = export_model(part, exporting, root=root, tell=lambda text: progress(text, 0.0))
    plan = run.plan
    ladder = plan.toggle == LADDER_TOGGLE
    same = replace(
        options,
        toggle="auto" if ladder else plan.toggle or "none",
        isa_ladder=ladder,
        threads=plan.threads,
        target=plan.target,
    )
    return compare_replay(within, layer, measure(pte, same, root=root, progress=progress))


def compare_replay(within: Run, layer: str, alone: Run) -> Replay:
    """The times of a layer in the run of its model, and in a run of its own."""
    rows = []
    for measurement in within.traced:
        if measurement.control:
            continue
        inside, outside = measurement.context, _find_alike(measurement, alone).context
        keys = keys_of_layer(inside, layer)
        if not keys:
            raise ComparisonError(
                f"no operator of the run belongs to layer {layer!r}",
                where=within.path,
                hint="its work may be folded into another layer's: see `show_layers`",
            )
        one, other = inside.spent(keys), outside.spent(keys_of_layer(outside, ""))
        rows.append(
            {
                "experiment": measurement.name,
                "threads": measurement.threads,
                "within_ms": one.ms,
                "within_low_ms": one.low,
                "within_high_ms": one.high,
                "alone_ms": other.ms,
                "alone_low_ms": other.low,
                "alone_high_ms": other.high,
                "ratio": other.ms / one.ms if one.ms else math.nan,
                "ratio_low": other.low / one.high if one.high else math.nan,
                "ratio_high": other.high / one.low if one.low else math.nan,
            }
        )
    return Replay(layer, pd.DataFrame(rows), alone.path)


def keys_of_layer(context: RuleContext, layer: str) -> list[str]:
    """The operators of a layer and its sublayers; of all layers if the name is empty."""
    rows = context.rows
    if "module" not in rows:
        raise UsageError("the run has no layers", hint="run a program exported by the workbench")
    module = rows["module"].astype(object)
    inside = module.map(
        lambda path: (
            isinstance(path, str) and (not layer or path == layer or path.startswith(f"{layer}."))
        )
    )
    return list(rows.index[inside & ~rows["role"].isin(["overhead", "layout"])])


def _find_alike(measurement: Measurement, run: Run) -> Measurement:
    """The measurement of another run at the same ISA level and thread count."""
    found = {
        m.name: m
        for m in run.traced
        if not m.control
        and (m.experiment.isa, m.threads) == (measurement.experiment.isa, measurement.threads)
    }
    if not found:
        level = measurement.experiment.isa
        raise ComparisonError(f"nothing was measured at level {level}", where=run.path)
    return found.get(measurement.name) or next(iter(found.values()))


def _describe(layer: str, row: dict[str, Any]) -> str:
    within, alone = (
        f"{format_ms(row[f'{side}_ms'])} ({format_ms(row[f'{side}_low_ms'])} to "
        f"{format_ms(row[f'{side}_high_ms'])})"
        for side in ("within", "alone")
    )
    return f"{row['experiment']}: {layer} takes {within} in the model, {alone} alone: {judge(row)}"


def judge(row: dict[str, Any]) -> str:
    """What the two times suggest."""
    if not math.isfinite(row["ratio"]):
        return "too short to be compared"
    if row["ratio_high"] < 1 - SAME / 2 and row["ratio"] < 1 - SAME:
        return (
            "faster alone, so in the model it waits for data that other layers evicted from the "
            "caches"
        )
    if row["ratio_low"] > 1 + SAME / 2 and row["ratio"] > 1 + SAME:
        return (
            "slower alone, so in the model its inputs are still in a cache, or part of its work is "
            "done with another layer's"
        )
    if row["ratio_low"] > 1 - 2 * SAME and row["ratio_high"] < 1 + 2 * SAME:
        return "the same alone: the time is spent in the kernel"
    return "the intervals are too wide to tell: measure more runs and processes"


#: The stacks of a flame graph, from the outside in.
STACK = ("category", "family", "operator")


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
        ``speedscope``: a flame graph of the mean time of every category, family and operator.
    out
        The file, or for ``csv`` the folder; by default beside the trace, with its name.
    baseline
        A second trace: ``perfetto`` draws both side by side, ``speedscope`` has a profile of each.

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
    >>> [path.name for path in wb.export_trace(etdump, "perfetto", out="trace.pftrace")]
    ['trace.pftrace']
    """
    if to not in _FORMATS:
        raise unknown_name("format", to, _FORMATS, where="--to")
    if baseline is not None and to not in _COMPARING:
        raise UsageError(
            f"{to} holds one trace", where="--baseline", hint=f"it is for {', '.join(_COMPARING)}"
        )
    etdump = Path(etdump)
    paths = {_label(etdump): etdump}
    if baseline is not None:
        baseline = Path(baseline)
        paths = {f"baseline: {_label(baseline)}": baseline, f"candidate: {_label(etdump)}": etdump}
    if to == "csv":
        target = (etdump.parent if out is None else Path(out)) / etdump.name
    else:
        target = etdump.with_suffix(_FORMATS[to]) if out is None else Path(out)
        if target.resolve() in (path.resolve() for path in paths.values()):
            raise UsageError("is a trace to read; write elsewhere", where=target)
    return _write_trace(to, {label: read_etdump(path) for label, path in paths.items()}, target)


def _label(path: Path) -> str:
    """The name of a trace; bytes of it that are no text become question marks."""
    return path.stem.encode(errors="replace").decode()


def _write_trace(to: str, traces: dict[str, pd.DataFrame], target: Path) -> list[Path]:
    label, events = next(iter(traces.items()))
    if to == "csv":
        return write_csvs(events, target, model_id=label)
    if to == "speedscope":
        profiles = {label: _mean_times(events) for label, events in traces.items()}
        return [write_speedscope(profiles, target, stack=STACK, weight="mean_ns")]
    spans = {label: describe_spans(events) for label, events in traces.items()}
    if to == "parquet":
        return [write_parquet(spans[label], SPANS, target, about={"trace": label})]
    return [write_perfetto(spans, target)]


def _mean_times(events: pd.DataFrame) -> pd.DataFrame:
    """The operators of a trace in the order in which they run, with ``mean_ns`` per run."""
    ledger = build_ledger(events)
    operators = summarize_operators(ledger).set_index("key")
    operators = operators.loc[ledger["key"].drop_duplicates().astype(object)]
    return operators.assign(mean_ns=1e6 * operators["mean_ms"])


#: The formats, and the suffix of each one's file.
_FORMATS = {
    "csv": ".csv",
    "parquet": ".parquet",
    "perfetto": ".perfetto-trace",
    "speedscope": ".speedscope.json",
}
_COMPARING = ("perfetto", "speedscope")


#: What matrix products are probed in.
_PROBED = ("fp32", "fp16", "int8")


_PROBES = "probes.json"


def measure_roof(
    run_dir: str | Path,
    *,
    again: bool = False,
    progress: Callable[[str, float], None] = lambda text, part: None,
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
    >>> peaks = wb.measure_roof("out_toy_cnn/runs/linux")  # doctest: +SKIP
    """
    run_dir = Path(run_dir)
    run = load_run(run_dir)
    if run.emulated:
        raise UsageError("an emulated run has no ceilings", where=run_dir, hint=EMULATED)
    wanted = [
        (experiment.isa, threads)
        for experiment in run.plan.experiments
        for threads in run.plan.threads
        if can_probe(experiment)
    ]
    found = []
    for number, (isa, threads) in enumerate(dict.fromkeys(wanted)):
        progress(f"ceilings of {isa}, {count_threads(threads)}", number / len(wanted))
        ceilings = None if again else _kept(run, isa, threads)
        ceilings = ceilings or _measure(run, run_dir, isa, threads, progress)
        atomic_write(run_dir / ceilings_name(isa, threads), to_json(ceilings))
        found.append(ceilings)
    return found


def _measure(
    run: RunRecord, run_dir: Path, isa: str, threads: int, progress: Callable[[str, float], None]
) -> Ceilings:
    from workbench.run.ceilings import device_of, measure_ceilings
    from workbench.run.runner import find_runner
    from workbench.run.targets import open_target

    folder, probes = find_probes(progress)
    with open_target(run.plan.target) as there:
        runner = find_runner(target=there)
        here, then = device_of(there.describe(), runner.description), device_of_run(run)
        if here != then:
            raise UsageError(
                f"was made on {then['cpu']} with the {then['runner']}, this is "
                f"{here['cpu']} with the {here['runner']}",
                where=run_dir,
                hint="measure the ceilings where the run was made, or repeat the run here",
            )
        ceilings = measure_ceilings(
            probes, folder, runner, isa, threads, tell=lambda text: progress(text, 0.5)
        )
    atomic_write(_place(run, isa, threads), to_json(ceilings))
    return ceilings


def find_probes(progress: Callable[[str, float], None]) -> tuple[Path, tuple[Probe, ...]]:
    """The probes' folder in the cache, exported on first use, and what is in it."""
    from workbench.export.probes import export_probes
    from workbench.store import cache_folder, cached

    def make(folder: Path) -> None:
        progress("exporting the probes, once", 0.0)
        folder.mkdir()
        probes = export_probes(_PROBED, folder)
        blank = Ceilings("", "", "", 0, "", tuple(probes))
        atomic_write(folder / _PROBES, to_json(blank))

    folder = cached(f"probes/{_version()}", make)
    index = folder / _PROBES
    if not index.is_file():
        raise StoreError("is incomplete", where=cache_folder(), hint="delete its folder probes")
    return folder, from_json(Ceilings, index.read_bytes(), index).probes


def _version() -> str:
    from importlib import metadata

    from workbench.export.probes import PROBES_VERSION

    return f"{PROBES_VERSION}-{metadata.version('executorch')}"


def _kept(run: RunRecord, isa: str, threads: int) -> Ceilings | None:
    """Cached ceilings of a run's machine."""
    path = _place(run, isa, threads)
    with contextlib.suppress(StoreError, UsageError):  # of another version
        if path.is_file():
            return from_json(Ceilings, path.read_bytes(), path)
    return None


def _place(run: RunRecord, isa: str, threads: int) -> Path:
    from workbench.store import cache_folder

    device = device_of_run(run)
    digest = hashlib.sha256(f"{device['cpu']} {device['runner']}".encode()).hexdigest()[:16]
    return cache_folder() / "ceilings" / digest / ceilings_name(isa, threads)
