"""What there is to gain at each part of an inference."""

from __future__ import annotations

import math

import pandas as pd
from matplotlib.figure import Figure

from workbench.show.style import (
    FAINT,
    INK,
    PLAIN,
    color_of,
    format_ms,
    format_number,
    label_margin,
    label_x,
    marked,
    new_figure,
    set_rows,
    set_title,
    shorten,
)


@marked
def plot_bottlenecks(
    bottlenecks: pd.DataFrame, *, top: int = 10, title: str = "Where there is something to gain"
) -> Figure:
    """For each part the E2E time that would be left if it were free, and if it were faster.

    Parameters
    ----------
    bottlenecks
        From `rank_bottlenecks`: ``schema.BOTTLENECKS``.
    top
        How many rows.
    title
        Of the figure.

    Returns
    -------
    Figure
        Bars reach from the E2E time without the part to that with it; the dot is E2E with the part
        so many times faster. Whiskers are 95 % intervals.
    """
    rows = bottlenecks.head(top)
    labels = [shorten(name, 40) for name in rows["name"]]
    figure, (axis,) = new_figure(
        1.15 + 0.42 * len(rows), left=label_margin(labels), right=2.35, top=0.5
    )
    e2e = float((rows["mean_ms"] + rows["free_ms"]).iloc[0]) if len(rows) else 1.0
    axis.axvline(e2e, color="#9A9A9A", linewidth=1)
    for place, row in enumerate(rows.itertuples()):
        _draw_row(axis, place, row, e2e)
    set_rows(axis, labels)
    axis.set_xlim(_start(rows["free_ms"].min(), e2e), 1.02 * e2e)
    factor = f"{rows['factor'].iloc[0]:g}x faster" if len(rows) else "faster"
    label_x(axis, f"E2E (ms) if the part were free (left end) or {factor} (dot); "
                  f"line: E2E as measured, {format_ms(e2e)}")  # fmt: skip
    set_title(figure, title)
    return figure


def _start(least: float, e2e: float) -> float:
    """Where the axis starts: at 0, unless all that happens is far from there."""
    return max(0.0, least - 0.3 * (e2e - least)) if least > 0.6 * e2e else 0.0


def _draw_row(axis, place: int, row, e2e: float) -> None:
    color = color_of(row.name) if row.level == "category" else PLAIN
    axis.barh(place, e2e - row.free_ms, left=row.free_ms, height=0.6, color=color, alpha=0.45)
    if math.isfinite(row.free_low):
        # E2E of the mean: the speed-up's interval is of the ratio, without what both share.
        ends = [e2e / row.free_high, e2e / row.free_low]
        axis.plot(ends, [place, place], color=INK, linewidth=1.8)
    axis.plot(row.faster_ms, place, "o", markersize=7, color=color, markeredgecolor="white")
    texts = (
        (8, f"{_ratio(row.free_speedup)} if free", INK),
        (88, f"{_ratio(row.speedup)} at {row.factor:g}x", FAINT),
    )
    for points, text, ink in texts:
        axis.annotate(text, (1, place), (points, 0), xycoords=axis.get_yaxis_transform(),
                      textcoords="offset points", va="center", fontsize=9, color=ink)  # fmt: skip


def _ratio(ratio: float) -> str:
    return f"{format_number(ratio, 2)}x" if math.isfinite(ratio) else "\N{INFINITY}"
