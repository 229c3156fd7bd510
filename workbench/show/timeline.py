"""The trace timeline: A above B on one time axis, to zoom, point at and search."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping
from importlib import resources

import anywidget
import numpy as np
import pandas as pd
import traitlets
from matplotlib.collections import PolyCollection

from workbench.errors import StoreError
from workbench.show.style import Chart, color_of, label_x, mark_figure, new_figure, set_title
from workbench.show.timeline_data import grow_spans, is_operator, pack_timeline, typical_run

#: The class of the elements that a page's script turns into timelines.
PAGE_CLASS = "trace-timeline"
# The drawing code, for the widget and for pages alike.
_SCRIPT = resources.files("workbench.show") / "timeline.js"
#: Inches for one level of nesting in the figure.
_ROW, _HEAD = 0.3, 0.34


class Timeline(anywidget.AnyWidget):
    """The timeline as a widget; ``selected`` is the ledger's key of the span last clicked."""

    _esm = _SCRIPT.read_text()
    packed = traitlets.Bytes(b"").tag(sync=True)
    selected = traitlets.Unicode("").tag(sync=True)


class Page:
    """The timeline for a page: a figure, and the bytes that its script draws anew."""

    def __init__(self, figure: Chart, packed: bytes):
        self.figure, self.packed = figure, packed

    def _repr_html_(self) -> str:
        return (
            f'<div class="{PAGE_CLASS}">'
            f'<img alt="{html.escape(self.figure.alt_text, quote=True)}" '
            f'src="data:image/png;base64,{_text(self.figure.to_png())}">'
            f'<script type="text/plain">{_text(self.packed)}</script></div>'
        )


def timeline_script() -> str:
    """The script of a page with timelines: draws each of them."""
    return _SCRIPT.read_text() + "\ndrawAll(document);\n"


def draw_timeline(
    traces: Mapping[str, pd.DataFrame],
    about: pd.DataFrame | None = None,
    *,
    headless: bool = False,
    note: str = "",
) -> Timeline | Page:
    """Draw the runs of traces on one time axis: to zoom, point at, measure and search.

    Parameters
    ----------
    traces
        Frames of :data:`workbench.schema.SPANS` by the label of their track, the upper one first.
    about
        Columns ``key`` and those of an attribution: what pointing at a span tells besides.
    headless
        Nobody is there: a figure of one run, which a report turns into the same timeline.
    note
        A reservation that is shown with it, such as "emulated".

    Raises
    ------
    StoreError
        No trace has a whole run.
    """
    packed = pack_timeline(traces, about, note=note)
    if headless:
        return Page(plot_timeline(traces, note=note), packed)
    return Timeline(packed=packed)


def plot_timeline(traces: Mapping[str, pd.DataFrame], *, note: str = "") -> Chart:
    """Draw the run of median length of each trace: nested spans, coloured by category."""
    trees = {label: typical_spans(spans) for label, spans in traces.items()}
    heights = [_HEAD + _ROW * (tree["depth"].max() + 1) for tree in trees.values()]
    figure, (axis,) = new_figure(sum(heights) + 1.0, left=0.3, bottom=0.55)
    top = 0.0
    for (label, tree), height in zip(trees.items(), heights, strict=True):
        axis.text(0, top + 0.6 * _HEAD, label, fontsize=9, va="center")
        bottom = top + _HEAD + _ROW * tree["depth"].to_numpy()
        axis.add_collection(_rectangles(tree, bottom))
        top += height
    last = max((tree["start_ns"] + tree["duration_ns"]).max() for tree in trees.values())
    axis.set_xlim(0, 1.01 * last / 1e6)
    axis.set_ylim(top, 0)
    axis.set_yticks([])
    label_x(axis, "ms since Method::execute began; operators of a delegate are laid end to end")
    set_title(figure, "One inference, the run of median length")
    return mark_figure(figure, note) if note else figure


def typical_spans(spans: pd.DataFrame) -> pd.DataFrame:
    """The spans of the run of median length, parents first, with ``depth`` and ``start_ns``."""
    lengths = spans[(spans["kind"] == "method") & (spans["run"] >= 0)].set_index("run")
    if lengths.empty:
        raise StoreError("no whole run to draw", where="timeline")
    durations = lengths["duration_ns"].reset_index(drop=True)
    one = spans[spans["run"] == lengths.index[typical_run(durations)]]
    tree = grow_spans(one)
    starts, ends = [], {-1: 0}
    for depth, gap, duration in tree[["depth", "gap_ns", "duration_ns"]].itertuples(index=False):
        starts.append(ends.get(depth, 0) + gap)
        ends[depth], ends[depth + 1] = starts[-1] + duration, starts[-1]
    return tree.assign(start_ns=starts)


def _rectangles(tree: pd.DataFrame, bottom: np.ndarray) -> PolyCollection:
    left = tree["start_ns"].to_numpy() / 1e6
    right = left + tree["duration_ns"].to_numpy() / 1e6
    low, high = bottom, bottom + 0.85 * _ROW
    corners = np.stack([[left, right, right, left], [low, low, high, high]], axis=-1)
    operators = is_operator(tree)
    colors = [
        color_of(category if operator else "")
        for category, operator in zip(tree["category"], operators, strict=True)
    ]
    return PolyCollection(corners.transpose(1, 0, 2), facecolors=colors, linewidths=0)


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()
