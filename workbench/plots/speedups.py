"""Speed-ups with their intervals, against the noise floor."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from workbench.frames import decimals_of
from workbench.plots.style import (
    FAINT,
    INK,
    color_of,
    label_margin,
    label_x,
    marked,
    new_figure,
    set_rows,
    set_title,
    shorten,
)


@marked
def plot_speedups(comparison: pd.DataFrame, title: str = "What became faster") -> Figure:
    """One dot per comparison with its 95 % interval, on a logarithmic axis.

    Parameters
    ----------
    comparison
        ``schema.COMPARISON``, such as the rows of E2E and of all categories, or those of the
        first operators; a column ``floor`` is drawn as a grey band, the noise floor.
    title
        Of the figure.

    Returns
    -------
    Figure
        Hollow dots are equivalent or inconclusive: no speed-up was shown.
    """
    labels = [
        "E2E" if level == "e2e" else shorten(name, 40)
        for level, name in zip(comparison["level"], comparison["name"], strict=True)
    ]
    figure, (axis,) = new_figure(
        1.2 + 0.36 * len(labels), left=label_margin(labels), right=2.1, top=0.5
    )
    ends = comparison[["speedup", "low", "high"]].to_numpy(dtype=float).ravel()
    ends = np.append(ends[np.isfinite(ends) & (ends > 0)], 1.0)
    reach = max(0.05, 1.08 * np.abs(np.log(ends)).max())
    axis.set_xscale("log")
    lower = -reach if np.log(ends).min() < -0.1 * reach else -0.15 * reach
    upper = reach if np.log(ends).max() > 0.1 * reach else 0.15 * reach
    axis.set_xlim(math.exp(lower), math.exp(upper))
    axis.axvline(1, color="#9A9A9A", linewidth=1)
    for row, entry in enumerate(comparison.itertuples()):
        _draw_row(axis, row, entry)
    set_rows(axis, labels)
    axis.set_xticks(_ticks(*axis.get_xlim()), minor=False)
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda ratio, _: f"{ratio:g}x"))
    floor = (
        "; grey: noise floor" if "floor" in comparison and (comparison["floor"] > 0).any() else ""
    )
    label_x(axis, f"speed-up: baseline / candidate, with 95 % interval{floor}")
    set_title(figure, title)
    return figure


def _ticks(low: float, high: float) -> list[float]:
    """Round ratios within the limits, 1 among them."""
    if high / low < 1.7:
        ticks = MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(low, high)
    elif high / low < 12:
        ticks = (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1, 1.5, 2, 3, 4, 5, 7, 10)
    else:
        ticks = [first * 10.0**power for power in range(-4, 5) for first in (1, 2, 5)]
    return [round(float(tick), 6) for tick in ticks if low <= tick <= high]


def _draw_row(axis, row: int, entry) -> None:
    color = INK if entry.level == "e2e" else color_of(getattr(entry, "category", entry.name))
    shown = entry.outcome in ("faster", "slower")
    floor = getattr(entry, "floor", 0.0)
    if 0 < floor < math.inf:
        axis.fill_betweenx([row - 0.38, row + 0.38], 1 / (1 + floor), 1 + floor, color="#E4E4E4",
                           linewidth=0)  # fmt: skip
    if math.isfinite(entry.low):
        axis.plot([entry.low, entry.high], [row, row], color=color, linewidth=2.2)
    axis.plot(entry.speedup, row, "o", markersize=8, markeredgewidth=1.8, color=color,
              markerfacecolor=color if shown else "white")  # fmt: skip
    interval = "no interval"
    if math.isfinite(entry.low):
        digits = min(2, decimals_of(entry.high))
        interval = f"{entry.low:.{digits}f} to {entry.high:.{digits}f}"
    for points, text, ink in ((8, entry.outcome, INK), (88, interval, FAINT)):
        axis.annotate(text, (1, row), (points, 0), xycoords=axis.get_yaxis_transform(),
                      textcoords="offset points", va="center", fontsize=9, color=ink,
                      fontweight="bold" if shown and ink == INK else "normal")  # fmt: skip
