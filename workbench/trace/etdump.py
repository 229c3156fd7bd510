"""ETDump files to the events frame, straight from the bytes as they lie in memory."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd

from workbench.errors import TraceError, UsageError
from workbench.schema import EVENTS, check
from workbench.trace.flatbuffer import FlatBuffer
from workbench.trace.names import Names
from workbench.trace.nesting import KINDS, classify, nest

IDENTIFIER = b"ED00"
VERSION = 0

# Size prefix, reference to the root, identifier.
_HEADER = 12

# Events decoded at a time: the work arrays then stay in the processor's cache.
_CHUNK = 1 << 15

# Beyond this, sums of durations would no longer fit 64 bits.
_LONGEST_NS = 2**62

# Field numbers of etdump_schema_flatcc.fbs.
_ETDUMP_VERSION, _ETDUMP_RUN_DATA = 0, 1
_RUN_NAME, _RUN_EVENTS = 0, 3
_EVENT_PROFILE = 0
_PROFILE_NAME, _PROFILE_CHAIN, _PROFILE_INSTRUCTION = 0, 1, 2
_PROFILE_DELEGATE_INT, _PROFILE_DELEGATE_STR = 3, 4
_PROFILE_START, _PROFILE_END = 6, 7

_DECODED = {
    "event": np.int64,
    "block": np.int32,
    "name": np.int32,
    "delegated": bool,
    "chain": np.int32,
    "instruction": np.int32,
    "delegate_id": np.int32,
    "start": np.int64,
    "end": np.int64,
}


def read_etdump(path: str | Path, *, ticks_per_second: float = 1e9) -> pd.DataFrame:
    """Read the profile events of an ETDump, one row each, in the order of the file.

    The runtime writes an event when it ends, so children precede their parent; how ``parent``
    and ``run`` are found is told in :mod:`workbench.trace.nesting`. Allocation and debug events
    get no row, but ``event`` counts them: it is the position among all events of the file. A
    last run that never reached the end of its ``Method::execute`` keeps its rows, with ``run`` -1.

    Parameters
    ----------
    path
        An ETDump (identifier ``ED00``), with or without the 4-byte size prefix.
    ticks_per_second
        Rate of the clock that the runtime logged; its default clock counts nanoseconds. The
        ends of an event are each rounded down to a nanosecond.

    Returns
    -------
    pandas.DataFrame
        Columns of :data:`workbench.schema.EVENTS`, and ``block_name``, the runtime's name for the
        block (``Default`` while loading, ``Execute``). Text columns are categorical. A delegate's
        event without a name is named by its integer id.

    Raises
    ------
    TraceError
        The file cannot be read, is no ETDump, or is malformed: what, and at which byte. A file
        that was cut short always is: the layouts of its first tables lie at its end.
    UsageError
        ``ticks_per_second`` is no clock rate.
    """
    path = Path(path)
    rate = _clock_rate(ticks_per_second)
    buffer, base = _open(path)
    blocks = _read_blocks(buffer, base)
    names = Names(buffer)
    events = _read_events(buffer, blocks, names)
    start = _to_ns(events["start"], rate, path)
    duration = _to_ns(events["end"], rate, path) - start
    if duration.sum(dtype=float) > _LONGEST_NS:
        raise TraceError("the durations add up to more than a century", where=path)
    kind = classify(events["name"], names.texts, events["delegated"])
    run, parent = nest(events["block"], kind, events["chain"], events["instruction"], start)
    nested = parent >= 0
    parent[nested] = events["event"][parent[nested]]
    columns = {
        "block": events["block"],
        "run": run,
        "event": events["event"],
        "parent": parent,
        "kind": _categorical(kind, KINDS),
        "name": _categorical(events["name"], names.texts),
        "chain": events["chain"],
        "instruction": events["instruction"],
        "delegate_id": events["delegate_id"],
        "start_ns": start,
        "duration_ns": duration,
        "block_name": _categorical(blocks.name[events["block"]], blocks.texts),
    }
    return check(pd.DataFrame(columns, copy=False), EVENTS)


@dataclass(frozen=True)
class _Blocks:
    """The blocks of a trace: where their event entries begin, how many, and their names."""

    entries: np.ndarray
    counts: np.ndarray
    name: np.ndarray
    texts: list[str]


def _open(path: Path) -> tuple[FlatBuffer, int]:
    """The mapped file, and where the reference to its root table is stored."""
    try:
        with open(path, "rb") as file:
            if not file.seek(0, os.SEEK_END):
                raise TraceError("is empty", where=path, hint="was the run traced?")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise TraceError(error.strerror or str(error), where=path) from None
    data = np.frombuffer(mapped, np.uint8)
    head = data[:_HEADER].tobytes()
    if head[4:8] == IDENTIFIER:
        return FlatBuffer(data, path), 0
    if head[8:12] != IDENTIFIER:
        raise TraceError("is not an ETDump", where=path, hint=_recognise(head))
    size = 4 + int.from_bytes(head[:4], "little")
    if size > len(data):
        raise TraceError(
            f"is cut short: {len(data)} of {size} bytes", where=path, hint="copy it again"
        )
    if size < _HEADER:
        raise TraceError(f"states a size of {size} bytes", where=path, offset=0)
    return FlatBuffer(data[:size], path), 4


def _recognise(head: bytes) -> str:
    if head[4:6] == b"ET":
        return "this is a program (.pte); run it with tracing on to get a trace"
    if head.startswith(b"PK"):
        return "this is an archive, such as an .etrecord; the trace is the .etdump"
    return "the trace is the .etdump that the runner wrote"


def _read_blocks(buffer: FlatBuffer, base: int) -> _Blocks:
    root = buffer.root(base)
    version = int(buffer.i32(root.field(_ETDUMP_VERSION), VERSION)[0])
    if version != VERSION:
        raise TraceError(f"ETDump version {version}, this reads {VERSION}", where=buffer.path)
    vector = buffer.follow(root.field(_ETDUMP_RUN_DATA), "the blocks")
    entries, counts = buffer.vectors(vector, "the blocks")
    at = entries[0] + 4 * np.arange(counts[0])
    runs = buffer.tables(buffer.follow(at, "a block"), "a block")
    vectors = buffer.follow(runs.field(_RUN_EVENTS), "the events of a block")
    entries, counts = buffer.vectors(vectors, "the events of a block")
    names = Names(buffer)
    name = names.intern(buffer.follow(runs.field(_RUN_NAME), "the name of a block"))
    return _Blocks(entries, counts, name, names.texts)


def _read_events(buffer: FlatBuffer, blocks: _Blocks, names: Names) -> dict[str, np.ndarray]:
    """The profile events as one array per field; ``name`` holds codes of ``names``."""
    block = np.repeat(np.arange(len(blocks.counts), dtype=np.int32), blocks.counts)
    before = np.cumsum(blocks.counts) - blocks.counts
    columns = {name: np.empty(len(block), dtype) for name, dtype in _DECODED.items()}
    filled = 0
    for begin in range(0, len(block), _CHUNK):
        index = block[begin : begin + _CHUNK]
        event = np.arange(begin, begin + len(index))
        at = blocks.entries[index] + 4 * (event - before[index])
        events = buffer.tables(buffer.follow(at, "an event"), "an event")
        profile = events.field(_EVENT_PROFILE)
        if not profile.all():
            index, event, profile = (part[profile > 0] for part in (index, event, profile))
        decoded = _decode(buffer, buffer.follow(profile, "a profile event"), names)
        decoded |= {"block": index, "event": event}
        for name, values in decoded.items():
            columns[name][filled : filled + len(event)] = values
        filled += len(event)
    return {name: column[:filled] for name, column in columns.items()}


def _decode(buffer: FlatBuffer, at: np.ndarray, names: Names) -> dict[str, np.ndarray]:
    """The fields of the profile events at the positions ``at``."""
    table = buffer.tables(at, "a profile event")
    start = buffer.u64(table.field(_PROFILE_START, 8), 0)
    end = buffer.u64(table.field(_PROFILE_END, 8), 0)
    buffer.require(end < np.uint64(2**63), at, "an event ends after the year 2262")
    buffer.require(start <= end, at, "an event ends before it starts")
    chain = buffer.i32(table.field(_PROFILE_CHAIN), 0).clip(-1)
    instruction = buffer.i32(table.field(_PROFILE_INSTRUCTION), -1)
    # Outside any instruction the runtime logs instruction 0 of chain -1.
    instruction[chain < 0] = -1
    delegate_id = buffer.i32(table.field(_PROFILE_DELEGATE_INT), -1)
    text = buffer.follow(table.field(_PROFILE_NAME), "a name")
    label = buffer.follow(table.field(_PROFILE_DELEGATE_STR), "a delegate's name")
    labelled = label > 0
    labelled[labelled] = buffer.words[label[labelled] >> 2] > 0
    return {
        "name": _name(np.where(text > 0, text, label), delegate_id, names),
        "delegated": (delegate_id != -1) | labelled,
        "chain": chain,
        "instruction": instruction,
        "delegate_id": delegate_id,
        "start": start,
        "end": end,
    }


def _name(at: np.ndarray, delegate_id: np.ndarray, names: Names) -> np.ndarray:
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


def _categorical(codes: np.ndarray, texts: Iterable[str]) -> pd.Categorical:
    return pd.Categorical.from_codes(codes, list(texts), validate=False)
