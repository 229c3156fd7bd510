"""The type of a matrix, which people write, and its JSON Schema.

``python -m workbench.plugins.batch.matrix_document`` prints the schema.
"""

import json
from dataclasses import fields
from typing import Annotated, Any, NotRequired, TypedDict, get_args, get_type_hints

import msgspec

from workbench import ExportOptions, MeasureOptions
from workbench.jobs import SCHEMA_VERSION

#: A single value needs no brackets.
WORDS: Any = str | tuple[str, ...]
#: Keys of a matrix whose value may be written without brackets if it is a single one.
LISTS = ("models", "dtypes", "targets", "isa", "threads", "rewrite", "against", "programs")


def key(kind: Any, meaning: str) -> Any:
    """The type of a key, which may be missing."""
    return NotRequired[Annotated[kind, msgspec.Meta(description=meaning)]]


def _options(record: type, *excluded: str) -> dict[str, Any]:
    hints = get_type_hints(record)
    return {
        field.name: key(
            hints[field.name] | get_args(hints[field.name])[0]
            if field.name in LISTS
            else hints[field.name],
            field.metadata["help"]().removesuffix("."),
        )
        for field in fields(record)
        if field.name not in excluded
    }


#: Keys of a matrix that are options of all its exports, and of all its measurements. Code runs only
#: if the user named it: there is no ``ops``.
EXPORT_KEYS = _options(
    ExportOptions, "dtype", "state_dict", "inputs", "recipe", "fresh", "etrecord"
)
MEASURE_KEYS = _options(MeasureOptions, "toggle", "isa_ladder", "target", "ops")
KEYS = {
    "models": key(WORDS, "models, as of `workbench profile`"),
    "programs": key(WORDS, "finished programs, such as release/*.pte, beside or instead of models"),
    "dtypes": key(WORDS, "dtypes to export in; fp32 by default"),
    "targets": key(WORDS, "where to measure, as of --target; host by default"),
    "isa": key(
        WORDS, "a CPU extension to switch off and on, auto, none, or ladder for every level"
    ),
    "exclude": key(tuple[dict[str, str], ...], "cells to leave out: model, dtype, target or isa"),
    "notebook": key(str, "the notebook of the reports"),
    "export_limit_s": key(float, "seconds after which an export is killed; 3600 by default"),
    **EXPORT_KEYS,
    **MEASURE_KEYS,
}
MATRIX: Any = TypedDict("Matrix", KEYS)  # type: ignore[misc]
MATRIX.__doc__ = "The matrix of `workbench batch`, in YAML."


def outline_matrix() -> dict[str, Any]:
    """The JSON Schema of a matrix, draft 2020-12."""
    schema = msgspec.json.schema(MATRIX)
    schema["$defs"]["Matrix"]["additionalProperties"] = False
    schema["$defs"]["Matrix"]["anyOf"] = [{"required": ["models"]}, {"required": ["programs"]}]
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:executorch-workbench:matrix:{SCHEMA_VERSION}",
        "title": "matrix",
    }
    return head | schema


if __name__ == "__main__":
    print(json.dumps(outline_matrix(), indent=1))
