"""The views of sweeps."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pandas as pd

from workbench import Run, plot_speedups
from workbench.api import Section, Table, View, show_table
from workbench.pages import Chart, plural, show_note

#: What hiding an extension does not change.
NOT_COVERED = (
    "Hiding an extension affects XNNPACK and its KleidiAI kernels, which query CPU features one "
    "by one. It does not affect the portable and optimized kernels of ExecuTorch, which are "
    "compiled for one level, the C library, or kernels that XNNPACK selects by "
    "microarchitecture. A level is this CPU without some features, not another CPU."
)
NOT_SWEPT = (
    "Measured: one toggle at one thread count. `--isa-ladder` measures every ISA level of "
    "the CPU, `--threads 1,2,4` several thread counts; combine them to measure both."
)


def list_sweeps(run: Any, top: int) -> list[Table | Chart]:
    """What ISA levels, threads and sizes bring, and what is not covered; empty without sweeps."""
    parts = list(_isa_levels(run))
    if run.record.plan.sweep:
        parts.append(show_note(*(run.size_changes or ("The sizes have no times to compare.",))))
    if run.scaling is not None:
        caption = "speedup: over the fewest threads; wall time; 95 % intervals"
        parts += [show_table(run.scaling, caption=caption)]
        parts += [show_note(*(run.crossovers or ("No crossover was shown.",)))]
    return parts


def _isa_levels(run: Any) -> Iterator[Table | Chart]:
    if run.isa_levels is None:
        return
    table = run.isa_levels.drop(columns=["latency_low_ms", "latency_high_ms"])
    for threads, levels in table.groupby("threads"):
        steps = levels[levels["speedup"].notna()]
        yield plot_speedups(steps.assign(name=steps["level"]))
        yield show_table(
            levels.drop(columns=["threads"]).assign(code=_codes_of(run, levels)),
            caption=f"{plural(threads, 'thread')}; speedup: over the level below; "
            "total: over the lowest; 95 % intervals",
        )
    portable = run.ledger.loc[run.ledger["kind"] == "portable", "duration_ns"].sum()
    share = portable / run.ledger["duration_ns"].sum()
    yield show_note(NOT_COVERED, f"Portable kernels took {100 * share:.1f} % of the time.")


def _codes_of(run: Any, levels: pd.DataFrame) -> list[str]:
    """The machine code of every level (``frames.LADDER`` of one thread count) by samples."""
    threads, names = levels["threads"].iloc[0], list(levels["level"])
    proofs = {
        (ab.baseline.name, ab.candidate.name): ab.proof
        for ab in run.comparisons
        if ab.candidate.threads == threads
    }
    steps = [proofs.get(step) for step in pairwise(names)]
    lowest = steps[0].classes[0] if steps and steps[0] else "not sampled"
    return [lowest] + [
        f"{step.classes[1]}; {100 * step.appeared:.0f} % new" if step else "not sampled"
        for step in steps
    ]


SWEEPS = View((Run,), lambda run, top: list_sweeps(run, top) or [NOT_SWEPT])
OF_RUN = View(
    (Run,),
    list_sweeps,
    Section(
        "What do extensions, threads and sizes bring?",
        "Each level hides the features above it; hollow dots are steps without a significant "
        "change.",
        after="How long does one inference take?",
        folded=False,
    ),
)
