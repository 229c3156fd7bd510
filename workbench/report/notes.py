"""The sentences of a report: verdicts, and what there is to say where there is no table."""

from __future__ import annotations

import html
import math

import pandas as pd

from workbench.analyze import FALSE_DISCOVERIES, name_layer
from workbench.emulation import EMULATED
from workbench.report.analysis import Analysis, Comparison
from workbench.report.facts import undelegated
from workbench.show import Sheet, Table, plot_speedups, plot_tree, show_table, show_together

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
    operators = analysis.select(analysis.operators, experiment, threads)
    # Operators come with the most expensive first.
    lines = operators.dropna(subset=["module"]).drop_duplicates("module").set_index("module")
    layers["source"] = layers["module"].map(lines["source"])
    layers["share"] = layers["own_ms"] / layers["own_ms"].sum()
    layers["module"] = layers["module"].map(name_layer)
    columns = ["module", "module_class", "source", "own_ms", "share"]
    return show_table(
        layers.sort_values("own_ms", ascending=False, kind="stable"),
        [*columns, "total_ms", "low_ms", "high_ms", "flops"],
        rows=rows,
        caption="Layers by their own time; total: with the layers in them, and its 95 % interval",
    )


def show_tree(
    analysis: Analysis, experiment: str, threads: int, rows: int = TOP_LAYERS
) -> Table | Sheet:
    """The tree of modules above the table of layers; or that none is known."""
    table = show_layers(analysis, experiment, threads, rows)
    if analysis.layers is None:
        return table
    layers = analysis.select(analysis.layers, experiment, threads)
    return show_together(plot_tree(layers, title=f"Time down the modules, {experiment}"), table)


def show_speedups(comparison: Comparison, rows: int = TOP_LAYERS) -> Sheet:
    """What became faster: E2E, categories, and the layers (or operators) that changed the most."""
    if comparison.layers is None:
        parts, what = comparison.operators, "operators"
    else:
        parts, what = comparison.layers, "layers"
    columns = ["name", "baseline_ms", "candidate_ms", "speedup", "low", "high", "outcome"]
    return show_together(
        plot_speedups(comparison.speedups),
        show_note(count_outcomes(comparison.operators, "operators"), count_outcomes(parts, what)),
        show_table(
            parts,
            [*columns, "q", "detectable", "floor"],
            rows=rows,
            caption=f"{what}, the largest change first".capitalize(),
        ),
    )


def count_outcomes(parts: pd.DataFrame, what: str) -> str:
    """How many of the parts became what, and how small a change would have shown."""
    counts = parts["outcome"].value_counts()
    found = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    least = parts.loc[parts["outcome"] == "inconclusive", "detectable"].median()
    text = f"{len(parts)} {what}: {found}."
    if {"faster", "slower"} & set(counts.index):
        text += (
            f" At most {100 * FALSE_DISCOVERIES:g} % of those faster or slower are so by chance."
        )
    if math.isfinite(least):
        text += f" Half of the inconclusive ones would have shown a change of {100 * least:.0f} %."
    return text


def show_undelegated(analysis: Analysis) -> Table:
    """The operators that the partitioner left to portable kernels, or that there are none."""
    table = undelegated(analysis)
    if table is None:
        return show_note("Not known: the program has no export record.")
    if table.empty:
        return show_note("None: every operator went to a delegate.")
    return show_table(table)
