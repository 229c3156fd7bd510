"""ISA levels, thread counts and sizes: how latency changes from one to the next."""

import itertools
import math

import numpy as np
import pandas as pd
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
def plot_isa_levels(
    source: Run | pd.DataFrame, *, threads: int | None = None, level: str = ""
) -> Chart | Table:
    """Latency of every ISA level beside its speed-up over the level below, with intervals.

    ``source`` is a run, or a frame of ``frames.LADDER``; of several thread counts, ``threads``
    (None: the first) is shown. The title says what the emphasised ``level`` gained. Median latency
    in ms, and ratios: hollow dots are equivalent or inconclusive. A sentence if levels are unknown.

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
        describe_level(levels, level) if level else title,
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
        color = style.fade(style.PLAIN, 0.35 if level not in ("", entry.level) else 1.0)
        style.draw_bar(times, row, entry.latency_ms, color)
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
    style.use_log_scales(axis)
    axis.yaxis.set_minor_formatter(axis.yaxis.get_major_formatter())
    ends = []
    colors = itertools.chain(style.SERIES, itertools.repeat(style.LINE))
    for name, color in zip(names, colors, strict=False):
        part = scaling[scaling["experiment"] == name].sort_values("threads")
        times, counts = part["latency_ms"].to_numpy(), part["threads"].to_numpy()
        axis.plot(counts, times[0] * counts[0] / counts, ":", color=color, linewidth=1)
        axis.vlines(counts, part["latency_low_ms"], part["latency_high_ms"], color=color)
        axis.plot(counts, times, "o-", color=color, linewidth=1.8, markersize=5)
        ends.append((times[-1], style.shorten(name, 24), color))
    style.label_ends(axis, ends)
    axis.xaxis.set_major_locator(FixedLocator(sorted(set(scaling["threads"]))))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.tick_params(axis="y", which="both", labelsize=8, labelcolor=style.FAINT)
    style.label_y(axis, "wall time (ms)")
    style.label_x(axis, "threads; latency with 95 % interval; dotted: ideal scaling")
    return figure


@marked
def plot_sizes(run: Run, *, threads: int | None = None) -> Chart | Table:
    """Latency over the size of ``--sweep``, and below it the share of each category.

    Latency in ms with its 95 % interval, one line per experiment, dotted where a straight line
    through the latencies would be; the shares are those of the first comparison's candidate.
    ``threads``: None takes the first count. A sentence where a run has no sweep.

    Examples
    --------
    >>> print(wb.plot_sizes(wb.open_run(wb.sample_run())))
    > One size was measured. `--sweep tokens=16,32,64` measures several.
    """
    name, phases, fits = run.record.plan.sweep, run.phases, run.size_fits
    if not name or phases is None:
        return show_note(NO_SIZES)
    threads = threads or int(phases["threads"].iloc[0])
    swept = [m for m in run.traced if m.threads == threads and not m.control]
    swept.sort(key=lambda m: m.phase.size)
    sides = list(dict.fromkeys(m.side for m in swept))
    margin = 0.35 + min(1.95, max(map(style.text_inches, [*sides, *style.COLORS])))
    figure, (times, shares) = style.new_figure(
        f"How does latency grow with {name}? {count_threads(threads)}",
        5.2, rows=2, left=0.75, right=margin,
    )  # fmt: skip
    style.use_log_scales(times)
    times.yaxis.set_minor_formatter(times.yaxis.get_major_formatter())
    sizes = np.array(sorted({m.phase.size for m in swept}), float)
    rows, ends = phases.set_index(["experiment", "threads"]), []
    for side, color in zip(sides, style.SERIES, strict=False):
        keys = [(m.name, threads) for m in swept if m.side == side]
        part = rows.loc[keys]
        times.vlines(part["size"], part["latency_low_ms"], part["latency_high_ms"], color=color)
        times.plot(part["size"], part["latency_ms"], "o-", color=color, linewidth=1.8, markersize=5)
        ends.append((part["latency_ms"].iloc[-1], style.shorten(side, 24), color))
        if fits is not None:
            line = fits[(fits["side"] == side) & (fits["threads"] == threads)].iloc[0]
            grid = np.geomspace(sizes[0], sizes[-1], 50)
            straight = line["fixed_ms"] + line["each_ms"] * grid ** line["power"]
            times.plot(grid, straight, ":", color=color, linewidth=1)
    style.label_ends(times, ends)
    times.tick_params(axis="y", which="both", labelsize=8, labelcolor=style.FAINT)
    style.label_y(times, "latency (ms)")
    chosen = run.comparisons[0].candidate.side if run.comparisons else sides[0]
    found = {
        m.phase.size: m.categories.set_index("category")["share"] for m in swept if m.side == chosen
    }
    table = pd.DataFrame(found).reindex(style.COLORS).fillna(0.0)
    colors = [style.color_of(category) for category in table.index]
    shares.stackplot(table.columns.to_numpy(float), 100 * table.to_numpy(), colors=colors)
    shares.set_ylim(0, 100)
    middles = 100 * (table.iloc[:, -1].cumsum() - table.iloc[:, -1] / 2)
    shown = [c for c in table.index if table.loc[c].max() > 0]
    style.label_ends(shares, [(middles[c], c, style.color_of(c)) for c in shown])
    style.label_y(shares, f"share of {chosen} (%)")
    shares.xaxis.set_major_locator(FixedLocator(list(sizes)))
    shares.xaxis.set_minor_locator(NullLocator())
    style.label_x(shares, f"{name}; latency with 95 % interval; dotted: straight line")
    return figure
