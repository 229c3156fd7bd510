"""Robust statistics, intervals of speed-ups, and undisturbed runs."""

import math
from statistics import stdev

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import stdtrit
from simulate import bootstrap_interval, simulate_operators, simulate_ratios
from synthetic import synthetic_latencies

from workbench.analysis.compare import adjust_for_many
from workbench.analysis.speedup import speedup_of_pairs, speedup_of_runs
from workbench.analysis.statistics import (
    STOLEN_LIMIT,
    describe,
    describe_latencies,
    find_undisturbed_runs,
    midmean,
)
from workbench.errors import ComparisonError
from workbench.frames import STATISTICS

times = st.lists(st.floats(1e-3, 1e4), min_size=1, max_size=60)


def test_statistics_of_a_known_sample():
    values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 100.0]
    found = describe(values)
    assert list(found) == STATISTICS.names
    assert found["n"] == 10
    assert found["mean"] == 14.5
    assert found["median"] == found["p50"] == 5.5
    assert found["trimmed_mean"] == 5.5
    assert found["std"] == pytest.approx(stdev(values))
    assert found["cv"] == pytest.approx(stdev(values) / 14.5)
    assert (found["min"], found["max"]) == (1.0, 100.0)
    assert found["p90"] == pytest.approx(18.1)
    assert found["outliers"] == 1
    assert found["low"] < 5.5 < found["high"]


@settings(deadline=None)
@given(times)
def test_statistics_keep_their_order(values):
    found = describe(values)
    order = [found[name] for name in ("min", "p50", "p90", "p95", "p99", "max")]
    assert order == sorted(order)
    assert found["min"] <= found["trimmed_mean"] * (1 + 1e-9)
    assert found["trimmed_mean"] <= found["max"] * (1 + 1e-9)
    if len(values) > 1:
        assert found["min"] <= found["low"] <= found["high"] <= found["max"]


def test_one_time_has_no_spread():
    found = describe([2.0])
    assert found["median"] == 2.0
    assert all(math.isnan(found[name]) for name in ("std", "cv", "low", "high"))


def test_no_times():
    with pytest.raises(ComparisonError, match="no times"):
        describe([])


def test_blocks_widen_the_interval_where_neighbours_are_alike():
    rng = np.random.default_rng(0)
    blocks = np.repeat(np.arange(12), 20)
    values = 5 + rng.normal(0, 0.1, 12)[blocks] + rng.normal(0, 0.01, 240)
    naive, honest = describe(values), describe(values, blocks)
    assert honest["high"] - honest["low"] > 2 * (naive["high"] - naive["low"])


def test_the_same_seed_gives_the_same_interval():
    values = np.random.default_rng(0).lognormal(size=50)
    assert describe(values, seed=3) == describe(values, seed=3)
    assert describe(values, seed=3) != describe(values, seed=4)


def test_latencies_are_described_by_experiment_with_the_clock_of_their_threads():
    one = synthetic_latencies({"B": 4.0, "A": 2.0})
    four = synthetic_latencies({"B": 1.5}, threads=4)
    traced = synthetic_latencies({"B": 40.0}, traced=True)
    found = describe_latencies(pd.concat([one, four, traced]))
    assert list(found["experiment"]) == ["B", "A", "B"]
    assert list(found["clock"]) == ["cpu_ns", "cpu_ns", "wall_ns"]
    assert found["median"].to_numpy() == pytest.approx([4.0, 2.0, 1.5], rel=0.05)


@settings(deadline=None)
@given(st.lists(st.floats(-100, 100), min_size=4, max_size=40), st.floats(1e3, 1e9))
def test_midmean_ignores_a_spoilt_value(values, spoilt):
    assert min(values) - 1e-9 <= midmean(np.array([*values, spoilt])) <= max(values) + 1e-9


def test_midmean_of_few_values():
    assert midmean(np.array([3.0])) == 3.0
    assert midmean(np.array([3.0, 4.0])) == 3.5
    assert midmean(np.array([3.0, 4.0, 99.0])) == 4.0
    assert midmean(np.array([0.0, 3.0, 4.0, 99.0])) == 3.5
    assert midmean(np.array([[0.0, 1.0], [2.0, 5.0]]), axis=1) == pytest.approx([0.5, 3.5])


@settings(deadline=None)
@given(st.floats(0.2, 5.0), st.integers(2, 6), st.integers(2, 9))
def test_a_constant_ratio_is_found_exactly(ratio, restarts, rounds):
    candidate = [np.linspace(1, 2, rounds) * (p + 1) for p in range(restarts)]
    found = speedup_of_pairs([ratio * times for times in candidate], candidate)
    for end in (found.value, found.low, found.high):
        assert end == pytest.approx([ratio], rel=1e-9)


def test_swapping_the_sides_inverts_the_interval():
    rng = np.random.default_rng(0)
    one, other = ([rng.lognormal(size=8) for _ in range(4)] for _ in range(2))
    there, back = speedup_of_pairs(one, other), speedup_of_pairs(other, one)
    assert there.value == pytest.approx(1 / back.value)
    assert there.low == pytest.approx(1 / back.high)


def test_one_restart_leaves_the_bootstrap_over_its_rounds():
    rng = np.random.default_rng(0)
    shared = rng.lognormal(0, 0.2, 12)
    found = speedup_of_pairs([2 * shared * rng.lognormal(0, 0.01, 12)], [shared])
    assert found.low < 2 < found.high
    assert found.high / found.low < 1.05


def test_one_round_allows_no_interval():
    found = speedup_of_pairs([np.array([2.0])], [np.array([1.0])])
    assert found.value == 2.0
    assert np.isnan(found.low) and np.isnan(found.high)


def test_a_typical_time_of_zero_has_no_ratio():
    zero, some = np.zeros((5, 1)), np.ones((5, 1))
    assert np.isnan(speedup_of_runs([zero, zero], [some, some]).value)


def test_the_clock_limits_what_repetition_can_show():
    same = [np.full((9, 1), 3.0)] * 4
    found = speedup_of_runs(same, same, resolution=np.array([0.1]))
    assert found.high == pytest.approx(np.exp(0.196), rel=1e-4)
    assert speedup_of_runs(same, same).high == 1.0


# Coverage by simulation; `tests/benchmarks/intervals.py` prints more of it.


@pytest.mark.slow
@pytest.mark.parametrize("restart", [0, 0.003, 0.01, 0.03])
@pytest.mark.parametrize("restarts", [3, 5, 8])
def test_intervals_cover_the_truth_as_often_as_they_say(restarts, restart):
    rng = np.random.default_rng(7)
    ratios = simulate_ratios(rng, 4000, restarts, 8, restart)
    # One quantity per repetition: restarts x (rounds, repetitions).
    sides = np.exp(ratios).transpose(1, 2, 0)
    found = speedup_of_pairs(list(sides), list(np.ones_like(sides)))
    assert 0.93 <= np.mean((found.low <= 1) & (found.high >= 1)) <= 0.97


@pytest.mark.slow
def test_a_bootstrap_over_restarts_would_not():
    rng = np.random.default_rng(7)
    covered = {}
    for restart in (0, 0.03):
        ends = [bootstrap_interval(rng, r) for r in simulate_ratios(rng, 500, 3, 8, restart)]
        covered[restart] = np.mean([low <= 0 <= high for low, high in ends])
    assert covered[0] > 0.97
    assert covered[0.03] < 0.88


@pytest.mark.slow
def test_more_restarts_narrow_the_interval_more_than_more_rounds():
    rng = np.random.default_rng(7)
    width = {}
    for restarts, rounds in ((3, 16), (6, 8)):
        centres = midmean(simulate_ratios(rng, 2000, restarts, rounds, 0.003), axis=-1)
        error = centres.std(axis=-1, ddof=1) / np.sqrt(restarts)
        width[restarts] = np.median(stdtrit(restarts - 1, 0.975) * error)
    assert width[6] < 0.7 * width[3]


@pytest.mark.slow
@pytest.mark.parametrize(("us", "most"), [(3, 1.0), (30, 1.0), (1000, 0.97)])
def test_operators_are_covered_however_short(us, most):
    """Logged in whole microseconds, which no repetition makes finer."""
    rng = np.random.default_rng(7)
    times = us * rng.uniform(0.8, 1.2, 1000)
    sides = [
        [
            simulate_operators(rng, true * np.exp(rng.normal(0, 0.01, 1000)), 1, 10, 0.0)[0]
            for _ in range(5)
        ]
        for true in (times, times / 1.1)
    ]
    found = speedup_of_runs(*sides, resolution=np.hypot(1, 1.1) / np.sqrt(12) / times)
    assert 0.93 <= np.mean((found.low <= 1.1) & (found.high >= 1.1)) <= most


@pytest.mark.slow
@pytest.mark.parametrize("changed", [0, 5, 40])
def test_few_discoveries_among_many_operators_are_false(changed):
    rng = np.random.default_rng(7)
    false = []
    for _ in range(100):
        before = rng.lognormal(4, 1, 100)
        factor = np.where(np.arange(100) < changed, np.exp(rng.uniform(0.02, 0.5, 100)), 1.0)
        sides = [simulate_operators(rng, true, 5, 10, 0.005) for true in (before, before / factor)]
        found = speedup_of_runs(*sides, resolution=np.hypot(1, factor) / np.sqrt(12) / before)
        told = adjust_for_many(found.p) < 0.05
        false.append(told[changed:].sum() / max(1, told.sum()))
    assert np.mean(false) <= 0.05 + 2 * np.std(false) / np.sqrt(100)
    assert not changed or np.mean(told[:changed]) > 0.5


run_times = st.lists(
    st.tuples(st.integers(1, 10**9), st.integers(0, 10**9)), min_size=1, max_size=40
)


def test_an_interrupted_run_is_left_out():
    wall, cpu = np.array([100, 100, 300, 100]), np.array([99, 100, 100, 99])
    assert find_undisturbed_runs(wall, cpu, 1).tolist() == [True, True, False, True]


def test_with_several_threads_cpu_time_does_not_tell():
    assert find_undisturbed_runs(np.array([100, 300]), np.array([200, 100]), 2).all()


@given(run_times)
def test_half_is_always_kept_and_none_louder_than_one_left_out(pairs):
    wall, cpu = map(np.array, zip(*pairs, strict=True))
    keep = find_undisturbed_runs(wall, cpu, 1)
    stolen = 1 - cpu / wall
    assert keep.sum() >= len(pairs) / 2
    assert (stolen[~keep] > STOLEN_LIMIT).all()
    if keep.any() and (~keep).any():
        assert stolen[keep].max() <= stolen[~keep].min() + 1e-12
