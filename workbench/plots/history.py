"""Latency over time, one panel per line of runs."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num

from workbench.frames import format_ms
from workbench.plots.style import (
    COLORS,
    FAINT,
    HIGHLIGHT,
    INK,
    Chart,
    marked,
    set_title,
    shorten,
    stack_panels,
)

#: Panels of one figure; the lines with the most runs are shown, those that changed first.
MOST_PANELS = 8


@marked
def plot_history(
    history: pd.DataFrame, changes: pd.DataFrame, title: str = "Latency over time"
) -> Chart:
    """Every run as a dot with its interval, the level between changes, and the changes.

    Parameters
    ----------
    history
        ``schema.HISTORY``; emulated runs have no times and are left out.
    changes
        ``schema.CHANGES``.
    title
        Of the figure.
    """
    timed = history.dropna(subset="latency_ms")
    runs = timed["line"].value_counts()
    changed = runs.index.isin(changes["line"])
    lines = [*runs.index[changed], *runs.index[~changed]][:MOST_PANELS]
    figure, axes = stack_panels(max(len(lines), 1), 1.5)
    for axis, line in zip(axes, lines, strict=False):
        _draw_line(axis, timed[timed["line"] == line], changes[changes["line"] == line])
        axis.set_title(shorten(line, 120), fontsize=8, color=FAINT, loc="left", pad=3)
    locator = AutoDateLocator()
    axes[-1].xaxis.set_major_locator(locator)
    axes[-1].xaxis.set_major_formatter(ConciseDateFormatter(locator))
    hidden = len(runs) - len(lines)
    set_title(figure, title + (f"; {hidden} more lines are not shown" if hidden > 0 else ""))
    return figure


def _draw_line(axis: Axes, runs: pd.DataFrame, changes: pd.DataFrame) -> None:
    runs = runs.sort_values("started")
    when = _times(runs["started"])
    axis.vlines(when, runs["low_ms"], runs["high_ms"], color=COLORS["GEMM"], linewidth=1, alpha=0.6)
    axis.scatter(when, runs["latency_ms"], s=9, color=COLORS["Convolution"], linewidths=0, zorder=3)
    confirmed = changes[changes["status"] == "confirmed"]
    starts = [when[0], *_times(confirmed["started"])]
    for start, end in zip(starts, [*starts[1:], when[-1] + 1], strict=True):
        piece = runs[(when >= start) & (when < end)]
        level = np.exp(np.log(piece["latency_ms"]).mean())
        ends = [start, min(end, when[-1])]
        axis.plot(ends, [level] * 2, color=INK, linewidth=1.4, zorder=2)
    for change in changes.itertuples():
        (at,) = _times(pd.Series([change.started]))
        style = "-" if change.status == "confirmed" else ":"
        axis.axvline(at, color=HIGHLIGHT, linewidth=1.2, linestyle=style)
        text = f" {change.outcome}: {format_ms(change.candidate_ms)}"
        text += "" if change.status == "confirmed" else " (suspected)"
        axis.annotate(text, (at, 1), xycoords=("data", "axes fraction"), fontsize=8,
                      color=HIGHLIGHT, va="top", annotation_clip=False)  # fmt: skip
    axis.set_ylabel("ms", fontsize=8, color=FAINT)


def _times(started: pd.Series) -> np.ndarray:
    """When, in the days that matplotlib counts."""
    return date2num(pd.to_datetime(started, utc=True).dt.tz_convert(None).to_numpy())
