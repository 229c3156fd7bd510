"""What a run says of its axes: the ladder of ISA levels, and the number of threads."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pandas as pd

from workbench.records import count_threads
from workbench.report.analysis import Analysis
from workbench.report.kernels import list_classes
from workbench.report.notes import show_note
from workbench.show import Sheet, plot_ladder, plot_scaling, show_table

#: What hiding an extension leaves as it is.
NOT_COVERED = (
    "Hiding an extension reaches XNNPACK and its KleidiAI kernels, which ask for CPU features one "
    "by one. It does not reach the portable and optimized kernels of ExecuTorch, which are "
    "compiled for one level, nor what the C library picks for itself, nor kernels that XNNPACK "
    "picks by the processor's microarchitecture: those stay this CPU's. A level is this CPU "
    "without features, not another CPU."
)

NOT_SAMPLED = "not sampled"


def has_axes(analysis: Analysis) -> bool:
    """Whether more was measured than two levels at one thread count."""
    return analysis.ladder is not None or analysis.scaling is not None


def show_axes(analysis: Analysis) -> Sheet:
    """Which extension buys what, and what more threads bring: figures, tables, and what is not so.

    Where a run measured neither, that is all it says.
    """
    parts = [*_ladder(analysis), *_threads(analysis)]
    if not parts:
        parts = [show_note(
            "Measured: one toggle at one thread count. `--isa-ladder` measures every ISA level of "
            "the CPU, `--threads 1,2,4` several thread counts; both together cross them."
        )]  # fmt: skip
    return Sheet(*parts)


def _ladder(analysis: Analysis) -> Iterator[object]:
    if analysis.ladder is None:
        return
    for threads, part in analysis.ladder.groupby("threads"):
        figure = plot_ladder(part, f"Which extension buys what, {count_threads(threads)}")
        yield figure
        yield show_table(
            part.drop(columns=["threads"]).assign(code=codes_of(analysis, part)),
            caption="speedup: over the level below; total: over the lowest; 95 % intervals",
        )
    portable = analysis.ledger[analysis.ledger["kind"] == "portable"]
    share = portable["duration_ns"].sum() / analysis.ledger["duration_ns"].sum()
    yield show_note(NOT_COVERED, f"Portable kernels took {100 * share:.1f} % of the traced time.")


def codes_of(analysis: Analysis, ladder: pd.DataFrame) -> list[str]:
    """What samples say each level ran, and how much of it the level below did not.

    Parameters
    ----------
    ladder
        ``schema.LADDER`` of one thread count.
    """
    threads, levels = ladder["threads"].iloc[0], list(ladder["level"])
    proofs = {
        (c.pair.baseline, c.pair.candidate): c.proof
        for c in analysis.comparisons
        if c.threads == threads
    }
    steps = [proofs.get(step) for step in pairwise(levels)]
    lowest = list_classes(steps[0].before) if steps[0] else NOT_SAMPLED
    return [
        lowest,
        *(
            f"{list_classes(step.after)}; {100 * step.appeared:.0f} % new" if step else NOT_SAMPLED
            for step in steps
        ),
    ]


def _threads(analysis: Analysis) -> Iterator[object]:
    if analysis.scaling is None:
        return
    figure = plot_scaling(analysis.scaling)
    yield figure
    yield show_table(
        analysis.scaling, caption="speedup: over the fewest threads; by wall time; 95 % intervals"
    )
    yield show_note(*(analysis.crossovers or ("No crossing was shown.",)))
