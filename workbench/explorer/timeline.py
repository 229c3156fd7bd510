"""Spans of one or two traces as compressed columns, which the drawing code in a browser unpacks.

The trace timeline: A above B on one time axis, to zoom, point at and search.

The timeline of a run: baseline above candidate, with what is known of each operator.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

import anywidget
import numpy as np
import pandas as pd
import traitlets
from matplotlib.collections import PolyCollection

from workbench.analysis.compat import Analysis
from workbench.analysis.operators import describe_spans
from workbench.errors import StoreError
from workbench.frames import EMULATED, SPANS, check
from workbench.plots.style import (
    Chart,
    color_of,
    ink_on,
    label_x,
    mark_figure,
    new_figure,
    set_title,
)
from workbench.records.runs import Pair
from workbench.trace.etdump import read_etdump

#: Of a span's layer, what a person wants to know when pointing at it.
ABOUT = ("module", "module_class", "source", "shapes", "kernel")
#: Space between two runs on the time axis, as a part of the longer one.
_GAP = 0.02
#: Deeper spans are left out: no call of the runtime is nested like this.
_DEEPEST = 12


def pack_timeline(
    traces: Mapping[str, pd.DataFrame], about: pd.DataFrame | None = None, *, note: str = ""
) -> bytes:
    """Pack the runs of traces for the timeline, the n-th run of each beginning at the same time.

    The bytes are a gzip file: the length of a JSON header (4 bytes, little endian), the header, and
    for each trace the columns ``duration``, ``gap`` (after the sibling before, or the beginning of
    the parent), ``key`` (index into the header's ``keys``) and ``depth`` of its spans, parents
    first. Times are in units of the header's ``tick_ns``.

    Parameters
    ----------
    traces
        Frames of :data:`workbench.schema.SPANS` by the label of their track, the upper one first.
        Spans outside any ``Method::execute`` are not drawn.
    about
        What is known of a ``key`` besides: those of the columns :data:`ABOUT` that there are.
    note
        A reservation that is shown with the times, such as "emulated".

    Raises
    ------
    StoreError
        There is nothing to draw.
    """
    trees = {label: grow_spans(check(spans, SPANS)) for label, spans in traces.items()}
    if not any(map(len, trees.values())):
        raise StoreError("no whole run to draw", where=", ".join(traces) or "timeline")
    longest = max(int(tree["duration_ns"].max()) for tree in trees.values() if len(tree))
    tick = max(1, -(-longest // (2**31 - 1)))
    runs = {label: tree.loc[tree["depth"] == 0, "duration_ns"] for label, tree in trees.items()}
    offsets = _lay_runs([lengths.to_numpy() for lengths in runs.values()])
    keys = pd.Index(dict.fromkeys(k for tree in trees.values() for k in tree["key"].unique()))
    tracks, columns = [], []
    for label, tree in trees.items():
        tracks.append({"label": label, "spans": len(tree), "runs": len(runs[label])})
        columns += [
            (tree["duration_ns"] // tick).to_numpy("<u4"),
            (tree["gap_ns"] // tick).to_numpy("<i4"),
            keys.get_indexer(tree["key"]).astype("<u4"),
            tree["depth"].to_numpy("u1"),
        ]
    header = {
        "tick_ns": tick,
        "note": note,
        "first_run": typical_run(list(runs.values())[-1]),
        "offsets_ns": offsets.tolist(),
        "tracks": tracks,
        "keys": _describe(keys, trees, about),
    }
    text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    parts = [len(text).to_bytes(4, "little"), text, *(column.tobytes() for column in columns)]
    return gzip.compress(b"".join(parts), compresslevel=6, mtime=0)


def grow_spans(spans: pd.DataFrame) -> pd.DataFrame:
    """The spans of whole runs, parents first, with ``depth`` and the ``gap_ns`` before them."""
    spans = spans[spans["run"] >= 0]
    parent = pd.Index(spans["event"]).get_indexer(spans["parent"])
    depth = _depths(parent)
    start, size = spans["start_ns"].to_numpy(), np.ones(len(spans), np.int64)
    levels = [np.flatnonzero(depth == level) for level in range(depth.max(initial=-1) + 1)]
    for level in levels[:0:-1]:
        np.add.at(size, parent[level], size[level])
    place, gap = np.zeros(len(spans), np.int64), np.zeros(len(spans), np.int64)
    duration = spans["duration_ns"].to_numpy()
    for number, rows in enumerate(levels):
        # Parents by their place, so that the spans of a level come in the order of the drawing.
        above = place[parent[rows]] if number else spans["run"].to_numpy()[rows]
        rows = rows[np.lexsort((start[rows], above))]
        before = np.concatenate([[0], np.cumsum(size[rows])[:-1]]).astype(np.int64)
        if not number:
            place[rows] = before
            continue
        above = parent[rows]
        first = np.concatenate([[True], above[1:] != above[:-1]])
        offset = np.maximum.accumulate(np.where(first, before, 0))
        place[rows] = place[above] + 1 + before - offset
        ends = start[rows] + duration[rows]
        since = np.where(first, start[above], np.concatenate([[0], ends[:-1]]))
        gap[rows] = start[rows] - since
    tree = spans[["name", "kind", "ledger_kind", "category", "key"]].assign(
        duration_ns=duration, gap_ns=gap, depth=depth
    )
    tree = tree.iloc[np.argsort(place, kind="stable")]
    return tree[tree["depth"] <= _DEEPEST].astype({"key": object}).reset_index(drop=True)


def _depths(parent: np.ndarray) -> np.ndarray:
    """How many spans each span lies in."""
    depth, above = np.zeros(len(parent), np.int64), parent.copy()
    while (inside := above >= 0).any():
        depth[inside] += 1
        above[inside] = parent[above[inside]]
    return depth


def _lay_runs(lengths: list[np.ndarray]) -> np.ndarray:
    """Where each run begins on the time axis, and last where the axis ends; in nanoseconds."""
    longest = np.zeros(max(map(len, lengths)), np.int64)
    for part in lengths:
        longest[: len(part)] = np.maximum(longest[: len(part)], part)
    return np.concatenate([[0], np.cumsum(longest + (_GAP * longest).astype(np.int64))])


def is_operator(spans: pd.DataFrame) -> pd.Series:
    """Whether a span is an operator: the time of a call belongs to what it calls."""
    return spans["ledger_kind"].isin(["delegated", "portable"])


def typical_run(lengths: pd.Series) -> int:
    """The position of the run of median length."""
    return int(lengths.reset_index(drop=True).sort_values().index[len(lengths) // 2])


def _describe(
    keys: pd.Index, trees: Mapping[str, pd.DataFrame], about: pd.DataFrame | None
) -> list[dict[str, Any]]:
    """For every key what is shown of it: names and mean durations by track, and its layer."""
    firsts = pd.concat(trees.values()).drop_duplicates("key").set_index("key").loc[keys]
    synthetic = (firsts["kind"] == "delegate_operator").to_numpy()
    categories = firsts["category"].astype(object).where(is_operator(firsts), "")
    rows = [
        {
            "key": key,
            "category": category,
            "color": color_of(category) if category else "",
            "ink": ink_on(color_of(category)),
            "synthetic": bool(laid),
        }
        for key, category, laid in zip(keys, categories, synthetic, strict=True)
    ]
    for tree in trees.values():
        groups = tree.groupby("key", sort=False)
        names, means = groups["name"].first(), groups["duration_ns"].mean()
        for row in rows:
            known = row["key"] in means.index
            row.setdefault("names", []).append(str(names[row["key"]]) if known else "")
            row.setdefault("mean_ns", []).append(round(means[row["key"]]) if known else None)
    if about is not None:
        known = about.drop_duplicates("key").set_index("key").reindex(keys)
        for name in [column for column in ABOUT if column in known]:
            texts = known[name].astype(object).where(known[name].notna(), "")
            for row, text in zip(rows, texts, strict=True):
                if text:
                    row[name] = str(text)
    return rows


#: The class of the elements that a page's script turns into timelines.
PAGE_CLASS = "trace-timeline"
# The drawing code, for the widget and for pages alike.
_SCRIPT = resources.files("workbench.explorer") / "timeline.js"
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


def show_timeline(
    analysis: Analysis, pair: Pair | None = None, threads: int | None = None, *, headless: bool
) -> Timeline | Page:
    """Draw the first traces of a pair's experiments, the baseline above the candidate.

    Parameters
    ----------
    analysis
        The run.
    pair, threads
        Which comparison of it; the first one if not given.
    headless
        Nobody is there to point: a figure, which a report turns into a timeline.

    Raises
    ------
    StoreError
        An experiment of the pair has no trace.
    """
    pair = pair or analysis.run.plan.pairs[0]
    threads = threads or analysis.comparisons[0].threads
    paths = {
        name: analysis.run_dir / session.etdump
        for name in (pair.baseline, pair.candidate)
        for session in analysis.run.sessions[::-1]
        if (session.experiment, session.threads) == (name, threads) and session.etdump
    }
    if len(paths) < len({pair.baseline, pair.candidate}):
        raise StoreError("an experiment has no trace", where=analysis.run_dir)
    traces = {name: describe_spans(read_etdump(path)) for name, path in paths.items()}
    about = analysis.select(analysis.operators, pair.candidate, threads)
    note = EMULATED if analysis.run.emulated else ""
    return draw_timeline(traces, about, headless=headless, note=note)
