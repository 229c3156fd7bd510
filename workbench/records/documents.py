"""The JSON files of the workbench; a record declares each, and its JSON Schema follows from it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from workbench import frames
from workbench.errors import unknown_name
from workbench.records.codec import Columns, Contract
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

#: A row of a frame, by column; the frame and further columns are declared where it is used.
Row = Mapping[str, Any]
Rows = tuple[Row, ...]

_Speedups = Annotated[Rows, Columns(frames.COMPARISON)]


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
    latencies: Annotated[
        Rows,
        Columns(
            frames.STATISTICS, experiment=str, threads=int, clock=Literal["cpu_ns", "wall_ns"],
            control=bool,
            restarts_ms=Annotated[tuple[Annotated[float, {"minimum": 0}], ...], {"minItems": 1}],
            tracer_overhead=float | None, load_ms=tuple[float, ...], startup_ms=tuple[float, ...],
        ),
    ]  # fmt: skip
    unit: Literal["ms"] = "ms"
    problem: str = ""
    results: tuple[KitResult, ...] = ()
    programs: Mapping[str, str] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class Side:
    """The measurement on one side of a comparison."""

    experiment: str
    threads: int


@dataclass(frozen=True)
class ComparisonOutline:
    """The verdict of a comparison, and its latency."""

    label: str
    baseline: Side
    candidate: Side
    verdict: str
    latency: Annotated[Row, Columns(frames.COMPARISON)]


@dataclass(frozen=True)
class ComparisonSummary(ComparisonOutline):
    """A candidate against its baseline; ``code`` tells whether they ran the same machine code."""

    code: Proof | None
    categories: _Speedups
    operators: Annotated[Rows, Columns(frames.COMPARISON, key=str)]
    layers: _Speedups | None
    shift: Annotated[Rows, Columns(frames.SHIFT)]
    kernels: Annotated[Rows, Columns(frames.KERNEL_EVIDENCE)] | None


@dataclass(frozen=True)
class Check:
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

    criteria: Annotated[Rows, Columns(frames.QUALITY)]
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
class KernelShare:
    """The class of machine code of an operator's kernel, and its share of the samples."""

    code: str
    share: float | None
    low: float | None
    high: float | None
    samples: int


@dataclass(frozen=True)
class MeasurementSummary:
    """One measurement.

    ``latency`` is that of untraced inferences; ``e2e`` is ``Method::execute`` of the traced ones,
    to whose mean the categories add up, and so do the kinds: the time in delegates, in portable
    kernels and in overhead.
    """

    experiment: str
    threads: int
    latency: Annotated[Row, Columns(frames.STATISTICS, clock=str)]
    e2e: Annotated[Row, Columns(frames.STATISTICS)]
    bottlenecks: Annotated[Rows, Columns(frames.BOTTLENECKS)]
    category_totals_ms: dict[str, float]
    operator_details: Annotated[
        Rows,
        Columns(
            frames.ATTRIBUTION, without=("module",), name=str, category=str, family=str, rule=str,
            avg_ms=float | None, count=float | None, total_ms=float | None, share=float | None,
            kernel_hint=str | None, kernel_evidence=KernelShare | None, layer=str | None,
        ),
    ]  # fmt: skip
    layers: Annotated[Rows, Columns(frames.LAYERS)] | None
    layer_types: Annotated[Rows, Columns(frames.LAYER_TYPES)] | None = field(
        default=None, kw_only=True
    )
    kind_totals_ms: dict[str, float] = field(default_factory=dict, kw_only=True)


@dataclass(frozen=True)
class TraceSummary:
    """One ETDump."""

    etdump: str
    experiment: str
    threads: int
    process: int
    e2e: Annotated[Row, Columns(frames.STATISTICS)]


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
    findings: Annotated[Rows, Columns(frames.FINDINGS, keys=tuple[str, ...])]
    comparisons: tuple[ComparisonSummary, ...]
    ladder: Annotated[Rows, Columns(frames.LADDER)] | None
    scaling: Annotated[Rows, Columns(frames.SCALING)] | None
    crossovers: tuple[str, ...]
    kernel_changes: dict[str, Annotated[Rows, Columns(frames.KERNEL_CHANGES)]]
    measurements: tuple[MeasurementSummary, ...]
    checks: tuple[Check, ...]
    quality: QualitySummary
    categories: str = "workbench"
    phases: Annotated[Rows, Columns(frames.PHASES)] | None = None
    size_fits: Annotated[Rows, Columns(frames.SIZE_FITS)] | None = None
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
    runs: Annotated[Rows, Columns(frames.COMBINED)]
    latencies: _Speedups
    layers: Annotated[Rows, Columns(frames.LINED_UP)] | None
    problem: str
    schema_version: int = SCHEMA_VERSION


#: A column of numbers; null where there is none.
Numbers = tuple[float | None, ...]


@dataclass(frozen=True)
class Coded:
    """A column of texts: the distinct ones, and the position of each row's, -1 for none."""

    values: tuple[str, ...]
    codes: tuple[int, ...]


@dataclass(frozen=True)
class Excerpt:
    """Lines of a source file, from line ``start``."""

    start: int
    lines: tuple[str, ...]


@dataclass(frozen=True)
class ExplorerHead(QualityOutline):
    """What was run, on what, and how good the measurement is."""

    model: str
    dtype: str
    device: str
    started: str
    emulated: bool
    versions: dict[str, str]
    perfetto: str
    quality: Annotated[Rows, Columns(frames.QUALITY)] = ()


@dataclass(frozen=True)
class Activations:
    """Live activations over the exported operators, in the order of execution.

    ``steps`` are the positions of the operators that run them, -1 for none; ``live`` are bytes by
    memory; ``tensors`` are the largest ones, first those that make up a peak.
    """

    steps: tuple[int, ...]
    live: dict[str, tuple[int, ...]]
    tensors: Annotated[Rows, Columns(frames.TENSORS)]


@dataclass(frozen=True)
class ExplorerProgram:
    """The operators of a program in the order of execution, by column, and its modules.

    ``edges`` are pairs of operators: the second reads what the first made. ``excerpts`` are source
    lines by ``file:line``.
    """

    keys: tuple[str, ...]
    labels: tuple[str, ...]
    instructions: tuple[int, ...]
    texts: dict[str, Coded]
    costs: dict[str, Numbers]
    modules: tuple[str, ...]
    classes: tuple[str, ...]
    edges: tuple[tuple[int, int], ...]
    excerpts: dict[str, Excerpt]
    activations: Activations | None = None


@dataclass(frozen=True)
class Listing:
    """Disassembly around the hottest instructions of a function, and their samples."""

    lines: tuple[str, ...]
    samples: tuple[int, ...]


@dataclass(frozen=True)
class Inference:
    """A traced inference in 0.1 us: times from start to start of its spans, and durations."""

    run: int
    shape: int
    gaps: tuple[int, ...]
    durations: tuple[int, ...]


@dataclass(frozen=True)
class ExplorerTrace:
    """Inferences of a measurement's first process, evenly spread over it.

    A shape has the operators of the spans, -1 for none, and their depths, parents first.
    """

    shapes: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    inferences: tuple[Inference, ...]


@dataclass(frozen=True)
class ExplorerMeasurement(Side):
    """One measurement; columns follow the operators of its program.

    ``restarts_ms`` are mean times by process restart, empty for a single one; ``quantile`` is that
    of Student's t for a 95 % interval over them. Findings have positions of operators. ``note``
    compares latency and traced times. ``loops`` are those of the ``functions`` by name.
    """

    program: int
    label: str
    phase: str
    isa: str
    hidden: tuple[str, ...]
    latency: Annotated[Row, Columns(frames.STATISTICS, clock=str)]
    untraced: bool
    inferences: int
    mean_ms: Numbers
    std_ms: Numbers
    restarts_ms: tuple[Numbers, ...]
    quantile: float | None
    categories: Annotated[Rows, Columns(frames.CATEGORIES)]
    roofline: dict[str, Numbers] | None
    bound: Coded | None
    functions: dict[str, Coded] | None
    samples: dict[str, Numbers] | None
    findings: Annotated[
        Rows, Columns(frames.FINDINGS, gain=str, where=str, operators=tuple[int, ...])
    ]
    trace: ExplorerTrace
    note: str = ""
    loops: dict[str, Listing] = field(default_factory=dict)
    memory: Annotated[Rows, Columns(frames.MEMORY)] = ()
    start: Annotated[Rows, Columns(frames.COLD_START)] = ()


@dataclass(frozen=True)
class ExplorerComparison:
    """A comparison of two measurements, by position.

    Columns follow the operators of the candidate's program; of another program, ``partners`` are
    the positions of the baseline's operators, -1 for none.
    """

    baseline: int
    candidate: int
    verdict: str
    outcome: str
    latency: Annotated[Row, Columns(frames.COMPARISON)]
    caveats: tuple[str, ...]
    categories: _Speedups
    operators: dict[str, Numbers]
    outcomes: Coded
    changes: Coded | None
    partners: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Explorer:
    """The data of ``explore.html``."""

    head: ExplorerHead
    programs: tuple[ExplorerProgram, ...]
    measurements: tuple[ExplorerMeasurement, ...]
    comparisons: tuple[ExplorerComparison, ...]
    schema_version: int = SCHEMA_VERSION


DOCUMENTS: dict[str, type] = {
    "analysis_summary": AnalysisSummary,
    "ceilings": Ceilings,
    "combined_pipeline_summary": CombinedSummary,
    "explorer": Explorer,
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
    contract = Contract()
    body = {"title": name.replace("_", " "), **contract.of(DOCUMENTS[name])}
    return contract.publish(name, SCHEMA_VERSION, body)


def find_problem(content: object, name: str) -> str:
    """The first violation of a document's schema, in one line; empty if there is none."""
    import jsonschema

    validator = jsonschema.Draft202012Validator(describe_document(name))
    error = jsonschema.exceptions.best_match(validator.iter_errors(content))
    return f"{error.message:.200} at {error.json_path}" if error else ""
