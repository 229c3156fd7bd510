"""A layer measured alone, against its time within the model."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.analyze import Facts
from workbench.errors import ComparisonError, UsageError
from workbench.records import Export, Run
from workbench.report.analysis import Analysis, analyze_run
from workbench.report.findings import gather_facts
from workbench.report.pipeline import measure_program
from workbench.show import format_ms
from workbench.store import load_run, safe_name

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
        return [_describe(self.layer, row) for row in self.times.to_dict("records")]


def replay_layer(
    run_dir: str | Path,
    layer: str,
    *,
    model: str = "",
    progress: Callable[[str, float], None] = lambda text, part: None,
    **choices: Any,
) -> Replay:
    """Export one layer of a run's model as a program, and measure it like the run.

    It gets the inputs that it has in the model, in the same dtype, with the same toggle, thread
    counts and target. What is compared is the time of its operators in traced runs; changes of
    layout that the exporter adds at its ends, and calls, are left out on both sides.

    Parameters
    ----------
    run_dir
        The run.
    layer
        Path of the module in the model, such as ``features.3.block.0``.
    model
        What ``load_model`` takes; by default what the run was exported from.
    choices
        As for ``measure_program``: ``runs``, ``processes``, ...

    Raises
    ------
    UsageError
        The model or the layer is unknown, or the run does not know its layers.
    ComparisonError
        The layer has no operator of its own in the run.
    """
    from workbench.export import export_model
    from workbench.models import load_model, take_layer

    run = load_run(Path(run_dir))
    if run.export is None:
        raise UsageError("the run's program was not exported here", where=run_dir)
    progress(f"{layer}: exporting", 0.0)
    part = take_layer(load_model(model or _spec_of(run.export)), layer)
    root = Path(run_dir).parent.parent / "replay" / safe_name(layer)
    pte = export_model(
        part,
        dtype=run.export.dtype,
        backend=run.export.backend,
        root=root,
        rewrite=run.export.options.get("rewrite") != "no",
    )
    plan = run.plan
    alone_dir = measure_program(
        pte,
        root=root,
        target=plan.target,
        progress=progress,
        **{"toggle": plan.toggle or "none", "threads": plan.threads, **choices},
    )
    return compare_replay(analyze_run(run_dir), layer, analyze_run(alone_dir))


def compare_replay(within: Analysis, layer: str, alone: Analysis) -> Replay:
    """The times of a layer in the run of its model, and in a run of its own."""
    rows = []
    for experiment in within.experiments:
        for threads in within.run.plan.threads:
            inside = gather_facts(within, experiment, threads)
            outside = gather_facts(alone, _alike(within.run, experiment, alone.run), threads)
            keys = keys_of_layer(inside, layer)
            if not keys:
                raise ComparisonError(
                    f"no operator of the run is known to be of layer {layer!r}",
                    where=within.run_dir,
                    hint="its work may be folded into another layer's: see `show_layers`",
                )
            one, other = inside.spent(keys), outside.spent(keys_of_layer(outside, ""))
            rows.append(
                {
                    "experiment": experiment,
                    "threads": threads,
                    "within_ms": one.ms,
                    "within_low_ms": one.low,
                    "within_high_ms": one.high,
                    "alone_ms": other.ms,
                    "alone_low_ms": other.low,
                    "alone_high_ms": other.high,
                    "ratio": other.ms / one.ms if one.ms else math.nan,
                    "ratio_low": other.low / one.high if one.high else math.nan,
                    "ratio_high": other.high / one.low if one.low else math.nan,
                }
            )
    return Replay(layer, pd.DataFrame(rows), alone.run_dir)


def keys_of_layer(facts: Facts, layer: str) -> list[str]:
    """The operators that compute in a layer, or in those within it; an empty name is all."""
    rows = facts.rows
    if "module" not in rows:
        raise UsageError("the run does not know its layers", hint="run an export by the workbench")
    module = rows["module"].astype(object)
    inside = module.map(
        lambda path: (
            isinstance(path, str) and (not layer or path == layer or path.startswith(f"{layer}."))
        )
    )
    return list(rows.index[inside & ~rows["role"].isin(["overhead", "layout"])])


def _spec_of(export: Export) -> str:
    """What ``load_model`` takes for the model of an export."""
    from workbench.models import list_models

    is_file = export.source.endswith(".py") and export.model not in list_models()
    return f"{export.source}:{export.model}" if is_file else export.model


def _alike(run: Run, experiment: str, other: Run) -> str:
    """The experiment of another run at the same ISA level."""
    isa = next(e.isa for e in run.plan.experiments if e.name == experiment)
    found = [e.name for e in other.plan.experiments if e.isa == isa and not e.control]
    if not found:
        raise ComparisonError(f"nothing was measured at level {isa}", where=other.plan.stem)
    return experiment if experiment in found else found[0]


def _describe(layer: str, row: dict[str, Any]) -> str:
    within, alone = (
        f"{format_ms(row[f'{side}_ms'])} ({format_ms(row[f'{side}_low_ms'])} to "
        f"{format_ms(row[f'{side}_high_ms'])})"
        for side in ("within", "alone")
    )
    return f"{row['experiment']}: {layer} takes {within} in the model, {alone} alone: {judge(row)}"


def judge(row: dict[str, Any]) -> str:
    """What the two times suggest."""
    if not math.isfinite(row["ratio"]):
        return "too short to be compared"
    if row["ratio_high"] < 1 - SAME / 2 and row["ratio"] < 1 - SAME:
        return (
            "faster alone, so in the model it waits for data that other layers pushed out of the "
            "caches"
        )
    if row["ratio_low"] > 1 + SAME / 2 and row["ratio"] > 1 + SAME:
        return (
            "slower alone, so in the model its inputs are still in a cache, or part of its work is "
            "done with another layer's"
        )
    if row["ratio_low"] > 1 - 2 * SAME and row["ratio_high"] < 1 + 2 * SAME:
        return "the same alone: the time is the kernel's own"
    return "the intervals are too wide to tell: measure more runs and processes"
