"""Traces in other formats: what comes out is what went in, and what cannot be says why."""

import csv
import importlib.util
import json
import math
import os
import re
import shutil
import subprocess
import sys
import unicodedata
from dataclasses import dataclass, field
from pathlib import Path

import jsonschema
import pandas as pd
import pytest
from etdump_builder import Block, Profile, build_etdump
from hypothesis import given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackEvent

from workbench.analysis.categories import add_categories
from workbench.analysis.ledger import build_ledger
from workbench.analysis.operators import describe_spans, label_operator, summarize_categories
from workbench.cli import main
from workbench.datasets import sample_run
from workbench.errors import ComparisonError, StoreError, UsageError, printable
from workbench.frames import EVENTS, SPANS
from workbench.trace.etdump import read_etdump
from workbench.trace.writers.csv_parquet import STATISTICS, TIMELINE, write_csvs
from workbench.trace.writers.perfetto import lay_out, write_perfetto
from workbench.trace.writers.speedscope import write_speedscope
from workbench.workflow import export_trace

GOLDEN = sorted((Path(__file__).parent / "data" / "etdump").glob("*.etdump"))
TRACE = next(path for path in GOLDEN if path.stem == "two_methods")
needs_pyarrow = pytest.mark.skipif(
    importlib.util.find_spec("pyarrow") is None,
    reason="pyarrow is an extra: pip install '.[parquet]'",
)
FORMATS = ["csv", pytest.param("parquet", marks=needs_pyarrow), "perfetto", "speedscope"]


@pytest.fixture
def trace(tmp_path):
    """A copy of a small real trace, in a folder of its own."""
    return Path(shutil.copy(TRACE, tmp_path / "it.etdump"))


@pytest.fixture
def cli(capfd, tmp_path, monkeypatch):
    """Run ``workbench trace`` in the trace's folder: its exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(["trace", *map(str, arguments)])
        out, err = capfd.readouterr()
        return ended.value.code, out, err

    return run


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_every_event_has_its_row_of_the_ledger(path):
    events = read_etdump(path)
    spans, ledger = describe_spans(events), add_categories(build_ledger(events))
    assert list(spans)[: len(events.columns)] == list(events)
    pd.testing.assert_frame_equal(spans[list(events)], events)
    described = spans[spans["ledger_kind"].notna()]
    assert described["run"].isin(ledger["run"]).all()
    names = {"ledger_kind": "kind", "own_ns": "duration_ns"}
    for name in ("ledger_kind", "name", "operator", "key", "own_ns", "category", "rule", "run"):
        assert described[name].tolist() == ledger[names.get(name, name)].tolist()
    e2e = events[(events["kind"] == "method") & (events["run"] >= 0)].set_index("run")
    own = described.groupby("run")["own_ns"].sum()
    assert own.to_dict() == e2e["duration_ns"].to_dict()
    outside = spans.loc[spans["run"] < 0, SPANS.names[len(EVENTS.names) :]]
    assert outside.isna().to_numpy().all()


@needs_pyarrow
@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_parquet_restores_the_frame(path, tmp_path):
    (file,) = export_trace(path, "parquet", out=tmp_path / "it.parquet")
    spans = describe_spans(read_etdump(path))
    pd.testing.assert_frame_equal(pd.read_parquet(file), spans)


@needs_pyarrow
def test_parquet_has_the_meaning_of_its_columns(trace):
    from pyarrow import parquet

    (file,) = export_trace(trace, "parquet")
    assert file == trace.with_suffix(".parquet")
    schema = parquet.read_schema(file)
    for column in SPANS.columns:
        metadata = schema.field(column.name).metadata
        assert metadata[b"unit"].decode() == column.unit
        assert metadata[b"meaning"].decode() == column.meaning
    assert schema.metadata[b"frame"] == b"spans"
    assert schema.metadata[b"trace"] == b"it"


@needs_pyarrow
def test_a_trace_without_a_run_has_nothing_from_the_ledger(tmp_path):
    path = tmp_path / "it.etdump"
    path.write_bytes(build_etdump([Block("Default", [Profile("Method::init", -1, end=5)])]))
    (file,) = export_trace(path, "parquet")
    (row,) = pd.read_parquet(file).to_dict("records")
    assert (row["name"], row["duration_ns"]) == ("Method::init", 5)
    assert pd.isna(row["category"])
    assert pd.isna(row["own_ns"])
    assert export_trace(path, "perfetto")[0].stat().st_size > 0


@pytest.mark.parametrize("to", FORMATS)
def test_files_are_written_beside_the_trace_by_default(cli, trace, to):
    code, out, err = cli(trace, "--to", to)
    beside = {Path(line) for line in out.split()}
    assert (code, err.count("\n"), err[:6]) == (0, 1, "next: ")
    assert beside == {path for path in trace.parent.iterdir() if path != trace}
    assert all(path.name.startswith("it") for path in beside)

    code, out, _ = cli(trace, "--to", to, "--out", "new/elsewhere")
    files = [Path(line) for line in out.split()]
    assert code == 0
    assert all(file.stat().st_size > 0 for file in files)
    expected = Path("new/elsewhere")
    assert files == [expected] or all(file.parent == expected for file in files)


def test_csvs_are_those_that_analyze_writes(trace):
    from workbench.trace.writers.csv_parquet import write_csvs

    paths = write_csvs(read_etdump(trace), trace)
    written = [path.read_bytes() for path in paths]
    assert export_trace(trace, "csv") == paths
    assert [path.read_bytes() for path in paths] == written


@pytest.mark.parametrize("to", ["perfetto", "speedscope"])
def test_two_traces_of_one_name_are_distinguished(cli, trace, to):
    other = trace.parent / "other" / trace.name
    other.parent.mkdir()
    shutil.copy(TRACE, other)
    code, out, _ = cli(trace, "--to", to, "--baseline", other)
    assert code == 0
    content = Path(out.strip()).read_bytes()
    assert b"baseline: it" in content
    assert b"candidate: it" in content


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--to", "json"], "--to: unknown format 'json' -> valid: csv, model-explorer, parquet"),
        (["--to", "perfeto"], "did you mean 'perfetto'?"),
        ([], "--to"),
        (["--to", "csv", "--baseline", "it.etdump"], "--baseline: csv holds one trace"),
        (["--to", "parquet", "--baseline", "it.etdump"], "for model-explorer, perfetto"),
        (["--to", "perfetto", "--out", "it.etdump"], "it.etdump: is a trace to read"),
        (["--to", "perfetto", "--out", "./it.etdump"], "is a trace to read"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(cli, trace, arguments, words):
    before = trace.read_bytes()
    code, out, err = cli(trace, *arguments)
    assert code == 2
    assert out == ""
    assert words in err
    assert "Traceback" not in err
    assert [*trace.parent.iterdir()] == [trace]
    assert trace.read_bytes() == before


def test_a_baseline_is_not_overwritten_either(trace):
    other = Path(shutil.copy(trace, trace.with_name("other.etdump")))
    with pytest.raises(UsageError, match="is a trace to read"):
        export_trace(trace, "perfetto", out=other, baseline=other)


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize(
    "content", [None, b"", b"no trace\n" * 9, "cut"], ids=["missing", "empty", "foreign", "cut"]
)
def test_a_bad_trace_is_one_line_and_exit_code_1(cli, trace, to, content):
    bad = trace.with_name("bad.etdump")
    if content is not None:
        bad.write_bytes(trace.read_bytes()[:-100] if content == "cut" else content)
    before = set(trace.parent.iterdir())
    arguments = ["--baseline", bad] if to in ("perfetto", "speedscope") else []
    for chosen in [[bad], [trace, *arguments]][: 1 + bool(arguments)]:
        code, out, err = cli(*chosen, "--to", to)
        assert (code, out) == (1, "")
        assert err.startswith("error: ")
        assert "bad.etdump" in err
        assert len(err.splitlines()) == 1
    assert set(trace.parent.iterdir()) == before


@pytest.mark.parametrize("to", FORMATS)
def test_an_output_path_that_cannot_be_written_is_one_line(cli, trace, to):
    trace.with_name("file").write_text("in the way")
    out = Path("file/it") if to != "csv" else Path("file")
    code, printed, err = cli(trace, "--to", to, "--out", out)
    assert (code, printed) == (1, "")
    assert len(err.splitlines()) == 1
    assert f"error: {out}" in err
    assert "cannot be written: " in err
    assert ".tmp" not in err


def test_a_folder_in_the_way_is_one_line(trace):
    (trace.parent / "folder").mkdir()
    with pytest.raises(StoreError, match="cannot be written: Is a directory"):
        export_trace(trace, "perfetto", out=trace.parent / "folder")
    assert not any((trace.parent / "folder").iterdir())


@pytest.mark.skipif(sys.platform == "darwin", reason="its file names are text")
@pytest.mark.parametrize("to", FORMATS)
def test_a_file_name_that_is_not_utf_8(trace, to):
    odd = trace.rename(os.fsdecode(os.fsencode(trace.parent) + b"/\xff\n.etdump"))
    assert all(path.stat().st_size > 0 for path in export_trace(odd, to))


@needs_pyarrow
def test_hostile_names_are_preserved(tmp_path):
    name = '"\\\x00\x1b[31m</script>\U0001f4a3\ufffd' + "x" * 900
    run = [
        Profile(name, 0, 0, delegate_str=name, end=4),
        Profile("DELEGATE_CALL", 0, 0, end=5),
        Profile("Method::execute", -1, end=9),
    ]
    path = tmp_path / "it.etdump"
    path.write_bytes(build_etdump([Block("Execute", run)]))
    (file,) = export_trace(path, "parquet")
    assert pd.read_parquet(file)["name"].tolist()[0] == name
    (file,) = export_trace(path, "speedscope")
    assert "\x1b" not in file.read_text()
    (file,) = export_trace(path, "perfetto")
    assert name.encode() in file.read_bytes()


def test_exchange_needs_neither_torch_nor_executorch(trace):
    formats = ["csv", "perfetto", "speedscope"]
    formats += ["parquet"] if importlib.util.find_spec("pyarrow") else []
    code = (
        "import sys; from workbench.workflow import export_trace;"
        f"[export_trace({str(trace)!r}, to) for to in {formats}];"
        "print(*(m for m in ('torch', 'executorch') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_parquet_without_pyarrow_says_what_to_install(trace, monkeypatch):
    from workbench.errors import SetupError

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SetupError, match=r"executorch-workbench\[parquet\]"):
        export_trace(trace, "parquet")


@needs_pyarrow
def test_the_sample_sums_to_its_latency_in_every_format(tmp_path):
    off, on = (sorted(sample_run().glob(f"avx512_{side}/*_t1.etdump"))[0] for side in ("off", "on"))
    (file,) = export_trace(on, "parquet", out=tmp_path / "on.parquet")
    spans = pd.read_parquet(file)
    e2e = spans.loc[spans["kind"] == "method", "duration_ns"]
    assert spans["own_ns"].sum() == e2e.sum()
    assert set(spans["category"].cat.categories) >= {"Convolution", "Data Movement"}
    for to in ("perfetto", "speedscope"):
        (file,) = export_trace(on, to, out=tmp_path / to, baseline=off)
        assert b"Convolution IGEMM #1" in file.read_bytes()


# --- CSV files of the kit -------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path):
    """The three files of the two-method trace."""
    return write_csvs(read_etdump(TRACE), tmp_path / TRACE.name, delegate_backend="XnnpackBackend")


def test_csv_files_are_written_beside_the_trace(files, tmp_path):
    assert [path.name for path in files] == [
        "two_methods_all_runs_timeline.csv",
        "two_methods_run0_timeline.csv",
        "two_methods_ops_stats.csv",
    ]
    assert {path.parent for path in files} == {tmp_path}


def test_timeline_has_the_kits_columns_and_one_row_per_event_of_a_run(files):
    timeline, run0 = (pd.read_csv(path, keep_default_na=False) for path in files[:2])
    assert tuple(timeline.columns) == TIMELINE
    events = read_etdump(TRACE)
    events = events[events["run"] >= 0].reset_index(drop=True)
    assert timeline["name"].tolist() == events["name"].tolist()
    assert timeline["run_index"].tolist() == events["run"].tolist()
    assert (timeline["duration_ms"] * 1e6).round().astype(int).tolist() == events[
        "duration_ns"
    ].tolist()
    assert (timeline["start_us"] * 1e3).round().astype(int).tolist() == events["start_ns"].tolist()
    assert set(timeline["model_id"]) == {"two_methods"}
    assert set(timeline["block"]) == {"Execute"}
    assert run0.equals(timeline[timeline["run_index"] == 0])
    assert run0["node_id"].tolist() == list(range(7))
    assert run0["type"][1] == "Convolution (NHWC, F32) IGEMM"
    assert run0["delegate_backend"].tolist() == ["XnnpackBackend"] * 3 + ["", "portable", "", ""]
    assert run0["pct_total"].iloc[-1] == 100
    assert run0["pct_total"][3] == pytest.approx(100 * 44_826 / 78_757, abs=1e-6)


def test_statistics_count_each_operator_once(files):
    table = pd.read_csv(files[2]).set_index("name")
    assert ("model_id", table.index.name, *table.columns[1:]) == STATISTICS
    elu = read_etdump(TRACE).query("name == 'native_call_elu.out'")["duration_ns"] / 1e6
    row = table.loc["native_call_elu.out"]
    assert (row["count"], row["runs"]) == (1, 3)
    assert row["delegate_backend"] == "portable"
    expected = {
        "total_ms": elu.sum() / 3,
        "avg_ms": elu.mean(),
        "median_ms": elu.median(),
        "p90_ms": elu.quantile(0.9),
        "min_ms": elu.min(),
        "max_ms": elu.max(),
    }
    assert row[list(expected)].to_dict() == pytest.approx(expected)
    assert table.loc["Transpose (ND, X32)", "count"] == 2
    assert table["total_ms"].is_monotonic_decreasing


def test_statistics_agree_with_the_ledger(files):
    table = pd.read_csv(files[2])
    ledger = build_ledger(read_etdump(TRACE))
    own = ledger[ledger["kind"].isin(["delegated", "portable"])]["duration_ns"].sum()
    e2e = ledger["duration_ns"].sum()
    assert (table["total_ms"] * table["runs"]).sum() == pytest.approx(own / 1e6)
    assert table["pct_total"].sum() == pytest.approx(100 * own / e2e, abs=1e-4)


@pytest.mark.skipif(sys.platform == "darwin", reason="its file names are text")
def test_a_model_id_from_a_file_name_that_is_not_utf_8(tmp_path):
    path = tmp_path / os.fsdecode(b"a\xff.etdump")
    path.write_bytes(TRACE.read_bytes())
    timeline = write_csvs(read_etdump(path), path)[0]
    assert set(pd.read_csv(timeline)["model_id"]) == {"a?"}


@pytest.mark.filterwarnings("ignore:.*without an end")
def test_a_trace_without_a_run_gives_headers(tmp_path):
    path = tmp_path / "empty.etdump"
    path.write_bytes(build_etdump([Block("Execute", [Profile("x")])]))
    for file in write_csvs(read_etdump(path), path):
        assert len(file.read_text().splitlines()) == 1


def test_a_run_of_no_time_has_no_percentage(tmp_path):
    path = tmp_path / "instant.etdump"
    path.write_bytes(build_etdump([Block("Execute", [Profile("Method::execute", -1)])]))
    timeline = pd.read_csv(write_csvs(read_etdump(path), path)[0])
    assert timeline["pct_total"].isna().all()


@given(
    first=st.sampled_from(["", "=", "+", "-", "@", " =", "\t=", "\r@"]), rest=st.text(max_size=12)
)
def test_any_name_is_one_plain_cell(tmp_path_factory, first, rest):
    path = tmp_path_factory.getbasetemp() / "=cmd.etdump"
    name = (first + rest).encode(errors="ignore").decode()
    run = [
        Profile(name, instruction=0, start=1, end=2),
        Profile("Method::execute", -1, start=0, end=3),
    ]
    path.write_bytes(build_etdump([Block("Execute", run)]))
    timeline, _, statistics = write_csvs(read_etdump(path), path, delegate_backend="@backend")
    assert len(timeline.read_text().splitlines()) == 3
    rows = [
        *csv.DictReader(timeline.open(newline="")),
        *csv.DictReader(statistics.open(newline="")),
    ]
    assert len(rows) == 3
    assert rows[0]["model_id"] == "'=cmd"
    controls = ("Cc", "Zl", "Zp")
    plain = "".join(" " if unicodedata.category(c) in controls else c for c in name)
    plain = printable(plain).lstrip()
    assert rows[0]["name"] in (plain, "'" + plain)
    for row in rows:
        for column in ("model_id", "name", "type", "delegate_backend", "block"):
            assert not row.get(column, "").startswith(("=", "+", "-", "@", "\t", "\r"))


# --- Perfetto -------------------------------------------------------------------------------------


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


def test_an_operator_that_outlasts_its_call_is_cut_and_keeps_its_logged_time(tmp_path):
    spans = frame([(2, 1_000, 900), (2, 1_900, 200), (-1, 1_000, 1_050)])
    slices = decode(write_perfetto({"it": spans}, tmp_path / "it"))
    assert [(s.start, s.duration) for s in slices] == [(0, 1_050), (0, 900), (900, 150)]
    assert [s.arguments.get("duration_ns") for s in slices] == [None, None, 200]


def test_overlapping_events_are_cut_where_the_next_begins(tmp_path):
    spans = frame([(-1, 100, 10), (-1, 0, 1_000), (-1, 200, 10)])
    slices = decode(write_perfetto({"it": spans}, tmp_path / "it"))
    assert [(s.start, s.duration) for s in slices] == [(0, 100), (100, 10), (200, 10)]
    assert slices[0].arguments["duration_ns"] == 1_000


def test_layer_source_and_shapes_become_arguments(tmp_path):
    known = {"layer": ["features.0", None], "source": "net.py:7", "shapes": "1x3 -> 1x8"}
    spans = frame([(1, 0, 1), (-1, 0, 2)]).assign(label="features.0 · Add #1", **known)
    outer, inner = decode(write_perfetto({"it": spans}, tmp_path / "it"))
    assert (outer.name, outer.arguments) == ("event 1", {})
    assert (inner.name, inner.arguments) == (
        "features.0 · Add #1",
        {"layer": "features.0", "source": "net.py:7", "shapes": "1x3 -> 1x8"},
    )


def test_the_trace_of_a_run_has_the_layers_of_its_program(tmp_path):
    (file,) = export_trace(traces()["on"], "perfetto", out=tmp_path / "it")
    (first, *_) = (s for s in decode(file) if s.name == "classifier.3 · Fully Connected GEMM #42")
    wanted = {"layer": "classifier.3", "category": "GEMM", "shapes": "1x1024 -> 1x1000"}
    wanted |= {"logged": "Fully Connected (NC, F32) GEMM #42"}
    assert wanted.items() <= first.arguments.items()
    assert first.arguments["source"].endswith("mobilenet_v3_small.py:120")


def test_first_executions_begin_together_however_long_loading_took(tmp_path):
    def load_and_execute(since, loading):
        spans = frame(
            [(-1, since, loading), (-1, since + loading, 5), (-1, since + loading + 9, 5)]
        )
        return spans.assign(kind=["other", "method", "method"])

    sides = {"fast": load_and_execute(70, 10), "slow": load_and_execute(2**60, 3_000)}
    slices = decode(write_perfetto(sides, tmp_path / "it"))
    assert [s.start for s in slices] == [2_990, 3_000, 3_009, 0, 3_000, 3_009]


def test_no_spans_are_an_empty_trace(tmp_path):
    assert decode(write_perfetto({"it": frame([])}, tmp_path / "it")) == []


def test_strings_are_written_once(sides, tmp_path):
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


@given(tidy_trees())
def test_nested_spans_are_drawn_with_their_logged_times(spans):
    for step in lay_out(spans):
        span = spans.loc[step.row]
        assert (step.begin, step.end - step.begin) == (span["start_ns"], span["duration_ns"])


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=2_000), min_size=1))
def test_any_name_is_kept_as_far_as_it_is_printable(tmp_path_factory, names):
    spans = frame([(-1, 10 * number, 5) for number in range(len(names))], names)
    path = tmp_path_factory.getbasetemp() / "names"
    slices = decode(write_perfetto({names[0]: spans}, path))
    assert [s.name for s in slices] == [printable(name) for name in names]
    assert slices[0].process == printable(names[0])


def test_a_tree_as_deep_as_it_is_long(tmp_path):
    depth = 5_000
    spans = frame([(n + 1 if n < depth - 1 else -1, 0, n) for n in range(depth)])
    check_tree(decode(write_perfetto({"it": spans}, tmp_path / "it")), spans)


# --- speedscope -----------------------------------------------------------------------------------


# What file-format-spec.ts of speedscope asks of a file with sampled profiles.
FORMAT = {
    "type": "object",
    "required": ["$schema", "shared", "profiles"],
    "properties": {
        "$schema": {"const": "https://www.speedscope.app/file-format-schema.json"},
        "name": {"type": "string"},
        "exporter": {"type": "string"},
        "activeProfileIndex": {"type": "integer", "minimum": 0},
        "shared": {
            "type": "object",
            "required": ["frames"],
            "properties": {
                "frames": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["name"],
                        "properties": {
                            "name": {"type": "string"},
                            "file": {"type": "string"},
                            "line": {"type": "integer", "minimum": 1},
                        },
                        "additionalProperties": False,
                    },
                }
            },
        },
        "profiles": {
            "type": "array",
            "items": {
                "type": "object",
                "required": [
                    "type",
                    "name",
                    "unit",
                    "startValue",
                    "endValue",
                    "samples",
                    "weights",
                ],
                "properties": {
                    "type": {"const": "sampled"},
                    "name": {"type": "string"},
                    "unit": {"const": "nanoseconds"},
                    "startValue": {"type": "number"},
                    "endValue": {"type": "number"},
                    "samples": {
                        "type": "array",
                        "items": {"type": "array", "items": {"type": "integer", "minimum": 0}},
                    },
                    "weights": {"type": "array", "items": {"type": "number", "minimum": 0}},
                },
                "additionalProperties": False,
            },
        },
    },
    "additionalProperties": False,
}


def load(path):
    """The file as speedscope would read it; refuses what is none."""

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    content = json.loads(path.read_text(), parse_constant=refuse)
    jsonschema.validate(content, FORMAT)
    frames = content["shared"]["frames"]
    assert 0 <= content["activeProfileIndex"] < len(content["profiles"])
    for profile in content["profiles"]:
        assert len(profile["samples"]) == len(profile["weights"])
        assert all(index < len(frames) for stack in profile["samples"] for index in stack)
        assert profile["endValue"] == pytest.approx(math.fsum(profile["weights"]), rel=1e-12)
    return content


def mean_e2e(path):
    """Mean nanoseconds of ``Method::execute``, without the ledger."""
    events = read_etdump(path)
    return events.loc[(events["kind"] == "method") & (events["run"] >= 0), "duration_ns"].mean()


def traces():
    return {
        side: sorted(sample_run().glob(f"avx512_{side}/*_t1.etdump"))[0] for side in ("off", "on")
    }


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_the_total_is_the_mean_latency(path, tmp_path):
    (file,) = export_trace(path, "speedscope", out=tmp_path / "it.json")
    (profile,) = load(file)["profiles"]
    assert profile["endValue"] == pytest.approx(mean_e2e(path), rel=1e-9)


def test_a_baseline_is_a_profile_of_its_own(tmp_path):
    off, on = traces().values()
    (file,) = export_trace(on, "speedscope", out=tmp_path / "it.json", baseline=off)
    content = load(file)
    assert [p["name"] for p in content["profiles"]] == [
        f"baseline: {off.stem}",
        f"candidate: {on.stem}",
    ]
    for path, profile in zip((off, on), content["profiles"], strict=True):
        assert profile["endValue"] == pytest.approx(mean_e2e(path), rel=1e-9)
        names = [frame["name"] for frame in content["shared"]["frames"]]
        totals = (
            pd.Series(profile["weights"])
            .groupby([names[stack[0]] for stack in profile["samples"]])
            .sum()
        )
        expected = summarize_categories(build_ledger(read_etdump(path)))
        expected = expected.set_index("category")["mean_ms"]
        expected = expected[expected > 0]
        assert (totals / 1e6).to_dict() == pytest.approx(expected.to_dict(), rel=1e-9)


def test_samples_are_in_the_order_of_execution(tmp_path):
    path = traces()["on"]
    (file,) = export_trace(path, "speedscope", out=tmp_path / "it.json")
    content = load(file)
    frames, (profile,) = content["shared"]["frames"], content["profiles"]
    stacks = [[frames[index]["name"] for index in stack] for stack in profile["samples"]]
    ledger = build_ledger(read_etdump(path))
    names = [re.sub(r"^.* · |: .*| \(instruction \d+\)", "", stack[-1]) for stack in stacks]
    assert names == [label_operator(name) for name in ledger[ledger["run"] == 0]["name"]]
    label = "classifier.3 · Fully Connected GEMM #42: 1x1024 -> 1x1000"
    assert ["GEMM", "classifier", "classifier.3", label] in stacks
    (place,) = (frame for frame in frames if frame["name"] == label)
    assert place["file"].endswith("mobilenet_v3_small.py") and place["line"] == 120


def test_overhead_stands_at_the_end_of_the_call_that_has_it(tmp_path):
    (file,) = export_trace(traces()["on"], "speedscope", out=tmp_path / "it.json")
    frames, (profile,) = (content := load(file))["shared"]["frames"], content["profiles"]
    names = [frames[stack[-1]]["name"] for stack in profile["samples"]]
    call = names.index("DELEGATE_CALL")
    assert "GEMM #42" in names[call - 1] and "#" not in "".join(names[call:])


def test_a_trace_outside_of_its_run_has_categories_and_families(tmp_path):
    path = Path(shutil.copy(traces()["on"], tmp_path / "it.etdump"))
    content = load(export_trace(path, "speedscope")[0])
    frames, (profile,) = content["shared"]["frames"], content["profiles"]
    stacks = [[frames[index]["name"] for index in stack] for stack in profile["samples"]]
    assert ["Convolution", "depthwise", "Convolution DWConv #5"] in stacks


def test_a_trace_without_a_whole_run_has_no_mean(tmp_path):
    path = tmp_path / "it.etdump"
    path.write_bytes(build_etdump([Block("Execute", [Profile("x")])]))
    with pytest.raises(ComparisonError, match="holds no run"):
        export_trace(path, "speedscope")


def test_frames_of_one_name_at_two_levels_are_two(tmp_path):
    table = pd.DataFrame({"stack": [["a", "b"], ["b", "b"]], "ns": [1.0, 2.0]})
    path = write_speedscope({"it": table}, tmp_path / "it")
    content = load(path)
    assert [frame["name"] for frame in content["shared"]["frames"]] == ["a", "b", "b"]
    assert content["profiles"][0]["samples"] == [[0, 1], [2, 1]]


def test_a_negative_time_is_taken_from_the_others(tmp_path):
    table = pd.DataFrame({"stack": [["a"], ["b"], ["c"]], "ns": [30.0, -10.0, 70.0]})
    path = write_speedscope({"it": table}, tmp_path / "it")
    assert load(path)["profiles"][0]["weights"] == pytest.approx([27, 0, 63])


@given(
    weights=st.lists(st.integers(-(10**6), 10**12), min_size=1),
    name=st.text(),
    stack=st.lists(st.text(min_size=1), min_size=1, max_size=3),
)
def test_any_weights_and_names_give_a_file_of_the_same_total(
    tmp_path_factory, weights, name, stack
):
    weights.append(10**9 + sum(abs(weight) for weight in weights))
    table = pd.DataFrame({"stack": [stack] * len(weights), "ns": weights})
    path = tmp_path_factory.getbasetemp() / "any.json"
    content = load(write_speedscope({name: table}, path))
    assert content["profiles"][0]["endValue"] == pytest.approx(sum(weights), rel=1e-9)
    assert [frame["name"] for frame in content["shared"]["frames"]] == stack
    if min(weights) >= 0:
        assert content["profiles"][0]["weights"] == weights
