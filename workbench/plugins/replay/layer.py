"""Measure one layer of a run's model alone, and compare it with its times within the model."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from workbench.analysis.exports import find_run_model
from workbench.analysis.findings.gains import time_spent
from workbench.analysis.open import open_run
from workbench.analysis.run import Measurement, Run
from workbench.errors import UsageError, WorkbenchError, unknown_name
from workbench.export.artifact import export_model
from workbench.options import ExportOptions, MeasureOptions, Progress, silent
from workbench.records.runs import LADDER_TOGGLE
from workbench.run.ceilings import trusted_target
from workbench.store import safe_name
from workbench.wording import format_range
from workbench.workflow import measure

if TYPE_CHECKING:  # these import PyTorch
    from torch import nn
    from torch.export import ExportedProgram

    from workbench.models.loader import LoadedModel

#: Times closer than this count as the same.
SAME = 0.10


@dataclass(frozen=True)
class Replay:
    """A layer's times within its model and alone, and the run in which it was alone.

    ``times`` has one row per experiment: ``experiment``, ``threads``, ``within_ms``, ``alone_ms``,
    and of each the ends of the 95 % interval over the restarts (``within_low_ms`` ...); and
    ``ratio``, alone / within, with ``ratio_low`` and ``ratio_high``.
    """

    layer: str
    times: pd.DataFrame
    run_dir: Path

    @property
    def texts(self) -> list[str]:
        """One line per experiment, and what it suggests."""
        lines = []
        for row in self.times.to_dict("records"):
            ends = [
                f"{side}{end}_ms" for side in ("within", "alone") for end in ("", "_low", "_high")
            ]
            within, low, high, alone, alone_low, alone_high = format_range(*(row[e] for e in ends))
            within, alone = f"{within} ({low} to {high})", f"{alone} ({alone_low} to {alone_high})"
            takes = f"takes {within} in the model, {alone} alone"
            lines.append(f"{row['experiment']}: {self.layer} {takes}: {describe_ratio(row)}")
        return lines


def replay_layer(
    run_dir: str | Path,
    layer: str,
    options: MeasureOptions = MeasureOptions(),
    *,
    model: LoadedModel | nn.Module | str = "",
    target: str = "",
    progress: Progress = silent,
) -> Replay:
    """Export one layer of a run's model as a program, and measure it like the run.

    The layer gets the inputs that it has in the model, with the same dtype, toggle, thread counts
    and target. The times of its operators are compared; delegate calls, and
    layout conversions that the exporter adds at the layer's ends, are excluded on both sides.

    Parameters
    ----------
    run_dir
        The run.
    layer
        Path of the module in the model, such as ``features.3.block.0``.
    options
        How long to measure; toggle and threads are the run's.
    model
        The run's model, as `load_model` takes it. By default the module that this process exported,
        else the run's, if that is not code in a file.
    target
        Where to run; by default where the run was made, if that was this machine.

    Raises
    ------
    UsageError
        The model or the layer is unknown, the model another one by now, or the run has no layers.
    WorkbenchError
        The layer has no operator of its own in the run.

    Examples
    --------
    >>> wb.replay_layer("out_vit_tiny/runs/RUN", "blocks.0.mlp").texts  # doctest: +SKIP
    """
    within = open_run(run_dir)
    run, export = within.record, within.subject.export
    if export is None:
        raise UsageError("the run's program was not exported here", where=run_dir)
    target = target or trusted_target(run, within.path)
    progress(f"{layer}: exporting", 0.0)
    loaded, trace = find_run_model(within.subject, model or None)
    part = extract_layer(loaded, trace.exported, layer)
    root = within.path.parent.parent / "replay" / safe_name(layer)
    exporting = ExportOptions(export.dtype, export.backend, rewrite=export.rewrite)
    program = export_model(part, options=exporting, root=root, progress=progress)
    plan, ladder = run.plan, run.plan.toggle == LADDER_TOGGLE
    toggle = "auto" if ladder else plan.toggle or "none"
    same = replace(
        options, toggle=toggle, isa_ladder=ladder, threads=plan.threads, target=target, against=()
    )
    return compare_replay(
        within, layer, measure(program, options=same, root=root, progress=progress)
    )


def extract_layer(model: LoadedModel, exported: ExportedProgram, layer: str) -> LoadedModel:
    """One layer of a traced model, such as ``features.3.block.0``, with its real inputs."""
    from workbench.export.part import Parts  # imports PyTorch
    from workbench.export.quantize import module_path

    nodes = [node for node in exported.graph.nodes if node.op == "call_function"]
    paths = {node.name: module_path(node) for node in nodes}
    names = [name for name, path in paths.items() if f"{path}.".startswith(f"{layer}.")]
    if not names:
        raise unknown_name("layer", layer, {*paths.values()} - {""})
    part = Parts(model, exported, [names], alone=True).extract(names)
    return replace(part, name=f"{model.name}.{layer}")


def compare_replay(within: Run, layer: str, alone: Run) -> Replay:
    """The times of a layer in the run of its model, and in a run of its own."""
    rows = []
    program = within.subject.program
    for measurement in (m for m in within.traced if not m.control and m.program == program):
        other = _find_alike(measurement, alone)
        keys = keys_of_layer(measurement, layer)
        if not keys:
            problem = f"no operator of the run belongs to layer {layer!r}"
            hint = 'its work may be folded into another layer\'s: see `wb.show(run, "layers")`'
            raise WorkbenchError(problem, where=within.path, hint=hint)
        one, two = time_spent(measurement, keys), time_spent(other, keys_of_layer(other, ""))
        row: dict[str, Any] = {"experiment": measurement.name, "threads": measurement.threads}
        for side, spent in (("within", one), ("alone", two)):
            row |= {f"{side}_ms": spent.ms, f"{side}_low_ms": spent.low}
            row[f"{side}_high_ms"] = spent.high
        row["ratio"] = two.ms / one.ms if one.ms else math.nan
        row["ratio_low"] = two.low / one.high if one.high else math.nan
        row["ratio_high"] = two.high / one.low if one.low else math.nan
        rows.append(row)
    return Replay(layer, pd.DataFrame(rows), alone.path)


def keys_of_layer(measurement: Measurement, layer: str) -> list[str]:
    """The operators of a layer and its sublayers; of all layers if the name is empty."""
    rows = measurement.costs
    if "module" not in rows:
        raise UsageError("the run has no layers", hint="run a program exported by the workbench")
    placed = rows[rows["module"].notna() & ~rows["role"].isin(["overhead", "layout"])]
    path = f"{layer}." if layer else ""
    return [key for key, module in placed["module"].items() if f"{module}.".startswith(path)]


def _find_alike(measurement: Measurement, run: Run) -> Measurement:
    """The measurement of another run at the same ISA level and thread count."""
    level, threads = measurement.experiment.isa, measurement.threads
    traced = [m for m in run.traced if not m.control and m.threads == threads]
    alike = {m.name: m for m in traced if m.experiment.isa == level}
    if not alike:
        raise WorkbenchError(f"nothing was measured at level {level}", where=run.path)
    return alike.get(measurement.name) or next(iter(alike.values()))


def describe_ratio(row: dict[str, Any]) -> str:
    """What the two times suggest."""
    if not math.isfinite(row["ratio"]):
        return "too short to be compared"
    if row["ratio_high"] < 1 - SAME / 2 and row["ratio"] < 1 - SAME:
        reason = "so in the model it waits for data that other layers evicted from the caches"
        return f"faster alone, {reason}"
    if row["ratio_low"] > 1 + SAME / 2 and row["ratio"] > 1 + SAME:
        reason = "so in the model its inputs are still in a cache, or part of its work is done"
        return f"slower alone, {reason} with another layer's"
    if row["ratio_low"] > 1 - 2 * SAME and row["ratio_high"] < 1 + 2 * SAME:
        return "the same alone: the time is spent in the kernel"
    return "the intervals are too wide to tell: measure more runs and processes"
