"""Traces that were cut short: their whole blocks, made into a trace of their own.

The runtime lays a trace out back to front. The newest block comes first, and the layouts of tables
lie where each was first used, mostly at the end: that is what a file lacks that was cut while it
was written or copied. Without its layout a table cannot be read. But the runtime's writer uses few
of them, and it packs tables, vectors and strings without gaps. So layouts count as found if every
table makes sense by them, if every byte of the blocks then belongs to one thing, and if no other
layouts do as well. Otherwise nothing is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path

import numpy as np

from workbench.errors import TraceError
from workbench.trace.flatbuffer import LONGEST, ETDump, Event, FlatBuffer, Profile, RunData

#: Where each field of a table lies in it; under None, the size of the table.
Layout = Mapping[int | None, int]

# Those of the writer in ExecuTorch 1.5, for what it logs of a run: the fields in the order in which
# it adds them, but for those that have their default.
_RUN_DATA = {RunData.NAME: 4, RunData.EVENTS: 8, None: 12}
_EVENT = {Event.PROFILE: 4, None: 8}
_TIMES = {Profile.START: 4, Profile.END: 12}
_PROFILES = (
    {**_TIMES, Profile.INSTRUCTION: 20, Profile.NAME: 24, None: 28},
    {**_TIMES, Profile.CHAIN: 20, Profile.INSTRUCTION: 24, Profile.NAME: 28, None: 32},
    {**_TIMES, Profile.INSTRUCTION: 20, Profile.DELEGATE_STR: 24, Profile.METADATA: 28, None: 32},
    {**_TIMES, Profile.INSTRUCTION: 20, Profile.DELEGATE_INT: 24, Profile.METADATA: 28, None: 32},
)

# What a writer leaves out of a table, because it is what a reader takes it for anyway.
_DEFAULTS = {Profile.CHAIN: 0, Profile.INSTRUCTION: -1, Profile.DELEGATE_INT: -1}

_MOST_GUESSES = 64
_MOST_PADDING = 7


def keep_whole_blocks(data: np.ndarray, path: Path) -> tuple[np.ndarray, int, int]:
    """A trace of those blocks that are whole in one that was cut short.

    Parameters
    ----------
    data
        What there is of the trace, with its size prefix.
    path
        What errors name.

    Returns
    -------
    numpy.ndarray, int, int
        The bytes of the new trace; how many blocks it has, and how many the old one had.

    Raises
    ------
    TraceError
        No block is whole, or there is more or less than one way to read them.
    """
    rest = FlatBuffer(data[: len(data) & ~3], path)
    reference = rest.root(4).field(ETDump.RUN_DATA)
    vector = rest.follow(reference, "the blocks")
    (first,), (count,) = rest.vectors(vector, "the blocks")
    at = first + 4 * np.arange(count)
    runs = at + rest.words[at >> 2]
    in_order = (np.diff(runs, prepend=2**33) < 0) & (runs & 3 == 0)
    rest.require(in_order, at, "the blocks are not in order")
    # A block reaches up to the table of the one before it.
    oldest = 1 + np.count_nonzero(runs[:-1] > rest.size)
    if oldest >= count:
        raise TraceError("is cut short, and no run is whole", where=path, hint="copy it again")
    blocks = FlatBuffer(rest.bytes[: runs[oldest - 1]], path)
    groups = _find_layouts(blocks, runs[oldest:])

    parts, end = [blocks.bytes], blocks.size
    moved = []
    for group in groups:
        for home in group.lost:
            layout = _write_layout(group.layouts[home])
            its = group.at[group.home == home]
            moved.append((its, its - end))
            parts.append(layout)
            end += len(layout)
    trace = np.concatenate(parts)
    words = trace.view("<i4")
    for its, distance in moved:
        words[its >> 2] = distance
    words[0] = end - 4
    words[reference >> 2] += 4 * oldest
    words[(vector >> 2) + oldest] = count - oldest
    return trace, int(count - oldest), int(count)


@dataclass(frozen=True)
class _Group:
    """Tables of one type, where their layouts are or were, and what these are."""

    at: np.ndarray
    home: np.ndarray
    layouts: Mapping[int, Layout]
    lost: list[int]

    def field(self, slot: int) -> np.ndarray:
        """The positions of a field, 0 where there is none."""
        at = np.zeros(len(self.at), np.int64)
        for home, layout in self.layouts.items():
            if slot in layout:
                its = self.home == home
                at[its] = self.at[its] + layout[slot]
        return at

    def extents(self, buffer: FlatBuffer) -> tuple[np.ndarray, np.ndarray]:
        """Where the tables, and those of their layouts that are there, begin and end."""
        sizes = np.zeros(len(self.at), np.int64)
        for home, layout in self.layouts.items():
            sizes[self.home == home] = layout[None]
        there = np.array(sorted(set(self.layouts).difference(self.lost)), np.int64)
        lengths = buffer.halves[there >> 1].astype(np.int64)
        return np.append(self.at, there), np.append(self.at + sizes, there + lengths)


def _find_layouts(buffer: FlatBuffer, runs: np.ndarray) -> tuple[_Group, _Group, _Group]:
    """The blocks at ``runs``, their events, and their profile events, all with their layouts."""
    blocks = _guess(buffer, runs, (_RUN_DATA,), _lie_inside)[0]
    names = buffer.follow(blocks.field(RunData.NAME), "the name of a block")
    buffer.require(_are_vectors(buffer, names, text=True), runs, "the name of a block is none")
    vectors = buffer.follow(blocks.field(RunData.EVENTS), "the events of a block")
    entries, counts = buffer.vectors(vectors, "the events of a block")
    buffer.require(4 * np.cumsum(counts) <= buffer.size, vectors, "the events of a block overlap")
    block = np.repeat(np.arange(len(runs)), counts)
    place = np.arange(len(block)) - (np.cumsum(counts) - counts)[block]
    at = buffer.follow(entries[block] + 4 * place, "an event")
    events = _guess(buffer, at, (_EVENT,), _lie_inside)[0]
    profiles = buffer.follow(events.field(Event.PROFILE), "a profile event")
    buffer.require(profiles > 0, at, "is cut short, and holds other events than spans")

    things = [
        blocks.extents(buffer),
        events.extents(buffer),
        (vectors, vectors + 4 + 4 * counts),
        (names, names + 5 + buffer.words[names >> 2]),
    ]
    found = [
        spans
        for spans in _guess(buffer, profiles, _PROFILES, _are_spans)
        if _are_everything(buffer, runs.min(), [*things, *_things_of(buffer, spans)])
    ]
    if len(found) != 1:
        raise TraceError(
            "is cut short, and how its tables are laid out cannot be told for certain",
            where=buffer.path,
            hint="copy it again, or trace again",
        )
    return blocks, events, found[0]


def _guess(
    buffer: FlatBuffer,
    at: np.ndarray,
    book: tuple[Layout, ...],
    fits: Callable[[FlatBuffer, np.ndarray, Layout], bool],
) -> list[_Group]:
    """All ways to read the tables: by the layouts that are there, and otherwise by the book's."""
    home = at - buffer.signed_words[at >> 2]
    homes = np.unique(home).tolist()
    there = {place: _read_layout(buffer, place) for place in homes}
    options = [
        [
            layout
            for layout in ([there[place]] if there[place] else book)
            if fits(buffer, at[home == place], layout)
        ]
        for place in homes
    ]
    if not 0 < prod(map(len, options)) <= _MOST_GUESSES:
        raise TraceError(
            "is cut short, and its tables are laid out in an unknown way",
            where=buffer.path,
            hint="copy it again, or trace again",
        )
    lost = [place for place in homes if not there[place]]
    return [
        _Group(at, home, dict(zip(homes, choice, strict=True)), lost)
        for choice in product(*options)
    ]


def _read_layout(buffer: FlatBuffer, home: int) -> Layout | None:
    """The layout that is stored at ``home``, if that is not lost."""
    if home % 2 or home < 0:
        raise TraceError("a layout lies outside the file", where=buffer.path, offset=home)
    if home + 4 > buffer.size:
        return None
    length, size = buffer.halves[home >> 1 :][:2].tolist()
    if home + length > buffer.size:
        return None
    offsets = buffer.halves[(home >> 1) + 2 : (home + length) >> 1].tolist()
    if length < 4 or any(offset % 4 or offset + 4 > size for offset in offsets):
        raise TraceError("a layout is malformed", where=buffer.path, offset=home)
    return {None: size, **{slot: offset for slot, offset in enumerate(offsets) if offset}}


def _write_layout(layout: Layout) -> np.ndarray:
    slots = 1 + max(slot for slot in layout if slot is not None)
    offsets = [layout.get(slot, 0) for slot in range(slots)]
    halves = [4 + 2 * slots, layout[None], *offsets, *[0] * (slots % 2)]
    return np.array(halves, "<u2").view(np.uint8)


def _lie_inside(buffer: FlatBuffer, at: np.ndarray, layout: Layout) -> bool:
    """Whether all tables of this layout end before the file does."""
    return bool((at + layout[None] <= buffer.size).all())


def _are_spans(buffer: FlatBuffer, at: np.ndarray, layout: Layout) -> bool:
    """Whether all tables at the positions ``at`` are profile events of this layout."""
    times = [layout.get(slot, layout[None]) for slot in (Profile.START, Profile.END)]
    if not _lie_inside(buffer, at, layout) or max(times) + 8 > layout[None]:
        return False
    start, end = (buffer.u64(at + offset, 0) for offset in times)
    fine = (start > 0) & (start <= end) & (end < np.uint64(2**63))
    for slot, default in _DEFAULTS.items():
        if slot in layout:
            fine &= buffer.i32(at + layout[slot], 0) != default
    for slot in (Profile.NAME, Profile.DELEGATE_STR, Profile.METADATA):
        if slot in layout:
            stored = at + layout[slot]
            distance = buffer.words[stored >> 2]
            text = slot != Profile.METADATA
            fine &= (distance > 0) & _are_vectors(buffer, stored + distance, text=text)
    return bool(fine.all())


def _are_vectors(buffer: FlatBuffer, at: np.ndarray, *, text: bool) -> np.ndarray:
    """Which of the positions may be those of vectors of bytes, or of strings, which end with 0."""
    fine = (at & 3 == 0) & (at + 4 <= buffer.size)
    length = buffer.words[np.where(fine, at, 0) >> 2].astype(np.int64)
    fine &= at + 4 + length + text <= buffer.size
    if text:
        fine &= length <= LONGEST
        fine &= buffer.bytes[np.where(fine, at + 4 + length, 0)] == 0
    return fine


def _things_of(buffer: FlatBuffer, spans: _Group) -> list[tuple[np.ndarray, np.ndarray]]:
    """Where the tables, strings and metadata of profile events begin and end."""
    things = [spans.extents(buffer)]
    for slot in (Profile.NAME, Profile.DELEGATE_STR, Profile.METADATA):
        at = spans.field(slot)
        at = buffer.follow(at[at > 0], "a name")
        ends = at + 4 + buffer.words[at >> 2]
        things.append((at, ends if slot == Profile.METADATA else ends + 1))
    return things


def _are_everything(
    buffer: FlatBuffer, begin: int, things: list[tuple[np.ndarray, np.ndarray]]
) -> bool:
    """Whether the things fill the file from ``begin`` on: none overlap, between them is padding."""
    starts, ends = (np.concatenate(sides) for sides in zip(*things, strict=True))
    order = np.argsort(starts, kind="stable")
    gap = np.append(begin, ends[order])
    length = np.append(starts[order], buffer.size) - gap
    if (length < 0).any() or (length > _MOST_PADDING).any():
        return False
    return not any(buffer.bytes[gap[length > nth] + nth].any() for nth in range(_MOST_PADDING))
