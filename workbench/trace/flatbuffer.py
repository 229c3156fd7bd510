"""FlatBuffer tables by the thousand: numpy arrays of positions instead of one accessor per table.

A position is a byte offset from the start of the file; 0, where the header is, means "absent".
Every position is checked before it is read: a malformed file ends in a :class:`TraceError` that
names the first byte at fault.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import pandas as pd

from workbench.errors import TraceError


class FlatBuffer:
    """The bytes of one file, seen as bytes, 16-bit and 32-bit little-endian words.

    They are copied only if their number is no multiple of four. Errors name the ``path``.
    """

    def __init__(self, data: np.ndarray, path: Path):
        if len(data) % 4:
            data = np.pad(data, (0, -len(data) % 4))
        self.path, self.size, self.bytes = path, len(data), data
        self.halves, self.words = data.view("<u2"), data.view("<u4")
        self.signed_words = data.view("<i4")

    def require(self, fine: np.ndarray, at: np.ndarray, what: str) -> None:
        """Raise a :class:`TraceError` at the first position ``at`` that is not ``fine``."""
        if not fine.all():
            raise TraceError(what, where=self.path, offset=int(at[np.argmin(fine)]))

    def root(self, base: int) -> Tables:
        """The root table, whose reference is stored at ``base``."""
        at = np.array([base])
        target = at + self.words[at >> 2]
        self.require(self._lie_after(target, at), at, "the reference to the root leads nowhere")
        return Tables(self, target, "the root")

    def follow(self, at: np.ndarray, what: str) -> np.ndarray:
        """The positions that the references stored at ``at`` point to; 0 stays 0."""
        target = at + self.words[at >> 2]
        fine = self._lie_after(target, at)
        if not at.all():
            present = at > 0
            target *= present
            fine |= ~present
        self.require(fine, at, f"the reference to {what} leads nowhere")
        return target

    def _lie_after(self, target: np.ndarray, at: np.ndarray) -> np.ndarray:
        return (target > at) & (target + 4 <= self.size) & (target & 3 == 0)

    def vectors(self, at: np.ndarray, what: str) -> tuple[np.ndarray, np.ndarray]:
        """First positions and lengths of the vectors of references at ``at`` (0: an empty one)."""
        lengths = np.where(at > 0, self.words[at >> 2], 0).astype(np.int64)
        inside = at + 4 + 4 * lengths <= self.size
        self.require(inside, at, f"{what} reach beyond the end of the file")
        return at + 4, lengths

    def i32(self, at: np.ndarray, default: int) -> np.ndarray:
        """Signed 32-bit values, ``default`` where absent."""
        return self._present(at, self.signed_words[at >> 2], default)

    def u64(self, at: np.ndarray, default: int) -> np.ndarray:
        """Unsigned 64-bit values, ``default`` where absent."""
        low = self.words[at >> 2].astype(np.uint64)
        high = self.words[(at >> 2) + 1].astype(np.uint64)
        return self._present(at, low | high << np.uint64(32), default)

    @staticmethod
    def _present(at: np.ndarray, values: np.ndarray, default: int) -> np.ndarray:
        if not at.all():
            values[at == 0] = default
        return values


class Tables:
    """Tables of one type, none absent, read through the few layouts (vtables) that they share."""

    def __init__(self, buffer: FlatBuffer, at: np.ndarray, what: str):
        self.buffer, self.at, self.what = buffer, at, what
        # Distinct layouts are found by hashing: a trace has a handful, whatever its length.
        self.layout, layouts = pd.factorize(at - buffer.signed_words[at >> 2])
        self._check_layouts(layouts)
        self._first = layouts >> 1
        self._entries = buffer.halves[self._first] // 2
        self._sizes = buffer.halves[self._first + 1].astype(np.int64)
        fits = at + self._sizes[self.layout] <= buffer.size
        buffer.require(fits, at, f"{what} reaches beyond the end of the file")

    def _check_layouts(self, layouts: np.ndarray) -> None:
        buffer, what = self.buffer, f"the layout of {self.what}"
        users = np.empty(len(layouts), np.int64)
        users[self.layout[::-1]] = self.at[::-1]
        inside = (layouts >= 4) & (layouts + 4 <= buffer.size) & (layouts & 1 == 0)
        buffer.require(inside, users, f"{what} lies outside the file")
        length = buffer.halves[layouts >> 1]
        fine = (length >= 4) & (length & 1 == 0) & (layouts + length <= buffer.size)
        fine &= buffer.halves[(layouts >> 1) + 1] >= 4
        buffer.require(fine, layouts, f"{what} is malformed")

    def field(self, slot: int, width: int = 4) -> np.ndarray:
        """Positions of the field number ``slot`` of ``width`` bytes, 0 where absent."""
        present = slot + 2 < self._entries
        offsets = np.zeros(len(present), np.int64)
        offsets[present] = self.buffer.halves[self._first[present] + 2 + slot]
        fine = (offsets >= 4) & (offsets + width <= self._sizes) & (offsets & 3 == 0)
        self.buffer.require(
            fine | (offsets == 0), self._first * 2, f"field {slot} of {self.what} lies outside it"
        )
        at = self.at + offsets[self.layout]
        return at if offsets.all() else at * (offsets > 0)[self.layout]


#: Longest content that is compared with others as it lies in the file, in bytes.
LONGEST = 1020

Content = TypeVar("Content", bound=Hashable)


class Contents(Generic[Content]):
    """The distinct strings or byte vectors of one kind; ``values[code]`` is the one of a code.

    Equal contents get equal codes, wherever they are stored. ``decode`` raises a ValueError for
    malformed bytes. A vector may have ``longest`` bytes; by default, as many as the file.
    """

    def __init__(
        self,
        buffer: FlatBuffer,
        what: str,
        decode: Callable[[bytes], Content],
        longest: int | None = None,
    ):
        self.values: list[Content] = []
        self._buffer, self._what, self._decode = buffer, what, decode
        self._longest = buffer.size if longest is None else longest
        self._code_of: dict[Content, int] = {}
        self._code_at: dict[int, int] = {}
        self._left = buffer.size

    def code(self, value: Content) -> int:
        """The code of one value."""
        code = self._code_of.setdefault(value, len(self.values))
        if code == len(self.values):
            self.values.append(value)
        return code

    def intern(self, at: np.ndarray) -> np.ndarray:
        """Codes of the vectors at the positions ``at``; an absent one is an empty one."""
        codes = np.empty(len(at), np.int32)
        if not at.all():
            codes[at == 0] = self.code(self._decode(b""))
            codes[at > 0] = self.intern(at[at > 0])
            return codes
        buffer, what = self._buffer, self._what
        sizes = buffer.words[at >> 2].astype(np.int64)
        buffer.require(at + 4 + sizes <= buffer.size, at, f"{what} reaches beyond the file")
        buffer.require(sizes <= self._longest, at, f"{what} has more than {self._longest} bytes")
        # Contents that take the same number of words, their length included, are compared at once.
        widths = (sizes.clip(max=LONGEST + 1) + 7) >> 2
        for width in np.flatnonzero(np.bincount(widths)).tolist():
            chosen = np.flatnonzero(widths == width)
            its: np.ndarray = at[chosen]
            words: np.ndarray = its
            if width <= LONGEST // 4 + 1:
                rows = np.lib.stride_tricks.sliding_window_view(buffer.words, width)[its >> 2]
                words = rows.view(f"S{4 * width}")[:, 0].astype(object)
            group, _ = pd.factorize(words)
            first = its[np.unique(group, return_index=True)[1]]
            codes[chosen] = np.array(list(map(self._read, first.tolist())), np.int32)[group]
        return codes

    def _read(self, position: int) -> int:
        """The code of one vector; what is read may not overlap, or it could exceed the file."""
        if position in self._code_at:
            return self._code_at[position]
        buffer, what = self._buffer, self._what
        size = int(buffer.words[position >> 2])
        self._left -= size
        if self._left < 0:
            raise TraceError(f"{what} overlaps others", where=buffer.path, offset=position)
        at = position + 4
        try:
            value = self._decode(buffer.bytes[at : at + size].tobytes())
        except ValueError:
            raise TraceError(f"{what} is not UTF-8", where=buffer.path, offset=at) from None
        return self._code_at.setdefault(position, self.code(value))
