"""Measured latencies: as a distribution, in the order of measurement, and over months."""

import itertools

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, DateFormatter, date2num

from workbench.analysis.run import Measurement, Run
from workbench.analysis.statistics import clock_of, pick_timed
from workbench.frames import plural
from workbench.plots import style
from workbench.plots.style import Chart, draws

_CLOCKS = {"cpu_ns": "CPU time", "wall_ns": "wall time"}
MOST_PANELS = 8  #: Panels of one figure: the lines that changed, then those with the most runs.
_FEW_DAYS = 4  #: A history shorter than this has times of day on its axis, too.


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
    figure, axis = style.new_rows("Latency of every inference", labels, 0.5, right=1.0)
    times = [_times(latencies, row) for row in statistics.itertuples()]
    start = min((t.min() for t in times), default=0.0)
    end = max((min(t.max(), 1.1 * np.percentile(t, 99)) for t in times), default=1.0)
    pad = 0.03 * (end - start or end)
    axis.set_xlim(max(0.0, start - pad), end + pad)
    for row, (entry, values) in enumerate(zip(statistics.itertuples(), times, strict=True)):
        _draw_row(axis, row, values, entry)
    clocks = set(statistics["clock"])
    clock = _CLOCKS[clocks.pop()] if len(clocks) == 1 else "CPU time if one thread, else wall"
    what = "latency of one inference, " + ("" if latencies["traced"].all() else "un") + "traced"
    axis.set_xlabel(f"{what} (ms, {clock}); line: latency with 95 % interval")
    return figure


def _times(latencies: pd.DataFrame, entry) -> np.ndarray:
    same = (latencies["experiment"] == entry.experiment) & (latencies["threads"] == entry.threads)
    return pick_timed(latencies[same])[entry.clock].to_numpy() / 1e6


def _draw_row(axis: Axes, row: int, values: np.ndarray, entry) -> None:
    spread = np.random.default_rng(0).uniform(-0.3, 0.3, values.size)
    axis.scatter(values, row + spread, s=7, color=style.SERIES[0], alpha=0.35, linewidths=0,
                 rasterized=True, label=entry.experiment)  # fmt: skip
    if np.isfinite([entry.low, entry.high]).all():
        axis.fill_betweenx([row - 0.36, row + 0.36], entry.low, entry.high, color=style.HIGHLIGHT,
                           alpha=0.35, linewidth=0)  # fmt: skip
    axis.plot([entry.latency] * 2, [row - 0.36, row + 0.36], color=style.HIGHLIGHT, linewidth=1.8)
    style.write_beside(axis, row, style.write_ms(entry.latency), bold=True)
    if beyond := np.count_nonzero(values > axis.get_xlim()[1]):
        style.write_beside(axis, row + 0.36, f"{beyond} beyond", color=style.FAINT)


@draws(Run, pd.DataFrame)
def plot_iterations(source: Run | pd.DataFrame) -> Chart:
    """The median of every batch in the order of measurement, to see drift and interference.

    ``source`` is a run, of which the subject's thread count is shown; a measurement; or a frame of
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
    figure, (axis,) = style.new_figure("In the order of measurement", 2.9, left=0.75, right=margin)
    axis.grid(axis="y", color="#E6E6E6", linewidth=0.8)
    ends = []
    for name, color in zip(names, itertools.cycle(style.SERIES), strict=False):
        part = batches[batches["experiment"] == name]
        axis.plot(part["place"], part["ms"], "o", markersize=4, color=color)
        ends.append((float(part["ms"].median()), name, color))
    style.label_ends(axis, ends)
    for first in batches.groupby("process")["place"].min()[1:]:
        axis.axvline(first - 0.5, color=style.FAINT, linewidth=0.8, linestyle=":")
    axis.set_ylabel("median of a batch (ms)")
    axis.set_xlabel("batch, in the order of measurement; dotted: all processes restart")
    return figure


@draws(pd.DataFrame)
def plot_history(history: pd.DataFrame, changes: pd.DataFrame) -> Chart:
    """Every run as a dot with its interval, the level between changes, and the changes.

    From ``frames.HISTORY`` and ``frames.CHANGES``; latencies in ms only, one panel per line of
    comparable runs. A cross marks a program whose outputs are wrong. Emulated runs are left out.

    Examples
    --------
    >>> history = wb.read_history([wb.sample_run()])
    >>> len(wb.plot_history(history.rows, history.changes).axes)
    2
    """
    timed = history.dropna(subset="latency_ms")
    changes = changes[changes["resource"] == "latency"]
    runs = timed["line"].value_counts()
    changed = runs.index.isin(changes["line"])
    lines = [*runs.index[changed], *runs.index[~changed]][:MOST_PANELS]
    hidden = len(runs) - len(lines)
    if timed.empty:
        figure, (axis,) = style.new_figure("No run has times: emulated runs have none", 1.2)
        axis.set_axis_off()
        return figure
    title = "Latency over time" + (f"; {hidden} more lines are not shown" if hidden > 0 else "")
    count = len(lines)
    figure, axes = style.new_figure(
        title, 0.8 + 1.5 * count, rows=count, left=0.72, right=0.27, top=0.55, bottom=0.5
    )
    for axis, line in zip(axes, lines, strict=False):
        _draw_line(axis, timed[timed["line"] == line], changes[changes["line"] == line])
        axis.set_title(style.shorten(line, 120), fontsize=8, color=style.FAINT, loc="left", pad=3)
    when = _dates(timed["started"])
    days = float(np.ptp(when))
    if not days:
        axes[-1].set_xlim(when[0] - 1, when[0] + 1)
    axes[-1].xaxis.set_major_locator(AutoDateLocator(minticks=2, maxticks=6))
    axes[-1].xaxis.set_major_formatter(DateFormatter("%Y-%m-%d" + "\n%H:%M" * (days < _FEW_DAYS)))
    return figure


def _draw_line(axis: Axes, runs: pd.DataFrame, changes: pd.DataFrame) -> None:
    runs = runs.sort_values("started")
    when = _dates(runs["started"])
    color = style.SERIES[0]
    axis.vlines(when, runs["low_ms"], runs["high_ms"], color=color, linewidth=1, alpha=0.5)
    wrong = (runs["problem"] != "").to_numpy()
    axis.scatter(when, runs["latency_ms"], s=9, color=color, linewidths=0, zorder=3)
    axis.scatter(when[wrong], runs["latency_ms"][wrong], marker="x", color=style.SLOWER, zorder=4)
    starts = [when[0], *_dates(changes["started"])]
    for start, end in zip(starts, [*starts[1:], when[-1] + 1], strict=True):
        piece = runs[(when >= start) & (when < end)]
        level = np.exp(np.log(piece["latency_ms"]).mean())
        ends = [start, min(end, when[-1])]
        axis.plot(ends, [level] * 2, color=style.INK, linewidth=1.4, zorder=2)
    for change in changes.itertuples():
        (at,) = _dates(pd.Series([change.started]))
        axis.axvline(at, color=style.HIGHLIGHT, linewidth=1.2)
        text = f" {change.outcome}: {style.write_ms(change.candidate)}"
        axis.annotate(text, (at, 1), xycoords=("data", "axes fraction"), fontsize=8,
                      color=style.HIGHLIGHT, va="top", annotation_clip=False)  # fmt: skip
    axis.set_ylabel("ms")


def _dates(started: pd.Series) -> np.ndarray:
    return date2num(pd.to_datetime(started, utc=True).dt.tz_convert(None).to_numpy())
