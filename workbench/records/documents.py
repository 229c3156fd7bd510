"""The JSON files of the workbench; a record declares each, and its JSON Schema follows from it."""

from dataclasses import fields
from functools import cache
from inspect import cleandoc
from types import GenericAlias
from typing import Annotated, Any, Literal, NotRequired, TypedDict, get_args, get_type_hints

import msgspec
from msgspec import Meta

from workbench import frames
from workbench.errors import unknown_name
from workbench.frames import Frame
from workbench.options import ExportOptions, MeasureOptions
from workbench.records import runs
from workbench.records.layers import Layers
from workbench.records.optimize import Recipe, Study
from workbench.records.portfolio import Outcome, Portfolio

#: Numbers that are not finite, and what is not known, are null.
_TYPES = {"int": int, "float": float | None, "bool": bool, "text": str | None}
#: Columns that rows of older files of this schema version lack.
_LATER = frozenset({"latency", "restarts"})


@cache
def _row(frame: Frame, title: str = "", /, *, without: str = "", **more: object) -> Any:
    """The type of a row: the columns of a frame, and further ones before them."""
    columns: dict[str, Any] = dict(more)
    for name, kind, unit, meaning in frame.columns:
        if name not in (without, *more):
            text = f"{meaning}{f' [{unit}]' if unit else ''}"
            value: Any = Annotated[_TYPES[kind], Meta(description=text)]  # type: ignore[valid-type]
            columns[name] = NotRequired[value] if name in _LATER else value
    return TypedDict(title or frame.name, columns)  # type: ignore[operator]


def _several(kind: Any) -> Any:
    return GenericAlias(tuple, (kind, ...))


def _rows(frame: Frame) -> Any:
    return _several(_row(frame))


def _object(title: str, meaning: str, /, **fields: Any) -> Any:
    """The type of an object, which has no further keys."""
    kind: Any = TypedDict(title, fields)  # type: ignore[misc]
    kind.__doc__, kind.__closed__ = meaning, True  # type: ignore[attr-defined]
    return kind


_STATISTICS = _row(frames.STATISTICS)
_RESOURCE = _object(
    "MeasuredResource", "What a process needs, in every start that was measured.",
    resource=str, unit=str, values=tuple[Annotated[float, Meta(ge=0)], ...],
)  # fmt: skip
_LATENCY: Any = _row(
    frames.STATISTICS, "measured latency", experiment=str, threads=int,
    clock=Literal["cpu_ns", "wall_ns"], control=bool,
    restarts_ms=Annotated[tuple[Annotated[float, Meta(ge=0)], ...], Meta(min_length=1)],
    tracer_overhead=float | None, load_ms=tuple[float, ...], startup_ms=tuple[float, ...],
    resources=NotRequired[_several(_RESOURCE)],
)  # fmt: skip


_VERSION = {"schema_version": NotRequired[int]}
#: ``programs`` has those of experiments that ran another one than the first, ``program``;
#: ``problem`` is what is wrong with the outputs of some program, or empty; ``results`` are for the
#: scripts of Arm's profiling kit.
METRICS = _object(
    "Metrics",
    "``metrics.json``: latencies, starts and memory of a run, to compare later ones with.",
    model=str, program=str, device=str, build=str, emulated=bool, started=str, floor=float | None,
    latencies=_several(_LATENCY), unit=NotRequired[Literal["ms"]], problem=NotRequired[str],
    results=NotRequired[tuple[dict[str, Any], ...]], programs=NotRequired[dict[str, str]],
    **_VERSION,
)  # fmt: skip
_KERNEL_SHARE = _object(
    "KernelShare", "The class of machine code of a kernel, and its share of the samples.",
    code=str, share=float | None, low=float | None, high=float | None, samples=int,
)  # fmt: skip
_OPERATOR: Any = _row(
    frames.ATTRIBUTION, "operator", without="module", name=str, category=str, family=str, rule=str,
    avg_ms=float | None, count=float | None, total_ms=float | None, share=float | None,
    kernel_hint=str | None, kernel_evidence=_KERNEL_SHARE | None, layer=str | None,
)  # fmt: skip
#: One measurement: ``latency`` is that of untraced inferences, ``e2e`` is ``Method::execute`` of
#: the traced ones, to whose mean the categories add up, and so do the kinds: the time in delegates,
#: in portable kernels and in overhead. One more kind, ``tracing``, is what tracing added to it.
#: ``use`` has which of its times may be used.
_MEASUREMENT: dict[str, Any] = {
    "experiment": str,
    "threads": int,
    "latency": _row(frames.STATISTICS, "latency", clock=str),
    "e2e": _STATISTICS,
    "bottlenecks": _rows(frames.BOTTLENECKS),
    "category_totals_ms": dict[str, float],
    "operator_details": tuple[_OPERATOR, ...],
    "layers": _rows(frames.LAYERS) | None,
    "layer_types": NotRequired[_rows(frames.LAYER_TYPES) | None],
    "kind_totals_ms": NotRequired[dict[str, float]],
    "use": NotRequired[tuple[Literal["latency", "milliseconds", "shares"], ...]],
}
_TRACE = _object(
    "TraceSummary", "One ETDump.",
    etdump=str, experiment=str, threads=int, process=int, e2e=_STATISTICS,
)  # fmt: skip
_SIDE = _object("SideSummary", "The measurement on one side.", experiment=str, threads=int)
_COMPARED: Any = _row(frames.COMPARISON, "operator comparison", key=str)
_COMPARISON = _object(
    "ComparisonSummary", "A candidate against its baseline; `code`: do both run the same code?",
    label=str, baseline=_SIDE, candidate=_SIDE, verdict=str, latency=_row(frames.COMPARISON),
    code=runs.Proof | None, categories=_rows(frames.COMPARISON), operators=tuple[_COMPARED, ...],
    layers=_rows(frames.COMPARISON) | None, shift=_rows(frames.SHIFT),
    kernels=_rows(frames.KERNEL_EVIDENCE) | None,
)  # fmt: skip
_CHECK = _object(
    "CheckSummary", "One reason to trust a run's numbers, or not to.",
    check=str, status=Literal["ok", "note", "fail"], evidence=str,
)  # fmt: skip
_QUALITY = _object(
    "QualitySummary", "The grade of a measurement, and where it comes from.",
    grade=Literal["A", "B", "C", "D"], summary=str, criteria=_rows(frames.QUALITY),
    readings=tuple[runs.Reading, ...],
)  # fmt: skip
_ANALYSIS = _object(
    "AnalysisSummary",
    "``analysis_summary.json``: the candidate of the first comparison, then all of the run.",
    **_MEASUREMENT, **_VERSION, run_dir=str, model=str, emulated=bool, etrecord=str | None,
    etdump_count=int, per_etdump=_several(_TRACE),
    findings=_several(_row(frames.FINDINGS, keys=tuple[str, ...])),
    comparisons=_several(_COMPARISON), ladder=_rows(frames.LADDER) | None,
    scaling=_rows(frames.SCALING) | None, crossovers=tuple[str, ...],
    kernel_changes=GenericAlias(dict, (str, _rows(frames.KERNEL_CHANGES))),
    measurements=_several(_object("MeasurementSummary", "One measurement.", **_MEASUREMENT)),
    checks=_several(_CHECK), quality=_QUALITY,
    categories=NotRequired[str],  # the rules that placed the operators
    phases=NotRequired[_rows(frames.PHASES) | None],
    paced=NotRequired[_rows(frames.PACED) | None],
    size_fits=NotRequired[_rows(frames.SIZE_FITS) | None],
)  # fmt: skip

#: What the pipeline summary has of a run's record.
RUN_FIELDS = (
    *("state", "platform", "emulated", "host", "runner", "versions"),
    *("started", "finished", "plan"),
)
_RECORD = get_type_hints(runs.RunRecord)
_RUN = _object(
    "PipelineRun", "Where and how a program was measured.",
    dir=str, **{name: _RECORD[name] for name in RUN_FIELDS},
)  # fmt: skip
_PIPELINE = _object(
    "PipelineSummary",
    "``<stem>_pipeline_summary.json``: what was exported and measured, and the verdicts.",
    model=str, verdicts=tuple[str, ...], export=runs.Export | None, run=_RUN, **_VERSION,
)  # fmt: skip
_COMBINED = _object(
    "CombinedSummary", "``combined_pipeline_summary.json``: several runs side by side.",
    models=tuple[str, ...], runs=_rows(frames.RUNS), latencies=_rows(frames.COMPARISON),
    layers=_rows(frames.LAYER_CODE) | None, problem=str, **_VERSION,
)  # fmt: skip


def _key(kind: Any, meaning: str) -> Any:
    """A key that a person may write in a config or a matrix."""
    return NotRequired[Annotated[kind, Meta(description=meaning)]]


def _keys(title: str, /, **keys: Any) -> Any:
    """The type of an object that may have further keys."""
    return TypedDict(title, keys)  # type: ignore[operator]


#: A single value needs no brackets.
_WORDS, _COUNTS = str | tuple[str, ...], int | tuple[int, ...]
_SIDE_OF_PAIR = _keys(
    "ConfigSide", experiment=str, threads=_key(int, "a thread count of the experiment")
)
_PAIR = _keys(
    "ConfigPair", baseline=_SIDE_OF_PAIR, candidate=_SIDE_OF_PAIR, label=_key(str, "its name")
)
#: An experiment of a config, and a config; the profiling kit ignores further keys.
CONFIG_EXPERIMENT = _keys(
    "ConfigExperiment",
    name=Annotated[str, Meta(description="also the name of its folder")],
    runner_path=_key(str, "an executor_runner; without it, the workbench's runner"),
    quiet_runner=_key(str, "the kit's earlier name of runner_path"),
    mode=_key(str, "timing, or xnntrace: a runner whose XNNPACK logs its kernels"),
    isa=_key(str, "the ISA level, such as avx2; native by default"),
    isa_off=_key(_WORDS, "CPU extensions to hide"),
    weights=_key(str, "packed at every start (default), or cached in a file"),
    threads=_key(_COUNTS, "thread counts; 1 by default"),
    num_threads=_key(int, "the same, as the kit has it"),
    runs=_key(int, "minimum timed inferences; 50, with a runner_path 100"),
    num_runs=_key(int, "the same, as the kit has it"),
    warmup=_key(int, "inferences before timing; 3, with a runner_path 10"),
    extra_args=_key(_WORDS, "arguments of the executor_runner"),
    cpu_affinity=_key(_COUNTS | str, "CPUs to run on: numbers, or a mask such as 0x3"),
    program=_key(str, "another .pte than the config's model"),
    model=_key(str, "the same, as the kit has it"),
)
CONFIG = _keys(
    "Config",
    model=Annotated[str, Meta(description="the .pte")],
    experiments=Annotated[
        _several(CONFIG_EXPERIMENT), Meta(description="what to measure, interleaved")
    ],
    output_root=_key(str, "the output folder, or the run's own; out_MODEL by default"),
    target=_key(str, "host, qemu[:CPU], android[:SERIAL] or ssh:HOST"),
    power=_key(str, "an Android power mode: boost or developer"),
    inputs=_key(tuple[str, ...], "one .npy or raw file for each input"),
    phases=_key(tuple[str, ...], "as --phase of `workbench run`"),
    analysis=_key(
        _keys("ConfigAnalysis", compare_pairs=_key(_several(_PAIR), "what to compare")),
        "comparisons; by default each with the extension off",
    ),
)
CONFIG.__doc__ = "The config of `workbench run`: that of Arm's profiling kit, and further keys."

#: Keys of a matrix whose value may be written without brackets if it is a single one.
LISTS = (
    *("models", "dtypes", "targets", "isa", "threads", "rewrite", "against", "weights"),
    *("runtime", "programs"),
)


def _options(record: type, *excluded: str) -> dict[str, Any]:
    hints = get_type_hints(record)
    return {
        field.name: _key(
            hints[field.name] | get_args(hints[field.name])[0]
            if field.name in LISTS
            else hints[field.name],
            field.metadata["help"].removesuffix("."),
        )
        for field in fields(record)
        if field.name not in excluded
    }


#: Keys of a matrix that are options of all its exports, and of all its measurements. Code runs only
#: if the user named it: there is no ``ops``.
EXPORT_KEYS = _options(ExportOptions, "dtype", "state_dict", "inputs", "recipe", "fresh")
MEASURE_KEYS = _options(MeasureOptions, "toggle", "isa_ladder", "target", "ops")
_MATRIX = _object(
    "Matrix", "The matrix of `workbench batch`, in YAML.",
    models=_key(_WORDS, "models, as of `workbench profile`"),
    programs=_key(_WORDS, "finished programs, such as release/*.pte, beside or instead of models"),
    dtypes=_key(_WORDS, "dtypes to export in; fp32 by default"),
    targets=_key(_WORDS, "host, qemu[:CPU], android[:SERIAL] or ssh:HOST; host by default"),
    isa=_key(_WORDS, "a CPU extension to switch off and on, auto, none, or ladder for every level"),
    exclude=_key(tuple[dict[str, str], ...], "cells to leave out: model, dtype, target or isa"),
    notebook=_key(str, "the notebook of the reports"),
    export_limit_s=_key(float, "seconds after which an export is killed; 3600 by default"),
    **EXPORT_KEYS, **MEASURE_KEYS,
)  # fmt: skip


DOCUMENTS: dict[str, type] = {
    "analysis_summary": _ANALYSIS,
    "ceilings": runs.Ceilings,
    "combined_pipeline_summary": _COMBINED,
    "config": CONFIG,
    "export": runs.Export,
    "layers": Layers,
    "manifest": runs.RunRecord,
    "matrix": _MATRIX,
    "metrics": METRICS,
    "outcome": Outcome,
    "pipeline_summary": _PIPELINE,
    "portfolio": Portfolio,
    "recipe": Recipe,
    "study": Study,
}


def describe_document(name: str) -> dict[str, Any]:
    """The JSON Schema, draft 2020-12, of one of ``DOCUMENTS``."""
    if name not in DOCUMENTS:
        raise unknown_name("document", name, DOCUMENTS)
    schema = msgspec.json.schema(DOCUMENTS[name])
    for title, record in schema["$defs"].items():
        if "description" in record:  # rows have none, and may have further columns
            first = cleandoc(record["description"]).split("\n\n")[0]
            record["description"] = first.replace("\n", " ")
            record["additionalProperties"] = title == CONFIG.__name__
        if title == "Matrix":
            record["anyOf"] = [{"required": ["models"]}, {"required": ["programs"]}]
        if "schema_version" in record["properties"]:
            record["properties"]["schema_version"] = {"const": runs.SCHEMA_VERSION}
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:executorch-workbench:{name}:{runs.SCHEMA_VERSION}",
        "title": name.replace("_", " "),
    }
    return head | schema
