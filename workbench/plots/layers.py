"""The modules of a model as an icicle: how the time of an inference divides into them."""

import numpy as np
import pandas as pd

from workbench.analysis.layers import name_layer
from workbench.analysis.run import Measurement
from workbench.frames import format_share, format_time
from workbench.plots import style
from workbench.plots.categories import plot_categories
from workbench.plots.style import Chart, marked
from workbench.plots.tables import Table, show_note

NO_LAYERS = "Layers unknown: the program has no layer sidecar, or one without layers."
_TOP = object()  #: Above the model, and what belongs to no layer.


@marked
def plot_layers(source: Measurement | pd.DataFrame, *, depth: int | None = None) -> Chart | Table:
    """One box per module, as wide as its time, below the module that contains it.

    ``source`` is a measurement, or its ``frames.LAYERS``; ``depth`` limits the levels below the
    model. Times in ms. The part of a box without boxes below is the module's own time. Wide boxes
    show name, time and share of E2E; the black line at the end of a box is its 95 % interval. The
    colour depends on the module's path only. A sentence where layers are unknown.

    Examples
    --------
    >>> "classifier" in wb.plot_layers(wb.open_run(wb.sample_run())["avx512_on"], depth=2).alt_text
    True
    """
    layers = source if isinstance(source, pd.DataFrame) else source.layers
    if layers is None:
        return show_note(NO_LAYERS)
    boxes = lay_out(layers if depth is None else layers[layers["depth"] <= depth])
    levels = int(boxes["depth"].max()) + 1 if len(boxes) else 1
    ends = boxes["left"] + boxes["width"] + boxes["error"].fillna(0)
    reach = ends.max() if len(boxes) else 1.0
    height = 1.05 + 0.44 * levels
    figure, (axis,) = style.new_figure("Time by module", height, left=0.25, right=0.15, top=0.42)
    colors = [style.color_of_module(path) for path in boxes["module"]]
    style.draw_boxes(axis, boxes["left"], boxes["depth"], boxes["width"], 0.96, colors, edge=0.6)
    texts = [_label(box, (style.WIDTH - 0.4) / reach) for box in boxes.itertuples()]
    for box, text, color in zip(boxes.itertuples(), texts, colors, strict=True):
        style.write_inside(axis, box.left + box.width / 2, box.depth + 0.48, text, color)
    known = boxes[np.array(texts, dtype=bool) & boxes["error"].notna()]
    right = known["left"] + known["width"]
    axis.hlines(known["depth"] + 0.9, right - known["error"], right + known["error"],
                colors=style.INK, linewidths=1.6)  # fmt: skip
    figure.rows_text = [
        f"{name_layer(row.module)} {format_time(row.width, row.error)} ({format_share(row.share)})"
        for row in boxes.sort_values("width", ascending=False).head(12).itertuples()
    ]
    axis.set_xlim(0, reach)
    axis.set_ylim(levels, 0)
    axis.set_yticks([])
    style.label_x(
        axis, "mean time per traced inference (ms) with 95 % interval; below each module its parts"
    )
    return figure


@marked
def plot_layer_types(source: Measurement | pd.DataFrame, *, top: int = 12) -> Chart | Table:
    """One bar per class of layers, as long as its time in ms, split into categories of operators.

    ``source`` is a measurement, or its ``frames.LAYER_TYPES``; ``top`` classes are shown. A
    convolution with a 1x1 kernel is a ``Conv2d``, although it runs as a matrix product (GEMM). A
    sentence where layers are unknown.

    Examples
    --------
    >>> "Conv2d" in wb.plot_layer_types(wb.open_run(wb.sample_run())["avx512_on"]).alt_text
    True
    """
    types = source if isinstance(source, pd.DataFrame) else source.layer_types
    if types is None:
        return show_note(NO_LAYERS)
    bars = dict(list(types.groupby("module_class", sort=False))[:top])
    return plot_categories(bars, title="Where the time goes, by type of layer")


def lay_out(layers: pd.DataFrame) -> pd.DataFrame:
    """Where every module's box is: ``module``, ``name``, ``depth``, ``left``, ``width``, ``share``.

    ``error`` is half the width of the time's interval. The boxes of a module's children start
    where its own does, the slowest first; modules that took no time have none.
    """
    ends: dict[object, float] = {_TOP: 0.0}
    rows = []
    for row in layers[layers["total_ms"] > 0].itertuples():
        path = None if pd.isna(row.module) else str(row.module)
        if path is None or row.depth == 0:
            parent, name = _TOP, "(the model)" if path == "" else path or "(no layer)"
        else:
            parent, _, name = path.rpartition(".")
        left = ends[parent]
        ends[parent] += row.total_ms
        ends[path] = left
        error = (row.high_ms - row.low_ms) / 2
        rows.append((path, name, int(row.depth), left, row.total_ms, row.share, error))
    columns = ["module", "name", "depth", "left", "width", "share", "error"]
    return pd.DataFrame(rows, columns=columns)


def _label(box, inches_per_ms: float) -> str:
    room = box.width * inches_per_ms - 0.06
    share = format_share(box.share)
    short = style.shorten(box.name, max(3, int(room / style.text_inches("m", 8))))
    times = (format_time(box.width, box.error), style.write_ms(box.width))
    texts = [*(f"{box.name}\n{time} · {share}" for time in times), f"{box.name}\n{share}"]
    return style.fit([*texts, f"{short}\n{share}", short], room + 0.06)
