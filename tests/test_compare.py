import math
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import stdtrit
from synthetic import synthetic_latencies, synthetic_ledger

import workbench as wb
from workbench.analysis.compare import (
    Speedup,
    Verdict,
    adjust_for_many,
    compare_latencies,
    compare_parts,
    compare_restarts,
    describe_differences,
    describe_faults,
    digits_of,
    judge,
    reach_verdict,
    speedup_of_restarts,
)
from workbench.analysis.compare_runs import judge_rows
from workbench.analysis.operators import CATEGORIES, summarize_categories, summarize_operators
from workbench.analysis.statistics import describe_latencies, restart_latencies
from workbench.analysis.what_if import bottleneck_shift, rank_bottlenecks
from workbench.errors import ComparisonError, UsageError
from workbench.frames import COMPARISON, check, format_ms
from workbench.records.runs import Agreement


def only(frame):
    assert len(frame) == 1
    return frame.iloc[0]


def test_a_known_speedup_is_found():
    latencies = synthetic_latencies({"off": 6.0, "on": 3.0, "off again": 6.0})
    frame = compare_latencies(latencies, "off", "on", control="off again")
    check(frame, COMPARISON)
    row = only(frame)
    assert (row["level"], row["name"], row["outcome"]) == ("e2e", "on", "faster")
    assert row["low"] < 2.0 < row["high"]
    assert row["speedup"] == pytest.approx(2.0, rel=0.02)
    assert row["baseline_ms"] == pytest.approx(6.0, rel=0.05)
    assert row["speedup"] == pytest.approx(row["baseline_ms"] / row["candidate_ms"])
    described = describe_latencies(latencies).set_index("experiment")["latency"]
    assert described[["off", "on"]].tolist() == row[["baseline_ms", "candidate_ms"]].tolist()
    assert row["restarts"] == 5
    assert 0 < row["floor"] < 0.05


def test_the_other_way_round_it_is_slower():
    latencies = synthetic_latencies({"off": 6.0, "on": 3.0})
    assert only(compare_latencies(latencies, "on", "off"))["outcome"] == "slower"


def test_an_experiment_equals_itself():
    latencies = synthetic_latencies({"off": 6.0, "again": 6.0})
    assert only(compare_latencies(latencies, "off", "again"))["outcome"] == "equivalent"
    row = only(compare_latencies(latencies, "off", "off"))
    assert (row["speedup"], row["low"], row["high"]) == (1.0, 1.0, 1.0)


def test_a_noisy_control_takes_a_small_difference_back():
    quiet = synthetic_latencies({"off": 6.0, "on": 5.7, "again": 6.0}, restart=0.001)
    noisy = quiet.copy()
    again = noisy["experiment"] == "again"
    noisy.loc[again, "cpu_ns"] = (noisy.loc[again, "cpu_ns"] * 1.08).astype("int64")
    assert only(compare_latencies(quiet, "off", "on", control="again"))["outcome"] == "faster"
    row = only(compare_latencies(noisy, "off", "on", control="again"))
    assert row["outcome"] == "inconclusive"
    assert row["floor"] > 0.075


def test_drift_that_both_share_cancels():
    latencies = synthetic_latencies({"off": 6.0, "on": 3.0}, drift=0.5, noise=0.001, outliers=0)
    row = only(compare_latencies(latencies, "off", "on"))
    assert row["speedup"] == pytest.approx(2.0, rel=0.03)


def test_the_clock_is_cpu_time_for_one_thread_and_wall_time_for_several():
    one = synthetic_latencies({"off": 6.0, "on": 3.0})
    one["wall_ns"] = 6_000_000
    assert only(compare_latencies(one, "off", "on"))["outcome"] == "faster"
    assert only(compare_latencies(one, "off", "on", clock="wall_ns"))["speedup"] == 1.0
    four = one.assign(threads=4)
    assert only(compare_latencies(four, "off", "on"))["speedup"] == 1.0


def test_several_thread_counts_need_a_choice():
    both = pd.concat(
        [synthetic_latencies({"off": 6.0, "on": 3.0}, threads=count) for count in (1, 2)]
    )
    with pytest.raises(ComparisonError, match=r"several thread counts: \[1, 2\]"):
        compare_latencies(both, "off", "on")
    assert only(compare_latencies(both, "off", "on", threads=2))["outcome"] == "faster"
    with pytest.raises(UsageError, match="thread count '4'"):
        compare_latencies(both, "off", "on", threads=4)


def test_traced_latencies_are_left_out_where_there_are_others():
    latencies = synthetic_latencies({"off": 6.0, "on": 3.0})
    traced = synthetic_latencies({"off": 60.0, "on": 3.0}, traced=True)
    row = only(compare_latencies(pd.concat([latencies, traced]), "off", "on"))
    assert row["baseline_ms"] == pytest.approx(6.0, rel=0.05)
    alone = only(compare_latencies(traced, "off", "on"))
    assert alone["baseline_ms"] == pytest.approx(60.0, rel=0.05)
    with pytest.raises(ComparisonError, match=r"no .*latenc"):
        compare_latencies(traced[:0], "off", "on")


def test_mistakes_are_named():
    latencies = synthetic_latencies({"off": 6.0, "on": 3.0})
    with pytest.raises(UsageError, match="unknown experiment 'onn' -> did you mean 'on'"):
        compare_latencies(latencies, "off", "onn")
    with pytest.raises(ComparisonError, match="no restart in common"):
        moved = latencies["process"] + 10 * (latencies["experiment"] == "on")
        compare_latencies(latencies.assign(process=moved), "off", "on")
    with pytest.raises(ComparisonError, match="did not tick"):
        stuck = latencies["cpu_ns"].where(latencies["experiment"] == "off", 0)
        compare_latencies(latencies.assign(cpu_ns=stuck), "off", "on")


@pytest.mark.parametrize(
    ("change", "half", "bound", "outcome"),
    [
        (0.5, 0.1, 0.0, "faster"),
        (-0.3, 0.1, 0.0, "slower"),
        (0.0, 0.01, 0.0, "equivalent"),
        (0.01, 0.005, 0.0, "equivalent"),
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
    outcome, _ = judge(rows, [Speedup.exactly(0.02)], margin=0.02)
    assert shown.sum() > 100
    assert set(outcome[shown]) == {"faster", "slower"}
    assert {"equivalent", "inconclusive"} == set(outcome[~shown])


def test_without_a_control_more_is_needed():
    latencies = synthetic_latencies({"off": 6.06, "on": 6.0, "again": 6.06}, restart=0, noise=0.001)
    alone = only(compare_latencies(latencies, "off", "on"))
    assert (alone["floor"], alone["outcome"]) == (0, "equivalent")
    held = only(compare_latencies(latencies, "off", "on", control="again"))
    assert 0 < held["floor"] < 0.01 and held["detectable"] < alone["detectable"]


def test_the_bound_is_part_of_what_could_be_shown():
    found = Speedup(np.zeros(1), np.full(1, 0.01), np.full(1, 4.0))
    for bound in (0.0, 0.1):
        least = found.minimum_detectable_change(Speedup.exactly(bound))
        assert least == pytest.approx(
            np.exp(np.log1p(bound) + 0.01 * (2.7764 + 0.9410)) - 1, rel=1e-3
        )


def test_what_is_called_detectable_is_detected_in_4_of_5_repetitions():
    rng = np.random.default_rng(0)
    restarts, repetitions = 5, 20_000
    known = Speedup(np.zeros(1), np.full(1, 0.01 / np.sqrt(restarts)), np.full(1, restarts - 1.0))
    least = 1 + known.minimum_detectable_change(Speedup.exactly(0.02))
    times = least * np.exp(rng.normal(0, 0.01, (restarts, repetitions)))
    found = speedup_of_restarts(times, np.ones_like(times))
    assert 0.78 < np.mean(found.low > 1.02) < 0.82


# Ledgers.


def test_categories_show_their_own_speedups():
    before, after = synthetic_ledger(), synthetic_ledger({"Convolution": 4, "GEMM": 0.5}, seed=1)
    table = check(compare_parts("category", before, after), COMPARISON).set_index("name")
    assert list(table.index) == ["Convolution", "GEMM", "Data Movement", "Elementwise", "Other"]
    assert table.loc["Convolution", "low"] < 4 < table.loc["Convolution", "high"]
    assert list(table["outcome"]) == ["faster", "slower", *["equivalent"] * 3]
    mean = summarize_categories(before).set_index("category")["mean_ms"]
    assert table["baseline_ms"].to_numpy() == pytest.approx(mean.to_numpy(), rel=0.01)


def test_a_control_gives_every_category_its_floor():
    before, after = synthetic_ledger(), synthetic_ledger({"Convolution": 1.08}, seed=1)
    control = synthetic_ledger({"Convolution": 0.9}, seed=2)
    alone = compare_parts("category", before, after).set_index("name")
    held = compare_parts("category", before, after, control=control).set_index("name")
    assert alone.loc["Convolution", "outcome"] == "faster"
    assert held.loc["Convolution", "outcome"] == "inconclusive"
    assert held.loc["Convolution", "floor"] > 0.1 > held.loc["Other", "floor"]


def with_layers(ledger):
    """Two operators to a layer."""
    return ledger.assign(layer="block." + (ledger["row"] // 2).astype(str))


def test_layers_show_their_own_speedups():
    before, after = synthetic_ledger(), synthetic_ledger({"Convolution": 4}, seed=1)
    table = check(compare_parts("layer", with_layers(before), with_layers(after)), COMPARISON)
    assert set(table["level"]) == {"layer"}
    assert list(table["name"][:2]) == ["block.1", "block.4"]
    assert (table["outcome"][:2] == "faster").all()
    assert table["baseline_ms"].sum() == pytest.approx(
        compare_parts("category", before, after)["baseline_ms"].sum(), rel=0.01
    )


def test_runs_of_their_own_are_compared_without_pairing_restarts():
    before, after = synthetic_ledger(), synthetic_ledger({"Convolution": 4}, processes=4, seed=1)
    moved = after.assign(process=after["process"] + 10)
    with pytest.raises(ComparisonError, match="no restart in common"):
        compare_parts("operator", before, moved)
    table = compare_parts("operator", before, moved, apart=True)
    assert list(table["restarts"]) == [3] * len(table)
    first = table.iloc[0]
    assert (first["category"], first["outcome"]) == ("Convolution", "faster")
    assert first["low"] < 4 < first["high"]
    alone = compare_parts("category", before, moved[moved["process"] == 10], apart=True)
    assert alone["low"].isna().all()
    assert set(alone["outcome"]) == {"inconclusive"}


def test_operators_are_paired_by_key():
    before, after = synthetic_ledger(), synthetic_ledger({"Convolution": 4}, seed=1)
    after = after.replace(
        {"operator": {"Convolution (NHWC, F32) IGEMM": "Convolution (NHWC, PF32) IGEMM"}}
    )
    table = check(compare_parts("operator", before, after), COMPARISON)
    assert set(table["key"]) == set(before["key"])
    top = table.iloc[0]
    assert top["name"] == "Convolution (NHWC, F32) IGEMM"
    assert top["candidate_name"] == "Convolution (NHWC, PF32) IGEMM"
    assert (top["category"], top["outcome"]) == ("Convolution", "faster")


def test_columns_of_categories_serve_as_those_of_text():
    columns = ["kind", "name", "operator", "key"]
    before, after = synthetic_ledger(), synthetic_ledger({"GEMM": 2}, seed=1)[20:]
    packed = [side.astype(dict.fromkeys(columns, "category")) for side in (before, after)]
    for level in ("category", "operator"):
        expected = compare_parts(level, before, after)
        pd.testing.assert_frame_equal(compare_parts(level, *packed), expected)
    for summarize in (summarize_categories, summarize_operators):
        pd.testing.assert_frame_equal(summarize(packed[1]), summarize(after), check_dtype=False)


def test_an_operator_of_one_side_only_is_inconclusive():
    before, after = synthetic_ledger(), synthetic_ledger(seed=1)
    gone = after[after["key"] != "delegated/11"]
    table = compare_parts("operator", before, gone).set_index("key")
    row = table.loc["delegated/11"]
    assert row["outcome"] == "inconclusive"
    assert np.isnan([row["candidate_ms"], row["speedup"], row["low"]]).all()
    assert row["baseline_ms"] > 0
    back = compare_parts("operator", gone, before).set_index("key").loc["delegated/11"]
    assert np.isnan(back["baseline_ms"])
    assert back["name"] == "Copy (NC, X32)"


def test_whole_microseconds_limit_what_a_short_operator_can_show():
    ledger = synthetic_ledger(noise=0)
    short = ledger["key"] == "delegated/8"
    before, after = ledger.copy(), ledger.copy()
    before.loc[short, "duration_ns"] = 4000
    after.loc[short, "duration_ns"] = 3000
    row = compare_parts("operator", before, after).set_index("key").loc["delegated/8"]
    assert row["speedup"] == pytest.approx(4 / 3)
    assert row["low"] < 1.2
    after.loc[short, "duration_ns"] = 0
    row = compare_parts("operator", before, after).set_index("key").loc["delegated/8"]
    assert (row["candidate_ms"], row["outcome"]) == (0, "inconclusive")


def test_an_overhead_below_zero_keeps_its_time_and_has_no_ratio():
    before, after = synthetic_ledger(), synthetic_ledger(seed=1)
    after.loc[after["kind"] == "delegate_overhead", "duration_ns"] = -300
    table = compare_parts("operator", before, after).set_index("name")
    row = table.loc["DELEGATE_CALL"]
    assert row["candidate_ms"] == pytest.approx(-0.0003)
    assert np.isnan(row["speedup"]) and row["outcome"] == "inconclusive"


def test_ledgers_that_cannot_be_compared():
    ledger = synthetic_ledger()
    with pytest.raises(ComparisonError, match="holds no run"):
        compare_parts("category", ledger, ledger[:0])
    with pytest.raises(ComparisonError, match="no restart in common"):
        compare_parts("category", ledger, ledger.assign(process=ledger["process"] + 10))
    mixed = pd.concat([ledger.assign(experiment="a"), ledger.assign(experiment="b")])
    with pytest.raises(ComparisonError, match="several values of experiment: a, b"):
        summarize_operators(mixed)


# Verdicts.


def verdict(outcome, speedup, low, high, **more):
    return Verdict("net", "with avx512", outcome, speedup, low, high, 0.013, 0.02, **more)


def test_a_verdict_from_measurements():
    latencies = synthetic_latencies({"off": 6.0, "on": 3.0, "again": 6.0})
    before = summarize_categories(synthetic_ledger())
    after = summarize_categories(synthetic_ledger({"Convolution": 40, "GEMM": 40}))
    line = (
        reach_verdict(
            "net",
            "with avx512",
            compare_latencies(latencies, "off", "on", control="again"),
            bottleneck_shift(before, after),
        )
    ).text
    assert re.match(r"net: [12]\.\d+x faster with avx512 \(95 % CI 1\.\d+-2\.\d+\)", line)
    assert line.endswith("bottleneck Convolution 63 % -> Data Movement 38 %")


def test_an_a_a_run_names_no_speedup():
    for outcome in ("equivalent", "inconclusive"):
        line = verdict(outcome, 1.004, 0.996, 1.012).text
        assert outcome in line
        assert "latency -1.2 % to +0.4 %" in line
        assert "faster" not in line and "x " not in line


def test_an_inconclusive_verdict_tells_the_noise_floor():
    assert "noise floor 1.3 %" in verdict("inconclusive", 1.1, 0.9, 1.3).text
    line = verdict("inconclusive", 1.1, math.nan, math.nan).text
    assert "no interval: needs two or more process restarts" in line


def test_a_verdict_says_what_it_lacks():
    said = {"detectable": 0.07}
    alone = replace(verdict("faster", 1.5, 1.4, 1.6, **said), floor=0.0)
    assert alone.text.endswith("(95 % CI 1.4-1.6, no A/A control)")
    apart = replace(alone, separate="separate runs")
    assert "separate runs, minimum detectable change 7 %" in apart.text
    apart = verdict("inconclusive", 1.02, 0.95, 1.08, separate="separate runs", **said)
    assert apart.text.count("minimum detectable change") == 1


def test_a_machine_that_is_too_busy_is_said_to_be():
    line = (replace(verdict("inconclusive", 1.5, 0.5, 4.0), floor=2.9)).text
    assert "too busy to compare (two equal experiments differed by up to 290 %)" in line


def test_separate_runs_need_more_than_their_restarts_show():
    """Two runs of one program differ by more than the restarts of either."""
    before, after = (synthetic_latencies({"a": ms}, restart=1e-4, noise=1e-4, outliers=0, drift=0)
                     for ms in (6.0, 6.0 * 1.03))  # fmt: skip
    restarts = [[restart_latencies(side)] for side in (before, after)]
    row = only(compare_restarts(["latency"], *restarts))
    assert row["outcome"] == "inconclusive" and row["detectable"] > 0.04
    assert only(compare_restarts(["latency"], *restarts, separate=False))["outcome"] == "slower"


def test_slower_is_told_as_a_factor_above_one():
    line = verdict("slower", 0.5, 0.48, 0.52).text
    assert line == "net: 2.00x slower with avx512 (95 % CI 1.92-2.08)"


@pytest.mark.parametrize(
    ("low", "high", "digits"),
    [(1.87, 1.93, 2), (1.5, 2.5, 1), (10, 30, 0), (1.8990, 1.8999, 3), (2, 2, 3)],
)
def test_digits_follow_the_uncertainty(low, high, digits):
    assert digits_of(low, high) == digits


def test_outputs_that_differ_come_before_any_speedup():
    agreements = [
        Agreement("off", "on", 1, 0, "float32", 1e-7, 1.0, 1e-5, True),
        Agreement("off", "on", 1, 1, "float32", 0.26, 2.0, 1e-5, False),
        Agreement("off", "on", 1, 2, "float32", None, 2.0, 1e-5, False),
    ]
    frame = compare_latencies(synthetic_latencies({"off": 6.0, "on": 3.0}), "off", "on")
    assert describe_differences(agreements[:1]) == ""
    wrong = describe_differences(agreements)
    line = (reach_verdict("net", "with avx512", frame, wrong=wrong)).text
    assert line == (
        "net: outputs differ (output 1 by 0.1 of its largest value instead of 1e-05 at most; "
        "output 2 cannot be compared): no speed-up is claimed; ran with avx512 in "
        f"{format_ms(frame['candidate_ms'][0])} against {format_ms(frame['baseline_ms'][0])}"
    )


@pytest.mark.parametrize(
    ("candidate", "baseline", "text"),
    [
        ("", "", ""),
        ("SQNR 1 dB", "SQNR 1 dB", "outputs are wrong (SQNR 1 dB)"),
        ("SQNR 1 dB", "", "outputs of the candidate are wrong (SQNR 1 dB)"),
        ("", "SQNR 1 dB", "outputs of the baseline are wrong (SQNR 1 dB)"),
    ],
)
def test_wrong_outputs_name_their_side(candidate, baseline, text):
    assert describe_faults(candidate, baseline) == text


def test_a_verdict_needs_one_e2e_row():
    with pytest.raises(ComparisonError, match="one E2E comparison, not 0"):
        reach_verdict("net", "", compare_parts("category", synthetic_ledger(), synthetic_ledger()))


@pytest.mark.slow
def test_equal_experiments_are_seldom_told_apart():
    outcomes = [
        only(
            compare_latencies(
                synthetic_latencies({"a": 6, "b": 6, "c": 6}, restart=0.01, seed=seed),
                "a",
                "b",
                control="c",
            )
        )["outcome"]
        for seed in range(150)
    ]
    told = sum(outcome in ("faster", "slower") for outcome in outcomes)
    assert told <= 5


def categories(times):
    return pd.DataFrame({"category": list(times), "mean_ms": list(times.values())})


millis = st.dictionaries(st.sampled_from(CATEGORIES), st.floats(1e-3, 1e3), min_size=1)


@given(millis, millis)
def test_contributions_sum_to_the_change(before, after):
    shift = bottleneck_shift(categories(before), categories(after))
    change = sum(after.values()) - sum(before.values())
    assert shift["delta_ms"].sum() == pytest.approx(change, rel=1e-9, abs=1e-9)
    assert shift["share_before"].sum() == pytest.approx(1)
    assert shift["share_after"].sum() == pytest.approx(1)
    if abs(change) > 1e-6:
        assert shift["contribution"].sum() == pytest.approx(1, rel=1e-6)
    for side in ("rank_before", "rank_after"):
        assert sorted(shift[side]) == list(range(1, len(shift) + 1))


def test_a_shift_of_known_size():
    shift = bottleneck_shift(
        categories({"Convolution": 8.0, "Data Movement": 1.5, "Other": 0.5}),
        categories({"Convolution": 1.0, "Data Movement": 1.5, "Other": 0.5}),
    ).set_index("category")
    assert shift.loc["Convolution", "share_before"] == 0.8
    assert shift.loc["Convolution", "contribution"] == 1.0
    assert list(shift["delta_ms"]) == [-7.0, 0.0, 0.0]
    assert list(shift["rank_before"]) == [1, 2, 3]
    assert list(shift["rank_after"]) == [2, 1, 3]


def test_no_change_has_no_contributions():
    shift = bottleneck_shift(categories({"GEMM": 1.0}), categories({"GEMM": 1.0}))
    assert shift["contribution"].isna().all()


@pytest.mark.parametrize(
    ("dtype", "total", "faster", "before", "after"),
    [("FP16", 1163.0, 3.90, 0.758, 0.399), ("INT8", 555.8, 1.83, 0.557, 0.414)],
)
def test_the_published_case_reproduces_its_story(dtype, total, faster, before, after):
    published = pd.read_csv(wb.sample_file("squeezesam.csv"))
    off, on = (published[published["experiment"] == f"{dtype}, SME2 {s}"] for s in ("off", "on"))
    speedup = off["e2e_ms"].iloc[0] / on["e2e_ms"].iloc[0]
    assert speedup == pytest.approx(faster, abs=0.005)
    assert list(off["category"]) == list(on["category"]) == list(CATEGORIES)
    shift = bottleneck_shift(off, on).set_index("category")
    assert shift["baseline_ms"].sum() == pytest.approx(total)
    assert shift["delta_ms"].sum() == pytest.approx(total / speedup - total)
    assert (shift["rank_before"].idxmin(), shift["rank_after"].idxmin()) == (
        "Convolution", "Data Movement",
    )  # fmt: skip
    assert shift.loc["Convolution", "share_before"] == pytest.approx(before, abs=5e-4)
    assert shift.loc["Data Movement", "share_after"] == pytest.approx(after, abs=5e-4)


def test_the_published_categories_add_up_to_the_published_latencies():
    published = pd.read_csv(wb.sample_file("squeezesam.csv"))
    assert published["experiment"].nunique() == 4
    for _, part in published.groupby("experiment"):
        assert part["mean_ms"].sum() == pytest.approx(part["e2e_ms"].iloc[0], abs=1e-6)


def test_bottlenecks_come_with_their_ceiling():
    ledger = synthetic_ledger(processes=4)
    table = rank_bottlenecks(ledger, factor=4)
    assert table["name"].iloc[0] == "Convolution"
    assert table["mean_ms"].is_monotonic_decreasing
    assert table["share"].sum() == pytest.approx(1)
    e2e = table["mean_ms"].sum()
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
        "outcome": ("faster", "slower", "equivalent", "inconclusive")[outcome],
    }
    gate = judge_rows(pd.DataFrame([row]), limit).rows["gate"].iloc[0]
    least, most = 1 / row["high"] - 1, 1 / row["low"] - 1
    if gate == "failed":
        assert least > limit - 1e-9
    elif gate == "passed":
        assert most <= limit + 1e-9
    else:
        assert most > limit - 1e-9 and (least <= limit + 1e-9 or row["outcome"] != "slower")


def test_the_false_alarms_of_a_gate_are_rare_where_nothing_changed():
    rng = np.random.default_rng(0)
    failed = 0
    for _ in range(400):
        sides = [[list(rng.lognormal(0, 0.02, 5))] for _ in range(2)]
        table = compare_restarts(["x"], *sides).rename(columns={"name": "subject"})
        failed += not judge_rows(table, 0.0).passed
    assert failed / 400 < 0.05
