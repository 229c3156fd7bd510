"""Every latency that was measured, with the median and its interval.

The latencies of a run in the order in which they were measured.
"""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from workbench.frames import format_ms
from workbench.plots.style import (
    COLORS,
    FAINT,
    HIGHLIGHT,
    INK,
    SERIES,
    label_ends,
    label_margin,
    label_x,
    marked,
    new_figure,
    set_rows,
    set_title,
    shorten,
    text_inches,
)
from workbench.records.runs import count_threads

_CLOCKS = {"cpu_ns": "CPU time", "wall_ns": "wall time"}


@marked
def plot_latencies(
    latencies: pd.DataFrame, statistics: pd.DataFrame, title: str = "Latency of every inference"
) -> Figure:
    """One row of dots per experiment and thread count, with the median and its 95 % interval.

    Parameters
    ----------
    latencies
        ``schema.LATENCIES``; traced rows are left out where there are others.
    statistics
        From ``describe_latencies``; says which rows there are, and which clock they go by.
    title
        Of the figure.

    Returns
    -------
    Figure
        The axis ends a tenth beyond the largest 99th percentile; each row counts the inferences
        that took still longer.
    """
    several = statistics["threads"].nunique() > 1
    labels = [
        shorten(row.experiment, 26) + (f", {count_threads(row.threads)}" if several else "")
        for row in statistics.itertuples()
    ]
    figure, (axis,) = new_figure(
        1.25 + 0.5 * len(labels), left=label_margin(labels), right=1.0, top=0.5
    )
    times = [_times(latencies, row) for row in statistics.itertuples()]
    start = min((t.min() for t in times), default=0.0)
    end = max((min(t.max(), 1.1 * np.percentile(t, 99)) for t in times), default=1.0)
    pad = 0.03 * (end - start or end)
    axis.set_xlim(max(0.0, start - pad), end + pad)
    for row, (entry, values) in enumerate(zip(statistics.itertuples(), times, strict=True)):
        _draw_row(axis, row, values, entry)
    set_rows(axis, labels)
    clocks = dict.fromkeys(statistics["clock"])
    clock = _CLOCKS[next(iter(clocks))] if len(clocks) == 1 else "CPU time if one thread, else wall"
    pass_ = "traced" if latencies["traced"].all() else "untraced"
    label_x(axis, f"latency of one inference, {pass_} (ms, {clock}); median with 95 % interval")
    set_title(figure, title)
    return figure


def _times(latencies: pd.DataFrame, entry) -> np.ndarray:
    same = (latencies["experiment"] == entry.experiment) & (latencies["threads"] == entry.threads)
    untraced = same & ~latencies["traced"]
    return latencies.loc[untraced if untraced.any() else same, entry.clock].to_numpy() / 1e6


def _draw_row(axis: Axes, row: int, values: np.ndarray, entry) -> None:
    spread = np.random.default_rng(0).uniform(-0.3, 0.3, values.size)
    axis.scatter(values, row + spread, s=7, color=COLORS["Convolution"], alpha=0.35,
                 linewidths=0, rasterized=True, label=entry.experiment)  # fmt: skip
    if np.isfinite([entry.low, entry.high]).all():
        axis.fill_betweenx([row - 0.36, row + 0.36], entry.low, entry.high, color=HIGHLIGHT,
                           alpha=0.35, linewidth=0)  # fmt: skip
    axis.plot([entry.median] * 2, [row - 0.36, row + 0.36], color=HIGHLIGHT, linewidth=1.8)
    aside = axis.get_yaxis_transform()
    axis.text(1.01, row, format_ms(entry.median), transform=aside, va="center", fontsize=10,
              fontweight="bold", color=INK)  # fmt: skip
    beyond = np.count_nonzero(values > axis.get_xlim()[1])
    if beyond:
        axis.text(1.01, row + 0.32, f"{beyond} beyond", transform=aside, va="center",
                  fontsize=8, color=FAINT)  # fmt: skip


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
