"""The figure of a history."""

import textwrap

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, DateFormatter, date2num

from workbench.pages import Chart, Ink, draws

MOST_PANELS = 8  #: Panels of one figure: the lines that changed, then those with the most runs.
_FEW_DAYS = 4  #: A history shorter than this has times of day on its axis, too.


@draws(pd.DataFrame)
def plot_history(history: pd.DataFrame, changes: pd.DataFrame) -> Chart:
    """Every run as a dot with its interval, the level between changes, and the changes.

    From ``HISTORY`` and ``CHANGES``; latencies in ms only, one panel per line of
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
        figure, (axis,) = Chart.new("No run has times: emulated runs have none", 1.2)
        axis.set_axis_off()
        return figure
    title = "Latency over time" + (f"; {hidden} more lines are not shown" if hidden > 0 else "")
    count = len(lines)
    figure, axes = Chart.new(
        title, 0.8 + 1.5 * count, rows=count, left=0.72, right=0.27, top=0.55, bottom=0.5
    )
    for axis, line in zip(axes, lines, strict=False):
        _draw_line(axis, timed[timed["line"] == line], changes[changes["line"] == line])
        axis.set_title(
            textwrap.shorten(line, 120, placeholder=" …"),
            fontsize=8,
            color=Ink.FAINT,
            loc="left",
            pad=3,
        )
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
    color = Ink.SERIES[0]
    axis.vlines(when, runs["low_ms"], runs["high_ms"], color=color, linewidth=1, alpha=0.5)
    wrong = (runs["problem"] != "").to_numpy()
    axis.scatter(when, runs["latency_ms"], s=9, color=color, linewidths=0, zorder=3)
    axis.scatter(when[wrong], runs["latency_ms"][wrong], marker="x", color=Ink.SLOWER, zorder=4)
    starts = [when[0], *_dates(changes["started"])]
    for start, end in zip(starts, [*starts[1:], when[-1] + 1], strict=True):
        piece = runs[(when >= start) & (when < end)]
        level = np.exp(np.log(piece["latency_ms"]).mean())
        ends = [start, min(end, when[-1])]
        axis.plot(ends, [level] * 2, color=Ink.TEXT, linewidth=1.4, zorder=2)
    for change in changes.itertuples():
        (at,) = _dates(pd.Series([change.started]))
        axis.axvline(at, color=Ink.HIGHLIGHT, linewidth=1.2)
        text = f" {change.run}, {change.outcome}: {change.candidate:.3g} ms"
        axis.annotate(text, (at, 1), xycoords=("data", "axes fraction"), fontsize=8,
                      color=Ink.HIGHLIGHT, va="top", annotation_clip=False)  # fmt: skip
    axis.set_ylabel("ms")


def _dates(started: pd.Series) -> np.ndarray:
    return date2num(pd.to_datetime(started, utc=True).dt.tz_convert(None).to_numpy())
