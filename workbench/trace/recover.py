"""Traces that were cut short: their complete blocks, made into a trace of their own.

The runtime writes a trace back to front. The layouts (vtables) of tables are stored where each was
first used, mostly at the end, so a cut file lacks them. But the runtime's writer uses few layouts
and leaves no gaps. So layouts count as found if every table makes sense by them, if every byte of
the blocks then belongs to exactly one item, and if no other layouts do as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path

import numpy as np

from workbench.errors import TraceError
from workbench.trace.flatbuffer import LONGEST, ETDump, Event, FlatBuffer, Profile, RunData

#: Offset of each field in a table, and under ``_SIZE`` the size of the table.
Layout = dict[int, int]
_SIZE = -1

# The layouts of the writer in ExecuTorch 1.5 for what it logs of a run: fields in the order in
# which it adds them, without those that have their default.
_RUN_DATA: Layout = {RunData.NAME: 4, RunData.EVENTS: 8, _SIZE: 12}
_EVENT: Layout = {Event.PROFILE: 4, _SIZE: 8}
_TIMES: Layout = {Profile.START: 4, Profile.END: 12}
_PROFILES: tuple[Layout, ...] = (
    {**_TIMES, Profile.INSTRUCTION: 20, Profile.NAME: 24, _SIZE: 28},
    {**_TIMES, Profile.CHAIN: 20, Profile.INSTRUCTION: 24, Profile.NAME: 28, _SIZE: 32},
    {**_TIMES, Profile.INSTRUCTION: 20, Profile.DELEGATE_STR: 24, Profile.METADATA: 28, _SIZE: 32},
    {**_TIMES, Profile.INSTRUCTION: 20, Profile.DELEGATE_INT: 24, Profile.METADATA: 28, _SIZE: 32},
)
_DEFAULTS = {Profile.CHAIN: 0, Profile.INSTRUCTION: -1, Profile.DELEGATE_INT: -1}
_VECTORS = (Profile.NAME, Profile.DELEGATE_STR, Profile.METADATA)

_MOST_GUESSES, _MOST_PADDING = 64, 7


def recover_blocks(data: np.ndarray, path: Path) -> tuple[np.ndarray, int, int]:
    """A trace of the complete blocks of one that was cut short; their number, then and now."""
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
        raise TraceError("is cut short, and no run is complete", where=path, hint="copy it again")
    blocks = FlatBuffer(rest.bytes[: runs[oldest - 1]], path)

    # The layouts that were lost are written behind the blocks.
    parts, end, moved = [blocks.bytes], blocks.size, []
    for group in _find_layouts(blocks, runs[oldest:]):
        for place in group.lost:
            layout = _write_layout(group.layouts[place])
            its = group.at[group.layout_at == place]
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
class _Tables:
    """Tables of one type, where the layout of each is or was, and one reading of the layouts."""

    at: np.ndarray
    layout_at: np.ndarray
    layouts: dict[int, Layout]
    lost: list[int]

    def field(self, slot: int) -> np.ndarray:
        """The positions of a field, 0 where there is none."""
        at = np.zeros(len(self.at), np.int64)
        for place, layout in self.layouts.items():
            if slot in layout:
                its = self.layout_at == place
                at[its] = self.at[its] + layout[slot]
        return at

    def extents(self, buffer: FlatBuffer) -> tuple[np.ndarray, np.ndarray]:
        """Where the tables, and those of their layouts that still exist, begin and end."""
        sizes = np.zeros(len(self.at), np.int64)
        for place, layout in self.layouts.items():
            sizes[self.layout_at == place] = layout[_SIZE]
        kept = np.array(sorted(set(self.layouts).difference(self.lost)), np.int64)
        lengths = buffer.halves[kept >> 1].astype(np.int64)
        return np.append(self.at, kept), np.append(self.at + sizes, kept + lengths)


def _find_layouts(buffer: FlatBuffer, runs: np.ndarray) -> tuple[_Tables, _Tables, _Tables]:
    """The blocks at ``runs``, their events, and their profile events, all with their layouts."""
    blocks = _readings(buffer, runs, (_RUN_DATA,), _are_inside)[0]
    names = buffer.follow(blocks.field(RunData.NAME), "the name of a block")
    named = _are_vectors(buffer, names, text=True)
    buffer.require(named, runs, "the name of a block is malformed")
    vectors = buffer.follow(blocks.field(RunData.EVENTS), "the events of a block")
    entries, counts = buffer.vectors(vectors, "the events of a block")
    buffer.require(4 * np.cumsum(counts) <= buffer.size, vectors, "the events of a block overlap")
    block = np.repeat(np.arange(len(runs)), counts)
    place = np.arange(len(block)) - (np.cumsum(counts) - counts)[block]
    at = buffer.follow(entries[block] + 4 * place, "an event")
    events = _readings(buffer, at, (_EVENT,), _are_inside)[0]
    profiles = buffer.follow(events.field(Event.PROFILE), "a profile event")
    buffer.require(profiles > 0, at, "is cut short, and holds other events than spans")

    items = [blocks.extents(buffer), events.extents(buffer), (vectors, vectors + 4 + 4 * counts)]
    items.append((names, names + 5 + buffer.words[names >> 2]))
    found = [
        spans
        for spans in _readings(buffer, profiles, _PROFILES, _are_spans)
        if _fill(buffer, runs.min(), [*items, *_items_of(buffer, spans)])
    ]
    if len(found) != 1:
        raise _unreadable(buffer, "how its tables are laid out is ambiguous")
    return blocks, events, found[0]


def _readings(
    buffer: FlatBuffer,
    at: np.ndarray,
    known: tuple[Layout, ...],
    fits: Callable[[FlatBuffer, np.ndarray, Layout], bool],
) -> list[_Tables]:
    """All ways to read the tables: by the layouts that still exist, otherwise by known ones."""
    layout_at = at - buffer.signed_words[at >> 2]
    kept = {place: _read_layout(buffer, place) for place in np.unique(layout_at).tolist()}
    options = [
        [
            layout
            for layout in (known if stored is None else (stored,))
            if fits(buffer, at[layout_at == place], layout)
        ]
        for place, stored in kept.items()
    ]
    if not 0 < prod(map(len, options)) <= _MOST_GUESSES:
        raise _unreadable(buffer, "its tables are laid out in an unknown way")
    lost = [place for place, stored in kept.items() if stored is None]
    return [
        _Tables(at, layout_at, dict(zip(kept, choice, strict=True)), lost)
        for choice in product(*options)
    ]


def _unreadable(buffer: FlatBuffer, why: str) -> TraceError:
    hint = "copy it again, or trace again"
    return TraceError(f"is cut short, and {why}", where=buffer.path, hint=hint)


def _read_layout(buffer: FlatBuffer, place: int) -> Layout | None:
    """The layout that is stored at a place; None if it was lost."""
    if place % 2 or place < 0:
        raise TraceError("a layout lies outside the file", where=buffer.path, offset=place)
    if place + 4 > buffer.size:
        return None
    length, size = buffer.halves[place >> 1 :][:2].tolist()
    if place + length > buffer.size:
        return None
    offsets = buffer.halves[(place >> 1) + 2 : (place + length) >> 1].tolist()
    if length < 4 or any(offset % 4 or offset + 4 > size for offset in offsets):
        raise TraceError("a layout is malformed", where=buffer.path, offset=place)
    return {_SIZE: size, **{slot: offset for slot, offset in enumerate(offsets) if offset}}


def _write_layout(layout: Layout) -> np.ndarray:
    slots = 1 + max(layout)
    offsets = [layout.get(slot, 0) for slot in range(slots + slots % 2)]
    return np.array([4 + 2 * slots, layout[_SIZE], *offsets], "<u2").view(np.uint8)


def _are_inside(buffer: FlatBuffer, at: np.ndarray, layout: Layout) -> bool:
    return bool((at + layout[_SIZE] <= buffer.size).all())


def _are_spans(buffer: FlatBuffer, at: np.ndarray, layout: Layout) -> bool:
    """Whether all tables at the positions ``at`` are profile events of this layout."""
    times = [layout.get(slot, layout[_SIZE]) for slot in (Profile.START, Profile.END)]
    if not _are_inside(buffer, at, layout) or max(times) + 8 > layout[_SIZE]:
        return False
    start, end = (buffer.u64(at + offset, 0) for offset in times)
    fine = (start > 0) & (start <= end) & (end < np.uint64(2**63))
    for slot, default in _DEFAULTS.items():
        if slot in layout:  # the writer leaves a field out that has its default
            fine &= buffer.i32(at + layout[slot], 0) != default
    for slot in _VECTORS:
        if slot in layout:
            stored = at + layout[slot]
            distance = buffer.words[stored >> 2]
            text = slot != Profile.METADATA
            fine &= (distance > 0) & _are_vectors(buffer, stored + distance, text=text)
    return bool(fine.all())


def _are_vectors(buffer: FlatBuffer, at: np.ndarray, *, text: bool) -> np.ndarray:
    """Which positions may be those of vectors of bytes, or of strings, which end with 0."""
    fine = (at & 3 == 0) & (at + 4 <= buffer.size)
    length = buffer.words[np.where(fine, at, 0) >> 2].astype(np.int64)
    fine &= at + 4 + length + text <= buffer.size
    if text:
        fine &= length <= LONGEST
        fine &= buffer.bytes[np.where(fine, at + 4 + length, 0)] == 0
    return fine


def _items_of(buffer: FlatBuffer, spans: _Tables) -> list[tuple[np.ndarray, np.ndarray]]:
    """Where the tables, strings and metadata of profile events begin and end."""
    items = [spans.extents(buffer)]
    for slot in _VECTORS:
        at = spans.field(slot)
        at = buffer.follow(at[at > 0], "a name")
        ends = at + 4 + buffer.words[at >> 2]
        items.append((at, ends if slot == Profile.METADATA else ends + 1))
    return items


def _fill(buffer: FlatBuffer, begin: int, items: list[tuple[np.ndarray, np.ndarray]]) -> bool:
    """Whether the items fill the file from ``begin`` on, without overlap, padding between them."""
    starts, ends = (np.concatenate(sides) for sides in zip(*items, strict=True))
    order = np.argsort(starts, kind="stable")
    gap = np.append(begin, ends[order])
    length = np.append(starts[order], buffer.size) - gap
    if (length < 0).any() or (length > _MOST_PADDING).any():
        return False
    return not any(buffer.bytes[gap[length > nth] + nth].any() for nth in range(_MOST_PADDING))
