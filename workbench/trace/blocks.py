"""The blocks of an ETDump: the runtime starts one for loading and one for every execution."""

from __future__ import annotations

import mmap
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from workbench.errors import TraceError
from workbench.trace.contents import LONGEST, Contents
from workbench.trace.fields import ETDump, RunData
from workbench.trace.flatbuffer import FlatBuffer
from workbench.trace.recover import keep_whole_blocks

IDENTIFIER = b"ED00"
VERSION = 0

# Size prefix, reference to the root, identifier.
_HEADER = 12

#: Events worked on at a time: the arrays then stay in the processor's cache.
CHUNK = 1 << 14


class Trace:
    """An ETDump, mapped into memory: its buffer, and the texts that were read so far.

    Parameters
    ----------
    path
        The file.
    partial
        If it was cut short, take the blocks that are whole, and warn, instead of raising.
    """

    def __init__(self, path: Path, *, partial: bool = False):
        self._mapped, data, base = _open(path, partial)
        self.buffer = buffer = FlatBuffer(data, path)
        root = buffer.root(base)
        version = int(buffer.i32(root.field(ETDump.VERSION), VERSION)[0])
        if version != VERSION:
            raise TraceError(f"ETDump version {version}, this reads {VERSION}", where=path)
        vector = buffer.follow(root.field(ETDump.RUN_DATA), "the blocks")
        (self._references,), (self.block_count,) = buffer.vectors(vector, "the blocks")
        self.block_names = Contents(buffer, "the name of a block", bytes.decode, longest=LONGEST)
        self.names = Contents(buffer, "a name", bytes.decode, longest=LONGEST)
        self.metadata = Contents(buffer, "a delegate's metadata", bytes)

    def blocks(self, at_a_time: int | None = None) -> Iterator[Blocks]:
        """All blocks at once, or so many at a time.

        Raises
        ------
        TraceError
            They are malformed, or list more events than a file of this size can hold: blocks that
            share their events would let a small file stand for a huge one.
        """
        buffer, listed = self.buffer, 0
        step = at_a_time or max(self.block_count, 1)
        for first in range(0, max(self.block_count, 1), step):
            numbers = np.arange(first, min(first + step, self.block_count))
            at = buffer.follow(self._references + 4 * numbers, "a block")
            runs = buffer.tables(at, "a block")
            name = buffer.follow(runs.field(RunData.NAME), "the name of a block")
            vectors = buffer.follow(runs.field(RunData.EVENTS), "the events of a block")
            entries, counts = buffer.vectors(vectors, "the events of a block")
            total = listed + np.cumsum(counts)
            buffer.require(4 * total <= buffer.size, vectors, "the events of a block overlap")
            yield Blocks(
                first,
                listed,
                self.block_names.intern(name),
                buffer.i32(runs.field(RunData.BUNDLED_INPUT), -1),
                buffer.follow(runs.field(RunData.ALLOCATORS), "the allocators of a block"),
                entries,
                counts,
            )
            listed += int(counts.sum())

    def forget(self) -> None:
        """Give the pages of the file back to the system, which reads them again when needed."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._mapped.madvise(mmap.MADV_DONTNEED)


@dataclass(frozen=True)
class Blocks:
    """Consecutive blocks, one value each.

    ``first`` is the index of the first block and ``first_event`` that of its first event. ``name``
    is a code of ``block_names``, ``allocators`` the position of a vector or 0. The ``counts``
    references to the events of a block are stored from ``entries`` on.
    """

    first: int
    first_event: int
    name: np.ndarray
    bundled_input: np.ndarray
    allocators: np.ndarray
    entries: np.ndarray
    counts: np.ndarray

    @property
    def first_events(self) -> np.ndarray:
        """The position of each block's first event among all events of the file."""
        return self.first_event + np.cumsum(self.counts) - self.counts


def collect_events(
    buffer: FlatBuffer,
    entries: np.ndarray,
    counts: np.ndarray,
    slot: int,
    what: str,
    decode: Callable[[np.ndarray], dict[str, np.ndarray]],
    dtypes: Mapping[str, type],
) -> dict[str, np.ndarray]:
    """The events of one kind, in the order of the file, as one array per field.

    Parameters
    ----------
    entries, counts
        Of some blocks, as in :class:`Blocks`.
    slot, what
        The field of an event that those of this kind have, ``Event.PROFILE`` or another;
        and what errors call what it refers to.
    decode
        Gives the fields of the tables at some positions; it is called for a few thousand at a time.
    dtypes
        Of the fields.

    Returns
    -------
    dict
        The fields; ``block``, the index among the given blocks; and ``place``, the position among
        all events of the block.
    """
    dtypes = {"block": np.int32, "place": np.int32, **dtypes}
    columns = {name: np.empty(counts.sum(), dtype) for name, dtype in dtypes.items()}
    block = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    before = np.cumsum(counts) - counts
    filled = 0
    for begin in range(0, len(block), CHUNK):
        its = block[begin : begin + CHUNK]
        place = np.arange(begin, begin + len(its)) - before[its]
        events = buffer.tables(buffer.follow(entries[its] + 4 * place, "an event"), "an event")
        at = events.field(slot)
        if not at.all():
            its, place, at = (part[at > 0] for part in (its, place, at))
        fields = decode(buffer.follow(at, what)) | {"block": its, "place": place}
        for name, column in columns.items():
            column[filled : filled + len(at)] = fields[name]
        filled += len(at)
    return {name: column[:filled] for name, column in columns.items()}


def map_file(path: Path) -> mmap.mmap:
    """The bytes of a file, read from the disk where and when they are looked at."""
    try:
        with open(path, "rb") as file:
            if not file.seek(0, os.SEEK_END):
                raise TraceError("is empty", where=path, hint="was the run traced?")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise TraceError(error.strerror or str(error), where=path) from None


def _open(path: Path, partial: bool) -> tuple[mmap.mmap, np.ndarray, int]:
    """The mapped file, its bytes, and where the reference to its root table is stored."""
    mapped = map_file(path)
    data = np.frombuffer(mapped, np.uint8)
    head = data[:_HEADER].tobytes()
    if head[4:8] == IDENTIFIER:
        return mapped, data, 0
    if head[8:12] != IDENTIFIER:
        raise TraceError("is not an ETDump", where=path, hint=_recognise(head))
    size = 4 + int.from_bytes(head[:4], "little")
    if size < _HEADER:
        raise TraceError(f"states a size of {size} bytes", where=path, offset=0)
    if size <= len(data):
        return mapped, data[:size], 4
    cut = f"is cut short: {len(data)} of {size} bytes"
    if not partial:
        hint = "copy it again, or read what is whole with partial=True"
        raise TraceError(cut, where=path, hint=hint)
    data, whole, total = keep_whole_blocks(data, path)
    warnings.warn(f"{path} {cut}; the newest {whole} of {total} blocks were read", stacklevel=4)
    return mapped, data, 4


def _recognise(head: bytes) -> str:
    if head[4:6] == b"ET":
        return "this is a program (.pte); run it with tracing on to get a trace"
    if head.startswith(b"PK"):
        return "this is an archive, such as an .etrecord; the trace is the .etdump"
    return "the trace is the .etdump that the runner wrote"
