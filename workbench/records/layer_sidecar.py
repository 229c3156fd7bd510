"""The layer sidecar of a program: the origin of each instruction in the model."""

from dataclasses import dataclass, field
from typing import Any

from workbench.records.codec import SCHEMA_VERSION


@dataclass(frozen=True)
class Origin:
    """The origin of an operator in the model.

    ``node`` and ``operator`` are of the exporter's graph; ``module`` is the path of the innermost
    ``nn.Module`` (empty for the model itself), ``module_class`` its class (empty if unknown);
    ``source`` is the user's line as ``file:line``. ``traced`` is the name of the operator in the
    trace of the model that it was lowered from (empty if unknown): passes rename nodes.
    """

    node: str
    operator: str
    module: str = ""
    module_class: str = ""
    source: str = ""
    traced: str = ""


@dataclass(frozen=True)
class Value:
    """A tensor of a method."""

    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    constant: bool = False


@dataclass(frozen=True)
class XValue:
    """A tensor of an XNNPACK delegate.

    ``role`` is ``constant``, ``input``, ``output``, or empty for an intermediate.
    """

    id: int
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    role: str = ""
    zero_point: int = 0


@dataclass(frozen=True)
class XNode:
    """An operator of an XNNPACK delegate, as exported; XNNPACK rewrites these on the device.

    ``inputs`` and ``outputs`` are ids of values, ``clamp`` the bounds of a fused activation.
    ``origins`` number the operators of the model that it computes, the main one first, and
    ``absorbed`` those that are folded into it. One that the exporter added (a layout conversion)
    ``borrows`` the layer of another. ``role`` is ``compute``, ``layout``, ``quantize``,
    ``dequantize`` or ``cast``.
    """

    type: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attributes: dict[str, Any]
    flops: int
    bytes: int
    handle: int
    clamp: tuple[float | None, float | None] | None = None
    role: str = "compute"
    origins: tuple[int, ...] = ()
    absorbed: tuple[int, ...] = ()
    borrows: int | None = None

    @property
    def is_pointwise(self) -> bool:
        """Whether it is a convolution that XNNPACK runs as a matrix product."""
        get = self.attributes.get
        padding = any(get(f"padding_{side}") for side in ("top", "left", "bottom", "right"))
        ones = ("kernel_height", "kernel_width", "subsampling_height", "subsampling_width")
        is_one = self.type == "Conv2d" and all(get(name) == 1 for name in (*ones, "groups"))
        channels = get("group_input_channels", 0) + get("group_output_channels", 0)
        return is_one and not padding and channels > 2


@dataclass(frozen=True)
class Instruction:
    """One instruction of a method.

    ``name`` is the kernel's (``aten::mean.out``) or the backend's; ``inputs`` and ``outputs``
    number values of the method; ``flops`` is None if unknown. ``xvalues`` and ``xnodes`` are those
    of an XNNPACK delegate; for other delegates, ``events`` number the origins by the integer or
    name that the delegate logs.
    """

    kind: str
    name: str = ""
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    origin: int | None = None
    flops: int | None = None
    bytes: int = 0
    xvalues: tuple[XValue, ...] = ()
    xnodes: tuple[XNode, ...] = ()
    events: dict[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Method:
    """A method of a program; ``modules`` has the class of every module by its path."""

    name: str
    instructions: tuple[Instruction, ...]
    values: dict[int, Value]
    origins: tuple[Origin, ...] = ()
    modules: dict[str, str] = field(default_factory=dict)

    @property
    def event_count(self) -> int:
        """How many events a trace has of an inference; loops have more."""
        inner = (len(i.xnodes or i.events) or i.kind == "kernel" for i in self.instructions)
        return 2 + len(self.instructions) + sum(inner)


@dataclass(frozen=True)
class FilePart:
    """A part of a program's file.

    ``kind`` is ``program`` (the FlatBuffer), ``delegate`` (a delegate's graph), ``weights``,
    ``state`` (initial values), ``other`` or ``padding``. ``instruction`` of the method numbered
    ``method`` is the first one that uses it, and ``value`` the tensor that has its values: of the
    delegate, or of the method if no instruction is given.
    """

    kind: str
    size_bytes: int
    method: int | None = None
    instruction: int | None = None
    value: int | None = None


@dataclass(frozen=True)
class Layers:
    """``<program>.pte.layers.json``: the origin of each instruction of a program in the model.

    A sidecar that was read from the program alone has operators but no origins. The parts in
    ``file`` add up to the program's size. ``sources`` has the text around the lines of the origins,
    by file, as blocks of lines by the number of their first one: the cell or file may change.
    """

    sha256: str
    methods: tuple[Method, ...]
    file: tuple[FilePart, ...] = ()
    sources: dict[str, dict[int, str]] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    @property
    def has_modules(self) -> bool:
        """Whether the layers are known."""
        return any(method.modules for method in self.methods)
