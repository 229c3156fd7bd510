"""Writes ETDump files field by field with the FlatBuffers library, for tests of the reader."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import flatbuffers
import numpy as np
from flatbuffers.number_types import (
    Float32Flags,
    Float64Flags,
    Int8Flags,
    Int32Flags,
    Int64Flags,
    Uint32Flags,
    Uint64Flags,
)


@dataclass(frozen=True)
class Profile:
    """One profile event; ``None`` and the defaults leave a field out of the file."""

    name: str | bytes | None = None
    chain: int = 0
    instruction: int = -1
    delegate_int: int = -1
    delegate_str: str | bytes | None = None
    metadata: bytes | None = None
    start: int = 0
    end: int = 0


@dataclass(frozen=True)
class Allocation:
    """One allocation event."""

    allocator: int
    size: int


@dataclass(frozen=True)
class Tensor:
    """A tensor whose elements are elsewhere."""

    dtype: int
    shape: Sequence[int]
    strides: Sequence[int]
    offset: int = 0


@dataclass(frozen=True)
class Debug:
    """One debug event; a float is a double, or else a ``np.float32``."""

    name: str | None
    value: int | float | bool | np.float32 | Tensor | Sequence[Tensor] | None
    chain: int = 0
    instruction: int = 7
    delegate_int: int = -1
    delegate_str: str | None = None
    output: bool | None = None


Event = Profile | Allocation | Debug | None


@dataclass(frozen=True)
class Block:
    """One run_data entry."""

    name: str | None
    events: Sequence[Event]
    bundled_input: int = -1
    allocators: Sequence[str | None] | None = None


def build_etdump(
    blocks: Sequence[Block],
    *,
    size_prefixed: bool = True,
    version: int = 0,
    share_strings: bool = False,
    repeat: int = 1,
    unknown_fields: int = 0,
    known_fields: int | None = None,
) -> bytes:
    """The bytes of an ETDump.

    ``repeat`` lists every block that often without writing it again, which no runtime does.
    ``unknown_fields`` are appended to every table, as a newer schema would; those beyond the first
    ``known_fields`` are unheard of, as in an older one.
    """
    writer = _Writer(share_strings, unknown_fields, known_fields)
    runs = [writer.block(block) for block in blocks] * repeat
    root = writer.table([("u32", version, 0), ("ref", writer.vector(runs), 0)])
    finish = writer.builder.FinishSizePrefixed if size_prefixed else writer.builder.Finish
    finish(root, file_identifier=b"ED00")
    return bytes(writer.builder.Output())


class _Writer:
    def __init__(
        self, share_strings: bool = False, unknown_fields: int = 0, known_fields: int | None = None
    ):
        self.builder = flatbuffers.Builder(1024)
        self.string = (
            self.builder.CreateSharedString if share_strings else self.builder.CreateString
        )
        self.unknown_fields = unknown_fields
        self.known_fields = known_fields

    def table(self, fields: Sequence[tuple[str, int | None, int]]) -> int:
        builder = self.builder
        fields = fields[: self.known_fields]
        prepend = {
            "i8": lambda *field: builder.PrependSlot(Int8Flags, *field),
            "f32": lambda *field: builder.PrependSlot(Float32Flags, *field),
            "f64": lambda *field: builder.PrependSlot(Float64Flags, *field),
            "i32": lambda *field: builder.PrependSlot(Int32Flags, *field),
            "i64": lambda *field: builder.PrependSlot(Int64Flags, *field),
            "u32": lambda *field: builder.PrependSlot(Uint32Flags, *field),
            "u64": lambda *field: builder.PrependSlot(Uint64Flags, *field),
            "ref": builder.PrependUOffsetTRelativeSlot,
        }
        builder.StartObject(len(fields) + self.unknown_fields)
        for slot in range(len(fields), len(fields) + self.unknown_fields):
            builder.PrependUint16Slot(slot, 0xBEEF, 0)
        for slot, (kind, value, default) in reversed(list(enumerate(fields))):
            prepend[kind](slot, value or 0, default)
        return builder.EndObject()

    def vector(self, references: Sequence[int]) -> int:
        self.builder.StartVector(4, len(references), 4)
        for reference in reversed(references):
            self.builder.PrependUOffsetTRelative(reference)
        return self.builder.EndVector()

    def text(self, value: str | bytes | None) -> int | None:
        return None if value is None else self.string(value)

    def block(self, block: Block) -> int:
        events = self.vector([self.event(event) for event in block.events])
        return self.table(
            [
                ("ref", self.text(block.name), 0),
                ("i32", block.bundled_input, -1),
                ("ref", self.allocators(block.allocators), 0),
                ("ref", events, 0),
            ]
        )

    def allocators(self, names: Sequence[str | None] | None) -> int | None:
        if names is None:
            return None
        return self.vector([self.table([("ref", self.text(name), 0)]) for name in names])

    def event(self, event: Event) -> int:
        writers = {Profile: self.profile, Allocation: self.allocation, Debug: self.debug}
        slots = [("ref", None, 0)] * 3
        if event is not None:
            slots[list(writers).index(type(event))] = ("ref", writers[type(event)](event), 0)
        return self.table(slots)

    def profile(self, event: Profile) -> int:
        name = self.text(event.name)
        label = self.text(event.delegate_str)
        has_metadata = event.metadata is not None
        metadata = self.builder.CreateByteVector(event.metadata) if has_metadata else None
        return self.table(
            [
                ("ref", name, 0),
                ("i32", event.chain, 0),
                ("i32", event.instruction, -1),
                ("i32", event.delegate_int, -1),
                ("ref", label, 0),
                ("ref", metadata, 0),
                ("u64", event.start, 0),
                ("u64", event.end, 0),
            ]
        )

    def allocation(self, event: Allocation) -> int:
        return self.table([("i32", event.allocator, 0), ("u64", event.size, 0)])

    def debug(self, event: Debug) -> int:
        return self.table(
            [
                ("u64", event.chain % 2**64, 0),
                ("i32", event.instruction, -1),
                ("ref", self.value(event), 0),
                ("i32", event.delegate_int, -1),
                ("ref", self.text(event.delegate_str), 0),
                ("ref", self.text(event.name), 0),
            ]
        )

    def value(self, event: Debug) -> int:
        kinds = {bool: ("i8", 6), int: ("i64", 3), float: ("f64", 5), np.float32: ("f32", 4)}
        slots = [("i8", 0, 0)] + [("ref", None, 0)] * 7
        value = event.value
        if isinstance(value, Tensor):
            slots[1] = ("ref", self.tensor(value), 0)
        elif type(value) in kinds:
            kind, slot = kinds[type(value)]
            slots[slot] = ("ref", self.table([(kind, value, 0)]), 0)
        elif value is not None:
            tensors = self.vector([self.tensor(tensor) for tensor in value])
            slots[2] = ("ref", self.table([("ref", tensors, 0)]), 0)
        if event.output is not None:
            slots[7] = ("ref", self.table([("i8", event.output, 0)]), 0)
        return self.table(slots)

    def tensor(self, tensor: Tensor) -> int:
        shape, strides = (
            self.builder.CreateNumpyVector(np.array(numbers, "<i8"))
            for numbers in (tensor.shape, tensor.strides)
        )
        fields = [("i8", tensor.dtype, 0), ("ref", shape, 0), ("ref", strides, 0)]
        return self.table([*fields, ("i64", tensor.offset, 0)])


def repeat_block(block: Block, times: int) -> bytes:
    """A size-prefixed ETDump that holds the same block over and over, without a loop per event.

    References are relative, so the bytes of one block stand wherever they are copied to.
    """
    writer = _Writer()
    writer.builder.Finish(writer.block(block))
    body = bytes(writer.builder.Output())
    body += bytes(-len(body) % 8)
    identifier = int.from_bytes(b"ED00", "little")
    # Size; reference to the root; identifier; the root's layout (two words); the root: where its
    # layout is, reference to the vector; length of the vector.
    head = np.array([0, 16, identifier, 0x0008_0008, 0x0004_0000, 8, 4, times])
    first = 4 * (len(head) + times)
    padding = -first % 8
    at = 4 * (len(head) + np.arange(times, dtype=np.int64))
    root = int.from_bytes(body[:4], "little")
    references = first + padding + len(body) * np.arange(times, dtype=np.int64) + root - at
    data = np.append(head, references).astype("<u4").tobytes() + bytes(padding) + body * times
    return (len(data) - 4).to_bytes(4, "little") + data[4:]


class Recorder:
    """Logs spans as the runtime does: each at its end, by a clock that ticks at every step.

    ``parents[i]`` is the index of the event in which ``events[i]`` truly lies, or -1.
    """

    def __init__(self):
        self.events: list[Profile] = []
        self.parents: list[int] = []
        self._now = 1_000
        self._open: list[list[int]] = [[]]

    def tick(self, by: int = 1) -> int:
        """Let time pass."""
        self._now += by
        return self._now

    @contextmanager
    def span(self, name: str, chain: int = -1, instruction: int = 0) -> Iterator[int]:
        """A span that lasts as long as the ``with`` block; yields its start."""
        start = self.tick()
        self._open.append([])
        yield start
        inside = self._open.pop()
        self.log(Profile(name, chain, instruction, start=start, end=self.tick()), inside)

    def log(self, event: Profile, inside: Sequence[int] = ()) -> None:
        """Write one event that holds those ``inside``."""
        for child in inside:
            self.parents[child] = len(self.events)
        self._open[-1].append(len(self.events))
        self.events.append(event)
        self.parents.append(-1)
