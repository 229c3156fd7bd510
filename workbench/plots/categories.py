"""Where the time goes, by category: one stacked bar per measurement."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes

from workbench.analysis.run import Comparison, Measurement, Run
from workbench.frames import format_share
from workbench.plots import style
from workbench.plots.style import Chart, marked
from workbench.records.runs import count_threads

#: In rows: the lanes below a bar for intervals that would overlap, and their end.
_LANES, _FOOT = (0.38, 0.44, 0.5), 0.57
#: Inches right of the bars.
_RIGHT = 0.95


@marked
def plot_categories(
    source: Run | Measurement | Comparison | Mapping[str, pd.DataFrame],
    *,
    title: str = "Where the time goes",
    reach: float = 0.0,
) -> Chart:
    """One bar per measurement, as long as its mean E2E time, split into categories.

    Parameters
    ----------
    source
        A run (without its controls), a measurement, the two sides of a comparison, or frames of
        ``frames.CATEGORIES`` by label, from top to bottom.
    title
        Title of the figure.
    reach
        Minimum end of the time axis in ms.

    Returns
    -------
    Chart
        Segments that are wide enough bear name, time and share; a key names the others. The line
        below the end of a segment is the 95 % interval of its own time, where it is known.

    Examples
    --------
    >>> run = wb.open_run(wb.sample_run())
    >>> "avx512_on" in wb.plot_categories(run).alt_text
    True
    """
    bars = source if isinstance(source, Mapping) else frames_of(source)
    labels = [style.shorten(name, 28) for name in bars]
    figure, axis = style.new_rows(title, labels, 0.66, head=0.74, right=_RIGHT)
    axis.set_ylim(max(len(labels), 1) - 1 + _FOOT, -0.5)
    intervals = [_intervals(frame) for frame in bars.values()]
    ends = [part["high_ms"].max() for part in intervals if len(part)]
    totals = [float(frame["mean_ms"].sum()) for frame in bars.values()]
    longest = max([reach, *totals, *ends]) or 1.0
    inches_per_ms = (style.WIDTH - style.label_margin(labels) - _RIGHT) / longest
    named: dict[str, bool] = {}
    for row, (frame, total) in enumerate(zip(bars.values(), totals, strict=True)):
        _draw_intervals(axis, row, intervals[row], 0.06 / inches_per_ms)
        start = 0.0
        for category, ms, share in frame[["category", "mean_ms", "share"]].itertuples(index=False):
            text = _label(category, ms, share, ms * inches_per_ms)
            style.draw_bar(
                axis, row, ms, style.color_of(category), left=start, height=0.66, edge="white"
            )
            style.write_inside(axis, start + ms / 2, row, text, style.color_of(category))
            start += ms
            if ms > 0:
                named[category] = named.get(category, False) or category in text
        style.write_after(axis, total, row, style.write_ms(total), size=10, bold=True)
    axis.set_xlim(0, longest)
    known = "; lines: 95 % interval of each category" if any(map(len, intervals)) else ""
    style.label_x(axis, f"mean time per inference (ms){known}")
    unnamed = [c for c in dict.fromkeys([*style.COLORS, *named]) if not named.get(c, True)]
    style.add_key(
        figure,
        {category: style.color_of(category) for category in unnamed},
        style.label_margin(labels),
    )
    return figure


def frames_of(source: Run | Measurement | Comparison) -> dict[str, pd.DataFrame]:
    """The categories of every measurement by label, thread count by thread count."""
    if isinstance(source, Measurement):
        return {source.label: source.categories}
    if isinstance(source, Comparison):
        before, after = name_sides(source)
        return {before: source.baseline.categories, after: source.candidate.categories}
    compared = [m for m in source.traced if not m.control]
    return {m.label: m.categories for m in sorted(compared, key=lambda m: m.threads)}


def name_sides(ab: Comparison) -> tuple[str, str]:
    """The names of baseline and candidate, with what tells them apart."""
    before, after = ab.baseline, ab.candidate
    if before.threads != after.threads:
        return tuple(f"{m.name}, {count_threads(m.threads)}" for m in (before, after))
    if before.name != after.name:
        return before.name, after.name
    return f"{before.name}, before", f"{after.name}, after"


def _intervals(frame: pd.DataFrame) -> pd.DataFrame:
    """Where each segment would end at both ends of its own time's interval."""
    parts = frame.reindex(columns=["category", "mean_ms", "low_ms", "high_ms"])
    starts = parts["mean_ms"].cumsum() - parts["mean_ms"]
    moved = parts.assign(low_ms=parts["low_ms"] + starts, high_ms=parts["high_ms"] + starts)
    return moved[moved["mean_ms"] > 0].dropna()


def _draw_intervals(axis: Axes, row: int, intervals: pd.DataFrame, gap: float) -> None:
    """Each in the first lane that is free there."""
    taken = dict.fromkeys(_LANES, -gap)
    for category, _, low, high in intervals.itertuples(index=False):
        lane = next((y for y, end in taken.items() if end + gap <= low), _LANES[-1])
        taken[lane] = high
        style.draw_interval(axis, row + lane, low, high, color=style.color_of(category), width=2.2)


def _label(category: str, ms: float, share: float, inches: float) -> str:
    """The longest label that fits into a segment; empty if none does."""
    texts = (
        f"{category}\n{style.write_ms(ms)} · {format_share(share)}",
        f"{style.write_ms(ms)}\n{format_share(share)}",
        format_share(share),
    )
    return next((text for text in texts if style.text_inches(text, 8) + 0.06 < inches), "")
