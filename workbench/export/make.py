"""Make the program of a traced model, and judge it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.export.precision import DTYPES, PRECISIONS
from workbench.export.sidecar import count_calls
from workbench.models.sources import reason
from workbench.options import ExportOptions, Progress
from workbench.process import release_memory
from workbench.records.exports import Cure, Fidelity

if TYPE_CHECKING:  # these import PyTorch
    from workbench.export.lowered import Lowered
    from workbench.export.traced import TracedModel
    from workbench.models.loader import LoadedModel

#: As many noisy layers are recorded.
NOISY_LAYERS = 20


@dataclass(frozen=True)
class Subject:
    """A traced model, what its export depends on, and where that is written.

    ``spec`` is what `load_model` takes for it; empty if it was given as a module.
    """

    model: LoadedModel
    trace: TracedModel
    options: ExportOptions
    made_from: dict[str, str]
    pte: Path
    spec: str


def make_program(subject: Subject, report: Progress) -> tuple[Lowered, dict[str, Any]]:
    """The program of a model, and what a comparison with the model adds to the record."""
    from workbench.export import accuracy, failure
    from workbench.export.lower import lower_model

    model = subject.model
    report("running the PyTorch model", 0.1)
    with failure.explain(failure.FORWARD, model.origin):
        expected = accuracy.run_eagerly(model.module, model.example_inputs, model.kwargs)
    lowered = lower_model(model, subject.options, subject.trace, report)
    release_memory(len(lowered.pte))
    report("comparing the outputs with the PyTorch model's", 0.8)
    return lowered, _check(lowered, expected, subject, report)


def _find_cure(subject: Subject, operator: str = "", offers: Sequence[str] = ()) -> Cure | None:
    """The rewrites that may make a wrong program right: the likeliest for an ``operator``, or all.

    All are those that could avoid a fault, and the ``offers``.
    """
    from workbench.export.lower import suggest_rewrites

    names = suggest_rewrites(subject.model, subject.options, subject.trace, operator)
    names = names[:1] if operator else list(dict.fromkeys([*names, *offers]))
    return Cure(tuple(names)) if names else None


def _check(
    lowered: Lowered, expected: list[Any], subject: Subject, progress: Progress
) -> dict[str, Any]:
    """What a comparison of the program with the PyTorch model adds to the record."""
    from workbench.export import accuracy

    dtype = subject.options.dtype
    try:
        fidelity, problem, wrong_output = _judge(lowered, expected, PRECISIONS[dtype].least_sqnr_db)
    except RuntimeError as error:
        offers = [rewrite.name for rewrite in lowered.rewrites]
        cure = _find_cure(subject, offers=offers)
        return {"problem": f"it does not run here: {error}", "runs": False, "cure": cure}
    except ValueError as error:
        return {"problem": str(error), "cure": _find_cure(subject)}
    facts: dict[str, Any] = {"fidelity": fidelity}
    # Noise of layers does not explain what its quantised graph has not.
    if lowered.measure_noise and wrong_output is None:
        progress("measuring the quantisation noise of each layer", 0.9)
        with _unless_raised("the noise of its layers", progress):
            facts["noise"] = lowered.measure_noise()[:NOISY_LAYERS]
    if wrong_output is None:
        wrong_output = _find_wrong(fidelity, is_noisy=lowered.run_graph is not None)
    kernels = accuracy.coarse_kernels(DTYPES[dtype], count_calls(lowered.layers, "kernel"))
    operator = ""
    if wrong_output is not None and not (problem and kernels):
        progress("looking for the first operator that is wrong", 0.9)
        with _unless_raised("the operator that is wrong", progress):
            operator, facts["cause"] = lowered.find_cause(wrong_output) or ("", None)
    if not problem:
        return facts
    problem = f"{problem}; likely cause: {kernels}" if kernels else problem
    return facts | {"problem": problem, "cure": _find_cure(subject, operator)}


def _find_wrong(fidelity: Sequence[Fidelity], *, is_noisy: bool) -> int | None:
    """The first output that some operator makes wrong, or no numbers, by its number.

    In a program that is as noisy as its quantised graph, no single one makes it wrong.
    """
    for output in fidelity:
        if output.nan or output.infinite or (output.faithful is False and not is_noisy):
            return output.output
    return None


@contextlib.contextmanager
def _unless_raised(what: str, progress: Progress) -> Iterator[None]:
    """Say that something is unknown if it fails: the model's operators may raise anything."""
    try:
        yield
    except Exception as error:
        progress(f"not known: {what}: {reason(error)}", 0.9)


#: The program of a quantised graph has at most so much more noise than the graph in PyTorch; above
#: so few decibels it matters.
_MOST_GAP_DB, _CLEAR_DB = 6.0, 40.0


def _judge(
    lowered: Lowered, expected: list[Any], least_db: float
) -> tuple[tuple[Fidelity, ...], str, int | None]:
    """A program's fidelity, what is wrong with it, and which output differs from its own graph's.

    A quantised program is also compared with its quantised graph in PyTorch: what it has less is no
    noise of quantisation. RuntimeError if it does not run, ValueError if shapes differ.
    """
    from workbench.export import accuracy

    outputs = lowered.run()
    fidelity = accuracy.compare_with_model(outputs, expected, least_db)
    problem = accuracy.describe_problem(fidelity)
    if lowered.run_graph is None:
        return fidelity, problem, None
    graph = accuracy.compare_with_model(lowered.run_graph(), expected, least_db)
    for ours, theirs in zip(fidelity, graph, strict=True):
        if ours.sqnr_db is None or theirs.sqnr_db is None or ours.sqnr_db > _CLEAR_DB:
            continue
        if theirs.sqnr_db - ours.sqnr_db > _MOST_GAP_DB:
            text = f"output {ours.output} has an SQNR of {ours.sqnr_db:.1f} dB, its quantised graph"
            text += f" in PyTorch {theirs.sqnr_db:.1f} dB: ExecuTorch computes it wrongly"
            return fidelity, text, ours.output
    return fidelity, problem, None
