"""Exports as frozen records."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from workbench.records.codec import SCHEMA_VERSION

#: Options of an export that its record has among others.
_SETTINGS = ("module_dtypes", "group_size", "channels_last")


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
    ``faithful`` is None where integers are not judged. Of ``elements`` (None: not recorded),
    ``nan`` and ``infinite`` are counts in the program's output, ``model_nan`` and
    ``model_infinite`` in the model's.
    """

    output: int
    dtype: str
    least_sqnr_db: float
    sqnr_db: float | None = None
    max_abs: float | None = None
    scale: float | None = None
    constant: bool = False
    faithful: bool | None = None
    differing: float | None = None
    elements: int | None = None
    nan: int = 0
    infinite: int = 0
    model_nan: int = 0
    model_infinite: int = 0


def find_worst(outputs: Iterable[Fidelity]) -> float | None:
    """The signal to noise ratio of the worst output, in dB; None if none has one."""
    ratios = (output.sqnr_db for output in outputs if output.sqnr_db is not None)
    return min(ratios, default=None)


@dataclass(frozen=True)
class Cause:
    """The first operator of a program whose values are no numbers, or differ from PyTorch's.

    ``source`` is the user's line; ``sqnr_db`` compares the values, and is None where some are no
    numbers.
    """

    operator: str
    source: str
    sqnr_db: float | None = None


@dataclass(frozen=True)
class Cure:
    """Rewrites that may make a wrong program right."""

    rewrites: tuple[str, ...]


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

    ``nodes`` are operators of the trace, of whose work the share ``kept`` remains, in ``passes``
    operators in all (0: not recorded), of so many ``flops``; ``sqnr_db`` compares both results on
    random tensors, and is None where they differ by design. ``parts`` name what is replaced in the
    trace of the model, a part each. ``code`` is what a person would write instead; None: as in the
    table of remedies.
    """

    #: The remedy that makes two programs of a model, which no export applies.
    SPLIT: ClassVar[str] = "split"

    name: str
    text: str
    nodes: tuple[str, ...]
    kept: float
    sqnr_db: float | None
    passes: int = 0
    parts: tuple[tuple[str, ...], ...] = ()
    code: str | None = None
    flops: float = 0.0


@dataclass(frozen=True)
class Cone:
    """Operators of the trace that depend on the same inputs and buffers, which are written.

    None of either: on constants alone. ``states`` are the buffers whose new values depend on these.
    """

    inputs: tuple[str, ...]
    buffers: tuple[str, ...] = ()
    random: bool = False
    nodes: tuple[str, ...] = ()
    states: tuple[str, ...] = ()


@dataclass(frozen=True)
class Export:
    """How a ``.pte`` was exported.

    ``problem`` is a one-line description of what is wrong with it, or empty; ``runs`` whether the
    runtime could execute it here; ``cause`` is where its outputs go wrong, or stop being numbers,
    ``cure`` what may avoid that; ``noise`` has the noisiest layers of a quantised program.
    ``options`` are the options beyond dtype and backend, and what was done to the graph;
    ``made_from`` identifies the sources of the export, and ``files`` has the SHA-256 of every file
    beside the program. ``spec`` is the model as ``load_model`` takes it, empty for a module;
    ``rewrites`` would make it cheaper; ``missing`` is what this ExecuTorch or PyTorch did not give,
    and why. ``dependence`` is what its operators depend on (empty: not recorded); ``staying`` are
    the inputs that stay between calls, guessed from what the graph computes.
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
    cause: Cause | None = None
    cure: Cure | None = None
    dependence: tuple[Cone, ...] = ()
    staying: tuple[str, ...] = ()
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
        return ""

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


#: Packages that make a program.
_TOOLS = ("executorch", "torch", "torchao")


class Identity(NamedTuple):
    """What tells a measured program from others: SHA-256 of its model's ``graph`` and of itself.

    ``program`` has its name and the first digits; ``fault`` is what is wrong with its outputs. What
    is unknown is empty.
    """

    graph: str
    sha256: str
    program: str = ""
    device: str = ""
    build: str = ""
    fault: str = ""

    @property
    def axes(self) -> dict[str, str]:
        """What two measurements must have in common, unless it may differ."""
        return {"program": self.program, "device": self.device, "build": self.build}


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
