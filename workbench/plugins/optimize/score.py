"""The accuracy of a program on all samples: its noise, or the user's own score."""

import math
from pathlib import Path
from typing import Any

from workbench import ExportOptions, Program, WorkbenchError, load_model
from workbench.graphs import LoadedModel, reason
from workbench.jobs import compare_samples, run_file

#: Samples on which a program is judged, spread over all that were given.
MOST_JUDGED = 16


def score_program(
    model: str | LoadedModel, options: ExportOptions, program: Program, metric: str
) -> tuple[float | None, float | None]:
    """The SQNR in dB of the worst output over the samples, None without noise; and the score.

    The function gets one list of output tensors for each sample.
    """
    export = program.export
    assert export
    if not export.runs or not (metric or options.inputs):
        return export.sqnr_db, None
    loaded = load_model(model, state_dict=options.state_dict or None)
    outputs, noise = [], dict[int, float]()
    pte = program.path.read_bytes()
    for values, each in compare_samples(loaded, options, pte, MOST_JUDGED):
        outputs.append(values)
        for fidelity in each:
            db = fidelity.sqnr_db or math.inf
            ratio = math.inf if fidelity.faithful is False else 10 ** (-db / 10)
            noise[fidelity.output] = noise.get(fidelity.output, 0.0) + ratio
    worst = max(noise.values(), default=0.0) / max(len(outputs), 1)
    sqnr = -10 * math.log10(worst) if worst and math.isfinite(worst) else None
    sqnr = export.sqnr_db if math.isinf(worst) else sqnr
    return sqnr, call_metric(metric, outputs) if metric else None


def call_metric(metric: str, outputs: list[list[Any]]) -> float:
    """The score that a user's function gives to outputs."""
    file, _, name = metric.rpartition(":")
    try:
        score = float(getattr(run_file(Path(file)), name)(outputs))
    except Exception as error:  # the user's code may raise anything
        raise WorkbenchError(f"the metric fails: {reason(error)}", where=metric) from error
    if not math.isfinite(score):
        raise WorkbenchError(f"the metric returns {score}", where=metric)
    return score
