"""Readings of the machine, steps that are measured again, and budgets."""

import itertools
import math
import re
import shutil
import zipfile
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from command_line import COMMANDS
from hypothesis import given
from hypothesis import strategies as st
from planned import make_plan, record_in, run_plan
from record_programs import SHIPPED, design_probes, export_probe, name_probe

import workbench as wb
from workbench import store
from workbench.analysis.quality import CRITERIA, describe_quality
from workbench.analysis.use import Use, decide_use, describe_use
from workbench.cli import main
from workbench.errors import UsageError
from workbench.frames import QUALITY
from workbench.options import MeasureOptions
from workbench.records.runs import Batch, Reading, Session
from workbench.run import allocation
from workbench.run import steps as timing
from workbench.run.execute import MIN_RESTARTS, restarts
from workbench.run.runner import find_runner
from workbench.run.targets.host import HOST, parse_environment, read_environment

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


def a_session(*, wall, cpu, process=0, threads=1, traced=False, preempted=None):
    preempted = preempted or [0] * len(wall)
    batch = Batch(0, 0, tuple(wall), tuple(cpu), tuple(preempted))
    return Session(
        "a", threads, process, traced, (), 1.0, 1.0, (batch,)
    )  # fmt: skip


def test_disturbance_is_time_that_others_had():
    quiet, busy = a_session(wall=[10, 10], cpu=[10, 9]), a_session(wall=[10, 30], cpu=[10, 10])
    assert allocation.preempted_share([quiet]) == pytest.approx(0.05)
    assert allocation.preempted_share([busy]) == pytest.approx(0.5)
    assert math.isnan(allocation.preempted_share([]))


@pytest.fixture
def plan(conv_pte, tmp_path):
    pte = shutil.copy(conv_pte, tmp_path / "conv.pte")
    made = make_plan(
        Path(pte),
        MeasureOptions(
            runs=4, processes=2, warmup=1, toggle="none", cold_start=False, evidence=False
        ),
        find_runner(),
    )
    return replace(made, batch_ms=0.5, traced_runs=2)


@pytest.mark.whole
def test_the_machine_is_read_before_and_after_each_step(plan, tmp_path):
    run = store.load_run(run_plan(plan, find_runner(), tmp_path / "out"))
    assert len(run.readings) == 1 + 2
    assert {reading.moment for reading in run.readings} == {"before", "after"}
    assert run.spent_s > 0


@pytest.mark.whole
def test_a_budget_is_spent_and_no_more(plan, tmp_path, monkeypatch):
    clock = SimpleNamespace(monotonic=itertools.count().__next__)  # a step takes long
    monkeypatch.setattr(timing, "time", clock)  # of steps alone: others have real deadlines
    spent = replace(plan, budget_s=3.0)
    run = store.load_run(run_plan(spent, find_runner(), tmp_path / "out"))
    restarts_done = {s.process for s in run.sessions}
    assert len(restarts_done) >= MIN_RESTARTS
    assert run.spent_s <= 3.0 or len(restarts_done) == MIN_RESTARTS


def recorder_with(plan, tmp_path, spent_s):
    runner = find_runner()
    tmp_path.mkdir(exist_ok=True)
    recorder = record_in(tmp_path / "run", plan, runner)
    recorder.run = replace(recorder.run, spent_s=spent_s)
    return recorder


def test_restarts_end_with_the_budget(plan, tmp_path):
    given = recorder_with(plan, tmp_path / "a", 0.0)
    assert list(restarts(given)) == [0, 1]
    budget = replace(plan, budget_s=10.0)
    # As if the three restarts had taken 6 s: a fourth fits, a sixth would not.
    recorder = recorder_with(budget, tmp_path / "c", 0.0)
    taken = []
    for process in restarts(recorder):
        taken.append(process)
        recorder.update(spent_s=recorder.run.spent_s + 2.0)
    assert taken == [0, 1, 2, 3, 4]
    short = recorder_with(replace(plan, budget_s=0.1), tmp_path / "d", 99.0)
    assert list(restarts(short)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--budget", "soon"], "not a duration"),
        (["--budget", "0s"], "not a duration"),
    ],
)
def test_bad_budgets_are_usage_errors(options, words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["run", "x.pte", *options])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_an_emulated_run_has_no_ceilings(tmp_path):
    run = replace(store.load_run(wb.sample_run()), emulated=True)
    store.save_run(run, tmp_path)
    with pytest.raises(UsageError, match="no ceilings"):
        wb.measure_roof(tmp_path)


def test_the_ceilings_of_another_machine_are_not_measured_here(tmp_path, monkeypatch, own_cache):
    monkeypatch.setenv("XDG_CACHE_HOME", str(own_cache))
    run = store.load_run(wb.sample_run())
    store.save_run(replace(run, host={**run.host, "cpu": "Another One"}), tmp_path)
    with pytest.raises(UsageError, match="Another One"):
        wb.measure_roof(tmp_path)


@pytest.fixture
def own_run(tmp_path, monkeypatch, own_cache):
    """The sample run, as if it had been made here, on a machine of no known peaks."""
    unknown = shutil.ignore_patterns("ceilings")
    shutil.copytree(own_cache, tmp_path / "cache", symlinks=True, ignore=unknown)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("workbench.run.ceilings.SECONDS", 0.002)
    runner = wb.find_runner()
    run = replace(store.load_run(wb.sample_run()), host=runner.target.outline())
    store.save_run(replace(run, runner=runner.description), tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.whole
def test_peaks_are_measured_as_far_as_a_run_needs_them_and_kept(own_run, monkeypatch):
    monkeypatch.setattr("workbench.run.ceilings.STEADY", math.inf)  # so short, they scatter
    peaks = wb.measure_roof(own_run)
    assert [each.isa for each in peaks] == ["avx2", "native"]
    for each in peaks:
        assert {p.dtype for p in each.probes if p.kind == "gemm"} == {"fp32"}
        assert all(p.ms > 0 for p in each.probes)
        assert (own_run / f"ceilings_{each.isa}_t1.json").is_file()
    assert wb.measure_roof(own_run) == peaks, "kept, not measured again"
    run = store.load_run(own_run)
    store.save_run(replace(run, export=replace(run.export, dtype="int8dyn")), own_run)
    for before, after in zip(peaks, wb.measure_roof(own_run), strict=True):
        assert after.probes[:-1] == before.probes and after.probes[-1].dtype == "int8"


@pytest.mark.cases
def test_disturbed_peaks_are_measured_again_later_and_the_best_counts(own_run, monkeypatch):
    monkeypatch.setattr("workbench.run.ceilings.STEADY", -1.0)
    peaks = wb.measure_roof(own_run)
    assert wb.measure_roof(own_run) == peaks, "not at once"
    monkeypatch.setattr("workbench.run.ceilings.RETRY", timedelta(0))
    for before, after in zip(peaks, wb.measure_roof(own_run), strict=True):
        assert all(new.ms <= old.ms for old, new in zip(before.probes, after.probes, strict=True))
        assert after.probes != before.probes


@pytest.mark.cases
def test_the_shipped_probes_are_what_is_exported_today():
    """Long chains of one operator are left out: they take a minute."""
    short = [design for design in design_probes() if design[0].operators <= 16]
    assert {probe.kind for probe, *_ in short} == {"gemm", "stream", "read", "program"}
    with zipfile.ZipFile(SHIPPED) as shipped:
        for design in short:
            assert export_probe(*design) == shipped.read(name_probe(design[0]))


# --- What a measurement may be used for. ---

FACTS = Use(label="on", taken=0.02, off=0.01, width=0.01, tracing=0.0)


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        ({}, ""),
        ({"taken": 0.73, "off": 0.3}, "This machine was busy (73 % of the time went to other "
         "programs): measure again when it is idle; shares are within 30 points"),
        ({"taken": 0.73, "off": 0.7}, "This machine was busy (73 % of the time went to other "
         "programs): measure again when it is idle; shares are unknown"),
        ({"taken": 0.73, "off": 0.7, "width": 0.6}, "This machine was busy (73 % of the time went "
         "to other programs): measure again when it is idle; latency and shares are unknown"),
        ({"width": 0.6}, "on: the latency is unknown: its interval is ± 60 %"),
        ({"off": 0.08, "tracing": 0.07},
         "on: shares are within 8 points: tracing adds 7.0 % that is not accounted for"),
        ({"off": 0.08, "tracing": -0.07},
         "on: shares are within 8 points: traced inferences are 7.0 % shorter"),
        ({"off": 0.7}, "on: shares are unknown: they differ between restarts"),
        ({"impossible": "too short"}, "on: shares are unknown: too short"),
    ],
)  # fmt: skip
def test_one_line_says_what_does_not_hold_and_withholds_no_more(facts, line):
    use = decide_use(FACTS._replace(**facts), largest=0.54)
    assert "".join(describe_use([use])) == line
    assert ("shares" in use.uses) == ("shares are unknown" not in line)
    assert ("latency" in use.uses) == ("latency" not in line)
    assert describe_use([use, use]) == describe_use([use])


def a_quality(*criteria):
    rows = [(name, "9 %", "C", "1 %", "why") for name in criteria]
    return QUALITY.check(pd.DataFrame(rows, columns=QUALITY.names))


@pytest.mark.parametrize("criterion", CRITERIA)
def test_a_grade_names_options_of_every_command_that_may_state_it(criterion):
    """Grades are stated by all commands that measure or read a run."""
    text = describe_quality(a_quality(criterion))
    assert CRITERIA[criterion].remedy in text
    for name, command in COMMANDS.items():
        options = {flag for option in command.params for flag in option.opts}
        assert {*re.findall(r"--[a-z][a-z-]*", text)} <= options, name


def test_a_grade_says_nothing_about_what_may_be_used():
    line = describe_quality(a_quality(*CRITERIA))
    assert not re.search("hold|use|older version", line.replace("because", "").replace("used", ""))
