"""What a ``.pte`` and its XNNPACK delegates contain, read from their FlatBuffers.

The layout comes from ExecuTorch's schemas (``.fbs``). Every position is checked: files may come
from untrusted sources.
"""

import importlib.util
import math
import re
import struct
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from workbench.errors import StoreError, WorkbenchError
from workbench.export.flops import xnode_flops
from workbench.records.layers import XNode, XValue

#: The schema language's names for scalars, and those of ``struct``.
SCALARS = {
    "bool": "?", "byte": "b", "int8": "b", "ubyte": "B", "uint8": "B", "short": "h", "int16": "h",
    "ushort": "H", "uint16": "H", "int": "i", "int32": "i", "uint": "I", "uint32": "I",
    "long": "q", "int64": "q", "ulong": "Q", "uint64": "Q", "float": "f", "float32": "f",
    "double": "d", "float64": "d",
}  # fmt: skip

_COMMENT = re.compile(r"//[^\n]*")
_BLOCK = re.compile(r"\b(table|enum|union)\s+(\w+)\s*(?::\s*(\w+)\s*)?\{([^}]*)\}")
_FIELD = re.compile(r"(\w+)\s*:\s*(\[?)\s*([\w.]+)\s*\]?\s*(?:=\s*([\w.\-]+))?[^;]*;")


class Field(NamedTuple):
    """One field of a table.

    ``kind`` is ``scalar``, ``string``, ``table`` or ``union``, with an ``s`` if in a vector;
    ``type`` is the ``struct`` code of a scalar, or the name of a table or union.
    """

    name: str
    slot: int
    kind: str
    type: str
    default: Any = None
    enum: dict[int, str] | None = None


class Schema(NamedTuple):
    """Tables by name with their fields; unions by name with their ``(alias, table)`` choices."""

    tables: dict[str, tuple[Field, ...]]
    unions: dict[str, tuple[tuple[str, str], ...]]


@cache
def installed_schema(*files: str) -> Schema:
    """The schema in files of the installed ExecuTorch; `WorkbenchError` if one is missing."""
    spec = importlib.util.find_spec("executorch")
    folders = (spec.submodule_search_locations if spec else ()) or ()
    texts = []
    for file in files:
        path = next((p for folder in folders if (p := Path(folder) / file).is_file()), None)
        if path is None:
            raise WorkbenchError(
                f"no {file} in the installed ExecuTorch", hint="reinstall executorch"
            )
        texts.append(path.read_text())
    return parse_schema("\n".join(texts))


def parse_schema(text: str) -> Schema:
    """Parse tables, enumerations and unions; nothing else determines the layout."""
    tables: dict[str, str] = {}
    enums: dict[str, tuple[str, dict[int, str]]] = {}
    unions: dict[str, tuple[tuple[str, str], ...]] = {}
    for kind, name, base, body in _BLOCK.findall(_COMMENT.sub("", text)):
        items = [item.strip() for item in body.split(",") if item.strip()]
        if kind == "table":
            tables[name] = body
        elif kind == "enum":
            names, value = {}, -1
            for item in items:
                label, _, given = map(str.strip, item.partition("="))
                value = int(given, 0) if given else value + 1
                names[value] = label
            enums[name] = SCALARS[base], names
        else:
            pairs = (map(str.strip, item.partition(":")[::2]) for item in items)
            unions[name] = tuple((alias, table or alias) for alias, table in pairs)
    laid_out = {name: _lay_out(body, enums, unions) for name, body in tables.items()}
    return Schema(laid_out, unions)


def _lay_out(
    body: str,
    enums: dict[str, tuple[str, dict[int, str]]],
    unions: dict[str, tuple[tuple[str, str], ...]],
) -> tuple[Field, ...]:
    """The fields of a table, numbered as in its layout."""
    fields: list[Field] = []
    for name, bracket, full_name, default in _FIELD.findall(body):
        slot = fields[-1].slot + 1 if fields else 0
        kind, vector = full_name.rpartition(".")[2], "s" if bracket else ""
        if kind in unions:
            # The tag has its own slot, before that of the value.
            fields.append(Field(name, slot + 1, "union", kind))
        elif kind in enums or kind in SCALARS:
            code, enum = enums.get(kind) or (SCALARS[kind], {})
            known = {label: value for value, label in enum.items()} | {"true": True, "": 0}
            number = known[default] if default in known else _number(code, default)
            value = float(number) if code in "fd" else bool(number) if code == "?" else number
            fields.append(Field(name, slot, f"scalar{vector}", code, value, enum))
        else:
            item = "string" if kind == "string" else "table"
            fields.append(Field(name, slot, item + vector, kind))
    return tuple(fields)


def _number(code: str, text: str) -> float:
    return False if text == "false" else float(text) if code in "fd" else int(text, 0)


_BYTES = frozenset("bB?")
_STRUCTS = {code: struct.Struct(f"<{code}") for code in "?bBhHiIqQfd"}


def read_flatbuffer(data: memoryview, schema: Schema, root: str, where: object) -> dict[str, Any]:
    """Decode a buffer that starts with the reference to its root, a table ``root``.

    A scalar of an enumeration is its name; an absent table, string or vector is None; a union is
    ``(alias, table)``; a vector of bytes is a part of ``data``. It is a `StoreError` if a reference
    leads out of the buffer, or tables share so many bytes that they would decode to far more.
    """
    return _Reader(data, schema, where).table(root, 0)


class _Reader:
    def __init__(self, data: memoryview, schema: Schema, where: object):
        self.data, self.size, self.where = data, len(data), where
        self.schema = schema
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
        fields = self.schema.tables[name]
        return {field.name: self.field(field, at, offsets, size) for field in fields}

    def field(self, field: Field, table: int, offsets: tuple[int, ...], size: int) -> Any:
        offset = offsets[field.slot] if field.slot < len(offsets) else 0
        self.require(offset < size, table)
        at = table + offset
        if field.kind == "scalar":
            value = self.scalar(field.type, at) if offset else field.default
            return (field.enum or {}).get(value, value)
        if not offset:
            return None
        if field.kind == "table":
            return self.table(field.type, at)
        if field.kind == "string":
            return self.string(at)
        if field.kind != "union":
            return self.vector(field, at)
        tag_offset = offsets[field.slot - 1]
        tag = self.scalar("B", table + tag_offset) if tag_offset else 0
        choices = self.schema.unions[field.type]
        if not 1 <= tag <= len(choices):
            return None
        alias, name = choices[tag - 1]
        return alias, self.table(name, at)

    def vector(self, field: Field, reference: int) -> Any:
        code = field.type if field.kind == "scalars" else "I"
        start, count = self.extent(reference, _STRUCTS[code].size)
        if field.kind == "scalars" and code in _BYTES:
            return self.data[start : start + count]
        self.spend(count * _STRUCTS[code].size, start)
        if field.kind == "scalars":
            return list(struct.unpack_from(f"<{count}{code}", self.data, start))
        references = range(start, start + 4 * count, 4)
        if field.kind == "strings":
            return [self.string(at) for at in references]
        return [self.table(field.type, at) for at in references]

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
            hint = "copy or export it again"
            raise StoreError(f"malformed (at byte {at})", where=self.where, hint=hint)


_SCHEMA = ("exir/_serialize/scalar_type.fbs", "exir/_serialize/program.fbs")


@dataclass(frozen=True)
class Pte:
    """A program's tables, the part of the file with its segments, its FlatBuffer's size."""

    tables: dict[str, Any]
    segments: memoryview
    where: object
    program_bytes: int

    def payload(self, delegate: dict[str, Any]) -> memoryview:
        """The compiled bytes of a delegate; `StoreError` if they are outside the file."""
        reference = delegate["processed"] or {}
        if reference.get("location") == "SEGMENT":
            segment = self._item("segments", reference["index"])
            first, size = segment["offset"], segment["size"]
            if first + size > len(self.segments):
                raise StoreError("a delegate is outside the file", where=self.where)
            return self.segments[first : first + size]
        data = self._item("backend_delegate_data", reference.get("index", 0))["data"]
        return memoryview(b"") if data is None else data

    def _item(self, table: str, index: int) -> dict[str, Any]:
        items = self.tables[table] or []
        if index >= len(items):
            raise StoreError(f"has no entry {index} in {table}", where=self.where)
        return items[index]


def read_pte(data: bytes | memoryview, where: object) -> Pte:
    """Read the program of a ``.pte``; `StoreError` if it is malformed."""
    data = memoryview(data)
    if len(data) < 12 or data[4:6] != b"ET":
        raise StoreError("not an ExecuTorch program", where=where)
    size, base = len(data), 0
    if data[8:12] == b"eh00":
        if len(data) < 32:
            raise StoreError("truncated", where=where)
        size, base = struct.unpack_from("<QQ", data, 16)
        if size > len(data) or base > len(data):
            raise StoreError("truncated", where=where, hint="copy or export it again")
    tables = read_flatbuffer(data[:size], installed_schema(*_SCHEMA), "Program", where)
    return Pte(tables, data[base:], where, size)


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


def read_xnnpack_blob(
    data: memoryview, where: object
) -> tuple[tuple[XValue, ...], tuple[XNode, ...]]:
    """The tensors of a delegate's payload, and its operators in the order of execution."""
    graph = read_xnnpack_graph(data, where)
    constants = [constant["size"] for constant in graph["constant_data"] or []]
    unions = [item["xvalue_union"] for item in graph["xvalues"] or []]
    values = tuple(_blob_value(union, constants, where) for union in unions)
    by_id = {value.id: value for value in values}
    return values, tuple(_node(item, by_id, where) for item in graph["xnodes"] or [])


def read_xnnpack_graph(data: memoryview, where: object) -> dict[str, Any]:
    """The graph of a delegate's payload as its schema has it."""
    first, size = 0, len(data)
    if data[4:8] == b"XH00":
        first, size = struct.unpack_from("<II", data, 10) if size >= 18 else (0, 0)
    if size < 8 or first + size > len(data):
        raise StoreError("an XNNPACK delegate is truncated", where=where)
    graph = data[first : first + size]
    return read_flatbuffer(graph, installed_schema(_BLOB_SCHEMA), "XNNGraph", where)


def _blob_value(union: tuple[str, Any] | None, constants: list[int], where: object) -> XValue:
    missing = StoreError("an XNNPACK delegate lacks a tensor", where=where)
    if union is None:
        raise missing
    alias, tensor = union
    zero_point = 0
    if alias == "XNNQuantizedTensorValue":
        quantization = tensor["quant_params"]
        if quantization and quantization[0] == "PerTensorQuant":
            zero_point = quantization[1]["zero_point"]
        tensor = tensor["tensor_value"]
    if tensor is None:
        raise missing
    dtype = str(tensor["datatype"]).removeprefix("xnn_datatype_")
    shape, number = tuple(tensor["dims"] or ()), tensor["constant_buffer_idx"]
    stored = constants[number] if 0 < number < len(constants) else 0
    bits = re.search(r"\d+$", dtype)
    return XValue(
        id=tensor["id_out"],
        dtype=dtype,
        shape=shape,
        size_bytes=stored or math.prod(shape) * (int(bits[0]) if bits else 32) // 8,
        role="constant" if number else _EXTERNAL.get(tensor["flags"] & 3, ""),
        zero_point=zero_point,
    )


def _node(item: dict[str, Any], values: dict[int, XValue], where: object) -> XNode:
    if item["xnode_union"] is None:
        raise StoreError("an XNNPACK delegate has an operator of an unknown kind", where=where)
    alias, fields = item["xnode_union"]
    kind = alias.removeprefix("XNN")
    inputs = [fields[name] for name in _INPUTS if name in fields]
    taken = int(kind[-1]) if kind.startswith("Concatenate") else len(inputs)
    inputs = [number for number in inputs[:taken] if number != _NO_VALUE]
    outputs = [fields[name] for name in _OUTPUTS if name in fields]
    if not inputs or not outputs or not values.keys() >= {*inputs, *outputs}:
        raise StoreError(f"the {kind} of an XNNPACK delegate lacks a tensor", where=where)
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
