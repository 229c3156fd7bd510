"""Measured latencies: as a distribution, and in the order of measurement."""

import itertools
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from workbench.analysis.run import Measurement, Run
from workbench.analysis.statistics import clock_of, pick_timed
from workbench.plots import style
from workbench.plots.style import Chart, draws
from workbench.wording import plural

CLOCKS = {"cpu_ns": "CPU time", "wall_ns": "wall time"}


@draws(Run, Measurement)
def plot_latencies(source: Run | Measurement) -> Chart:
    """One row of dots per measurement, with the latency and its 95 % interval.

    Latencies in ms; traced inferences are left out where there are others. The axis ends a tenth
    beyond the largest 99th percentile, and each row counts the inferences that took longer.

    Examples
    --------
    >>> len(wb.plot_latencies(wb.open_run(wb.sample_run())).axes[0].get_yticklabels())
    3
    """
    latencies, statistics = source.latencies, source.statistics
    several = statistics["threads"].nunique() > 1
    labels = [
        style.shorten(row.experiment, 26)
        + (f", {plural(row.threads, 'thread')}" if several else "")
        for row in statistics.itertuples()
    ]
    figure, axis = style.Chart.new_rows("Latency of every inference", labels, 0.5, right=1.0)
    times = [_times(latencies, row) for row in statistics.itertuples()]
    start = min((t.min() for t in times), default=0.0)
    end = max((min(t.max(), 1.1 * np.percentile(t, 99)) for t in times), default=1.0)
    pad = 0.03 * (end - start or end)
    axis.set_xlim(max(0.0, start - pad), end + pad)
    for row, (entry, values) in enumerate(zip(statistics.itertuples(), times, strict=True)):
        _draw_row(axis, row, values, entry)
    clocks = set(statistics["clock"])
    clock = CLOCKS[clocks.pop()] if len(clocks) == 1 else "CPU time if one thread, else wall"
    what = "latency of one inference, " + ("" if latencies["traced"].all() else "un") + "traced"
    axis.set_xlabel(f"{what} (ms, {clock}); line: latency with 95 % interval")
    return figure


def _times(latencies: pd.DataFrame, entry: Any) -> np.ndarray:
    same = (latencies["experiment"] == entry.experiment) & (latencies["threads"] == entry.threads)
    return pick_timed(latencies[same])[entry.clock].to_numpy() / 1e6


def _draw_row(axis: Axes, row: int, values: np.ndarray, entry: Any) -> None:
    spread = np.random.default_rng(0).uniform(-0.3, 0.3, values.size)
    axis.scatter(values, row + spread, s=7, color=style.Ink.SERIES[0], alpha=0.35, linewidths=0,
                 rasterized=True, label=entry.experiment)  # fmt: skip
    if np.isfinite([entry.low, entry.high]).all():
        axis.fill_betweenx([row - 0.36, row + 0.36], entry.low, entry.high, alpha=0.35,
                           color=style.Ink.HIGHLIGHT, linewidth=0)  # fmt: skip
    axis.plot(
        [entry.latency] * 2, [row - 0.36, row + 0.36], color=style.Ink.HIGHLIGHT, linewidth=1.8
    )
    style.write_beside(axis, row, style.write_ms(entry.latency), bold=True)
    if beyond := np.count_nonzero(values > axis.get_xlim()[1]):
        style.write_beside(axis, row + 0.36, f"{beyond} beyond", color=style.Ink.FAINT)


@draws(Run, pd.DataFrame)
def plot_iterations(source: Run | pd.DataFrame) -> Chart:
    """The median of every batch in the order of measurement, to see drift and interference.

    ``source`` is a run (the subject's thread count is shown), a measurement, or a frame of
    ``frames.LATENCIES`` with one thread count. Dots are medians in ms, dotted lines separate
    process restarts.

    Examples
    --------
    >>> "median of a batch (ms)" in wb.plot_iterations(wb.open_run(wb.sample_run())).alt_text
    True
    """
    latencies = source if isinstance(source, pd.DataFrame) else source.latencies
    if isinstance(source, Run):
        latencies = latencies[latencies["threads"] == source.subject.threads]
    clock, turn = clock_of(latencies), ["process", "round", "batch"]
    untraced = pick_timed(latencies)
    batches = untraced.groupby([*turn, "experiment"], sort=False)[clock].median().div(1e6)
    batches = batches.rename("ms").reset_index().sort_values(turn, kind="stable")
    batches["place"] = range(len(batches))
    names = untraced["experiment"].drop_duplicates().tolist()
    margin = 0.5 + max(map(style.text_inches, names), default=0.0)
    figure, (axis,) = style.Chart.new("In the order of measurement", 2.9, left=0.75, right=margin)
    axis.grid(axis="y", color="#E6E6E6", linewidth=0.8)
    ends = []
    for name, color in zip(names, itertools.cycle(style.Ink.SERIES), strict=False):
        part = batches[batches["experiment"] == name]
        axis.plot(part["place"], part["ms"], "o", markersize=4, color=color)
        ends.append((float(part["ms"].median()), name, color))
    style.label_ends(axis, ends)
    for first in batches.groupby("process")["place"].min()[1:]:
        axis.axvline(first - 0.5, color=style.Ink.FAINT, linewidth=0.8, linestyle=":")
    axis.set_ylabel("median of a batch (ms)")
    axis.set_xlabel("batch, in the order of measurement; dotted: all processes restart")
    return figure
