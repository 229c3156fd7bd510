"""Strings by content: equal names get equal codes, however often a file repeats their bytes."""

from __future__ import annotations

import numpy as np
import pandas as pd

from workbench.errors import TraceError
from workbench.trace.flatbuffer import FlatBuffer

#: Longest name that is taken for one, in bytes. Without a limit, many events of a small file could
#: share a huge name and fill the memory once their names are spelt out.
LONGEST = 1020

# One odd weight per word: a multilinear hash. Equality is checked afterwards, so a collision
# costs time but never a wrong name.
_WEIGHTS = np.random.default_rng(0).integers(1, 2**63, LONGEST // 4 + 1, np.uint64) * 2 + 1


class Names:
    """The distinct strings of a file.

    ``texts[code]`` is the string of a code.
    """

    def __init__(self, buffer: FlatBuffer):
        self.texts: list[str] = []
        self._buffer = buffer
        self._code_of: dict[str, int] = {}

    def code(self, text: str) -> int:
        """The code of one text."""
        code = self._code_of.setdefault(text, len(self.texts))
        if code == len(self.texts):
            self.texts.append(text)
        return code

    def intern(self, at: np.ndarray) -> np.ndarray:
        """Codes of the strings at the positions ``at``; an absent one is the empty string."""
        if not at.all():
            codes = np.full(len(at), self.code(""), np.int32)
            codes[at > 0] = self.intern(at[at > 0])
            return codes
        buffer = self._buffer
        lengths = buffer.words[at >> 2].astype(np.int64)
        buffer.require(
            at + 4 + lengths <= buffer.size, at, "a name reaches beyond the end of the file"
        )
        buffer.require(lengths <= LONGEST, at, f"a name has more than {LONGEST} bytes")
        # Strings that take the same number of words, their length included, are rows of a matrix.
        widths = ((lengths + 7) >> 2).astype(np.uint16)
        order = np.argsort(widths, kind="stable")
        end = np.cumsum(np.bincount(widths))
        codes = np.empty(len(at), np.int32)
        for width in np.unique(widths).tolist():
            chosen = order[end[width - 1] : end[width]]
            codes[chosen] = self._intern_rows(at[chosen], width)
        return codes

    def _intern_rows(self, at: np.ndarray, width: int) -> np.ndarray:
        """Codes of strings that take ``width`` words each.

        Only one string of each content is decoded. The last word may hold padding besides; if that
        differs, strings of one content are decoded more than once, to the same code.
        """
        rows = np.lib.stride_tricks.sliding_window_view(self._buffer.words, width)[at >> 2]
        codes, distinct = pd.factorize(rows @ _WEIGHTS[:width])
        first = np.empty(len(distinct), np.int64)
        first[codes[::-1]] = np.arange(len(codes))[::-1]
        if not np.array_equal(rows, rows[first].take(codes, axis=0)):
            _, first, codes = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        return np.array([self._read(position) for position in at[first].tolist()], np.int32)[codes]

    def _read(self, position: int) -> int:
        length = int(self._buffer.words[position >> 2])
        data = self._buffer.bytes[position + 4 : position + 4 + length].tobytes()
        try:
            return self.code(data.decode())
        except UnicodeDecodeError:
            raise TraceError(
                "a name is not UTF-8", where=self._buffer.path, offset=position + 4
            ) from None
