"""Frames as Parquet files, with the unit and meaning of each column."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from workbench.errors import SetupError
from workbench.frames import Frame, check
from workbench.store import atomic_write


def write_parquet(
    frame: pd.DataFrame, schema: Frame, path: Path, *, about: Mapping[str, str] | None = None
) -> Path:
    """Write a frame so that ``pandas.read_parquet`` restores it, categoricals included.

    Unit and meaning of each column go to the metadata of its field, and the name of the schema
    to that of the file, with what else is known ``about`` it: ``pyarrow.parquet.read_schema(path)``
    shows them. The index of the frame is not written.
    """
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise SetupError(
            "Parquet needs pyarrow", hint="pip install 'executorch-workbench[parquet]'"
        ) from None

    table = pa.Table.from_pandas(check(frame, schema), preserve_index=False)
    described = {c.name: {"unit": c.unit, "meaning": c.meaning} for c in schema.columns}
    fields = [field.with_metadata(described.get(field.name, {})) for field in table.schema]
    metadata = {**table.schema.metadata, "frame": schema.name, **(about or {})}
    content = io.BytesIO()
    parquet.write_table(table.cast(pa.schema(fields, metadata)), content)
    return atomic_write(path, content.getvalue())
