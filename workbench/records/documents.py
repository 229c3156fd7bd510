"""The JSON files of the workbench; a record declares each, and its JSON Schema follows from it."""

from functools import cache
from inspect import cleandoc
from types import GenericAlias
from typing import Annotated, Any, Literal, NotRequired, TypedDict, get_type_hints

import msgspec
from msgspec import Meta

from workbench import frames
from workbench.errors import unknown_name
from workbench.frames import Frame
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
_LATENCY: Any = _row(
    frames.STATISTICS, "measured latency", experiment=str, threads=int,
    clock=Literal["cpu_ns", "wall_ns"], control=bool,
    restarts_ms=Annotated[tuple[Annotated[float, Meta(ge=0)], ...], Meta(min_length=1)],
    tracer_overhead=float | None, load_ms=tuple[float, ...], startup_ms=tuple[float, ...],
)  # fmt: skip


_VERSION = {"schema_version": NotRequired[int]}
#: ``programs`` has those of experiments that ran another one than the first, ``program``;
#: ``problem`` is what is wrong with the outputs of some program, or empty; ``results`` are for the
#: scripts of Arm's profiling kit.
METRICS = _object(
    "Metrics",
    "``metrics.json``: the latencies of a run, from which a later run is compared with it.",
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
#: in portable kernels and in overhead.
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


DOCUMENTS: dict[str, type] = {
    "analysis_summary": _ANALYSIS,
    "ceilings": runs.Ceilings,
    "combined_pipeline_summary": _COMBINED,
    "export": runs.Export,
    "layers": Layers,
    "manifest": runs.RunRecord,
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
    for record in schema["$defs"].values():
        if "description" in record:  # rows have none, and may have further columns
            first = cleandoc(record["description"]).split("\n\n")[0]
            record["description"] = first.replace("\n", " ")
            record["additionalProperties"] = False
        if "schema_version" in record["properties"]:
            record["properties"]["schema_version"] = {"const": runs.SCHEMA_VERSION}
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:executorch-workbench:{name}:{runs.SCHEMA_VERSION}",
        "title": name.replace("_", " "),
    }
    return head | schema
