"""One traced inference of each side of a comparison, as nested spans on one time axis."""

import numpy as np
import pandas as pd

from workbench.analysis.run import Comparison, Measurement
from workbench.errors import StoreError
from workbench.frames import SPANS, check
from workbench.plots import style
from workbench.plots.categories import name_sides
from workbench.plots.style import Chart, marked

_ROW, _HEAD = 0.3, 0.34  #: Inches of a level of nesting, and of the label above a trace.


@marked
def plot_timeline(source: Measurement | Comparison) -> Chart:
    """Draw the inference of median length of each side, coloured by category; baseline above.

    Raises
    ------
    StoreError
        A side has no trace.

    Examples
    --------
    >>> "avx512_on" in wb.plot_timeline(wb.open_run(wb.sample_run()).compare()).alt_text
    True
    """
    if isinstance(source, Measurement):
        sides = {source.label: source.spans}
    else:
        spans = (source.baseline.spans, source.candidate.spans)
        sides = dict(zip(name_sides(source), spans, strict=True))
    trees = {label: typical_spans(spans) for label, spans in sides.items()}
    heights = [_HEAD + _ROW * (tree["depth"].max() + 1) for tree in trees.values()]
    title = "One inference, the run of median length"
    figure, (axis,) = style.new_figure(title, sum(heights) + 1.0, bottom=0.55)
    top = 0.0
    for (label, tree), height in zip(trees.items(), heights, strict=True):
        axis.text(0, top + 0.6 * _HEAD, label, fontsize=9, va="center")
        # The time of a call belongs to what it calls: only operators have colours.
        named = tree["ledger_kind"].isin(["delegated", "portable"])
        colors = [style.color_of(c) for c in tree["category"].astype(object).where(named, "")]
        left, width = tree["start_ns"] / 1e6, tree["duration_ns"] / 1e6
        style.draw_boxes(axis, left, top + _HEAD + _ROW * tree["depth"], width, 0.85 * _ROW, colors)
        top += height
    lengths = {name: tree["duration_ns"].max() / 1e6 for name, tree in trees.items()}
    figure.rows_text = [f"{name}: {style.write_ms(ms)}" for name, ms in lengths.items()]
    last = max((tree["start_ns"] + tree["duration_ns"]).max() for tree in trees.values())
    axis.set_xlim(0, 1.01 * last / 1e6)
    axis.set_ylim(top, 0)
    axis.set_yticks([])
    style.label_x(axis, "ms since Method::execute began; delegates' operators are laid end to end")
    return figure


def grow_spans(spans: pd.DataFrame) -> pd.DataFrame:
    """The spans of complete runs in order of start, with ``depth``; starts count from their run."""
    spans = spans[spans["run"] >= 0].reset_index(drop=True)
    above = pd.Index(spans["event"]).get_indexer(spans["parent"])
    begins = spans.loc[spans["kind"] == "method"].set_index("run")["start_ns"]
    depth, parent = np.zeros(len(spans), np.int64), above.copy()
    while (inside := parent >= 0).any():
        depth[inside] += 1
        parent[inside] = above[parent[inside]]
    grown = spans.assign(depth=depth, start_ns=spans["start_ns"] - spans["run"].map(begins))
    return grown.sort_values(["run", "start_ns", "depth"], kind="stable", ignore_index=True)


def typical_spans(spans: pd.DataFrame) -> pd.DataFrame:
    """`grow_spans` of the run of median length."""
    methods = check(spans, SPANS)[(spans["kind"] == "method") & (spans["run"] >= 0)]
    if methods.empty:
        raise StoreError("no complete run to draw", where="timeline")
    ordered = methods.sort_values("duration_ns", kind="stable")["run"]
    return grow_spans(spans[spans["run"] == ordered.iloc[len(ordered) // 2]])
