"""What a batch has done, as frozen records that go to JSON and back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from workbench.records.runs import SCHEMA_VERSION

STAGES = ("export", "measure", "report")


@dataclass(frozen=True)
class Cell:
    """A program on a target, with an extension off and on: what one run measures.

    The levels of the extension and the thread counts take turns within that run, which tells them
    apart better than runs of their own would. ``model`` is what ``load_model`` takes, ``label``
    what artifacts are called after; ``address`` is a hash of all that the result depends upon.
    """

    model: str
    label: str
    dtype: str
    target: str
    isa: str
    stem: str
    address: str

    @property
    def name(self) -> str:
        """``model/dtype/target/isa``."""
        return "/".join((self.label, self.dtype, self.target, self.isa))

    @property
    def folder(self) -> str:
        """Where its artifacts and runs lie, within the portfolio."""
        return f"out_{self.stem}"


@dataclass(frozen=True)
class Stage:
    """One stage of a cell's work: when, for how long, and on which machine and process.

    ``waited_s`` is the time before ``started`` in which a device or machine was not free; ``kept``
    says that all was there, and nothing was to be done.
    """

    name: str
    started: str
    seconds: float
    waited_s: float = 0.0
    machine: str = ""
    process: int = 0
    kept: bool = False


@dataclass(frozen=True)
class Row:
    """One measurement of a cell: an experiment at a thread count.

    Latencies are of untraced ``Method::execute`` in ms, ``low`` and ``high`` ends of the 95 %
    interval, ``speedup`` against the experiment ``against``, ``share`` what the ``bottleneck`` (an
    operator category) takes. What an emulated run cannot tell is None.
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


@dataclass(frozen=True)
class Outcome:
    """What has become of a cell.

    ``state`` is ``open`` until all is done, then ``done``; or ``failed`` in ``failed_stage``, with
    the ``error`` in one line. ``problem`` is what makes its figures doubtful. Paths are relative to
    the portfolio. ``files`` has the SHA-256 of what was measured; ``damaged`` says that it was not
    what lay there, and is measured anew.
    """

    cell: Cell
    state: str = "open"
    stages: tuple[Stage, ...] = ()
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
class Accounting:
    """Where the time of a batch went, in seconds, since it was last started.

    ``wall_s`` is from start to end; ``export_s`` and ``measure_s`` the time in which at least one
    export, and else at least one measurement, was at work; ``report_s`` that of analysis and
    reports besides; the rest is ``other_s``.
    """

    wall_s: float
    export_s: float
    measure_s: float
    report_s: float
    other_s: float


@dataclass(frozen=True)
class Portfolio:
    """``portfolio.json``: the matrix, and what has become of its cells."""

    matrix: dict[str, Any]
    updated: str
    outcomes: tuple[Outcome, ...]
    accounting: Accounting | None = None
    schema_version: int = SCHEMA_VERSION
