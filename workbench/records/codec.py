"""Records as JSON: written, read and checked."""

import json
import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from workbench.errors import StoreError, unknown_name

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


_DAMAGED = "correct it, or copy it again"


def parse_json(text: str | bytes, where: object) -> dict[str, Any]:
    """The object in untrusted JSON text, unless that takes many times the memory of the text."""
    content = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    try:
        # An object takes up to 200 bytes, and 200 more as a record.
        if sum(map(content.count, (b"[", b"{"))) > 500_000 + len(content) // 24:
            raise ValueError("too many lists and objects")
        data = msgspec.json.decode(content)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"not JSON: {error}", where=where, hint=_DAMAGED) from None
    if not isinstance(data, dict):
        raise StoreError("not a JSON object", where=where, hint=_DAMAGED)
    return data


def check_version(data: dict[str, Any], where: object) -> dict[str, Any]:
    """A document of this schema version, else StoreError."""
    version = data.get("schema_version", SCHEMA_VERSION)
    if type(version) is not int or version != SCHEMA_VERSION:
        what = f"schema version {version!r:.20}, this workbench reads {SCHEMA_VERSION}"
        hint = "read it with the workbench version that wrote it, or measure again"
        raise StoreError(what, where=where, hint=hint)
    return data


def structure(cls: type[T], data: dict[str, Any], where: object) -> T:
    """A record of type ``cls`` from the content of a JSON or YAML file; converts no values.

    Keys that it does not have are passed over: earlier workbenches wrote some. It is a `StoreError`
    if the record is malformed.
    """
    try:
        return msgspec.convert(data, cls, str_keys=True)
    except (ValueError, RecursionError) as error:
        reason, _, place = str(error).replace("`", "").partition(" - at ")
        what = f"not a {cls.__name__} record: {place or '$'}: {reason[:1].lower()}{reason[1:]}"
        raise StoreError(what, where=where, hint=_DAMAGED) from None


def check_keys(record: object, data: Any, where: object) -> None:
    """UsageError for a key of a file that a person wrote and that its ``record`` does not have."""
    _compare_keys(msgspec.to_builtins(record), data, where)


def _compare_keys(record: Any, data: Any, where: object) -> None:
    if isinstance(record, dict):
        for key, value in data.items():
            if str(key) not in record:
                raise unknown_name("key", str(key), record, where)
            _compare_keys(record[str(key)], value, where)
    elif isinstance(record, list | tuple):
        for part, value in zip(record, data, strict=True):
            _compare_keys(part, value, where)
