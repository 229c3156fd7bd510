"""One level of the ISA ladder against the lowest: E2E, categories, and what it bought."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from workbench.show.ladder import draw_levels, write_outcome
from workbench.show.style import (
    FAINT,
    INK,
    color_of,
    decimals_of,
    fade,
    format_ms,
    label_margin,
    label_x,
    marked,
    new_figure,
    set_rows,
    set_title,
)

#: In rows: a bar, and how far above and below the middle of a row the two of a category lie.
_HEIGHT, _APART = 0.36, 0.2


@marked
def plot_rung(
    ladder: pd.DataFrame, level: str, bars: Mapping[str, pd.DataFrame], changes: pd.DataFrame
) -> Figure:
    """The latency of a level among all others, and its categories beside those of the lowest.

    Parameters
    ----------
    ladder
        ``schema.LADDER`` of one thread count.
    level
        The one that is looked at.
    bars
        ``schema.CATEGORIES`` with their intervals, by level: of the lowest and of this one.
    changes
        ``schema.COMPARISON`` of these two, by category.

    Returns
    -------
    Figure
        Lines are 95 % intervals. A speed-up in bold was shown.
    """
    levels, names = list(ladder["level"]), list(bars[level]["category"])
    figure, (times, parts) = new_figure(
        1.35 + 0.45 * max(len(levels), len(names)),
        columns=2,
        left=label_margin(levels),
        right=1.6,
        top=0.75,
        gap=label_margin(names),
        ratios=(0.8, 1.0),
    )
    draw_levels(times, ladder, level)
    set_rows(times, levels)
    times.set_title("latency of one inference", loc="left", fontsize=9, color=FAINT)
    _draw_categories(parts, bars)
    if len(bars) > 1:
        for change in changes[np.isfinite(changes["speedup"])].itertuples():
            write_outcome(parts, names.index(change.name), change.speedup, change.outcome)
    set_rows(parts, names)
    order = "upper bar: {}, lower bar: {}" if len(bars) > 1 else "categories of {}"
    parts.set_title(order.format(*bars), loc="left", fontsize=9, color=FAINT)
    set_title(figure, describe_rung(ladder, level))
    return figure


def describe_rung(ladder: pd.DataFrame, level: str) -> str:
    """What a level bought, over the lowest and over the one below it, in one line."""
    levels = list(ladder["level"])
    place = levels.index(level)
    rung = ladder.iloc[place]
    if not place:
        return f"{level}: {format_ms(rung['latency_ms'])}, the lowest level"
    step = f"{_ratio(rung, 'speedup', 'low', 'high')} over {levels[place - 1]}, {rung['outcome']}"
    if place == 1:
        return f"{level}: {step}"
    return f"{level}: {_ratio(rung, 'total', 'total_low', 'total_high')} over {levels[0]}; {step}"


def _ratio(rung: pd.Series, *columns: str) -> str:
    value, low, high = rung[list(columns)]
    if not math.isfinite(high - low):
        return f"{value:.{decimals_of(value)}f}x"
    decimals = min(max(decimals_of(high - low, 1), 2), 3)
    return f"{value:.{decimals}f}x ({low:.{decimals}f} to {high:.{decimals}f})"


def _draw_categories(axis: Axes, bars: Mapping[str, pd.DataFrame]) -> None:
    """One bar for each level in every row, those of the lowest pale."""
    longest = max(bar[["mean_ms", "high_ms"]].max().max() for bar in bars.values()) or 1.0
    axis.set_xlim(0, 1.25 * longest)
    label_x(axis, "mean with 95 % interval (ms)")
    offsets = (-_APART, _APART) if len(bars) > 1 else (0.0,)
    for offset, bar in zip(offsets, bars.values(), strict=True):
        for row, part in enumerate(bar.itertuples()):
            place = row + offset
            color = color_of(part.category)
            axis.barh(place, part.mean_ms, height=_HEIGHT,
                      color=fade(color, 0.4) if offset < 0 else color)  # fmt: skip
            axis.plot([part.low_ms, part.high_ms], [place, place], color=INK, linewidth=1.5)
            end = np.nanmax([part.mean_ms, part.high_ms])
            axis.text(end + 0.02 * longest, place, format_ms(part.mean_ms), va="center",
                      fontsize=8, color=INK)  # fmt: skip
