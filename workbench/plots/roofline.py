"""The roofline: what every operator reaches, below what the machine can do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from workbench.plots.style import (
    COLORS,
    FAINT,
    HIGHLIGHT,
    INK,
    WIDTH,
    color_of,
    label_x,
    marked,
    new_figure,
    set_title,
    shorten,
)

#: Footprints whose bandwidth is drawn, at most: the fastest, the slowest, and between.
_LINES = 4
_LARGEST_DOT = 420.0
#: Operators that are named, unless their names would overlap.
_NAMED = 8


@marked
def plot_roofline(
    roofline: pd.DataFrame,
    peaks: Mapping[str, float],
    bandwidths: Sequence[tuple[int, float]],
    spread: float = 0.0,
    title: str = "Roofline",
) -> Figure:
    """Operations per second over operations per byte, logarithmic; a dot's area is its time.

    Parameters
    ----------
    roofline
        ``schema_advice.ROOFLINE``; operators without operations have no place in it, and those
        too short to be timed are left out. The key says how much of the time is shown.
    peaks
        GFLOP/s of the machine by dtype: the flat roofs.
    bandwidths
        Pairs of footprint in bytes and GB/s: the slanted roofs.
    spread
        How far another measurement of the roofs stayed below them, as a fraction: their shade.
    title
        Of the figure.
    """
    shown = roofline[(roofline["flops"] > 0) & roofline["roof_share"].notna()]
    figure, (axis,) = new_figure(5.2, left=0.75, right=1.6, top=0.75, bottom=0.6)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.grid(axis="both", color="#EEEEEE", linewidth=0.8)
    used = [dtype for dtype in peaks if dtype in set(shown["dtype"])] or list(peaks)[:1]
    top = max(peaks[dtype] for dtype in used)
    least = min([*shown["intensity"], 0.1])
    most = max([*shown["intensity"], top / min(rate for _, rate in bandwidths)]) * 4
    axis.set_xlim(least / 1.5, most)
    axis.set_ylim(min([*shown["gflops"], top / 100]) / 1.6, 2.2 * top)
    _draw_slopes(axis, _choose(bandwidths), top, spread)
    for dtype in used:
        axis.axhline(peaks[dtype], color=INK, linewidth=1.4)
        axis.axhspan(peaks[dtype] / (1 + spread), peaks[dtype], color=INK, alpha=0.1, linewidth=0)
        axis.annotate(f"{dtype}: {peaks[dtype]:.0f} GFLOP/s", (1, peaks[dtype]), (5, 0),
                      xycoords=axis.get_yaxis_transform(), textcoords="offset points",
                      va="center", fontsize=8, color=INK)  # fmt: skip
    _draw_dots(axis, shown)
    axis.set_ylabel("GFLOP/s", fontsize=9, color=FAINT)
    again = f"; roofs fell {100 * spread:.0f} % short in another process" if spread else ""
    label_x(axis, f"operations per byte; area of a dot: its time{again}")
    _add_key(figure, shown, roofline)
    set_title(figure, title)
    return figure


def _choose(bandwidths: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """A few footprints, each clearly slower than the one before."""
    chosen: list[tuple[int, float]] = []
    for size, rate in bandwidths:
        if not chosen or rate < 0.7 * chosen[-1][1]:
            chosen.append((size, rate))
    return [*chosen[: _LINES - 1], *chosen[-1:]] if len(chosen) > _LINES else chosen


def _draw_slopes(
    axis: Axes, bandwidths: list[tuple[int, float]], top: float, spread: float
) -> None:
    low, _ = axis.get_xlim()
    floor, _ = axis.get_ylim()
    for size, rate in bandwidths:
        start = max(low, floor / rate)
        x = np.array([start, top / rate])
        axis.plot(x, rate * x, color=FAINT, linewidth=1.1, label=f"{size}")
        axis.fill_between(x, rate * x / (1 + spread), rate * x, color=FAINT, alpha=0.12,
                          linewidth=0)  # fmt: skip
        unit = f"{size / 2**20:.0f} MB" if size >= 2**20 else f"{size / 2**10:.0f} kB"
        axis.annotate(f"{unit}: {rate:.0f} GB/s", (start, rate * start), (4, 6),
                      textcoords="offset points", fontsize=8, color=FAINT, rotation=_slope(axis),
                      rotation_mode="anchor")  # fmt: skip


def _slope(axis: Axes) -> float:
    """The angle at which a bandwidth rises in a logarithmic figure, in degrees."""
    (left, right), (low, high) = axis.get_xlim(), axis.get_ylim()
    box = axis.get_window_extent()
    decade_x = box.width / np.log10(right / left)
    decade_y = box.height / np.log10(high / low)
    return float(np.degrees(np.arctan2(decade_y, decade_x)))


def _draw_dots(axis: Axes, shown: pd.DataFrame) -> None:
    if shown.empty:
        return
    area = _LARGEST_DOT * shown["mean_ms"] / shown["mean_ms"].max()
    axis.scatter(shown["intensity"], shown["gflops"], s=area.clip(lower=8), alpha=0.65,
                 c=[color_of(c) for c in shown["category"]], edgecolors="white",
                 linewidths=0.6, zorder=3)  # fmt: skip
    named: list[tuple[float, float]] = []
    for row in shown.nlargest(_NAMED, "mean_ms").itertuples():
        place = (np.log10(row.intensity), np.log10(row.gflops))
        if any(abs(place[0] - x) < 0.7 and abs(place[1] - y) < 0.15 for x, y in named):
            continue
        named.append(place)
        label = f"{shorten(row.module or row.operator, 26)}, {100 * row.roof_share:.0f} %"
        axis.annotate(label, (row.intensity, row.gflops), (0, -13), textcoords="offset points",
                      ha="center", fontsize=8, color=HIGHLIGHT, zorder=4)  # fmt: skip


def _add_key(figure: Figure, shown: pd.DataFrame, roofline: pd.DataFrame) -> None:
    present = set(shown["category"])
    chips = [Patch(color=color, label=name) for name, color in COLORS.items() if name in present]
    part = shown["share"].sum()
    chips.append(Patch(alpha=0, label=f"shown: {100 * part:.0f} % of the time"))
    figure.legend(
        handles=chips, loc="upper left", ncols=len(chips), frameon=False, fontsize=9,
        bbox_to_anchor=(0.1 / WIDTH, 1 - 0.4 / figure.get_figheight()), borderaxespad=0,
        borderpad=0, handlelength=1, handleheight=1, handletextpad=0.4, columnspacing=1.4,
    )  # fmt: skip
