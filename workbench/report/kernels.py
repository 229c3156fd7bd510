"""Kernel evidence for readers: which machine code both sides of a comparison ran."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from workbench.analyze import split_code
from workbench.emulation import mark_emulated
from workbench.report.analysis import Analysis, Comparison
from workbench.report.evidence import explain_lack
from workbench.report.notes import show_note
from workbench.show import Table, plot_code, show_table

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


def show_kernels(analysis: Analysis, comparison: Comparison, rows: int = TOP_KERNELS) -> Table:
    """The microkernel of every operator on both sides, with its layer where that is known."""
    if comparison.kernels is None:
        return show_note(explain_lack(analysis.run))
    kernels = comparison.kernels
    columns = [
        f"{side}_{what}"
        for side in ("baseline", "candidate")
        for what in ("kernel", "code", "share", "samples")
    ]
    columns = ["operator", *columns, "change"]
    operators = analysis.select(analysis.operators, *comparison.sides[1])
    if "module" in operators:
        layers = operators.drop_duplicates("key").set_index("key")["module"]
        kernels = kernels.assign(layer=kernels["key"].map(layers))
        columns.insert(1, "layer")
    return show_table(
        kernels,
        columns,
        rows=rows,
        caption="Microkernels by samples; share: of the operator's samples in that one",
    )
