"""Where the time goes, by category: one stacked bar per measurement."""

from collections.abc import Mapping

import pandas as pd

from workbench.analysis.run import Comparison, Measurement, Run
from workbench.frames import format_share
from workbench.plots import style
from workbench.plots.style import Chart, marked
from workbench.records.runs import count_threads


@marked
def plot_categories(
    source: Run | Measurement | Comparison | Mapping[str, pd.DataFrame], *,
    title: str = "Where the time goes",
) -> Chart:  # fmt: skip
    """One bar per measurement, as long as its mean E2E time in ms, split into categories.

    ``source`` is a run (without its controls), a measurement, a comparison, or frames of
    ``frames.CATEGORIES`` by label. A key names the segments that are too narrow for a name; a line
    below the end of a segment is the 95 % interval of its time.

    Examples
    --------
    >>> "avx512_on" in wb.plot_categories(wb.open_run(wb.sample_run())).alt_text
    True
    """
    bars = source if isinstance(source, Mapping) else _frames_of(source)
    labels = [style.shorten(name, 28) for name in bars]
    figure, axis = style.new_rows(title, labels, 0.66, head=0.74, right=0.95)
    intervals = {name: _intervals(frame) for name, frame in bars.items()}
    ends = [frame["high_ms"].max() for frame in intervals.values() if len(frame)]
    longest = max([*(frame["mean_ms"].sum() for frame in bars.values()), *ends, 0.0]) or 1.0
    axis.set_xlim(0, longest)
    axis.set_ylim(max(len(labels), 1) - 0.43, -0.5)
    inches_per_ms = style.WIDTH * axis.get_position().width / longest
    named: dict[str, bool] = {}
    for row, (name, frame) in enumerate(bars.items()):
        for end in intervals[name].itertuples():
            lane, color = row + 0.37 + 0.04 * end.Index, style.color_of(end.category)
            style.draw_interval(axis, lane, end.low_ms, end.high_ms, color=color, width=2.2)
        start = 0.0
        for category, ms, share in frame[["category", "mean_ms", "share"]].itertuples(index=False):
            time, part, color = style.write_ms(ms), format_share(share), style.color_of(category)
            texts = (f"{category}\n{time} · {part}", f"{time}\n{part}", part)
            text = style.fit(texts, ms * inches_per_ms)
            style.draw_bar(axis, row, ms, color, left=start, height=0.66, edge="white")
            style.write_inside(axis, start + ms / 2, row, text, color)
            start += ms
            if ms > 0:
                named[category] = named.get(category, False) or category in text
        style.write_after(axis, start, row, style.write_ms(start), size=10, bold=True)
    figure.rows_text = [
        f"{name}: {style.write_ms(frame['mean_ms'].sum())}, "
        + ", ".join(f"{row.category} {format_share(row.share)}" for row in frame.itertuples())
        for name, frame in bars.items()
    ]
    known = "; lines: 95 % interval of each category" if ends else ""
    style.label_x(axis, f"mean time per inference (ms){known}")
    unnamed = [c for c in dict.fromkeys([*style.COLORS, *named]) if not named.get(c, True)]
    style.add_key(figure, {c: style.color_of(c) for c in unnamed}, style.label_margin(labels))
    return figure


def _frames_of(source: Run | Measurement | Comparison) -> dict[str, pd.DataFrame]:
    if isinstance(source, Measurement):
        return {source.label: source.categories}
    if isinstance(source, Comparison):
        sides = (source.baseline.categories, source.candidate.categories)
        return dict(zip(name_sides(source), sides, strict=True))
    compared = [m for m in source.traced if not m.control]
    return {m.label: m.categories for m in sorted(compared, key=lambda m: m.threads)}


def name_sides(ab: Comparison) -> tuple[str, str]:
    """The names of baseline and candidate, with what tells them apart."""
    before, after = ab.baseline, ab.candidate
    if before.threads != after.threads:
        counts = count_threads(before.threads), count_threads(after.threads)
        return f"{before.name}, {counts[0]}", f"{after.name}, {counts[1]}"
    if before.name != after.name:
        return before.name, after.name
    return f"{before.name}, before", f"{after.name}, after"


def _intervals(frame: pd.DataFrame) -> pd.DataFrame:
    """Where each segment would end at both ends of its own time's interval."""
    parts = frame.reindex(columns=["category", "mean_ms", "low_ms", "high_ms"])
    starts = parts["mean_ms"].cumsum() - parts["mean_ms"]
    moved = parts.assign(low_ms=parts["low_ms"] + starts, high_ms=parts["high_ms"] + starts)
    return moved[moved["mean_ms"] > 0].dropna().reset_index(drop=True)
