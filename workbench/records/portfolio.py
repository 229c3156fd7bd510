"""The records of a batch of models: its cells, and what became of each."""

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
    """One measurement of a cell, an experiment at a thread count, for each of its comparisons.

    ``program`` names another one than the cell's, such as another runtime's.
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
    program: str = ""


@dataclass(frozen=True)
class Outcome:
    """What became of a cell: ``state`` is ``open``, ``done`` or ``failed``.

    ``doing`` is what happens to an open one now, such as ``measuring``; empty while it waits.
    ``problem`` is a reason to doubt the figures. Paths are relative to the portfolio; ``notebook``
    is that of the executed notebook, ``template`` the SHA-256 of the matrix's own. If the SHA-256
    of recorded ``files`` differ, the cell is ``damaged`` and is measured again.
    """

    cell: Cell
    state: str = "open"
    doing: str = ""
    stages: tuple[CellStage, ...] = ()
    failed_stage: str = ""
    error: str = ""
    log: str = ""
    retry: str = ""
    run_dir: str = ""
    report: str = ""
    notebook: str = ""
    template: str = ""
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
class Portfolio:
    """``portfolio.json``: the matrix, and what became of its cells."""

    matrix: dict[str, Any]
    updated: str
    outcomes: tuple[Outcome, ...]
    schema_version: int = SCHEMA_VERSION
