"""What a frame is made of: named columns with a kind, a unit and a meaning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from workbench.errors import StoreError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Column:
    """One column: its name, kind, unit and meaning.

    Kinds are ``int``, ``float``, ``bool``, ``text``, ``bytes``, and ``object`` for Python objects
    such as a shape.
    """

    name: str
    kind: str
    unit: str
    meaning: str


@dataclass(frozen=True)
class Frame:
    """A named set of columns; a frame may carry further columns, never fewer."""

    name: str
    columns: tuple[Column, ...]

    @property
    def names(self) -> list[str]:
        """The column names, in order."""
        return [column.name for column in self.columns]

    def table(self) -> str:
        """The columns as a Markdown table."""
        rows = [f"| {c.name} | {c.kind} | {c.unit} | {c.meaning} |" for c in self.columns]
        return "\n".join(["| column | kind | unit | meaning |", "|---|---|---|---|", *rows])


def make_frame(name: str, *columns: tuple[str, str, str, str]) -> Frame:
    """A frame from the names, kinds, units and meanings of its columns."""
    return Frame(name, tuple(Column(*column) for column in columns))


def check(frame: pd.DataFrame, schema: Frame) -> pd.DataFrame:
    """Return ``frame`` if it has the columns of ``schema`` in the right kinds.

    Raises
    ------
    StoreError
        Naming the frame, the column, and what is wrong with it.
    """
    import pandas as pd

    kinds = {
        "int": pd.api.types.is_integer_dtype,
        "float": pd.api.types.is_numeric_dtype,
        "bool": pd.api.types.is_bool_dtype,
        "text": lambda dtype: not pd.api.types.is_numeric_dtype(dtype),
        "bytes": lambda dtype: not pd.api.types.is_numeric_dtype(dtype),
        "object": pd.api.types.is_object_dtype,
    }
    for column in schema.columns:
        if column.name not in frame.columns:
            raise StoreError(f"column {column.name!r} is missing", where=f"{schema.name} frame")
        dtype = frame[column.name].dtype
        if len(frame) and not kinds[column.kind](dtype):
            raise StoreError(
                f"column {column.name!r} is {dtype}, not {column.kind}",
                where=f"{schema.name} frame",
            )
    return frame
