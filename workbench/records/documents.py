"""The files that people write, or read with scripts: their types, and JSON Schemas of these.

``python -m workbench.records.documents NAME`` prints a schema.
"""

import json
import sys
from dataclasses import dataclass
from types import GenericAlias
from typing import Annotated, Any, ClassVar, Literal, NotRequired, TypedDict

import msgspec
from msgspec import Meta

from workbench import plugin
from workbench.errors import unknown_name
from workbench.frames import STATISTICS, Frame
from workbench.records.codec import SCHEMA_VERSION

#: Numbers that are not finite, and what is not known, are null.
_TYPES = {"int": int, "float": float | None, "bool": bool, "text": str | None}


def _columns(frame: Frame) -> dict[str, Any]:
    """The types of a row's columns, by name."""
    columns: dict[str, Any] = {}
    for name, kind, unit, meaning in frame.columns:
        text = f"{meaning}{f' [{unit}]' if unit else ''}"
        value: Any = Annotated[_TYPES[kind], Meta(description=text)]  # type: ignore[valid-type]
        columns[name] = value
    return columns


@dataclass(frozen=True)
class Document:
    """A file that people write, or read with scripts: its type, of which there is a JSON Schema."""

    schema: type

    #: A single value needs no brackets.
    WORDS: ClassVar[Any] = str | tuple[str, ...]

    @staticmethod
    def list_of(kind: Any) -> Any:
        """The type of a list."""
        return GenericAlias(tuple, (kind, ...))

    @staticmethod
    def open(title: str, /, **keys: Any) -> Any:
        """The type of an object that may have further keys."""
        return TypedDict(title, keys)  # type: ignore[operator]

    @staticmethod
    def closed(title: str, meaning: str, /, **fields: Any) -> Any:
        """The type of an object, which has no further keys."""
        kind: Any = TypedDict(title, fields)  # type: ignore[misc]
        kind.__doc__, kind.__closed__ = meaning, True  # type: ignore[attr-defined]
        return kind

    @staticmethod
    def key(kind: Any, meaning: str) -> Any:
        """A key that a person may write in a matrix."""
        return NotRequired[Annotated[kind, Meta(description=meaning)]]


_RESOURCE = Document.closed(
    "MeasuredResource", "What a process needs, in every start that was measured.",
    resource=str, unit=str, values=tuple[Annotated[float, Meta(ge=0)], ...],
)  # fmt: skip
_LATENCY = Document.open(
    "measured latency", experiment=str, threads=int,
    clock=Literal["cpu_ns", "wall_ns"], control=bool,
    restarts_ms=Annotated[tuple[Annotated[float, Meta(ge=0)], ...], Meta(min_length=1)],
    tracer_overhead=float | None, load_clock=NotRequired[Literal["wall_ns"]],
    load_ms=tuple[float, ...], startup_ms=tuple[float, ...],
    resources=NotRequired[Document.list_of(_RESOURCE)], **_columns(STATISTICS),
)  # fmt: skip
#: ``programs`` has those of experiments that ran another one than the first, ``program``;
#: ``graphs`` what tells the models of experiments, as far as it is known;
#: ``problem`` is what is wrong with the outputs of some program, or empty; ``results`` are for the
#: scripts of Arm's profiling kit.
METRICS = Document.closed(
    "Metrics",
    "``metrics.json``: latencies, starts and memory of a run, to compare later ones with.",
    model=str, program=str, device=str, build=str, emulated=bool, started=str, floor=float | None,
    latencies=Document.list_of(_LATENCY), unit=NotRequired[Literal["ms"]], problem=NotRequired[str],
    results=NotRequired[tuple[dict[str, Any], ...]], programs=NotRequired[dict[str, str]],
    graphs=NotRequired[dict[str, str]], schema_version=NotRequired[int],
)  # fmt: skip


DOCUMENTS = {"metrics": Document(METRICS)}


def outline_document(name: str) -> dict[str, Any]:
    """The JSON Schema, draft 2020-12, of one of the documents."""
    documents = {**DOCUMENTS, **plugin.collect("documents")}
    if name not in documents:
        raise unknown_name("document", name, documents)
    kind = documents[name].schema
    closed, schema = getattr(kind, "__closed__", None), msgspec.json.schema(kind)
    for title, record in schema["$defs"].items():
        if "description" in record:  # rows have none, and may have further columns
            record["additionalProperties"] = title == kind.__name__ and not closed
        if title == "Matrix":
            record["anyOf"] = [{"required": ["models"]}, {"required": ["programs"]}]
        if "schema_version" in record["properties"]:
            record["properties"]["schema_version"] = {"const": SCHEMA_VERSION}
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:executorch-workbench:{name}:{SCHEMA_VERSION}",
        "title": name.replace("_", " "),
    }
    return head | schema


if __name__ == "__main__":
    print(json.dumps(outline_document(sys.argv[1]), indent=1))
