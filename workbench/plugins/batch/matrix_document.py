"""The type of a matrix, which people write."""

from dataclasses import fields
from typing import Any, get_args, get_type_hints

from workbench import ExportOptions, MeasureOptions
from workbench.jobs import Document

key, WORDS = Document.key, Document.WORDS

#: Keys of a matrix whose value may be written without brackets if it is a single one.
LISTS = ("models", "dtypes", "targets", "isa", "threads", "rewrite", "against", "programs")


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
MATRIX = Document.closed(
    "Matrix", "The matrix of `workbench batch`, in YAML.",
    models=key(WORDS, "models, as of `workbench profile`"),
    programs=key(WORDS, "finished programs, such as release/*.pte, beside or instead of models"),
    dtypes=key(WORDS, "dtypes to export in; fp32 by default"),
    targets=key(WORDS, "where to measure, as of --target; host by default"),
    isa=key(WORDS, "a CPU extension to switch off and on, auto, none, or ladder for every level"),
    exclude=key(tuple[dict[str, str], ...], "cells to leave out: model, dtype, target or isa"),
    notebook=key(str, "the notebook of the reports"),
    export_limit_s=key(float, "seconds after which an export is killed; 3600 by default"),
    **EXPORT_KEYS, **MEASURE_KEYS,
)  # fmt: skip
DOCUMENT = Document(MATRIX)
