"""Plans, runs and machine peaks as frozen records; ``codec`` converts them to JSON."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from workbench.errors import StoreError
from workbench.options import RUNTIMES
from workbench.records.codec import SCHEMA_VERSION
from workbench.records.exports import Export, Tensor
from workbench.wording import format_share

#: What an iteration's time includes where the trace is the only source of times.
TRACED_CLOCK = "Method::execute in the ETDump (traced)"
LADDER_TOGGLE = "ladder"  #: The toggle of a plan with one experiment per ISA level, lowest first.

#: The source of inputs that came with a module of the user's process.
GIVEN = "given"
#: The source of a model that was given as its ExportedProgram.
EXPORTED = "the exported program"


@dataclass(frozen=True)
class PlannedProgram:
    """A program to measure, its inputs, and their source.

    ``name`` is unique in a plan, and empty for its first program. ``data`` is the file of its
    weights, if they are not in the program.
    """

    name: str
    pte: str
    sha256: str
    model: str
    stem: str
    inputs: tuple[Tensor, ...] = ()
    input_source: str = ""
    data: str = ""
    data_sha256: str = ""


@dataclass(frozen=True)
class Phase:
    """A named set of inputs of a program that keeps a state, such as a language model's cache.

    Each set in ``before`` is executed once, in order, to fill the state. Of a language model,
    ``tokens`` are computed at once, after ``position`` earlier ones; 0 tokens: other inputs.
    ``size`` is that of the plan's ``sweep``; ``method`` that of the program, if not ``forward``.
    """

    name: str
    inputs: tuple[Tensor, ...]
    before: tuple[tuple[Tensor, ...], ...] = ()
    tokens: int = 0
    position: int = 0
    size: int = 0
    method: str = ""


@dataclass(frozen=True)
class Experiment:
    """One way to run a program, of the plan's the one named ``program``, in the one ``phase``.

    ``isa`` is an ISA level; ``runner`` is ``wheel`` (the native runner), another runtime, or empty
    where another tool ran it.
    """

    name: str
    isa: str = "native"
    runner: str = "wheel"
    control: bool = False
    program: str = ""
    phase: str = ""

    @property
    def has_roof(self) -> bool:
        """Whether its ISA level says all about what it may use: peaks are measured by level."""
        return not (self.control or self.runner in RUNTIMES)


@dataclass(frozen=True)
class Pair:
    """``candidate`` against ``baseline``, at each thread count that both have."""

    baseline: str
    candidate: str
    label: str


@dataclass(frozen=True)
class Plan:
    """What to measure, and how.

    The first six fields, ``data`` and ``data_sha256`` are the first program; ``programs`` are
    further ones, measured interleaved with it. ``runs`` is the minimum number of timed inferences
    per experiment and thread count; ``batch_ms`` the length of a batch (at most 1 000 inferences),
    0 for single inferences; ``processes`` the number of restarts of every runner, 0 for as many as
    fit into the seconds of `workbench.run.allocation`; ``sampled_ms`` the CPU time for which each
    experiment is sampled, 0 for none.
    With a ``budget_s``, in seconds, restarts continue until the time is spent; each of
    ``processes`` restarts gets an equal share. ``direction`` says which experiments are baselines
    and why, where no toggle does. ``sweep`` is the dimension whose size every phase changes.
    ``starts`` is how often every experiment is started to time its first output. ``thread_rules``
    has the reason for each of ``threads``, if they were chosen by rules. ``label`` is what a person
    calls the run. ``constant`` inputs stay between calls, as the user says.
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
    batch_ms: float = 10.0
    sampled_ms: float = 0.0
    timeout_s: float = 120.0
    budget_s: float = 0.0
    direction: str = ""
    programs: tuple[PlannedProgram, ...] = ()
    phases: tuple[Phase, ...] = ()
    sweep: str = ""
    starts: int = 0
    thread_rules: tuple[str, ...] = ()
    data: str = ""
    data_sha256: str = ""
    label: str = ""
    constant: tuple[str, ...] = ()

    @property
    def all_programs(self) -> tuple[PlannedProgram, ...]:
        """Every program, the first one too."""
        first = PlannedProgram(
            "", self.pte, self.sha256, self.model, self.stem, self.inputs, self.input_source,
            self.data, self.data_sha256,
        )  # fmt: skip
        return first, *self.programs

    def program_of(self, experiment: Experiment) -> PlannedProgram:
        """The program that an experiment runs."""
        for program in self.all_programs:
            if program.name == experiment.program:
                return program
        raise StoreError(f"unknown program {experiment.program!r:.60}", where=experiment.name)

    @property
    def is_ladder(self) -> bool:
        """Whether it has an experiment for every ISA level, the lowest first."""
        return self.toggle == LADDER_TOGGLE

    def phase_of(self, experiment: Experiment) -> Phase:
        """The phase in which an experiment runs; without phases, its program's inputs."""
        for phase in self.phases:
            if phase.name == experiment.phase:
                return phase
        if experiment.phase:
            raise StoreError(f"unknown phase {experiment.phase!r:.60}", where=experiment.name)
        return Phase("", self.program_of(experiment).inputs)


@dataclass(frozen=True)
class Batch:
    """Consecutive timed inferences, in the order of measurement."""

    round: int
    batch: int
    wall_ns: tuple[int, ...]
    cpu_ns: tuple[int, ...]
    preempted: tuple[int, ...]


@dataclass(frozen=True)
class Session:
    """One runner process and its measurements; ``clock`` is what an iteration's time includes.

    ``core`` is the core it was pinned to, or None. Those of other tools have no batches: their
    latencies are those in the ETDump after the first ``skipped`` ones (warm-up).
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
    skipped: int = 0


@dataclass(frozen=True)
class Reading:
    """The machine's state before or after a step; None or empty where unknown.

    ``mhz`` is the median clock of its cores, ``temperature_c`` its hottest zone, ``throttled`` the
    kernel's count of throttling events, ``thermal_status`` Android's, from 0 (none).
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
    """One runner process that was sampled and traced.

    ``samples`` and ``etdump`` are files in the run's folder; the trace goes once the operators of
    the samples are known. If sampling failed, both are empty and ``problem`` is the reason.
    """

    experiment: str
    threads: int
    runs: int = 0
    etdump: str = ""
    samples: str = ""
    problem: str = ""


@dataclass(frozen=True)
class ProcessMemory:
    """Resident memory of a process in bytes, as Linux counts it; all 0 where it is unknown.

    ``anonymous`` (heap, stacks, changed data of libraries), ``files`` (other mapped files) and
    ``program`` (pages of the ``.pte``) add up to the resident set; ``pss`` divides shared pages
    among processes; ``peak`` is the largest resident set so far.
    """

    anonymous: int = 0
    files: int = 0
    program: int = 0
    pss: int = 0
    peak: int = 0


@dataclass(frozen=True)
class Stage(ProcessMemory):
    """A part of a start, in order, and the memory at its end if that was read.

    ``name`` is ``process``, ``libraries``, ``threads``, ``file``, ``program``, ``arenas``,
    ``method``, ``delegate``, ``operators``, ``inputs``, ``first inference`` or
    ``later inference``; ``cpu_ns`` is the CPU time in it, of all threads (-1 where unknown),
    ``bytes`` what it allocated, where the runner counts it, ``heap`` what malloc has given out,
    ``unwritten`` the pages of it that were never written, and ``kept`` what malloc holds back for
    later (``heap`` and ``kept`` are -1 where unknown). ``unused`` are pages of the arenas
    that are still zero (-1 where that was not read).
    """

    name: str = ""
    ns: int = 0
    cpu_ns: int = -1
    bytes: int = 0
    heap: int = -1
    kept: int = -1
    unwritten: int = 0
    unused: int = -1


@dataclass(frozen=True)
class Start:
    """A process from its exec to its first output.

    ``mode`` is ``time``; ``cold``, with the files that it maps dropped from the page cache before;
    or ``memory``, with its memory read after every stage.
    """

    experiment: str
    threads: int
    number: int
    mode: str
    stages: tuple[Stage, ...]
    memory: ProcessMemory = field(default_factory=ProcessMemory)

    @property
    def until_output(self) -> tuple[Stage, ...]:
        """The stages up to the first output."""
        ends = (number for number, s in enumerate(self.stages, 1) if s.name == "first inference")
        return self.stages[: next(ends, len(self.stages))]


@dataclass(frozen=True)
class Agreement:
    """The difference between outputs of two experiments; ``scale`` is the largest |baseline|.

    ``max_abs`` is None where they cannot be subtracted (different shapes or positions of NaN).
    Outputs of two programs are held to a signal to noise ratio, and those that cannot be judged
    have a ``note`` that says why.
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
    sqnr_db: float | None = None
    least_sqnr_db: float | None = None
    note: str = ""


def kit_result(
    experiment: str,
    threads: int,
    runs: int,
    trace: Session | None,
    latency_ms: Sequence[float] = (),
    clock: str = "",
) -> dict[str, Any]:
    """An experiment as the scripts of Arm's profiling kit read it, in ``results`` of two files.

    ``latency_ms`` are times of single inferences by a ``clock``, without warm-up; only
    ``metrics.json`` has them.
    """
    metrics = {
        "threads": threads,
        "runs": runs,
        "etdump": trace.etdump if trace else "",
        "log": "",
        "latency_ms": [*latency_ms],
        "median_ms": median(latency_ms) if latency_ms else None,
        "min_ms": min(latency_ms, default=None),
        "max_ms": max(latency_ms, default=None),
        "clock": clock or None,
    }
    return {"experiment": experiment, "metrics": metrics}


@dataclass(frozen=True)
class RunRecord:
    """``manifest.json``: all measurements of a run, its machine and its runner.

    ``state`` is ``incomplete`` until everything is measured, then ``complete``; or ``failed``.
    ``export`` is that of the first program, None if its origin is unknown; ``exports`` has those of
    further programs by name. ``missing`` is what the runner's ExecuTorch lacks, by name, and what
    follows from it. ``model``, ``executorch`` and ``results`` are for the scripts of Arm's
    profiling kit: the first program, the build of ExecuTorch, and the experiments.
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
    starts: tuple[Start, ...] = ()
    missing: dict[str, str] = field(default_factory=dict)
    export: Export | None = None
    exports: dict[str, Export] = field(default_factory=dict)
    model: str = ""
    executorch: dict[str, Any] = field(default_factory=dict)
    results: tuple[dict[str, Any], ...] = ()
    schema_version: int = SCHEMA_VERSION

    @property
    def counted(self) -> tuple[Session, ...]:
        """The complete sessions."""
        return tuple(s for s in self.sessions if s.complete)

    def export_of(self, program: PlannedProgram) -> Export | None:
        """How one of the plan's programs was exported, if that is known."""
        return self.exports.get(program.name) if program.name else self.export


@dataclass(frozen=True)
class Note:
    """What a person wrote about a run, and when."""

    time: str
    text: str


@dataclass(frozen=True)
class Notes:
    """``notes.json`` of a run."""

    notes: tuple[Note, ...] = ()
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class Probe:
    """A program that reaches a peak of the machine.

    ``kind`` is ``gemm``, ``stream``, ``read``, ``call`` or ``program``; ``flops`` are those of one
    execution, ``bytes`` those that one of its ``operators`` reads and writes. ``ms`` is the
    shortest execution, 0 before measuring; ``spread`` how much longer the second best process took.
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
    """A machine's peaks at one ISA level and thread count."""

    cpu: str
    runner: str
    isa: str
    threads: int
    measured: str
    probes: tuple[Probe, ...]
    schema_version: int = SCHEMA_VERSION

    @property
    def spread(self) -> float:
        """How much longer another process took, at most."""
        return max(p.spread for p in self.probes if p.kind in ("gemm", "stream"))


@dataclass(frozen=True)
class Proof:
    """The effect of a toggle on the samples: ``changed``, ``same``, or ``not shown``.

    ``appeared`` is the share of the candidate's samples in functions that the baseline did not run,
    ``vanished`` the reverse; ``noticed`` is the smallest detectable share. ``before`` and ``after``
    are the classes of machine code by share.
    """

    outcome: str
    appeared: float
    vanished: float
    noticed: float
    samples: tuple[int, int]
    before: dict[str, float]
    after: dict[str, float]

    @property
    def classes(self) -> tuple[str, str]:
        """The two most frequent classes of both sides, with their shares of the samples."""
        return _name_classes(self.before), _name_classes(self.after)


def _name_classes(shares: dict[str, float]) -> str:
    return ", ".join(f"{format_share(share)} {code}" for code, share in [*shares.items()][:2])
