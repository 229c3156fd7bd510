"""FlatBuffer tables by the thousand: numpy arrays of positions instead of one accessor per table.

A position is a byte offset from the start of the file. Every function takes and gives whole arrays
of them and checks every one against the file before it reads, so a malformed file ends in a
:class:`TraceError` that names the first byte at fault. Position 0 stands for "absent": it holds
the file's header, so nothing can lie there.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from workbench.errors import TraceError


class FlatBuffer:
    """The bytes of one file, seen as bytes, 16-bit and 32-bit little-endian words.

    Parameters
    ----------
    data
        The bytes; a copy is made only where their number is no multiple of four.
    path
        What errors name.
    """

    def __init__(self, data: np.ndarray, path: Path):
        if len(data) % 4:
            data = np.pad(data, (0, -len(data) % 4))
        self.path = path
        self.size = len(data)
        self.bytes = data
        self.halves = data.view("<u2")
        self.words = data.view("<u4")
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
        return self.tables(target, "the root")

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

    def tables(self, at: np.ndarray, what: str) -> Tables:
        """The tables at ``at``, none of them absent."""
        return Tables(self, at, what)

    def vectors(self, at: np.ndarray, what: str) -> tuple[np.ndarray, np.ndarray]:
        """First positions and lengths of the vectors of references at ``at`` (0: an empty one)."""
        lengths = np.where(at > 0, self.words[at >> 2], 0).astype(np.int64)
        inside = at + 4 + 4 * lengths <= self.size
        self.require(inside, at, f"{what} reach beyond the end of the file")
        return at + 4, lengths

    def i8(self, at: np.ndarray, default: int) -> np.ndarray:
        """Signed bytes, ``default`` where absent."""
        return self._present(at, self.bytes.view(np.int8)[at], default)

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
    """Tables of one type, through the few layouts (vtables) that they share."""

    def __init__(self, buffer: FlatBuffer, at: np.ndarray, what: str):
        self.buffer, self.at, self.what = buffer, at, what
        # Distinct layouts are found by hashing: a trace has a handful, whatever its length.
        self.layout, layouts = pd.factorize(at - buffer.signed_words[at >> 2])
        self._check_layouts(layouts)
        self._first = layouts >> 1
        self._entries = buffer.halves[self._first] // 2
        self._sizes = buffer.halves[self._first + 1].astype(np.int64)
        fits = self.ends <= buffer.size
        buffer.require(fits, at, f"{what} reaches beyond the end of the file")

    @property
    def ends(self) -> np.ndarray:
        """Where the tables end."""
        return self.at + self._sizes[self.layout]

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
        """Positions of the field number ``slot`` of ``width`` bytes, 0 where absent.

        The first byte of a field lies at a multiple of four, unless it is the only one.
        """
        known = slot + 2 < self._entries
        offsets = np.zeros(len(known), np.int64)
        offsets[known] = self.buffer.halves[self._first[known] + 2 + slot]
        fine = (offsets >= 4) & (offsets + width <= self._sizes)
        fine &= (offsets & 3 == 0) | (width == 1)
        self.buffer.require(
            fine | (offsets == 0), self._first * 2, f"field {slot} of {self.what} lies outside it"
        )
        at = self.at + offsets[self.layout]
        return at if offsets.all() else at * (offsets > 0)[self.layout]
