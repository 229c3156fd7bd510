"""ISA levels, thread counts and sizes: how latency changes from one to the next."""

import itertools
import math
from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from workbench.analysis.run import Run
from workbench.plots import style
from workbench.plots.style import Chart, marked
from workbench.plots.tables import Table, show_note
from workbench.records.runs import count_threads

NO_LEVELS = "One toggle was measured. `--isa-ladder` measures every ISA level of the CPU."
NO_SIZES = "One size was measured. `--sweep tokens=16,32,64` measures several."
NO_THREADS = "One thread count was measured. `--threads 1,2,4` measures several."


@marked
def plot_isa_levels(source: Run | pd.DataFrame, *, threads: int | None = None) -> Chart | Table:
    """Latency of every ISA level beside its speed-up over the level below, with intervals.

    ``source`` is a run, or a frame of ``frames.LADDER``; of several thread counts, ``threads``
    (None: the first) is shown. Median latency in ms, and ratios: hollow dots are equivalent or
    inconclusive. A sentence if levels are unknown.

    Examples
    --------
    >>> "avx2" in wb.plot_isa_levels(wb.open_run(wb.sample_run("squeezesam"))).alt_text
    True
    """
    levels = source if isinstance(source, pd.DataFrame) else source.isa_levels
    if levels is None:
        return show_note(NO_LEVELS)
    threads = threads or int(levels["threads"].iloc[0])
    levels = levels[levels["threads"] == threads]
    names = list(levels["level"])
    title = f"What each extension gains, {count_threads(threads)}"
    height, left = 1.35 + 0.42 * len(names), style.label_margin(names)
    figure, (times, steps) = style.new_figure(
        title,
        height, columns=2, left=left, right=3.05, top=0.75,
    )  # fmt: skip
    style.set_rows(times, names)
    longest = levels["latency_high_ms"].fillna(levels["latency_ms"]).max()
    times.set_xlim(0, 1.35 * longest)
    ends = levels[["speedup", "low", "high"]].stack().dropna()
    low, high = min(1.0, ends.min()), max(1.0, ends.max())
    pad = 0.08 * max(high - low, 0.05)
    steps.set_xlim(low - pad, high + pad)
    steps.axvline(1, color=style.LINE, linewidth=1)
    for row, entry in enumerate(levels.itertuples()):
        style.draw_bar(times, row, entry.latency_ms, style.PLAIN)
        style.draw_interval(times, row, entry.latency_low_ms, entry.latency_high_ms)
        style.write_after(times, entry.latency_ms, row, style.write_ms(entry.latency_ms))
        if math.isfinite(entry.speedup):
            style.draw_speedup(steps, row, entry)
    times.set_xticks([t for t in MaxNLocator(4).tick_values(0, longest) if t <= 1.1 * longest])
    steps.xaxis.set_major_locator(MaxNLocator(4))
    style.set_head(times, "latency of one inference")
    style.set_head(steps, "speed-up over the level below")
    style.label_x(times, "latency with 95 % interval (ms)")
    style.label_x(steps, "times as fast; grey: noise floor")
    return figure


@marked
def plot_threads(source: Run | pd.DataFrame) -> Chart | Table:
    """Latency against threads, one line per experiment, with its interval and the ideal.

    ``source`` is a run, or a frame of ``frames.SCALING``. Wall time in ms; both axes are
    logarithmic, so that ideal scaling is a straight line, dotted here. Where lines cross, the
    faster experiment depends on the number of threads. A sentence where a run has one thread count.

    Examples
    --------
    >>> "avx512_on" in wb.plot_threads(wb.open_run(wb.sample_run("unet_small"))).alt_text
    True
    """
    scaling = source if isinstance(source, pd.DataFrame) else source.scaling
    if scaling is None:
        return show_note(NO_THREADS)
    names = list(dict.fromkeys(scaling["experiment"]))
    margin = 0.35 + min(1.95, max(map(style.text_inches, names), default=0.0))
    figure, (axis,) = style.new_figure("What do more threads gain?", 3.4, left=0.75, right=margin)
    parts = {name: scaling[scaling["experiment"] == name].sort_values("threads") for name in names}
    ideal = {
        name: part["latency_ms"].iloc[0] * part["threads"].iloc[0] / part["threads"]
        for name, part in parts.items()
    }
    _draw_lines(axis, "threads", parts, ideal)
    style.label_y(axis, "wall time (ms)")
    style.label_x(axis, "threads; latency with 95 % interval; dotted: ideal scaling")
    return figure


def _draw_lines(
    axis: Axes, x: str, parts: Mapping[str, pd.DataFrame], dotted: Mapping[str, pd.Series]
) -> None:
    """Latency with its interval over a column, both logarithmic, and another line by name."""
    style.use_log_scales(axis)
    axis.yaxis.set_minor_formatter(axis.yaxis.get_major_formatter())
    ends, colors = [], itertools.chain(style.SERIES, itertools.repeat(style.LINE))
    for (name, part), color in zip(parts.items(), colors, strict=False):
        if name in dotted:
            axis.plot(part[x], dotted[name], ":", color=color, linewidth=1)
        axis.vlines(part[x], part["latency_low_ms"], part["latency_high_ms"], color=color)
        axis.plot(part[x], part["latency_ms"], "o-", color=color, linewidth=1.8, markersize=5)
        ends.append((part["latency_ms"].iloc[-1], style.shorten(name, 24), color))
    style.label_ends(axis, ends)
    values = sorted({value for part in parts.values() for value in part[x]})
    axis.xaxis.set_major_locator(FixedLocator(values))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.tick_params(axis="y", which="both", labelsize=8, labelcolor=style.FAINT)


@marked
def plot_sizes(run: Run) -> Chart | Table:
    """Latency over the size of ``--sweep``, and below it the share of each category.

    Latency in ms with its 95 % interval, one line per experiment, dotted where the straight line of
    ``Run.size_fits`` is; the shares are those of the first comparison's candidate. One thread
    count, the first. A sentence where a run has no sweep.

    Examples
    --------
    >>> print(wb.plot_sizes(wb.open_run(wb.sample_run())))
    > One size was measured. `--sweep tokens=16,32,64` measures several.
    """
    name, phases, fits = run.record.plan.sweep, run.phases, run.size_fits
    if not name or phases is None:
        return show_note(NO_SIZES)
    swept = sorted(run.traced, key=lambda m: m.phase.size)
    swept = [m for m in swept if m.threads == swept[0].threads and not m.control]
    rows, chosen = phases.set_index(["experiment", "threads"]), run.comparisons[0].candidate.side
    parts = {
        side: rows.loc[[(m.name, m.threads) for m in swept if m.side == side]]
        for side in dict.fromkeys(m.side for m in swept)
    }
    margin = 0.35 + min(1.95, max(map(style.text_inches, [*parts, *style.COLORS])))
    figure, (times, shares) = style.new_figure(
        f"How does latency grow with {name}? {count_threads(swept[0].threads)}",
        5.2, rows=2, left=0.75, right=margin,
    )  # fmt: skip
    lines = {
        fit.side: fit.fixed_ms + fit.each_ms * parts[fit.side]["size"] ** fit.power
        for fit in (() if fits is None else fits[fits["threads"] == swept[0].threads].itertuples())
    }
    _draw_lines(times, "size", parts, lines)
    style.label_y(times, "latency (ms)")
    table = pd.DataFrame(
        {
            m.phase.size: m.categories.set_index("category")["share"]
            for m in swept
            if m.side == chosen
        }
    )
    table = 100 * table.reindex(style.COLORS).fillna(0.0)
    table = table[table.max(axis=1) > 0]
    colors = [style.color_of(category) for category in table.index]
    shares.stackplot(table.columns.to_numpy(float), table.to_numpy(), colors=colors)
    shares.set_ylim(0, 100)
    middles = table.iloc[:, -1].cumsum() - table.iloc[:, -1] / 2
    style.label_ends(shares, list(zip(middles, table.index, colors, strict=True)))
    style.label_y(shares, f"share of {chosen} (%)")
    style.label_x(shares, f"{name}; latency with 95 % interval; dotted: straight line")
    return figure
