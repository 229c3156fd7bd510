"""What every rung of the ISA ladder buys, as a figure."""

from __future__ import annotations

import math

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from workbench.show.style import (
    COLORS,
    FAINT,
    INK,
    UNSPLIT_COLOR,
    decimals_of,
    format_ms,
    label_margin,
    label_x,
    marked,
    new_figure,
    set_rows,
    set_title,
)

_BAR = COLORS["GEMM"]


@marked
def plot_ladder(ladder: pd.DataFrame, title: str = "Which extension buys what") -> Figure:
    """Latency of every level beside its speed-up over the level below, each with its interval.

    Parameters
    ----------
    ladder
        ``schema.LADDER`` of one thread count.
    title
        Of the figure.

    Returns
    -------
    Figure
        Hollow dots are equivalent or inconclusive: the extension was not shown to buy anything.
    """
    labels = list(ladder["level"])
    figure, (times, steps) = new_figure(
        1.35 + 0.42 * len(labels),
        columns=2,
        left=label_margin(labels),
        right=2.1,
        top=0.75,
        gap=0.35,
        ratios=(1.0, 0.85),
        share_y=True,
    )
    draw_levels(times, ladder)
    _draw_steps(steps, ladder)
    set_rows(times, labels)
    times.set_title("latency of one inference", loc="left", fontsize=9, color=FAINT)
    steps.set_title("speed-up over the level below", loc="left", fontsize=9, color=FAINT)
    set_title(figure, title)
    return figure


def draw_levels(axis: Axes, ladder: pd.DataFrame, chosen: str | None = None) -> None:
    """The latency of every level with its interval; pale, if one was ``chosen``, are the others."""
    longest = ladder["latency_high_ms"].fillna(ladder["latency_ms"]).max()
    axis.set_xlim(0, 1.3 * longest)
    for row, entry in enumerate(ladder.itertuples()):
        pale = chosen not in (None, entry.level)
        axis.barh(row, entry.latency_ms, height=0.6, color=UNSPLIT_COLOR if pale else _BAR)
        axis.plot([entry.latency_low_ms, entry.latency_high_ms], [row, row], color=INK,
                  linewidth=1.5)  # fmt: skip
        axis.text(entry.latency_ms + 0.03 * longest, row, format_ms(entry.latency_ms), va="center",
                  fontsize=9, color=INK)  # fmt: skip
    ticks = MaxNLocator(4).tick_values(0, longest)
    axis.set_xticks([tick for tick in ticks if tick <= 1.1 * longest])
    label_x(axis, "median with 95 % interval (ms)")


def write_outcome(axis: Axes, row: int, speedup: float, outcome: str) -> None:
    """A speed-up and its verdict at the right of a row, in bold where a difference was shown."""
    axis.annotate(f"{speedup:.{decimals_of(speedup)}f}x, {outcome}", (1, row), (8, 0),
                  xycoords=axis.get_yaxis_transform(), textcoords="offset points", va="center",
                  fontsize=9, color=INK,
                  fontweight="bold" if outcome in ("faster", "slower") else "normal")  # fmt: skip


def _draw_steps(axis: Axes, ladder: pd.DataFrame) -> None:
    ends = ladder[["speedup", "low", "high"]].stack().dropna()
    low, high = min(1.0, ends.min()), max(1.0, ends.max())
    pad = 0.08 * max(high - low, 0.05)
    axis.set_xlim(low - pad, high + pad)
    axis.axvline(1, color="#9A9A9A", linewidth=1)
    for row, entry in enumerate(ladder.itertuples()):
        if math.isnan(entry.speedup):
            continue
        if 0 < entry.floor < math.inf:
            axis.fill_betweenx([row - 0.34, row + 0.34], 1 / (1 + entry.floor), 1 + entry.floor,
                               color="#E4E4E4", linewidth=0)  # fmt: skip
        axis.plot([entry.low, entry.high], [row, row], color=INK, linewidth=2)
        shown = entry.outcome in ("faster", "slower")
        axis.plot(entry.speedup, row, "o", markersize=7, markeredgewidth=1.8, color=INK,
                  markerfacecolor=INK if shown else "white")  # fmt: skip
        write_outcome(axis, row, entry.speedup, entry.outcome)
    axis.xaxis.set_major_locator(MaxNLocator(4))
    label_x(axis, "times as fast; grey: noise floor")
