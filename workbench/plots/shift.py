"""How the bottleneck moves: shares before and after, and each category's part in the change."""

from __future__ import annotations

import math
import textwrap

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from workbench.frames import decimals_of, format_ms, format_number, format_share
from workbench.plots.style import (
    FAINT,
    INK,
    PLAIN,
    color_of,
    label_margin,
    label_x,
    marked,
    new_figure,
    set_rows,
    set_title,
    shorten,
)

#: Parts of a change that is smaller than this part of E2E would be parts of nothing.
_SMALL = 0.02


@marked
def plot_shift(
    shift: pd.DataFrame,
    labels: tuple[str, str] = ("baseline", "candidate"),
    title: str = "How the bottleneck moves",
) -> Figure:
    """Shares before and after, beside a waterfall from one E2E time to the other.

    Parameters
    ----------
    shift
        ``schema.SHIFT``; its order is that of the rows. With ``low_ms`` and ``high_ms``, as
        ``bound_shift`` adds them, every step of the waterfall has its 95 % interval.
    labels
        Names of the baseline and the candidate.
    title
        Of the figure.
    """
    names = [labels[0], *shift["category"], labels[1]]
    rows = [textwrap.fill(shorten(name, 44), 22) for name in names]
    figure, (shares, waterfall) = new_figure(
        1.45 + 0.42 * len(rows),
        columns=2,
        left=label_margin(rows),
        right=0.35,
        top=0.75,
        gap=0.45,
        share_y=True,
    )
    _draw_shares(shares, shift)
    _draw_waterfall(waterfall, shift)
    set_rows(shares, rows)
    shares.set_title("share of the time: \N{WHITE CIRCLE} before \N{BLACK CIRCLE} after",
                     loc="left", fontsize=9, color=FAINT)  # fmt: skip
    bounded = "low_ms" in shift and shift["low_ms"].notna().any()
    contents = ", with 95 % intervals" if bounded else ": time, and part of it"
    waterfall.set_title(f"what the change is made of{contents}", loc="left", fontsize=9,
                        color=FAINT)  # fmt: skip
    set_title(figure, title)
    return figure


def _draw_shares(axis: Axes, shift: pd.DataFrame) -> None:
    widest = shift[["share_before", "share_after"]].max().max()
    axis.set_xlim(-0.22 * widest, 1.26 * widest)
    for row, entry in enumerate(shift.itertuples(), start=1):
        color = color_of(entry.category)
        start, end = entry.share_before, entry.share_after
        axis.plot([start, end], [row, row], color=color, linewidth=3, solid_capstyle="butt")
        axis.plot(start, row, "o", markersize=9, markerfacecolor="white", markeredgewidth=2,
                  color=color)  # fmt: skip
        axis.plot(end, row, "o", markersize=9, markeredgewidth=2, color=color)
        _label_ends(axis, row, start, end, 0.055 * widest)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda share, _: format_share(share)))
    ticks = MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(0, widest)
    axis.set_xticks([tick for tick in ticks if tick <= 1.1 * widest])
    label_x(axis, "share of mean E2E time (%)")


def _label_ends(axis: Axes, row: int, start: float, end: float, gap: float) -> None:
    """Both shares outside of their dots, so that they never lie on one another."""
    first, last = (start, end) if start <= end else (end, start)
    axis.text(first - gap, row, format_share(first), ha="right", va="center", fontsize=9,
              color=FAINT if first == start else INK)  # fmt: skip
    axis.text(last + gap, row, format_share(last), ha="left", va="center", fontsize=9,
              color=INK if last == end else FAINT)  # fmt: skip


def _draw_waterfall(axis: Axes, shift: pd.DataFrame) -> None:
    before, after = shift["baseline_ms"].sum(), shift["candidate_ms"].sum()
    shift = shift.assign(**{end: shift.get(end, math.nan) for end in ("low_ms", "high_ms")})
    reached = before + shift["delta_ms"].cumsum()
    highest = np.fmax(reached, reached - shift["delta_ms"] + shift["high_ms"])
    widest = max(before, after, highest.max()) or 1.0
    axis.set_xlim(0, 1.42 * widest)
    decimals = decimals_of(max(before, after))
    last = len(shift) + 1
    for row, total in ((0, before), (last, after)):
        axis.barh(row, total, height=0.62, color=PLAIN)
        axis.text(total + 0.02 * widest, row, format_ms(total), va="center", fontsize=9,
                  fontweight="bold", color=INK)  # fmt: skip
    level = before
    for row, entry in enumerate(shift.itertuples(), start=1):
        color = color_of(entry.category)
        axis.barh(row, entry.delta_ms, left=level, height=0.62, color=color)
        axis.plot([level, level], [row - 1, row], color="#9A9A9A", linewidth=0.8, zorder=0)
        if math.isfinite(entry.low_ms):
            axis.plot([level + entry.low_ms, level + entry.high_ms], [row, row], color=INK,
                      linewidth=1.5)  # fmt: skip
        right = level + np.nanmax([0.0, entry.delta_ms, entry.high_ms])
        level += entry.delta_ms
        text = f"{format_number(entry.delta_ms, decimals, '+')} ms"
        if abs(after - before) > _SMALL * before and math.isfinite(entry.contribution):
            text += f" · {format_share(entry.contribution)}"
        axis.text(right + 0.02 * widest, row, text, va="center", fontsize=9, color=INK)
    axis.plot([after, after], [last - 1, last], color="#9A9A9A", linewidth=0.8, zorder=0)
    ticks = MaxNLocator(5).tick_values(0, widest)
    axis.set_xticks([tick for tick in ticks if tick <= widest])
    label_x(axis, "mean time per inference (ms)")
