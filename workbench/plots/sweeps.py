"""What every rung of the ISA ladder buys, as a figure.

One level of the ISA ladder against the lowest: E2E, categories, and what it bought.

How latency goes with the number of threads, as a figure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from workbench.frames import decimals_of, format_ms
from workbench.plots.style import (
    COLORS,
    FAINT,
    INK,
    UNSPLIT_COLOR,
    color_of,
    fade,
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


#: Okabe and Ito's colours in an order in which neighbours differ; lines beyond them are grey.
_LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


@marked
def plot_scaling(scaling: pd.DataFrame, title: str = "What more threads bring") -> Figure:
    """Latency against threads, one line per experiment, with its interval and the ideal.

    Parameters
    ----------
    scaling
        ``schema.SCALING``.
    title
        Of the figure.

    Returns
    -------
    Figure
        Both axes are logarithmic: where halving the time takes twice the threads, a line is
        straight and falls like the dotted one beside it. Lines that cross are experiments whose
        order depends on the number of threads.
    """
    names = list(dict.fromkeys(scaling["experiment"]))
    labels = {name: shorten(name, 24) for name in names}
    margin = 0.35 + max((text_inches(label) for label in labels.values()), default=0.0)
    figure, (axis,) = new_figure(3.4, left=0.75, right=margin, top=0.5)
    axis.set_xscale("log")
    axis.set_yscale("log")
    ends = []
    for place, name in enumerate(names):
        color = _LINES[place] if place < len(_LINES) else "#9A9A9A"
        part = scaling[scaling["experiment"] == name].sort_values("threads")
        times, counts = part["latency_ms"].to_numpy(), part["threads"].to_numpy()
        axis.plot(counts, times[0] * counts[0] / counts, ":", color=color, linewidth=1)
        axis.vlines(counts, part["latency_low_ms"], part["latency_high_ms"], color=color)
        axis.plot(counts, times, "o-", color=color, linewidth=1.8, markersize=5)
        ends.append((times[-1], labels[name], color))
    label_ends(axis, ends)
    axis.xaxis.set_major_locator(FixedLocator(sorted(set(scaling["threads"]))))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda count, _: f"{count:g}"))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(FuncFormatter(lambda ms, _: f"{ms:g}"))
    axis.yaxis.set_minor_formatter(FuncFormatter(lambda ms, _: f"{ms:g}"))
    axis.tick_params(axis="y", which="both", labelsize=8, labelcolor=FAINT)
    axis.set_ylabel("wall time (ms)", fontsize=9, color=FAINT)
    label_x(axis, "threads; median with 95 % interval; dotted: as many times faster as threads")
    set_title(figure, title)
    return figure
