"""Traces in other formats: what comes out is what went in, and what cannot be says why."""

import csv
import importlib.util
import json
import math
import os
import re
import shutil
import sys
import unicodedata
from itertools import pairwise
from pathlib import Path

import jsonschema
import pandas as pd
import pytest
from etdump_builder import Block, Profile, build_etdump
from hypothesis import given
from hypothesis import strategies as st

import workbench as wb

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


def traces():
    """The first trace of the sample's baseline and of its candidate."""
    return {
        side: sorted(wb.sample_run().glob(f"avx512_{side}/*_t1.etdump"))[0]
        for side in ("off", "on")
    }


def write_trace(path, *events):
    path.write_bytes(build_etdump([Block("Execute", events)]))
    return path


def run_of(*operators, start=0, end):
    """One inference with one delegate call of these operators: name, start, end."""
    inner = [Profile(None, 0, 0, delegate_str=n, start=s, end=e) for n, s, e in operators]
    call = Profile("DELEGATE_CALL", 0, 0, start=start, end=end)
    return [*inner, call, Profile("Method::execute", -1, start=start, end=end)]


def is_shown_as(text, shown):
    """Whether a text is shown with at most its unprintable characters replaced."""
    return len(text) == len(shown) and all(
        a == b or (b == "?" and unicodedata.category(a)[0] in "CZ")
        for a, b in zip(text, shown, strict=True)
    )


@needs_pyarrow
@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_parquet_restores_the_frame_and_adds_the_ledger(path, tmp_path):
    (file,) = wb.export_trace(path, "parquet", out=tmp_path / "it.parquet")
    events, spans = wb.read_etdump(path), pd.read_parquet(file)
    pd.testing.assert_frame_equal(spans[list(events)], events)
    e2e = events[(events["kind"] == "method") & (events["run"] >= 0)].set_index("run")
    own = spans[spans["run"] >= 0].groupby("run")["own_ns"].sum()
    assert own.to_dict() == e2e["duration_ns"].to_dict()
    outside = spans.loc[spans["run"] < 0, [c for c in spans if c not in events]]
    assert outside.isna().to_numpy().all()


@needs_pyarrow
def test_parquet_has_the_meaning_of_its_columns(trace):
    from pyarrow import parquet

    (file,) = wb.export_trace(trace, "parquet")
    assert file == trace.with_suffix(".parquet")
    schema = parquet.read_schema(file)
    columns = {field.name: field.metadata for field in schema}
    assert columns["duration_ns"][b"unit"] == b"ns"
    raw = {name for name, metadata in columns.items() if not metadata}
    assert raw <= {"bundled_input", "metadata"}  # as the file has them
    assert all(columns[name][b"meaning"] for name in columns.keys() - raw)
    assert (schema.metadata[b"frame"], schema.metadata[b"trace"]) == (b"spans", b"it")


@needs_pyarrow
def test_a_trace_without_a_run_has_nothing_from_the_ledger(tmp_path):
    path = write_trace(tmp_path / "it.etdump", Profile("Method::init", -1, end=5))
    (file,) = wb.export_trace(path, "parquet")
    (row,) = pd.read_parquet(file).to_dict("records")
    assert (row["name"], row["duration_ns"]) == ("Method::init", 5)
    assert pd.isna(row["category"])
    assert pd.isna(row["own_ns"])
    assert wb.export_trace(path, "perfetto")[0].stat().st_size > 0


@pytest.mark.parametrize("to", FORMATS)
def test_files_are_written_beside_the_trace_by_default(cli, trace, to):
    code, out, err = cli("trace", trace, "--to", to)
    beside = {Path(line) for line in out.split()}
    assert (code, err.count("\n"), err[:6]) == (0, 1, "next: ")
    assert beside == {path for path in trace.parent.iterdir() if path != trace}
    assert all(path.name.startswith("it") for path in beside)

    code, out, _ = cli("trace", trace, "--to", to, "--out", "new/elsewhere")
    files = [Path(line) for line in out.split()]
    assert code == 0
    assert all(file.stat().st_size > 0 for file in files)
    expected = Path("new/elsewhere")
    assert files == [expected] or all(file.parent == expected for file in files)


@pytest.mark.parametrize("to", ["perfetto", "speedscope"])
def test_two_traces_of_one_name_are_distinguished(cli, trace, to):
    other = trace.parent / "other" / trace.name
    other.parent.mkdir()
    shutil.copy(TRACE, other)
    code, out, _ = cli("trace", trace, "--to", to, "--baseline", other)
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
        (["--to", "perfetto", "--baseline", "b.etdump", "--out", "b.etdump"], "a trace to read"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(cli, trace, arguments, words):
    before = trace.read_bytes()
    code, out, err = cli("trace", trace, *arguments)
    assert code == 2
    assert out == ""
    assert words in err
    assert "Traceback" not in err
    assert [*trace.parent.iterdir()] == [trace]
    assert trace.read_bytes() == before


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
        code, out, err = cli("trace", *chosen, "--to", to)
        assert (code, out) == (1, "")
        assert err.startswith("error: ")
        assert "bad.etdump" in err
        assert len(err.splitlines()) == 1
    assert set(trace.parent.iterdir()) == before


@pytest.mark.parametrize("to", FORMATS)
def test_an_output_path_that_cannot_be_written_is_one_line(cli, trace, to):
    trace.with_name("file").write_text("in the way")
    out = Path("file/it") if to != "csv" else Path("file")
    code, printed, err = cli("trace", trace, "--to", to, "--out", out)
    assert (code, printed) == (1, "")
    assert len(err.splitlines()) == 1
    assert f"error: {out}" in err
    assert "cannot be written: " in err
    assert ".tmp" not in err


@pytest.mark.skipif(sys.platform == "darwin", reason="its file names are text")
@pytest.mark.parametrize("to", FORMATS)
def test_a_file_name_that_is_not_utf_8(trace, to):
    odd = trace.rename(os.fsdecode(os.fsencode(trace.parent) + b"/\xff\n.etdump"))
    files = wb.export_trace(odd, to)
    assert all(path.stat().st_size > 0 for path in files)
    if to == "csv":
        assert set(pd.read_csv(files[0])["model_id"]) == {"? "}


@needs_pyarrow
def test_hostile_names_are_preserved(tmp_path):
    name = '"\\\x00\x1b[31m</script>\U0001f4a3\ufffd' + "x" * 900
    path = write_trace(tmp_path / "it.etdump", *run_of((name, 0, 4), end=9))
    (file,) = wb.export_trace(path, "parquet")
    assert pd.read_parquet(file)["name"].tolist()[0] == name
    for to in ("speedscope", "perfetto"):
        (file,) = wb.export_trace(path, to)
        assert "\x1b" not in file.read_text()
    assert is_shown_as(name, decode(file)["it"][-1]["name"])


def test_parquet_without_pyarrow_says_what_to_install(trace, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(Exception, match=r"executorch-workbench\[parquet\]"):
        wb.export_trace(trace, "parquet")


# --- CSV files of the kit -------------------------------------------------------------------------

TIMELINE = (
    *("model_id", "name", "type", "delegate_backend", "start_us", "end_us", "duration_ms"),
    *("pct_total", "node_id", "run_index", "block"),
)
STATISTICS = (
    *("model_id", "name", "type", "delegate_backend", "count", "total_ms", "avg_ms", "pct_total"),
    *("median_ms", "p90_ms", "min_ms", "max_ms", "runs"),
)


@pytest.fixture
def files(tmp_path):
    """The three files of the two-method trace."""
    return wb.export_trace(TRACE, "csv", out=tmp_path)


def test_timeline_has_the_kits_columns_and_one_row_per_event_of_a_run(files):
    timeline, run0 = (pd.read_csv(path, keep_default_na=False) for path in files[:2])
    assert tuple(timeline.columns) == TIMELINE
    events = wb.read_etdump(TRACE)
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
    assert run0["delegate_backend"].tolist() == ["delegated"] * 3 + ["", "portable", "", ""]
    assert run0["pct_total"].iloc[-1] == 100
    assert run0["pct_total"][3] == pytest.approx(100 * 44_826 / 78_757, abs=1e-6)


def test_statistics_count_each_operator_once(files):
    table = pd.read_csv(files[2]).set_index("name")
    assert ("model_id", table.index.name, *table.columns[1:]) == STATISTICS
    events = wb.read_etdump(TRACE)
    elu = events.query("name == 'native_call_elu.out'")["duration_ns"] / 1e6
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
    # All but overhead: of calls, and of the framework.
    leaves = events[~events["event"].isin(events["parent"]) & (events["run"] >= 0)]
    total = leaves["duration_ns"].sum()
    assert (table["total_ms"] * table["runs"]).sum() == pytest.approx(total / 1e6)
    e2e = events.loc[(events["kind"] == "method") & (events["run"] >= 0), "duration_ns"].sum()
    assert table["pct_total"].sum() == pytest.approx(100 * total / e2e, abs=1e-4)


@pytest.mark.filterwarnings("ignore:.*without an end")
def test_a_trace_without_a_run_gives_headers(tmp_path):
    path = write_trace(tmp_path / "empty.etdump", Profile("x"))
    for file in wb.export_trace(path, "csv"):
        assert len(file.read_text().splitlines()) == 1


def test_a_run_of_no_time_has_no_percentage(tmp_path):
    path = write_trace(tmp_path / "instant.etdump", Profile("Method::execute", -1))
    timeline = pd.read_csv(wb.export_trace(path, "csv")[0])
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
    timeline, _, statistics = wb.export_trace(write_trace(path, *run), "csv")
    assert len(timeline.read_text().splitlines()) == 3
    rows = [
        *csv.DictReader(timeline.open(newline="")),
        *csv.DictReader(statistics.open(newline="")),
    ]
    assert len(rows) == 3
    assert rows[0]["model_id"] == "'=cmd"
    controls = ("Cc", "Zl", "Zp")
    plain = "".join(" " if unicodedata.category(c) in controls else c for c in name).lstrip()
    assert is_shown_as(plain, rows[0]["name"].removeprefix("'")) or rows[0]["name"] == plain
    for row in rows:
        for column in ("model_id", "name", "type", "delegate_backend", "block"):
            assert not row.get(column, "").startswith(("=", "+", "-", "@", "\t", "\r"))


# --- Perfetto -------------------------------------------------------------------------------------


def decode(path):
    """The slices of each process by its name; refuses what the Perfetto UI would not read."""
    content = load_json(path)
    processes, slices = {}, {}
    for event in content["traceEvents"]:
        assert event["pid"] == event["tid"]
        if event["ph"] == "M":
            processes.setdefault(event["pid"], event["args"]["name"])
            continue
        assert event["ph"] == "X"
        assert event["ts"] >= 0 and event["dur"] >= 0
        times = {side: round(1000 * event[side]) for side in ("ts", "dur")}
        slices.setdefault(processes[event["pid"]], []).append(event | times)
    return slices


def load_json(path):
    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(path.read_text(), parse_constant=refuse)


def check_slices(slices, events):
    """Every event is a slice within that of its parent; slices of one parent do not overlap."""
    origin = events.loc[~events["parent"].isin(events["event"]), "start_ns"].min()
    drawn = {}
    for each in slices:
        begin = each["args"].get("start_ns", each["ts"] + origin)
        duration = each["args"].get("duration_ns", each["dur"])
        name = each["args"].get("logged", each["name"])
        drawn.setdefault((name, begin, duration), []).append(each)
    rows = events[["name", "start_ns", "duration_ns"]].itertuples(index=False, name=None)
    by_event = dict(zip(events["event"], (drawn[row].pop(0) for row in rows), strict=True))
    assert not any(drawn.values())
    inside = {}
    for event, parent in zip(events["event"], events["parent"], strict=True):
        each = by_event[event]
        inside.setdefault(parent, []).append((each["ts"], each["ts"] + each["dur"]))
        if parent >= 0:
            outer = by_event[parent]
            assert slices.index(outer) < slices.index(each)
            assert outer["ts"] <= each["ts"]
            assert each["ts"] + each["dur"] <= outer["ts"] + outer["dur"]
    for spans in inside.values():
        spans.sort()
        assert all(one[1] <= other[0] for one, other in pairwise(spans))


def perfetto(path, tmp_path, **options):
    (file,) = wb.export_trace(path, "perfetto", out=tmp_path / "it.json", **options)
    return decode(file)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_slices_nest_as_the_events_do(path, tmp_path):
    slices = perfetto(path, tmp_path).get(path.stem, [])
    check_slices(slices, wb.read_etdump(path))
    assert not slices or min(s["ts"] for s in slices) == 0


def test_two_traces_are_two_processes_on_one_axis(tmp_path):
    off, on = traces().values()
    off, on = (shutil.copy(path, tmp_path / f"{side}.etdump")
               for side, path in (("off", off), ("on", on)))  # fmt: skip
    drawn = perfetto(on, tmp_path, baseline=off)
    assert [*drawn] == ["baseline: off", "candidate: on"]
    for path, slices in zip((off, on), drawn.values(), strict=True):
        events = wb.read_etdump(path)
        assert len(slices) == len(events)
        leaves = {*events["event"]} - {*events["parent"]}
        time = events.loc[events["event"].isin(leaves), "duration_ns"].sum()
        shown = [s for s in slices if s["cat"] not in ("method", "delegate_call", "operator_call")]
        assert sum(s["args"].get("duration_ns", s["dur"]) for s in shown) == time
        for each in slices:
            call = each["cat"] not in ("method", "other", "tracing") and "run" in each["args"]
            assert call <= ("instruction" in each["args"])
    assert min(s["ts"] for slices in drawn.values() for s in slices) == 0
    first = [next(s["ts"] for s in x if s["cat"] == "method") for x in drawn.values()]
    assert first[0] == first[1]
    operators = [s for s in slices if s["args"].get("start") == "synthetic"]
    assert {s["args"]["category"] for s in operators} == {s["cat"] for s in operators}


def draw(tmp_path, *runs):
    paths = [tmp_path / f"{number}.etdump" for number in range(len(runs))]
    for path, run in zip(paths, runs, strict=True):
        write_trace(path, *run)
    found = perfetto(paths[-1], tmp_path, **({"baseline": paths[0]} if len(runs) > 1 else {}))
    return [sorted(s, key=lambda s: s["ts"]) for s in found.values()]


def test_an_operator_that_outlasts_its_call_is_cut_and_keeps_its_logged_time(tmp_path):
    (slices,) = draw(tmp_path, run_of(("a", 1000, 1900), ("b", 1900, 2100), start=1000, end=2050))
    assert [(s["ts"], s["dur"]) for s in slices] == [(0, 1050), (0, 1050), (0, 900), (900, 150)]
    assert [s["args"].get("duration_ns") for s in slices] == [None, None, None, 200]


def test_overlapping_operators_are_cut_where_the_next_begins(tmp_path):
    (slices,) = draw(tmp_path, run_of(("b", 100, 110), ("a", 0, 1000), ("c", 200, 210), end=1000))
    assert [(s["ts"], s["dur"]) for s in slices[2:]] == [(0, 100), (100, 10), (200, 10)]
    assert slices[2]["args"]["duration_ns"] == 1000


def test_first_executions_begin_together_however_long_loading_took(tmp_path):
    def load_and_execute(since, loading):
        loaded = Profile("Method::init", -1, start=since, end=since + loading)
        return [loaded, *run_of(start=since + loading, end=since + loading + 5)]

    fast, slow = draw(tmp_path, load_and_execute(70, 10), load_and_execute(2**60, 3000))
    assert [s["ts"] for s in fast] == [2990, 3000, 3000]
    assert [s["ts"] for s in slow] == [0, 3000, 3000]


def test_the_trace_of_a_run_has_the_layers_of_its_program(tmp_path):
    (slices,) = perfetto(traces()["on"], tmp_path).values()
    first = next(s for s in slices if s["name"] == "classifier.3 · Fully Connected GEMM #42")
    wanted = {"layer": "classifier.3", "category": "GEMM", "shapes": "1x1024 -> 1x1000"}
    wanted |= {"logged": "Fully Connected (NC, F32) GEMM #42"}
    assert wanted.items() <= first["args"].items()
    assert first["args"]["source"].endswith("mobilenet_v3_small.py:77")


@given(
    st.lists(st.tuples(st.integers(0, 30) | st.integers(0, 2**50), st.integers(0, 2**50))),
    st.integers(0, 2**50),
)
def test_any_times_are_drawn_within_their_call(tmp_path_factory, times, end):
    operators = [(f"op {n}", begin, begin + length) for n, (begin, length) in enumerate(times)]
    path = tmp_path_factory.getbasetemp() / "any.etdump"
    write_trace(path, *run_of(*operators, end=end))
    (slices,) = perfetto(path, path.parent).values()
    assert len(slices) == len(times) + 2
    operators = sorted((s["ts"], s["ts"] + s["dur"]) for s in slices if s["cat"] == "Other")
    assert all(one[1] <= other[0] for one, other in pairwise(operators))
    assert all(0 <= begin <= stop <= end for begin, stop in operators)


# --- speedscope -----------------------------------------------------------------------------------


def record(required, **properties):
    """The schema of an object of nothing else."""
    known = {"properties": properties, "required": required.split(), "additionalProperties": False}
    return {"type": "object", **known}


def array(**items):
    return {"type": "array", "items": items}


TEXT, NUMBER = {"type": "string"}, {"type": "number"}
#: What file-format-spec.ts of speedscope asks of a file with sampled profiles.
FORMAT = record(
    "$schema shared profiles",
    **{"$schema": {"const": "https://www.speedscope.app/file-format-schema.json"}},
    name=TEXT, exporter=TEXT, activeProfileIndex={"type": "integer", "minimum": 0},
    shared=record("frames", frames=array(
        **record("name", name=TEXT, file=TEXT, line={"type": "integer", "minimum": 1}))),
    profiles=array(**record(
        "type name unit startValue endValue samples weights",
        type={"const": "sampled"}, name=TEXT, unit={"const": "nanoseconds"},
        startValue=NUMBER, endValue=NUMBER, weights=array(type="number", minimum=0),
        samples=array(**array(type="integer", minimum=0)))),
)  # fmt: skip


def load(path):
    """The file as speedscope would read it; refuses what is none."""
    content = load_json(path)
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
    events = wb.read_etdump(path)
    return events.loc[(events["kind"] == "method") & (events["run"] >= 0), "duration_ns"].mean()


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_the_total_is_the_mean_latency(path, tmp_path):
    (file,) = wb.export_trace(path, "speedscope", out=tmp_path / "it.json")
    (profile,) = load(file)["profiles"]
    assert profile["endValue"] == pytest.approx(mean_e2e(path), rel=1e-9)


def test_a_baseline_is_a_profile_of_its_own(tmp_path):
    off, on = traces().values()
    (file,) = wb.export_trace(on, "speedscope", out=tmp_path / "it.json", baseline=off)
    content = load(file)
    assert [p["name"] for p in content["profiles"]] == [
        f"baseline: {off.stem}",
        f"candidate: {on.stem}",
    ]
    names = [frame["name"] for frame in content["shared"]["frames"]]
    run = wb.open_run(wb.sample_run())
    for path, profile in zip((off, on), content["profiles"], strict=True):
        assert profile["endValue"] == pytest.approx(mean_e2e(path), rel=1e-9)
        first = [names[stack[0]] for stack in profile["samples"]]
        totals = pd.Series(profile["weights"]).groupby(first).sum()
        assert {*totals.index} == {*run.categories.query("mean_ms > 0")["category"], "tracing"}


def test_samples_are_in_the_order_of_execution(tmp_path):
    path = traces()["on"]
    (file,) = wb.export_trace(path, "speedscope", out=tmp_path / "it.json")
    content = load(file)
    frames, (profile,) = content["shared"]["frames"], content["profiles"]
    stacks = [[frames[index]["name"] for index in stack] for stack in profile["samples"]]
    events = wb.read_etdump(path)
    logged = events.loc[(events["run"] == 0) & (events["kind"] == "delegate_operator"), "name"]
    numbers = [re.search(r" #\d+", stack[-1]) for stack in stacks]
    assert [n[0] for n in numbers if n] == [re.search(r" #\d+", name)[0] for name in logged]
    label = "classifier.3 · Fully Connected GEMM #42: 1x1024 -> 1x1000"
    assert ["GEMM", "classifier", "classifier.3", label] in stacks
    (place,) = (frame for frame in frames if frame["name"] == label)
    assert place["file"].endswith("mobilenet_v3_small.py") and place["line"] == 77


def test_overhead_stands_at_the_end_of_the_call_that_has_it(tmp_path):
    (file,) = wb.export_trace(traces()["on"], "speedscope", out=tmp_path / "it.json")
    frames, (profile,) = (content := load(file))["shared"]["frames"], content["profiles"]
    names = [frames[stack[-1]]["name"] for stack in profile["samples"]]
    call = names.index("DELEGATE_CALL")
    assert "GEMM #42" in names[call - 1] and "#" not in "".join(names[call:])


def test_a_trace_outside_of_its_run_has_categories_and_families(tmp_path):
    path = Path(shutil.copy(traces()["on"], tmp_path / "it.etdump"))
    content = load(wb.export_trace(path, "speedscope")[0])
    frames, (profile,) = content["shared"]["frames"], content["profiles"]
    stacks = [[frames[index]["name"] for index in stack] for stack in profile["samples"]]
    assert ["Convolution", "depthwise", "Convolution DWConv #5"] in stacks


def test_a_trace_without_a_whole_run_has_no_mean(tmp_path):
    path = write_trace(tmp_path / "it.etdump", Profile("x"))
    with pytest.raises(Exception, match="holds no run"):
        wb.export_trace(path, "speedscope")


def test_a_negative_overhead_is_taken_from_the_others(tmp_path):
    run = run_of(("a", 0, 30), ("b", 30, 100), end=90)
    content = load(wb.export_trace(write_trace(tmp_path / "it.etdump", *run), "speedscope")[0])
    names = [frame["name"] for frame in content["shared"]["frames"]]
    (profile,) = content["profiles"]
    tops = [names[stack[-1]] for stack in profile["samples"]]
    weights = dict(zip(tops, profile["weights"], strict=True))
    assert weights == pytest.approx({"a": 27, "b": 63, "DELEGATE_CALL": 0, "Method::execute": 0})


@given(
    st.lists(st.tuples(st.text(min_size=1, max_size=40), st.integers(0, 10**12)), min_size=1),
    st.sampled_from([1, 2, 4]),
)
def test_any_times_and_names_give_a_file_of_the_same_total(tmp_path_factory, operators, half):
    path = tmp_path_factory.getbasetemp() / "any.etdump"
    named = [(name.encode(errors="ignore").decode(), 0, time) for name, time in operators]
    end = half * (sum(time for _, time in operators) // 2 + 1)
    write_trace(path, *run_of(*named, end=end))
    content = load(wb.export_trace(path, "speedscope")[0])
    assert content["profiles"][0]["endValue"] == pytest.approx(end, rel=1e-9)
