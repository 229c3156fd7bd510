"""The sentences of a report: verdicts, and what there is to say where there is no table."""

from __future__ import annotations

import html

from workbench.emulation import EMULATED
from workbench.report.analysis import Analysis
from workbench.report.facts import undelegated
from workbench.show import Table, show_table

#: Rows of the table of layers.
TOP_LAYERS = 12


def show_note(*lines: str) -> Table:
    """Sentences as a set-off paragraph; whatever they hold is text there, never markup."""
    paragraphs = "".join(f"<p>{html.escape(line)}</p>" for line in lines)
    quoted = [line.replace("&", "&amp;").replace("<", "&lt;") for line in lines]
    return Table(
        f"<blockquote>{paragraphs}</blockquote>", "\n>\n".join(f"> {line}" for line in quoted)
    )


def show_verdicts(analysis: Analysis) -> Table:
    """One sentence per comparison, and the mark of an emulated run before them."""
    mark = [f"{EMULATED.capitalize()}."] if analysis.run.emulated else []
    return show_note(*mark, *(comparison.text for comparison in analysis.comparisons))


def show_layers(analysis: Analysis, experiment: str, threads: int, rows: int = TOP_LAYERS) -> Table:
    """The layers of the model that take the most time by themselves; or that none is known."""
    if analysis.layers is None:
        return show_note("Not known: the program has no layer sidecar, or one without layers.")
    layers = analysis.select(analysis.layers, experiment, threads)
    layers["share"] = layers["own_ms"] / layers["own_ms"].sum()
    layers["module"] = layers["module"].fillna("(no layer)").replace("", "(the model itself)")
    columns = ["module", "module_class", "own_ms", "share", "total_ms", "operators", "flops"]
    return show_table(
        layers.sort_values("own_ms", ascending=False, kind="stable"),
        columns,
        rows=rows,
        caption="Layers by their own time; total: with the layers in them",
    )


def show_undelegated(analysis: Analysis) -> Table:
    """The operators that the partitioner left to portable kernels, or that there are none."""
    table = undelegated(analysis)
    if table is None:
        return show_note("Not known: the program has no export record.")
    if table.empty:
        return show_note("None: every operator went to a delegate.")
    return show_table(table)
