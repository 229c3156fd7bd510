"""Writes ETDump files field by field with the FlatBuffers library, and checks what is read."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import flatbuffers
import numpy as np
import pandas as pd
from flatbuffers.number_types import Int32Flags, Uint32Flags, Uint64Flags

import workbench as wb


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
class Other:
    """An event of another kind: an allocation (1) or a debug value (2), which no reader reads."""

    slot: int


Event = Profile | Other | None


@dataclass(frozen=True)
class Block:
    """One run_data entry."""

    name: str | None
    events: Sequence[Event]
    bundled_input: int = -1


def build_etdump(
    blocks: Sequence[Block],
    *,
    size_prefixed: bool = True,
    version: int = 0,
    share_strings: bool = False,
    repeat: int = 1,
    unknown_fields: int = 0,
) -> bytes:
    """The bytes of an ETDump.

    ``repeat`` lists every block that often without writing it again, which no runtime does.
    ``unknown_fields`` are appended to every table, as a newer schema would.
    """
    writer = _Writer(share_strings, unknown_fields)
    runs = [writer.block(block) for block in blocks] * repeat
    root = writer.table([("u32", version, 0), ("ref", writer.vector(runs), 0)])
    finish = writer.builder.FinishSizePrefixed if size_prefixed else writer.builder.Finish
    finish(root, file_identifier=b"ED00")
    return bytes(writer.builder.Output())


class _Writer:
    def __init__(self, share_strings: bool = False, unknown_fields: int = 0):
        self.builder = flatbuffers.Builder(1024)
        self.string = (
            self.builder.CreateSharedString if share_strings else self.builder.CreateString
        )
        self.unknown_fields = unknown_fields

    def table(self, fields: Sequence[tuple[str, int | None, int]]) -> int:
        builder = self.builder
        prepend = {
            "i32": lambda *field: builder.PrependSlot(Int32Flags, *field),
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
                ("ref", None, 0),
                ("ref", events, 0),
            ]
        )

    def event(self, event: Event) -> int:
        slots = [("ref", None, 0)] * 3
        if isinstance(event, Other):
            slots[event.slot] = ("ref", self.table([("i32", 1, 0)]), 0)
        elif event:
            slots[0] = ("ref", self.profile(event), 0)
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


def check_events(events: pd.DataFrame) -> None:
    """Fail unless the ledger of a trace sums to every ``Method::execute``."""
    methods = events[events["kind"] == "method"].set_index("run")["duration_ns"]
    sums = wb.build_ledger(events).groupby("run")["duration_ns"].sum()
    assert sums.to_dict() == methods.to_dict(), "does not close"


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
