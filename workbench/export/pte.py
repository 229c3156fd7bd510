"""What a ``.pte`` file holds: the program's tables, and the payloads of its delegates."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from workbench.errors import StoreError
from workbench.export.fbs import installed_schema
from workbench.export.flatbuffer import read_flatbuffer

_SCHEMA = ("exir/_serialize/scalar_type.fbs", "exir/_serialize/program.fbs")
_IDENTIFIER = slice(4, 8)
_MAGIC = slice(8, 12)


@dataclass(frozen=True)
class Pte:
    """A program's tables, and the file from where its segments begin."""

    tables: dict[str, Any]
    segments: memoryview
    where: object

    def payload(self, delegate: dict[str, Any]) -> memoryview:
        """The bytes that a delegate of an execution plan was compiled to.

        Raises
        ------
        StoreError
            They lie outside the file.
        """
        reference = delegate["processed"] or {}
        if reference.get("location") == "SEGMENT":
            segment = self._item("segments", reference["index"])
            first, size = segment["offset"], segment["size"]
            if first + size > len(self.segments):
                raise StoreError("a delegate lies outside the file", where=self.where)
            return self.segments[first : first + size]
        data = self._item("backend_delegate_data", reference.get("index", 0))["data"]
        return memoryview(b"") if data is None else data

    def _item(self, table: str, index: int) -> dict[str, Any]:
        items = self.tables[table] or []
        if index >= len(items):
            raise StoreError(f"has no entry {index} in {table}", where=self.where)
        return items[index]


def read_pte(data: bytes | memoryview, where: object) -> Pte:
    """Read the program of a ``.pte``.

    Raises
    ------
    StoreError
        It is none, or malformed.
    """
    data = memoryview(data)
    if len(data) < 12 or bytes(data[_IDENTIFIER])[:2] != b"ET":
        raise StoreError("not an ExecuTorch program", where=where)
    size, base = len(data), 0
    if bytes(data[_MAGIC]) == b"eh00":
        if len(data) < 32:
            raise StoreError("truncated", where=where)
        size, base = struct.unpack_from("<QQ", data, 16)
        if size > len(data) or base > len(data):
            raise StoreError("truncated", where=where, hint="copy or export it again")
    tables = read_flatbuffer(data[:size], installed_schema(*_SCHEMA), "Program", where)
    return Pte(tables, data[base:], where)
