"""What an optimisation tried: latency against error and size."""

import math
from pathlib import Path

import numpy as np
from matplotlib.ticker import LogLocator

from workbench.analysis.variants import read_study, tabulate_variants
from workbench.plots import style
from workbench.plots.style import Chart, marked
from workbench.records.optimize import Study

#: Latencies that differ by more than this factor are drawn on a logarithmic axis.
_LOG_ABOVE = 4


@marked
def plot_variants(study: Study | str | Path) -> Chart:
    """Latency against SQNR, one dot per measured variant; larger dots are larger programs.

    The line joins the variants that no other one beats in latency and error; hollow dots may not be
    recommended. Of dots close together, one has a name.

    Examples
    --------
    >>> wb.plot_variants("out_toy_cnn")  # doctest: +SKIP
    """
    found = study if isinstance(study, Study) else read_study(study)
    table = tabulate_variants(found)
    rows = table[table["latency_ms"].notna()].sort_values("latency_ms")
    exact = max(60.0, rows["sqnr_db"].max())  # where a program without error is drawn
    rows = rows.assign(db=rows["sqnr_db"].fillna(exact))
    figure, (axis,) = style.new_figure("What was tried", 3.6, rows=1, left=0.75, bottom=0.6)
    base = found.variants[0].name
    flaws = {variant.name for variant in found.variants if variant.flaw}
    sizes = 20 + 180 * (rows["size_mb"] / rows["size_mb"].max()).to_numpy()
    colors = [style.HIGHLIGHT if n == found.best else style.SERIES[0] for n in rows["name"]]
    faces = ["none" if n in flaws else c for n, c in zip(rows["name"], colors, strict=True)]
    axis.hlines(rows["db"], rows["low_ms"], rows["high_ms"], color=style.FAINT, linewidth=1)
    axis.scatter(rows["latency_ms"], rows["db"], s=sizes, facecolors=faces, edgecolors=colors)
    fit = rows[~rows["name"].isin(flaws)]
    front = fit[fit["db"] > fit["db"].cummax().shift(fill_value=-math.inf)]
    axis.plot(front["latency_ms"], front["db"], color=style.LINE, linewidth=1, zorder=0)
    if not found.options.metric:
        axis.axhline(found.options.min_sqnr_db, color=style.FAINT, linewidth=1, linestyle=":")
    if rows["latency_ms"].max() > _LOG_ABOVE * rows["latency_ms"].min():
        axis.set_xscale("log")
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter("")
    places = axis.transLimits.transform(
        axis.transScale.transform(rows[["latency_ms", "db"]].to_numpy())
    )
    dots = sorted(zip(rows["name"], places, np.sqrt(sizes) / 2, strict=True),
                  key=lambda dot: dot[0] not in (found.best, base))  # fmt: skip
    named: list[np.ndarray] = []
    for name, place, radius in dots:
        if all((abs(place - other) > (0.1, 0.06)).any() for other in named):
            axis.annotate(name, place, (radius + 2, 0), xycoords="axes fraction", fontsize=8,
                          textcoords="offset points", va="center", color=style.INK)  # fmt: skip
            named.append(place)
    style.label_x(axis, "latency in ms, with 95 % interval")
    style.label_y(axis, "SQNR in dB")
    return figure
