"""The learning path's CSV files."""

import csv
import os
import sys
import unicodedata
from pathlib import Path

import pandas as pd
import pytest
from etdump_builder import Block, Profile, build_etdump
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.analysis.ledger import build_ledger
from workbench.trace.etdump import read_etdump
from workbench.trace.writers.csv_tables import STATISTICS, TIMELINE, write_csvs

TRACE = Path(__file__).parent / "data" / "etdump" / "two_methods.etdump"


@pytest.fixture
def files(tmp_path):
    """The three files of the two-method trace."""
    return write_csvs(read_etdump(TRACE), tmp_path / TRACE.name, delegate_backend="XnnpackBackend")


def test_files_lie_beside_the_trace(files, tmp_path):
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
    assert row["count"] == 3
    assert row["delegate_backend"] == "portable"
    expected = {
        "total_ms": elu.sum(),
        "avg_ms": elu.mean(),
        "median_ms": elu.median(),
        "p90_ms": elu.quantile(0.9),
        "min_ms": elu.min(),
        "max_ms": elu.max(),
    }
    assert row[list(expected)].to_dict() == pytest.approx(expected)
    assert table.loc["Transpose (ND, X32)", "count"] == 6
    assert table["total_ms"].is_monotonic_decreasing


def test_statistics_agree_with_the_ledger(files):
    table = pd.read_csv(files[2])
    ledger = build_ledger(read_etdump(TRACE))
    own = ledger[ledger["kind"].isin(["delegated", "portable"])]["duration_ns"].sum()
    e2e = ledger["duration_ns"].sum()
    assert table["total_ms"].sum() == pytest.approx(own / 1e6)
    assert table["pct_total"].sum() == pytest.approx(100 * own / e2e, abs=1e-4)


@pytest.mark.skipif(sys.platform == "darwin", reason="its file names are text")
def test_a_file_name_that_is_no_text(tmp_path):
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


@settings(deadline=None)
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
    plain = "".join(" " if unicodedata.category(c) in controls else c for c in name).lstrip()
    assert rows[0]["name"] in (plain, "'" + plain)
    for row in rows:
        for column in ("model_id", "name", "type", "delegate_backend", "block"):
            assert not row.get(column, "").startswith(("=", "+", "-", "@", "\t", "\r"))
