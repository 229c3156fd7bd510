"""Make the program of a traced model, and judge it; what may avoid a fault is tried."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench import store
from workbench.errors import ExportError, WorkbenchError
from workbench.export.layers import count_calls
from workbench.export.precision import DTYPES, PRECISIONS
from workbench.models.sources import reason
from workbench.options import ExportOptions, Progress
from workbench.process import release_memory
from workbench.records.exports import Fidelity, find_worst

if TYPE_CHECKING:  # these import PyTorch
    from workbench.export.lower import Lowered
    from workbench.export.traced import TracedModel
    from workbench.models.loader import LoadedModel

#: Seconds after which no further rewrite is tried on a program that fails or is wrong.
_TRIALS_S = 60.0
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

    model = subject.model
    report("running the PyTorch model", 0.1)
    with failure.explain(failure.FORWARD, model.origin):
        expected = accuracy.run_eagerly(model.module, model.example_inputs, model.kwargs)
    lowered = _lower(subject, report)
    release_memory(len(lowered.pte))
    report("comparing the outputs with the PyTorch model's", 0.8)
    checked = _check(lowered, expected, subject, report)
    if "problem" in checked:
        runs = checked.get("runs", True)
        offers = [] if runs else [rewrite.name for rewrite in lowered.rewrites]
        checked["problem"] += _find_cure(subject, offers, expected, report)
    return lowered, checked


def _lower(subject: Subject, progress: Progress) -> Lowered:
    """Lower a model; if that fails, the error names an option with which it does not."""
    from workbench.export.lower import lower_model

    options = subject.options
    try:
        return lower_model(subject.model, options, subject.trace, progress)
    except ExportError as error:
        ways = _list_ways(subject, error)
        if way := _find_way(subject, ways, lambda lowered: " exports it (tried)", progress):
            instead = way.startswith("--backend") and error.hint
            error.hint = f"{way}; or {error.hint}" if instead else way
        raise


def _list_rewrites(
    subject: Subject, offers: Iterable[str] = ()
) -> Iterator[tuple[str, ExportOptions]]:
    """Rewrites that may avoid a fault, each and all, within the time for trials, as options.

    ``offers`` are further ones that would change the program.
    """
    from workbench.export.lower import suggest_rewrites

    options, until = subject.options, time.monotonic() + _TRIALS_S
    suggestions = suggest_rewrites(subject.model, options, subject.trace)
    names = list(dict.fromkeys([*suggestions, *offers]))
    for trial in [[name] for name in names] + ([names] if len(names) > 1 else []):
        if time.monotonic() < until:
            changed = replace(options, rewrite=(*options.rewrite, *trial))
            yield f"--rewrite {','.join(trial)}", changed


def _list_ways(subject: Subject, error: ExportError) -> Iterator[tuple[str, ExportOptions]]:
    """What else may lower a model: rewrites, then other kernels."""
    from workbench.export.control_flow import has_bodies
    from workbench.export.failure import LOWERING

    options = subject.options
    yield from _list_rewrites(subject)
    if options.backend != "xnnpack" or not error.what.startswith(LOWERING):
        return
    if not PRECISIONS[options.dtype].quantizes:
        yield "--backend portable", replace(options, backend="portable")
    elif has_bodies(subject.trace.exported):
        portable = replace(options, backend="portable", dtype="fp32", module_dtypes=())
        yield "--backend portable --dtype fp32", portable


#: What is said of a rewrite that makes a program run, or right.
AVOIDS = " avoids it"


def _find_cure(
    subject: Subject, offers: Iterable[str], expected: list[Any], progress: Progress
) -> str:
    """Which rewrite makes a wrong program right, as the end of a sentence; each is tried."""
    least_db = PRECISIONS[subject.options.dtype].least_sqnr_db

    def judge(lowered: Lowered) -> str:
        fidelity, problem, _ = _judge(lowered, expected, least_db)
        if problem:
            raise ValueError(problem)
        ratio = find_worst(fidelity)
        return f"{AVOIDS} (tried{'' if ratio is None else f': {ratio:.1f} dB'})"

    way = _find_way(subject, _list_rewrites(subject, offers), judge, progress)
    return f"; {way}" if way else ""


def _find_way(
    subject: Subject,
    ways: Iterable[tuple[str, ExportOptions]],
    judge: Callable[[Lowered], str],
    progress: Progress,
) -> str:
    """The first of some options that lowers a model, with what ``judge`` says of the program.

    Empty if none does; ``judge`` raises what it does not accept.
    """
    from workbench.export.lower import lower_model

    for option, options in ways:
        progress(f"trying {option}", 0.9)
        # What fails, or has other outputs, helps nobody.
        with contextlib.suppress(WorkbenchError, RuntimeError, ValueError):
            lowered = lower_model(subject.model, options, subject.trace, whole=False)
            return option + judge(lowered)
    return ""


def _check(
    lowered: Lowered, expected: list[Any], subject: Subject, progress: Progress
) -> dict[str, Any]:
    """What a comparison of the program with the PyTorch model adds to the record."""
    from workbench.export import accuracy

    pte, dtype = subject.pte, subject.options.dtype
    bundle = pte.with_suffix(".wrong.bp")
    bundle.unlink(missing_ok=True)
    try:
        fidelity, problem, wrong_output = _judge(lowered, expected, PRECISIONS[dtype].least_sqnr_db)
    except RuntimeError as error:
        return {"problem": f"it does not run here: {error}", "runs": False}
    except ValueError as error:
        return {"problem": str(error)}
    facts: dict[str, Any] = {"fidelity": fidelity}
    # Noise of layers does not explain what its quantised graph has not.
    if lowered.measure_noise and wrong_output is None:
        progress("measuring the quantisation noise of each layer", 0.9)
        try:
            facts["noise"] = lowered.measure_noise()[:NOISY_LAYERS]
        except Exception as error:  # the model's operators run in here, and may raise anything
            progress(f"the noise of its layers is unknown: {reason(error)}", 0.9)
    if not problem:
        return facts
    cause = accuracy.coarse_kernels(DTYPES[dtype], count_calls(lowered.layers, "kernel"))
    if lowered.find_wrong_part and not cause:
        progress("looking for the smallest part that is wrong", 0.9)
        number = wrong_output
        if number is None:
            number = next(each.output for each in fidelity if each.faithful is False)
        with contextlib.suppress(Exception):  # as above; a failure costs this part only
            if wrong := lowered.find_wrong_part(number):
                store.atomic_write(bundle, wrong[1])
                text = f"{wrong[0]}: attach {bundle.name} to an issue of pytorch/executorch"
                lowered.notes["smallest wrong part"] = text
    return facts | {"problem": f"{problem}; likely cause: {cause}" if cause else problem}


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

    outputs = accuracy.run_program(lowered.pte, lowered.inputs, lowered.layers)
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
