"""Exports of a model side by side, from their records."""

import math
import shlex
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from workbench.analysis.quality import describe_noise
from workbench.errors import UsageError
from workbench.models.registry import list_models, parse_name, restore_name
from workbench.records.runs import Export
from workbench.store import load_record


def read_exports(folder: str | Path) -> list[Export]:
    """The records of all exports below a folder, sorted by path.

    Raises
    ------
    UsageError
        There are none.
    StoreError
        A record is corrupt.

    Examples
    --------
    >>> exports = wb.read_exports(wb.sample_file("exports"))
    >>> exports[0].model
    'squeezesam'
    """
    paths = sorted(Path(folder).rglob("*.export.json"))
    if not paths:
        raise UsageError("no export record here", where=folder, hint="workbench export MODEL")
    return [load_record(Export, path) for path in paths]


def model_spec(export: Export) -> str:
    """What ``load_model`` takes for the model of an export."""
    if export.spec or export.model in list_models():
        return export.spec or export.model
    if export.source.endswith(".py"):
        return f"{export.source}:{export.model}"
    return restore_name(export.model)


def trusted_spec(export: Export, where: Path) -> str:
    """The same, of a run in a folder, which may be a stranger's; UsageError if it is code."""
    spec = model_spec(export)
    if parse_name(spec).file:
        hint = f"if you trust it: --model {shlex.quote(spec)}"
        raise UsageError(f"the run's model is code in {spec}", where=where, hint=hint)
    return spec


def compare_exports(exports: Iterable[Export]) -> pd.DataFrame:
    """One row per export: size, delegation, and difference from the PyTorch model."""
    rows = [
        {name: getattr(export, name) for name in ("model", "dtype", "backend", "seconds")}
        | {
            "problem": export.problem or describe_noise(export),
            "size_mb": export.size_bytes / 1e6,
            "delegates": sum(export.delegates.values()),
            "undelegated": sum(left.count for left in export.undelegated),
            "sqnr_db": math.nan if export.sqnr_db is None else export.sqnr_db,
        }
        for export in exports
    ]
    return pd.DataFrame(rows)


def list_partition(export: Export) -> pd.DataFrame:
    """The undelegated operators of an export with reasons and places, the most frequent first."""
    rows = [
        (part.operator, part.count, part.reason, part.source, ", ".join(part.modules[:3]))
        for part in export.partition
        if not part.delegated
    ]
    table = pd.DataFrame(rows, columns=["operator", "count", "reason", "source", "module"])
    return table.sort_values("count", ascending=False, kind="stable").reset_index(drop=True)
