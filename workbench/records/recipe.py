"""The record of how to export a program again."""

from dataclasses import dataclass, field

from workbench.options import ExportOptions
from workbench.records.codec import SCHEMA_VERSION


@dataclass(frozen=True)
class Recipe:
    """``recipe.yaml``: how to export a program, and how many threads to run it with.

    ``changes`` says in words what is different from a plain export and what it brought; ``sha256``
    is the program's, made by these ``versions``.
    """

    model: str
    export: ExportOptions
    threads: int = 1
    changes: tuple[str, ...] = ()
    sha256: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION
