import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import recorded
from synthetic import NETWORK, synthetic_ledger

import workbench as wb
from workbench.analysis.operators import CATEGORIES, summarize_categories
from workbench.analysis.what_if import bottleneck_shift, predict_what_if, rank_bottlenecks
from workbench.errors import ComparisonError, UsageError
from workbench.frames import BOTTLENECKS, WHAT_IF, check

MODELS = ("mobilenet_v3_small", "vit_tiny", "unet_small")


@pytest.fixture(scope="module")
def ledger():
    return synthetic_ledger(processes=4)


@pytest.fixture(scope="module", params=MODELS)
def sample(request):
    """The candidate of a recorded run, and the shift to it."""
    ab = recorded(request.param).compare()
    return ab.shift, ab.baseline.ledger, ab.candidate.ledger


def e2e_of(ledger):
    """Mean time of ``Method::execute`` in ms, from whole nanoseconds."""
    runs = len(ledger[["process", "run"]].drop_duplicates())
    return int(ledger["duration_ns"].sum()) / runs / 1e6


def test_nothing_faster_gives_e2e_on_recorded_runs(sample):
    _, _, ledger = sample
    for by in ("category", "family", "operator", "key", "layer"):
        e2e = check(predict_what_if(ledger, {}, by=by), WHAT_IF).iloc[0]
        assert e2e["predicted_ms"] == e2e["measured_ms"]
        assert e2e["predicted_ms"] == pytest.approx(e2e_of(ledger), rel=1e-12)
        assert (e2e["speedup"], e2e["low"], e2e["high"]) == (1, 1, 1)
        assert e2e["low_ms"] < e2e["predicted_ms"] < e2e["high_ms"]


def test_the_waterfall_sums_to_the_difference_on_recorded_runs(sample):
    shift, before, after = sample
    difference = e2e_of(after) - e2e_of(before)
    assert shift["delta_ms"].sum() == pytest.approx(difference, rel=1e-9)
    assert shift["contribution"].sum() == pytest.approx(1, rel=1e-9)


def test_what_was_measured_is_predicted_on_recorded_runs(sample):
    shift, before, after = sample
    shift = shift[shift["candidate_ms"] > 0]
    factors = dict(
        zip(shift["category"], shift["baseline_ms"] / shift["candidate_ms"], strict=True)
    )
    found = predict_what_if(before, factors)
    assert found["predicted_ms"].iloc[0] == pytest.approx(e2e_of(after), rel=1e-9)
    parts = found[1:].set_index("name")["predicted_ms"]
    assert parts[shift["category"]].to_numpy() == pytest.approx(shift["candidate_ms"].to_numpy())


@given(st.dictionaries(st.sampled_from(CATEGORIES), st.floats(0.1, 1000) | st.just(math.inf)))
def test_the_prediction_is_the_sum_of_its_parts(factors):
    ledger = synthetic_ledger(processes=2, runs=3)
    found = predict_what_if(ledger, factors).set_index("name")
    e2e, parts = found.loc["E2E"], found.drop("E2E")
    mean = summarize_categories(ledger).set_index("category")["mean_ms"]
    assert parts["predicted_ms"].sum() == pytest.approx(e2e["predicted_ms"], rel=1e-12)
    for name, row in parts.iterrows():
        assert row["predicted_ms"] == pytest.approx(mean[name] / factors.get(name, 1))
        assert row["speedup"] == factors.get(name, 1)
    if e2e["predicted_ms"]:
        assert e2e["speedup"] == pytest.approx(e2e["measured_ms"] / e2e["predicted_ms"])


def test_the_true_time_lies_within_the_band():
    """E2E with a category twice as fast, in 40 simulated experiments of 5 restarts."""
    true = sum(ms / (2 if category == "GEMM" else 1) for category, _, _, ms in NETWORK)
    # Delegated operators are logged in whole microseconds, rounded down.
    slack = 0.5e-3 * sum(kind == "delegated" for _, kind, _, _ in NETWORK)
    inside = 0
    for seed in range(40):
        ledger = synthetic_ledger(processes=5, runs=4, restart=0.02, seed=seed)
        e2e = predict_what_if(ledger, {"GEMM": 2}).iloc[0]
        inside += e2e["low_ms"] <= true - slack <= e2e["high_ms"]
    assert 34 <= inside <= 40


def test_everything_for_free_takes_no_time(ledger):
    e2e = predict_what_if(ledger, dict.fromkeys(CATEGORIES, math.inf)).iloc[0]
    assert e2e["predicted_ms"] == 0
    assert e2e["speedup"] == math.inf


def test_one_restart_leaves_its_runs_and_one_run_no_band(ledger):
    one = ledger[ledger["process"] == 0]
    e2e = predict_what_if(one, {"GEMM": 2}).iloc[0]
    assert e2e["low"] < e2e["speedup"] < e2e["high"]
    alone = predict_what_if(one[one["run"] == 0], {"GEMM": 2}).iloc[0]
    assert np.isnan([alone["low"], alone["high"], alone["low_ms"], alone["high_ms"]]).all()
    assert alone["speedup"] > 1


def test_mistakes_are_named(ledger):
    with pytest.raises(
        UsageError, match="unknown category 'Elementwse' -> did you mean 'Elementwise'"
    ):
        predict_what_if(ledger, {"Elementwse": 2})
    for factor in (0, -1, math.nan):
        with pytest.raises(UsageError, match="GEMM: a factor must be above 0"):
            predict_what_if(ledger, {"GEMM": factor})
    with pytest.raises(ComparisonError, match="holds no run"):
        predict_what_if(ledger[:0], {})


def test_bottlenecks_come_with_their_ceiling(ledger):
    table = check(rank_bottlenecks(ledger, factor=4), BOTTLENECKS)
    assert table["name"].iloc[0] == "Convolution"
    assert table["mean_ms"].is_monotonic_decreasing
    assert table["share"].sum() == pytest.approx(1)
    e2e = e2e_of(ledger)
    assert (table["free_ms"] + table["mean_ms"]).to_numpy() == pytest.approx(e2e)
    assert table["free_speedup"].to_numpy() == pytest.approx(1 / (1 - table["share"].to_numpy()))
    amdahl = 1 / (1 - table["share"] * (1 - 1 / 4))
    assert table["speedup"].to_numpy() == pytest.approx(amdahl.to_numpy())
    assert (table["low"] <= table["speedup"]).all() and (table["speedup"] <= table["high"]).all()


def test_the_published_case_has_data_movement_as_its_next_bottleneck():
    published = pd.read_csv(wb.sample_file("squeezesam.csv"))
    off, on = (published[published["experiment"] == f"FP16, SME2 {s}"] for s in ("off", "on"))
    shift = bottleneck_shift(off, on).set_index("category")
    assert shift["rank_before"].idxmin() == "Convolution"
    table = rank_bottlenecks(on)
    first = table.iloc[0]
    assert first["name"] == "Data Movement"
    assert first["share"] == pytest.approx(0.40, abs=0.005)
    assert first["free_ms"] == pytest.approx(298.2 - 119.1)
    assert np.isnan(first["free_low"])
