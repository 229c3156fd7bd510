"""How good a measurement is: the criteria, their grades, and the list of checks."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from changed_runs import changed
from run_folder import open_made_run, write_run

import workbench as wb

CALM = {"processes": 8, "noise": 0.002, "restart": 0.001, "drift": 0.002, "outliers": 0.01}
SIDES = {"off": None, "on": None}


def graded(folder, latencies_ms=SIDES, *, changes=None, **options):
    """The criteria of a run by name."""
    run = open_made_run(folder, latencies_ms, traced=2, changes=changes, **options)
    return run.quality.set_index("criterion")


def test_a_calm_measurement_gets_an_a(tmp_path):
    run = open_made_run(tmp_path, SIDES, control=True, traced=4, **CALM)
    assert set(run.quality["grade"]) == {"A"}
    assert "quality A" in str(wb.show(run))
    assert not run.caveats


@pytest.mark.parametrize(
    ("noise", "criterion"),
    [
        ({"restart": 0.05}, "half width of the interval"),
        ({"processes": 2}, "restarts"),
        ({"restart": 0.2}, "A/A control"),
    ],
)
def test_what_is_bad_lowers_the_grade(tmp_path, noise, criterion):
    quality = graded(tmp_path, control=True, **CALM | noise)
    assert quality.at[criterion, "grade"] in "BC"
    assert quality["grade"].iloc[0] == max(quality["grade"])


def test_one_restart_is_not_enough_for_a_good_grade(tmp_path):
    quality = graded(tmp_path, processes=1)
    assert quality.loc["restarts", ["value", "grade"]].tolist() == ["1 of 5", "C"]
    unknown = quality.loc["half width of the interval", ["value", "grade"]]
    assert unknown.tolist() == ["unknown", "C"]


def test_what_upstream_lacks_is_noted_with_its_consequence(tmp_path):
    run = open_made_run(tmp_path, {"on": 1.0}, processes=2, traced=2, rounds=2)
    record = replace(run.record, missing={"operator clock": "in whole microseconds"})
    run = replace(run, record=record)
    assert ("operator clock", "note", "in whole microseconds") in [
        *run.checks.itertuples(index=False, name=None)
    ]
    assert "operator clock: in whole microseconds" in run.caveats


@pytest.mark.parametrize(
    ("slower", "grade", "noise"), [(0.99, "A", False), (1.01, "A", True), (1.07, "C", True)]
)
def test_a_negative_tracer_overhead_is_noise(tmp_path, slower, grade, noise):
    ms = 6.713 * slower  # what the operators take together
    row = graded(tmp_path, {"off": ms, "on": ms}, **CALM).loc["tracer overhead"]
    assert row["grade"] == grade
    assert ("less than the noise" in row["value"]) == noise


@pytest.mark.parametrize(
    ("slower", "uses", "why"),
    [
        (1.0, {"latency", "shares", "milliseconds"}, ""),
        (
            1.09,
            {"latency", "shares", "milliseconds"},
            "on: shares are within 7 points: tracing adds 9.6 % that is not accounted for",
        ),
        (
            0.85,
            {"latency", "shares", "milliseconds"},
            "",
        ),
    ],
)
def test_what_may_be_used_is_said_once_and_followed(tmp_path, slower, uses, why):
    """The untraced latency stays, and the traced inferences take so many times as long."""
    ms, factors = 6.713, dict.fromkeys(("Convolution", "GEMM", "Data Movement"), slower**1.13)
    run = open_made_run(
        tmp_path, {"off": ms, "on": ms}, factors={"off": factors, "on": factors}, traced=4, **CALM
    )
    on = run.subject
    assert on.use.uses == uses and why in "".join(on.caveats)
    assert str(wb.show(run)).count(why or "shares are within") == bool(why)
    assert bool(run.compare().verdict.bottleneck) == ("shares" in uses)


@pytest.mark.parametrize(
    ("factors", "restart", "why"),
    [
        (1.03, 0.0, ""),
        (8.09, 0.0, ""),
        ({"Convolution": 1.3}, 0.0, ""),
        (1.07, 0.3, r"shares are within \d"),
        (8.09, 0.3, r"shares are within \d"),
    ],
)
def test_what_other_programs_take_is_no_cost_of_tracing(tmp_path, factors, restart, why):
    """They lengthen traced inferences, whose CPU time stays that of the untraced ones.

    Shares are as uncertain as they scatter.
    """
    ms, parts = 6.713, ("Convolution", "GEMM", "Data Movement", "Elementwise", "Other")
    factors = factors if isinstance(factors, dict) else dict.fromkeys(parts, factors)
    run = open_made_run(
        tmp_path, {"off": ms, "on": ms}, factors={"off": factors, "on": factors}, traced=4,
        traced_restart=restart, **CALM,
    )  # fmt: skip
    run = with_cpu_time(run, ms)
    on = run.subject
    assert on.use.uses == {"latency", "milliseconds", "shares"}
    assert re.search(why, "".join(on.caveats))
    assert any(text.startswith("on: shares") for text in on.caveats) == bool(why)
    assert on.tracer_excess == pytest.approx(0, abs=0.01)
    assert on.traced_ms == pytest.approx(ms, rel=0.01)
    bottleneck = run.compare().verdict.bottleneck
    assert bottleneck.endswith("points") == (on.share_error > 0.02)
    first, second = sorted(on.categories["share"])[:-3:-1]
    assert (" or " in bottleneck) == (first - second <= on.share_error)


def test_findings_are_not_ranked_by_what_other_programs_take_of_traced_inferences(tmp_path):
    """All parts alike take eight times as long in a trace, and inferences as much CPU time."""
    ms, parts = 6.713, ("Convolution", "GEMM", "Data Movement", "Elementwise", "Other")
    tables = []
    for name, factor in (("quiet", 1.0), ("busy", 8.0)):
        factors = dict.fromkeys(parts, factor)
        run = open_made_run(
            tmp_path / name, {"off": ms, "on": ms}, factors={"off": factors, "on": factors},
            traced=4, clock_ns=1, **CALM,
        )  # fmt: skip
        tables.append(with_cpu_time(run, ms).findings)
    assert len(tables[0]) > 1
    pd.testing.assert_frame_equal(*(pd.DataFrame(table) for table in tables), rtol=1e-3)


def with_cpu_time(run, ms):
    """The run, whose traced inferences took as much CPU time each; 0: an unknown time."""
    sessions = tuple(
        replace(s, batches=tuple(replace(b, cpu_ns=(int(1e6 * ms),) * 4) for b in s.batches))
        if s.traced else s
        for s in run.record.sessions
    )  # fmt: skip
    return replace(run, record=replace(run.record, sessions=sessions))


def test_tracing_is_timed_by_the_clock_of_the_latency_or_not_at_all(tmp_path):
    """CPU time of one thread, the wall time of several."""
    factors = dict.fromkeys(("Convolution", "GEMM", "Data Movement", "Elementwise", "Other"), 1.2)
    for threads, cost in ((1, 0.1), (2, 0.2)):
        run = open_made_run(
            tmp_path / f"{threads}", {"off": {threads: 6.713}, "on": {threads: 6.713}},
            factors={"off": factors, "on": factors}, traced=4, **CALM,
        )  # fmt: skip
        timed = with_cpu_time(run, 1.1 * 6.713)
        assert timed.subject.tracer_overhead == pytest.approx(cost, abs=0.02)
        assert set(timed.tracer_overhead) == {("off", threads), ("on", threads)}
        unknown = with_cpu_time(run, 0)
        assert math.isnan(unknown.subject.tracer_overhead) == (threads == 1)
        assert math.isnan(unknown.subject.traced_ms) == (threads == 1)
        assert bool(unknown.tracer_overhead) == (threads > 1)
        assert "tracer overhead" not in unknown.quality["criterion"].tolist() or threads > 1
        assert np.isfinite(unknown.findings["high_ms"]).any()


def test_throttling_and_emulation_count(tmp_path):
    reading = {"time": "t", "threads": 1, "process": 0, "traced": False}
    readings = [
        {**reading, "moment": "before", "mhz": 2000.0, "throttled": 5, "thermal_status": 0},
        {**reading, "moment": "after", "mhz": 1500.0, "throttled": 9, "thermal_status": 3},
    ]
    write_run(tmp_path, SIDES, traced=2, processes=2)
    manifest = tmp_path / "manifest.json"
    record = json.loads(manifest.read_text()) | {"readings": readings, "emulated": True}
    manifest.write_text(json.dumps(record))
    run = wb.open_run(tmp_path)
    quality = run.quality.set_index("criterion")
    assert quality.at["emulated", "grade"] == "C"
    assert quality.loc["throttling events", ["value", "grade"]].tolist() == ["5", "C"]
    assert "to raise it: " in str(wb.show(run, "quality"))
    assert run.checks.set_index("check").at["emulated", "status"] == "fail"


def test_every_criterion_is_a_check_and_bad_ones_are_worth_a_note(tmp_path):
    run = open_made_run(tmp_path, SIDES, control=True, traced=2, **CALM | {"processes": 2})
    checks = run.checks.set_index("check")
    assert set(run.quality["criterion"]) <= {*checks.index, "emulated"}
    for row in run.quality.itertuples():
        if row.criterion != "emulated":
            assert checks.at[row.criterion, "status"] == ("note" if row.grade == "C" else "ok")


@pytest.mark.parametrize(("budget_s", "text"), [(0.0, "6 of 6 steps"), (30.0, ", 6 steps")])
def test_of_a_budget_the_number_of_steps_is_not_known_in_advance(tmp_path, budget_s, text):
    run = open_made_run(tmp_path, SIDES, processes=3, traced=2)
    plan = replace(run.record.plan, budget_s=budget_s, processes=2 if budget_s else 3)
    run = replace(run, record=replace(run.record, plan=plan))
    assert text in run.checks.set_index("check").at["run is complete", "evidence"]


def test_parts_below_zero_are_a_failed_check_and_have_no_shares(tmp_path):
    run = open_made_run(tmp_path, {"off": 6.7, "on": 6.7}, traced=4, **CALM)
    on, rows = run["on"], run["on"].operators
    assert run["off"].impossible == "" and "shares" in run["off"].use.uses
    ms = rows["mean_ms"].where(rows.index != 0, -rows["mean_ms"])
    below = changed(on, operators=rows.assign(mean_ms=ms))
    assert below.use.uses == {"latency"}
    (row,) = [row for row in below.checks if row[0] == "parts of on are possible"]
    assert row[1] == "fail" and "would take -" in row[2]
