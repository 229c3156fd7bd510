"""Debug events: the numbers and tensors that the runtime logged while it executed a program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from workbench.schema import VALUES, check
from workbench.trace.blocks import Trace, collect_events, map_file
from workbench.trace.contents import Contents
from workbench.trace.fields import CONTENT, Debug, Event, Tensor, Value
from workbench.trace.flatbuffer import FlatBuffer
from workbench.trace.tensors import DTYPES, read_tensor

_FIELDS = {
    "chain": np.int64,
    "instruction": np.int32,
    "delegate_id": np.int32,
    "name": np.int32,
    "entry": np.int64,
}


def read_values(path: str | Path, debug_buffer: str | Path | None = None) -> pd.DataFrame:
    """Read the debug events of an ETDump, in the order of the file.

    Parameters
    ----------
    path
        An ETDump.
    debug_buffer
        The debug buffer that the runtime wrote beside it: the elements of the tensors.

    Returns
    -------
    pandas.DataFrame
        Columns of :data:`workbench.schema.VALUES`: a row for every number and every tensor, those
        of a list each by itself. Arrays look into the mapped buffer and are read-only; bfloat16 is
        widened to float32, and quantised types are their integers.

    Raises
    ------
    TraceError
        A file cannot be read or is malformed, or a tensor does not lie in the debug buffer.
    """
    trace = Trace(Path(path))
    buffer = trace.buffer
    (blocks,) = trace.blocks()

    def decode(at: np.ndarray) -> dict[str, np.ndarray]:
        table = buffer.tables(at, "a debug event")
        chain = buffer.u64(table.field(Debug.CHAIN, 8), 0).view(np.int64).clip(-1)
        instruction = buffer.i32(table.field(Debug.INSTRUCTION), -1)
        label = buffer.follow(table.field(Debug.DELEGATE_STR), "a delegate's name")
        name = buffer.follow(table.field(Debug.NAME), "a name")
        return {
            "chain": chain,
            "instruction": np.where(chain < 0, -1, instruction),
            "delegate_id": buffer.i32(table.field(Debug.DELEGATE_INT), -1),
            "name": trace.names.intern(np.where(label > 0, label, name)),
            "entry": buffer.follow(table.field(Debug.ENTRY), "a value"),
        }

    events = collect_events(
        *(buffer, blocks.entries, blocks.counts, Event.DEBUG, "a debug event"), decode, _FIELDS
    )
    events["event"] = events["place"] + blocks.first_events[events["block"]]
    of_event, values = _read_entries(buffer, events["entry"])
    values |= {name: events[name][of_event] for name in ("block", "event", *_FIELDS)}
    values["name"] = pd.Categorical.from_codes(values["name"], trace.names.values)
    if debug_buffer is not None:
        debug_buffer = Path(debug_buffer)
        data = np.frombuffer(map_file(debug_buffer), np.uint8)
        what = ("dtype", "shape", "strides", "offset")
        for row in np.flatnonzero(values["type"] == "tensor"):
            tensor = (values[name][row] for name in what)
            values["value"][row] = read_tensor(data, *tensor, debug_buffer)
    return check(pd.DataFrame(values)[VALUES.names], VALUES)


def _read_entries(buffer: FlatBuffer, at: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The values at the positions ``at``: of which of them each is, and one array per field."""
    event = np.flatnonzero(at)
    table = buffer.tables(at[event], "a value")
    tensor = buffer.follow(table.field(Value.TENSOR), "a tensor")
    lists = buffer.follow(table.field(Value.TENSOR_LIST), "a list of tensors")
    first, length = _read_lists(buffer, lists)
    row = np.repeat(np.arange(len(event)), np.where(lists > 0, length, 1))
    element = np.arange(len(row)) - np.searchsorted(row, row)
    listed = lists[row] > 0
    tensor = tensor[row]
    tensor[listed] = buffer.follow((first[row] + 4 * element)[listed], "a tensor")

    value = np.full(len(row), None, object)
    kind = np.where(tensor > 0, "tensor", "none").astype(object)
    readers = {
        Value.INT: ("int", 8, lambda at: buffer.u64(at, 0).view(np.int64)),
        Value.FLOAT: ("float", 4, lambda at: buffer.i32(at, 0).view(np.float32)),
        Value.DOUBLE: ("float", 8, lambda at: buffer.u64(at, 0).view(np.float64)),
        Value.BOOL: ("bool", 1, lambda at: buffer.i8(at, 0) != 0),
    }
    for slot, (name, width, read) in readers.items():
        holder = buffer.follow(table.field(slot), "a number")[row]
        rows = np.flatnonzero((holder > 0) & (kind == "none"))
        numbers = buffer.tables(holder[rows], "a number").field(CONTENT, width)
        value[rows], kind[rows] = read(numbers).tolist(), name
    output = buffer.follow(table.field(Value.OUTPUT), "a flag")
    flagged = np.flatnonzero(output)
    flags = buffer.tables(output[flagged], "a flag").field(CONTENT, 1)
    output[flagged] = buffer.i8(flags, 0)
    values = {
        "element": np.where(listed, element, -1),
        "output": output[row] != 0,
        "type": kind,
        "value": value,
    }
    return event[row], values | _read_tensors(buffer, tensor)


def _read_lists(buffer: FlatBuffer, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where the references of the lists of tensors at ``at`` begin, and how many there are."""
    present = np.flatnonzero(at)
    vectors = np.zeros(len(at), np.int64)
    holders = buffer.tables(at[present], "a list of tensors")
    vectors[present] = buffer.follow(holders.field(CONTENT), "a list of tensors")
    first, length = buffer.vectors(vectors, "lists of tensors")
    # Lists that share their tensors would let a small file stand for a huge one.
    buffer.require(4 * np.cumsum(length) <= buffer.size, at, "lists of tensors overlap")
    return first, length


def _read_tensors(buffer: FlatBuffer, at: np.ndarray) -> dict[str, np.ndarray]:
    """The fields of the tensors at ``at``; where there is none, empty ones."""
    row = np.flatnonzero(at)
    table = buffer.tables(at[row], "a tensor")
    shapes = Contents(buffer, "a shape", _as_shape, width=8)
    number = buffer.i8(table.field(Tensor.DTYPE, 1), 0).tolist()
    fields = {
        "dtype": [DTYPES.get(n, f"scalar_type_{n}") for n in number],
        "shape": _lookup(shapes, buffer.follow(table.field(Tensor.SIZES), "a shape")),
        "strides": _lookup(shapes, buffer.follow(table.field(Tensor.STRIDES), "strides")),
        "offset": buffer.u64(table.field(Tensor.OFFSET, 8), 0).view(np.int64),
    }
    empty = {"dtype": "", "shape": None, "strides": None, "offset": -1}
    columns = {
        name: np.full(len(at), none, np.int64 if name == "offset" else object)
        for name, none in empty.items()
    }
    for name, values in fields.items():
        columns[name][row] = values
    return columns


def _as_shape(data: bytes) -> tuple[int, ...]:
    return tuple(np.frombuffer(data, "<i8").tolist())


def _lookup(contents: Contents[Any], at: np.ndarray) -> np.ndarray:
    """The objects that the vectors at the positions ``at`` stand for."""
    codes = contents.intern(at)
    objects = np.empty(len(contents.values), object)
    for code, value in enumerate(contents.values):
        objects[code] = value
    return objects[codes]
