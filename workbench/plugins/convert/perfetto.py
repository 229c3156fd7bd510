"""Timelines as JSON for Perfetto."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from workbench.jobs import atomic_write

# Columns that become arguments of a slice: where they are not -1; of a leaf, if the frame has them.
_NUMBERS = ("run", "instruction", "delegate_id")
_TEXTS = ("category", "family", "layer", "source", "shapes", "logged")

# Later than any time of a trace; and no row.
_NEVER, _NOWHERE = 2**63 - 1, -1


def write_perfetto(traces: Mapping[str, pd.DataFrame], path: Path) -> Path:
    """Write spans as JSON in Chrome's trace event format, which the Perfetto UI opens.

    Each trace is a process; the first ``Method::execute`` of all begin at the same time. Perfetto
    nests slices by their times, which may overlap as logged: XNNPACK logs whole microseconds laid
    end to end from the start of the call. Therefore a slice is drawn to end no later than its
    parent, and no later than its next sibling begins. The arguments ``start_ns`` (on the device's
    clock) and ``duration_ns`` hold the logged times where they differ.

    A slice is named by its ``label``, if there is one, and else as logged. Its category is that of
    its operator, or the kind of event if it contains others. A delegate's operators have the
    argument ``start=synthetic``: no clock was read at their start.
    """
    origins = [_origin(spans) for spans in traces.values()]
    lead = max((executed - first for first, executed in origins), default=0)
    events: list[dict[str, Any]] = []
    for number, (name, spans) in enumerate(traces.items(), 1):
        place = {"pid": number, "tid": number}
        for level, title in (("process", name), ("thread", "ETDump")):
            named = {"name": f"{level}_name", "args": {"name": title}}
            events.append({"ph": "M", **place, **named})
        shift = lead - origins[number - 1][1]
        events += ({"ph": "X", **place, **each} for each in _slices(spans, shift))
    content = {"traceEvents": events, "displayTimeUnit": "ns"}
    return atomic_write(path, json.dumps(content, separators=(",", ":")) + "\n")


def _slices(spans: pd.DataFrame, shift: int) -> Iterator[dict[str, Any]]:
    """Name, category, times in microseconds and arguments of each slice, parents first."""
    leaf = ~spans["event"].isin(spans["parent"]).to_numpy()
    texts = {name: spans[name].astype(object).where(leaf) for name in _TEXTS if name in spans}
    kind = spans["kind"].astype(object)
    columns = {
        **{name: column.fillna("") for name, column in texts.items()},
        **{name: spans[name] for name in _NUMBERS},
        "start": kind.map({"delegate_operator": "synthetic"}).fillna(""),
    }
    arguments = {name: column.tolist() for name, column in columns.items()}
    names = spans["name"].astype(object)
    names = spans.get("label", names).where(leaf, names).fillna(names).tolist()
    categories = texts.get("category", kind).replace("", None).fillna(kind).tolist()
    logged = list(zip(spans["start_ns"].tolist(), spans["duration_ns"].tolist(), strict=True))
    for row, (begin, end) in _draw(spans).items():
        values_of = {name: values[row] for name, values in arguments.items()}
        drawn = {"start_ns": begin, "duration_ns": end - begin}
        for (name, time), as_logged in zip(drawn.items(), logged[row], strict=True):
            values_of[name] = as_logged if as_logged != time else -1
        yield {
            "name": names[row],
            "cat": categories[row],
            "ts": (shift + begin) / 1000,
            "dur": (end - begin) / 1000,
            "args": {name: value for name, value in values_of.items() if value not in ("", -1)},
        }


def _draw(spans: pd.DataFrame) -> dict[int, tuple[int, int]]:
    """Begin and end of every row as drawn: in the order of time, and each within its parent."""
    start = spans["start_ns"].tolist()
    stop = (spans["start_ns"] + spans["duration_ns"]).tolist()
    parent = pd.Index(spans["event"]).get_indexer(spans["parent"]).tolist()
    children = _children(start, parent)
    drawn = {_NOWHERE: (-_NEVER, _NEVER)}
    waiting = children[_NOWHERE]
    while waiting:
        row, limit = waiting.pop()
        earliest, latest = drawn[parent[row]]
        begin = min(max(start[row], earliest), latest)
        drawn[row] = begin, max(min(stop[row], limit, latest), begin)
        waiting += children[row]
    del drawn[_NOWHERE]
    return drawn


def _children(start: list[int], parent: list[int]) -> dict[int, list[tuple[int, int]]]:
    """The children of each row, last first, each with the start of its next sibling."""
    children: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for row in np.lexsort((start, parent))[::-1].tolist():
        siblings = children[parent[row]]
        siblings.append((row, start[siblings[-1][0]] if siblings else _NEVER))
    return children


def _origin(spans: pd.DataFrame) -> tuple[int, int]:
    """When the first span begins, and the first ``Method::execute``, if there is one."""
    if spans.empty:
        return 0, 0
    first = int(spans["start_ns"][~spans["parent"].isin(spans["event"])].min())
    executed = spans["start_ns"][spans["kind"] == "method"]
    return first, max(first, int(executed.min())) if len(executed) else first
