import pytest
from synthetic import NETWORK, synthetic_latencies, synthetic_ledger

from workbench.analysis.operators import load_scheme
from workbench.frames import LATENCIES, LEDGER, check


def test_the_same_seed_gives_the_same_frames():
    assert synthetic_latencies({"a": 1.0}, seed=3).equals(synthetic_latencies({"a": 1.0}, seed=3))
    assert not synthetic_latencies({"a": 1.0}).equals(synthetic_latencies({"a": 1.0}, seed=1))
    assert synthetic_ledger(seed=3).equals(synthetic_ledger(seed=3))


def test_latencies_are_interleaved_there_and_back():
    frame = check(synthetic_latencies({"a": 1.0, "b": 2.0}, processes=2, rounds=3), LATENCIES)
    assert len(frame) == 2 * 3 * 4 * 3
    first = frame[(frame["process"] == 0) & (frame["round"] == 0)]
    assert list(first["experiment"][::3]) == ["a", "b", "b", "a"]
    assert frame.groupby("experiment")["cpu_ns"].median()["b"] == pytest.approx(2e6, rel=0.05)


def test_the_ledger_obeys_its_factors():
    ledger = check(synthetic_ledger({"GEMM": 2.0}, noise=0, restart=0), LEDGER)
    run = ledger[(ledger["process"] == 0) & (ledger["run"] == 0)]
    wanted = [ms / (2 if category == "GEMM" else 1) for category, _, _, ms in NETWORK]
    assert run["duration_ns"].to_numpy() / 1e6 == pytest.approx(wanted, abs=1e-3)


def test_the_network_names_the_categories_that_the_rules_give():
    for category, kind, operator, _ in NETWORK:
        assert load_scheme().place(operator, kind)[0] == category
