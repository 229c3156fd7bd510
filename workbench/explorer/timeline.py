"""The trace timeline: packed spans of one or two traces, which ``timeline.js`` draws."""

import base64
import gzip
import json
from collections.abc import Mapping
from importlib import resources

import anywidget
import numpy as np
import pandas as pd
import traitlets

from workbench.analysis.operators import label_operator
from workbench.analysis.run import Comparison, Measurement
from workbench.errors import StoreError
from workbench.explorer.widgets import is_interactive
from workbench.frames import EMULATED, SPANS, check
from workbench.plots import style
from workbench.plots.categories import name_sides
from workbench.plots.style import Chart

#: Columns of a span's layer that are shown.
ABOUT = ("module", "module_class", "source", "shapes", "kernel")
_GAP = 0.02  #: Space between two iterations on the time axis, as a part of the longer one.
_DEEPEST = 12  #: Deeper spans are left out: no call of the runtime is nested like this.
#: The class of the elements that a page's script turns into timelines.
PAGE_CLASS = "trace-timeline"
# The drawing code, for the widget and for pages alike.
_SCRIPT = resources.files("workbench.explorer") / "timeline.js"
#: Inches for one level of nesting in the figure, and for the label of a track.
_ROW, _HEAD = 0.3, 0.34


class Timeline(anywidget.AnyWidget):
    """The timeline as a widget; ``selected`` is the ledger's key of the span last clicked."""

    _esm = _SCRIPT.read_text()
    packed = traitlets.Bytes(b"").tag(sync=True)
    selected = traitlets.Unicode("").tag(sync=True)


class Page:
    """The timeline for a page: a figure, which the page's script replaces by the timeline."""

    def __init__(self, figure: Chart, packed: bytes):
        self.figure, self.packed = figure, packed

    def _repr_html_(self) -> str:
        return (
            f'<div class="{PAGE_CLASS}">{self.figure._repr_html_()}<script type="text/plain">'
            f"{base64.b64encode(self.packed).decode()}</script></div>"
        )


def timeline_script() -> str:
    """The script of a page with timelines: draws each of them."""
    return _SCRIPT.read_text() + "\ndrawAll(document);\n"


def show_timeline(source: Comparison | Measurement) -> Timeline | Page:
    """Show the first trace of a measurement, or those of a comparison, the baseline above.

    Raises
    ------
    StoreError
        A side has no trace.

    Examples
    --------
    >>> "avx512_on" in wb.show_timeline(wb.open_run(wb.sample_run()).compare()).figure.alt_text
    True
    """
    if isinstance(source, Comparison):
        subject, spans = source.candidate, (source.baseline.spans, source.candidate.spans)
        traces = dict(zip(name_sides(source), spans, strict=True))
    else:
        subject, traces = source, {source.label: source.spans}
    return draw_timeline(traces, subject.operators, note=EMULATED if source.emulated else "")


def draw_timeline(
    traces: Mapping[str, pd.DataFrame], about: pd.DataFrame | None = None, *, note: str = ""
) -> Timeline | Page:
    """Show traces on one time axis: a widget, or without a live front end a figure for a report.

    ``traces`` are ``frames.SPANS`` by the label of their track, the upper one first; ``about`` has
    ``key`` and some columns of ``frames.ATTRIBUTION``, shown when pointing at a span; ``note`` is a
    caveat shown with the times. StoreError if no trace has a complete run.
    """
    packed = pack_timeline(traces, about, note=note)
    if is_interactive():
        return Timeline(packed=packed)
    return Page(plot_timeline(traces, note=note), packed)


def pack_timeline(
    traces: Mapping[str, pd.DataFrame], about: pd.DataFrame | None = None, *, note: str = ""
) -> bytes:
    """Pack the iterations of traces, the n-th of each beginning at the same time.

    The bytes are a gzip file: the length of a JSON header (4 bytes, little endian), the header, and
    for each trace the columns ``duration``, ``gap`` (after the sibling before, or the beginning of
    the parent), ``key`` (index into the header's ``keys``) and ``depth`` of its spans, parents
    first. Times are in ``tick_ns``. Spans outside any ``Method::execute`` are not drawn.
    """
    trees = {label: grow_spans(check(spans, SPANS)) for label, spans in traces.items()}
    if not any(map(len, trees.values())):
        raise StoreError("no complete run to draw", where=", ".join(traces) or "timeline")
    longest = max(int(tree["duration_ns"].max()) for tree in trees.values() if len(tree))
    tick = max(1, -(-longest // (2**31 - 1)))
    runs = {label: tree.loc[tree["depth"] == 0, "duration_ns"] for label, tree in trees.items()}
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
        "offsets_ns": _lay_out_runs([lengths.to_numpy() for lengths in runs.values()]).tolist(),
        "tracks": tracks,
        "keys": _describe_keys(keys, trees, about),
    }
    text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    parts = [len(text).to_bytes(4, "little"), text, *(column.tobytes() for column in columns)]
    return gzip.compress(b"".join(parts), compresslevel=6, mtime=0)


def grow_spans(spans: pd.DataFrame) -> pd.DataFrame:
    """The spans of complete runs, parents first, with ``depth`` and the ``gap_ns`` before them."""
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
        # Sorted by the place of their parents: the spans of a level in drawing order.
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
    tree = spans[["name", "kind", "ledger_kind", "category", "key"]]
    tree = tree.assign(duration_ns=duration, gap_ns=gap, depth=depth)
    tree = tree.iloc[np.argsort(place, kind="stable")]
    return tree[tree["depth"] <= _DEEPEST].astype({"key": object}).reset_index(drop=True)


def _depths(parent: np.ndarray) -> np.ndarray:
    depth, above = np.zeros(len(parent), np.int64), parent.copy()
    while (inside := above >= 0).any():
        depth[inside] += 1
        above[inside] = parent[above[inside]]
    return depth


def _lay_out_runs(lengths: list[np.ndarray]) -> np.ndarray:
    """Where each run begins on the time axis, and last where the axis ends; in nanoseconds."""
    longest = np.zeros(max(map(len, lengths)), np.int64)
    for part in lengths:
        longest[: len(part)] = np.maximum(longest[: len(part)], part)
    return np.concatenate([[0], np.cumsum(longest + (_GAP * longest).astype(np.int64))])


def is_operator(spans: pd.DataFrame) -> pd.Series:
    """Whether a span is an operator; the time of a call belongs to what it calls."""
    return spans["ledger_kind"].isin(["delegated", "portable"])


def typical_run(lengths: pd.Series) -> int:
    """The position of the run of median length."""
    return int(lengths.reset_index(drop=True).sort_values().index[len(lengths) // 2])


def _describe_keys(
    keys: pd.Index, trees: Mapping[str, pd.DataFrame], about: pd.DataFrame | None
) -> list[dict[str, object]]:
    """What is shown of every key: names and mean durations by track, and its layer."""
    firsts = pd.concat(trees.values()).drop_duplicates("key").set_index("key").loc[keys]
    table = pd.DataFrame({"key": keys}, index=keys)
    table["category"] = firsts["category"].astype(object).where(is_operator(firsts), "")
    table["color"] = [style.color_of(name) if name else "" for name in table["category"]]
    table["ink"] = [style.ink_on(style.color_of(name)) for name in table["category"]]
    table["synthetic"] = (firsts["kind"] == "delegate_operator").astype(object)
    groups = [tree.groupby("key", sort=False) for tree in trees.values()]
    names = [group["name"].first().reindex(keys).astype(object).fillna("") for group in groups]
    means = [group["duration_ns"].mean().reindex(keys) for group in groups]
    table["names"] = [list(map(str, each)) for each in zip(*names, strict=True)]
    table["mean_ns"] = [
        [None if np.isnan(mean) else round(mean) for mean in each]
        for each in zip(*means, strict=True)
    ]
    rows = table.to_dict("records")
    if about is not None:
        known = about.drop_duplicates("key").set_index("key").reindex(keys)
        for name in [column for column in ABOUT if column in known]:
            texts = known[name].astype(object).where(known[name].notna(), "")
            for row, text in zip(rows, texts, strict=True):
                if text:
                    row[name] = str(text)
    for row in rows:
        if row["category"]:
            name = next(filter(None, reversed(row["names"])))
            row["label"] = label_operator(name, row.get("module"))
    return rows


def plot_timeline(traces: Mapping[str, pd.DataFrame], *, note: str = "") -> Chart:
    """Draw the run of median length of each trace: nested spans, coloured by category."""
    trees = {label: typical_spans(spans) for label, spans in traces.items()}
    heights = [_HEAD + _ROW * (tree["depth"].max() + 1) for tree in trees.values()]
    title = "One inference, the run of median length"
    figure, (axis,) = style.new_figure(title, sum(heights) + 1.0, bottom=0.55)
    top = 0.0
    for (label, tree), height in zip(trees.items(), heights, strict=True):
        axis.text(0, top + 0.6 * _HEAD, label, fontsize=9, va="center")
        left, width = tree["start_ns"] / 1e6, tree["duration_ns"] / 1e6
        row = top + _HEAD + _ROW * tree["depth"]
        categories = tree["category"].astype(object).where(is_operator(tree), "")
        colors = [style.color_of(category) for category in categories]
        style.draw_boxes(axis, left, row, width, 0.85 * _ROW, colors)
        top += height
    last = max((tree["start_ns"] + tree["duration_ns"]).max() for tree in trees.values())
    axis.set_xlim(0, 1.01 * last / 1e6)
    axis.set_ylim(top, 0)
    axis.set_yticks([])
    style.label_x(axis, "ms since Method::execute began; delegates' operators are laid end to end")
    if note:
        style.mark_figure(figure, note)
    return figure


def typical_spans(spans: pd.DataFrame) -> pd.DataFrame:
    """The spans of the run of median length, parents first, with ``depth`` and ``start_ns``."""
    lengths = spans[(spans["kind"] == "method") & (spans["run"] >= 0)].set_index("run")
    if lengths.empty:
        raise StoreError("no complete run to draw", where="timeline")
    durations = lengths["duration_ns"].reset_index(drop=True)
    tree = grow_spans(spans[spans["run"] == lengths.index[typical_run(durations)]])
    starts, ends = [], {-1: 0}
    for depth, gap, duration in tree[["depth", "gap_ns", "duration_ns"]].itertuples(index=False):
        starts.append(ends.get(depth, 0) + gap)
        ends[depth], ends[depth + 1] = starts[-1] + duration, starts[-1]
    return tree.assign(start_ns=starts)
