"""FlatBuffers as nested dictionaries; every position is checked, for files come from strangers."""

from __future__ import annotations

import struct
from typing import Any

from workbench.errors import StoreError
from workbench.export.fbs import Field, Schema

Buffer = memoryview

_BYTES = frozenset("bB?")
_STRUCTS = {code: struct.Struct(f"<{code}") for code in "?bBhHiIqQfd"}


def read_flatbuffer(data: Buffer, schema: Schema, root: str, where: object) -> dict[str, Any]:
    """Decode a buffer whose root is the table ``root``.

    Parameters
    ----------
    data
        The buffer, from the reference to its root on.
    schema
        What its tables are.
    root
        The root's name in the schema.
    where
        What errors name.

    Returns
    -------
    dict
        Fields by name. A scalar of an enumeration is its name, an absent table, string or vector
        is None, a union is ``(alias, table)``, a vector of bytes is a part of ``data``.

    Raises
    ------
    StoreError
        A reference leads out of the buffer, or its tables share bytes so much that they were
        made to stand for far more than the buffer holds.
    """
    return _Reader(data, schema, where).table(root, 0)


class _Reader:
    def __init__(self, data: Buffer, schema: Schema, where: object):
        self.data, self.size, self.where = data, len(data), where
        self.schema = schema
        # Writers may share equal strings and layouts, but no honest file shares its tables.
        self.budget = 4 * self.size + 64

    def table(self, name: str, reference: int) -> dict[str, Any]:
        """The table that the reference at a position leads to."""
        at = self.follow(reference)
        layout = at - self.scalar("i", at)
        length, size = self.scalar("H", layout), self.scalar("H", layout + 2)
        self.require(length >= 4 and size >= 4, layout)
        self.require(layout + length <= self.size and at + size <= self.size, layout)
        self.spend(size, at)
        offsets = struct.unpack_from(f"<{length // 2 - 2}H", self.data, layout + 4)
        return {
            field.name: self.field(field, at, offsets, size) for field in self.schema.tables[name]
        }

    def field(self, field: Field, table: int, offsets: tuple[int, ...], size: int) -> Any:
        offset = offsets[field.slot] if field.slot < len(offsets) else 0
        self.require(offset < size, table)
        at = table + offset
        if field.kind == "scalar":
            value = self.scalar(field.type, at) if offset else field.default
            return field.enum.get(value, value) if field.enum else value
        if not offset:
            return None
        if field.kind == "table":
            return self.table(field.type, at)
        if field.kind == "string":
            return self.string(at)
        if field.kind == "union":
            return self.union(field, table, offsets, at)
        return self.vector(field, at)

    def union(self, field: Field, table: int, offsets: tuple[int, ...], at: int) -> Any:
        """The value of a union, or None if it is of a kind that the schema does not know."""
        tag_offset = offsets[field.slot - 1]
        tag = self.scalar("B", table + tag_offset) if tag_offset else 0
        choices = self.schema.unions[field.type]
        if not 1 <= tag <= len(choices):
            return None
        alias, name = choices[tag - 1]
        return alias, self.table(name, at)

    def vector(self, field: Field, reference: int) -> Any:
        code = field.type if field.kind == "scalars" else "I"
        width = _STRUCTS[code].size
        start, count = self.extent(reference, width)
        if field.kind == "scalars":
            if code in _BYTES:
                return self.data[start : start + count]
            self.spend(count * width, start)
            return list(struct.unpack_from(f"<{count}{code}", self.data, start))
        self.spend(count * width, start)
        places = range(start, start + 4 * count, 4)
        if field.kind == "strings":
            return [self.string(place) for place in places]
        return [self.table(field.type, place) for place in places]

    def string(self, reference: int) -> str:
        start, count = self.extent(reference, 1)
        self.spend(count, start)
        return bytes(self.data[start : start + count]).decode("utf-8", "replace")

    def extent(self, reference: int, width: int) -> tuple[int, int]:
        """Where the elements of a vector begin, and how many there are."""
        at = self.follow(reference)
        count = self.scalar("I", at)
        self.require(at + 4 + count * width <= self.size, at)
        return at + 4, count

    def follow(self, reference: int) -> int:
        target = reference + self.scalar("I", reference)
        self.require(reference < target <= self.size - 4, reference)
        return target

    def scalar(self, code: str, at: int) -> Any:
        kind = _STRUCTS[code]
        self.require(0 <= at <= self.size - kind.size, at)
        return kind.unpack_from(self.data, at)[0]

    def spend(self, count: int, at: int) -> None:
        self.budget -= count
        self.require(self.budget >= 0, at)

    def require(self, fine: bool, at: int) -> None:
        if not fine:
            raise StoreError(
                f"malformed (at byte {at})", where=self.where, hint="copy or export it again"
            )
