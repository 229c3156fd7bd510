"""Exports of a model side by side, from their records, and the model of an export."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from workbench.analysis.quality import describe_noise
from workbench.errors import UsageError
from workbench.export.artifact import recall_loaded, recall_model
from workbench.export.reload import load_again, read_options
from workbench.models.registry import list_models, parse_name, restore_name
from workbench.options import ExportOptions
from workbench.process import silence
from workbench.records.exports import Export
from workbench.store import load_record

if TYPE_CHECKING:  # these import PyTorch
    from torch import nn

    from workbench.analysis.run import Measurement
    from workbench.export.traced import TracedModel
    from workbench.models.loader import LoadedModel


def read_exports(folder: str | Path) -> list[Export]:
    """The records of all exports below a folder, sorted by folder; those without rewrites first.

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
    exports = {path: load_record(Export, path) for path in paths}
    ordered = sorted(paths, key=lambda path: (path.parent, exports[path].rewrite != (), path))
    return [exports[path] for path in ordered]


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


@dataclass(frozen=True)
class Original:
    """The model that a measured program was exported from."""

    of: Measurement

    @property
    def options(self) -> ExportOptions:
        """The options that it was exported with."""
        return read_options(self.check())

    def check(self) -> Export:
        """The export, of whose model the graph is known; else UsageError."""
        export, where = self.of.export, self.of.run.path
        if export is None or not export.graph:
            hint = "workbench profile MODEL"
            raise UsageError("its PyTorch model is not known", where=where, hint=hint)
        return export

    def find(self, model: Any = None, inputs: Any = None) -> tuple[Any, Any]:
        """What `load_model` takes for it, and its inputs.

        By default the module that this process exported, else the run's, if it is not code in a
        file.
        """
        export, run = self.check(), self.of.run
        recalled = recall_model(export.graph)
        if model is not None:
            return model, recalled[1] if inputs is None and recalled else inputs
        if recalled:
            return recalled
        if export.spec in [each for each in run.given if isinstance(each, str)]:
            return export.spec, None  # which this process was told to load
        trusted_spec(export, run.path)
        if not export.spec:
            hint = "run.apply(ID, net)"
            raise UsageError("the run's model was a module", where=run.path, hint=hint)
        return export.spec, None

    def load(
        self, model: LoadedModel | nn.Module | str | None = None, inputs: Any = None
    ) -> tuple[LoadedModel, TracedModel]:
        """It and its trace, as `find` finds it."""
        from workbench.export.traced import trace_model

        export = self.of.export
        assert export is not None
        if model is None and (loaded := recall_loaded(export.graph)):
            with silence():  # lowering has changed the trace of the export
                return loaded, trace_model(loaded)
        return load_again(export, self.of.run.path, *self.find(model, inputs))


def compare_exports(exports: Iterable[Export]) -> pd.DataFrame:
    """One row per export: size, delegation, and difference from the PyTorch model."""
    rows = [
        {name: getattr(export, name) for name in ("model", "dtype", "backend", "seconds")}
        | {
            "rewrite": ", ".join(export.rewrite),
            "problem": export.problem or describe_noise(export),
            "size_mb": export.size_bytes / 1e6,
            "delegates": sum(export.delegates.values()),
            "undelegated": sum(kernel.count for kernel in export.undelegated),
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
