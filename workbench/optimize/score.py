"""The accuracy of a program on all samples: its noise, or the user's own score."""

from __future__ import annotations

import inspect
import math
from pathlib import Path
from typing import Any

from workbench.errors import ModelError, UsageError
from workbench.export import accuracy
from workbench.export.lower import DTYPES
from workbench.export.program import bind_constants, cast_floats
from workbench.models.inputs import choose_inputs, lay_out_channels_last
from workbench.models.loader import Call, LoadedModel, load_model, run_file
from workbench.models.sources import reason
from workbench.options import ExportOptions
from workbench.records.runs import Export

#: Samples on which a program is judged, spread over all that were given.
MOST_JUDGED = 16


def score_program(
    model: str, options: ExportOptions, pte: Path, export: Export, metric: str
) -> tuple[float | None, float | None]:
    """The SQNR in dB of the worst output over the samples, None without noise; and the score.

    The function gets one list of output tensors for each sample.
    """
    if not export.runs or not (metric or options.inputs):
        return export.sqnr_db, None
    loaded = choose_inputs(load_model(model, state_dict=options.state_dict or None), options)
    loaded = lay_out_channels_last(loaded) if options.channels_last else loaded
    calls = [(loaded.example_inputs, loaded.kwargs), *loaded.calibration]
    calls = calls[:: math.ceil(len(calls) / MOST_JUDGED)]
    program = pte.read_bytes()
    outputs = [
        accuracy.run_program(program, list_inputs(loaded, call, options.dtype)) for call in calls
    ]
    eager = (accuracy.run_eagerly(loaded.module, *call) for call in calls)
    worst: dict[int, list[float]] = {}
    for ours, theirs in zip(outputs, eager, strict=True):
        for each in accuracy.compare_outputs(ours, theirs, -math.inf):
            ratio = 0.0 if each.sqnr_db is None else 10 ** (-each.sqnr_db / 10)
            worst.setdefault(each.output, []).append(math.inf if each.faithful is False else ratio)
    noise = max((sum(ratios) / len(ratios) for ratios in worst.values()), default=0.0)
    sqnr = export.sqnr_db if math.isinf(noise) else -10 * math.log10(noise) if noise else None
    return sqnr, call_metric(metric, outputs) if metric else None


def list_inputs(model: LoadedModel, call: Call, dtype: str) -> list[Any]:
    """The inputs of a call in the dtype and the order of the program."""
    import torch
    from torch.utils._pytree import tree_leaves

    args, kwargs = cast_floats(call, getattr(torch, DTYPES[dtype]))
    names = [name for name in inspect.signature(model.module.forward).parameters if name in kwargs]
    ordered = {name: kwargs[name] for name in [*names, *(kwargs.keys() - set(names))]}
    return tree_leaves(bind_constants(model.module, args, ordered)[1:])


def call_metric(metric: str, outputs: list[list[Any]]) -> float:
    """The score that a user's function gives to outputs."""
    file, _, name = metric.rpartition(":")
    if not Path(file).is_file():
        raise UsageError("no such file", where=f"--metric {metric}", hint="path/to/file.py:NAME")
    try:
        score = float(getattr(run_file(Path(file)), name)(outputs))
    except Exception as error:  # the user's code may raise anything
        raise ModelError(f"the metric fails: {reason(error)}", where=metric) from error
    if not math.isfinite(score):
        raise ModelError(f"the metric returns {score}", where=metric)
    return score
