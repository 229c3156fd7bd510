"""Sweeps over ISA levels, thread counts and sizes, as an opened run shows them."""

import json
import re
from itertools import pairwise

import numpy as np
import pytest
from recorded import recorded, report_text
from run_folder import open_made_run

import workbench as wb

BRIEF = {"traced": 2, "drift": 0.01}


def ladder(folder, latencies_ms, **options):
    pairs = (("low", "high"), *pairwise(latencies_ms))
    given = BRIEF | {"toggle": "ladder", "control": "high", "pairs": pairs} | options
    return open_made_run(folder, latencies_ms, **given)


def test_the_ladder_finds_the_steps_that_are_there(tmp_path):
    run = ladder(tmp_path, {"low": 4.0, "mid": 2.0, "high": 2.0})
    levels = run.isa_levels
    assert levels["outcome"].iloc[1] == "faster"
    assert levels["outcome"].iloc[2] in ("unchanged", "inconclusive")
    assert levels["adds"].tolist() == ["", "mid", "high"]
    np.testing.assert_allclose(levels["latency_ms"], [4, 2, 2], rtol=0.03)
    np.testing.assert_allclose(levels["speedup"].iloc[1:], [2, 1], rtol=0.03)
    np.testing.assert_allclose(levels["total"], [1, 2, 2], rtol=0.03)
    assert (levels["latency_low_ms"] <= levels["latency_ms"]).all()
    step = run.compare("low", "mid").latency.iloc[0]
    wanted = step[["speedup", "low", "high"]].tolist()
    assert levels.loc[1, ["speedup", "low", "high"]].tolist() == pytest.approx(wanted)


def test_the_noise_floor_is_what_the_control_differs_from_its_own_original(tmp_path):
    times = {"low": 4.0, "high": 2.0}
    run = ladder(tmp_path, times, restart=0.05, processes=4)
    on, control = (run[name].latency_ms for name in ("high", "control"))
    floor = run.compare("low", "high").latency["floor"].item()
    assert floor >= abs(control / on - 1) * 0.9
    assert run.noise_floor == floor


def test_the_sweep_is_in_wall_time_and_says_what_threads_bring(tmp_path):
    times = {"low": {1: 8.0, 2: 4.0, 4: 1.0}, "high": {1: 4.0, 2: 2.0, 4: 2.0}}
    run = open_made_run(tmp_path, times, **BRIEF)
    table = run.scaling.set_index(["experiment", "threads"])
    assert table.at[("low", 2), "speedup"] == pytest.approx(2, rel=0.05)
    assert table.at[("low", 2), "efficiency"] == pytest.approx(1, rel=0.05)
    assert table.at[("low", 4), "outcome"] == "faster"
    assert table.at[("high", 4), "outcome"] == "faster", "than with one thread"
    timed = run["low", 4].latencies.query("not traced")
    assert table.at[("low", 4), "latency_ms"] == pytest.approx(
        timed["wall_ns"].median() / 1e6, rel=0.05
    )
    assert run.crossovers == (
        "4 threads were not shown to be faster than 2 for high",
        "from 4 threads on, low is faster than high",
        "low with 4 threads is faster than high with 1",
    )


def test_chosen_thread_counts_are_priced_with_intervals(tmp_path):
    times = {"off": {1: 8.0, 2: 4.0, 4: 4.4}, "on": {1: 4.0, 2: 2.0, 4: 2.2}}
    made = open_made_run(tmp_path / "made", times, **BRIEF)
    plan = wb.records.runs.Plan(
        **vars(made.record.plan) | {"thread_rules": ("one thread", "half", "all")}
    )
    first, second, *_ = open_made_run(tmp_path, times, changes={"plan": plan}, **BRIEF).crossovers
    assert first.startswith("off, wall time: 2 threads fastest here (half); 1 thread (one thread) ")
    ratio, low, high = (float(x) for x in re.findall(r"[0-9.]+(?=x| *,|\])", first.split("; ")[1]))
    assert low <= ratio <= high and ratio == pytest.approx(2, rel=0.05)
    assert "4 threads (all) 1.1" in second


def test_threads_that_share_a_unit_are_said_to_be_slower(tmp_path):
    times = {"off": {1: 8.0, 2: 4.0, 4: 2.0}, "on": {1: 2.0, 2: 2.6, 4: 2.6}}
    assert open_made_run(tmp_path, times, **BRIEF).crossovers == (
        "2 threads are slower than 1 for on",
        "4 threads were not shown to be faster than 2 for on",
        "from 4 threads on, off is faster than on",
    )


def test_changes_with_the_size_are_sentences(tmp_path):
    times = {"b4_off": None, "b4_on": None, "b8_off": None, "b8_on": None}
    factors = {"b4_on": {"Convolution": 0.2}, "b8_on": {"Convolution": 0.5}}
    pairs = (("b4_off", "b4_on"), ("b8_off", "b8_on"))
    sizes = {"b4": 4, "b8": 8}
    run = open_made_run(tmp_path, times, factors=factors, pairs=pairs, sizes=sizes, **BRIEF)
    off, on, pays = run.size_changes
    assert off == "off, 1 thread: most time in Convolution at every size"
    assert on == "on, 1 thread: most time in GEMM from batch=4, then Convolution from batch=8"
    assert pays.startswith("on over off, 1 thread: ")
    assert "x at batch=4, " in pays and pays.endswith("x at batch=8")
    again = wb.open_run(tmp_path)
    for side in again.measurements[:2]:
        vars(side)["use"] = side.use._replace(uses=frozenset({"latency"}), off=1.0)
    assert again.phases["category"].tolist()[:2] == ["", ""]
    off, on, again_pays = again.size_changes
    assert again_pays == pays and "at every size" in off and "from batch=4" not in on


@pytest.mark.whole
def test_steps_of_isa_levels_are_rows():
    squeezesam = recorded("squeezesam")
    levels = squeezesam.isa_levels
    (axis,) = wb.show(squeezesam, "sweeps").parts[0].axes
    assert [label.get_text() for label in axis.get_yticklabels()] == list(levels["level"][1:])
    dots = [line.get_xdata()[0] for line in axis.lines if line.get_marker() == "o"]
    assert dots == list(levels["speedup"].dropna())


def test_a_run_without_sweeps_says_how_to_make_one():
    run = recorded()
    assert "--isa-ladder" in str(wb.show(run, "sweeps"))
    assert (run.isa_levels, run.scaling, run.size_changes) == (None, None, ())


def test_what_sweeps_bring_is_printed_and_in_the_summary(tmp_path, cli):
    times = {"low": {1: 8.0, 2: 4.0}, "high": {1: 4.0, 2: 4.0}}
    run = open_made_run(tmp_path, times, **BRIEF)
    wb_code, _, _ = cli("analyze", str(run.path))
    summary = json.loads((run.path / "analysis_summary.json").read_text())
    assert wb_code == 0 and summary["crossovers"] == list(run.crossovers) != []
    assert [row["threads"] for row in summary["scaling"]] == [1, 2, 1, 2]
    assert summary["ladder"] is None


@pytest.fixture(scope="module")
def swept(conv_pte, tmp_path_factory):
    """A run of the whole ladder at two thread counts, of a small program."""
    options = {"threads": (1, 2), "runs": 2, "warmup": 1, "processes": 2, "roof": False}
    options = wb.MeasureOptions(isa_ladder=True, cold_start=False, **options)
    try:
        return wb.measure(conv_pte, options=options, root=tmp_path_factory.mktemp("ladder"))
    except Exception as error:
        if "no extension to hide" in str(error):
            pytest.skip("this CPU has nothing to hide")
        raise


@pytest.mark.cases
def test_every_level_of_this_cpu_is_measured_in_one_run(swept):
    levels = swept.experiments
    assert levels[-1] == "native"
    masked = [swept.masked(level) for level in levels]
    assert all(below > above for below, above in pairwise(masked))
    assert list(swept.isa_levels["level"]) == [*levels, *levels]
    assert (swept.isa_levels.loc[swept.isa_levels["level"] != levels[0], "adds"] != "").all()
    assert len(swept.scaling) == 2 * len(levels)
    checks = swept.checks.set_index("check")["status"]
    effects = checks[checks.index.str.startswith("toggle took effect")]
    assert effects.iloc[0] == "ok"
    assert set(effects) <= {"ok", "note"}
    outputs = checks[checks.index.str.startswith("outputs of")]
    assert (outputs == "ok").all()
    assert len(outputs) == len(swept.comparisons)


@pytest.mark.cases
def test_the_ladder_is_in_the_report_with_what_it_does_not_cover(swept):
    report = report_text(swept)
    assert "## What do extensions, threads and sizes bring?" in report
    assert "portable and optimized kernels" in report
    assert "microarchitecture" in report
    assert "| native |" in report
    assert "% new" in report or "not sampled" in report
