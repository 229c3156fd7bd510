"""Exports, plans, runs and machine peaks as frozen records; ``codec`` converts them to JSON."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

from workbench.errors import StoreError
from workbench.options import RUNTIMES

SCHEMA_VERSION = 3  #: Version of all JSON files; adding a field with a default does not change it.

#: What an iteration's time includes where the trace is the only source of times.
TRACED_CLOCK = "Method::execute in the ETDump (traced)"
LADDER_TOGGLE = "ladder"  #: The toggle of a plan with one experiment per ISA level, lowest first.


#: The source of inputs that came with a module of the user's process.
GIVEN = "given"


@dataclass(frozen=True)
class Tensor:
    """One input or output of a program; ``file`` beside the ``.pte`` holds an input's raw bytes.

    A ``dynamic`` one accepts smaller sizes too; ``most`` is its largest shape, ``dims`` has the
    names of its dynamic dimensions (empty: fixed). Without a file, its integers are random and less
    than ``below`` (0: 2), or they count up from ``first``. ``dim_order`` lists its dimensions as in
    memory, the outermost first (empty: unknown).
    """

    dtype: str
    shape: tuple[int, ...]
    file: str = ""
    sha256: str = ""
    dynamic: bool = False
    below: int = 0
    first: int | None = None
    most: tuple[int, ...] = ()
    dims: tuple[str, ...] = ()
    dim_order: tuple[int, ...] = ()


@dataclass(frozen=True)
class Undelegated:
    """An operator that was not delegated, and how often."""

    operator: str
    count: int


@dataclass(frozen=True)
class Partition:
    """An operator of the edge program, how often, and whether it was delegated.

    Otherwise it has a ``reason``, the user's line as ``source``, and the paths of its ``modules``.
    """

    operator: str
    count: int
    delegated: bool
    reason: str = ""
    source: str = ""
    modules: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fidelity:
    """The difference between an output of a program and that of the eager model in its own dtype.

    ``sqnr_db`` is the signal to noise ratio, 10 log10(sum eager^2 / sum difference^2), in dB, and
    None where either sum is zero; ``max_abs`` the largest difference, ``scale`` the model's largest
    value. All are None where NaN or infinities differ. ``constant``: the program's output has a
    single value, the model's has several. Of integers, ``differing`` is the part that differs.
    ``faithful`` is None where integers are not judged.
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
    differing: float | None = None


def find_worst(outputs: Iterable[Fidelity]) -> float | None:
    """The signal to noise ratio of the worst output, in dB; None if none has one."""
    ratios = (output.sqnr_db for output in outputs if output.sqnr_db is not None)
    return min(ratios, default=None)


@dataclass(frozen=True)
class LayerNoise:
    """The quantisation noise of a layer of the model, as signal to noise ratios in dB.

    ``own_db`` is that of its output for exact inputs, ``sqnr_db`` that in the quantised program,
    with the noise of all layers before; None without noise. ``operator`` adds most of its noise.
    """

    module: str
    operator: str
    own_db: float
    sqnr_db: float | None


@dataclass(frozen=True)
class Rewrite:
    """What `--rewrite` could replace in a program, which the export has shown to be equal.

    ``nodes`` are operators of the edge program, of whose work the share ``kept`` remains, in
    ``passes`` operators in all (0: not recorded); ``sqnr_db`` compares both results on random
    tensors, and is None where they differ by design. ``parts`` name what is replaced in the trace
    of the model, a part each. ``code`` is what a person would write instead; None: as in the table
    of remedies.
    """

    name: str
    text: str
    nodes: tuple[str, ...]
    kept: float
    sqnr_db: float | None
    passes: int = 0
    parts: tuple[tuple[str, ...], ...] = ()
    code: str | None = None


@dataclass(frozen=True)
class Export:
    """How a ``.pte`` was exported.

    ``problem`` is a one-line description of what is wrong with it, or empty; ``runs`` whether the
    runtime could execute it here; ``noise`` has the noisiest layers of a quantised program.
    ``options`` are the options beyond dtype and backend, and what was done to the graph;
    ``made_from`` identifies the sources of the export, and ``files`` has the SHA-256 of every file
    beside the program. ``spec`` is the model as ``load_model`` takes it, empty for a module;
    ``rewrites`` would make it cheaper; ``missing`` is what this ExecuTorch or PyTorch did not give,
    and why.
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
    runs: bool = True
    noise: tuple[LayerNoise, ...] = ()
    spec: str = ""
    rewrites: tuple[Rewrite, ...] = ()
    #: SHA-256 of the traced graph of the model as its user gave it, without the export's changes:
    #: operators, weights, constants, and the shapes of inputs.
    graph: str = ""
    #: The names of the rewrites that changed this program; none: it is as ExecuTorch exports it.
    rewrite: tuple[str, ...] = ()
    missing: dict[str, str] = field(default_factory=dict)
    #: How it differs from the model as its user has it, and the option that keeps that.
    differences: tuple[str, ...] = ()
    schema_version: int = SCHEMA_VERSION

    @property
    def sqnr_db(self) -> float | None:
        """The signal to noise ratio of the worst output; None if unknown, or without noise."""
        return find_worst(self.fidelity)

    @property
    def changes(self) -> str:
        """Which program it is: as ExecuTorch exports it, or with which rewrites; empty: unknown."""
        if self.rewrite:
            count = f"{len(self.rewrite)} rewrite{'s' * (len(self.rewrite) > 1)}"
            return f"with {count}: {', '.join(self.rewrite)}"
        if self.graph:
            half = "with fp16 convolution weights, which ExecuTorch stores as fp32"
            return half if self.dtype == "fp16w" else "as ExecuTorch exports it"
        earlier = self.options.get("rewritten", "nothing")
        return "" if earlier == "nothing" else f"rewritten: {earlier}"

    @property
    def computed_dtype(self) -> str:
        """In which dtype it computes matrix products."""
        half, integer = {"fp16w": "fp16"}, dict.fromkeys(("int8dyn", "8da4w", "8da4c"), "int8")
        return (half | integer).get(self.dtype, self.dtype)

    @property
    def fault(self) -> str:
        """What is wrong with its outputs, without the likely cause; empty if nothing is."""
        return self.problem.partition("; ")[0].rpartition("model's: ")[2]

    @property
    def settings(self) -> dict[str, Hashable]:
        """How the model was exported."""
        return {
            "dtype": self.dtype,
            "backend": self.backend,
            "rewrite": tuple(sorted(self.rewrite)),
            "sizes": tuple(tensor.most for tensor in self.inputs),
            **{name: self.options.get(name, "") for name in _SETTINGS},
        }


#: Options of an export that its record has among others.
_SETTINGS = ("module_dtypes", "group_size", "channels_last")
#: Packages that make a program.
_TOOLS = ("executorch", "torch", "torchao")


class Identity(NamedTuple):
    """What tells a program and its model from others: of both, the SHA-256.

    That of the model's ``graph`` is empty where it is unknown.
    """

    graph: str
    sha256: str


def same_model(a: Export | Identity, b: Export | Identity) -> bool:
    """Whether two programs are known to be of one model: of one traced graph, or one program."""
    one_program = a.sha256 == b.sha256 and a.sha256.isalnum()  # others' traces have no SHA-256
    return one_program or bool(a.graph and a.graph == b.graph)


def list_differences(a: Export, b: Export) -> set[str]:
    """What differs between the exports of one model, such as ``dtype`` or ``rewrite``."""
    names = {name for name, value in a.settings.items() if b.settings[name] != value}
    return names | {tool for tool in _TOOLS if a.versions.get(tool) != b.versions.get(tool)}


def contrast_models(a: Export | Identity, b: Export | Identity) -> str:
    """What speaks against two programs being of one model; empty if they are known to be."""
    if same_model(a, b):
        return ""
    if a.graph and b.graph:
        return "two models: operators, weights or shapes of inputs differ"
    return "not known whether they are of one model"


@dataclass(frozen=True)
class PlannedProgram:
    """A program to measure, its inputs, and their source.

    ``name`` is unique in a plan, and empty for its first program.
    """

    name: str
    pte: str
    sha256: str
    model: str
    stem: str
    inputs: tuple[Tensor, ...] = ()
    input_source: str = ""


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

    ``isa`` is an ISA level, ``isa_off`` further features to hide; ``weights`` says where starts get
    packed weights from; ``runner`` is ``wheel`` (the native runner; old runs also have ``python``),
    another version of ExecuTorch, or the path of an ``executor_runner``. The fields after
    ``control`` are for the latter: ``mode`` is ``timing`` or ``xnntrace`` (a build whose XNNPACK
    logs its kernels); ``threads``, ``runs`` and ``warmup`` replace the plan's.
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
    program: str = ""
    phase: str = ""
    weights: str = "packed"

    @property
    def has_roof(self) -> bool:
        """Whether its ISA level says all about what it may use: peaks are measured by level."""
        return not (self.isa_off or self.control or self.runner in RUNTIMES)


@dataclass(frozen=True)
class Pair:
    """``candidate`` against ``baseline`` at the ``threads`` of each; empty: all that both have."""

    baseline: str
    candidate: str
    label: str
    threads: tuple[int, ...] = ()


@dataclass(frozen=True)
class Plan:
    """What to measure, and how.

    The first six fields are the first program; ``programs`` are further ones, measured interleaved
    with it. ``runs`` is the minimum number of timed inferences per experiment and thread count;
    ``batch_ms`` the length of a batch (at most 1 000 inferences), 0 for single inferences;
    ``processes`` the number of restarts of every runner, 0 for as many as fit into the seconds of
    `workbench.run.allocation`; ``sampled_ms`` the CPU time for which each experiment is sampled, 0
    for none.
    With a ``budget_s``, in seconds, restarts continue until half the width of every speed-up's
    interval is below ``precision`` (relative) or the time is spent; each of ``processes`` restarts
    gets an equal share. Of a given number without a budget, at most ``retries`` disturbed steps
    are measured again, after a pause of ``cool_down_s``. ``direction`` says which experiments are
    baselines and why, where no toggle does. ``sweep`` is the dimension whose size every phase
    changes. ``starts`` is how often every experiment is started to time its first output. With
    ``every_s``, inferences are also timed at that period, in seconds. ``thread_rules`` has the
    reason for each of ``threads``, if they were chosen by rules.
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
    precision: float = 0.01
    retries: int = 3
    cool_down_s: float = 1.0
    direction: str = ""
    programs: tuple[PlannedProgram, ...] = ()
    phases: tuple[Phase, ...] = ()
    sweep: str = ""
    starts: int = 0
    every_s: float = 0.0
    thread_rules: tuple[str, ...] = ()

    @property
    def all_programs(self) -> tuple[PlannedProgram, ...]:
        """Every program, the first one too."""
        first = PlannedProgram(
            "", self.pte, self.sha256, self.model, self.stem, self.inputs, self.input_source
        )
        return first, *self.programs

    def experiments_at(self, threads: int) -> list[Experiment]:
        """The experiments that are measured with so many threads."""
        return [e for e in self.experiments if threads in (e.threads or self.threads)]

    def program_of(self, experiment: Experiment) -> PlannedProgram:
        """The program that an experiment runs."""
        for program in self.all_programs:
            if program.name == experiment.program:
                return program
        raise StoreError(f"unknown program {experiment.program!r:.60}", where=experiment.name)

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
    """Consecutive timed inferences, in the order of measurement.

    At a rate, ``late_ns`` says how long after it was due each one started. Old runs may have the
    energy that the CPU's packages used meanwhile, in microjoules.
    """

    round: int
    batch: int
    wall_ns: tuple[int, ...]
    cpu_ns: tuple[int, ...]
    preempted: tuple[int, ...]
    energy_uj: int | None = None
    late_ns: tuple[int, ...] = ()


@dataclass(frozen=True)
class Session:
    """One runner process and its measurements; ``clock`` is what an iteration's time includes.

    ``core`` is the core it was pinned to, or None. Custom runners have no batches: their latencies
    are those in the ETDump after the first ``skipped`` ones (warm-up); ``log`` is their output.
    Old runs have ``operator_clock``, the unit of operators' times.
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
    operator_clock: str = ""


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
    masked: tuple[str, ...] = ()
    runs: int = 0
    etdump: str = ""
    samples: str = ""
    problem: str = ""


@dataclass(frozen=True)
class ProcessMemory:
    """Resident memory of a process in bytes, as Linux counts it; all 0 where it is unknown.

    ``anonymous`` (heap, stacks, changed data of libraries), ``files`` (other mapped files),
    ``program`` (pages of the ``.pte``) and ``weights`` (those of packed weights in a file) add up
    to the resident set; ``pss`` divides shared pages among processes; ``peak`` is the largest
    resident set so far.
    """

    anonymous: int = 0
    files: int = 0
    program: int = 0
    weights: int = 0
    pss: int = 0
    peak: int = 0


@dataclass(frozen=True)
class Stage(ProcessMemory):
    """A part of a start, in order, and the memory at its end if that was read.

    ``name`` is ``process``, ``libraries``, ``threads``, ``file``, ``program``, ``arenas``,
    ``method``, ``delegate``, ``operators``, ``weight cache``, ``inputs``, ``first inference`` or
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
    or ``memory``, with its memory read after every stage; old runs also have starts that read the
    program instead of mapping it. ``cached`` is how much of the program's file was in the page
    cache. ``weights`` says whether the file of packed weights was ``mapped``, or its weights
    ``packed``.
    """

    experiment: str
    threads: int
    number: int
    mode: str
    stages: tuple[Stage, ...]
    memory: ProcessMemory = field(default_factory=ProcessMemory)
    cached: float | None = None
    weights: str = ""


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
        "log": trace.log if trace else "",
        "latency_ms": latency_ms,
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
    further programs by name. ``paced`` has inferences at the plan's rate. ``missing`` is what the
    runner's ExecuTorch lacks, by name, and what follows from it. ``model``, ``executorch`` and
    ``results`` are for the scripts of Arm's profiling kit: the first program, the build of
    ExecuTorch, and the experiments.
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
    paced: tuple[Session, ...] = ()
    missing: dict[str, str] = field(default_factory=dict)
    export: Export | None = None
    exports: dict[str, Export] = field(default_factory=dict)
    model: str = ""
    executorch: dict[str, Any] = field(default_factory=dict)
    results: tuple[dict[str, Any], ...] = ()
    schema_version: int = SCHEMA_VERSION

    def export_of(self, program: PlannedProgram) -> Export | None:
        """How one of the plan's programs was exported, if that is known."""
        return self.exports.get(program.name) if program.name else self.export

    def identify(self, program: PlannedProgram) -> Identity:
        """What tells one of the plan's programs and its model from others."""
        export = self.export_of(program)
        return Identity(export.graph if export else "", program.sha256)


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
