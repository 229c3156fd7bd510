"""The latencies of a run in the order in which they were measured."""

from __future__ import annotations

import itertools

import pandas as pd
from matplotlib.figure import Figure

from workbench.show.style import (
    FAINT,
    SERIES,
    label_ends,
    label_x,
    marked,
    new_figure,
    set_title,
    text_inches,
)


@marked
def plot_turns(
    latencies: pd.DataFrame, clock: str = "cpu_ns", title: str = "In the order of measurement"
) -> Figure:
    """The median of every batch, each experiment named at its median; lines part processes.

    Parameters
    ----------
    latencies
        ``schema.LATENCIES`` of one thread count; traced rows are left out.
    clock
        ``cpu_ns`` or ``wall_ns``.
    title
        Of the figure.
    """
    untraced = latencies[~latencies["traced"]]
    turn = ["process", "round", "batch"]
    batches = untraced.groupby([*turn, "experiment"], sort=False)[clock].median().div(1e6)
    batches = batches.rename("ms").reset_index().sort_values(turn, kind="stable")
    batches["place"] = range(len(batches))
    names = untraced["experiment"].drop_duplicates().tolist()
    figure, (axis,) = new_figure(2.9, left=0.75, right=0.5 + max(map(text_inches, names)), top=0.5)
    axis.grid(axis="y", color="#E6E6E6", linewidth=0.8)
    ends = []
    for name, color in zip(names, itertools.cycle(SERIES), strict=False):
        part = batches[batches["experiment"] == name]
        axis.plot(part["place"], part["ms"], "o", markersize=4, color=color)
        ends.append((part["ms"].median(), name, color))
    label_ends(axis, ends)
    for first in batches.groupby("process")["place"].min()[1:]:
        axis.axvline(first - 0.5, color=FAINT, linewidth=0.8, linestyle=":")
    axis.set_ylabel("median of a batch (ms)", fontsize=9, color=FAINT)
    label_x(axis, "batch, in the order of measurement; dotted: all runners start afresh")
    set_title(figure, title)
    return figure
