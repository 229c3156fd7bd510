"""ISA levels and thread counts: how latency changes from one to the next."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from workbench.analysis.run import Run
from workbench.plots import style
from workbench.plots.style import Chart, marked
from workbench.plots.tables import Table, show_note
from workbench.records.runs import count_threads

NO_LEVELS = "One toggle was measured. `--isa-ladder` measures every ISA level of the CPU."
NO_THREADS = "One thread count was measured. `--threads 1,2,4` measures several."


@marked
def plot_isa_levels(
    source: Run | pd.DataFrame, *, threads: int | None = None, title: str = ""
) -> Chart | Table:
    """Latency of every ISA level beside its speed-up over the level below, with intervals.

    Parameters
    ----------
    source
        A run, or a frame of ``frames.LADDER``.
    threads
        Which thread count; None takes the first.
    title
        Title of the figure; empty names the thread count.

    Returns
    -------
    Chart or Table
        Median latency in ms, and ratios. Hollow dots are equivalent or inconclusive: the extension
        was not shown to gain anything. A sentence where a run has no ISA levels.

    Examples
    --------
    >>> run = wb.open_run(wb.sample_run("squeezesam"))
    >>> "avx2" in wb.plot_isa_levels(run).alt_text
    True
    """
    levels = source if isinstance(source, pd.DataFrame) else source.isa_levels
    if levels is None:
        return show_note(NO_LEVELS)
    threads = threads or int(levels["threads"].iloc[0])
    levels = levels[levels["threads"] == threads]
    labels = list(levels["level"])
    figure, (times, steps) = style.new_figure(
        1.35 + 0.42 * len(labels),
        columns=2,
        left=style.label_margin(labels),
        right=2.1,
        top=0.75,
        gap=0.35,
        ratios=(1.0, 0.85),
        share_y=True,
    )
    style.set_rows(times, labels)
    _draw_levels(times, levels)
    _draw_steps(steps, levels)
    style.set_head(steps, "speed-up over the level below")
    style.set_title(figure, title or f"What each extension gains, {count_threads(threads)}")
    return figure


def _draw_levels(axis: Axes, levels: pd.DataFrame, chosen: str = "") -> None:
    """The latency of every level with its interval; all but the chosen one are pale, if any."""
    longest = levels["latency_high_ms"].fillna(levels["latency_ms"]).max()
    axis.set_xlim(0, 1.3 * longest)
    for row, entry in enumerate(levels.itertuples()):
        color = style.fade(style.PLAIN, 0.35) if chosen not in ("", entry.level) else style.PLAIN
        style.draw_bar(axis, row, entry.latency_ms, color, height=0.6)
        style.draw_interval(axis, row, entry.latency_low_ms, entry.latency_high_ms)
        style.write_after(axis, entry.latency_ms, row, style.write_ms(entry.latency_ms))
    ticks = MaxNLocator(4).tick_values(0, longest)
    axis.set_xticks([tick for tick in ticks if tick <= 1.1 * longest])
    style.set_head(axis, "latency of one inference")
    style.label_x(axis, "median with 95 % interval (ms)")


def _draw_steps(axis: Axes, levels: pd.DataFrame) -> None:
    ends = levels[["speedup", "low", "high"]].stack().dropna()
    low, high = min(1.0, ends.min()), max(1.0, ends.max())
    pad = 0.08 * max(high - low, 0.05)
    axis.set_xlim(low - pad, high + pad)
    axis.axvline(1, color=style.LINE, linewidth=1)
    for row, step in enumerate(levels.itertuples()):
        if math.isfinite(step.speedup):
            style.draw_speedup(
                axis, row, step.speedup, step.low, step.high, step.floor, step.outcome
            )
            _write_outcome(axis, row, step.speedup, step.outcome)
    axis.xaxis.set_major_locator(MaxNLocator(4))
    style.label_x(axis, "times as fast; grey: noise floor")


def _write_outcome(axis: Axes, row: int, speedup: float, outcome: str) -> None:
    """A speed-up and its verdict beside a row, in bold where a difference was shown."""
    shown = outcome in ("faster", "slower")
    style.write_beside(axis, row, f"{style.write_ratio(speedup)}, {outcome}", bold=shown)


@marked
def plot_level(
    levels: pd.DataFrame, level: str, bars: Mapping[str, pd.DataFrame], changes: pd.DataFrame
) -> Chart:
    """The latency of one ISA level among all, and its categories beside those of the lowest.

    Parameters
    ----------
    levels
        ``frames.LADDER`` of one thread count.
    level
        Which level.
    bars
        ``frames.CATEGORIES`` with intervals by level: the lowest, and this one.
    changes
        ``frames.COMPARISON`` of the two, by category.

    Returns
    -------
    Chart
        Lines are 95 % intervals. Speed-ups in bold were shown.
    """
    names, parts_of = list(levels["level"]), list(bars[level]["category"])
    figure, (times, parts) = style.new_figure(
        1.35 + 0.45 * max(len(names), len(parts_of)),
        columns=2,
        left=style.label_margin(names),
        right=1.6,
        top=0.75,
        gap=style.label_margin(parts_of),
        ratios=(0.8, 1.0),
    )
    style.set_rows(times, names)
    _draw_levels(times, levels, level)
    style.set_rows(parts, parts_of)
    _draw_categories(parts, bars)
    if len(bars) > 1:
        for change in changes[np.isfinite(changes["speedup"])].itertuples():
            _write_outcome(parts, parts_of.index(change.name), change.speedup, change.outcome)
    order = "upper bar: {}, lower bar: {}" if len(bars) > 1 else "categories of {}"
    style.set_head(parts, order.format(*bars))
    style.set_title(figure, describe_level(levels, level))
    return figure


def describe_level(levels: pd.DataFrame, level: str) -> str:
    """What a level gained, over the lowest and over the one below it, in one line."""
    names = list(levels["level"])
    place = names.index(level)
    row = levels.iloc[place]
    if not place:
        return f"{level}: {style.write_ms(row['latency_ms'])}, the lowest level"
    step = style.write_ratio(row["speedup"], row["low"], row["high"])
    step = f"{step} over {names[place - 1]}, {row['outcome']}"
    if place == 1:
        return f"{level}: {step}"
    total = style.write_ratio(row["total"], row["total_low"], row["total_high"])
    return f"{level}: {total} over {names[0]}; {step}"


def _draw_categories(axis: Axes, bars: Mapping[str, pd.DataFrame]) -> None:
    """One bar for each level in every row, those of the lowest pale."""
    longest = max(bar[["mean_ms", "high_ms"]].max().max() for bar in bars.values()) or 1.0
    axis.set_xlim(0, 1.25 * longest)
    style.label_x(axis, "mean with 95 % interval (ms)")
    offsets = (-0.2, 0.2) if len(bars) > 1 else (0.0,)
    for offset, bar in zip(offsets, bars.values(), strict=True):
        for row, part in enumerate(bar.itertuples()):
            color = style.color_of(part.category)
            color = style.fade(color, 0.4) if offset < 0 else color
            style.draw_bar(axis, row + offset, part.mean_ms, color, height=0.36)
            style.draw_interval(axis, row + offset, part.low_ms, part.high_ms)
            end = np.nanmax([part.mean_ms, part.high_ms])
            style.write_after(axis, end, row + offset, style.write_ms(part.mean_ms), size=8)


@marked
def plot_threads(
    source: Run | pd.DataFrame, *, title: str = "What do more threads gain?"
) -> Chart | Table:
    """Latency against threads, one line per experiment, with its interval and the ideal.

    Parameters
    ----------
    source
        A run, or a frame of ``frames.SCALING``.
    title
        Title of the figure.

    Returns
    -------
    Chart or Table
        Wall time in ms; both axes are logarithmic, so that ideal scaling is a straight line, dotted
        here. Where lines cross, the faster experiment depends on the number of threads. A sentence
        where a run has one thread count.

    Examples
    --------
    >>> run = wb.open_run(wb.sample_run("unet_small"))
    >>> "avx512_on" in wb.plot_threads(run).alt_text
    True
    """
    scaling = source if isinstance(source, pd.DataFrame) else source.scaling
    if scaling is None:
        return show_note(NO_THREADS)
    names = list(dict.fromkeys(scaling["experiment"]))
    labels = {name: style.shorten(name, 24) for name in names}
    margin = 0.35 + max(map(style.text_inches, labels.values()), default=0.0)
    figure, (axis,) = style.new_figure(3.4, left=0.75, right=margin)
    axis.set_xscale("log")
    axis.set_yscale("log")
    ends = []
    colors = itertools.chain(style.SERIES, itertools.repeat(style.LINE))
    for name, color in zip(names, colors, strict=False):
        part = scaling[scaling["experiment"] == name].sort_values("threads")
        times, counts = part["latency_ms"].to_numpy(), part["threads"].to_numpy()
        axis.plot(counts, times[0] * counts[0] / counts, ":", color=color, linewidth=1)
        axis.vlines(counts, part["latency_low_ms"], part["latency_high_ms"], color=color)
        axis.plot(counts, times, "o-", color=color, linewidth=1.8, markersize=5)
        ends.append((times[-1], labels[name], color))
    style.label_ends(axis, ends)
    plain = FuncFormatter(lambda value, _: f"{value:g}")
    axis.xaxis.set_major_locator(FixedLocator(sorted(set(scaling["threads"]))))
    axis.xaxis.set_major_formatter(plain)
    axis.xaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(plain)
    axis.yaxis.set_minor_formatter(plain)
    axis.tick_params(axis="y", which="both", labelsize=8, labelcolor=style.FAINT)
    style.label_y(axis, "wall time (ms)")
    style.label_x(axis, "threads; median with 95 % interval; dotted: ideal scaling")
    style.set_title(figure, title)
    return figure
