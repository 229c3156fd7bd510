"""Spans as a Perfetto trace: each trace a process, side by side on one time axis from 0.

The first ``Method::execute`` of every trace begins at the same time. Perfetto nests slices by their
times, which may overlap as logged: XNNPACK logs whole microseconds laid end to end from the start
of the call. Therefore a slice is drawn to end no later than its parent, and no later than its next
sibling begins. The arguments ``start_ns`` (on the device's clock) and ``duration_ns`` hold the
logged times where they differ.
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from workbench.errors import printable
from workbench.frames import EVENTS, check
from workbench.store import atomic_write
from workbench.trace.nesting import are_leaves

if TYPE_CHECKING:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket

# Columns that become arguments of a slice: where they are not -1; of a leaf, if the frame has them.
_NUMBERS = ("run", "instruction", "delegate_id")
_TEXTS = ("category", "family", "layer", "source", "shapes", "logged")

# Later than any time of a trace; and no row.
_NEVER, _NOWHERE = 2**63 - 1, -1


class Step(NamedTuple):
    """A row that begins or ends, and when it is drawn, in nanoseconds of the device's clock."""

    row: int
    begin: int
    end: int
    begins: bool


def write_perfetto(traces: Mapping[str, pd.DataFrame], path: Path) -> Path:
    """Write spans as a protobuf trace for the Perfetto UI and its ``trace_processor``.

    A slice is named by its ``label``, if there is one, and else as logged. Its category is that of
    its operator, or the kind of event if it contains others. A delegate's operators have the
    argument ``start=synthetic``: no clock was read at their start.
    """
    # Takes a tenth of a second to import.
    from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder

    content = io.BytesIO()
    builder = StreamingTraceProtoBuilder(content)
    origins = [_origin(check(spans, EVENTS)) for spans in traces.values()]
    lead = max((executed - first for first, executed in origins), default=0)
    for number, (name, spans) in enumerate(traces.items(), 1):
        _, executed = origins[number - 1]
        for packet in _packets(spans, builder.create_packet, number, name, lead - executed):
            builder.write_packet(packet)
    return atomic_write(path, content.getvalue())


def lay_out(spans: pd.DataFrame) -> Iterator[Step]:
    """Spans as they are drawn: in the order of time, and each within its parent."""
    start = spans["start_ns"].tolist()
    stop = (spans["start_ns"] + spans["duration_ns"]).tolist()
    parent = pd.Index(spans["event"]).get_indexer(spans["parent"]).tolist()
    children = _children(start, parent)
    open_steps = [Step(_NOWHERE, -_NEVER, _NEVER, True)]
    todo = children[_NOWHERE]
    while todo:
        row, limit = todo.pop()
        while open_steps[-1].row != parent[row]:
            yield open_steps.pop()._replace(begins=False)
        _, earliest, latest, _ = open_steps[-1]
        begin = min(max(start[row], earliest), latest)
        end = max(min(stop[row], limit, latest), begin)
        open_steps.append(Step(row, begin, end, True))
        yield open_steps[-1]
        todo += children[row]
    for step in reversed(open_steps[1:]):
        yield step._replace(begins=False)


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


def _packets(
    spans: pd.DataFrame, create: Callable[[], TracePacket], number: int, name: str, shift: int
) -> Iterator[TracePacket]:
    """One trace: a packet for its process, one for its thread, and two for every slice."""
    packet = create()
    packet.track_descriptor.uuid = process = 2 * number
    packet.track_descriptor.process.pid = number
    packet.track_descriptor.process.process_name = printable(name)
    yield packet

    packet = create()
    packet.trusted_packet_sequence_id = number
    packet.sequence_flags = packet.SEQ_INCREMENTAL_STATE_CLEARED
    packet.trace_packet_defaults.track_event_defaults.track_uuid = process + 1
    packet.track_descriptor.uuid = process + 1
    packet.track_descriptor.parent_uuid = process
    packet.track_descriptor.thread.pid = packet.track_descriptor.thread.tid = number
    packet.track_descriptor.thread.thread_name = "ETDump"
    yield packet

    slices = _Slices(spans)
    for step in lay_out(spans):
        packet = create()
        packet.trusted_packet_sequence_id = number
        packet.sequence_flags = packet.SEQ_NEEDS_INCREMENTAL_STATE
        packet.timestamp = shift + (step.begin if step.begins else step.end)
        if step.begins:
            packet.track_event.type = packet.track_event.TYPE_SLICE_BEGIN
            slices.describe(step, packet)
        else:
            packet.track_event.type = packet.track_event.TYPE_SLICE_END
        yield packet


class _Slices:
    """Name, category and arguments of the slices of one trace; each string is written once."""

    def __init__(self, spans: pd.DataFrame):
        leaf = are_leaves(spans)
        texts = {name: spans[name].astype(object).where(leaf) for name in _TEXTS if name in spans}
        kind = spans["kind"].astype(object)
        arguments = {
            **{name: column.fillna("") for name, column in texts.items()},
            **{name: spans[name] for name in _NUMBERS},
            "start": kind.map({"delegate_operator": "synthetic"}).fillna(""),
        }
        names = spans["name"].astype(object)
        self._names = spans.get("label", names).where(leaf, names).fillna(names).tolist()
        self._categories = texts.get("category", kind).fillna(kind).tolist()
        self._arguments = {name: column.tolist() for name, column in arguments.items()}
        self._logged = list(zip(spans["start_ns"], spans["duration_ns"], strict=True))
        self._iids: dict[str, dict[str, int]] = defaultdict(dict)

    def describe(self, step: Step, packet: TracePacket) -> None:
        """Add name, category and arguments of the row that begins."""
        event, row = packet.track_event, step.row
        event.name_iid = self._intern(packet, "event_names", self._names[row])
        category = self._intern(packet, "event_categories", self._categories[row])
        event.category_iids.append(category)
        arguments = {name: values[row] for name, values in self._arguments.items()}
        start, duration = self._logged[row]
        if step.begin != start:
            arguments["start_ns"] = start
        if step.end - step.begin != duration:
            arguments["duration_ns"] = duration
        for name, value in arguments.items():
            if value in ("", -1):
                continue
            annotation = event.debug_annotations.add()
            annotation.name_iid = self._intern(packet, "debug_annotation_names", name)
            if isinstance(value, str):
                field = "debug_annotation_string_values"
                annotation.string_value_iid = self._intern(packet, field, value)
            else:
                annotation.int_value = value

    def _intern(self, packet: TracePacket, field: str, text: str) -> int:
        """The number of a text among those of a field; its first packet also has the text."""
        iids, text = self._iids[field], printable(text)
        if text not in iids:
            iids[text] = len(iids) + 1
            entry = getattr(packet.interned_data, field).add(iid=iids[text])
            if field == "debug_annotation_string_values":
                entry.str = text.encode()
            else:
                entry.name = text
        return iids[text]
