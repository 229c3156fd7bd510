"""The operators of a program as one graph, across delegates."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from workbench.records.layer_sidecar import Instruction, Method, Origin, Value, XNode

#: A tensor: of the method by its number, or of a delegate by its instruction and id.
TensorId = tuple[int, int]
#: An operator: its instruction, and its number in the delegate (-1: a kernel).
NodeId = tuple[int, int]

_METHOD = -1
_RANDOM = frozenset({"rand", "randn", "native_dropout", "bernoulli", "multinomial"})
#: Layers of PyTorch whose operators the user cannot change.
SEALED = ("LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell")
#: Operators of a delegate with constant weights.
WEIGHTED = ("Conv2d", "FullyConnected", "ConvTranspose2d", "DepthwiseConv2d")
#: Operators that treat every element alike: a layout conversion commutes with them.
POINTWISE = frozenset(
    """
    Abs Add Ceiling Clamp Divide Elu Exp Floor Gelu Hardswish LeakyReLU Log Maximum Minimum
    Multiply Negate ReciprocalSquareRoot Sigmoid Square SquareRoot Subtract Tanh Convert
    abs add clamp div elu eq exp gelu hardtanh leaky_relu logical_and logical_not mul neg pow
    relu rsqrt sigmoid sqrt sub tanh where _to_dim_order_copy
    """.split()  # noqa: SIM905
)


@dataclass(frozen=True)
class FlowStep:
    """An operator of the program as exported: a kernel, or a node of an XNNPACK delegate.

    ``type`` is the delegate's (``Conv2d``) or the kernel's name without namespace and overload.
    """

    id: NodeId
    type: str
    reads: tuple[TensorId, ...]
    writes: tuple[TensorId, ...]
    origin: Origin | None = None
    xnode: XNode | None = None

    @property
    def is_kernel(self) -> bool:
        """Whether it runs outside any delegate."""
        return self.xnode is None

    @property
    def has_weights(self) -> bool:
        """Whether it is a layer of a delegate with constant weights."""
        return self.type in WEIGHTED

    @property
    def is_pointwise(self) -> bool:
        """Whether it treats every element alike."""
        return self.type in POINTWISE

    @property
    def made_up(self) -> bool:
        """Whether the exporter inserted it to convert the layout."""
        return self.xnode is not None and self.xnode.role == "layout"

    @property
    def permutation(self) -> tuple[int, ...] | None:
        """The order of dimensions of a transpose in a delegate; None for anything else."""
        if self.type != "StaticTranspose" or self.xnode is None:
            return None
        return tuple(self.xnode.attributes.get("perm") or ())


class Dataflow:
    """The operators of a method in the order in which they run, and the tensors between them."""

    def __init__(self, method: Method):
        self.method = method
        self.tensors: dict[TensorId, Value] = {
            (_METHOD, number): value for number, value in method.values.items()
        }
        self.steps = [
            step
            for number, instruction in enumerate(method.instructions)
            for step in self._read(number, instruction)
        ]
        self.by_id = {step.id: step for step in self.steps}
        self.makers = {tensor: step for step in self.steps for tensor in step.writes}
        self.users: dict[TensorId, list[FlowStep]] = defaultdict(list)
        for step in self.steps:
            for tensor in dict.fromkeys(step.reads):
                self.users[tensor].append(step)

    @cached_property
    def fixed(self) -> frozenset[NodeId]:
        """The operators that compute the same at every inference, from constants alone.

        None in a program with control flow, or with sizes computed at run time.
        """
        for instruction in self.method.instructions:
            # It jumps, or computes a number rather than a tensor.
            computes_number = instruction.kind == "kernel" and not instruction.outputs
            if instruction.kind == "jump" or computes_number:
                return frozenset()
        constants = {tensor_id for tensor_id, tensor in self.tensors.items() if tensor.constant}
        steps = set()
        for step in self.steps:
            if step.type not in _RANDOM and constants.issuperset(step.reads):
                constants.update(step.writes)
                steps.add(step.id)
        return frozenset(steps)

    def before(self, step: FlowStep) -> list[FlowStep]:
        """The operators whose results a step reads."""
        makers = (self.makers.get(tensor) for tensor in step.reads)
        return list({maker.id: maker for maker in makers if maker}.values())

    def after(self, step: FlowStep) -> list[FlowStep]:
        """The operators that read a step's results."""
        users = (user for tensor in step.writes for user in self.users[tensor])
        return list({user.id: user for user in users}.values())

    def neighbours(self, step: FlowStep) -> list[FlowStep]:
        """The operators before and after a step."""
        return self.before(step) + self.after(step)

    def returns(self, step: FlowStep) -> bool:
        """Whether some result of a step is an output of the program."""
        return any(not self.users[tensor] for tensor in step.writes)

    def _read(self, number: int, instruction: Instruction) -> Iterator[FlowStep]:
        inputs, outputs = (
            tuple((_METHOD, value) for value in side)
            for side in (instruction.inputs, instruction.outputs)
        )
        if instruction.kind == "kernel":
            name = instruction.name.rpartition("::")[2].partition(".")[0]
            yield FlowStep((number, -1), name, inputs, outputs, self._origin(instruction.origin))
        elif instruction.xnodes:
            ids_of = self._tensor_ids(number, instruction)
            for index, node in enumerate(instruction.xnodes):
                reads, writes = (
                    tuple(ids_of[value] for value in side) for side in (node.inputs, node.outputs)
                )
                origin = self._origin(node.origins[0] if node.origins else None)
                yield FlowStep((number, index), node.type, reads, writes, origin, node)
        elif instruction.kind == "delegate":
            yield FlowStep((number, -1), instruction.name, inputs, outputs)

    def _tensor_ids(self, number: int, delegate: Instruction) -> dict[int, TensorId]:
        """The delegate's tensors by id; those outside of it are listed as its arguments are."""
        ids_of = {}
        for value in delegate.xvalues:
            ids_of[value.id] = (number, value.id)
            self.tensors[number, value.id] = Value(
                value.dtype, value.shape, value.size_bytes, value.role == "constant"
            )
        for role, arguments in (("input", delegate.inputs), ("output", delegate.outputs)):
            values = [value for value in delegate.xvalues if value.role == role]
            if len(values) == len(arguments):
                pairs = zip(values, arguments, strict=True)
                ids_of |= {value.id: (_METHOD, number) for value, number in pairs}
        return ids_of

    def _origin(self, number: int | None) -> Origin | None:
        return None if number is None else self.method.origins[number]


def instruction_of(key: str) -> int:
    """The instruction number in a ledger key; -1 for another chain or method."""
    number = key.partition("/")[0]
    return int(number) if number.isdecimal() else -1
