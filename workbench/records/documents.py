"""The files that people write: their types, and JSON Schemas of these.

``python -m workbench.records.documents NAME`` prints a schema.
"""

import json
import sys
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NotRequired, TypedDict

import msgspec
from msgspec import Meta

from workbench import plugin
from workbench.errors import unknown_name
from workbench.records.codec import SCHEMA_VERSION


@dataclass(frozen=True)
class Document:
    """A file that people write: its type, of which there is a JSON Schema."""

    schema: type

    #: A single value needs no brackets.
    WORDS: ClassVar[Any] = str | tuple[str, ...]

    @staticmethod
    def closed(title: str, meaning: str, /, **fields: Any) -> Any:
        """The type of an object, which has no further keys."""
        kind: Any = TypedDict(title, fields)  # type: ignore[misc]
        kind.__doc__ = meaning
        return kind

    @staticmethod
    def key(kind: Any, meaning: str) -> Any:
        """A key that a person may write in a matrix."""
        return NotRequired[Annotated[kind, Meta(description=meaning)]]


def outline_document(name: str) -> dict[str, Any]:
    """The JSON Schema, draft 2020-12, of one of the documents."""
    documents = plugin.collect("documents")
    if name not in documents:
        raise unknown_name("document", name, documents)
    schema = msgspec.json.schema(documents[name].schema)
    for title, record in schema["$defs"].items():
        record["additionalProperties"] = False
        if title == "Matrix":
            record["anyOf"] = [{"required": ["models"]}, {"required": ["programs"]}]
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:executorch-workbench:{name}:{SCHEMA_VERSION}",
        "title": name.replace("_", " "),
    }
    return head | schema


if __name__ == "__main__":
    print(json.dumps(outline_document(sys.argv[1]), indent=1))
