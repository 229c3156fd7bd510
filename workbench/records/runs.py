"""What was exported and what was run, as frozen records; ``codec`` takes them to JSON and back.

What a machine can do at most, as records beside those of ``records``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

#: Of all JSON files. A field with a default may be added without a new one.
SCHEMA_VERSION = 2

#: The toggle of a plan that measures every ISA level, each an experiment, the lowest first.
LADDER_TOGGLE = "ladder"


@dataclass(frozen=True)
class Tensor:
    """One input or output of a program; ``file`` beside the ``.pte`` holds an input's raw bytes.

    ``dynamic`` says that the program takes it in smaller sizes too.
    """

    dtype: str
    shape: tuple[int, ...]
    file: str = ""
    sha256: str = ""
    dynamic: bool = False


@dataclass(frozen=True)
class Undelegated:
    """An operator that the partitioner left to the portable kernels, and how often."""

    operator: str
    count: int


@dataclass(frozen=True)
class Partition:
    """An operator of the edge program, how often, and whether a backend took it.

    What was left behind has a ``reason``, the user's line as ``source``, and the paths of its
    ``modules``.
    """

    operator: str
    count: int
    delegated: bool
    reason: str = ""
    source: str = ""
    modules: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fidelity:
    """How far one output of a program is from that of the eager model in its own dtype.

    ``sqnr_db`` is the signal to noise ratio, 10 log10(sum eager^2 / sum difference^2), in dB, and
    None where either sum is zero; ``max_abs`` the largest difference, ``scale`` the largest of the
    model's values. All are None where the two cannot be subtracted (NaN or infinite elsewhere).
    ``constant`` says that the program's output has one value only, and the model's has several;
    ``faithful`` is None for what is no floating-point number: only a person can judge that.
    """

    output: int
    dtype: str
    least_sqnr_db: float
    sqnr_db: float | None = None
    max_abs: float | None = None
    scale: float | None = None
    cosine: float | None = None
    constant: bool = False
    faithful: bool | None = None


@dataclass(frozen=True)
class Export:
    """How a ``.pte`` came about.

    ``problem`` says in one line what is wrong with it, and is empty if nothing is known to be;
    ``options`` what was asked for beyond dtype and backend, and what was done to the graph;
    ``made_from`` tells whether another export would be the same, and ``files`` has the SHA-256 of
    everything that lies beside the program.
    """

    model: str
    dtype: str
    backend: str
    pte: str
    sha256: str
    size_bytes: int
    inputs: tuple[Tensor, ...]
    input_source: str
    outputs: tuple[Tensor, ...]
    delegates: dict[str, int]
    undelegated: tuple[Undelegated, ...]
    versions: dict[str, str]
    seconds: float
    created: str
    etrecord: str = ""
    layers: str = ""
    source: str = ""
    weights: str = ""
    options: dict[str, str] = field(default_factory=dict)
    partition: tuple[Partition, ...] = ()
    fidelity: tuple[Fidelity, ...] = ()
    problem: str = ""
    made_from: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class Experiment:
    """One way to run the program.

    ``isa`` is a level of the ladder, ``isa_off`` further features to hide; ``runner`` is
    ``wheel`` (the native runner), ``python``, or the path of an ``executor_runner``. What comes
    after ``control`` is for that last kind: ``mode`` is ``timing`` or ``xnntrace`` (a build whose
    XNNPACK logs its kernels); ``threads``, ``runs`` and ``warmup`` take the place of the plan's.
    """

    name: str
    isa: str = "native"
    isa_off: tuple[str, ...] = ()
    runner: str = "wheel"
    control: bool = False
    mode: str = "timing"
    threads: tuple[int, ...] = ()
    runs: int = 0
    warmup: int = 0
    extra_args: tuple[str, ...] = ()
    cpu_affinity: tuple[int, ...] = ()


@dataclass(frozen=True)
class Pair:
    """Which two experiments are compared: ``candidate`` against ``baseline``.

    ``threads`` are those of the two; empty: every thread count that both have.
    """

    baseline: str
    candidate: str
    label: str
    threads: tuple[int, ...] = ()


@dataclass(frozen=True)
class Plan:
    """What to measure, and how.

    ``runs`` is the least number of timed inferences per experiment and thread count;
    ``batch_ms`` the length of one batch between two changes of the experiment, 0 for single
    inferences;
    ``processes`` how often every runner is started afresh; ``sampled_ms`` the CPU time for which
    each experiment is sampled, 0 for none.
    With a ``budget_s``, in seconds, restarts go on until the interval of every speed-up is within
    ``precision`` (half its width, relative) or the time is spent; each of ``processes`` restarts
    gets its part of it. At most ``retries`` steps that were disturbed are measured again, after a
    pause of ``cool_down_s``.
    """

    pte: str
    sha256: str
    model: str
    stem: str
    inputs: tuple[Tensor, ...]
    input_source: str
    experiments: tuple[Experiment, ...]
    pairs: tuple[Pair, ...]
    toggle: str = ""
    target: str = "host"
    threads: tuple[int, ...] = (1,)
    runs: int = 50
    warmup: int = 3
    processes: int = 5
    traced_runs: int = 50
    batch_ms: float = 20.0
    sampled_ms: float = 0.0
    timeout_s: float = 120.0
    budget_s: float = 0.0
    precision: float = 0.01
    retries: int = 3
    cool_down_s: float = 1.0


def count_threads(threads: int) -> str:
    """``1 thread``, ``2 threads``."""
    return f"{threads} thread" + ("s" if threads != 1 else "")


@dataclass(frozen=True)
class Batch:
    """Inferences timed in one go, in the order of measurement; times of ``Method::execute``."""

    round: int
    batch: int
    wall_ns: tuple[int, ...]
    cpu_ns: tuple[int, ...]
    preempted: tuple[int, ...]


@dataclass(frozen=True)
class Session:
    """One runner process and all that it measured; ``clock`` says what a lap was.

    ``core`` is the one it was pinned to, None if it was free. Of a runner that cannot be timed
    from outside there are no batches: its latencies are those in the ETDump, without the first
    ``skipped`` ones, which warmed it up; ``log`` is what it printed.
    """

    experiment: str
    threads: int
    process: int
    traced: bool
    masked: tuple[str, ...]
    load_ms: float
    startup_ms: float
    batches: tuple[Batch, ...]
    clock: str = "Method::execute"
    core: int | None = None
    etdump: str = ""
    complete: bool = True
    attempts: int = 1
    skipped: int = 0
    log: str = ""


@dataclass(frozen=True)
class Reading:
    """What the machine told of itself before or after a step; None or empty where it does not.

    ``mhz`` is the median clock of its cores, ``temperature_c`` its warmest zone, ``throttled`` how
    often the kernel throttled it since the start, ``thermal_status`` Android's, from 0 (none).
    """

    time: str
    moment: str
    threads: int
    process: int
    traced: bool
    load: float | None = None
    mhz: float | None = None
    governor: str = ""
    temperature_c: float | None = None
    throttled: int | None = None
    thermal_status: int | None = None


@dataclass(frozen=True)
class Sampling:
    """One runner process that noted which machine code it ran, and traced itself meanwhile.

    ``samples`` and ``etdump`` lie in the run's folder; both are empty, and ``problem`` says why,
    if nothing could be sampled.
    """

    experiment: str
    threads: int
    masked: tuple[str, ...] = ()
    runs: int = 0
    etdump: str = ""
    samples: str = ""
    problem: str = ""


@dataclass(frozen=True)
class Agreement:
    """How far the outputs of two experiments are apart; ``scale`` is the largest |baseline|.

    ``max_abs`` is None where they cannot be subtracted (other shape, NaN at other places).
    """

    baseline: str
    candidate: str
    threads: int
    output: int
    dtype: str
    max_abs: float | None
    scale: float
    tolerance: float
    agree: bool


@dataclass(frozen=True)
class RunRecord:
    """``manifest.json``: everything that was measured, on what, with what.

    ``state`` is ``incomplete`` until all is measured, then ``complete``; or ``failed``. ``export``
    is None for a program of unknown origin.
    """

    plan: Plan
    platform: str
    emulated: bool
    state: str
    started: str
    finished: str
    host: dict[str, Any]
    runner: dict[str, Any]
    versions: dict[str, str]
    sessions: tuple[Session, ...] = ()
    agreements: tuple[Agreement, ...] = ()
    readings: tuple[Reading, ...] = ()
    spent_s: float = 0.0
    samplings: tuple[Sampling, ...] = ()
    export: Export | None = None
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class Probe:
    """A program that shows a ceiling of the machine.

    ``kind`` is ``gemm``, ``stream``, ``read``, ``call`` or ``program``; ``flops`` are those of one
    execution, ``bytes`` what one of its ``operators`` reads and writes. ``ms`` is the time of one
    execution at its best, 0 before it was measured; ``spread`` how much longer another process
    took.
    """

    kind: str
    dtype: str
    flops: int
    bytes: int
    operators: int
    file: str = ""
    ms: float = 0.0
    spread: float = 0.0


@dataclass(frozen=True)
class Ceilings:
    """What a machine can do at most, at one ISA level and thread count."""

    cpu: str
    runner: str
    isa: str
    threads: int
    measured: str
    probes: tuple[Probe, ...]
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class Proof:
    """What samples show of a toggle: ``changed``, ``same``, or ``not shown``.

    ``appeared`` is the share of the candidate's samples in functions that the baseline did not run,
    ``vanished`` the other way round; ``noticed`` is the smallest share that would have shown.
    ``before`` and ``after`` are the classes of machine code by share.
    """

    outcome: str
    appeared: float
    vanished: float
    noticed: float
    samples: tuple[int, int]
    before: dict[str, float]
    after: dict[str, float]
