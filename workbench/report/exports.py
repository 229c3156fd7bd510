"""What exports made of a model, side by side."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from workbench.errors import UsageError
from workbench.records.codec import from_json
from workbench.records.runs import Export

RECORD = ".export.json"


def read_exports(folder: str | Path) -> list[Export]:
    """The records of all exports below a folder, in the order of their names.

    Raises
    ------
    UsageError
        There is none.
    StoreError
        One is corrupt.
    """
    paths = sorted(Path(folder).rglob(f"*{RECORD}"))
    if not paths:
        raise UsageError("no export record here", where=folder, hint="workbench export MODEL")
    return [from_json(Export, path.read_bytes(), path) for path in paths]


def compare_exports(exports: Iterable[Export]) -> pd.DataFrame:
    """One row for each export: its size, what was delegated, and how far it is from the model.

    Returns
    -------
    DataFrame
        ``size_mb``; ``delegates`` and ``undelegated`` count calls of a delegate and operators left
        behind; ``sqnr_db`` is that of the worst output, NaN where it could not be computed;
        ``problem`` is empty if none is known.
    """
    rows = [
        {
            "model": export.model,
            "dtype": export.dtype,
            "backend": export.backend,
            "size_mb": export.size_bytes / 1e6,
            "seconds": export.seconds,
            "delegates": sum(export.delegates.values()),
            "undelegated": sum(left.count for left in export.undelegated),
            "sqnr_db": min(
                (f.sqnr_db for f in export.fidelity if f.sqnr_db is not None), default=float("nan")
            ),
            "problem": export.problem,
        }
        for export in exports
    ]
    return pd.DataFrame(rows)


def list_partition(export: Export) -> pd.DataFrame:
    """The operators of an export that no delegate took, and why; the most frequent first."""
    columns = ["operator", "count", "reason", "source", "module"]
    rows = [
        (part.operator, part.count, part.reason, part.source, ", ".join(part.modules[:3]))
        for part in export.partition
        if not part.delegated
    ]
    table = pd.DataFrame(rows, columns=columns)
    return table.sort_values("count", ascending=False, kind="stable").reset_index(drop=True)
