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
from workbench.export.pte import Pte, read_pte, read_xnnpack_blob, read_xnnpack_graph
from workbench.records.layers import FilePart, Instruction, Layers, Method, Value, XNode, XValue
from workbench.records.runs import Tensor

if TYPE_CHECKING:
    from executorch.exir import ExecutorchProgramManager

Sized = TypeVar("Sized", Value, XValue)

_WIDTHS = {
    "BYTE": 1, "CHAR": 1, "SHORT": 2, "INT": 4, "LONG": 8, "HALF": 2, "FLOAT": 4, "DOUBLE": 8,
    "BOOL": 1, "QINT8": 1, "QUINT8": 1, "QINT32": 4, "BFLOAT16": 2, "BITS16": 2, "FLOAT8E5M2": 1,
    "FLOAT8E4M3FN": 1, "FLOAT8E5M2FNUZ": 1, "FLOAT8E4M3FNUZ": 1, "UINT16": 2, "UINT32": 4,
    "UINT64": 8,
}  # fmt: skip
_DTYPES = {
    "BYTE": "uint8", "CHAR": "int8", "SHORT": "int16", "INT": "int32", "LONG": "int64",
    "HALF": "float16", "FLOAT": "float32", "DOUBLE": "float64",
}  # fmt: skip
_PRODUCTS = frozenset(
    ("Conv2d", "DepthwiseConv2d", "ConvTranspose2d", "FullyConnected", "BatchMatrixMultiply")
)
_KERNELS = frozenset(("convolution", "linear", "mm", "addmm", "bmm"))
_REDUCING = frozenset(("StaticSlice", "GlobalAvgPooling2d"))
_KINDS = {"MoveCall": "move", "JumpFalseCall": "jump", "FreeCall": "free"}


def describe_pte(
    data: bytes | memoryview, where: object = None, *, etrecord: Path | None = None
) -> Layers:
    """The sidecar of any program; with layers if there is an ETRecord, which must be of it."""
    pte = read_pte(data, where)
    methods = tuple(_describe_method(pte, plan) for plan in pte.tables["execution_plan"] or [])
    layers = Layers(hashlib.sha256(data).hexdigest(), methods, list_parts(pte, len(data)))
    return add_etrecord(layers, etrecord) if etrecord else layers


def describe_program(program: ExecutorchProgramManager) -> Layers:
    """The sidecar of an emitted program with its layers, except in the body of control flow."""
    from workbench.export.origins import add_origins

    layers = describe_pte(program.buffer)
    handles, computed = program.debug_handle_map, program.methods
    # Others return constants.
    kept = {n: m for n, m in enumerate(layers.methods) if m.name in computed}
    methods = tuple(
        add_origins(method, program.exported_program(method.name), handles.get(method.name, {}))
        for method in kept.values()
    )
    places: dict[int | None, int | None] = {number: place for place, number in enumerate(kept)}
    file = tuple(replace(part, method=places.get(part.method)) for part in layers.file)
    return replace(layers, methods=methods, file=file)


def read_interface(program: bytes | memoryview) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The inputs and the outputs of a program's first method."""
    plan = read_pte(program, None).tables["execution_plan"][0]
    inputs, outputs = (
        tuple(_argument(*plan["values"][number]["val"]) for number in plan[side] or ())
        for side in ("inputs", "outputs")
    )
    return inputs, outputs


def _argument(kind: str, value: dict[str, Any]) -> Tensor:
    if kind != "Tensor":
        return Tensor(kind.lower(), ())
    tensor, is_dynamic = _tensor(value), value["shape_dynamism"] != "STATIC"
    order = tuple(value["dim_order"] or ())
    return Tensor(tensor.dtype, tensor.shape, dynamic=is_dynamic, dim_order=order)


def count_calls(layers: Layers, kind: str) -> Counter[str]:
    """How often a program's first method calls each ``kernel`` or ``delegate``, by name."""
    return Counter(call.name for call in layers.methods[0].instructions if call.kind == kind)


def list_parts(pte: Pte, size_bytes: int) -> tuple[FilePart, ...]:
    """The parts of a program's file, which has so many bytes."""
    tables = pte.tables
    segments = [segment["size"] for segment in tables["segments"] or []]
    keys = {item["key"]: item["segment_index"] for item in tables["named_data"] or []}
    found: dict[int, list[FilePart]] = {}
    inline: list[FilePart] = []
    for number, plan in enumerate(tables["execution_plan"] or []):
        lists = (each["instructions"] or [] for each in plan["chains"] or [])
        calls = [call["instr_args"] for call in chain(*lists)]
        for at, call in enumerate(calls):
            if not call or call[0] != "DelegateCall" or call[1] is None:
                continue
            delegate = _entry(pte, plan, "delegates", call[1]["delegate_index"])
            place = delegate["processed"] or {}
            part = FilePart("delegate", len(pte.payload(delegate)), number, at)
            if place.get("location") == "SEGMENT":
                found.setdefault(place["index"], [part])
            else:
                inline.append(part)
            if delegate["id"] == "XnnpackBackend":
                for key, value in _named_weights(pte.payload(delegate), pte.where):
                    if keys.get(key, -1) in range(len(segments)):
                        part = FilePart("weights", segments[keys[key]], number, at, value)
                        found.setdefault(keys[key], [part])
    constants = tables["constant_segment"] or {}
    index, starts = constants.get("segment_index", -1), constants.get("offsets") or []
    if starts and index in range(len(segments)) and index not in found:
        found[index] = [*_split_weights(tables, starts, segments[index])]
    kinds = {part["segment_index"]: "state" for part in tables["mutable_data_segments"] or []}
    for number, size in enumerate(segments):
        found.setdefault(number, [FilePart(kinds.get(number, "other"), size)])
    parts = [*chain(*(found[number] for number in range(len(segments)))), *inline]
    program = pte.program_bytes - sum(part.size_bytes for part in inline)
    rest = size_bytes - pte.program_bytes - sum(segments)
    return FilePart("program", program), *parts, FilePart("padding", rest)


def _split_weights(
    tables: dict[str, Any], starts: Sequence[int], size_bytes: int
) -> Iterator[FilePart]:
    """The tensors in the segment with the weights that no delegate has, by where each starts."""
    users: dict[int, tuple[int, int]] = {}
    for number, plan in enumerate(tables["execution_plan"] or []):
        for value, entry in enumerate(plan["values"] or []):
            tensor: dict[str, Any] = entry["val"][1] if entry["val"] else {}
            if "data_buffer_idx" in tensor and tensor["allocation_info"] is None:
                users.setdefault(tensor["data_buffer_idx"], (number, value))
    owners = {start: users.get(buffer) for buffer, start in enumerate(starts)}
    for start, end in pairwise(sorted({0, size_bytes, *(s for s in starts if s < size_bytes)})):
        part = FilePart("weights", end - start)
        owner = owners.get(start)
        yield replace(part, method=owner[0], value=owner[1]) if owner else part


def _named_weights(payload: memoryview, where: object) -> Iterator[tuple[str, int]]:
    """The keys of the data of a delegate's weights and their scales, with the tensor's id."""
    graph = read_xnnpack_graph(payload, where)
    keys = [item["named_key"] or "" for item in graph["constant_data"] or []]
    for union in (item["xvalue_union"] for item in graph["xvalues"] or []):
        tensor: dict[str, Any] = union[1] if union else {}
        quantized = tensor.get("quant_params") or ("", None)
        scales = (quantized[1] or {}).get("scale_buffer_idx", 0)
        tensor = tensor.get("tensor_value") or tensor
        for number in (tensor.get("constant_buffer_idx", 0), scales):
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
    for method in layers.methods:
        constants = [value.shape for value in method.values.values() if value.constant]
        xvalues = (value for each in method.instructions for value in each.xvalues)
        constants += [value.shape for value in xvalues if value.role == "constant"]
        if any(sizes.keys() & set(shape) for shape in constants):
            return None
    methods = [_resize_method(method, sizes) for method in layers.methods]
    both = zip(layers.methods, methods, strict=True)
    calls = (zip(old.instructions, new.instructions, strict=True) for old, new in both)
    fits = all(_scales_alike(*pair) for pair in chain.from_iterable(calls))
    return replace(layers, methods=tuple(methods)) if fits else None


def _scales_alike(old: Instruction, new: Instruction) -> bool:
    """Whether operators of a delegate scale as their inputs do; a size that follows does not."""
    both = zip(old.xvalues, new.xvalues, strict=True)
    growth = {
        a.id: Fraction(math.prod(b.shape), max(1, math.prod(a.shape)))
        for a, b in both
        if a.role != "constant"
    }
    for node in old.xnodes:
        inputs = [growth[number] for number in node.inputs if number in growth]
        fits = {growth[number] for number in node.outputs} <= {*inputs, math.prod(inputs)}
        if not fits and node.type not in _REDUCING:
            return False
    return True


def _resize_method(method: Method, sizes: Mapping[int, int]) -> Method:
    def shrink(value: Sized) -> Sized:
        shape = tuple(sizes.get(count, count) for count in value.shape)
        size_bytes = value.size_bytes * math.prod(shape) // max(1, math.prod(value.shape))
        return replace(value, shape=shape, size_bytes=size_bytes)

    values = {number: shrink(value) for number, value in method.values.items()}
    instructions = []
    for each in method.instructions:
        costs = _kernel_costs(each.name, each.inputs, each.outputs, values)
        tensors = {value.id: shrink(value) for value in each.xvalues}
        nodes = tuple(_resize_node(node, tensors) for node in each.xnodes)
        costs |= {"flops": sum(node.flops for node in nodes)} if nodes else {}
        xvalues = tuple(tensors.values())
        instructions.append(replace(each, **costs, xvalues=xvalues, xnodes=nodes))
    return replace(method, values=values, instructions=tuple(instructions))


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


def _describe_method(pte: Pte, plan: dict[str, Any]) -> Method:
    found = enumerate(plan["values"] or [])
    values = {n: _tensor(v["val"][1]) for n, v in found if v["val"] and v["val"][0] == "Tensor"}
    chains = plan["chains"] or []
    calls = chains[0]["instructions"] or [] if chains else []
    return Method(
        name=plan["name"] or "",
        instructions=tuple(_describe_call(pte, plan, call["instr_args"], values) for call in calls),
        values=values,
        arena_bytes=tuple((plan["non_const_buffer_sizes"] or [0])[1:]),
    )


def _describe_call(
    pte: Pte, plan: dict[str, Any], call: tuple[str, Any] | None, values: dict[int, Value]
) -> Instruction:
    kind, fields = call if call else ("", None)
    if fields is None or kind not in ("KernelCall", "DelegateCall"):
        return Instruction(kind=_KINDS.get(kind, "unknown"))
    arguments = fields["args"] or []
    if kind == "KernelCall":
        operator = _entry(pte, plan, "operators", fields["op_index"])
        return _describe_kernel(plan, operator, arguments, values)
    delegate = _entry(pte, plan, "delegates", fields["delegate_index"])
    return _describe_delegate(pte, delegate, _expand(plan, arguments, values), values)


def _describe_kernel(
    plan: dict[str, Any], operator: dict[str, Any], arguments: list[int], values: dict[int, Value]
) -> Instruction:
    name = ".".join(filter(None, (operator["name"], operator["overload"])))
    # The last argument is what the kernel returns; an out variant has it among the others too.
    outputs = _expand(plan, arguments[-1:], values)
    inputs = [number for number in _expand(plan, arguments[:-1], values) if number not in outputs]
    costs = _kernel_costs(name, inputs, outputs, values)
    return Instruction("kernel", name, tuple(inputs), tuple(outputs), **costs)


def _kernel_costs(
    name: str, inputs: Sequence[int], outputs: Sequence[int], values: dict[int, Value]
) -> dict[str, Any]:
    """Operations of a kernel, and bytes read and written: of a table, the rows looked up."""
    read, written = ([values[number] for number in side] for side in (inputs, outputs))
    looked_up = written if "::embedding" in name else read
    return {
        "flops": kernel_flops(
            name, [each.shape for each in read], [each.shape for each in written]
        ),
        "bytes": sum(each.size_bytes for each in (*looked_up, *written)),
    }


def _describe_delegate(
    pte: Pte, delegate: dict[str, Any], arguments: list[int], values: dict[int, Value]
) -> Instruction:
    is_xnnpack = delegate["id"] == "XnnpackBackend"
    payload = pte.payload(delegate) if is_xnnpack else None
    xvalues, xnodes = read_xnnpack_blob(payload, pte.where) if payload is not None else ((), ())
    returned = sum(value.role == "output" for value in xvalues)
    first = max(len(arguments) - returned, 0)
    return Instruction(
        kind="delegate",
        name=delegate["id"] or "",
        inputs=tuple(arguments[:first]),
        outputs=tuple(arguments[first:]),
        flops=sum(node.flops for node in xnodes) if xnodes else None,
        bytes=sum(values[number].size_bytes for number in arguments),
        xvalues=xvalues,
        xnodes=xnodes,
    )


def _entry(pte: Pte, plan: dict[str, Any], table: str, index: int) -> dict[str, Any]:
    entries = plan[table] or []
    if not 0 <= index < len(entries):
        raise StoreError(f"calls entry {index} of {len(entries)} {table}", where=pte.where)
    return entries[index]


def _tensor(tensor: dict[str, Any]) -> Value:
    scalar, place = str(tensor["scalar_type"]), tensor["allocation_info"]
    shape = tuple(tensor["sizes"] or ())
    return Value(
        dtype=_DTYPES.get(scalar, scalar.lower()),
        shape=shape,
        size_bytes=math.prod(shape) * _WIDTHS.get(scalar, 4),
        constant=place is None and bool(tensor["data_buffer_idx"]),
        arena=place["memory_id"] if place else None,
        offset=place["memory_offset_low"] | place["memory_offset_high"] << 32 if place else None,
    )


def _expand(plan: dict[str, Any], arguments: list[int], values: dict[int, Value]) -> list[int]:
    """The tensors among some arguments, without repetitions; lists of tensors are flattened."""
    entries = plan["values"] or []
    found: list[int] = []
    for number in arguments:
        value = entries[number]["val"] if 0 <= number < len(entries) else None
        if value and value[0] in ("TensorList", "OptionalTensorList"):
            found += value[1]["items"] or []
        else:
            found.append(number)
    return [number for number in dict.fromkeys(found) if number in values]
