"""What each ISA level, thread, size and variant of a program brings."""

import itertools
import math
from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullLocator

from workbench.analysis.run import Run
from workbench.analysis.variants import tabulate_variants
from workbench.plots import style
from workbench.plots.style import Chart, draws
from workbench.records.optimize import Study
from workbench.records.runs import count_threads

#: Latencies that differ by more than this factor are drawn on a logarithmic axis.
_LOG_ABOVE = 4


@draws(pd.DataFrame)
def plot_isa_levels(levels: pd.DataFrame) -> Chart:
    """Latency of every ISA level beside its speed-up over the level below, with intervals.

    ``levels`` is a frame of ``frames.LADDER`` with one thread count. Latency in ms, and ratios:
    hollow dots are equivalent or inconclusive.
    """
    threads, names = int(levels["threads"].iloc[0]), list(levels["level"])
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
    times.set_xlabel("latency with 95 % interval (ms)")
    steps.set_xlabel("times as fast; grey: noise floor")
    return figure


@draws(pd.DataFrame)
def plot_threads(scaling: pd.DataFrame) -> Chart:
    """Latency against threads, one line per experiment, with its interval and the ideal.

    ``scaling`` is a frame of ``frames.SCALING``. Wall time in ms; both axes are logarithmic, so
    that ideal scaling is a straight line, dotted here. Where lines cross, the faster experiment
    depends on the number of threads.
    """
    names = list(dict.fromkeys(scaling["experiment"]))
    margin = 0.35 + min(1.95, max(map(style.text_inches, names), default=0.0))
    figure, (axis,) = style.new_figure("What do more threads gain?", 3.4, left=0.75, right=margin)
    parts = {name: scaling[scaling["experiment"] == name].sort_values("threads") for name in names}
    ideal = {
        name: part["latency_ms"].iloc[0] * part["threads"].iloc[0] / part["threads"]
        for name, part in parts.items()
    }
    _draw_lines(axis, "threads", parts, ideal)
    axis.set_ylabel("wall time (ms)")
    axis.set_xlabel("threads; latency with 95 % interval; dotted: ideal scaling")
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


@draws(Run)
def plot_sizes(run: Run) -> Chart:
    """Latency over the size of ``--sweep``, and below it the share of each category.

    Latency in ms with its 95 % interval, one line per experiment, dotted where the straight line of
    ``Run.size_fits`` is; the shares are those of the first comparison's candidate. One thread
    count, the first.
    """
    name, phases, fits = run.record.plan.sweep, run.phases, run.size_fits
    assert phases is not None, "a sweep has phases"
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
    times.set_ylabel("latency (ms)")
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
    shares.set_ylabel(f"share of {chosen} (%)")
    shares.set_xlabel(f"{name}; latency with 95 % interval; dotted: straight line")
    return figure


@draws(Study)
def plot_variants(study: Study) -> Chart:
    """Latency against SQNR, one dot per measured variant; larger dots are larger programs.

    The line joins the variants that no other one beats in latency and error; hollow dots may not be
    recommended. Of dots close together, one has a name.

    Examples
    --------
    >>> study = wb.read_study(wb.sample_file("out_Tiny"))
    >>> "SQNR" in wb.plot_variants(study).alt_text
    True
    """
    table = tabulate_variants(study)
    rows = table[table["latency_ms"].notna()].sort_values("latency_ms")
    exact = max(60.0, rows["sqnr_db"].max())  # where a program without error is drawn
    rows = rows.assign(db=rows["sqnr_db"].fillna(exact))
    figure, (axis,) = style.new_figure("What was tried", 3.6, rows=1, left=0.75, bottom=0.6)
    base = study.variants[0].name
    flaws = {variant.name for variant in study.variants if variant.flaw}
    sizes = 20 + 180 * (rows["size_mb"] / rows["size_mb"].max()).to_numpy()
    colors = [style.HIGHLIGHT if n == study.best else style.SERIES[0] for n in rows["name"]]
    faces = ["none" if n in flaws else c for n, c in zip(rows["name"], colors, strict=True)]
    axis.hlines(rows["db"], rows["low_ms"], rows["high_ms"], color=style.FAINT, linewidth=1)
    axis.scatter(rows["latency_ms"], rows["db"], s=sizes, facecolors=faces, edgecolors=colors)
    fit = rows[~rows["name"].isin(flaws)]
    front = fit[fit["db"] > fit["db"].cummax().shift(fill_value=-math.inf)]
    axis.plot(front["latency_ms"], front["db"], color=style.LINE, linewidth=1, zorder=0)
    if not study.options.metric:
        axis.axhline(study.options.min_sqnr_db, color=style.FAINT, linewidth=1, linestyle=":")
    if rows["latency_ms"].max() > _LOG_ABOVE * rows["latency_ms"].min():
        axis.set_xscale("log")
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter("")
    places = axis.transLimits.transform(
        axis.transScale.transform(rows[["latency_ms", "db"]].to_numpy())
    )
    dots = sorted(zip(rows["name"], places, np.sqrt(sizes) / 2, strict=True),
                  key=lambda dot: dot[0] not in (study.best, base))  # fmt: skip
    named: list[np.ndarray] = []
    for name, place, radius in dots:
        if all((abs(place - other) > (0.1, 0.06)).any() for other in named):
            axis.annotate(name, place, (radius + 2, 0), xycoords="axes fraction", fontsize=8,
                          textcoords="offset points", va="center", color=style.INK)  # fmt: skip
            named.append(place)
    axis.set_xlabel("latency in ms, with 95 % interval")
    axis.set_ylabel("SQNR in dB")
    return figure
