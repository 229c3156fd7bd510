"""Kernel evidence for readers: which machine code both sides of a comparison ran."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from workbench.analyze import split_code
from workbench.emulation import mark_emulated
from workbench.records import count_threads
from workbench.report.analysis import Analysis, Comparison
from workbench.report.evidence import explain_lack
from workbench.report.notes import show_note
from workbench.show import Table, format_share, plot_code, show_table

#: Rows of the table of microkernels.
TOP_KERNELS = 12


def show_code(analysis: Analysis, comparison: Comparison, by: str = "family") -> Figure | Table:
    """Classes of machine code on both sides, of the whole inference and of its parts.

    Parameters
    ----------
    by
        What the parts are: ``category``, ``family``, ``operator`` or ``key``.

    Returns
    -------
    Figure or Table
        A sentence where nothing was sampled.
    """
    if comparison.proof is None:
        return show_note(explain_lack(analysis.run))
    shares = {}
    for name, threads in comparison.sides:
        evidence = analysis.select(analysis.evidence, name, threads)
        shares[name] = pd.concat([split_code(evidence), split_code(evidence, by)])
        if analysis.run.emulated:
            mark_emulated(shares[name])
    return plot_code(shares)


def show_proof(analysis: Analysis, comparison: Comparison) -> Table:
    """Whether both sides ran the same machine code, and what each of them ran."""
    proof = comparison.proof
    if proof is None:
        return show_note(explain_lack(analysis.run))
    table = pd.DataFrame(
        {
            "experiment": _names(comparison),
            "samples": proof.samples,
            "code": [list_classes(shares) for shares in (proof.before, proof.after)],
            "share": [proof.vanished, proof.appeared],
        }
    )
    noticed = format_share(proof.noticed, 1)
    return show_table(
        mark_emulated(table) if analysis.run.emulated else table,
        caption=f"{proof.outcome}; share: of the samples, in functions that the other side did not "
        f"run; {noticed} would have been noticed",
    )


def list_classes(shares: dict[str, float], most: int = 2) -> str:
    """The classes of machine code that were seen most, with their share of the samples."""
    return ", ".join(f"{format_share(share)} {code}" for code, share in [*shares.items()][:most])


def show_kernels(analysis: Analysis, comparison: Comparison, rows: int = TOP_KERNELS) -> Table:
    """The microkernel of every operator on both sides, with its layer where that is known.

    Parameters
    ----------
    rows
        How many operators, each with a line for the baseline and one for the candidate.
    """
    if comparison.kernels is None:
        return show_note(explain_lack(analysis.run))
    kernels = comparison.kernels.head(rows)
    operators = analysis.select(analysis.operators, *comparison.sides[1])
    layer = []
    if "module" in operators:
        layers = operators.drop_duplicates("key").set_index("key")["module"]
        kernels, layer = kernels.assign(layer=kernels["key"].map(layers)), ["layer"]
    found = ["kernel", "code", "share", "samples"]
    columns = ["operator", *layer, "experiment", *found, "change"]
    before, after = (
        kernels.rename(columns={f"{side}_{name}": name for name in found}).assign(experiment=name)
        for side, name in zip(("baseline", "candidate"), _names(comparison), strict=True)
    )
    both = pd.concat([before, after.assign(operator=after["candidate_operator"])])[columns]
    return show_table(
        both.sort_index(kind="stable"),
        caption="Microkernels by samples; share: of the operator's samples in that one",
    )


def _names(comparison: Comparison) -> list[str]:
    """Of both sides: their experiments, and their threads where these are what differs."""
    (before, few), (after, many) = comparison.sides
    if few == many:
        return [before, after]
    return [f"{before}, {count_threads(few)}", f"{after}, {count_threads(many)}"]
