"""Records as JSON: written, read and checked."""

import json
import re
from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from workbench.errors import StoreError, unknown_name
from workbench.options import ALL

SCHEMA_VERSION = 3  #: Version of all JSON files; adding a field with a default does not change it.

T = TypeVar("T")


def to_json(record: object, *, compact: bool = False) -> str:
    """A record as JSON text, lists of numbers on one line each; or ``compact``, without spaces."""
    plain = msgspec.to_builtins(record, enc_hook=lambda number: number.item())  # of NumPy
    if compact:
        return json.dumps(plain, separators=(",", ":"), allow_nan=False) + "\n"
    text = json.dumps(plain, indent=1, allow_nan=False)
    return re.sub(r"\[\n[-\d.eE,\s]+\]", lambda m: " ".join(m[0].split()), text) + "\n"


def to_document(content: Mapping[str, Any]) -> str:
    """A mapping with a schema version added, as JSON text; see `to_plain`."""
    versioned = {"schema_version": SCHEMA_VERSION, **content}
    return json.dumps(to_plain(versioned), indent=1, allow_nan=False) + "\n"


def to_plain(value: Any) -> Any:
    """A value as JSON types.

    Frames become lists of records, records objects, paths text, numbers that are not finite null.
    """
    return msgspec.json.decode(msgspec.json.encode(value, enc_hook=_simplify))


def _simplify(value: Any) -> Any:
    """A value of another type as one that JSON has."""
    if hasattr(value, "to_dict"):
        objects = value.astype(object)
        return objects.where(value.notna(), None).to_dict("records")
    return value.tolist() if hasattr(value, "tolist") else str(value)


def from_json(cls: type[T], text: str | bytes, where: object) -> T:
    """A record of type ``cls`` from untrusted JSON text."""
    return structure(cls, check_version(parse_json(text, where), where), where)


#: Maps every digit to 0: a run of so many may be a number of more than 64 bits.
_ZEROS, _LONG = bytes.maketrans(b"123456789", 9 * b"0"), 19 * b"0"
_INTEGER = re.compile(rb"(?<![\w.+-])-?\d{19,}(?![\w.])")


def parse_json(text: str | bytes, where: object) -> dict[str, Any]:
    """The object in untrusted JSON text, unless that takes many times the memory of the text."""
    content = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    try:
        # An object takes up to 200 bytes, and 200 more as a record.
        if sum(map(content.count, (b"[", b"{"))) > 500_000 + len(content) // 24:
            raise ValueError("too many lists and objects")
        long = _INTEGER.findall(content) if _LONG in content.translate(_ZEROS) else ()
        if not all(-(2**63) <= int(digits) < 2**63 for digits in long):
            raise ValueError("a number of more than 64 bits")
        data = msgspec.json.decode(content)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"not JSON: {error}", where=where) from None
    if not isinstance(data, dict):
        raise StoreError("not a JSON object", where=where)
    return data


def check_version(data: dict[str, Any], where: object) -> dict[str, Any]:
    """A document of this schema version, else StoreError; options of exports as they are today."""
    version = data.get("schema_version", SCHEMA_VERSION)
    if type(version) is not int or version != SCHEMA_VERSION:
        what = f"schema version {version!r:.20}, this workbench reads {SCHEMA_VERSION}"
        hint = "read it with the workbench version that wrote it, or measure again"
        raise StoreError(what, where=where, hint=hint)
    if isinstance(export := data.get("export"), dict):
        data = {**data, "export": join_rewrites(export)}
    if isinstance(exports := data.get("exports"), dict):
        each = {k: join_rewrites(v) if isinstance(v, dict) else v for k, v in exports.items()}
        data = {**data, "exports": each}
    return data


#: The option of optional rewrites when the common ones were a flag.
_EARLIER = "also_rewrite"


def join_rewrites(options: dict[str, Any]) -> dict[str, Any]:
    """Options of an export with all rewrites in one."""
    if _EARLIER not in options:
        return options
    options = dict(options)
    names, common = options.pop(_EARLIER), options.get("rewrite") is True
    names = names if isinstance(names, list) else []
    return {**options, "rewrite": [*([ALL] if common else []), *names]}


def structure(cls: type[T], data: dict[str, Any], where: object) -> T:
    """A record of type ``cls`` from the content of a JSON or YAML file; converts no values.

    It is a `UsageError` if a record has an unknown key, and a `StoreError` if one is malformed.
    """
    _check_keys(cls, data, where)
    try:
        return msgspec.convert(data, cls, str_keys=True)
    except (ValueError, RecursionError) as error:
        reason, _, place = str(error).replace("`", "").partition(" - at ")
        what = f"not a {cls.__name__} record: {place or '$'}: {reason[:1].lower()}{reason[1:]}"
        raise StoreError(what, where=where) from None


def _check_keys(kind: Any, data: Any, where: object) -> None:
    """Refuse keys that no record of a type has, nor had: ``GONE``; msgspec skips them."""
    if _is_record(kind):
        kinds = _field_types(kind)
        for key, value in data.items() if isinstance(data, dict) else ():
            if key not in kinds and key not in getattr(kind, "GONE", ()):
                raise unknown_name("key", str(key), kinds, where)
            if kinds.get(key):
                _check_keys(kinds[key], value, where)
    elif isinstance(data, list) and get_origin(kind) is tuple:
        inner = get_args(kind)[0]
        for value in data:
            _check_keys(inner, value, where)
    elif isinstance(data, dict) and get_origin(kind) is not tuple:
        inner = get_args(kind)[1]
        for value in data.values():
            _check_keys(inner, value, where)


@cache
def _field_types(record: Any) -> dict[str, Any]:
    """The type of each field that has records in it; None for the others."""
    return {name: _find_records(hint) for name, hint in get_type_hints(record).items()}


@cache
def _is_record(kind: Any) -> bool:
    """Whether a type has a fixed set of keys: rows of frames may have further ones."""
    return is_dataclass(kind) or getattr(kind, "__closed__", False)


def _find_records(kind: Any) -> Any:
    """A type without ``| None`` if it is or has a record, else None."""
    if _is_record(kind):
        return kind
    if get_origin(kind) in (tuple, dict, Mapping):
        return kind if any(map(_find_records, get_args(kind))) else None
    return next(filter(None, map(_find_records, get_args(kind))), None)
