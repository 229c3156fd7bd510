"""Where the time goes, by category: one stacked bar per experiment."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from workbench.frames import format_ms, format_share
from workbench.plots.style import (
    COLORS,
    INK,
    WIDTH,
    color_of,
    ink_on,
    label_margin,
    label_x,
    marked,
    new_figure,
    set_rows,
    set_title,
    shorten,
    text_inches,
)

#: In rows: a bar, the lanes below it for intervals that would lie on one another, and their end.
_HEIGHT, _LANES, _FOOT = 0.66, (0.38, 0.44, 0.5), 0.57


@marked
def plot_categories(
    categories: Mapping[str, pd.DataFrame], title: str = "Where the time goes", reach: float = 0.0
) -> Figure:
    """One bar per experiment, as long as its mean E2E time, split into categories.

    Parameters
    ----------
    categories
        ``schema.CATEGORIES`` by name of the experiment, from top to bottom; with ``low_ms`` and
        ``high_ms`` where intervals are known.
    title
        Of the figure.
    reach
        Milliseconds that the axis shows at least.

    Returns
    -------
    Figure
        Segments that are wide enough bear name, time and share; a key names those that are not.
        A line of its colour below its end is the 95 % interval of its own time.
    """
    labels = [shorten(name, 28) for name in categories]
    totals = [float(frame["mean_ms"].sum()) for frame in categories.values()]
    left, right = label_margin(labels), 0.95
    figure, (axis,) = new_figure(1.4 + 0.66 * len(labels), left=left, right=right, top=0.74)
    intervals = [_intervals(frame) for frame in categories.values()]
    ends = [part["high_ms"].max() for part in intervals if len(part)]
    longest = max([reach, *totals, *ends]) or 1.0
    inches_per_ms = (WIDTH - left - right) / longest
    unnamed = {}
    for row, (frame, total) in enumerate(zip(categories.values(), totals, strict=True)):
        _draw_intervals(axis, row, intervals[row], 0.06 / inches_per_ms)
        start = 0.0
        for category, ms, share in frame[["category", "mean_ms", "share"]].itertuples(index=False):
            text = _label(category, ms, share, ms * inches_per_ms)
            _draw_segment(axis, row, start, ms, category, text)
            if ms > 0:
                unnamed[category] = unnamed.get(category, True) and category not in text
            start += ms
        axis.text(total + 0.08 / inches_per_ms, row, format_ms(total), va="center", fontsize=10,
                  fontweight="bold", color=INK)  # fmt: skip
    set_rows(axis, labels)
    axis.set_ylim(max(len(labels), 1) - 1 + _FOOT, -0.5)
    axis.set_xlim(0, longest)
    known = "; lines: 95 % interval of each category" if any(map(len, intervals)) else ""
    label_x(axis, f"mean time per inference (ms){known}")
    _add_key(figure, left, [category for category, missing in unnamed.items() if missing])
    set_title(figure, title)
    return figure


def _intervals(frame: pd.DataFrame) -> pd.DataFrame:
    """Where each segment might as well have ended, had its own time alone been another."""
    parts = frame.reindex(columns=["category", "mean_ms", "low_ms", "high_ms"])
    starts = parts["mean_ms"].cumsum() - parts["mean_ms"]
    moved = parts.assign(low_ms=parts["low_ms"] + starts, high_ms=parts["high_ms"] + starts)
    return moved[moved["mean_ms"] > 0].dropna()


def _draw_intervals(axis, row: int, intervals: pd.DataFrame, gap: float) -> None:
    """Each in the first lane that is free there."""
    taken = dict.fromkeys(_LANES, -gap)
    for category, _, low, high in intervals.itertuples(index=False):
        lane = next((y for y, end in taken.items() if end + gap <= low), _LANES[-1])
        taken[lane] = high
        axis.plot([low, high], [row + lane] * 2, color=color_of(category), linewidth=2.2,
                  solid_capstyle="butt", clip_on=False)  # fmt: skip


def _draw_segment(axis, row: int, start: float, ms: float, category: str, text: str) -> None:
    color = color_of(category)
    axis.barh(row, ms, left=start, height=_HEIGHT, color=color, edgecolor="white", linewidth=1,
              hatch=None if category in COLORS else "///", label=category)  # fmt: skip
    if text:
        axis.text(start + ms / 2, row, text, ha="center", va="center", fontsize=8,
                  color=ink_on(color), linespacing=1.25)  # fmt: skip


def _label(category: str, ms: float, share: float, inches: float) -> str:
    """The fullest label that fits into a segment; empty if none does."""
    numbers = f"{format_ms(ms)} · {format_share(share)}"
    stacked = f"{format_ms(ms)}\n{format_share(share)}"
    texts = (f"{category}\n{numbers}", stacked, format_share(share))
    return next((text for text in texts if text_inches(text, 8) + 0.06 < inches), "")


def _add_key(figure: Figure, left: float, categories: list[str]) -> None:
    if not categories:
        return
    order = [*COLORS, *(c for c in categories if c not in COLORS)]
    chips = [
        Patch(
            facecolor=color_of(c), hatch=None if c in COLORS else "///", edgecolor="white", label=c
        )
        for c in sorted(categories, key=order.index)
    ]
    figure.legend(
        handles=chips, loc="upper left", ncols=len(chips), frameon=False, fontsize=9,
        bbox_to_anchor=(left / WIDTH, 1 - 0.4 / figure.get_figheight()), borderaxespad=0,
        borderpad=0, handlelength=1, handleheight=1, handletextpad=0.4, columnspacing=1.4,
    )  # fmt: skip
