"""What an XNNPACK delegate was compiled to: its operators and tensors, in order."""

from __future__ import annotations

import math
import re
import struct
from typing import Any

from workbench.errors import StoreError
from workbench.export.cost import xnode_flops
from workbench.export.fbs import installed_schema
from workbench.export.flatbuffer import read_flatbuffer
from workbench.records import XNode, XValue

_SCHEMA = "backends/xnnpack/serialization/schema.fbs"

#: Fields that hold the id of a value, in the order of a node's operands.
_INPUTS = (
    "input_id", "input1_id", "input2_id", "input3_id", "input4_id", "input5_id", "filter_id",
    "bias_id", "query_id", "key_id", "value_id", "scale_id", "mask_id",
)  # fmt: skip
_OUTPUTS = ("output_id", "output_value_id", "output_index_id")
_NO_VALUE = 2**32 - 1

#: The debug handle of an operator that a pass of the exporter made up.
NO_HANDLE = 65535

_EXTERNAL = {1: "input", 2: "output"}


def read_xnnpack_blob(
    data: memoryview, where: object
) -> tuple[tuple[XValue, ...], tuple[XNode, ...]]:
    """The tensors and operators of a delegate's payload, operators in the order of execution.

    Raises
    ------
    StoreError
        It is malformed.
    """
    graph = _read_graph(data, where)
    constants = [constant["size"] for constant in graph["constant_data"] or []]
    values = tuple(
        _value(item["xvalue_union"], constants, where) for item in graph["xvalues"] or []
    )
    by_id = {value.id: value for value in values}
    nodes = tuple(_node(item, by_id, where) for item in graph["xnodes"] or [])
    return values, nodes


def _read_graph(data: memoryview, where: object) -> dict[str, Any]:
    first, size = 0, len(data)
    if bytes(data[4:8]) == b"XH00":
        if len(data) < 18:
            raise StoreError("an XNNPACK delegate is truncated", where=where)
        first, size = struct.unpack_from("<II", data, 10)
    if size < 8 or first + size > len(data):
        raise StoreError("an XNNPACK delegate is truncated", where=where)
    graph = data[first : first + size]
    return read_flatbuffer(graph, installed_schema(_SCHEMA), "XNNGraph", where)


def _value(union: Any, constants: list[int], where: object) -> XValue:
    if union is None:
        raise StoreError("an XNNPACK delegate has a tensor of an unknown kind", where=where)
    alias, tensor = union
    quantization = None
    if alias == "XNNQuantizedTensorValue":
        quantization, tensor = tensor["quant_params"], tensor["tensor_value"]
    if tensor is None:
        raise StoreError("an XNNPACK delegate lacks a tensor", where=where)
    dtype = str(tensor["datatype"]).removeprefix("xnn_datatype_")
    shape = tuple(tensor["dims"] or ())
    number = tensor["constant_buffer_idx"]
    stored = constants[number] if 0 < number < len(constants) else 0
    per_tensor = quantization is not None and quantization[0] == "PerTensorQuant"
    return XValue(
        id=tensor["id_out"],
        dtype=dtype,
        shape=shape,
        size_bytes=stored or math.prod(shape) * _bits(dtype) // 8,
        role="constant" if number else _EXTERNAL.get(tensor["flags"] & 3, ""),
        zero_point=quantization[1]["zero_point"] if per_tensor else 0,
    )


def _node(item: dict[str, Any], values: dict[int, XValue], where: object) -> XNode:
    if item["xnode_union"] is None:
        raise StoreError("an XNNPACK delegate has an operator of an unknown kind", where=where)
    alias, fields = item["xnode_union"]
    kind = alias.removeprefix("XNN")
    inputs = [fields[name] for name in _INPUTS if name in fields]
    if kind.startswith("Concatenate"):
        inputs = inputs[: int(kind[-1])]
    inputs = [number for number in inputs if number != _NO_VALUE]
    outputs = [fields[name] for name in _OUTPUTS if name in fields]
    if not inputs or not outputs or not values.keys() >= {*inputs, *outputs}:
        raise StoreError(f"the {kind} of an XNNPACK delegate lacks a tensor", where=where)
    attributes = {k: _plain(v) for k, v in fields.items() if not k.endswith("_id")}
    bounds = item["output_min_max"]
    shapes = [values[number].shape for number in inputs]
    return XNode(
        type=kind,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        attributes=attributes,
        flops=xnode_flops(kind, attributes, shapes, values[outputs[0]].shape),
        bytes=sum(values[number].size_bytes for number in {*inputs, *outputs}),
        handle=item["debug_handle"],
        clamp=(_plain(bounds["output_min"]), _plain(bounds["output_max"])) if bounds else None,
        role=_role(kind, item["debug_handle"], values[inputs[0]], values[outputs[0]]),
    )


def _role(kind: str, handle: int, source: XValue, result: XValue) -> str:
    """What an operator is there for: to compute, or to change types or the layout."""
    if kind == "StaticTranspose" and handle == NO_HANDLE:
        return "layout"
    if kind != "Convert":
        return "compute"
    if result.dtype.startswith("q"):
        return "quantize"
    return "dequantize" if source.dtype.startswith("q") else "cast"


def _bits(dtype: str) -> int:
    """Bits per element: the number that the name of a type ends with."""
    found = re.search(r"\d+$", dtype)
    return int(found[0]) if found else 32


def _plain(value: Any) -> Any:
    """A field as JSON can say it: what is not finite becomes None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
