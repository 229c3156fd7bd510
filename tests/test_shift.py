import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from synthetic import NETWORK, synthetic_ledger

import workbench as wb
from workbench.analysis.operators import (
    CATEGORIES,
    add_categories,
    summarize_categories,
    summarize_operators,
    total_runs,
)
from workbench.analysis.what_if import bottleneck_shift, bound_shift
from workbench.frames import CATEGORIES as CATEGORIES_FRAME
from workbench.frames import OPERATORS, SHIFT, check

OPERATOR_NAMES = sorted({(kind, operator) for _, kind, operator, _ in NETWORK})


@st.composite
def ledgers(draw):
    rows = draw(
        st.lists(
            st.tuples(
                st.integers(0, 2),
                st.integers(0, 3),
                st.sampled_from(OPERATOR_NAMES),
                st.integers(0, 10**12),
            ),
            min_size=1,
            max_size=60,
        )
    )
    frame = pd.DataFrame(
        [(p, run, kind, name, ns) for p, run, (kind, name), ns in rows],
        columns=["process", "run", "kind", "operator", "duration_ns"],
    )
    return frame.assign(key=frame["kind"] + frame["operator"], name=frame["operator"])


@given(ledgers())
def test_categories_and_operators_sum_to_e2e(ledger):
    runs = ledger[["process", "run"]].drop_duplicates()
    e2e = int(ledger["duration_ns"].sum()) / len(runs) / 1e6
    for table in (summarize_operators(ledger), summarize_categories(ledger)):
        assert table["mean_ms"].sum() == pytest.approx(e2e, rel=1e-9)
        if e2e:
            assert table["share"].sum() == pytest.approx(1, rel=1e-9)
    calls = summarize_operators(ledger)["calls"]
    assert calls.sum() * len(runs) == pytest.approx(len(ledger))


def test_operators_come_with_their_place_and_the_dearest_first():
    table = check(summarize_operators(synthetic_ledger()), OPERATORS)
    assert len(table) == len(NETWORK)
    assert table["mean_ms"].is_monotonic_decreasing
    assert table.loc[0, "operator"] == "Convolution (NHWC, F32) IGEMM"
    assert table.loc[0, "mean_ms"] == pytest.approx(2.14, rel=0.02)
    assert (table["calls"] == 1).all()
    assert set(table["category"]) == set(CATEGORIES)


def test_the_categories_keep_their_order_and_the_absent_ones_are_zero():
    ledger = synthetic_ledger()
    table = summarize_categories(ledger[ledger["kind"] != "delegated"])
    check(table, CATEGORIES_FRAME)
    assert list(table["category"]) == list(CATEGORIES)
    assert list(table["mean_ms"] > 0) == [False, False, False, False, True]
    assert list(table["operators"]) == [0, 0, 0, 0, 4]


def test_one_run_has_no_spread():
    table = summarize_operators(synthetic_ledger(processes=1, runs=1))
    assert table["std_ms"].isna().all()


def test_a_category_has_the_interval_of_its_mean_over_the_restarts():
    ledger = synthetic_ledger(processes=5, runs=4)
    table = summarize_categories(ledger).set_index("category")
    means = total_runs(add_categories(ledger), "category").groupby(level="process").mean()
    for category, blocks in means.items():
        ends = stats.t.interval(0.95, 4, blocks.mean(), stats.sem(blocks))
        assert tuple(table.loc[category, ["low_ms", "high_ms"]]) == pytest.approx(ends)


def test_runs_of_several_processes_are_runs_of_their_own():
    assert len(total_runs(synthetic_ledger(processes=3, runs=4), "key")) == 12


def categories(times):
    return pd.DataFrame({"category": list(times), "mean_ms": list(times.values())})


millis = st.dictionaries(st.sampled_from(CATEGORIES), st.floats(1e-3, 1e3), min_size=1)


@given(millis, millis)
def test_contributions_sum_to_the_change(before, after):
    shift = check(bottleneck_shift(categories(before), categories(after)), SHIFT)
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
    shift = check(bottleneck_shift(off, on), SHIFT).set_index("category")
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


def test_a_change_has_its_interval_over_the_restarts_that_both_sides_share():
    before = synthetic_ledger(processes=5, runs=4)
    after = synthetic_ledger({"Convolution": 2.0}, processes=4, runs=4, seed=1)
    sides = [total_runs(add_categories(side), "category") for side in (before, after)]
    means = [side.groupby(level="process").mean() for side in sides]
    change = (means[1] - means[0]).dropna()
    assert len(change) == 4
    plain = bottleneck_shift(*map(summarize_categories, (before, after)))
    bounded = check(bound_shift(plain, before, after), SHIFT).set_index("category")
    for category, changes in change.items():
        half = stats.t.ppf(0.975, 3) * stats.sem(changes)
        delta = bounded.at[category, "delta_ms"]
        ends = bounded.loc[category, ["low_ms", "high_ms"]]
        assert tuple(ends) == pytest.approx((delta - half, delta + half))


def test_of_one_restart_a_change_has_no_interval():
    sides = [synthetic_ledger(processes=1, seed=seed) for seed in range(2)]
    bounded = bound_shift(bottleneck_shift(*map(summarize_categories, sides)), *sides)
    assert bounded[["low_ms", "high_ms"]].isna().all(axis=None)
