"""Where the time goes and what limits it: categories, and the roofline."""

import itertools
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke
from matplotlib.ticker import PercentFormatter

from workbench.analysis.operators import label_operator
from workbench.analysis.run import Comparison, Measurement, Run
from workbench.analysis.use import Use
from workbench.plots import style
from workbench.plots.style import Chart, draws
from workbench.plots.tables import Table, lighten, show_note
from workbench.wording import format_share, plural

NO_LAYERS = "Layers unknown: the program has no layer sidecar, or one without layers."
NO_ROOFLINE = (
    "No roofline: machine peaks or operator costs are missing. `wb.measure_roof(RUN_DIR)` "
    "measures the peaks; exports by the workbench record the costs."
)
_LINES = 4  #: Bandwidths drawn at most: the fastest, the slowest, and some between.
_LEAST_LINE = 0.005  #: Part of the axis below which an interval would look like dust.
_LARGEST_DOT = 420.0
_NAMED = 8  #: Operators that are numbered, and named below the axis with their roof shares.
#: Bars by label, each of a measurement or of a frame of categories.
Bars: TypeAlias = Mapping[str, Measurement | pd.DataFrame]


@draws(Run, Measurement, Comparison, Mapping)
def plot_categories(
    source: Run | Measurement | Comparison | Bars, *,
    title: str = "Where the time goes", shares: bool = False,
) -> Chart:  # fmt: skip
    """One bar per measurement, as long as its mean E2E time in ms, split into categories.

    ``source`` has several measurements (controls are left out), or is a dict by label of
    measurements, or of frames with the columns ``category`` and ``mean_ms``. Bars of a busy machine
    are pale, and have no digits where their shares are unknown. With ``shares``, all bars are
    equally long. A key names all categories, in the order of the bars; a line below the end of a
    segment is the 95 % interval of its time.

    Examples
    --------
    >>> "avx512_on" in wb.plot_categories(wb.open_run(wb.sample_run())).alt_text
    True
    """
    sides = _sides_of(source)
    frames = {name: _with_shares(side) for name, side in sides.items()}
    uses = {name: side.use for name, side in sides.items() if isinstance(side, Measurement)}
    return _draw_bars(frames, title, shares, uses)


def _draw_bars(
    bars: Mapping[str, pd.DataFrame],
    title: str,
    shares: bool = False,
    uses: Mapping[str, Use] = {},
) -> Chart:
    """One stacked bar per frame of categories and their times, with shares of each frame's sum."""
    sums = {name: float(frame["mean_ms"].sum()) for name, frame in bars.items()}
    wholes = {name: (sums[name] or 1.0) if shares else 1.0 for name in bars}
    short = max(map(len, bars), default=0) <= 28
    names = list(bars) if short else map(", ".join, style.distinguish(bars))
    labels = [style.shorten(name, 28) for name in names]
    figure, axis = style.Chart.new_rows(title, labels, 0.66, head=0.74, right=0.95)
    intervals = {name: _intervals(frame, wholes[name]) for name, frame in bars.items()}
    ends = [frame["high_ms"].max() for frame in intervals.values() if len(frame)]
    longest = max([*(sums[name] / wholes[name] for name in bars), *ends, 0.0]) or 1.0
    axis.set_xlim(0, longest)
    axis.set_ylim(max(len(labels), 1) - 0.43, -0.5)
    inches = style.WIDTH * axis.get_position().width / longest
    for row, (name, frame) in enumerate(bars.items()):
        for end in intervals[name].itertuples():
            if (end.high_ms - end.low_ms) / longest >= _LEAST_LINE:
                lane, color = row + 0.37 + 0.04 * end.Index, style.line_color(end.category)
                style.draw_interval(axis, lane, end.low_ms, end.high_ms, color=color, width=2.2)
        start, use = 0.0, uses.get(name, Use())
        for category, ms, share in frame[["category", "mean_ms", "share"]].itertuples(index=False):
            time, part, color = style.write_ms(ms), format_share(share), style.color_of(category)
            color = lighten(color) if use.pale else color
            texts = (f"{category}\n{time} · {part}", f"{time}\n{part}", part)
            length = ms / wholes[name]
            text = style.fit((category,) if use.blank else texts, length * inches)
            style.draw_bar(axis, row, length, color, left=start, height=0.66, edge="white")
            style.write_inside(axis, start + length / 2, row, text, color)
            start += length
        style.write_after(axis, start, row, style.write_ms(sums[name]), size=10, bold=True)
    figure.rows_text = [
        f"{name}: {style.write_ms(sums[name])}, "
        + ", ".join(_describe_parts(frame, blank=uses.get(name, Use()).blank))
        for name, frame in bars.items()
    ]
    legend = "; lines, where long enough to be seen: 95 % intervals" if ends else ""
    legend += "; pale: the machine was busy" if any(use.busy for use in uses.values()) else ""
    measure = "share of the inference" if shares else "mean time per inference (ms)"
    axis.set_xlabel(f"{measure}{legend}")
    if shares:
        axis.xaxis.set_major_formatter(PercentFormatter(1))
    categories = [category for frame in bars.values() for category in frame["category"]]
    key = style.COLORS | {category: style.color_of(category) for category in categories}
    style.add_key(figure, key, style.label_margin(labels))
    return figure


def _describe_parts(frame: pd.DataFrame, *, blank: bool) -> list[str]:
    """Each category with its share, if that is known."""
    shares = frame["share"].map(lambda share: "" if blank else f" {format_share(share)}")
    return (frame["category"].astype(str) + shares).tolist()


def _sides_of(source: Run | Measurement | Comparison | Bars) -> Bars:
    """What each bar is of, by its name."""
    if isinstance(source, Mapping):
        return source
    if isinstance(source, Measurement):
        return {source.label: source}
    if isinstance(source, Comparison):
        return dict(zip(name_sides(source), (source.baseline, source.candidate), strict=True))
    compared = [m for m in source.traced if not m.control]
    return {m.label: m for m in sorted(compared, key=lambda m: m.threads)}


def _with_shares(source: Measurement | pd.DataFrame) -> pd.DataFrame:
    """Categories with their shares of the sum."""
    frame = source.categories if isinstance(source, Measurement) else source
    return frame.assign(share=frame["mean_ms"] / frame["mean_ms"].sum())


def name_sides(ab: Comparison) -> tuple[str, str]:
    """The names of baseline and candidate, with what tells them apart."""
    before, after = ab.baseline, ab.candidate
    if before.threads != after.threads:
        counts = plural(before.threads, "thread"), plural(after.threads, "thread")
        return f"{before.name}, {counts[0]}", f"{after.name}, {counts[1]}"
    if before.name != after.name:
        return before.name, after.name
    if before.run.label and after.run.label and before.run.label != after.run.label:
        return before.run.label, after.run.label
    return f"{before.name}, before", f"{after.name}, after"


def _intervals(frame: pd.DataFrame, whole: float) -> pd.DataFrame:
    """Where each segment would end at both ends of its own time's interval."""
    columns = ["mean_ms", "low_ms", "high_ms"]
    parts = frame.reindex(columns=["category", *columns]).astype(dict.fromkeys(columns, float))
    parts[columns] /= whole
    starts = parts["mean_ms"].cumsum() - parts["mean_ms"]
    moved = parts.assign(low_ms=parts["low_ms"] + starts, high_ms=parts["high_ms"] + starts)
    return moved[moved["mean_ms"] > 0].dropna().reset_index(drop=True)


@draws(Measurement)
def plot_roofline(m: Measurement) -> Chart | Table:
    """Operations per second over operations per byte, logarithmic; a dot's area is its time.

    Horizontal lines are peaks in GFLOP/s by dtype, slanted ones bandwidths in GB/s by footprint.
    The shade below a line is how much another process fell short of it. The slowest operators are
    numbered, and listed below with their share of the roof. Operators without operations, or too
    short to time, are left out; the key says how much time is shown. A sentence where peaks or
    costs are missing.

    Examples
    --------
    >>> "GFLOP/s" in wb.plot_roofline(wb.open_run(wb.sample_run())["avx512_on"]).alt_text
    True
    """
    roof, rates = m.roof, m.roofline
    if rates is None or roof is None:
        return show_note(NO_ROOFLINE)
    rows = rates[(rates["flops"] > 0) & rates["roof_share"].notna()]
    title = f"Roofline of {m.label}"
    figure, (axis,) = style.Chart.new(title, 6.0, left=0.75, right=1.6, top=0.75, bottom=1.3)
    axis.grid(axis="both", color="#EEEEEE", linewidth=0.8)
    dtypes = [dtype for dtype in roof.peaks if dtype in set(rows["dtype"])] or list(roof.peaks)[:1]
    top = max(roof.peaks[dtype] for dtype in dtypes)
    least = min([*rows["intensity"], 0.1])
    slowest = min(rate for _, rate in roof.bandwidths)
    style.use_log_scales(axis)
    axis.set_xlim(least / 1.5, max([*rows["intensity"], top / slowest]) * 4)
    axis.set_ylim(min([*rows["gflops"], top / 100]) / 1.6, 2.2 * top)
    _draw_slopes(axis, _choose(roof.bandwidths), top, roof.spread)
    for dtype in dtypes:
        peak = roof.peaks[dtype]
        axis.axhline(peak, color=style.Ink.TEXT, linewidth=1.4)
        axis.axhspan(peak / (1 + roof.spread), peak, color=style.Ink.TEXT, alpha=0.1, linewidth=0)
        style.write_beside(axis, peak, f"{dtype}: {peak:.0f} GFLOP/s", 5)
    _draw_dots(figure, axis, rows)
    axis.set_ylabel("GFLOP/s")
    varied = f"; peaks vary by {100 * roof.spread:.0f} % between processes" if roof.spread else ""
    axis.set_xlabel(f"operations per byte; area of a dot: its time{varied}")
    note = f"shown: {100 * rows['share'].sum():.0f} % of the time"
    style.add_key(figure, style.COLORS, note=note)
    return figure


def _choose(bandwidths: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    lines: list[tuple[int, float]] = []
    for size, rate in bandwidths:
        if not lines or rate < 0.7 * lines[-1][1]:
            lines.append((size, rate))
    return [*lines[: _LINES - 1], *lines[-1:]] if len(lines) > _LINES else lines


def _draw_slopes(
    axis: Axes, bandwidths: list[tuple[int, float]], top: float, spread: float
) -> None:
    (left, right), (low, high) = axis.get_xlim(), axis.get_ylim()
    box = axis.get_window_extent()
    rise = (box.height / np.log10(high / low)) / (box.width / np.log10(right / left))
    angle = float(np.degrees(np.arctan(rise)))
    for size, rate in bandwidths:
        start = max(left, low / rate)
        x = np.array([start, top / rate])
        axis.plot(x, rate * x, color=style.Ink.FAINT, linewidth=1.1)
        axis.fill_between(x, rate * x / (1 + spread), rate * x, color=style.Ink.FAINT, alpha=0.12,
                          linewidth=0)  # fmt: skip
        unit = f"{size / 2**20:.0f} MB" if size >= 2**20 else f"{size / 2**10:.0f} kB"
        axis.annotate(f"{unit}: {rate:.0f} GB/s", (start, rate * start), (4, 6),
                      textcoords="offset points", fontsize=8, color=style.Ink.FAINT, rotation=angle,
                      rotation_mode="anchor")  # fmt: skip


def _draw_dots(figure: Chart, axis: Axes, rows: pd.DataFrame) -> None:
    if rows.empty:
        return
    area = _LARGEST_DOT * rows["mean_ms"] / rows["mean_ms"].max()
    colors = [style.color_of(category) for category in rows["category"]]
    axis.scatter(rows["intensity"], rows["gflops"], s=area.clip(lower=8), alpha=0.65, c=colors,
                 edgecolors=list(map(style.edge_of, colors)), linewidths=0.6, zorder=3)  # fmt: skip
    numbers = list[np.ndarray]()
    halo = [withStroke(linewidth=2.5, foreground="white")]
    for number, row in enumerate(rows.nlargest(_NAMED, "mean_ms").itertuples()):
        # In its dot, or beside it where another number is; the list is below the axis.
        dot = axis.transData.transform((row.intensity, row.gflops)) * 72 / figure.dpi
        beside = list(itertools.product((0, -12, 12), (0, -10, 10)))
        free = (p for p in beside if all(np.abs(dot + p - q).max() > 8 for q in numbers))
        offset = next(free, beside[0])
        numbers.append(dot + offset)
        line_to_dot = {"arrowstyle": "-", "color": style.Ink.FAINT, "linewidth": 0.6, "shrinkA": 0}
        axis.annotate(str(number + 1), (row.intensity, row.gflops), offset, fontsize=8, zorder=4,
                      textcoords="offset points", ha="center", va="center", color=style.Ink.TEXT,
                      path_effects=halo,
                      arrowprops=line_to_dot if any(offset) else None)  # fmt: skip
        column, line = divmod(number, _NAMED // 2)
        label = style.shorten(label_operator(row.name, row.module), 44)
        figure.text(0.08 + 0.46 * column, (0.62 - 0.17 * line) / figure.get_figheight(),
                    f"{number + 1}  {label}, {100 * row.roof_share:.0f} %", fontsize=8,
                    color=style.Ink.FAINT)  # fmt: skip
