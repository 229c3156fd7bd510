"""The sidecar of a program: each instruction's operators, shapes, costs and layer."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from workbench.errors import StoreError
from workbench.export.etrecord import add_etrecord
from workbench.export.flops import kernel_flops, xnode_flops
from workbench.export.pte import entry, outline_xnnpack, read_pte, xnnpack_tensor
from workbench.records.exports import Tensor
from workbench.records.layer_sidecar import (
    FilePart,
    Instruction,
    Layers,
    Method,
    Value,
    XNode,
    XValue,
)

if TYPE_CHECKING:
    from executorch.exir import ExecutorchProgramManager

Sized = TypeVar("Sized", Value, XValue)

WIDTHS = {
    "BYTE": 1, "CHAR": 1, "SHORT": 2, "INT": 4, "LONG": 8, "HALF": 2, "FLOAT": 4, "DOUBLE": 8,
    "BOOL": 1, "QINT8": 1, "QUINT8": 1, "QINT32": 4, "BFLOAT16": 2, "BITS16": 2, "FLOAT8E5M2": 1,
    "FLOAT8E4M3FN": 1, "FLOAT8E5M2FNUZ": 1, "FLOAT8E4M3FNUZ": 1, "UINT16": 2, "UINT32": 4,
    "UINT64": 8,
}  # fmt: skip
DTYPES = {
    "BYTE": "uint8", "CHAR": "int8", "SHORT": "int16", "INT": "int32", "LONG": "int64",
    "HALF": "float16", "FLOAT": "float32", "DOUBLE": "float64",
}  # fmt: skip
_PRODUCTS = frozenset(
    ("Conv2d", "DepthwiseConv2d", "ConvTranspose2d", "FullyConnected", "BatchMatrixMultiply")
)
_KERNELS = frozenset(("convolution", "linear", "mm", "addmm", "bmm"))
_REDUCING = frozenset(("StaticSlice", "GlobalAvgPooling2d"))
_KINDS = {"MoveCall": "move", "JumpFalseCall": "jump", "FreeCall": "free"}


def outline_pte(
    data: bytes | memoryview, where: object = None, *, sha256: str = "",
    etrecord: Path | None = None,
) -> Layers:  # fmt: skip
    """The sidecar of any program; with layers if there is an ETRecord, which must be of it.

    Weights are read only for the SHA-256, if that is not given. It is a `StoreError` if the program
    or the ETRecord is malformed.
    """
    try:
        tables = read_pte(data)
        methods = tuple(map(_outline_method, tables["execution_plan"]))
        parts = tuple(list_parts(tables, len(data)))
    except ValueError as error:
        raise StoreError(str(error), where=where, hint="copy or export it again") from None
    layers = Layers(sha256 or hashlib.sha256(data).hexdigest(), methods, parts)
    return add_etrecord(layers, etrecord) if etrecord else layers


def outline_program(program: ExecutorchProgramManager) -> Layers:
    """The sidecar of an emitted program with its layers."""
    from workbench.export.code_lines import Sources
    from workbench.export.origins import add_origins

    layers, sources = outline_pte(program.buffer), Sources()
    handles, computed, logged = program.debug_handle_map, program.methods, program.delegate_map
    # Others return constants.
    called = {n: m for n, m in enumerate(layers.methods) if m.name in computed}
    methods = tuple(
        add_origins(
            method,
            program.exported_program(method.name),
            handles.get(method.name, {}),
            logged.get(method.name, {}),
            sources,
        )
        for method in called.values()
    )
    places: dict[int | None, int | None] = {number: place for place, number in enumerate(called)}
    file = tuple(replace(part, method=places.get(part.method)) for part in layers.file)
    return replace(layers, methods=methods, file=file, sources=sources.read())


def read_interface(program: bytes | memoryview) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The inputs and the outputs of a program's first method."""
    plan = read_pte(program)["execution_plan"][0]

    def read_tensor(number: int) -> Tensor:
        kind, value = plan["values"][number]["val"]
        if kind != "Tensor":
            return Tensor(kind.lower(), ())
        tensor, is_dynamic = _tensor(value), value["shape_dynamism"] != "STATIC"
        order = tuple(value["dim_order"])
        return Tensor(tensor.dtype, tensor.shape, dynamic=is_dynamic, dim_order=order)

    return tuple(map(read_tensor, plan["inputs"])), tuple(map(read_tensor, plan["outputs"]))


def count_calls(layers: Layers, kind: str) -> Counter[str]:
    """How often a program's first method calls each ``kernel`` or ``delegate``, by name."""
    return Counter(call.name for call in layers.methods[0].instructions if call.kind == kind)


def needs_data(program: bytes | memoryview) -> bool:
    """Whether some weights of a program are in another file; ValueError if it is malformed."""
    tables = read_pte(program)
    keys = {item["key"] for item in tables["named_data"]}
    values = (value["val"] for plan in tables["execution_plan"] for value in plan["values"])
    tensors = (value[1] for value in values if value and value[0] == "Tensor")
    places = [tensor["extra_tensor_info"] for tensor in tensors if tensor["extra_tensor_info"]]
    delegates = (each for plan in tables["execution_plan"] for each in plan["delegates"])
    named = (key for each in delegates for key, _ in _named_weights(each.get("graph")))
    return any(place["location"] == "EXTERNAL" for place in places) or not keys.issuperset(named)


def list_parts(tables: dict[str, Any], size_bytes: int) -> Iterator[FilePart]:
    """The parts of a program's file, which has so many bytes."""
    segments = [segment["size"] for segment in tables["segments"]]
    keys = {item["key"]: item["segment_index"] for item in tables["named_data"]}
    # Of each segment; the first user counts.
    parts: dict[int, list[FilePart]] = {}
    inline: list[FilePart] = []
    for number, plan in enumerate(tables["execution_plan"]):
        for at, (kind, call) in enumerate(_calls(plan)):
            if kind != "DelegateCall":
                continue
            delegate = entry(plan, "delegates", call["delegate_index"])
            place = delegate["processed"] or {}
            part = FilePart("delegate", len(delegate["payload"]), number, at)
            if place.get("location") == "SEGMENT":
                parts.setdefault(place["index"], [part])
            else:
                inline.append(part)
            for key, value in _named_weights(delegate.get("graph")):
                if keys.get(key, -1) in range(len(segments)):
                    part = FilePart("weights", segments[keys[key]], number, at, value)
                    parts.setdefault(keys[key], [part])
    constants = tables["constant_segment"] or {"segment_index": -1, "offsets": []}
    index, starts = constants["segment_index"], constants["offsets"]
    if starts and index in range(len(segments)) and index not in parts:
        parts[index] = [*_split_weights(tables, starts, segments[index])]
    kinds = {part["segment_index"]: "state" for part in tables["mutable_data_segments"]}
    yield FilePart("program", tables["program_bytes"] - sum(part.size_bytes for part in inline))
    for number, size in enumerate(segments):
        yield from parts.get(number, [FilePart(kinds.get(number, "other"), size)])
    yield from inline
    yield FilePart("padding", size_bytes - tables["program_bytes"] - sum(segments))


def _split_weights(
    tables: dict[str, Any], starts: Sequence[int], size_bytes: int
) -> Iterator[FilePart]:
    """The tensors in the segment with the weights that no delegate has, by where each starts."""
    owners: dict[int, tuple[int | None, int | None]] = {}
    for number, plan in enumerate(tables["execution_plan"]):
        for value, item in enumerate(plan["values"]):
            tensor: dict[str, Any] = item["val"][1] if item["val"] else {}
            buffer = tensor.get("data_buffer_idx", 0)
            if 0 < buffer < len(starts) and tensor["allocation_info"] is None:
                owners.setdefault(starts[buffer], (number, value))
    for start, end in pairwise(sorted({0, size_bytes, *(s for s in starts if s < size_bytes)})):
        owner = owners.get(start, (None, None))
        yield FilePart("weights", end - start, owner[0], value=owner[1])


def _named_weights(graph: dict[str, Any] | None) -> Iterator[tuple[str, int]]:
    """The keys of the data of a delegate's weights and their scales, with the tensor's id."""
    keys = [item["named_key"] for item in graph["constant_data"]] if graph else []
    for item in graph["xvalues"] if graph else ():
        tensor, parameters = xnnpack_tensor(item["xvalue_union"])
        for number in (tensor["constant_buffer_idx"], parameters.get("scale_buffer_idx", 0)):
            if 0 < number < len(keys) and keys[number]:
                yield keys[number], tensor["id_out"]


def resize(layers: Layers, shapes: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Layers | None:
    """The sidecar for other shapes of the inputs: pairs of the exported, largest one and the new.

    None if a size cannot be told from another dimension, or other sizes follow from it.
    """
    sizes: dict[int, int] = {}
    for most, shape in shapes:
        for large, size in zip(most, shape, strict=True):
            if sizes.setdefault(large, size) != size:
                return None
    sizes = {large: size for large, size in sizes.items() if large != size}
    if not sizes:
        return layers

    def shrink(value: Sized) -> Sized:
        shape = tuple(sizes.get(count, count) for count in value.shape)
        size_bytes = value.size_bytes * math.prod(shape) // max(1, math.prod(value.shape))
        return replace(value, shape=shape, size_bytes=size_bytes)

    methods = []
    for method in layers.methods:
        constants = [value.shape for value in method.values.values() if value.constant]
        inner = (value for call in method.instructions for value in call.xvalues)
        constants += [value.shape for value in inner if value.role == "constant"]
        if any(sizes.keys() & set(shape) for shape in constants):
            return None
        values = {number: shrink(value) for number, value in method.values.items()}
        instructions = []
        for call in method.instructions:
            tensors = {value.id: shrink(value) for value in call.xvalues}
            if not _scale_alike(call, tensors):
                return None
            nodes = tuple(_resize_node(node, tensors) for node in call.xnodes)
            costs = _kernel_costs(call.name, call.inputs, call.outputs, values)
            costs |= {"flops": sum(node.flops for node in nodes)} if nodes else {}
            xvalues = tuple(tensors.values())
            instructions.append(replace(call, **costs, xvalues=xvalues, xnodes=nodes))
        methods.append(replace(method, values=values, instructions=tuple(instructions)))
    return replace(layers, methods=tuple(methods))


def _scale_alike(call: Instruction, tensors: Mapping[int, XValue]) -> bool:
    """Whether operators of a delegate scale as their inputs do; a size that follows does not."""
    growth = {
        value.id: Fraction(math.prod(tensors[value.id].shape), max(1, math.prod(value.shape)))
        for value in call.xvalues
        if value.role != "constant"
    }
    for node in call.xnodes:
        inputs = [growth[number] for number in node.inputs if number in growth]
        fits = {growth[number] for number in node.outputs} <= {*inputs, math.prod(inputs)}
        if not fits and node.type not in _REDUCING:
            return False
    return True


def _resize_node(node: XNode, values: dict[int, XValue]) -> XNode:
    shapes, result = [values[number].shape for number in node.inputs], values[node.outputs[0]]
    flops = xnode_flops(node.type, node.attributes, shapes, result.shape)
    size_bytes = sum(values[number].size_bytes for number in {*node.inputs, *node.outputs})
    return replace(node, flops=flops, bytes=size_bytes)


def count_quantized(layers: Layers) -> tuple[int, int]:
    """How many convolutions and matrix products have quantised weights, and how many there are."""
    operands: list[str] = []
    for instruction in (each for method in layers.methods for each in method.instructions):
        dtypes = {value.id: value.dtype for value in instruction.xvalues}
        nodes = (node for node in instruction.xnodes if node.type in _PRODUCTS)
        operands += [dtypes[node.inputs[1]] for node in nodes]
        operands += [""] * (instruction.name.rpartition("::")[2].split(".")[0] in _KERNELS)
    return sum(dtype.startswith("q") for dtype in operands), len(operands)


def _calls(plan: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The kind and the fields of each instruction of a method."""
    calls = chain.from_iterable(each["instructions"] for each in plan["chains"])
    return [call["instr_args"] or ("", {}) for call in calls]


def _outline_method(plan: dict[str, Any]) -> Method:
    items: list[tuple[str, Any]] = [item["val"] or ("", None) for item in plan["values"]]
    values = {n: _tensor(value) for n, (kind, value) in enumerate(items) if kind == "Tensor"}
    lists = {
        number: value["items"]
        for number, (kind, value) in enumerate(items)
        if kind in ("TensorList", "OptionalTensorList")
    }

    def tensors(arguments: list[int]) -> tuple[int, ...]:
        """The tensors among some arguments, without repetitions, those of lists too."""
        numbers = chain.from_iterable(lists.get(number, (number,)) for number in arguments)
        return tuple(number for number in dict.fromkeys(numbers) if number in values)

    instructions = []
    for kind, call in _calls(plan):
        if kind == "KernelCall":
            operator = entry(plan, "operators", call["op_index"])
            name = ".".join(filter(None, (operator["name"], operator["overload"])))
            # The last argument is what the kernel returns; an out variant has it twice.
            outputs = tensors(call["args"][-1:])
            inputs = tuple(n for n in tensors(call["args"][:-1]) if n not in outputs)
            costs = _kernel_costs(name, inputs, outputs, values)
            instructions.append(Instruction("kernel", name, inputs, outputs, **costs))
        elif kind == "DelegateCall":
            delegate = entry(plan, "delegates", call["delegate_index"])
            instructions.append(_outline_delegate(delegate, tensors(call["args"]), values))
        else:
            instructions.append(Instruction(_KINDS.get(kind, "unknown")))
    return Method(plan["name"], tuple(instructions), values)


def _outline_delegate(
    delegate: dict[str, Any], arguments: tuple[int, ...], values: dict[int, Value]
) -> Instruction:
    graph = delegate.get("graph")
    xvalues, xnodes = outline_xnnpack(graph) if graph else ((), ())
    returned = sum(value.role == "output" for value in xvalues)
    first = max(len(arguments) - returned, 0)
    return Instruction(
        kind="delegate",
        name=delegate["id"],
        inputs=arguments[:first],
        outputs=arguments[first:],
        flops=sum(node.flops for node in xnodes) if xnodes else None,
        bytes=sum(values[number].size_bytes for number in arguments),
        xvalues=xvalues,
        xnodes=xnodes,
    )


def _kernel_costs(
    name: str, inputs: Sequence[int], outputs: Sequence[int], values: dict[int, Value]
) -> dict[str, Any]:
    """Operations of a kernel, and bytes read and written: of a table, the rows looked up."""
    read, written = ([values[number] for number in side] for side in (inputs, outputs))
    looked_up = written if "::embedding" in name else read
    shapes = ([each.shape for each in side] for side in (read, written))
    return {
        "flops": kernel_flops(name, *shapes),
        "bytes": sum(each.size_bytes for each in (*looked_up, *written)),
    }


def _tensor(tensor: dict[str, Any]) -> Value:
    scalar = str(tensor["scalar_type"])
    shape = tuple(tensor["sizes"])
    return Value(
        dtype=DTYPES.get(scalar, scalar.lower()),
        shape=shape,
        size_bytes=math.prod(shape) * WIDTHS.get(scalar, 4),
        constant=tensor["allocation_info"] is None and bool(tensor["data_buffer_idx"]),
    )
