"""Comparisons of made runs, whose true ratios are known, and the verdicts on them."""

import math
from dataclasses import replace

import numpy as np
import pytest
from recorded import recorded
from run_folder import compare_known, open_made_run
from synthetic import synthetic_latencies

import workbench as wb

TWICE = {"off": 6.0, "on": 3.0}


def latency_of(folder, latencies_ms, **options):
    """The one row of the E2E comparison of a made run."""
    (row,) = open_made_run(folder, latencies_ms, traced=1, **options).compare().latency.iloc
    return row


def test_a_known_speedup_is_found(tmp_path):
    """Its traces take as long as the network, whatever the latency: they are left out."""
    run = open_made_run(tmp_path, TWICE, control=True)
    (row,) = run.compare().latency.iloc
    assert (row["level"], row["name"], row["outcome"]) == ("e2e", "on", "faster")
    assert row["low"] < 2.0 < row["high"]
    assert row["speedup"] == pytest.approx(2.0, rel=0.02)
    assert row["baseline_ms"] == pytest.approx(6.0, rel=0.05)
    assert row["speedup"] == pytest.approx(row["baseline_ms"] / row["candidate_ms"])
    described = run.statistics.set_index("experiment")["latency"]
    assert described[["off", "on"]].tolist() == row[["baseline_ms", "candidate_ms"]].tolist()
    assert row["restarts"] == 5
    assert 0 < row["floor"] < 0.05
    assert run.compare("on", "off").latency["outcome"].tolist() == ["slower"]
    same = run.compare("off", "off").latency.iloc[0]
    assert (same["speedup"], same["low"], same["high"]) == (1.0, 1.0, 1.0)
    assert run.compare("off", "control").latency["outcome"].tolist() == ["unchanged"]


def test_a_noisy_control_takes_a_small_difference_back(tmp_path):
    times = {"off": 6.0, "on": 5.7, "control": 6.0}
    quiet = synthetic_latencies(times, restart=0.001)
    noisy = quiet.copy()
    again = noisy["experiment"] == "control"
    noisy.loc[again, "cpu_ns"] = (noisy.loc[again, "cpu_ns"] * 1.08).astype("int64")
    rows = [
        latency_of(tmp_path / str(place), {"off": 6.0, "on": 5.7}, control=True, latencies=frame)
        for place, frame in enumerate((quiet, noisy))
    ]
    assert [row["outcome"] for row in rows] == ["faster", "inconclusive"]
    assert rows[1]["floor"] > 0.075


def test_drift_that_both_share_cancels(tmp_path):
    row = latency_of(tmp_path, TWICE, drift=0.5, noise=0.001, outliers=0)
    assert row["speedup"] == pytest.approx(2.0, rel=0.03)


def test_the_clock_is_cpu_time_for_one_thread_and_wall_time_for_several(tmp_path):
    still = synthetic_latencies(TWICE).assign(wall_ns=6_000_000)
    assert latency_of(tmp_path / "1", TWICE, latencies=still)["outcome"] == "faster"
    four = {name: {4: ms} for name, ms in TWICE.items()}
    assert latency_of(tmp_path / "4", four, latencies=still.assign(threads=4))["speedup"] == 1.0


def test_latencies_that_cannot_be_compared(tmp_path):
    latencies = synthetic_latencies(TWICE)
    moved = latencies["process"] + 10 * (latencies["experiment"] == "on")
    stuck = latencies["cpu_ns"].where((latencies["experiment"] == "off") | moved.gt(10), 0)
    with pytest.raises(wb.WorkbenchError, match="no restart in common"):
        latency_of(tmp_path / "moved", TWICE, latencies=latencies.assign(process=moved))
    with pytest.raises(wb.WorkbenchError, match="did not tick"):
        latency_of(tmp_path / "stuck", TWICE, latencies=latencies.assign(cpu_ns=stuck))


def test_without_a_control_more_is_needed(tmp_path):
    alone, held = (
        latency_of(
            tmp_path / str(control), {"off": 6.06, "on": 6.0}, control=control, restart=0,
            noise=0.001,
        )
        for control in (False, True)
    )  # fmt: skip
    assert (alone["floor"], alone["outcome"]) == (0, "unchanged")
    assert 0 < held["floor"] < 0.01 and held["detectable"] < alone["detectable"]


def test_separate_runs_need_more_than_their_restarts_show(tmp_path):
    """Two runs of one program differ by more than the restarts of either."""
    runs = [
        open_made_run(
            tmp_path / name, {"a": ms}, traced=1, restart=1e-4, noise=1e-4, outliers=0, drift=0
        )
        for name, ms in (("before", 6.0), ("after", 6.0 * 1.03))
    ]
    (row,) = wb.compare(*(run["a"] for run in runs)).latency.iloc
    assert row["outcome"] == "inconclusive" and row["detectable"] > 0.04


# Parts of an inference.


def test_categories_show_their_own_speedups_and_floors(tmp_path):
    factors = {
        "on": {"Convolution": 1 / 1.08, "GEMM": 2, "Data Movement": 1 / 4},
        "control": {"Convolution": 1 / 0.9},
    }
    options = {"factors": factors, "processes": 3}
    names = {"off": None, "on": None}
    bare, controlled = (
        open_made_run(tmp_path / str(control), names, control=control, **options)
        for control in (False, True)
    )
    alone = bare.compare().categories.set_index("name")
    held = controlled.compare().categories.set_index("name")
    assert list(alone.index) == ["Convolution", "GEMM", "Data Movement", "Elementwise", "Other"]
    expected = ["faster", "slower", "faster", "unchanged", "below the clock"]
    assert list(alone["outcome"]) == expected
    assert alone.loc["Data Movement", "speedup"] == pytest.approx(4, rel=0.02)
    mean = bare["off"].categories.set_index("category")["mean_ms"]
    assert alone["baseline_ms"].to_numpy() == pytest.approx(mean[alone.index].to_numpy(), rel=0.01)
    assert held.loc["Convolution", "outcome"] == "inconclusive"
    assert held["floor"].nunique() == 1 and held.loc["Other", "floor"] > 0.1, "one noise for all"


def test_operators_of_separate_runs_are_compared_without_pairing_restarts(tmp_path):
    factors = {"on": {"Convolution": 1 / 4}}
    runs = [
        open_made_run(tmp_path / str(n), {"on": None}, factors=side, processes=n, seed=n)
        for n, side in ((3, {}), (4, factors), (1, factors))
    ]
    table = wb.compare(*(run["on"] for run in runs[:2])).operators
    assert list(table["restarts"]) == [3] * len(table)
    first = table.iloc[0]
    assert (first["category"], first["outcome"]) == ("Convolution", "faster")
    assert first["low"] < 4 < first["high"]
    single = wb.compare(runs[0]["on"], runs[2]["on"]).categories
    assert single["low"].isna().all()
    assert set(single["outcome"]) == {"inconclusive", "below the clock"}


def test_operators_are_paired_by_key_whatever_kernel_is_logged():
    ab = recorded("toy_cnn").compare()
    keys = [set(side.ledger["key"]) for side in (ab.baseline, ab.candidate)]
    table = ab.operators.set_index("key")
    assert set(table.index) == keys[0] | keys[1]
    renamed = table[table["name"] != table["candidate_name"]].dropna(subset="candidate_name")
    assert len(renamed) and renamed["candidate_name"].str.contains("PF32|PQS8|PF16|QP8").any()


def test_an_operator_of_one_side_only_is_inconclusive(tmp_path):
    factors = {"on": {"Data Movement": 0}}
    run = open_made_run(tmp_path, {"off": None, "on": None}, factors=factors, processes=3)
    for sides, missing in ((("off", "on"), "candidate"), (("on", "off"), "baseline")):
        row = run.compare(*sides).operators.set_index("name").loc["Copy (NC, X32)"]
        assert row["outcome"] == "inconclusive"
        assert np.isnan([row[f"{missing}_ms"], row["speedup"], row["low"]]).all()
        assert {row["baseline_ms"] > 0, row["candidate_ms"] > 0} == {True, False}


@pytest.mark.whole
@pytest.mark.parametrize(
    ("clock_ns", "us"),
    [(1000, 3), (1000, 100), (1, 0.3), (1, 3), (1, 100)],
)  # fmt: skip
def test_intervals_cover_however_short_the_operators(clock_ns, us, tmp_path):
    """Many short operators are no better than one: rounding moves all in the same direction."""
    least_covered = (0.9, 0.85, 0.75)  # of 240 operators, 60 layers and 4 categories
    for table, least in zip(
        compare_known(tmp_path, us, clock_ns, seed=1), least_covered, strict=True
    ):
        below = table["outcome"] == "below the clock"
        assert table.loc[below, ["speedup", "low", "high", "q"]].isna().all(axis=None)
        assert below.any() == (clock_ns == 1000 and us < 50)
        covered = table["low"].le(table["true"]) & table["high"].ge(table["true"])
        assert (covered | below).mean() >= least
        assert clock_ns == 1000 or len(table) < 100 or covered.mean() <= 0.995


@pytest.mark.whole
def test_what_rounding_hides_has_no_speedup(tmp_path):
    def compare(folder, before, after):
        factors = {"off": {"Elementwise": before / 48}, "on": {"Elementwise": after / 48}}
        run = open_made_run(
            tmp_path / folder, {"off": None, "on": None}, factors=factors, traced_noise=0
        )
        return run.compare()

    row = compare("short", 4.5, 3.5).operators.set_index("name").loc["Multiply (ND)"]
    assert row["outcome"] == "below the clock"
    assert row["baseline_ms"] == pytest.approx(0.004, rel=0.01)
    row = compare("long", 400.5, 300.5).operators.set_index("name").loc["Multiply (ND)"]
    assert row["outcome"] == "faster" and row["low"] < 400 / 301 < 401 / 300 < row["high"]
    kinds = compare("zero", 4.5, 0.5).kinds.set_index("name")["outcome"]
    assert kinds["delegate_overhead"] == "below the clock" != kinds["portable"]


# Verdicts.


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The verdict on a run that is several times as fast, with its bottleneck."""
    factors = {"on": {"Convolution": 1 / 40, "GEMM": 1 / 40}}
    folder, times = tmp_path_factory.mktemp("verdict"), dict.fromkeys(TWICE)
    return open_made_run(folder, times, control=True, factors=factors).compare().verdict


@pytest.fixture
def verdict(measured):
    """Makes that verdict with another outcome, without its bottleneck."""

    def make(outcome, speedup, low, high, floor=0.013, **more):
        changes = {"bottleneck": "", "detectable": math.nan, "separate": "", **more}
        return replace(
            measured, outcome=outcome, speedup=speedup, low=low, high=high, floor=floor, **changes
        ).text

    return make


def test_a_verdict_from_measurements(measured):
    start, _, bottleneck = measured.text.partition(", bottleneck ")
    assert start.startswith("net: ") and "x faster with avx512 (95 % interval 7." in start
    assert bottleneck == "Convolution 63 % -> Data Movement 38 %"


def test_an_a_a_run_names_no_speedup(verdict):
    for outcome in ("unchanged", "inconclusive"):
        line = verdict(outcome, 1.004, 0.996, 1.012)
        assert outcome in line
        assert "latency -1.2 % to +0.4 %" in line
        assert "faster" not in line and "x " not in line


def test_an_inconclusive_verdict_tells_why(verdict):
    assert "equal experiments differ by 1.3 %" in verdict("inconclusive", 1.1, 0.9, 1.3)
    line = verdict("inconclusive", 1.1, math.nan, math.nan)
    assert "no interval: needs two or more process restarts" in line
    line = verdict("inconclusive", 1.5, 0.5, 4.0, floor=2.9)
    assert "too busy to compare (two equal experiments differed by up to 290 %)" in line


@pytest.mark.parametrize(
    ("outcome", "low", "high", "text"),
    [
        ("slower", 0.48, 0.52, "2.00x slower with avx512 (95 % interval 1.92-2.08)"),
        ("faster", 1.5, 2.5, "1.94x faster with avx512 (95 % interval 1.50-2.50)"),
        ("faster", 10, 30, "17.3x faster with avx512 (95 % interval 10.0-30.0)"),
    ],
)
def test_factors_are_above_one_and_have_three_figures(verdict, outcome, low, high, text):
    assert verdict(outcome, math.sqrt(low * high), low, high) == f"net: {text}"


def test_outputs_that_differ_come_before_any_speedup(verdict):
    times = {"candidate_ms": 3.0, "baseline_ms": 6.0}
    line = verdict("faster", 2.0, 1.9, 2.1, wrong="outputs differ (output 1)", **times)
    expected = "no speed-up is claimed; ran with avx512 in 3.00 ms against 6.00 ms"
    assert line == f"net: outputs differ (output 1): {expected}"
