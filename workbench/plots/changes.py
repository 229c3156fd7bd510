"""What changes between measurements: speed-ups and the shift of the bottleneck."""

import math
import textwrap
from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from workbench.analysis.run import Comparison
from workbench.analysis.shift import bottleneck_shift
from workbench.plots import style
from workbench.plots.breakdown import name_sides
from workbench.plots.style import Chart, draws
from workbench.wording import fit_decimals, format_number, format_share


@draws(Comparison, pd.DataFrame)
def plot_speedups(source: Comparison | pd.DataFrame) -> Chart:
    """One dot per compared part with its 95 % interval, on a logarithmic axis.

    ``source`` is a comparison (E2E and the categories are shown), or a frame of
    ``frames.COMPARISON`` or ``frames.RESOURCE_CHANGES``, such as its ``resources``. Ratios of
    baseline to candidate: blue is faster or less, orange slower or more, hollow unchanged or
    inconclusive. A grey band is the noise ``floor``, where the frame has one.

    Examples
    --------
    >>> "faster" in wb.plot_speedups(wb.open_run(wb.sample_run()).compare()).alt_text
    True
    """
    parts = source if isinstance(source, pd.DataFrame) else source.speedups
    title, what = "What became faster", "speed-up: baseline / candidate"
    if "resource" in parts:
        title, what = "What needs less", "baseline / candidate"
        ratios = {"speedup": 1 / parts["ratio"], "low": 1 / parts["high"], "high": 1 / parts["low"]}
        parts = parts.assign(level="resource", name=parts["resource"], **ratios)
    labels = [
        "E2E" if level == "e2e" else style.shorten(name, 40)
        for level, name in zip(parts["level"], parts["name"], strict=True)
    ]
    figure, axis = style.Chart.new_rows(title, labels, 0.36, right=3.15)
    ends = parts[["speedup", "low", "high"]].to_numpy(dtype=float).ravel()
    ends = np.append(ends[np.isfinite(ends) & (ends > 0)], 1.0)
    reach = max(0.05, 1.08 * np.abs(np.log(ends)).max())
    axis.set_xscale("log")
    lower = -reach if np.log(ends).min() < -0.1 * reach else -0.15 * reach
    upper = reach if np.log(ends).max() > 0.1 * reach else 0.15 * reach
    axis.set_xlim(math.exp(lower), math.exp(upper))
    axis.axvline(1, color=style.Ink.LINE, linewidth=1)
    for row, entry in enumerate(parts.itertuples()):
        style.draw_speedup(axis, row, entry)
    axis.set_xticks(_ticks(*axis.get_xlim()), minor=False)
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda ratio, _: f"{ratio:g}x"))
    controlled = "floor" in parts and (parts["floor"] > 0).any()
    noise = "; grey: as far as equal experiments differ" if controlled else ""
    axis.set_xlabel(f"{what}, with 95 % interval{noise}")
    return figure


def _ticks(low: float, high: float) -> list[float]:
    if high / low < 2.5:
        ticks = MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(low, high)
    elif high / low < 12:
        ticks = (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1, 1.5, 2, 3, 4, 5, 7, 10)
    else:
        ticks = [first * 10.0**power for power in range(-4, 5) for first in (1, 2, 5)]
    return [round(float(tick), 6) for tick in ticks if low <= tick <= high]


@draws(Comparison, Mapping)
def plot_shift(
    source: Comparison | Mapping[str, pd.DataFrame], *, title: str = "How the bottleneck moves"
) -> Chart:
    """Shares before and after, beside a waterfall from one E2E time to the other.

    ``source`` is a comparison, or a dict of two frames with the columns ``category`` and
    ``mean_ms`` by label, the baseline first. Shares of mean E2E time in per cent, times in ms;
    every step of a comparison's waterfall has its 95 % interval.

    Examples
    --------
    >>> "avx512_off" in wb.plot_shift(wb.open_run(wb.sample_run()).compare()).alt_text
    True
    """
    if isinstance(source, Comparison):
        (first, last), shift = name_sides(source), source.shift
    else:
        (first, before), (last, after) = source.items()
        shift = bottleneck_shift(before, after)
    names = [first, *shift["category"], last]
    rows = [textwrap.fill(style.shorten(name, 44), 22) for name in names]
    height, left = 1.45 + 0.42 * len(rows), style.label_margin(rows)
    figure, (shares, waterfall) = style.Chart.new(
        title, height, columns=2, left=left, right=0.35, top=0.75, gap=0.45
    )
    style.set_rows(shares, rows)
    _draw_shares(shares, shift)
    _draw_waterfall(waterfall, shift)
    style.set_head(shares, "share of the time: \N{WHITE CIRCLE} before \N{BLACK CIRCLE} after")
    bounded = "low_ms" in shift and shift["low_ms"].notna().any()
    contents = ", with 95 % intervals" if bounded else ": time, and part of it"
    style.set_head(waterfall, f"parts of the change{contents}")
    return figure


def _draw_shares(axis: Axes, shift: pd.DataFrame) -> None:
    widest = shift[["share_before", "share_after"]].max().max()
    axis.set_xlim(-0.22 * widest, 1.26 * widest)
    for row, entry in enumerate(shift.itertuples(), start=1):
        color, start, end = style.line_color(entry.category), entry.share_before, entry.share_after
        style.draw_interval(axis, row, start, end, color=color, width=3)
        for share, fill in ((start, "white"), (end, color)):
            axis.plot(share, row, "o", markersize=9, markerfacecolor=fill, markeredgewidth=2,
                      color=color)  # fmt: skip
        # Both shares outside of their dots, so that they never overlap; before, then after.
        turn = -1 if start <= end else 1
        for share, side, ink in ((start, turn, style.Ink.FAINT), (end, -turn, style.Ink.TEXT)):
            axis.text(share + side * 0.055 * widest, row, format_share(share), color=ink,
                      ha="right" if side < 0 else "left", va="center", fontsize=9)  # fmt: skip
    axis.xaxis.set_major_formatter(FuncFormatter(lambda share, _: format_share(share, 0)))
    ticks = MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(0, widest)
    axis.set_xticks([tick for tick in ticks if tick <= 1.1 * widest])
    axis.set_xlabel("share of mean E2E time (%)")


def _draw_waterfall(axis: Axes, shift: pd.DataFrame) -> None:
    before, after = shift["baseline_ms"].sum(), shift["candidate_ms"].sum()
    shift = shift.assign(**{end: shift.get(end, math.nan) for end in ("low_ms", "high_ms")})
    reached = before + shift["delta_ms"].cumsum()
    highest = np.fmax(reached, reached - shift["delta_ms"] + shift["high_ms"])
    widest = max(before, after, highest.max()) or 1.0
    axis.set_xlim(0, 1.42 * widest)
    for row, total in ((0, before), (len(shift) + 1, after)):
        style.draw_bar(axis, row, total, style.Ink.PLAIN)
        style.write_after(axis, total, row, style.write_ms(total), bold=True)
    level = before
    for row, entry in enumerate(shift.itertuples(), start=1):
        style.draw_bar(axis, row, entry.delta_ms, style.color_of(entry.category), left=level)
        axis.vlines(level, row - 1, row, color=style.Ink.LINE, linewidth=0.8, zorder=0)
        if math.isfinite(entry.low_ms):
            style.draw_interval(axis, row, level + entry.low_ms, level + entry.high_ms)
        right = level + np.nanmax([0.0, entry.delta_ms, entry.high_ms])
        level += entry.delta_ms
        decimals = fit_decimals(entry.delta_ms, (entry.high_ms - entry.low_ms) / 2)
        text = f"{format_number(entry.delta_ms, decimals, '+')} ms"
        if entry.contribution >= 0:  # against the change of the whole, it has no share of it
            text += f" · {format_share(entry.contribution)}"
        style.write_after(axis, right, row, text)
    axis.vlines(after, len(shift), len(shift) + 1, color=style.Ink.LINE, linewidth=0.8, zorder=0)
    axis.set_xticks([tick for tick in MaxNLocator(5).tick_values(0, widest) if tick <= widest])
    axis.set_xlabel("mean time per inference (ms)")
