"""How the bottleneck moves: shares before and after, and each category's part in the change."""

import math
import textwrap

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from workbench.analysis.run import Comparison
from workbench.frames import decimals_of, format_number, format_share
from workbench.plots import style
from workbench.plots.categories import name_sides
from workbench.plots.style import Chart, marked

_SMALL = 0.02  #: A smaller change of E2E is not divided into parts.


@marked
def plot_shift(
    source: Comparison | pd.DataFrame, labels: tuple[str, str] = ("baseline", "candidate"), *,
    title: str = "How the bottleneck moves",
) -> Chart:  # fmt: skip
    """Shares before and after, beside a waterfall from one E2E time to the other.

    ``source`` is a comparison, or a frame of ``frames.SHIFT`` with the ``labels`` of both sides.
    Shares of mean E2E time in per cent, times in ms. Where the frame has ``low_ms`` and
    ``high_ms``, every step of the waterfall has its 95 % interval.

    Examples
    --------
    >>> "avx512_off" in wb.plot_shift(wb.open_run(wb.sample_run()).compare()).alt_text
    True
    """
    if isinstance(source, Comparison):
        labels, source = name_sides(source), source.shift
    names = [labels[0], *source["category"], labels[1]]
    rows = [textwrap.fill(style.shorten(name, 44), 22) for name in names]
    height, left = 1.45 + 0.42 * len(rows), style.label_margin(rows)
    figure, (shares, waterfall) = style.new_figure(
        title, height, columns=2, left=left, right=0.35, top=0.75, gap=0.45
    )
    style.set_rows(shares, rows)
    _draw_shares(shares, source)
    _draw_waterfall(waterfall, source)
    style.set_head(shares, "share of the time: \N{WHITE CIRCLE} before \N{BLACK CIRCLE} after")
    bounded = "low_ms" in source and source["low_ms"].notna().any()
    contents = ", with 95 % intervals" if bounded else ": time, and part of it"
    style.set_head(waterfall, f"parts of the change{contents}")
    return figure


def _draw_shares(axis: Axes, shift: pd.DataFrame) -> None:
    widest = shift[["share_before", "share_after"]].max().max()
    axis.set_xlim(-0.22 * widest, 1.26 * widest)
    for row, entry in enumerate(shift.itertuples(), start=1):
        color, start, end = style.color_of(entry.category), entry.share_before, entry.share_after
        style.draw_interval(axis, row, start, end, color=color, width=3)
        for share, fill in ((start, "white"), (end, color)):
            axis.plot(share, row, "o", markersize=9, markerfacecolor=fill, markeredgewidth=2,
                      color=color)  # fmt: skip
        # Both shares outside of their dots, so that they never overlap; before, then after.
        turn = -1 if start <= end else 1
        for share, side, ink in ((start, turn, style.FAINT), (end, -turn, style.INK)):
            axis.text(share + side * 0.055 * widest, row, format_share(share), color=ink,
                      ha="right" if side < 0 else "left", va="center", fontsize=9)  # fmt: skip
    axis.xaxis.set_major_formatter(FuncFormatter(lambda share, _: format_share(share)))
    ticks = MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(0, widest)
    axis.set_xticks([tick for tick in ticks if tick <= 1.1 * widest])
    style.label_x(axis, "share of mean E2E time (%)")


def _draw_waterfall(axis: Axes, shift: pd.DataFrame) -> None:
    before, after = shift["baseline_ms"].sum(), shift["candidate_ms"].sum()
    shift = shift.assign(**{end: shift.get(end, math.nan) for end in ("low_ms", "high_ms")})
    reached = before + shift["delta_ms"].cumsum()
    highest = np.fmax(reached, reached - shift["delta_ms"] + shift["high_ms"])
    widest = max(before, after, highest.max()) or 1.0
    axis.set_xlim(0, 1.42 * widest)
    decimals = decimals_of(max(before, after))
    for row, total in ((0, before), (len(shift) + 1, after)):
        style.draw_bar(axis, row, total, style.PLAIN)
        style.write_after(axis, total, row, style.write_ms(total), bold=True)
    level = before
    for row, entry in enumerate(shift.itertuples(), start=1):
        style.draw_bar(axis, row, entry.delta_ms, style.color_of(entry.category), left=level)
        axis.vlines(level, row - 1, row, color=style.LINE, linewidth=0.8, zorder=0)
        if math.isfinite(entry.low_ms):
            style.draw_interval(axis, row, level + entry.low_ms, level + entry.high_ms)
        right = level + np.nanmax([0.0, entry.delta_ms, entry.high_ms])
        level += entry.delta_ms
        text = f"{format_number(entry.delta_ms, decimals, '+')} ms"
        if abs(after - before) > _SMALL * before and math.isfinite(entry.contribution):
            text += f" · {format_share(entry.contribution)}"
        style.write_after(axis, right, row, text)
    axis.vlines(after, len(shift), len(shift) + 1, color=style.LINE, linewidth=0.8, zorder=0)
    axis.set_xticks([tick for tick in MaxNLocator(5).tick_values(0, widest) if tick <= widest])
    style.label_x(axis, "mean time per traced inference (ms)")
