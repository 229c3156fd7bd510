"""The blocks of an ETDump: the runtime starts one for loading and one for every execution.

Blocks that repeat an earlier one but for their times: they are compared, not decoded.

A runtime that executes a method again writes the same bytes again. What differs is when, and how
far a table is from its layout, which is stored once per file. Every other byte that the decoder
would read is compared, so a repeat stands for the very events of the block that it repeats.

Profile events, from the tables of the file to one array per field.

ETDump files to the events frame, straight from the bytes as they lie in memory.
"""

from __future__ import annotations

import math
import mmap
import os
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from workbench.errors import TraceError, UsageError
from workbench.frames import EVENTS, check
from workbench.trace.flatbuffer import (
    LONGEST,
    Contents,
    ETDump,
    Event,
    FlatBuffer,
    Profile,
    RunData,
)
from workbench.trace.nesting import KINDS, METHOD, classify, nest
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


# Most blocks that others are compared with, and least number of blocks for which it pays.
_MOST_PATTERNS = 8
_FEWEST_BLOCKS = 4

# Words compared at a time: they then stay in the processor's cache.
_WORDS = 1 << 16

# What a repeat has in common with what it repeats, whatever its place.
_COMMON = ("kind", "name", "chain", "instruction", "delegate_id", "metadata")


def read_blocks(trace: Trace, blocks: Blocks) -> dict[str, np.ndarray]:
    """The profile events of some blocks, in the order of the file.

    Returns
    -------
    dict
        ``block``, the index among the given ones; ``event`` and ``parent``, positions among all
        events of the file; ``run``, counted from the first of these blocks; ``kind``, ``name`` and
        ``metadata`` as codes; ``chain``, ``instruction``, ``delegate_id``; ``start`` and ``end`` in
        ticks.
    """
    buffer = trace.buffer
    original, of_block = np.unique(find_repeats(buffer, blocks), return_inverse=True)
    entries = blocks.entries[original]
    spans = read_spans(trace, entries, blocks.counts[original])
    rows = np.bincount(spans["block"], minlength=len(original))
    runs = np.bincount(spans["block"][spans["kind"] == METHOD], minlength=len(original))

    # From where a thing is in an original to where it is in the block.
    first_row = np.cumsum(rows)[of_block] - np.cumsum(rows[of_block])
    first_run = np.cumsum(runs[of_block]) - runs[of_block]
    first_event = blocks.first_events
    distance = blocks.entries - entries[of_block]

    block = np.repeat(np.arange(len(of_block), dtype=np.int32), rows[of_block])
    columns = {name: np.empty(len(block), spans[name].dtype) for name in _COMMON}
    columns |= {"block": block, "run": np.empty(len(block), np.int32)}
    columns |= {
        name: np.empty(len(block), np.int64) for name in ("event", "parent", "start", "end")
    }
    for begin in range(0, len(block), CHUNK):
        part = slice(begin, begin + CHUNK)
        its = block[part]
        row = np.arange(begin, begin + len(its)) + first_row[its]
        for name in _COMMON:
            columns[name][part] = spans[name][row]
        columns["event"][part] = spans["place"][row] + first_event[its]
        columns["parent"][part] = _move(spans["parent"][row], first_event[its], none=-1)
        columns["run"][part] = _move(spans["run"][row], first_run[its], none=-1)
        start, end = (
            _move(spans[name][row], distance[its], none=0) for name in ("start_at", "end_at")
        )
        columns["start"][part], columns["end"][part] = read_times(buffer, start, end)
    return columns


def find_repeats(buffer: FlatBuffer, blocks: Blocks) -> np.ndarray:
    """For each block the index of an earlier one that it repeats, or its own."""
    twin = np.arange(len(blocks.counts))
    # Later blocks lie before earlier ones. As many events in as many bytes are worth a comparison.
    size = -np.diff(blocks.entries, prepend=blocks.entries[:1])
    look, _ = pd.factorize(size << 32 | blocks.counts)
    left = np.flatnonzero(blocks.counts)
    for _ in range(_MOST_PATTERNS):
        alike = np.bincount(look[left])
        if alike.max(initial=0) < _FEWEST_BLOCKS:
            break
        group = left[look[left] == np.argmax(alike)]
        same = _compare(buffer, blocks.entries[group], int(blocks.counts[group[0]]))
        twin[group[same]] = group[0]
        left = np.setdiff1d(left, np.append(group[same], group[0]), assume_unique=True)
    return twin


def _compare(buffer: FlatBuffer, entries: np.ndarray, count: int) -> np.ndarray:
    """Which blocks of ``count`` events, stored from ``entries`` on, repeat the first of them."""
    pattern = int(entries[0])
    # Blocks that lie one beside another take no more than the file.
    length, times, layouts = _outline(buffer, pattern, count, len(buffer.words) // len(entries))
    same = entries + 4 * length <= buffer.size
    if not (length and same[0]):
        return np.zeros(len(entries), bool)
    windows = np.lib.stride_tricks.sliding_window_view(buffer.words, length)
    expected = windows[pattern >> 2].copy()
    expected[times] = 0
    whole = np.flatnonzero(same)
    step = max(_WORDS // length, 1)
    for begin in range(0, len(whole), step):
        part = whole[begin : begin + step]
        rows = windows[entries[part] >> 2]
        rows[:, times] = 0
        rows[:, layouts] -= (entries[part] - pattern).astype(np.uint32)[:, None]
        same[part] = (rows == expected).all(axis=1)
    return same


def _outline(
    buffer: FlatBuffer, entry: int, count: int, most: int
) -> tuple[int, np.ndarray, np.ndarray]:
    """How many words a block takes; which of them are but times, and which but lead to layouts.

    A word that something else is read from too, as only a forged file has it, is neither. If there
    are more than ``most`` words, none is said to be taken.
    """
    references = entry + 4 * np.arange(count)
    events = buffer.tables(buffer.follow(references, "an event"), "an event")
    profile = events.field(Event.PROFILE)
    spans = buffer.tables(buffer.follow(profile[profile > 0], "a profile event"), "a profile event")
    times = np.concatenate([spans.field(slot, 8) for slot in (Profile.START, Profile.END)])
    times = times[times > 0]
    fields = np.concatenate([profile, *(spans.field(slot) for slot in range(Profile.START))])
    vectors = np.concatenate(
        [spans.field(slot) for slot in (Profile.NAME, Profile.DELEGATE_STR, Profile.METADATA)]
    )
    vectors = buffer.follow(vectors[vectors > 0], "a name")
    ends = vectors + 4 + buffer.words[vectors >> 2].astype(np.int64)

    last = max(int(at.max(initial=0)) for at in (references + 4, events.ends, spans.ends, ends))
    length = (last - entry + 3) >> 2
    if length > most:
        return 0, times, times
    words = [times, times + 4, events.at, spans.at, references, fields[fields > 0]]
    words = [(at - entry) >> 2 for at in words]
    begin, end = (vectors - entry) >> 2, (ends - entry + 3) >> 2
    uses = np.bincount(np.concatenate(words), minlength=length + 1)
    inside = np.bincount(begin, minlength=length + 1) - np.bincount(end, minlength=length + 1)
    uses += np.cumsum(inside)
    low, high, *layouts = (at[uses[at] == 1] for at in words[:4])
    return length, np.append(low, high), np.append(*layouts)


def _move(values: np.ndarray, by: np.ndarray, none: int) -> np.ndarray:
    """The values moved, but for those that say "none"."""
    return np.where(values == none, none, values + by)


_FIELDS = {
    "name": np.int32,
    "delegated": bool,
    "chain": np.int32,
    "instruction": np.int32,
    "delegate_id": np.int32,
    "metadata": np.int32,
    "start_at": np.int64,
    "end_at": np.int64,
}


def read_spans(trace: Trace, entries: np.ndarray, counts: np.ndarray) -> dict[str, np.ndarray]:
    """The profile events of the blocks of these ``entries``, each told in terms of its block.

    Returns
    -------
    dict
        ``block``, the index among the given ones; ``place``, the position among all events of the
        block; ``name`` and ``metadata`` as codes; ``chain``, ``instruction``, ``delegate_id``;
        ``start_at`` and ``end_at``, where the times are stored; and what nesting found: ``kind``,
        ``parent`` as a place, and ``run``, counted from the first of the block.
    """
    buffer = trace.buffer
    spans = collect_events(
        *(buffer, entries, counts, Event.PROFILE, "a profile event"),
        partial(_decode, trace),
        _FIELDS,
    )
    block, place = spans["block"], spans["place"]
    start, _ = read_times(buffer, spans["start_at"], spans["end_at"])
    kind = classify(spans["name"], trace.names.values, spans.pop("delegated"))
    run, parent = nest(block, kind, spans["chain"], spans["instruction"], start)
    runs = np.bincount(block[kind == METHOD], minlength=len(counts))
    run -= np.where(run >= 0, (np.cumsum(runs) - runs)[block], 0)
    parent = np.where(parent >= 0, place[parent], -1)
    return spans | {"kind": kind, "run": run, "parent": parent}


def read_times(
    buffer: FlatBuffer, start_at: np.ndarray, end_at: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Start and end of the events whose times are stored there, in ticks."""
    start, end = buffer.u64(start_at, 0), buffer.u64(end_at, 0)
    buffer.require(end < np.uint64(2**63), end_at, "an event ends after the year 2262")
    buffer.require(start <= end, end_at, "an event ends before it starts")
    return start.view(np.int64), end.view(np.int64)


def _decode(trace: Trace, at: np.ndarray) -> dict[str, np.ndarray]:
    """The fields of the profile events at the positions ``at``."""
    buffer = trace.buffer
    table = buffer.tables(at, "a profile event")
    chain = buffer.i32(table.field(Profile.CHAIN), 0).clip(-1)
    instruction = buffer.i32(table.field(Profile.INSTRUCTION), -1)
    # Outside any instruction the runtime logs instruction 0 of chain -1.
    instruction[chain < 0] = -1
    delegate_id = buffer.i32(table.field(Profile.DELEGATE_INT), -1)
    metadata = buffer.follow(table.field(Profile.METADATA), "a delegate's metadata")
    text = buffer.follow(table.field(Profile.NAME), "a name")
    label = buffer.follow(table.field(Profile.DELEGATE_STR), "a delegate's name")
    labelled = label > 0
    labelled[labelled] = buffer.words[label[labelled] >> 2] > 0
    return {
        "name": _name(np.where(text > 0, text, label), delegate_id, trace.names),
        "delegated": (delegate_id != -1) | labelled,
        "chain": chain,
        "instruction": instruction,
        "delegate_id": delegate_id,
        "metadata": trace.metadata.intern(metadata),
        "start_at": table.field(Profile.START, 8),
        "end_at": table.field(Profile.END, 8),
    }


def _name(at: np.ndarray, delegate_id: np.ndarray, names: Contents[str]) -> np.ndarray:
    """Codes of the names at ``at``; where there is none, of the delegate's id if it has one."""
    if at.all():
        return names.intern(at)
    codes = np.empty(len(at), np.int32)
    spelt = at > 0
    codes[spelt] = names.intern(at[spelt])
    which, ids = pd.factorize(delegate_id[~spelt])
    texts = ["" if number == -1 else str(number) for number in ids.tolist()]
    codes[~spelt] = np.array([names.code(text) for text in texts], np.int32)[which]
    return codes


# Beyond this, sums of durations would no longer fit 64 bits.
_LONGEST_NS = 2**62


def read_etdump(
    path: str | Path, *, ticks_per_second: float = 1e9, partial: bool = False
) -> pd.DataFrame:
    """Read the profile events of an ETDump, one row each, in the order of the file.

    The runtime writes an event when it ends, so children precede their parent; how ``parent``
    and ``run`` are found is told in :mod:`workbench.trace.nesting`. Allocation and debug events
    get no row, but ``event`` counts them: it is the position among all events of the file. A
    run that never reached the end of its ``Method::execute`` keeps its rows, with ``run`` -1, and
    a warning says so: the ledger and all statistics leave it out.

    Parameters
    ----------
    path
        An ETDump (identifier ``ED00``), with or without the 4-byte size prefix.
    ticks_per_second
        Rate of the clock that the runtime logged; its default clock counts nanoseconds. The
        ends of an event are each rounded down to a nanosecond.
    partial
        Of a file that was cut short, read the runs that are whole, and warn. These are the last
        ones, for the runtime lays a trace out back to front; they are numbered from 0. It works
        for files by the writer of ExecuTorch 1.5 that hold nothing but profile events there; see
        :mod:`workbench.trace.recover`.

    Returns
    -------
    pandas.DataFrame
        Columns of :data:`workbench.schema.EVENTS`; and ``bundled_input``, the index of the block's
        bundled input or -1, and ``metadata``, the bytes that a delegate added. Text and bytes are
        categorical. A delegate's event without a name is named by its integer id.

    Raises
    ------
    TraceError
        The file cannot be read, is no ETDump, is cut short, or is malformed: what, and at which
        byte.
    UsageError
        ``ticks_per_second`` is no clock rate.
    """
    rate = _clock_rate(ticks_per_second)
    (events,) = _frames(Trace(Path(path), partial=partial), rate)
    return events


def stream_etdump(
    path: str | Path, runs_per_chunk: int = 5000, *, ticks_per_second: float = 1e9
) -> Iterator[pd.DataFrame]:
    """Read an ETDump that may be larger than memory, some runs at a time.

    Chunks put together are the frame of :func:`read_etdump`, but for the categories that later
    chunks add. The runtime starts a block for every run, and a chunk is so many whole blocks.

    Parameters
    ----------
    path, ticks_per_second
        As for :func:`read_etdump`.
    runs_per_chunk
        Blocks of a chunk; the memory that is used grows with it, not with the file.

    Yields
    ------
    pandas.DataFrame
        Columns of :data:`workbench.schema.EVENTS`.

    Raises
    ------
    TraceError, UsageError
        As :func:`read_etdump`; the former perhaps after some chunks.

    Examples
    --------
    The time of every operator, from a trace of any length::

        methods = find_methods(stream_etdump(path))
        for events in stream_etdump(path):
            ledger = build_ledger(events, methods)
    """
    if runs_per_chunk < 1:
        raise UsageError("runs_per_chunk must be at least 1", where=runs_per_chunk)
    rate = _clock_rate(ticks_per_second)
    trace = Trace(Path(path))
    for events in _frames(trace, rate, runs_per_chunk):
        yield events
        trace.forget()


def _frames(trace: Trace, rate: Fraction, at_a_time: int | None = None) -> Iterator[pd.DataFrame]:
    """The events of all blocks, or of so many at a time."""
    runs = 0
    for blocks in trace.blocks(at_a_time):
        columns = read_blocks(trace, blocks)
        columns["run"][columns["run"] >= 0] += runs
        runs = max(runs, int(columns["run"].max(initial=-1)) + 1)
        yield _frame(trace, blocks, columns, rate)


def _frame(
    trace: Trace, blocks: Blocks, columns: dict[str, np.ndarray], rate: Fraction
) -> pd.DataFrame:
    path, block = trace.buffer.path, columns["block"]
    start = _to_ns(columns["start"], rate, path)
    duration = _to_ns(columns["end"], rate, path) - start
    if duration.sum(dtype=float) > _LONGEST_NS:
        raise TraceError("the durations add up to more than a century", where=path)
    if unfinished := np.count_nonzero((columns["run"] < 0) & (columns["chain"] >= 0)):
        warnings.warn(f"{path}: {unfinished} events are of a run without an end", stacklevel=4)
    frame = {
        "block": block + np.int32(blocks.first),
        "block_name": _categorical(blocks.name[block], trace.block_names.values),
        "bundled_input": blocks.bundled_input[block],
        "run": columns["run"],
        "event": columns["event"],
        "parent": columns["parent"],
        "kind": _categorical(columns["kind"], KINDS),
        "name": _categorical(columns["name"], trace.names.values),
        "chain": columns["chain"],
        "instruction": columns["instruction"],
        "delegate_id": columns["delegate_id"],
        "metadata": _categorical(columns["metadata"], trace.metadata.values),
        "start_ns": start,
        "duration_ns": duration,
    }
    return check(pd.DataFrame(frame, copy=False), EVENTS)


def _to_ns(ticks: np.ndarray, rate: Fraction, path: Path) -> np.ndarray:
    """Ticks of a clock of ``rate`` per second in whole nanoseconds, rounded down, exactly."""
    scale = 10**9 / rate
    if scale == 1:
        return ticks
    whole, rest = np.divmod(ticks, scale.denominator)
    if (int(whole.max(initial=0)) + 1) * scale.numerator >= 2**63:
        raise TraceError(f"runs past the year 2262 at {float(rate):g} ticks per second", where=path)
    return whole * scale.numerator + rest * scale.numerator // scale.denominator


def _clock_rate(ticks_per_second: float) -> Fraction:
    """The rate as a fraction that 64-bit arithmetic can scale times with."""
    if math.isfinite(ticks_per_second) and ticks_per_second > 0:
        rate = Fraction(ticks_per_second).limit_denominator(1000)
        if rate and (scale := 10**9 / rate).numerator * scale.denominator < 2**63:
            return rate
    raise UsageError("ticks_per_second must be a clock rate", where=ticks_per_second)


def _categorical(codes: np.ndarray, values: Iterable[Hashable]) -> pd.Categorical:
    return pd.Categorical.from_codes(codes, list(values), validate=False)
