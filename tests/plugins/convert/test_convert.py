"""Traces in other formats: what comes out is what went in, and what cannot be says why."""

import csv
import json
import os
import shutil
import sys
import unicodedata
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest
from etdump_builder import Block, Profile, build_etdump
from hypothesis import given
from hypothesis import strategies as st

import workbench as wb

GOLDEN = sorted((Path(__file__).parents[2] / "data" / "etdump").glob("*.etdump"))
TRACE = next(path for path in GOLDEN if path.stem == "two_methods")
FORMATS = ["csv", "perfetto"]


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


def test_two_traces_of_one_name_are_distinguished(cli, trace):
    other = trace.parent / "other" / trace.name
    other.parent.mkdir()
    shutil.copy(TRACE, other)
    code, out, _ = cli("trace", trace, "--to", "perfetto", "--baseline", other)
    assert code == 0
    content = Path(out.strip()).read_bytes()
    assert b"baseline: it" in content
    assert b"candidate: it" in content


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--to", "json"], "--to: unknown format 'json' -> valid: csv, "),
        (["--to", "perfeto"], "did you mean 'perfetto'?"),
        ([], "--to"),
        (["--to", "csv", "--baseline", "it.etdump"], "--baseline: csv holds one trace"),
        (["--to", "perfetto", "--out", "it.etdump"], "it.etdump: is a trace to read"),
        (["--to", "perfetto", "--out", "./it.etdump"], "is a trace to read"),
        (["--to", "perfetto", "--baseline", "b.etdump", "--out", "b.etdump"], "no such file"),
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
def test_a_bad_trace_is_one_line(cli, trace, to, content):
    bad = trace.with_name("bad.etdump")
    if content is not None:
        bad.write_bytes(trace.read_bytes()[:-100] if content == "cut" else content)
    before = set(trace.parent.iterdir())
    arguments = ["--baseline", bad] if to == "perfetto" else []
    for chosen in [[bad], [trace, *arguments]][: 1 + bool(arguments)]:
        code, out, err = cli("trace", *chosen, "--to", to)
        assert (code, out) == (2 if content is None else 1, "")
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


def test_hostile_names_are_preserved(tmp_path):
    name = '"\\\x00\x1b[31m</script>\U0001f4a3\ufffd' + "x" * 900
    path = write_trace(tmp_path / "it.etdump", *run_of((name, 0, 4), end=9))
    (file,) = wb.export_trace(path, "perfetto")
    assert "\x1b" not in file.read_text()
    assert is_shown_as(name, decode(file)["it"][-1]["name"])


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
@pytest.mark.whole
def test_a_runs_timeline_has_the_first_inferences_of_each_restart(cli, tmp_path, monkeypatch):
    """Whatever the number of inferences; statistics are of all, and `analyze --whole` has them."""
    run_dir = Path(shutil.copytree(wb.sample_run(), tmp_path / "out_net" / "runs" / "linux"))
    monkeypatch.setattr("workbench.report.artifacts.MOST_ROWS", 4500)

    def analyze(*options):
        assert cli("analyze", run_dir, *options)[0] == 0
        (folder,) = run_dir.glob("avx512_on")
        names = ("all_runs_timeline", "ops_stats")
        return [pd.read_csv(next(folder.glob(f"*_{name}.csv"))) for name in names]

    first, stats = analyze()
    whole, whole_stats = analyze("--whole")
    assert 800 < len(first) <= 4500 < len(whole)
    assert stats.equals(whole_stats)
    sessions = wb.open_run(run_dir).record.sessions
    traced = [s for s in sessions if s.experiment == "avx512_on" and s.etdump]
    counts = [sum(len(batch.cpu_ns) for batch in session.batches) for session in traced]
    starts = [sum(counts[:number]) for number in range(len(counts))]
    methods = first[first["name"] == "Method::execute"]
    each = len(methods) // len(traced)
    assert methods["run_index"].tolist() == [start + n for start in starts for n in range(each)]
    kept = whole["run_index"].isin(methods["run_index"])
    assert first.equals(whole[kept].reset_index(drop=True))


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


def refuse(constant):
    raise AssertionError(f"{constant} is no JSON")


def decode(path):
    """The slices of each process by its name; refuses what the Perfetto UI would not read."""
    content = json.loads(path.read_text(), parse_constant=refuse)
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


def test_a_trace_without_a_run_has_its_events(tmp_path):
    (slices,) = draw(tmp_path, [Profile("Method::init", -1, end=5)])
    assert [(s["name"], s["dur"]) for s in slices] == [("Method::init", 5)]


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
