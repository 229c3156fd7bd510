"""Tensors in the debug buffer that a runtime wrote beside its trace.

Debug events: the numbers and tensors that the runtime logged while it executed a program.

Allocation events: how much memory was taken from which allocator.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from workbench.errors import TraceError
from workbench.frames import ALLOCATIONS, VALUES, check
from workbench.trace.etdump import Trace, collect_events, map_file
from workbench.trace.flatbuffer import (
    CONTENT,
    Allocation,
    Allocator,
    Contents,
    Debug,
    Event,
    FlatBuffer,
    Tensor,
    Value,
)

#: PyTorch's names for the numbers of scalar_type.fbs.
DTYPES = {
    0: "uint8",
    1: "int8",
    2: "int16",
    3: "int32",
    4: "int64",
    5: "float16",
    6: "float32",
    7: "float64",
    11: "bool",
    12: "qint8",
    13: "quint8",
    14: "qint32",
    15: "bfloat16",
    16: "quint4x2",
    17: "quint2x4",
    22: "bits16",
    23: "float8_e5m2",
    24: "float8_e4m3fn",
    25: "float8_e5m2fnuz",
    26: "float8_e4m3fnuz",
    27: "uint16",
    28: "uint32",
    29: "uint64",
}

# How elements are stored, if not by a type of numpy's that bears the same name.
_STORED = {"qint8": "int8", "quint8": "uint8", "qint32": "int32", "bits16": "uint16"}
_STORED |= {"bfloat16": "uint16"}

# Most dimensions that the runtime allows; more elements than anyone has.
_MOST_DIMENSIONS = 16
_MOST_ELEMENTS = 2**48


def read_tensor(
    data: np.ndarray,
    dtype: str,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    offset: int,
    path: Path,
) -> np.ndarray | None:
    """A tensor that is stored in ``data`` from byte ``offset`` on.

    Parameters
    ----------
    data
        The bytes of the debug buffer.
    dtype
        PyTorch's name for it.
    shape, strides
        Elements of every dimension, and from one to the next.
    path
        What errors name.

    Returns
    -------
    numpy.ndarray or None
        It looks into ``data``, but for bfloat16, which becomes float32. None for types of which
        numpy has no like.

    Raises
    ------
    TraceError
        Shape and strides are no tensor's, or it reaches beyond the data.
    """
    stored = _STORED.get(dtype, dtype)
    if stored not in np.sctypeDict:
        return None
    itemsize = np.dtype(stored).itemsize
    if (
        not len(shape) == len(strides) <= _MOST_DIMENSIONS
        or min((*shape, *strides), default=0) < 0
        or math.prod(length or 1 for length in shape) > _MOST_ELEMENTS
    ):
        raise TraceError(f"no tensor has shape {shape} and strides {strides}", where=path)
    count = math.prod(shape)
    if count == 0:
        return np.zeros(shape, stored)
    reach = sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
    if reach != count - 1:
        raise TraceError(f"strides {strides} leave gaps in shape {shape}", where=path)
    if not 0 <= offset <= len(data) - count * itemsize:
        raise TraceError("a tensor reaches beyond the debug buffer", where=path, offset=offset)
    elements = data[offset:][: count * itemsize].view(np.dtype(stored).newbyteorder("<"))
    if dtype == "bfloat16":
        elements = (elements.astype(np.uint32) << 16).view(np.float32)
    # Nobody steps along a dimension of one element, so its stride may be any number.
    steps = [
        stride * elements.itemsize if length > 1 else 0
        for length, stride in zip(shape, strides, strict=True)
    ]
    return np.lib.stride_tricks.as_strided(elements, shape, steps, writeable=False)


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


def read_allocations(path: str | Path) -> pd.DataFrame:
    """Read the allocation events of an ETDump, one row each, in the order of the file.

    The runtime logs what is taken from an allocator for which this was turned on
    (``MemoryAllocator::enable_profiling``); it does not log what is given back.

    Parameters
    ----------
    path
        An ETDump.

    Returns
    -------
    pandas.DataFrame
        Columns of :data:`workbench.schema.ALLOCATIONS`. The names of allocators are those that the
        event's block gives or, if it gives none, the last one before it that does.

    Raises
    ------
    TraceError
        The file cannot be read, is no ETDump, or is malformed.
    """
    trace = Trace(Path(path))
    buffer = trace.buffer
    (blocks,) = trace.blocks()

    def decode(at: np.ndarray) -> dict[str, np.ndarray]:
        table = buffer.tables(at, "an allocation event")
        size = buffer.u64(table.field(Allocation.SIZE, 8), 0)
        buffer.require(size < np.uint64(2**63), at, "an allocation of more than 2**63 bytes")
        return {"allocator_id": buffer.i32(table.field(Allocation.ALLOCATOR), 0), "size": size}

    columns = collect_events(
        *(buffer, blocks.entries, blocks.counts, Event.ALLOCATION, "an allocation event"),
        decode,
        {"allocator_id": np.int32, "size": np.int64},
    )
    block, number = columns["block"], columns["allocator_id"]
    given = np.where(blocks.allocators > 0, np.arange(len(blocks.counts)), 0)
    allocators = blocks.allocators[np.maximum.accumulate(given)][block]
    name = trace.names.intern(_names_at(trace, allocators, number))
    frame = {
        "block": block,
        "event": columns["place"] + blocks.first_events[block],
        "allocator": pd.Categorical.from_codes(name, trace.names.values, validate=False),
        "allocator_id": number,
        "size": columns["size"],
    }
    return check(pd.DataFrame(frame), ALLOCATIONS)


def _names_at(trace: Trace, allocators: np.ndarray, number: np.ndarray) -> np.ndarray:
    """Positions of the names of allocators, which the vectors list from number 1 on."""
    buffer = trace.buffer
    _, counts = buffer.vectors(allocators, "the allocators of a block")
    listed = (number > 0) & (number <= counts)
    at = np.where(listed, allocators + 4 * number.astype(np.int64), 0)
    names = np.zeros(len(at), np.int64)
    tables = buffer.tables(buffer.follow(at[listed], "an allocator"), "an allocator")
    names[listed] = buffer.follow(tables.field(Allocator.NAME), "an allocator's name")
    return names
