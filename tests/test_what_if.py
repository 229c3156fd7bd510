import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import recorded
from synthetic import NETWORK, synthetic_ledger

import workbench as wb

CATEGORIES = ("Convolution", "GEMM", "Data Movement", "Elementwise", "Other")

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
    """Mean time of ``Method::execute`` in ms."""
    runs = len(ledger[["process", "run"]].drop_duplicates())
    return ledger["duration_ns"].sum() / runs / 1e6


def test_nothing_faster_gives_e2e_on_recorded_runs(sample):
    _, _, ledger = sample
    for by in ("category", "family", "operator", "key", "layer"):
        e2e = wb.predict_what_if(ledger, {}, by=by).iloc[0]
        assert e2e["predicted_ms"] == e2e["measured_ms"]
        assert e2e["predicted_ms"] == pytest.approx(e2e_of(ledger), rel=1e-12)
        assert (e2e["speedup"], e2e["low"], e2e["high"]) == (1, 1, 1)
        assert e2e["low_ms"] < e2e["predicted_ms"] < e2e["high_ms"]


def test_what_was_measured_is_predicted_on_recorded_runs(sample):
    shift, before, after = sample
    shift = shift[shift["candidate_ms"] > 0]
    factors = dict(
        zip(shift["category"], shift["baseline_ms"] / shift["candidate_ms"], strict=True)
    )
    found = wb.predict_what_if(before, factors)
    assert found["predicted_ms"].iloc[0] == pytest.approx(e2e_of(after), rel=1e-9)
    parts = found[1:].set_index("name")["predicted_ms"]
    assert parts[shift["category"]].to_numpy() == pytest.approx(shift["candidate_ms"].to_numpy())


@given(st.dictionaries(st.sampled_from(CATEGORIES), st.floats(0.1, 1000) | st.just(math.inf)))
def test_the_prediction_is_the_sum_of_its_parts(factors):
    ledger = synthetic_ledger(processes=2, runs=3)
    found = wb.predict_what_if(ledger, factors).set_index("name")
    e2e, parts = found.loc["E2E"], found.drop("E2E")
    mean = wb.predict_what_if(ledger, {}).set_index("name")["measured_ms"]
    assert parts["predicted_ms"].sum() == pytest.approx(e2e["predicted_ms"], rel=1e-12)
    for name, row in parts.iterrows():
        assert row["predicted_ms"] == pytest.approx(mean[name] / factors.get(name, 1))
        assert row["speedup"] == factors.get(name, 1)
    if e2e["predicted_ms"]:
        assert e2e["speedup"] == pytest.approx(e2e["measured_ms"] / e2e["predicted_ms"])


def test_the_true_time_lies_within_the_band():
    """E2E with a category twice as fast, in 20 simulated experiments of 5 restarts."""
    true = sum(ms / (2 if category == "GEMM" else 1) for category, _, _, ms in NETWORK)
    # Delegated operators are logged in whole microseconds, rounded down.
    slack = 0.5e-3 * sum(kind == "delegated" for _, kind, _, _ in NETWORK)
    inside = 0
    for seed in range(20):
        ledger = synthetic_ledger(processes=5, runs=4, restart=0.02, seed=seed)
        e2e = wb.predict_what_if(ledger, {"GEMM": 2}).iloc[0]
        inside += e2e["low_ms"] <= true - slack <= e2e["high_ms"]
    assert 17 <= inside <= 20


def test_one_restart_has_no_band(ledger):
    alone = wb.predict_what_if(ledger[ledger["process"] == 0], {"GEMM": 2}).iloc[0]
    assert np.isnan([alone["low"], alone["high"], alone["low_ms"], alone["high_ms"]]).all()
    assert alone["speedup"] > 1


def test_mistakes_are_named(ledger):
    with pytest.raises(Exception, match="unknown category 'Elementwse' -> did you mean 'Elem"):
        wb.predict_what_if(ledger, {"Elementwse": 2})
    for factor in (0, -1, math.nan):
        with pytest.raises(Exception, match="GEMM: a factor must be above 0"):
            wb.predict_what_if(ledger, {"GEMM": factor})
    with pytest.raises(Exception, match="holds no run"):
        wb.predict_what_if(ledger[:0], {})
