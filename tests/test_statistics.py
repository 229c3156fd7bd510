"""Robust statistics, intervals of speed-ups, and undisturbed runs."""

import math
from dataclasses import replace
from statistics import stdev

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from latencies import compare_latencies
from program_builder import Delegate, Kernel, Node, changed, measured
from scipy.special import polygamma, stdtrit
from simulate import simulate_operators, simulate_restarts
from synthetic import synthetic_latencies

from workbench.analysis.comparison_tables import compare_restarts, tabulate_comparison
from workbench.analysis.findings.gains import time_spent
from workbench.analysis.operator_times import subtract_others
from workbench.analysis.speedup import (
    MARGIN,
    Speedup,
    adjust_for_many,
    judge,
    pool_control,
    speedup_of_parts,
    speedup_of_restarts,
    strengthen,
)
from workbench.analysis.statistics import (
    PREEMPTED_LIMIT,
    find_undisturbed_runs,
    half_width,
    midmean,
    moderate_variances,
    student_quantile,
    student_tail,
    summarize_times,
    undisturbed_times,
)
from workbench.errors import WorkbenchError
from workbench.frames import STATISTICS
from workbench.report.gate import judge_latencies
from workbench.wording import MISSING, format_range

times = st.lists(st.floats(1e-3, 1e4), min_size=1, max_size=60)


def test_students_distribution_at_its_limits():
    assert student_tail([4.0, 4.0, np.nan], [np.inf, np.nan, 1.0]) == pytest.approx(
        [0.0, np.nan, np.nan], nan_ok=True
    )
    assert np.isnan(student_quantile([0.0, np.nan])).all()
    assert student_quantile(4) == pytest.approx(2.7764451051977987)
    assert student_tail(4, 2.7764451051977987) == pytest.approx(0.025)
    assert student_quantile([[1.0, 2.0], [4.0, 1.0]]).shape == (2, 2)


def test_statistics_of_a_known_sample():
    values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 100.0]
    found = summarize_times(values)
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
    assert (found["latency"], found["restarts"]) == (5.5, 1)


@given(times)
def test_statistics_keep_their_order(values):
    found = summarize_times(values)
    order = [found[name] for name in ("min", "p50", "p90", "p95", "p99", "max")]
    assert order == sorted(order)
    assert found["min"] <= found["trimmed_mean"] * (1 + 1e-9)
    assert found["trimmed_mean"] <= found["max"] * (1 + 1e-9)
    assert found["min"] <= found["latency"] * (1 + 1e-9)
    assert found["latency"] <= found["max"] * (1 + 1e-9)


def test_the_latency_is_the_mean_of_the_restarts_midmeans():
    found = summarize_times([1.0, 2.0, 3.0, 90.0, 4.0, 5.0, 6.0, 7.0], [0] * 4 + [1] * 4)
    assert (found["latency"], found["restarts"]) == (4.0, 2)
    assert (found["low"], found["high"]) == pytest.approx((0.0, 4 + 12.7062 * 1.5))


def test_no_times():
    with pytest.raises(WorkbenchError, match="no times"):
        summarize_times([])


@given(st.lists(st.floats(-100, 100), min_size=4, max_size=40), st.floats(1e3, 1e9))
def test_midmean_ignores_a_spoilt_value(values, spoilt):
    assert min(values) - 1e-9 <= midmean(np.array([*values, spoilt])) <= max(values) + 1e-9


restarts = st.lists(st.floats(0.5, 2.0), min_size=2, max_size=9).map(np.array)


@given(st.floats(0.2, 5.0), restarts)
def test_a_constant_ratio_is_found_exactly(ratio, candidate):
    found = speedup_of_restarts(ratio * candidate, candidate)
    for end in (found.value, found.low, found.high):
        assert end == pytest.approx([ratio], rel=1e-9)


@given(restarts)
def test_a_speedup_is_the_ratio_of_the_latencies(times):
    other = times[::-1] ** 2
    for separate in (True, False):
        found = speedup_of_restarts(times, other, separate=separate)
        assert found.value == pytest.approx([times.mean() / other.mean()])
        back = speedup_of_restarts(other, times, separate=separate)
        assert found.low == pytest.approx(1 / back.high)


def test_what_the_restarts_share_cancels_only_in_pairs():
    rng = np.random.default_rng(0)
    shared = rng.lognormal(0, 0.2, 6)
    sides = [shared * rng.lognormal(0, 0.002, 6) for _ in range(2)]
    paired, apart = (speedup_of_restarts(*sides, separate=s) for s in (False, True))
    assert paired.high < 1.01 and apart.high > 1.1


@given(st.floats(-0.3, 0.3), st.floats(1e-4, 0.1), st.floats(0, 0.2))
def test_a_difference_is_beyond_a_bound_where_its_whole_interval_is(log, error, bound):
    found = Speedup(np.array([log]), np.array([error]), np.array([4.0]))
    nearest = max(np.log(found.low[0]), -np.log(found.high[0]))
    clear = abs(nearest - np.log1p(bound)) > 1e-9
    assert not clear or (found.p_beyond(Speedup.exactly(bound))[0] < 0.05) == (
        nearest > np.log1p(bound)
    )


def test_the_error_of_a_control_counts_too():
    found = Speedup(np.array([0.03]), np.array([0.005]), np.array([4.0]))
    for error, shown in ((0.002, True), (0.02, False)):
        control = Speedup(np.array([0.01]), np.array([error]), np.array([4.0]))
        assert (found.p_beyond(control)[0] < 0.05) == shown


# What is shown.


@pytest.mark.parametrize(
    ("change", "half", "bound", "outcome"),
    [
        (0.5, 0.1, 0.0, "faster"),
        (-0.3, 0.1, 0.0, "slower"),
        (0.0, 0.01, 0.0, "unchanged"),
        (0.01, 0.005, 0.0, "unchanged"),
        (0.0, 0.1, 0.0, "inconclusive"),
        (0.05, 0.02, 0.04, "inconclusive"),
        (0.07, 0.02, 0.04, "faster"),
        (-0.05, 0.02, 0.04, "inconclusive"),
        (0.5, 0.1, np.nan, "inconclusive"),
        (0.5, np.nan, 0.0, "inconclusive"),
        (np.nan, np.nan, 0.0, "inconclusive"),
    ],
)
def test_outcomes(change, half, bound, outcome):
    found = Speedup(*(np.array([x]) for x in (change, half / stdtrit(4, 0.975), 4.0)))
    assert judge(found, [Speedup.exactly(bound)])[0] == outcome


def test_one_row_among_many_needs_stronger_evidence():
    p = np.array([0.001, 0.04, 0.2, 0.5, 0.9, np.nan])
    q = adjust_for_many(p)
    assert q[:2] == pytest.approx([0.005, 0.1])
    assert np.isnan(q[5])
    error, freedom = np.full(6, 0.1), np.full(6, 1e6)
    rows = Speedup(error * stdtrit(1e6, 1 - p / 2), error, freedom)
    outcome, adjusted = judge(rows, [Speedup.exactly(0.0)])
    assert adjusted[:5] == pytest.approx(q[:5])
    assert list(outcome) == ["faster", *["inconclusive"] * 5]
    assert np.isnan(adjust_for_many(np.array([np.nan]))).all()


def test_what_is_found_beyond_the_margin_is_never_called_equivalent_too():
    """Of rows corrected together, none may be taken out afterwards."""
    rng = np.random.default_rng(0)
    rows = Speedup(rng.normal(0, 0.05, 2000), rng.uniform(1e-4, 0.02, 2000), np.full(2000, 4.0))
    shown = judge(rows, [Speedup.exactly(0.02)])[1] <= 0.05
    outcome, _ = judge(rows, [Speedup.exactly(0.02)])
    assert shown.sum() > 100
    assert set(outcome[shown]) == {"faster", "slower"}
    assert {"unchanged", "inconclusive"} == set(outcome[~shown])


def test_what_is_called_detectable_is_detected_in_4_of_5_repetitions():
    rng = np.random.default_rng(0)
    restarts, repetitions = 5, 20_000
    known = Speedup(np.zeros(1), np.full(1, 0.01 / np.sqrt(restarts)), np.full(1, restarts - 1.0))
    least = 1 + known.minimum_detectable_change(Speedup.exactly(0.02))
    times = least * np.exp(rng.normal(0, 0.01, (restarts, repetitions)))
    found = speedup_of_restarts(times, np.ones_like(times))
    assert 0.78 < np.mean(found.low > 1.02) < 0.82


@given(st.floats(0.2, 5), st.floats(0, 0.5), st.floats(0, 0.5), st.floats(0, 1), st.integers(0, 3))
def test_a_gate_fails_only_where_the_whole_interval_is_beyond(ratio, down, up, limit, outcome):
    row = {
        "subject": "x",
        "level": "e2e",
        "baseline_ms": ratio,
        "candidate_ms": 1.0,
        "speedup": ratio,
        "low": ratio * (1 - down),
        "high": ratio * (1 + up),
        "outcome": ("faster", "slower", "unchanged", "inconclusive")[outcome],
    }
    gate = judge_latencies(pd.DataFrame([row]), {"latency": limit})["gate"].iloc[0]
    least, most = 1 / row["high"] - 1, 1 / row["low"] - 1
    if gate == "failed":
        assert least > limit - 1e-9
    elif gate == "passed":
        assert most <= limit + 1e-9
    else:
        assert most > limit - 1e-9 and (least <= limit + 1e-9 or row["outcome"] != "slower")


@pytest.mark.whole
def test_the_false_alarms_of_a_gate_are_rare_where_nothing_changed():
    rng = np.random.default_rng(0)
    failed = 0
    for _ in range(200):
        sides = [[list(rng.lognormal(0, 0.02, 5))] for _ in range(2)]
        table = compare_restarts(["x"], *sides).rename(columns={"name": "subject"})
        failed += (judge_latencies(table, {"latency": 0.0})["gate"] == "failed").any()
    assert failed / 200 < 0.05


# Coverage by simulation; `tests/benchmarks/intervals.py` prints more of it.


@pytest.mark.parametrize("restart", [0, 0.01, 0.1])
@pytest.mark.parametrize("restarts", [3, 5])
def test_intervals_cover_the_truth_as_often_as_they_say(restarts, restart):
    rng = np.random.default_rng(7)
    sides = simulate_restarts(rng, 1000, restarts, 8, restart, machine=0.1)
    found = speedup_of_restarts(*sides)
    assert 0.93 <= np.mean((found.low <= 1) & (found.high >= 1)) <= 0.97
    latency, half = sides[0].mean(axis=0), half_width(sides[0])
    assert 0.93 <= np.mean(np.abs(latency - latency.mean()) <= half) <= 0.97


@pytest.mark.parametrize("controlled", [True, False])
@pytest.mark.parametrize("real", [0.0, 0.008, 0.3])
def test_few_discoveries_among_many_operators_are_false(real, controlled):
    """Forty operators that really differ, by less than the margin or by more, and thirty equal."""
    rng = np.random.default_rng(7)
    factor = np.where(np.arange(70) < 40, 1 + real, 1.0)
    false, found = [], []
    for _ in range(100):
        true = rng.lognormal(6, 1, 70)
        sides = [simulate_operators(rng, t, 5, 10, 0.005) for t in (true, true / factor, true)]
        control = speedup_of_restarts(sides[0], sides[2])
        table = tabulate_comparison(
            "operator", [*map(str, range(70))], (true, true),
            speedup_of_restarts(*sides[:2]),
            control if controlled else None, restarts=5,
        )  # fmt: skip
        told = table["outcome"].isin(["faster", "slower"]).to_numpy()
        wrong = told & (factor < 1 + MARGIN)
        false.append(wrong.sum() / max(1, told.sum()))
        found.append(told[:40].mean())
    assert np.mean(false) <= 0.05
    assert np.mean(found) > 0.9 if real > 0.1 else np.mean(found) < 0.01


@pytest.mark.cases
def test_equal_experiments_are_seldom_told_apart():
    equal = {"a": 6, "b": 6, "c": 6}
    frames = (synthetic_latencies(equal, restart=0.01, seed=seed) for seed in range(150))
    outcomes = [compare_latencies(frame, "a", "b", control="c")["outcome"][0] for frame in frames]
    assert sum(outcome in ("faster", "slower") for outcome in outcomes) <= 5


# Changes over time.


# Undisturbed runs.

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
    preempted_share = 1 - cpu / wall
    assert keep.sum() >= len(pairs) / 2
    assert (preempted_share[~keep] > PREEMPTED_LIMIT).all()
    if keep.any() and (~keep).any():
        assert preempted_share[keep].max() <= preempted_share[~keep].min() + 1e-12


def test_times_are_those_that_other_programs_left_alone():
    """What comes late is hit in most runs, by more than it takes itself."""
    rng = np.random.default_rng(0)
    index = pd.MultiIndex.from_product([range(5), range(20)], names=["process", "run"])
    runs = pd.DataFrame(rng.normal([1.0, 3.0], 0.01, (100, 2)), index, ["early", "late"])
    runs["late"] += rng.choice([0.0, 4.0, 8.0], 100, p=[0.4, 0.4, 0.2])
    found = undisturbed_times(runs)
    assert list(found.index) == [0, 1, 2, 3, 4]
    assert found.to_numpy() == pytest.approx(np.tile([1.0, 3.0], (5, 1)), rel=0.02)
    alone = undisturbed_times(runs.loc[[0]])
    assert len(alone) == 4, "its quarters"
    assert alone["early"].to_numpy() == pytest.approx(1.0, rel=0.02)
    assert undisturbed_times(runs.iloc[:2]).to_numpy() == pytest.approx(runs.iloc[:2].to_numpy())


#: Inferences that others interrupt: ms of each operator, and the most by which a share may be off.
INTERRUPTED = {
    "alike": (np.full(40, 0.125), 0.002),
    "one takes nearly all": (np.array([4.75, *[0.0125] * 20]), 0.005),
    "two take most": (np.array([2.3, 2.3, *[0.02] * 20]), 0.02),
    "100 ms": (np.random.default_rng(0).lognormal(0, 1, 50) * 1.2, 0.01),
}


@pytest.mark.parametrize("rate", [0.05, 0.3])
@pytest.mark.parametrize("case", INTERRUPTED)
def test_what_other_programs_take_is_no_operators_time(case, rate):
    """Time slices of 2 to 6 ms, so many in each ms, hit whatever operator runs."""
    rng, (ms, limit), restarts = np.random.default_rng(1), INTERRUPTED[case], 24
    alone = 1e6 * ms * rng.normal(1, 0.03, (restarts, len(ms))) * rng.normal(1, 0.02, (restarts, 1))
    traced, switches = alone.copy(), rng.poisson(rate * alone.sum(axis=1) / 1e6)
    for times, ends, count in zip(traced, alone.cumsum(axis=1), switches, strict=True):
        hit = np.searchsorted(ends, rng.uniform(0, ends[-1], count))
        np.add.at(times, hit, rng.uniform(2e6, 6e6, count))
    lost = (traced - alone).sum(axis=1)
    inference, operator = np.indices(traced.shape)
    repeated = (np.repeat(values, len(ms)) for values in (lost, switches))
    counted = subtract_others(traced.ravel(), operator.ravel(), inference.ravel(), *repeated)
    assert counted.sum() == pytest.approx(alone.sum(), rel=0.01)

    def off(times):
        return abs(times.mean(axis=0) / times.mean(axis=0).sum() - ms / ms.sum()).max()

    corrected = off(counted.reshape(traced.shape))
    assert corrected < limit
    assert corrected < off(traced)


@pytest.mark.parametrize("switches", [0, 100])
def test_time_that_all_operators_lose_alike_moves_no_share(switches):
    """Such as that of a hypervisor, or of many short interruptions."""
    ms = np.array([4.0, 1.0, 0.5, 0.1])
    traced = np.tile(8e6 * ms, 10)
    inference, operator = np.indices((10, 4))
    lost = np.full(traced.shape, 7e6 * ms.sum())
    counted = subtract_others(
        traced, operator.ravel(), inference.ravel(), lost, np.full(lost.shape, switches)
    )
    assert counted == pytest.approx(np.tile(1e6 * ms, 10))


def test_other_programs_widen_no_interval_but_by_what_they_hit():
    """Restarts of which one took three times as long, all operators alike, tell the same shares."""
    facts = measured(
        Delegate([Node("Conv2d", "x W", "a", 2.0)]), Kernel("gelu", "a", "b", 5.0), noise=0.0
    )
    load = pd.Series([1.0, 3.0, 1.5, 1.0, 2.0], range(5))
    busy = facts.times.undisturbed.mul(
        load.reindex(facts.times.undisturbed.index, level="process"), axis=0
    )
    alike = changed(facts, runs=busy)
    spent = time_spent(alike, ["1/native_call_gelu.out/0"])
    assert spent.low == pytest.approx(spent.high)
    hit = busy.copy()
    hit.loc[1, "1/native_call_gelu.out/0"] *= 1.5
    spent = time_spent(changed(facts, runs=hit), ["1/native_call_gelu.out/0"])
    assert spent.low < 0.97 * spent.ms < 1.03 * spent.ms < spent.high
    alone = changed(facts, runs=facts.times.undisturbed.iloc[:1])
    spent = time_spent(alone, ["1/native_call_gelu.out/0"])
    assert (spent.low, spent.high) == (0, alone.traced_ms), "a single run tells nothing of the next"


# Numbers as text.


def test_a_missing_time_does_not_choose_the_unit_of_the_others():
    assert format_range(math.nan, 0.05) == [MISSING, "50.0 µs"]
    assert format_range(0.05, math.nan) == ["50.0 µs", MISSING]
    assert format_range(math.inf, 0.05) == [MISSING, "50.0 µs"]
    assert format_range(math.nan) == [MISSING]
    assert format_range(12.0, 0.05) == ["12.0 ms", "0.0500 ms"]


def coverage(log, error, freedom):
    return np.mean(np.abs(log) <= stdtrit(freedom, 0.975) * error)


@pytest.mark.parametrize("restarts", [3, 5, 8, 20])
@pytest.mark.parametrize("disturbed", [0.0, 0.1])
def test_parts_are_compared_without_the_restarts_that_other_programs_disturbed(restarts, disturbed):
    rng = np.random.default_rng(restarts)
    sides, shape = [], (restarts, 4000)
    for _ in range(2):
        lost = rng.exponential(1.0, shape) * (rng.random(shape) < disturbed)
        sides.append(np.exp(rng.normal(0, 0.05, shape) + lost))
    speedup = speedup_of_parts(*sides)
    assert 0.93 < coverage(speedup.log, speedup.error, speedup.freedom) < 0.99
    if disturbed and restarts == 20:
        assert np.median(speedup.error) < 0.4 * np.median(speedup_of_restarts(*sides).error)


def test_rows_of_similar_length_strengthen_each_other():
    """Five restarts of operators whose scatter falls with their length, and varies about that."""
    rng = np.random.default_rng(0)
    lengths = rng.lognormal(3, 1.5, 4000)
    scatter = (0.02 + 0.3 / lengths) / np.sqrt(rng.chisquare(8, 4000) / 8)
    variances = scatter**2 * rng.chisquare(4, 4000) / 4
    log = rng.normal(0, scatter)
    moderated, freedom = moderate_variances(variances, np.full(4000, 4.0), lengths)
    assert 0.93 < coverage(log, np.sqrt(moderated), freedom) < 0.97
    widths = [
        np.median(stdtrit(f, 0.975) * np.sqrt(v))
        for f, v in ((freedom, moderated), (4.0, variances))
    ]
    assert widths[0] < 0.9 * widths[1]
    few = moderate_variances(variances[:5], np.full(5, 4.0), lengths[:5])
    assert (few[0] == variances[:5]).all() and (few[1] == 4.0).all()


def test_few_rows_are_not_taken_to_scatter_alike_because_their_mean_has_each_of_them():
    """Variances with two degrees of freedom about one that all of the rows share."""
    rng, scatters = np.random.default_rng(0), []
    for _ in range(2000):
        variances = rng.chisquare(4, 12) / 4 / (rng.chisquare(2, 12) / 2)
        _, freedom = moderate_variances(variances, np.full(12, 4.0), rng.random(12))
        scatters.append(polygamma(1, (freedom[0] - 4) / 2))
    assert np.mean(scatters) == pytest.approx(polygamma(1, 1), rel=0.05)


def test_the_noise_of_a_control_is_that_of_rows_of_similar_length():
    """One noisy control of a row says nothing of this row; what restarts cannot show is added."""
    rng, count = np.random.default_rng(0), 400
    lengths, errors = rng.lognormal(3, 1, count), np.full(count, 0.02)
    logs = {name: rng.normal(0, 0.02, count) for name in ("row", "control")}
    freedom = np.full(count, 19.0)
    quiet = Speedup(logs["row"], errors, freedom)
    _, component = pool_control(Speedup(logs["control"], errors, freedom), lengths)
    joined = strengthen(quiet, lengths, component)
    assert np.median(joined.error) == pytest.approx(0.02, rel=0.1)
    apart = {name: log + rng.normal(0, 0.05, count) for name, log in logs.items()}
    total, component = pool_control(Speedup(apart["control"], errors, freedom), lengths)
    assert np.median(component.error) == pytest.approx(0.05, rel=0.2)
    assert np.median(total.error) == pytest.approx(np.hypot(0.02, 0.05), rel=0.2)
    joined = strengthen(replace(quiet, log=apart["row"]), lengths, component)
    assert 0.92 < coverage(joined.log, joined.error, joined.freedom) < 0.98


def test_a_part_is_unchanged_within_a_tenth_and_the_whole_within_the_margin():
    half = 0.02 / stdtrit(20, 0.975)
    rows = Speedup(np.log([1.05, 1.0, 1.09]), np.full(3, half), np.full(3, 20.0))
    bounds = [Speedup.exactly(0.02)]
    assert list(judge(rows, bounds, 0.1)[0]) == ["faster", "unchanged", "faster"]
    near = Speedup(np.log([1.02, 1.05]), np.full(2, half * 2), np.full(2, 20.0))
    assert list(judge(near, bounds, 0.1)[0]) == ["unchanged", "unchanged"]
    assert list(judge(near, bounds)[0]) == ["inconclusive", "inconclusive"]
