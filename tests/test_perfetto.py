"""Perfetto traces, decoded with Perfetto's own definitions: the slices nest as the spans do."""

from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackEvent

from workbench.analysis.operators import describe_spans
from workbench.datasets import sample_run
from workbench.trace.etdump import read_etdump
from workbench.trace.writers.perfetto import lay_out, write_perfetto

GOLDEN = sorted((Path(__file__).parent / "data" / "etdump").glob("*.etdump"))


@dataclass
class Slice:
    """A slice as a reader of the trace reconstructs it."""

    process: str
    name: str
    category: str
    start: int
    parent: int
    arguments: dict = field(default_factory=dict)
    duration: int = -1


def decode(path):
    """The slices in the order of their beginnings; refuses what a reader could not understand."""
    trace = Trace()
    trace.ParseFromString(path.read_bytes())
    processes, tracks, sequences, slices = {}, {}, {}, []
    for packet in trace.packet:
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            if track.HasField("process"):
                processes[track.uuid] = track.process.process_name
            else:
                assert track.thread.pid > 0
                tracks[track.uuid] = processes[track.parent_uuid]
        if packet.sequence_flags & TracePacket.SEQ_INCREMENTAL_STATE_CLEARED:
            defaults = packet.trace_packet_defaults.track_event_defaults
            sequences[packet.trusted_packet_sequence_id] = {
                "track": tracks[defaults.track_uuid],
                "now": 0,
                "open": [],
                "strings": {},
            }
        if packet.HasField("track_event"):
            assert packet.sequence_flags & TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
            replay(packet, sequences[packet.trusted_packet_sequence_id], slices)
    assert all(not sequence["open"] for sequence in sequences.values())
    return slices


def replay(packet, sequence, slices):
    strings, event = sequence["strings"], packet.track_event
    for interned, entries in packet.interned_data.ListFields():
        for entry in entries:
            assert entry.iid > 0
            known = strings.setdefault(interned.name, {})
            assert entry.iid not in known
            text = entry.str.decode() if hasattr(entry, "str") else entry.name
            known[entry.iid] = text
    assert packet.timestamp >= sequence["now"]
    sequence["now"] = packet.timestamp
    if event.type == TrackEvent.TYPE_SLICE_END:
        ended = slices[sequence["open"].pop()]
        ended.duration = packet.timestamp - ended.start
        return
    assert event.type == TrackEvent.TYPE_SLICE_BEGIN
    arguments = {}
    for annotation in event.debug_annotations:
        name = strings["debug_annotation_names"][annotation.name_iid]
        assert name not in arguments
        if annotation.HasField("int_value"):
            arguments[name] = annotation.int_value
        else:
            values = strings["debug_annotation_string_values"]
            arguments[name] = values[annotation.string_value_iid]
    (category,) = event.category_iids
    slices.append(
        Slice(
            process=sequence["track"],
            name=strings["event_names"][event.name_iid],
            category=strings["event_categories"][category],
            start=packet.timestamp,
            parent=sequence["open"][-1] if sequence["open"] else -1,
            arguments=arguments,
        )
    )
    sequence["open"].append(len(slices) - 1)


def check_tree(slices, spans):
    """That the slices are those of the spans, one for one, and lie in one another alike."""
    rows = [step.row for step in lay_out(spans) if step.begins]
    assert sorted(rows) == list(range(len(spans)))
    assert [s.name for s in slices] == spans["name"].iloc[rows].tolist()
    event = spans["event"].tolist()
    above = [-1 if s.parent < 0 else event[rows[s.parent]] for s in slices]
    assert above == spans["parent"].iloc[rows].tolist()
    for drawn in slices:
        if drawn.parent >= 0:
            outer = slices[drawn.parent]
            assert outer.start <= drawn.start
            assert drawn.start + drawn.duration <= outer.start + outer.duration
    duration = spans["duration_ns"].iloc[rows].tolist()
    assert [s.arguments.get("duration_ns", s.duration) for s in slices] == duration


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_slices_nest_as_the_events_do(path, tmp_path):
    spans = describe_spans(read_etdump(path))
    slices = decode(write_perfetto({"it": spans}, tmp_path / "it"))
    check_tree(slices, spans)
    assert min(s.start for s in slices) == 0


@pytest.fixture(scope="module")
def sides():
    """The first trace of the sample's baseline and of its candidate."""
    return {
        side: describe_spans(
            read_etdump(sorted(sample_run().glob(f"avx512_{side}/*_t1.etdump"))[0])
        )
        for side in ("off", "on")
    }


@pytest.fixture(scope="module")
def drawn(sides, tmp_path_factory):
    """The slices of both, from one file, by side."""
    path = write_perfetto(sides, tmp_path_factory.mktemp("perfetto") / "sides")
    slices = decode(path)
    edge = len(sides["off"])
    assert [s.process for s in slices] == ["off"] * edge + ["on"] * len(sides["on"])
    for drawn in slices[edge:]:
        drawn.parent -= edge if drawn.parent >= 0 else 0
    return {"off": slices[:edge], "on": slices[edge:]}


def test_two_traces_are_two_processes_on_one_axis(sides, drawn):
    for side, slices in drawn.items():
        check_tree(slices, sides[side])
    assert min(s.start for slices in drawn.values() for s in slices) == 0
    executed = [[s.start for s in slices if s.category == "method"] for slices in drawn.values()]
    assert executed[0][0] == executed[1][0]
    assert len(executed[0]) == sides["off"]["run"].max() + 1


def test_arguments_are_the_columns_of_the_span(sides, drawn):
    spans = sides["on"]
    rows = [step.row for step in lay_out(spans) if step.begins]
    leaf = ~spans["event"].isin(spans["parent"])
    for slice_, row in zip(drawn["on"], rows, strict=True):
        span = spans.loc[row]
        expected = {name: span[name] for name in ("run", "instruction", "delegate_id")}
        expected = {name: value for name, value in expected.items() if value >= 0}
        if leaf[row] and span["run"] >= 0:
            expected |= {"category": span["category"], "family": span["family"]}
        if span["kind"] == "delegate_operator":
            expected["start"] = "synthetic"
        for name in ("start_ns", "duration_ns"):
            slice_.arguments.pop(name, None)
        assert slice_.arguments == expected
        assert slice_.category == expected.get("category", span["kind"])


def test_the_slices_of_a_category_last_as_long_as_it_does(sides, drawn):
    spans = sides["on"]
    leaves = spans[~spans["event"].isin(spans["parent"]) & (spans["run"] >= 0)]
    for category, own in leaves.groupby("category", observed=True)["own_ns"].sum().items():
        slices = [s for s in drawn["on"] if s.category == category]
        assert sum(s.arguments.get("duration_ns", s.duration) for s in slices) == own


def test_an_operator_that_outlasts_its_call_is_cut_and_says_so(tmp_path):
    spans = frame([(2, 1_000, 900), (2, 1_900, 200), (-1, 1_000, 1_050)])
    slices = decode(write_perfetto({"it": spans}, tmp_path / "it"))
    assert [(s.start, s.duration) for s in slices] == [(0, 1_050), (0, 900), (900, 150)]
    assert [s.arguments.get("duration_ns") for s in slices] == [None, None, 200]


def test_an_event_across_others_is_cut_where_they_begin(tmp_path):
    spans = frame([(-1, 100, 10), (-1, 0, 1_000), (-1, 200, 10)])
    slices = decode(write_perfetto({"it": spans}, tmp_path / "it"))
    assert [(s.start, s.duration) for s in slices] == [(0, 100), (100, 10), (200, 10)]
    assert slices[0].arguments["duration_ns"] == 1_000


def test_a_layer_and_a_shape_are_shown_once_they_are_known(tmp_path):
    spans = frame([(1, 0, 1), (-1, 0, 2)]).assign(layer=["features.0", None], shape="1x3x8x8")
    outer, inner = decode(write_perfetto({"it": spans}, tmp_path / "it"))
    assert outer.arguments == {}
    assert inner.arguments == {"layer": "features.0", "shape": "1x3x8x8"}


def test_first_executions_begin_together_however_long_loading_took(tmp_path):
    def load_and_execute(since, loading):
        spans = frame(
            [(-1, since, loading), (-1, since + loading, 5), (-1, since + loading + 9, 5)]
        )
        return spans.assign(kind=["other", "method", "method"])

    sides = {"fast": load_and_execute(70, 10), "slow": load_and_execute(2**60, 3_000)}
    slices = decode(write_perfetto(sides, tmp_path / "it"))
    assert [s.start for s in slices] == [2_990, 3_000, 3_009, 0, 3_000, 3_009]


def test_nothing_to_draw_is_a_trace_all_the_same(tmp_path):
    assert decode(write_perfetto({"it": frame([])}, tmp_path / "it")) == []


def test_strings_are_spelt_once(sides, tmp_path):
    path = write_perfetto(sides, tmp_path / "it")
    assert path.stat().st_size < 80 * sum(map(len, sides.values()))
    for text in (b"DELEGATE_CALL", b"synthetic", b"instruction"):
        assert path.read_bytes().count(text) == len(sides)


def frame(rows, names=None):
    """Spans of ``(parent, start, duration)``, numbered as they come."""
    parent, start, duration = (
        (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [])
    )
    count = len(rows)
    text = names or [f"event {number}" for number in range(count)]
    return pd.DataFrame(
        {
            "block": pd.Series([0] * count, dtype="int32"),
            "block_name": pd.Series(["Execute"] * count, dtype=object),
            "run": pd.Series([-1] * count, dtype="int32"),
            "event": pd.Series(range(count), dtype="int64"),
            "parent": pd.Series(parent, dtype="int64"),
            "kind": pd.Series(["other"] * count, dtype=object),
            "name": pd.Series(text, dtype=object),
            "chain": pd.Series([-1] * count, dtype="int32"),
            "instruction": pd.Series([-1] * count, dtype="int32"),
            "delegate_id": pd.Series([-1] * count, dtype="int32"),
            "start_ns": pd.Series(start, dtype="int64"),
            "duration_ns": pd.Series(duration, dtype="int64"),
        }
    )


@st.composite
def forests(draw):
    """Spans with any parents that come later, and any times."""
    count = draw(st.integers(1, 12))
    times = st.integers(0, 30) | st.integers(0, 2**62)
    rows = []
    for number in range(count):
        parent = draw(st.integers(number, count - 1))
        rows.append((parent if parent > number else -1, draw(times), draw(times)))
    return frame(rows)


@settings(deadline=None)
@given(forests())
def test_any_spans_nest_as_they_should(tmp_path_factory, spans):
    path = tmp_path_factory.getbasetemp() / "forest"
    check_tree(decode(write_perfetto({"it": spans}, path)), spans)


@st.composite
def tidy_trees(draw):
    """Spans that truly lie in one another, as one clock would time them."""
    rows = []

    def grow(depth, now):
        start = now
        inside = []
        for _ in range(draw(st.integers(0, 3 if depth < 3 else 0))):
            number, now = grow(depth + 1, now + draw(st.integers(0, 5)))
            inside.append(number)
        end = now + draw(st.integers(0, 5))
        for number in inside:
            rows[number] = (len(rows), *rows[number][1:])
        rows.append((-1, start, end - start))
        return len(rows) - 1, end

    grow(0, draw(st.integers(0, 10**15)))
    return frame(rows)


@settings(deadline=None)
@given(tidy_trees())
def test_spans_that_lie_in_one_another_are_drawn_as_they_were(spans):
    for step in lay_out(spans):
        span = spans.loc[step.row]
        assert (step.begin, step.end - step.begin) == (span["start_ns"], span["duration_ns"])


@settings(deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=2_000), min_size=1))
def test_any_name_is_kept(tmp_path_factory, names):
    spans = frame([(-1, 10 * number, 5) for number in range(len(names))], names)
    path = tmp_path_factory.getbasetemp() / "names"
    slices = decode(write_perfetto({names[0]: spans}, path))
    assert [s.name for s in slices] == names
    assert slices[0].process == names[0]


def test_a_tree_as_deep_as_it_is_long(tmp_path):
    depth = 5_000
    spans = frame([(n + 1 if n < depth - 1 else -1, 0, n) for n in range(depth)])
    check_tree(decode(write_perfetto({"it": spans}, tmp_path / "it")), spans)
