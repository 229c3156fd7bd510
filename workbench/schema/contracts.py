"""JSON Schema, draft 2020-12, of records and frames."""

from __future__ import annotations

import types
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from inspect import cleandoc
from typing import Any, Union, get_args, get_origin, get_type_hints

from workbench.schema.columns import Frame

DIALECT = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, Any]

_SIMPLE = {str: "string", int: "integer", float: "number", bool: "boolean", types.NoneType: "null"}
#: Numbers that are not finite, and what is not known, are null.
_KINDS = {
    "int": {"type": "integer"},
    "float": {"type": ["number", "null"]},
    "bool": {"type": "boolean"},
    "text": {"type": ["string", "null"]},
}


@dataclass(frozen=True)
class Contract:
    """A schema in the making; ``definitions`` has the records and rows that it refers to."""

    definitions: dict[str, Schema] = field(default_factory=dict)

    def of(self, kind: Any) -> Schema:
        """The schema of a type: a record, a simple type, or what is made of these."""
        origin, parts = get_origin(kind), get_args(kind)
        if kind is Any:
            return {}
        if is_dataclass(kind):
            return self._refer(kind.__name__, lambda: self._record(kind))
        if origin in (types.UnionType, Union):
            return {"anyOf": [self.of(part) for part in parts]}
        if origin is tuple and parts[-1] is not ...:
            items = [self.of(part) for part in parts]
            return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
        if origin in (tuple, list):
            return {"type": "array", "items": self.of(parts[0])}
        if origin in (dict, Mapping):
            keys = {"propertyNames": {"pattern": r"^-?\d+$"}} if parts[0] is int else {}
            return {"type": "object", **keys, "additionalProperties": self.of(parts[1])}
        return {"type": _SIMPLE[kind]}

    def row(self, frame: Frame, *, without: tuple[str, ...] = (), **more: Schema) -> Schema:
        """The schema of one row of a frame, which may carry further columns."""
        if without or more:
            return _row(frame, without, more)
        return self._refer(frame.name, lambda: _row(frame, (), {}))

    def rows(self, frame: Frame, *, without: tuple[str, ...] = (), **more: Schema) -> Schema:
        """The schema of a frame: a list of rows."""
        return {"type": "array", "items": self.row(frame, without=without, **more)}

    def publish(self, name: str, version: int, body: Schema) -> Schema:
        """The whole schema of a document."""
        head = {"$schema": DIALECT, "$id": f"urn:executorch-workbench:{name}:{version}"}
        definitions = dict(sorted(self.definitions.items()))
        return {**head, **body, **({"$defs": definitions} if definitions else {})}

    def _refer(self, name: str, make: Any) -> Schema:
        if name not in self.definitions:
            self.definitions[name] = {}
            self.definitions[name] = make()
        return {"$ref": f"#/$defs/{name.replace(' ', '%20')}"}

    def _record(self, record: type) -> Schema:
        hints = get_type_hints(record)
        return {
            "description": cleandoc(record.__doc__ or "").split("\n\n")[0].replace("\n", " "),
            **closed(
                {entry.name: self.of(hints[entry.name]) for entry in fields(record)},
                optional=[*_with_default(record)],
            ),
        }


def closed(properties: Mapping[str, Schema], optional: Collection[str] = ()) -> Schema:
    """The schema of an object with these keys and no others."""
    required = [name for name in properties if name not in optional]
    return {
        "type": "object",
        "properties": dict(properties),
        "required": required,
        "additionalProperties": False,
    }


def nullable(schema: Schema) -> Schema:
    """The same, or null."""
    return {"anyOf": [schema, {"type": "null"}]}


def _with_default(record: type) -> Iterator[str]:
    for entry in fields(record):
        if entry.default is not MISSING or entry.default_factory is not MISSING:
            yield entry.name


def _row(frame: Frame, without: tuple[str, ...], more: Mapping[str, Schema]) -> Schema:
    columns = {
        column.name: {
            "description": f"{column.meaning}{f' [{column.unit}]' if column.unit else ''}",
            **_KINDS.get(column.kind, {}),
        }
        for column in frame.columns
        if column.name not in without
    }
    properties = {**more, **columns}
    return {"type": "object", "properties": properties, "required": list(properties)}
