"""How good a measurement is: readings of the machine, repeated steps, budgets, grades."""

import itertools
import math
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planned import make_plan, record_in, run_plan
from synthetic import synthetic_latencies

import workbench as wb
from workbench import store
from workbench.analysis.compare import compare_latencies
from workbench.analysis.quality import (
    CRITERIA,
    count_outliers,
    grade_run,
    measure_drift,
    preempted_share,
    summarize_quality,
)
from workbench.cli import main
from workbench.datasets import sample_run
from workbench.frames import LATENCIES
from workbench.options import MeasureOptions
from workbench.records.runs import Batch, Reading, Session
from workbench.run import execute
from workbench.run.execute import MIN_RESTARTS, restarts
from workbench.run.runner import find_runner
from workbench.run.targets.host import HOST, parse_environment, read_environment
from workbench.workflow import is_precise

PHONE = """load 3.10 2.80 2.00 4/900 12345
khz 1800000
khz 1800000
khz 2850000
governor schedutil
governor schedutil
millidegrees 41500
millidegrees 0
millidegrees -274000
millidegrees 999999
Thermal Status: 2
"""
SERVER = """load 0.52 0.58 0.59 1/99 7
throttled 3
throttled 4
cpu MHz\t\t: 2596.100
cpu MHz\t\t: 2600.0
"""


def test_what_systems_print_is_understood():
    assert parse_environment(PHONE) == {
        "load": 3.1,
        "mhz": 1800.0,
        "governor": "schedutil",
        "temperature_c": 41.5,
        "thermal_status": 2,
    }
    assert parse_environment(SERVER) == {"load": 0.52, "mhz": 2598.1, "throttled": 7}
    assert parse_environment("{ 1.50 1.20 1.00 }")["load"] == 1.5
    assert parse_environment("") == {}


@given(st.text() | st.sampled_from([PHONE, SERVER]).map(lambda text: text[::2]))
def test_any_text_is_read_without_error(text):
    Reading("", "before", 1, 0, False, **parse_environment(text))


def test_this_machine_tells_something():
    assert read_environment(HOST).get("load") is not None


class Unreachable(type(HOST)):
    def command(self, argv):
        return ["/none/such", *argv]


def test_a_target_that_tells_nothing_is_no_error():
    assert read_environment(Unreachable()) == {}


def a_session(*, wall, cpu, process=0, threads=1, traced=False, preempted=None, attempts=1):
    preempted = preempted or [0] * len(wall)
    batch = Batch(0, 0, tuple(wall), tuple(cpu), tuple(preempted))
    return Session(
        "a", threads, process, traced, (), 1.0, 1.0, (batch,), attempts=attempts
    )  # fmt: skip


def test_disturbance_is_time_that_others_had():
    quiet, busy = a_session(wall=[10, 10], cpu=[10, 9]), a_session(wall=[10, 30], cpu=[10, 10])
    assert execute.disturbance([quiet]) == pytest.approx(0.05)
    assert execute.disturbance([busy]) == preempted_share([busy]) == pytest.approx(0.5)
    several = a_session(wall=[10, 10], cpu=[20, 20], threads=2, preempted=[0, 3])
    assert execute.disturbance([several]) == 0.5
    assert execute.disturbance([]) == 0.0


@pytest.fixture
def plan(conv_pte, tmp_path):
    pte = shutil.copy(conv_pte, tmp_path / "conv.pte")
    made = make_plan(
        Path(pte),
        MeasureOptions(runs=4, processes=2, warmup=1, toggle="none", cold_start=False),
        find_runner(),
    )
    return replace(made, batch_ms=0.5, traced_runs=2, retries=1, cool_down_s=0.0)


def test_a_disturbed_step_is_measured_twice_and_the_quieter_one_kept(plan, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(execute, "DISTURBED", -1.0)
    real = execute.attempt_step
    monkeypatch.setattr(
        execute,
        "attempt_step",
        lambda recorder, *rest: (real(recorder, *rest), seen.append(rest[-1])),
    )
    run_dir = run_plan(plan, find_runner(), tmp_path / "out")
    run = store.load_run(run_dir)
    repeated = {(s.process, s.traced) for s in run.sessions if s.attempts == 2}
    assert repeated == {(0, False)}  # one repetition was allowed
    assert len(seen) == 2 * 2 + 1
    assert len(run.readings) == 2 * 4
    assert {reading.moment for reading in run.readings} == {"before", "after"}
    assert run.spent_s > 0
    quality = wb.open_run(run_dir).quality
    twice = quality.set_index("criterion").loc["steps measured twice"]
    assert (twice["value"], twice["grade"]) == ("1", "B")


@pytest.mark.slow
def test_a_calm_step_is_measured_once(plan, tmp_path, monkeypatch):
    monkeypatch.setattr(execute, "DISTURBED", 2.0)
    run = store.load_run(run_plan(plan, find_runner(), tmp_path / "out"))
    assert {session.attempts for session in run.sessions} == {1}


@pytest.mark.slow
def test_a_budget_is_spent_and_no_more(plan, tmp_path, monkeypatch):
    clock = itertools.count()
    monkeypatch.setattr(execute.time, "monotonic", lambda: next(clock) / 2)  # a step takes long
    spent = replace(plan, budget_s=30.0, retries=0)
    run = store.load_run(run_plan(spent, find_runner(), tmp_path / "out"))
    restarts_done = {s.process for s in run.sessions}
    assert len(restarts_done) >= MIN_RESTARTS
    assert run.spent_s <= 30.0 or len(restarts_done) == MIN_RESTARTS


def recorder_with(plan, tmp_path, spent_s):
    runner = find_runner()
    tmp_path.mkdir(exist_ok=True)
    recorder = record_in(tmp_path / "run", plan, runner)
    recorder.run = replace(recorder.run, spent_s=spent_s)
    return recorder


def test_restarts_end_with_the_budget_or_when_it_is_enough(plan, tmp_path):
    assert list(restarts(recorder_with(plan, tmp_path / "a", 0.0), lambda run: True)) == [0, 1]
    budget = replace(plan, budget_s=10.0)
    assert list(restarts(recorder_with(budget, tmp_path / "b", 0.0), lambda run: True)) == [0, 1, 2]
    # As if the three restarts had taken 6 s: a fourth fits, a sixth would not.
    recorder = recorder_with(budget, tmp_path / "c", 0.0)
    taken = []
    for process in restarts(recorder, lambda run: False):
        taken.append(process)
        recorder.add_time(2.0)
    assert taken == [0, 1, 2, 3, 4]
    short = recorder_with(replace(plan, budget_s=0.1), tmp_path / "d", 99.0)
    assert list(restarts(short, lambda run: False)) == [0, 1, 2]


def test_precise_is_what_the_plan_calls_so():
    run = store.load_run(sample_run())
    assert is_precise(replace(run, plan=replace(run.plan, precision=0.5)))
    assert not is_precise(replace(run, plan=replace(run.plan, precision=1e-4)))


def graded(times=None, *, run=None, **noise):
    """The quality of synthetic latencies."""
    latencies = synthetic_latencies(times or {"a": 4.0, "b": 2.0, "c": 4.0}, **noise)
    row = compare_latencies(latencies, "a", "b", control="c")
    run = replace(run or store.load_run(sample_run()), sessions=(), readings=())
    return grade_run(run, latencies, row).set_index("criterion")["grade"]


def test_a_calm_measurement_gets_an_a():
    grades = graded(processes=8, noise=0.002, restart=0.001, drift=0.002, outliers=0.01)
    assert set(grades) == {"A"}


@pytest.mark.parametrize(
    ("noise", "criterion"),
    [
        ({"restart": 0.05}, "half width of the interval"),
        ({"processes": 2}, "restarts"),
        ({"drift": 0.4, "rounds": 20}, "drift within a restart"),
        ({"outliers": 0.2, "batch": 10}, "outliers"),
    ],
)
def test_what_is_bad_lowers_the_grade(noise, criterion):
    calm_noise = {"noise": 0.002, "restart": 0.001, "drift": 0.002, "outliers": 0.01}
    assert graded(**calm_noise, processes=8)[criterion] == "A"
    assert graded(**{**calm_noise, "processes": 8, **noise})[criterion] in "BCD"


def scatter_of(restarts_ms, cores):
    """The criterion for one program whose restarts took these times on these cores."""
    sessions = [
        replace(a_session(wall=[int(ms * 1e6)] * 4, cpu=[int(ms * 1e6)] * 4, process=n), core=core)
        for n, (ms, core) in enumerate(zip(restarts_ms, cores, strict=True))
    ]
    rows = [
        ("a", 1, n, False, k, k, *[int(ms * 1e6)] * 2, 0)
        for n, ms in enumerate(restarts_ms)
        for k in range(4)
    ]
    latencies = pd.DataFrame(rows, columns=LATENCIES.names)
    comparisons = pd.DataFrame({"floor": [0.0], "low": [1.0], "high": [1.0]})
    run = SimpleNamespace(sessions=sessions, emulated=False, readings=(), runner={"kind": "native"})
    table = grade_run(run, latencies, comparisons).set_index("criterion")
    return table.loc["scatter between restarts"]


def test_restarts_that_alternate_between_a_fast_and_a_slow_core_are_explained():
    row = scatter_of([3.20, 2.27, 3.19, 2.24, 3.18], [0, 1, 0, 1, 0])
    assert row["value"] == "18.2 %, core 0 takes 1.41x as long as core 1"
    assert row["grade"] == "D"


def test_scatter_that_cores_do_not_explain_names_none():
    assert scatter_of([3.20, 3.19, 2.27, 2.24, 3.18], [0, 1, 0, 1, 0])["value"] == "18.2 %"
    assert scatter_of([3.20, 2.27], [0, 1])["value"] == "24.0 %"
    calm = scatter_of([3.0, 3.01, 3.0, 3.02, 3.0], [None] * 5)
    assert (calm["value"], calm["grade"]) == ("0.3 %", "A")


@pytest.mark.parametrize(("overhead", "grade"), [(0.01, "A"), (-0.01, "A"), (-0.07, "C")])
def test_a_negative_tracer_overhead_is_noise(overhead, grade):
    latencies = synthetic_latencies({"a": 4.0, "b": 2.0})
    run = SimpleNamespace(sessions=[], emulated=False, readings=(), runner={"kind": "native"})
    table = grade_run(run, latencies, compare_latencies(latencies, "a", "b"), overhead)
    row = table.set_index("criterion").loc["tracer overhead"]
    assert row["grade"] == grade
    assert ("noise exceeds it" in row["value"]) == (overhead < 0)


def test_one_restart_is_not_enough_for_a_good_grade():
    assert graded(processes=1)["restarts"] == "D"


def test_throttling_frequency_and_emulation_count(monkeypatch):
    run = store.load_run(sample_run())
    reading = Reading("t", "before", 1, 0, False, mhz=2000.0, throttled=5, thermal_status=0)
    hot = replace(reading, moment="after", mhz=1500.0, throttled=9, thermal_status=3)
    latencies = synthetic_latencies({"a": 4.0, "b": 2.0})
    row = compare_latencies(latencies, "a", "b")
    bad = replace(run, readings=(reading, hot), emulated=True, sessions=())
    grades = grade_run(bad, latencies, row).set_index("criterion")
    assert grades.loc["emulated", "grade"] == "D"
    assert grades.loc["throttling events", ["value", "grade"]].tolist() == ["5", "C"]
    assert grades.loc["spread of the clock frequency", ["value", "grade"]].tolist() == [
        "33.3 %",
        "D",
    ]
    line = summarize_quality(grades.reset_index())
    assert line.startswith("measurement quality D: ")
    assert "; to raise it: " in line and "--target android" in line


def test_measures_of_drift_and_outliers():
    frame = synthetic_latencies({"a": 1.0}, noise=0, restart=0, drift=0, outliers=0, rounds=9)
    assert measure_drift(frame) == pytest.approx(0, abs=1e-6)
    assert count_outliers(frame) == 0
    climbing = frame.assign(cpu_ns=(frame["cpu_ns"] * (1 + frame["round"] / 80)).astype("int64"))
    # From the middle of rounds 0 to 2 to that of rounds 6 to 8.
    assert measure_drift(climbing) == pytest.approx(math.log((80 + 7) / (80 + 1)), rel=1e-3)
    spoilt = frame.copy()
    spoilt.loc[spoilt.index[::20], "cpu_ns"] *= 3
    assert 0.04 < count_outliers(spoilt) < 0.06


def test_every_criterion_names_its_source_and_limits_in_order():
    for criterion in CRITERIA.values():
        assert criterion.source
        assert list(criterion.limits) == sorted(criterion.limits)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--budget", "soon"], "not a duration"),
        (["--budget", "0s"], "not a duration"),
        (["--precision", "x"], "not a percentage"),
    ],
)
def test_bad_budgets_are_usage_errors(options, words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["run", "x.pte", *options])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_nan_latency_bounds_are_graded_as_unknown():
    latencies = synthetic_latencies({"a": 4.0, "b": 2.0}, processes=1, rounds=1)
    row = pd.DataFrame([{"high": np.nan, "low": np.nan, "floor": np.inf}])
    run = replace(store.load_run(sample_run()), sessions=(), readings=())
    table = grade_run(run, latencies, row).set_index("criterion")
    assert table.loc["half width of the interval", ["value", "grade"]].tolist() == ["unknown", "D"]
