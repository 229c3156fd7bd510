"""The modules of a model as an icicle: how the time of an inference divides into them."""

from collections import defaultdict
from operator import itemgetter
from typing import Any

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
_TOP = "(top)"  #: Above the model, and what belongs to no layer.
_MODULES = ("#E4E7EB", "#CFD5DC")  #: Colours of modules, level by level, as in the explorer.


@marked
def plot_layers(source: Measurement | pd.DataFrame, *, depth: int | None = None) -> Chart | Table:
    """One box per module, as wide as its time, below the module that contains it.

    ``source`` is a measurement, or its ``frames.LAYERS``; ``depth`` limits the levels below the
    model. Times in ms. Below the modules of a measurement are its operators, in the colours of
    their categories, and all boxes are in the order of execution, each where its slowest operator
    ran; those of a frame are in its order. Wide boxes show name, time and share of E2E; the black
    line at the end of a module is its 95 % interval. A sentence where layers are unknown.

    Examples
    --------
    >>> "classifier" in wb.plot_layers(wb.open_run(wb.sample_run())["avx512_on"], depth=2).alt_text
    True
    """
    layers = source if isinstance(source, pd.DataFrame) else source.layers
    if layers is None:
        return show_note(NO_LAYERS)
    operators = pd.DataFrame() if isinstance(source, pd.DataFrame) else source.operators
    if len(operators):
        places = pd.Series(range(len(operators)), index=source.ledger["key"].unique())
        operators = operators.assign(place=operators["key"].map(places))
    boxes = lay_out(layers, operators, depth)
    levels = int(boxes["depth"].max()) + 1 if len(boxes) else 1
    ends = boxes["left"] + boxes["width"] + boxes["error"].fillna(0)
    reach = ends.max() if len(boxes) else 1.0
    key = {name: color for name, color in style.COLORS.items() if name in set(boxes["category"])}
    top = 0.68 if key else 0.42
    figure, (axis,) = style.new_figure(
        "Time by module", 0.63 + top + 0.44 * levels, left=0.25, right=0.15, top=top
    )
    style.add_key(figure, key, left=0.25)
    colors = [
        _MODULES[depth % 2] if pd.isna(category) else style.color_of(category)
        for depth, category in zip(boxes["depth"], boxes["category"], strict=True)
    ]
    style.draw_boxes(axis, boxes["left"], boxes["depth"], boxes["width"], 0.96, colors, edge=0.6)
    texts = [_label(box, (style.WIDTH - 0.4) / reach) for box in boxes.itertuples()]
    for box, text, color in zip(boxes.itertuples(), texts, colors, strict=True):
        style.write_inside(axis, box.left + box.width / 2, box.depth + 0.48, text, color)
    known = boxes[np.array(texts, dtype=bool) & boxes["error"].notna()]
    right = known["left"] + known["width"]
    axis.hlines(known["depth"] + 0.9, right - known["error"], right + known["error"],
                colors=style.INK, linewidths=1.6)  # fmt: skip
    modules = boxes[boxes["category"].isna()].sort_values("width", ascending=False)
    figure.rows_text = [
        f"{name_layer(row.module)} {format_time(row.width, row.error)} ({format_share(row.share)})"
        for row in modules.head(12).itertuples()
    ]
    axis.set_xlim(0, reach)
    axis.set_ylim(levels, 0)
    axis.set_yticks([])
    order = "in order of execution; " if key else ""
    style.label_x(
        axis, f"mean time per traced inference (ms) with 95 % interval; {order}parts below"
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


def lay_out(
    layers: pd.DataFrame, operators: pd.DataFrame | None = None, depth: int | None = None
) -> pd.DataFrame:
    """Where every box is: ``module``, ``name``, ``depth``, ``left``, ``width``, ``share``.

    ``error`` is half the width of the time's interval. Operators with their ``place`` in the
    execution have a ``category`` too. Modules that took no time have no box.
    """
    inside: dict[str | None, list[tuple[Any, ...]]] = defaultdict(list)
    places: dict[str | None, int] = {}
    for row in () if operators is None else operators.itertuples():  # the slowest first
        module = above = None if pd.isna(row.module) else ".".join(row.module.split(".")[:depth])
        while above != _TOP:
            places.setdefault(above, row.place)
            above = _parent(above)
        found = (row.module, row.name, row.mean_ms, row.share, np.nan, row.category)
        inside[module].append((row.place, *found))
    for number, row in enumerate(layers[layers["total_ms"] > 0].itertuples()):
        path = None if pd.isna(row.module) else row.module
        if depth is None or row.depth <= depth:
            name = "(no layer)" if path is None else path.rpartition(".")[2] or "(the model)"
            error = (row.high_ms - row.low_ms) / 2
            found = (path, name, row.total_ms, row.share, error, None)
            inside[_parent(path)].append((places.get(path, number), *found))
    rows: list[tuple[Any, ...]] = []

    def put(parent: str | None, level: int, left: float) -> None:
        for _, path, name, ms, share, error, category in sorted(inside[parent], key=itemgetter(0)):
            rows.append((path, name, level, left, ms, share, error, category))
            if category is None:
                put(path, level + 1, left)
            left += ms

    put(_TOP, 0, 0.0)
    columns = ["module", "name", "depth", "left", "width", "share", "error", "category"]
    return pd.DataFrame(rows, columns=columns)


def _parent(path: str | None) -> str:
    return path.rpartition(".")[0] if path else _TOP


def _label(box: Any, inches_per_ms: float) -> str:
    share = format_share(box.share)
    times = (format_time(box.width, box.error), style.write_ms(box.width))
    texts = [*(f"{box.name}\n{time} · {share}" for time in times), f"{box.name}\n{share}"]
    return style.fit([*texts, box.name], box.width * inches_per_ms)
