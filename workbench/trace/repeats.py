"""Blocks that repeat an earlier one but for their times: they are compared, not decoded.

A runtime that executes a method again writes the same bytes again. What differs is when, and how
far a table is from its layout, which is stored once per file. Every other byte that the decoder
would read is compared, so a repeat stands for the very events of the block that it repeats.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from workbench.trace.blocks import CHUNK, Blocks, Trace
from workbench.trace.fields import Event, Profile
from workbench.trace.flatbuffer import FlatBuffer
from workbench.trace.nesting import METHOD
from workbench.trace.spans import read_spans, read_times

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
