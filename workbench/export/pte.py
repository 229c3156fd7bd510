"""What a ``.pte`` and its XNNPACK delegates contain, read from their FlatBuffers.

The layout comes from ExecuTorch's schemas (``.fbs``). Every position is checked: files may come
from untrusted sources. Malformed ones are a ValueError.
"""

import importlib.util
import math
import re
import struct
from collections.abc import Iterator
from functools import cache, partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from workbench.errors import WorkbenchError
from workbench.export.flops import xnode_flops
from workbench.records.layer_sidecar import XNode, XValue

#: The schema language's names for scalars, and those of ``struct``.
SCALARS = {
    "bool": "?", "byte": "b", "int8": "b", "ubyte": "B", "uint8": "B", "short": "h", "int16": "h",
    "ushort": "H", "uint16": "H", "int": "i", "int32": "i", "uint": "I", "uint32": "I",
    "long": "q", "int64": "q", "ulong": "Q", "uint64": "Q", "float": "f", "float32": "f",
    "double": "d", "float64": "d",
}  # fmt: skip

_COMMENT = re.compile(r"//[^\n]*")
_BLOCK = re.compile(r"\b(table|enum|union)\s+(\w+)\s*(?::\s*(\w+)\s*)?\{([^}]*)\}")
_FIELD = re.compile(r"(\w+)\s*:\s*(\[?)\s*(?:\w+\.)*(\w+)\s*\]?\s*(?:=\s*([\w.\-]+))?[^;]*;")

#: By kind (``table``, ``enum``, ``union``) and name: the fields of a table as name, bracket of a
#: vector, type and default; of an enumeration or a scalar, the ``struct`` code and the names of the
#: values; the alias and the table of each choice of a union.
Schema = dict[str, dict[str, Any]]


@cache
def installed_schema(*files: str) -> Schema:
    """The schema in files of the installed ExecuTorch; `WorkbenchError` if one is missing."""
    spec = importlib.util.find_spec("executorch")
    folders = (spec.submodule_search_locations if spec else ()) or ()
    paths = [path for file in files for at in folders if (path := Path(at, file)).is_file()]
    if len(paths) < len(files):
        missing = f"no {' or '.join(files)} in the installed ExecuTorch"
        raise WorkbenchError(missing, hint="reinstall executorch")
    return parse_schema("\n".join(path.read_text() for path in paths))


def parse_schema(text: str) -> Schema:
    """Parse tables, enumerations and unions; nothing else determines the layout."""
    schema: Schema = {"table": {}, "enum": {}, "union": {}}
    schema["enum"] |= {name: (code, {}) for name, code in SCALARS.items()}
    for kind, name, base, body in _BLOCK.findall(_COMMENT.sub("", text)):
        items = [item.strip() for item in body.split(",") if item.strip()]
        if kind == "table":
            schema[kind][name] = _FIELD.findall(body)
        elif kind == "enum":
            names, value = {}, -1
            for item in items:
                label, _, given = map(str.strip, item.partition("="))
                value = int(given, 0) if given else value + 1
                names[value] = label
            schema[kind][name] = SCALARS[base], names
        else:
            pairs = (map(str.strip, item.partition(":")[::2]) for item in items)
            schema[kind][name] = [(alias, table or alias) for alias, table in pairs]
    return schema


def _default(text: str, code: str, names: dict[int, str]) -> Any:
    if names:
        return text or names.get(0, 0)
    if code == "?":
        return text == "true"
    return float(text or "0") if code in "fd" else int(text or "0", 0)


_BYTES = ("b", "B", "?")
_STRUCTS = {code: struct.Struct(f"<{code}") for code in "?bBhHiIqQfd"}


def read_flatbuffer(data: memoryview, schema: Schema, root: str) -> dict[str, Any]:
    """Decode a buffer that starts with the reference to its root, a table ``root``.

    A scalar of an enumeration is its name; an absent string or vector is empty, an absent table or
    union None; a union is ``(alias, table)``; a vector of bytes is a part of ``data``. It is a
    ValueError if a reference leads out of the buffer, or tables share so many bytes that they would
    decode to far more.
    """
    return _Reader(data, schema).table(root, 0)


class _Reader:
    def __init__(self, data: memoryview, schema: Schema):
        self.data, self.size, self.schema = data, len(data), schema
        # Writers may share equal strings and layouts, but not tables.
        self.budget = 4 * self.size + 64

    def table(self, name: str, reference: int) -> dict[str, Any]:
        """The table that the reference at a position leads to."""
        at = self.follow(reference)
        layout = at - self.scalar("i", at)
        length, size = self.scalar("H", layout), self.scalar("H", layout + 2)
        self.require(length >= 4 and size >= 4, layout)
        self.require(layout + length <= self.size and at + size <= self.size, layout)
        self.spend(size, at)
        offsets = struct.unpack_from(f"<{length // 2 - 2}H", self.data, layout + 4)
        self.require(max(offsets, default=0) < size, at)
        # A union has two places, the first for its tag. What is absent is at 0.
        places = chain((offset and at + offset for offset in offsets), repeat(0))
        return {
            field: self.field(bracket, kind, default, places)
            for field, bracket, kind, default in self.schema["table"][name]
        }

    def field(self, bracket: str, kind: str, default: str, places: Iterator[int]) -> Any:
        at = next(places)
        if choices := self.schema["union"].get(kind):
            choice, at = self.scalar("B", at) if at else 0, next(places)
            if not at or not 1 <= choice <= len(choices):
                return None
            alias, table = choices[choice - 1]
            return alias, self.table(table, at)
        code, names = self.schema["enum"].get(kind, ("", {}))
        if bracket:
            return self.vector(kind, code, at) if at else []
        if code:
            value = self.scalar(code, at) if at else _default(default, code, names)
            return names.get(value, value)
        if kind == "string":
            return self.string(at) if at else ""
        return self.table(kind, at) if at else None

    def vector(self, kind: str, code: str, reference: int) -> Any:
        width = _STRUCTS[code or "I"].size
        start, count = self.extent(reference, width)
        if code in _BYTES:
            return self.data[start : start + count]
        self.spend(count * width, start)
        if code:
            return list(struct.unpack_from(f"<{count}{code}", self.data, start))
        read = self.string if kind == "string" else partial(self.table, kind)
        return [read(at) for at in range(start, start + 4 * count, 4)]

    def string(self, reference: int) -> str:
        start, count = self.extent(reference, 1)
        self.spend(count, start)
        return bytes(self.data[start : start + count]).decode("utf-8", "replace")

    def extent(self, reference: int, width: int) -> tuple[int, int]:
        """Start and number of the elements of a vector."""
        at = self.follow(reference)
        count = self.scalar("I", at)
        self.require(at + 4 + count * width <= self.size, at)
        return at + 4, count

    def follow(self, reference: int) -> int:
        target = reference + self.scalar("I", reference)
        self.require(reference < target <= self.size - 4, reference)
        return target

    def scalar(self, code: str, at: int) -> Any:
        self.require(0 <= at <= self.size - _STRUCTS[code].size, at)
        return _STRUCTS[code].unpack_from(self.data, at)[0]

    def spend(self, count: int, at: int) -> None:
        self.budget -= count
        self.require(self.budget >= 0, at)

    def require(self, fine: bool, at: int) -> None:
        if not fine:
            raise ValueError(f"malformed (at byte {at})")


_SCHEMA = ("exir/_serialize/scalar_type.fbs", "exir/_serialize/program.fbs")


def read_pte(data: bytes | memoryview) -> dict[str, Any]:
    """The tables of a program and the ``program_bytes`` of its FlatBuffer; ValueError if malformed.

    Every delegate has its ``payload``, the compiled bytes, and the ``graph`` of XNNPACK.
    """
    data = memoryview(data)
    if len(data) < 12 or data[4:6] != b"ET":
        raise ValueError("not an ExecuTorch program")
    size, base = len(data), 0
    if data[8:12] == b"eh00":
        size, base = struct.unpack_from("<QQ", data, 16) if len(data) >= 32 else (size + 1, 0)
        if size > len(data) or base > len(data):
            raise ValueError("truncated")
    tables = read_flatbuffer(data[:size], installed_schema(*_SCHEMA), "Program")
    for delegate in chain(*(plan["delegates"] for plan in tables["execution_plan"])):
        place = delegate["processed"] or {"location": "", "index": 0}
        if place["location"] == "SEGMENT":
            segment = entry(tables, "segments", place["index"])
            first, last = segment["offset"], segment["offset"] + segment["size"]
            if last > len(data) - base:
                raise ValueError("a delegate is outside the file")
            payload = data[base + first : base + last]
        else:
            payload = entry(tables, "backend_delegate_data", place["index"])["data"]
        delegate["payload"] = memoryview(payload or b"")
        if delegate["id"] == "XnnpackBackend":
            delegate["graph"] = _read_xnnpack(delegate["payload"])
    return tables | {"program_bytes": size}


def entry(tables: dict[str, Any], name: str, index: int) -> dict[str, Any]:
    """An entry of a list of a program."""
    if not 0 <= index < len(tables[name]):
        raise ValueError(f"has no entry {index} in {name}")
    return tables[name][index]


_BLOB_SCHEMA = "backends/xnnpack/serialization/schema.fbs"
#: Fields that hold the id of a value, in the order of a node's operands.
_INPUTS = (
    "input_id", "input1_id", "input2_id", "input3_id", "input4_id", "input5_id", "filter_id",
    "bias_id", "query_id", "key_id", "value_id", "scale_id", "mask_id",
)  # fmt: skip
_OUTPUTS = ("output_id", "output_value_id", "output_index_id")
_NO_VALUE = 2**32 - 1
#: The debug handle of operators that a pass of the exporter added.
NO_HANDLE = 65535
_EXTERNAL = {1: "input", 2: "output"}


def _read_xnnpack(data: memoryview) -> dict[str, Any]:
    first, size = 0, len(data)
    if data[4:8] == b"XH00":
        first, size = struct.unpack_from("<II", data, 10) if size >= 18 else (0, 0)
    if size < 8 or first + size > len(data):
        raise ValueError("an XNNPACK delegate is truncated")
    return read_flatbuffer(data[first : first + size], installed_schema(_BLOB_SCHEMA), "XNNGraph")


def outline_xnnpack(graph: dict[str, Any]) -> tuple[tuple[XValue, ...], tuple[XNode, ...]]:
    """The tensors of a delegate, and its operators in the order of execution.

    Inputs and outputs are listed as the delegate's arguments are, which their ids may not be.
    """
    constants = [constant["size"] for constant in graph["constant_data"]]
    unions = [item["xvalue_union"] for item in graph["xvalues"]]
    values = tuple(_xvalue(union, constants) for union in sorted(unions, key=_argument))
    by_id = {value.id: value for value in values}
    return values, tuple(_xnode(item, by_id) for item in graph["xnodes"])


def _argument(union: tuple[str, Any] | None) -> int:
    """The place of a tensor among a delegate's arguments; -1 for one inside."""
    tensor, _ = xnnpack_tensor(union)
    return int(tensor["external_id"]) if tensor["flags"] & 3 else -1


def xnnpack_tensor(union: tuple[str, Any] | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """A tensor of a delegate, and how it is quantised, if it is."""
    alias, tensor = union or ("", None)
    parameters: dict[str, Any] = {}
    if tensor and alias == "XNNQuantizedTensorValue":
        parameters = (tensor["quant_params"] or ("", {}))[1]
        tensor = tensor["tensor_value"]
    if tensor is None:
        raise ValueError("an XNNPACK delegate lacks a tensor")
    return tensor, parameters


def _xvalue(union: tuple[str, Any] | None, constants: list[int]) -> XValue:
    tensor, parameters = xnnpack_tensor(union)
    dtype = str(tensor["datatype"]).removeprefix("xnn_datatype_")
    shape, number = tuple(tensor["dims"]), tensor["constant_buffer_idx"]
    stored = constants[number] if 0 < number < len(constants) else 0
    bits = re.search(r"\d+$", dtype)
    return XValue(
        id=tensor["id_out"],
        dtype=dtype,
        shape=shape,
        size_bytes=stored or math.prod(shape) * (int(bits[0]) if bits else 32) // 8,
        role="constant" if number else _EXTERNAL.get(tensor["flags"] & 3, ""),
        zero_point=parameters.get("zero_point", 0),
    )


def _xnode(item: dict[str, Any], values: dict[int, XValue]) -> XNode:
    if item["xnode_union"] is None:
        raise ValueError("an XNNPACK delegate has an operator of an unknown kind")
    alias, fields = item["xnode_union"]
    kind = alias.removeprefix("XNN")
    inputs = [fields[name] for name in _INPUTS if name in fields]
    taken = int(kind[-1]) if kind.startswith("Concatenate") else len(inputs)
    inputs = [number for number in inputs[:taken] if number != _NO_VALUE]
    outputs = [fields[name] for name in _OUTPUTS if name in fields]
    if not inputs or not outputs or not values.keys() >= {*inputs, *outputs}:
        raise ValueError(f"the {kind} of an XNNPACK delegate lacks a tensor")
    attributes = {k: _finite(v) for k, v in fields.items() if not k.endswith("_id")}
    bounds, result = item["output_min_max"], values[outputs[0]]
    shapes = [values[number].shape for number in inputs]
    return XNode(
        type=kind,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        attributes=attributes,
        flops=xnode_flops(kind, attributes, shapes, result.shape),
        bytes=sum(values[number].size_bytes for number in {*inputs, *outputs}),
        handle=item["debug_handle"],
        clamp=(_finite(bounds["output_min"]), _finite(bounds["output_max"])) if bounds else None,
        role=_role(kind, item["debug_handle"], values[inputs[0]], result),
    )


def _role(kind: str, handle: int, source: XValue, result: XValue) -> str:
    """The purpose of an operator: to compute, or to change the type or the layout."""
    if kind == "StaticTranspose" and handle == NO_HANDLE:
        return "layout"
    if kind != "Convert":
        return "compute"
    if result.dtype.startswith("q"):
        return "quantize"
    return "dequantize" if source.dtype.startswith("q") else "cast"


def _finite(value: Any) -> Any:
    """A field as JSON: None for infinities and NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
