"""FlatBuffer schemas (``.fbs``), as far as the formats of ExecuTorch use the language."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from workbench.errors import SetupError

#: The schema language's names for scalars, and those of ``struct``.
SCALARS = {
    "bool": "?", "byte": "b", "int8": "b", "ubyte": "B", "uint8": "B", "short": "h", "int16": "h",
    "ushort": "H", "uint16": "H", "int": "i", "int32": "i", "uint": "I", "uint32": "I",
    "long": "q", "int64": "q", "ulong": "Q", "uint64": "Q", "float": "f", "float32": "f",
    "double": "d", "float64": "d",
}  # fmt: skip

_COMMENT = re.compile(r"//[^\n]*")
_BLOCK = re.compile(r"\b(table|enum|union)\s+(\w+)\s*(?::\s*(\w+)\s*)?\{([^}]*)\}")
_FIELD = re.compile(r"(\w+)\s*:\s*(\[?)\s*([\w.]+)\s*\]?\s*(?:=\s*([\w.\-]+))?[^;]*;")


@dataclass(frozen=True)
class Field:
    """One field of a table.

    ``kind`` is ``scalar``, ``string``, ``table``, ``union``, or one of these in a vector:
    ``scalars``, ``strings``, ``tables``. ``type`` is the code of a scalar (as in ``struct``), or
    the name of a table or union; ``enum`` the names of a scalar's values.
    """

    name: str
    slot: int
    kind: str
    type: str
    default: Any = None
    enum: dict[int, str] | None = None


@dataclass(frozen=True)
class Schema:
    """Tables by name with their fields; unions by name with their ``(alias, table)`` choices."""

    tables: dict[str, tuple[Field, ...]]
    unions: dict[str, tuple[tuple[str, str], ...]]


@cache
def installed_schema(*files: str) -> Schema:
    """The schema in files of the installed ExecuTorch, by their paths in the package.

    Raises
    ------
    SetupError
        ExecuTorch is not installed, or lacks such a file.
    """
    spec = importlib.util.find_spec("executorch")
    folders = spec.submodule_search_locations if spec else ()
    texts = []
    for file in files:
        path = next((p for f in folders or () if (p := Path(f) / file).is_file()), None)
        if path is None:
            raise SetupError(f"no {file} in the installed ExecuTorch", hint="reinstall executorch")
        texts.append(path.read_text())
    return parse_schema("\n".join(texts))


def parse_schema(text: str) -> Schema:
    """Parse tables, enumerations and unions; everything else says nothing about the layout."""
    blocks = _BLOCK.findall(_COMMENT.sub("", text))
    enums = {
        name: (SCALARS[base], _enumerate(body))
        for kind, name, base, body in blocks
        if kind == "enum"
    }
    unions = {name: _choices(body) for kind, name, _, body in blocks if kind == "union"}
    tables = {
        name: _lay_out(_FIELD.findall(body), enums, unions)
        for kind, name, _, body in blocks
        if kind == "table"
    }
    return Schema(tables, unions)


def _enumerate(body: str) -> dict[int, str]:
    names, value = {}, 0
    for item in filter(None, map(str.strip, body.split(","))):
        name, _, given = (part.strip() for part in item.partition("="))
        value = int(given, 0) if given else value
        names[value] = name
        value += 1
    return names


def _choices(body: str) -> tuple[tuple[str, str], ...]:
    pairs = (item.partition(":") for item in filter(None, map(str.strip, body.split(","))))
    return tuple((alias.strip(), table.strip() or alias.strip()) for alias, _, table in pairs)


def _lay_out(
    fields: list[tuple[str, str, str, str]],
    enums: dict[str, tuple[str, dict[int, str]]],
    unions: dict[str, tuple[tuple[str, str], ...]],
) -> tuple[Field, ...]:
    laid_out, slot = [], 0
    for name, bracket, full_name, default in fields:
        kind, enum = full_name.rpartition(".")[2], None
        vector = "s" if bracket else ""
        if kind in unions:
            # The tag has a slot of its own, before that of the value.
            field = Field(name, slot + 1, "union", kind)
        elif kind in enums:
            code, enum = enums[kind]
            field = Field(name, slot, f"scalar{vector}", code, _value(code, default, enum), enum)
        elif kind in SCALARS:
            code = SCALARS[kind]
            field = Field(name, slot, f"scalar{vector}", code, _value(code, default, {}))
        else:
            field = Field(name, slot, ("string" if kind == "string" else "table") + vector, kind)
        laid_out.append(field)
        slot = field.slot + 1
    return tuple(laid_out)


def _value(code: str, text: str, enum: dict[int, str]) -> Any:
    """The default of a scalar field."""
    if code == "?":
        return text == "true"
    if code in "fd":
        return float(text or 0)
    by_name = {name: value for value, name in enum.items()}
    return by_name[text] if text in by_name else int(text or "0", 0)
