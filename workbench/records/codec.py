"""Records as JSON: written, read and checked, and described by JSON Schema (draft 2020-12)."""

import json
import math
import re
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache
from inspect import cleandoc
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from workbench.errors import StoreError, unknown_name
from workbench.frames import Frame
from workbench.records.runs import SCHEMA_VERSION

T = TypeVar("T")


def to_json(record: object) -> str:
    """A record as JSON text, lists of numbers on one line each."""
    import cattrs

    text = json.dumps(cattrs.unstructure(record), indent=1, allow_nan=False)
    return re.sub(r"\[\n[-\d.eE,\s]+\]", lambda m: " ".join(m[0].split()), text) + "\n"


def to_document(content: object) -> str:
    """A record, or a mapping with a schema version added, as JSON text; see `to_plain`."""
    if isinstance(content, Mapping):
        content = {"schema_version": SCHEMA_VERSION, **content}
    return json.dumps(to_plain(content), indent=1, allow_nan=False) + "\n"


def to_plain(value: Any) -> Any:
    """A value as JSON types.

    Frames become lists of records, records objects, paths text, numbers that are not finite null.
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): to_plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_plain(inner) for inner in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {entry.name: to_plain(getattr(value, entry.name)) for entry in fields(value)}
    if hasattr(value, "to_dict"):
        objects = value.astype(object)
        return to_plain(objects.where(value.notna(), None).to_dict("records"))
    return to_plain(value.tolist()) if hasattr(value, "tolist") else str(value)


def from_json(cls: type[T], text: str | bytes, where: object) -> T:
    """A record of type ``cls`` from untrusted JSON text."""
    return structure(cls, upgrade(parse_json(text, where), where), where)


def parse_json(text: str | bytes, where: object) -> dict[str, Any]:
    """The object in untrusted JSON text, unless that takes many times the memory of the text."""
    braces = (b"[", b"{") if isinstance(text, bytes) else ("[", "{")
    try:
        # An object takes up to 200 bytes, and 200 more as a record.
        if sum(map(text.count, braces)) > 500_000 + len(text) // 24:  # type: ignore[arg-type]
            raise ValueError("too many lists and objects")
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"not JSON: {error}", where=where) from None
    if not isinstance(data, dict):
        raise StoreError("not a JSON object", where=where)
    return data


def upgrade(data: dict[str, Any], where: object, *, least: int = 1) -> dict[str, Any]:
    """A document in the current schema version; StoreError if it is newer, or below ``least``."""
    version, known = data.get("schema_version", SCHEMA_VERSION), range(least, SCHEMA_VERSION + 1)
    if type(version) is not int or version not in known:
        hint = "read it with the workbench version that wrote it"
        if type(version) is int and 0 < version < least:
            hint = "regenerate it with `workbench analyze`"
        reads = ", ".join(map(str, known))
        what = f"schema version {version!r:.20}, this workbench reads {reads}"
        raise StoreError(what, where=where, hint=hint)
    for step in _UPGRADES[version - 1 :]:
        data = step(data)
    if isinstance(export := data.get("export"), dict):
        data = {**data, "export": upgrade(export, where)}
    if isinstance(exports := data.get("exports"), dict):
        each = {k: upgrade(v, where) if isinstance(v, dict) else v for k, v in exports.items()}
        data = {**data, "exports": each}
    return {**data, "schema_version": SCHEMA_VERSION} if "schema_version" in data else data


def _from_1(data: dict[str, Any]) -> dict[str, Any]:
    """Drop the list of notes of the first manifests, which was never used."""
    if data.get("notes") == []:
        data = {key: value for key, value in data.items() if key != "notes"}
    return data


def _from_2(data: dict[str, Any]) -> dict[str, Any]:
    """Rename a column of ISA levels: what a level ``reveals`` is what it ``adds``."""
    levels = data.get("ladder")
    if isinstance(levels, list) and all(isinstance(row, dict) for row in levels):
        renamed = [{"adds" if k == "reveals" else k: v for k, v in row.items()} for row in levels]
        data = {**data, "ladder": renamed}
    return data


#: Functions that convert a record to the next schema version, from the first one on.
_UPGRADES = (_from_1, _from_2)


def structure(cls: type[T], data: dict[str, Any], where: object, *, strict: bool = False) -> T:
    """A record of type ``cls`` from the content of a JSON file.

    ``strict`` converts no values: ``"2"`` and ``1.5`` are not whole numbers.
    """
    import cattrs

    try:
        return _converter(strict).structure(data, cls)
    except cattrs.BaseValidationError as error:
        for leaf in _leaves(error):
            if isinstance(leaf, cattrs.ForbiddenExtraKeysError):
                valid = [f.name for f in fields(leaf.cl)]
                raise unknown_name("key", min(leaf.extra_fields), valid, where) from None
        reason = cattrs.transform_error(error)[0].replace(" @ $", ": $")
        raise StoreError(f"not a {cls.__name__} record: {reason}", where=where) from None


@cache
def _converter(strict: bool) -> Any:
    import cattrs

    converter = cattrs.Converter(forbid_extra_keys=True)
    converter.register_structure_hook(int, _take_int)
    converter.register_structure_hook(bool, lambda value, _: bool(value))
    for kind in (int, str, bool) if strict else ():
        converter.register_structure_hook(kind, _take_only)
    converter.register_structure_hook_factory(_is_collection, _take_each)
    return converter


def _is_collection(kind: Any) -> bool:
    """Whether a type is ``tuple[X, ...]`` or a mapping."""
    return get_origin(kind) in (dict, Mapping) or get_args(kind)[1:] == (...,)


def _take_each(kind: Any, converter: Any) -> Callable[[Any, Any], Any]:
    """A hook for a collection that stops at the first bad element: millions would take hours."""
    from cattrs.errors import IterableValidationError, IterableValidationNote

    first, second = get_args(kind)
    is_mapping = second is not ...
    inner = second if is_mapping else first
    take_value = converter.get_structure_hook(inner)
    take_key = converter.get_structure_hook(first) if is_mapping else lambda number, _: number

    def take(values: Any, _: Any) -> Any:
        if not is_mapping and isinstance(values, str | Mapping):
            raise TypeError("expected a list")
        taken = {}
        for at, value in values.items() if is_mapping else enumerate(values):
            try:
                taken[take_key(at, first)] = take_value(value, inner)
            except Exception as error:  # each hook raises its own types
                error.add_note(IterableValidationNote(f"Structuring @ {at!r}", at, inner))
                raise IterableValidationError("in a collection", [error], kind) from None
        return taken if is_mapping else tuple(taken.values())

    return take


def _take_int(value: Any, _: type) -> int:
    """A whole number that arrays can hold."""
    number = int(value)
    if not -(2**63) <= number < 2**63:
        raise ValueError("a number of more than 64 bits")
    return number


def _take_only(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{value!r:.40} is not {kind.__name__}")
    return value


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


DIALECT = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, Any]

_SIMPLE = {str: "string", int: "integer", float: "number", bool: "boolean", types.NoneType: "null"}
#: Numbers that are not finite, and what is not known, are null.
_KINDS: dict[str, Schema] = {
    "int": {"type": "integer"},
    "float": {"type": ["number", "null"]},
    "bool": {"type": "boolean"},
    "text": {"type": ["string", "null"]},
}


#: Columns that rows of older files of this schema version lack.
_LATER = frozenset({"latency", "restarts"})


class Columns:
    """The columns of a row: those of a frame, and further ones (name and type) before them."""

    def __init__(self, frame: Frame, *, without: tuple[str, ...] = (), **more: object):
        self.frame = frame
        self.more = more
        self.known = [c for c in frame.columns if c.name not in (*without, *more)]


@dataclass(frozen=True)
class Contract:
    """A schema being built; ``definitions`` has the records and rows that it refers to."""

    definitions: dict[str, Schema] = field(default_factory=dict)

    def of(self, kind: Any) -> Schema:
        """The schema of a type: a record, a simple type, or a collection or union of these.

        ``Annotated`` with `Columns` is a row of a frame or a list of rows; with a dict, a type with
        further keywords.
        """
        origin, parts = get_origin(kind), get_args(kind)
        if kind is Any:
            return {}
        if origin is Annotated and isinstance(parts[1], Columns):
            row = self._row(parts[1])
            return {"type": "array", "items": row} if get_origin(parts[0]) is tuple else row
        if origin is Annotated:
            return {**self.of(parts[0]), **parts[1]}
        if origin is Literal:
            return {"enum": list(parts)}
        if isinstance(kind, type) and is_dataclass(kind):
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

    def publish(self, name: str, version: int, body: Schema) -> Schema:
        """The whole schema of a document."""
        head = {"$schema": DIALECT, "$id": f"urn:executorch-workbench:{name}:{version}"}
        definitions = dict(sorted(self.definitions.items()))
        return {**head, **body, **({"$defs": definitions} if definitions else {})}

    def _refer(self, name: str, make: Callable[[], Schema]) -> Schema:
        if name not in self.definitions:
            self.definitions[name] = {}
            self.definitions[name] = make()
        return {"$ref": f"#/$defs/{name.replace(' ', '%20')}"}

    def _record(self, record: type) -> Schema:
        hints = get_type_hints(record, include_extras=True)
        properties = {entry.name: self.of(hints[entry.name]) for entry in fields(record)}
        if "schema_version" in properties:
            properties["schema_version"] = {"const": SCHEMA_VERSION}
        return {
            "description": cleandoc(record.__doc__ or "").split("\n\n")[0].replace("\n", " "),
            "type": "object",
            "properties": properties,
            "required": [
                entry.name
                for entry in fields(record)
                if entry.default is MISSING and entry.default_factory is MISSING
            ],
            "additionalProperties": False,
        }

    def _row(self, columns: Columns) -> Schema:
        if not columns.more and len(columns.known) == len(columns.frame.columns):
            return self._refer(columns.frame.name, lambda: self._properties(columns))
        return self._properties(columns)

    def _properties(self, columns: Columns) -> Schema:
        properties = {name: self.of(kind) for name, kind in columns.more.items()}
        for column in columns.known:
            meaning = f"{column.meaning}{f' [{column.unit}]' if column.unit else ''}"
            properties[column.name] = {"description": meaning, **_KINDS.get(column.kind, {})}
        required = [name for name in properties if name not in _LATER]
        return {"type": "object", "properties": properties, "required": required}
