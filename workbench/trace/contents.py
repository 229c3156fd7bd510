"""Strings and other vectors by content: equal ones get equal codes, wherever they are stored."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import numpy as np
import pandas as pd

from workbench.errors import TraceError
from workbench.trace.flatbuffer import FlatBuffer

#: Longest content that is told apart by the matrix, in bytes; a longer one is by itself.
LONGEST = 1020

# One odd weight per word: a multilinear hash. Equality is checked afterwards, so a collision
# costs time but never a wrong content.
_WEIGHTS = np.random.default_rng(0).integers(1, 2**63, LONGEST // 4 + 1, np.uint64) * 2 + 1

Value = TypeVar("Value", bound=Hashable)


class Contents(Generic[Value]):
    """The distinct contents of vectors of one kind; ``values[code]`` is the one of a code.

    Parameters
    ----------
    buffer
        The file.
    what
        What errors call such a vector.
    decode
        Makes the value from the bytes; a ValueError means that they are none.
    width
        Bytes of an element.
    longest
        Most bytes that a vector may have.
    """

    def __init__(
        self,
        buffer: FlatBuffer,
        what: str,
        decode: Callable[[bytes], Value],
        *,
        width: int = 1,
        longest: int | None = None,
    ):
        self.values: list[Value] = []
        self._buffer, self._what, self._decode, self._width = buffer, what, decode, width
        self._longest = buffer.size if longest is None else longest
        self._code_of: dict[Value, int] = {}
        self._code_at: dict[int, int] = {}
        self._left = buffer.size

    def code(self, value: Value) -> int:
        """The code of one value."""
        code = self._code_of.setdefault(value, len(self.values))
        if code == len(self.values):
            self.values.append(value)
        return code

    def intern(self, at: np.ndarray) -> np.ndarray:
        """Codes of the vectors at the positions ``at``; an absent one is an empty one."""
        if not at.all():
            codes = np.full(len(at), self.code(self._decode(b"")), np.int32)
            codes[at > 0] = self.intern(at[at > 0])
            return codes
        buffer, what = self._buffer, self._what
        sizes = self._width * buffer.words[at >> 2].astype(np.int64)
        buffer.require(at + 4 + sizes <= buffer.size, at, f"{what} reaches beyond the file")
        buffer.require(sizes <= self._longest, at, f"{what} has more than {self._longest} bytes")
        # Contents that take the same number of words, their length included, are rows of a matrix.
        widths = ((sizes.clip(max=LONGEST + 1) + 7) >> 2).astype(np.uint16)
        order = np.argsort(widths, kind="stable")
        end = np.cumsum(np.bincount(widths))
        codes = np.empty(len(at), np.int32)
        for width in np.flatnonzero(np.diff(end, prepend=0)).tolist():
            chosen = order[end[width - 1] : end[width]]
            intern = self._intern_rows if width <= len(_WEIGHTS) else self._intern_each
            codes[chosen] = intern(at[chosen], width)
        return codes

    def _intern_rows(self, at: np.ndarray, width: int) -> np.ndarray:
        """Codes of contents that take ``width`` words each.

        Only one of each content is decoded. The last word may hold padding besides; if that
        differs, contents that are equal are decoded more than once, to the same code.
        """
        rows = np.lib.stride_tricks.sliding_window_view(self._buffer.words, width)[at >> 2]
        codes, distinct = pd.factorize(rows @ _WEIGHTS[:width])
        first = np.empty(len(distinct), np.int64)
        first[codes[::-1]] = np.arange(len(codes))[::-1]
        if not np.array_equal(rows, rows[first].take(codes, axis=0)):
            _, first, codes = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        return self._intern_each(at[first], width)[codes]

    def _intern_each(self, at: np.ndarray, _: int) -> np.ndarray:
        return np.array([self._read(position) for position in at.tolist()], np.int32)

    def _read(self, position: int) -> int:
        """The code of one vector; what is read may not overlap, or it could exceed the file."""
        if position in self._code_at:
            return self._code_at[position]
        buffer, what = self._buffer, self._what
        size = self._width * int(buffer.words[position >> 2])
        self._left -= size
        if self._left < 0:
            raise TraceError(f"{what} overlaps others", where=buffer.path, offset=position)
        try:
            value = self._decode(buffer.bytes[position + 4 :][:size].tobytes())
        except ValueError:
            raise TraceError(
                f"{what} is not UTF-8", where=buffer.path, offset=position + 4
            ) from None
        return self._code_at.setdefault(position, self.code(value))
