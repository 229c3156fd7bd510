"""The model tree as an icicle: how the time of an inference divides into modules."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure

from workbench.frames import format_ms, format_share, format_time
from workbench.plots.style import (
    INK,
    SERIES,
    UNSPLIT_COLOR,
    WIDTH,
    fade,
    ink_on,
    label_x,
    marked,
    new_figure,
    set_title,
    shorten,
    text_inches,
)

_MODEL = "(the model)"
_NO_LAYER = "(no layer)"
#: How much of its colour a level gives to white, compared with the one above.
_FADE = 0.22
_BOX = ["module", "name", "depth", "left", "width", "share", "error"]


@marked
def plot_tree(
    layers: pd.DataFrame, *, depth: int | None = None, title: str = "Time down the tree of modules"
) -> Figure:
    """One box per module, as wide as the time spent in it, below the module that it lies in.

    Parameters
    ----------
    layers
        ``schema.LAYERS`` of one experiment and thread count.
    depth
        How many levels below the model; None shows all.
    title
        Of the figure.

    Returns
    -------
    Figure
        What a box has no boxes below is the module's own time. Boxes that are wide enough bear
        name, time and share of E2E, and a bar at their end from one end of the time's 95 %
        interval to the other. Colours tell apart the modules of the level at which the tree
        branches.
    """
    boxes = lay_out(layers if depth is None else layers[layers["depth"] <= depth])
    levels = int(boxes["depth"].max()) + 1 if len(boxes) else 1
    ends = boxes["left"] + boxes["width"] + boxes["error"].fillna(0)
    reach = ends.max() if len(boxes) else 1.0
    figure, (axis,) = new_figure(1.05 + 0.44 * levels, left=0.25, right=0.15, top=0.42)
    colors = _colors(boxes)
    corners = [
        [(b.left, b.depth), (b.left + b.width, b.depth), (b.left + b.width, b.depth + 0.96),
         (b.left, b.depth + 0.96)]
        for b in boxes.itertuples()
    ]  # fmt: skip
    look = {"edgecolors": "white", "linewidths": 0.6}
    axis.add_collection(PolyCollection(corners, facecolors=colors, **look))
    told = [
        _write(axis, box, reach, ink_on(c))
        for box, c in zip(boxes.itertuples(), colors, strict=True)
    ]
    _draw_intervals(axis, boxes.loc[told])
    axis.set_xlim(0, reach)
    axis.set_ylim(levels, 0)
    axis.set_yticks([])
    label_x(
        axis, "mean time per inference (ms) and its 95 % interval; below each module those in it"
    )
    set_title(figure, title)
    return figure


def lay_out(layers: pd.DataFrame) -> pd.DataFrame:
    """Where every module's box is: ``module``, ``name``, ``depth``, ``left``, ``width``, ``share``.

    ``error`` is half of the width of the time's interval. Boxes of a module's children start where
    its own does, the slowest first; modules that took no time have none.
    """
    ends: dict[str | None, float] = {}
    rows, end = [], 0.0
    for row in layers.itertuples():
        path = None if pd.isna(row.module) else row.module
        if not row.total_ms > 0:
            continue
        if row.depth == 0:
            left, name = end, _MODEL if path == "" else path or _NO_LAYER
            end += row.total_ms
        else:
            parent, _, name = path.rpartition(".")
            left = ends[parent]
            ends[parent] += row.total_ms
        ends[path] = left
        error = (row.high_ms - row.low_ms) / 2
        rows.append((path, name, int(row.depth), left, row.total_ms, row.share, error))
    return pd.DataFrame(rows, columns=_BOX)


def _colors(boxes: pd.DataFrame) -> list[tuple[float, ...]]:
    """A colour for every module of the level at which the tree branches, paler further down."""
    level = _branching(boxes)
    paths = boxes["module"].fillna("").str.split(".").str[:level].str.join(".")
    heads = paths.where(boxes["depth"] >= level, "")
    ranks = {head: number for number, head in enumerate(dict.fromkeys(filter(None, heads)))}
    found = []
    for head, depth in zip(heads, boxes["depth"], strict=True):
        base = SERIES[ranks[head] % len(SERIES)] if head else UNSPLIT_COLOR
        found.append(fade(base, (1 - _FADE) ** max(0, depth - level)))
    return found


def _branching(boxes: pd.DataFrame) -> int:
    """The first level on which no module has half of the time."""
    widest = boxes[boxes["depth"] > 0].groupby("depth")["width"].max()
    branching = widest.index[widest < boxes["width"].max() / 2]
    return int(branching[0]) if len(branching) else 1


def _write(axis: Axes, box, reach: float, ink: str) -> bool:
    """Label a box as well as it has room; whether there is any."""
    room = (WIDTH - 0.4) * box.width / reach - 0.06
    share = format_share(box.share)
    short = shorten(box.name, max(3, int(room / text_inches("m", 8))))
    texts = (
        f"{box.name}\n{format_time(box.width, box.error)} · {share}",
        f"{box.name}\n{format_ms(box.width)} · {share}",
        f"{box.name}\n{share}",
        f"{short}\n{share}",
        short,
    )
    text = next((text for text in texts if text_inches(text, 8) < room), "")
    if text:
        axis.text(box.left + box.width / 2, box.depth + 0.48, text, ha="center", va="center",
                  fontsize=8, color=ink, linespacing=1.15)  # fmt: skip
    return bool(text)


def _draw_intervals(axis: Axes, boxes: pd.DataFrame) -> None:
    """A bar across the end of every box."""
    known = boxes[boxes["error"].notna()]
    lines = [
        [(b.left + b.width - b.error, b.depth + 0.9), (b.left + b.width + b.error, b.depth + 0.9)]
        for b in known.itertuples()
    ]
    axis.add_collection(LineCollection(lines, colors=INK, linewidths=1.6, capstyle="butt"))
