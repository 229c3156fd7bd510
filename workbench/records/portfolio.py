"""The records of a batch of models: its cells, what became of each, and where the time went."""

from dataclasses import dataclass, field
from typing import Any

from workbench.records.runs import SCHEMA_VERSION

STAGES = ("export", "measure", "report")


@dataclass(frozen=True)
class Cell:
    """A model in a dtype on a target, with a CPU extension off and on: one run measures it.

    ``model`` is what ``load_model`` takes, ``label`` is its name in file names, and ``cache_key``
    is a hash of everything that the result depends on.
    """

    model: str
    label: str
    dtype: str
    target: str
    isa: str
    stem: str
    cache_key: str

    @property
    def name(self) -> str:
        """``model/dtype/target/isa``."""
        return "/".join((self.label, self.dtype, self.target, self.isa))

    @property
    def folder(self) -> str:
        """The folder of its artifacts and runs, relative to the portfolio."""
        return f"out_{self.stem}"


@dataclass(frozen=True)
class CellStage:
    """A finished stage of a cell: when, how long, and where it ran.

    Before ``started`` it waited ``waited_s`` for its device. If ``cached``, the result existed.
    """

    name: str
    started: str
    seconds: float
    waited_s: float = 0.0
    machine: str = ""
    process: int = 0
    cached: bool = False


@dataclass(frozen=True)
class Row:
    """One measurement of a cell: an experiment at a thread count.

    ``latency_ms`` is of untraced ``Method::execute``, with its 95 % interval over the process
    ``restarts``; ``share`` is the part of the ``bottleneck``, an operator category. An emulated
    run has no times. The first output and the largest resident set are means over starts.
    """

    experiment: str
    isa: str
    threads: int
    clock: str = ""
    n: int = 0
    median_ms: float | None = None
    low_ms: float | None = None
    high_ms: float | None = None
    against: str = ""
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    outcome: str = ""
    bottleneck: str = ""
    share: float | None = None
    latency_ms: float | None = None
    restarts: int = 0
    first_output_ms: float | None = None
    peak_mb: float | None = None


@dataclass(frozen=True)
class Outcome:
    """What became of a cell: ``state`` is ``open``, ``done`` or ``failed``.

    ``problem`` is a reason to doubt the figures. Paths are relative to the portfolio. If the
    SHA-256 of recorded ``files`` differ, the cell is ``damaged`` and is measured again.
    """

    cell: Cell
    state: str = "open"
    stages: tuple[CellStage, ...] = ()
    failed_stage: str = ""
    error: str = ""
    log: str = ""
    retry: str = ""
    run_dir: str = ""
    report: str = ""
    files: dict[str, str] = field(default_factory=dict)
    damaged: bool = False
    size_bytes: int | None = None
    sqnr_db: float | None = None
    problem: str = ""
    undelegated: int | None = None
    platform: str = ""
    cpu: str = ""
    emulated: bool = False
    grade: str = ""
    verdicts: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class TimeBreakdown:
    """Where the time of a batch went, in seconds since its last start.

    Each moment counts once, for the first of these stages that was running.
    """

    wall_s: float
    export_s: float
    measure_s: float
    report_s: float
    other_s: float

    @property
    def overhead(self) -> float:
        """Time outside exports and measurements, as a fraction of these."""
        pure = self.export_s + self.measure_s
        return (self.report_s + self.other_s) / pure if pure else float("nan")


@dataclass(frozen=True)
class Portfolio:
    """``portfolio.json``: the matrix, and what became of its cells."""

    matrix: dict[str, Any]
    updated: str
    outcomes: tuple[Outcome, ...]
    time_breakdown: TimeBreakdown | None = None
    schema_version: int = SCHEMA_VERSION
