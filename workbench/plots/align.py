"""Layers against runs: how much faster or slower each became, as colours."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from matplotlib.collections import PolyCollection
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure

from workbench.frames import format_ms
from workbench.plots.style import (
    FAINT,
    INK,
    ink_on,
    label_margin,
    marked,
    new_figure,
    set_rows,
    set_title,
    shorten,
)

#: Slower is vermilion, faster blue: ends that colour-blind readers can tell apart.
_MAP = LinearSegmentedColormap.from_list("change", ["#D55E00", "#F2F2F2", "#0072B2"])


@marked
def plot_heatmap(
    aligned: pd.DataFrame, *, top: int = 20, title: str = "Every layer in every run"
) -> Figure:
    """One row per layer, one column per run; colour is the speed-up since the first run.

    Parameters
    ----------
    aligned
        ``schema.ALIGNED``.
    top
        How many rows: those with the most time in any run, in their order.
    title
        Of the figure.

    Returns
    -------
    Figure
        Cells say the time, and the speed-up with its 95 % interval where one was shown. A change
        that was not shown has no colour; a layer that a run lacks is empty.
    """
    largest = aligned.groupby("name", sort=False)["time_ms"].max().nlargest(top).index
    names = [name for name in dict.fromkeys(aligned["name"]) if name in largest]
    runs = list(dict.fromkeys(aligned["run"]))
    labels = [shorten(name, 40) for name in names]
    figure, (axis,) = new_figure(
        1.3 + 0.36 * len(names), left=label_margin(labels), right=0.3, top=0.85, bottom=0.4
    )
    places = {(name, run): (x, y) for y, name in enumerate(names) for x, run in enumerate(runs)}
    cells = aligned[aligned["name"].isin(names)]
    shown = cells["outcome"].isin(["faster", "slower"])
    change = np.where(shown, np.log2(cells["speedup"].where(shown, 1.0)), 0.0)
    reach = max(0.5, np.abs(change).max(initial=0.0))
    colors = _MAP(Normalize(-reach, reach)(change))
    colors[cells["time_ms"].isna()] = (1, 1, 1, 1)
    corners = [places[row.name, row.run] for row in cells.itertuples(index=False)]
    boxes = [
        [(x - 0.5, y - 0.5), (x + 0.5, y - 0.5), (x + 0.5, y + 0.5), (x - 0.5, y + 0.5)]
        for x, y in corners
    ]
    axis.add_collection(
        PolyCollection(boxes, facecolors=colors, edgecolors="white", linewidths=1.5)
    )
    for (x, y), row, color in zip(corners, cells.itertuples(), colors, strict=True):
        if math.isfinite(row.time_ms):
            _write(axis, x, y, row, ink_on(color[:3]))
    set_rows(axis, labels)
    axis.grid(False)
    axis.set_xlim(-0.5, len(runs) - 0.5)
    heads = ["\n".join(shorten(line, 90 // len(runs)) for line in run.split("\n")) for run in runs]
    axis.set_xticks(range(len(runs)), heads)
    axis.xaxis.tick_top()
    axis.tick_params(axis="x", labelcolor=INK)
    axis.spines["bottom"].set_visible(False)
    figure.text(0.5, 0.1 / figure.get_figheight(), "typical time per inference, and speed-up since "
                "the first column with its 95 % interval; colour: blue faster, red slower, pale "
                "not shown", ha="center", fontsize=8, color=FAINT)  # fmt: skip
    set_title(figure, title)
    return figure


def _write(axis, x: float, y: float, row, ink: str) -> None:
    text = format_ms(row.time_ms)
    if row.outcome in ("faster", "slower"):
        text += f"\n{row.speedup:.2f}x ({row.low:.2f} to {row.high:.2f})"
    axis.text(x, y, text, ha="center", va="center", fontsize=8, color=ink, linespacing=1.15)
