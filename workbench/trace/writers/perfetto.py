"""Spans as a Perfetto trace: each trace a process, side by side on one time axis.

The axis starts at 0, and every trace is moved along it so that the first ``Method::execute`` of all
of them begin together.

Perfetto nests slices by their times, so a slice must be *drawn* within its parent, and apart from
its siblings. Two things stand against that. XNNPACK logs whole microseconds laid end to end from
the start of the call, so its last operators may end after their ``DELEGATE_CALL``. And a user's own
events may overlap with those of the runtime. Therefore a slice ends no later than its parent, and
no later than its next sibling begins. Where that differs from what was logged, the arguments
``start_ns`` (on the device's clock) and ``duration_ns`` say what was.
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from workbench.frames import EVENTS, check
from workbench.store import atomic_write

if TYPE_CHECKING:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket


#: Columns that become arguments of a slice where they are not -1.
NUMBERS = ("run", "instruction", "delegate_id")

#: Columns that become arguments of a slice that holds no other, where the frame has them.
TEXTS = ("category", "family", "layer", "shape")

# Later than any time of a trace; and what is no row.
_NEVER, _NOWHERE = 2**63 - 1, -1


class Step(NamedTuple):
    """A row that begins or ends, and its drawn times in nanoseconds of the device's clock."""

    row: int
    begin: int
    end: int
    begins: bool


def write_perfetto(traces: Mapping[str, pd.DataFrame], path: Path) -> Path:
    """Write spans as a protobuf trace for the Perfetto UI and its ``trace_processor``.

    Every trace is a process with one thread. The category of a slice that holds no other is that
    of its operator; of one that does, the kind of event: a ``DELEGATE_CALL`` lasts as long as the
    convolutions in it, and is none. Where no clock was read, at the start of a delegate's
    operators, the argument ``start`` is ``synthetic``.

    Parameters
    ----------
    traces
        Frames of :data:`workbench.schema.EVENTS`, by the names of their processes. They may have
        the columns :data:`TEXTS` besides.
    path
        The file; returned.
    """
    # It takes a tenth of a second to import, and reading a trace needs none of it.
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
    """Walk through spans as they are drawn: in time, and each within its parent."""
    start = spans["start_ns"].tolist()
    stop = (spans["start_ns"] + spans["duration_ns"]).tolist()
    parent = pd.Index(spans["event"]).get_indexer(spans["parent"]).tolist()
    children = _children(start, parent)
    under_way = [Step(_NOWHERE, -_NEVER, _NEVER, True)]
    todo = children[_NOWHERE]
    while todo:
        row, limit = todo.pop()
        while under_way[-1].row != parent[row]:
            yield under_way.pop()._replace(begins=False)
        _, earliest, latest, _ = under_way[-1]
        begin = min(max(start[row], earliest), latest)
        end = max(min(stop[row], limit, latest), begin)
        under_way.append(Step(row, begin, end, True))
        yield under_way[-1]
        todo += children[row]
    for step in reversed(under_way[1:]):
        yield step._replace(begins=False)


def _children(start: list[int], parent: list[int]) -> dict[int, list[tuple[int, int]]]:
    """The rows directly in each row, the last one first, each with the start of the next one."""
    children = defaultdict(list)
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
    """One trace: the packet of its process, that of its thread, and two for every slice."""
    packet = create()
    packet.track_descriptor.uuid = process = 2 * number
    packet.track_descriptor.process.pid = number
    packet.track_descriptor.process.process_name = name
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
    """Name, category and arguments of the slices of one trace; spells every string once."""

    def __init__(self, spans: pd.DataFrame):
        leaf = ~spans["event"].isin(spans["parent"])
        texts = {name: spans[name].astype(object).where(leaf) for name in TEXTS if name in spans}
        kind = spans["kind"].astype(object)
        arguments = {
            **{name: column.fillna("") for name, column in texts.items()},
            **{name: spans[name] for name in NUMBERS},
            "start": kind.map({"delegate_operator": "synthetic"}).fillna(""),
        }
        self._names = spans["name"].tolist()
        self._categories = texts.get("category", kind).fillna(kind).tolist()
        self._arguments = {name: column.tolist() for name, column in arguments.items()}
        self._logged = list(zip(spans["start_ns"], spans["duration_ns"], strict=True))
        self._iids: dict[str, dict[str, int]] = defaultdict(dict)

    def describe(self, step: Step, packet: TracePacket) -> None:
        """Put into a packet what there is to say about the row that begins."""
        event, row = packet.track_event, step.row
        event.name_iid = self._intern(packet, "event_names", self._names[row])
        category = self._intern(packet, "event_categories", self._categories[row])
        event.category_iids.append(category)
        for name, values in self._arguments.items():
            if values[row] not in ("", -1):
                self._annotate(packet, name, values[row])
        start, duration = self._logged[row]
        if step.begin != start:
            self._annotate(packet, "start_ns", start)
        if step.end - step.begin != duration:
            self._annotate(packet, "duration_ns", duration)

    def _annotate(self, packet: TracePacket, name: str, value: str | int) -> None:
        annotation = packet.track_event.debug_annotations.add()
        annotation.name_iid = self._intern(packet, "debug_annotation_names", name)
        if isinstance(value, str):
            iid = self._intern(packet, "debug_annotation_string_values", value)
            annotation.string_value_iid = iid
        else:
            annotation.int_value = value

    def _intern(self, packet: TracePacket, field: str, text: str) -> int:
        """The number of a text among those of a field; its first packet says what it stands for."""
        iids = self._iids[field]
        if text not in iids:
            iids[text] = len(iids) + 1
            entry = getattr(packet.interned_data, field).add(iid=iids[text])
            if field == "debug_annotation_string_values":
                entry.str = text.encode()
            else:
                entry.name = text
        return iids[text]
