"""How latency goes with the number of threads, as a figure."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from workbench.show.style import (
    FAINT,
    label_ends,
    label_x,
    marked,
    new_figure,
    set_title,
    shorten,
    text_inches,
)

#: Okabe and Ito's colours in an order in which neighbours differ; lines beyond them are grey.
_LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


@marked
def plot_scaling(scaling: pd.DataFrame, title: str = "What more threads bring") -> Figure:
    """Latency against threads, one line per experiment, with its interval and the ideal.

    Parameters
    ----------
    scaling
        ``schema.SCALING``.
    title
        Of the figure.

    Returns
    -------
    Figure
        Both axes are logarithmic: where halving the time takes twice the threads, a line is
        straight and falls like the dotted one beside it. Lines that cross are experiments whose
        order depends on the number of threads.
    """
    names = list(dict.fromkeys(scaling["experiment"]))
    labels = {name: shorten(name, 24) for name in names}
    margin = 0.35 + max((text_inches(label) for label in labels.values()), default=0.0)
    figure, (axis,) = new_figure(3.4, left=0.75, right=margin, top=0.5)
    axis.set_xscale("log")
    axis.set_yscale("log")
    ends = []
    for place, name in enumerate(names):
        color = _LINES[place] if place < len(_LINES) else "#9A9A9A"
        part = scaling[scaling["experiment"] == name].sort_values("threads")
        times, counts = part["latency_ms"].to_numpy(), part["threads"].to_numpy()
        axis.plot(counts, times[0] * counts[0] / counts, ":", color=color, linewidth=1)
        axis.vlines(counts, part["latency_low_ms"], part["latency_high_ms"], color=color)
        axis.plot(counts, times, "o-", color=color, linewidth=1.8, markersize=5)
        ends.append((times[-1], labels[name], color))
    label_ends(axis, ends)
    axis.xaxis.set_major_locator(FixedLocator(sorted(set(scaling["threads"]))))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda count, _: f"{count:g}"))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(FuncFormatter(lambda ms, _: f"{ms:g}"))
    axis.yaxis.set_minor_formatter(FuncFormatter(lambda ms, _: f"{ms:g}"))
    axis.tick_params(axis="y", which="both", labelsize=8, labelcolor=FAINT)
    axis.set_ylabel("wall time (ms)", fontsize=9, color=FAINT)
    label_x(axis, "threads; median with 95 % interval; dotted: as many times faster as threads")
    set_title(figure, title)
    return figure
