"""The JSON files of the workbench; a record declares each, and its JSON Schema follows from it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from inspect import cleandoc
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
from msgspec import Meta

from workbench import frames
from workbench.errors import unknown_name
from workbench.frames import Frame
from workbench.records.layers import Layers
from workbench.records.optimize import Recipe, Study
from workbench.records.portfolio import Outcome, Portfolio
from workbench.records.runs import (
    SCHEMA_VERSION,
    Ceilings,
    Export,
    KitResult,
    Plan,
    Proof,
    Reading,
    RunRecord,
)

#: A row of a frame, by column.
Row = Mapping[str, Any]
Rows = tuple[Row, ...]

#: Numbers that are not finite, and what is not known, are null.
_TYPES = {"int": int, "float": float | None, "bool": bool, "text": str | None}
#: Columns that rows of older files of this schema version lack.
_LATER = frozenset({"latency", "restarts"})


def _row(frame: Frame, title: str = "", /, *, without: str = "", **more: object) -> Any:
    """The type of a row: the columns of a frame, and further ones before them."""
    columns: dict[str, Any] = dict(more)
    for column in frame.columns:
        if column.name not in (without, *more):
            meaning = f"{column.meaning}{f' [{column.unit}]' if column.unit else ''}"
            kind: Any = Annotated[_TYPES.get(column.kind, Any), Meta(description=meaning)]  # type: ignore[valid-type]
            columns[column.name] = NotRequired[kind] if column.name in _LATER else kind
    return TypedDict(title or frame.name, columns)  # type: ignore[operator]


_BOTTLENECK: Any = _row(frames.BOTTLENECKS)
_COMBINED_RUN: Any = _row(frames.RUNS)
_COMPARISON: Any = _row(frames.COMPARISON)
_COMPARED_OPERATOR: Any = _row(frames.COMPARISON, "operator comparison", key=str)
_CRITERION: Any = _row(frames.QUALITY)
_FINDING: Any = _row(frames.FINDINGS, keys=tuple[str, ...])
_ISA_LEVEL: Any = _row(frames.LADDER)
_KERNEL_CHANGE: Any = _row(frames.KERNEL_CHANGES)
_KERNEL_EVIDENCE: Any = _row(frames.KERNEL_EVIDENCE)
_LAYER: Any = _row(frames.LAYERS)
_LAYER_CODE: Any = _row(frames.LAYER_CODE)
_LAYER_TYPE: Any = _row(frames.LAYER_TYPES)
_PHASE: Any = _row(frames.PHASES)
_SCALING: Any = _row(frames.SCALING)
_SHIFT: Any = _row(frames.SHIFT)
_SIZE_FIT: Any = _row(frames.SIZE_FITS)
_STATISTICS: Any = _row(frames.STATISTICS)
_LATENCY: Any = _row(frames.STATISTICS, "latency", clock=str)
_MEASURED_LATENCY: Any = _row(
    frames.STATISTICS, "measured latency", experiment=str, threads=int,
    clock=Literal["cpu_ns", "wall_ns"], control=bool,
    restarts_ms=Annotated[tuple[Annotated[float, Meta(ge=0)], ...], Meta(min_length=1)],
    tracer_overhead=float | None, load_ms=tuple[float, ...], startup_ms=tuple[float, ...],
)  # fmt: skip


@dataclass(frozen=True)
class KernelShare:
    """The class of machine code of an operator's kernel, and its share of the samples."""

    code: str
    share: float | None
    low: float | None
    high: float | None
    samples: int


_OPERATOR: Any = _row(
    frames.ATTRIBUTION, "operator", without="module", name=str, category=str, family=str, rule=str,
    avg_ms=float | None, count=float | None, total_ms=float | None, share=float | None,
    kernel_hint=str | None, kernel_evidence=KernelShare | None, layer=str | None,
)  # fmt: skip


@dataclass(frozen=True)
class Metrics:
    """``metrics.json``: the latencies of a run, from which a later run is compared with it.

    ``programs`` has those of experiments that ran another one than the first, ``program``;
    ``problem`` is what is wrong with the outputs of some program, or empty.
    """

    model: str
    program: str
    device: str
    build: str
    emulated: bool
    started: str
    floor: float | None
    latencies: tuple[_MEASURED_LATENCY, ...]
    unit: Literal["ms"] = "ms"
    problem: str = ""
    results: tuple[KitResult, ...] = ()
    programs: Mapping[str, str] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class SideSummary:
    """The measurement on one side of a comparison."""

    experiment: str
    threads: int


@dataclass(frozen=True)
class ComparisonOutline:
    """The verdict of a comparison, and its latency."""

    label: str
    baseline: SideSummary
    candidate: SideSummary
    verdict: str
    latency: _COMPARISON


@dataclass(frozen=True)
class ComparisonSummary(ComparisonOutline):
    """A candidate against its baseline; ``code`` tells whether they ran the same machine code."""

    code: Proof | None
    categories: tuple[_COMPARISON, ...]
    operators: tuple[_COMPARED_OPERATOR, ...]
    layers: tuple[_COMPARISON, ...] | None
    shift: tuple[_SHIFT, ...]
    kernels: tuple[_KERNEL_EVIDENCE, ...] | None


@dataclass(frozen=True)
class CheckSummary:
    """One reason to trust a run's numbers, or not to."""

    check: str
    status: Literal["ok", "note", "fail"]
    evidence: str


@dataclass(frozen=True)
class QualityOutline:
    """The grade of a measurement."""

    grade: Literal["A", "B", "C", "D"]
    summary: str


@dataclass(frozen=True)
class QualitySummary(QualityOutline):
    """The grade of a measurement, and where it comes from."""

    criteria: tuple[_CRITERION, ...]
    readings: tuple[Reading, ...]


@dataclass(frozen=True)
class RunOutline:
    """Verdicts and grade of a run, as the commands print them with ``--json``."""

    run_dir: str
    model: str
    platform: str
    emulated: bool
    comparisons: tuple[ComparisonOutline, ...]
    quality: QualityOutline


@dataclass(frozen=True)
class MeasurementSummary:
    """One measurement.

    ``latency`` is that of untraced inferences; ``e2e`` is ``Method::execute`` of the traced ones,
    to whose mean the categories add up, and so do the kinds: the time in delegates, in portable
    kernels and in overhead.
    """

    experiment: str
    threads: int
    latency: _LATENCY
    e2e: _STATISTICS
    bottlenecks: tuple[_BOTTLENECK, ...]
    category_totals_ms: dict[str, float]
    operator_details: tuple[_OPERATOR, ...]
    layers: tuple[_LAYER, ...] | None
    layer_types: tuple[_LAYER_TYPE, ...] | None = field(default=None, kw_only=True)
    kind_totals_ms: dict[str, float] = field(default_factory=dict, kw_only=True)


@dataclass(frozen=True)
class TraceSummary:
    """One ETDump."""

    etdump: str
    experiment: str
    threads: int
    process: int
    e2e: _STATISTICS


@dataclass(frozen=True)
class AnalysisSummary(MeasurementSummary):
    """``analysis_summary.json``: the candidate of the first comparison, then all of the run.

    ``categories`` names the rules that placed the operators.
    """

    run_dir: str
    model: str
    emulated: bool
    etrecord: str | None
    etdump_count: int
    per_etdump: tuple[TraceSummary, ...]
    findings: tuple[_FINDING, ...]
    comparisons: tuple[ComparisonSummary, ...]
    ladder: tuple[_ISA_LEVEL, ...] | None
    scaling: tuple[_SCALING, ...] | None
    crossovers: tuple[str, ...]
    kernel_changes: dict[str, tuple[_KERNEL_CHANGE, ...]]
    measurements: tuple[MeasurementSummary, ...]
    checks: tuple[CheckSummary, ...]
    quality: QualitySummary
    categories: str = "workbench"
    phases: tuple[_PHASE, ...] | None = None
    size_fits: tuple[_SIZE_FIT, ...] | None = None
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class PipelineRun:
    """Where and how a program was measured."""

    dir: str
    state: str
    platform: str
    emulated: bool
    host: dict[str, Any]
    runner: dict[str, Any]
    versions: dict[str, str]
    started: str
    finished: str
    plan: Plan


@dataclass(frozen=True)
class PipelineSummary:
    """``<stem>_pipeline_summary.json``: what was exported and measured, and the verdicts."""

    model: str
    verdicts: tuple[str, ...]
    export: Export | None
    run: PipelineRun
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class CombinedSummary:
    """``combined_pipeline_summary.json``: several runs side by side."""

    models: tuple[str, ...]
    runs: tuple[_COMBINED_RUN, ...]
    latencies: tuple[_COMPARISON, ...]
    layers: tuple[_LAYER_CODE, ...] | None
    problem: str
    schema_version: int = SCHEMA_VERSION


DOCUMENTS: dict[str, type] = {
    "analysis_summary": AnalysisSummary,
    "ceilings": Ceilings,
    "combined_pipeline_summary": CombinedSummary,
    "export": Export,
    "layers": Layers,
    "manifest": RunRecord,
    "metrics": Metrics,
    "outcome": Outcome,
    "pipeline_summary": PipelineSummary,
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
            record["properties"]["schema_version"] = {"const": SCHEMA_VERSION}
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:executorch-workbench:{name}:{SCHEMA_VERSION}",
        "title": name.replace("_", " "),
    }
    return head | schema
