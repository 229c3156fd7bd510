"""The ladder of ISA levels and the sweep over threads: planned, measured, analysed, drawn."""

import json
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from planned import make_plan, run_plan
from recorded import report_text
from synthetic import synthetic_latencies

import workbench as wb
from workbench import store
from workbench.analysis.compare import compare_latencies
from workbench.analysis.statistics import restart_latencies
from workbench.analysis.sweeps import (
    compare_isa_levels,
    describe_sizes,
    find_crossovers,
    fit_sizes,
    sweep_threads,
)
from workbench.errors import SetupError, UsageError
from workbench.options import MeasureOptions
from workbench.plots.scaling import plot_isa_levels, plot_threads
from workbench.records.runs import LADDER_TOGGLE
from workbench.report.artifacts import write_artifacts
from workbench.run.isa import Isa, find_levels, read_isa
from workbench.run.plan import choose_experiments, plan_levels
from workbench.run.runner import find_runner

LEVELS = ("low", "mid", "high")


def an_isa(*features, self_check="ok"):
    levels = {
        "native": (),
        "a": ("x",),
        "b": ("x", "y"),
        "c": ("x", "y", "z"),
    }
    return Isa("any", features, levels, self_check)


def test_levels_that_hide_the_same_count_once():
    assert find_levels(an_isa("x", "y", "z")) == ("c", "b", "a", "native")
    assert find_levels(an_isa("y", "z")) == ("c", "b", "native")
    assert find_levels(an_isa("z")) == ("c", "native")


def test_without_extensions_or_self_check_there_is_no_ladder():
    with pytest.raises(UsageError, match="no extension to hide"):
        find_levels(an_isa())
    with pytest.raises(SetupError, match="moved"):
        find_levels(an_isa("x", self_check="moved"))


def test_pairs_are_the_ends_and_all_neighbours():
    experiments, pairs = plan_levels(LEVELS)
    assert [e.name for e in experiments] == [*LEVELS, "control"]
    assert [(p.baseline, p.candidate) for p in pairs] == [("low", "high"), *pairwise(LEVELS)]
    assert len(plan_levels(LEVELS[:2])[1]) == 1


def test_a_toggle_and_isa_ladder_exclude_each_other():
    with pytest.raises(UsageError, match="--toggle x: --isa-ladder measures every level"):
        choose_experiments(MeasureOptions(toggle="x", isa_ladder=True), an_isa("x"))


def crossed(**by_threads):
    """Latencies of ``LEVELS`` for several thread counts: ``t1={...}, t2={...}``."""
    parts = [
        synthetic_latencies(times, threads=int(count[1:]), seed=int(count[1:]))
        for count, times in by_threads.items()
    ]
    return pd.concat(parts, ignore_index=True)


def test_the_ladder_finds_the_steps_that_are_there():
    times = {"low": 4.0, "mid": 2.0, "high": 2.0, "again": 2.0}
    latencies = synthetic_latencies(times, drift=0.01)
    ladder = compare_isa_levels(latencies, LEVELS, threads=1, control="again", control_of="high")
    assert ladder["outcome"].iloc[1] == "faster"
    assert ladder["outcome"].iloc[2] in ("equivalent", "inconclusive")
    np.testing.assert_allclose(ladder["latency_ms"], [4, 2, 2], rtol=0.03)
    np.testing.assert_allclose(ladder["speedup"].iloc[1:], [2, 1], rtol=0.03)
    np.testing.assert_allclose(ladder["total"], [1, 2, 2], rtol=0.03)
    assert (ladder["latency_low_ms"] <= ladder["latency_ms"]).all()
    step = compare_latencies(latencies, "low", "mid", control="again", control_of="high").iloc[0]
    assert ladder.loc[1, ["speedup", "low", "high"]].tolist() == pytest.approx(
        step[["speedup", "low", "high"]].tolist()
    )


def test_the_floor_is_what_the_control_differs_from_its_own_original():
    latencies = synthetic_latencies({"off": 4.0, "on": 2.0, "on again": 2.1})
    row = compare_latencies(latencies, "off", "on", control="on again", control_of="on").iloc[0]
    assert 0.03 < row["floor"] < 0.12
    assert row["outcome"] == "faster"


def test_the_sweep_is_in_wall_time_and_says_what_threads_bring():
    latencies = crossed(
        t1={"low": 8.0, "high": 4.0}, t2={"low": 4.0, "high": 2.0}, t4={"low": 1.0, "high": 2.0}
    )
    table = sweep_threads(latencies, ["low", "high"]).set_index(["experiment", "threads"])
    assert table.at[("low", 2), "speedup"] == pytest.approx(2, rel=0.05)
    assert table.at[("low", 2), "efficiency"] == pytest.approx(1, rel=0.05)
    assert table.at[("low", 4), "outcome"] == "faster"
    assert table.at[("high", 4), "outcome"] == "faster"  # against one thread
    wall = restart_latencies(latencies.query("experiment == 'low' and threads == 4"), "wall_ns")
    assert table.at[("low", 4), "latency_ms"] == pytest.approx(wall.mean())
    found = find_crossovers(latencies, ["low", "high"])
    assert found == [
        "4 threads were not shown to be faster than 2 for high",
        "from 4 threads on, low is faster than high",
        "low with 4 threads is faster than high with 1",
    ]


def test_threads_that_share_a_unit_are_said_to_be_slower():
    latencies = crossed(
        t1={"nosme": 8.0, "sme2": 2.0},
        t2={"nosme": 4.0, "sme2": 2.6},
        t4={"nosme": 2.0, "sme2": 2.6},
    )
    assert find_crossovers(latencies, ["nosme", "sme2"]) == [
        "2 threads are slower than 1 for sme2",
        "4 threads were not shown to be faster than 2 for sme2",
        "from 4 threads on, nosme is faster than sme2",
    ]


def test_figures_have_a_row_or_a_line_for_everything():
    times = {"low": 4.0, "mid": 2.0, "high": 1.9, "again": 1.9}
    latencies = crossed(t1=times, t2=times)
    noise = {"control": "again", "control_of": "high"}
    figure = plot_isa_levels(compare_isa_levels(latencies, LEVELS, threads=2, **noise))
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == list(LEVELS)
    assert "2.0" in figure.alt_text
    figure = plot_threads(sweep_threads(latencies, LEVELS))
    assert all(name in figure.alt_text for name in LEVELS)


def test_a_line_through_latencies_finds_the_fixed_and_the_growing_part():
    times = {f"s_{n}": 2.0 + 0.25 * n**2 for n in (2, 4, 8)}
    sides = {f"s_{n}": ("on", n) for n in (2, 4, 8)}
    latencies = synthetic_latencies(times, drift=0.0, outliers=0.0, processes=8)
    (line,) = fit_sizes(latencies, sides, 2).itertuples()
    assert line.fixed_low_ms < 2.0 < line.fixed_high_ms
    assert line.each_low_ms < 0.25 < line.each_high_ms
    assert line.off < 0.02
    (bent,) = fit_sizes(latencies, sides, 1).itertuples()
    assert bent.off > 0.1
    assert fit_sizes(latencies, dict(list(sides.items())[:2]), 2).empty, "two points show nothing"


def test_changes_with_the_size_are_sentences():
    rows = [("on", 1, 8.0, "GEMM"), ("on", 1, 4.0, "Other"), ("off", 1, 4.0, "GEMM")]
    phases = pd.DataFrame(rows, columns=["side", "threads", "size", "category"])
    rows = [
        ("on over off", 8, "faster", 1.5),
        ("on over off", 4, "slower", 0.5),
        ("x", 2, "slower", 0),
    ]
    speedups = pd.DataFrame(rows, columns=["label", "size", "outcome", "speedup"])
    assert describe_sizes(phases, "batch", speedups) == [
        "off, 1 thread: most time in GEMM at every size",
        "on, 1 thread: most time in Other from batch=4, then GEMM from batch=8",
        "x: not faster at any size",
        "on over off: 1.50x at batch=8",
    ]


@pytest.fixture(scope="module")
def swept(conv_pte, tmp_path_factory):
    """A run of the whole ladder at two thread counts, of a small program."""
    runner = find_runner()
    isa = read_isa(runner.command)
    if isa.self_check != "ok" or not isa.features:
        pytest.skip("this CPU has nothing to hide")
    folder = tmp_path_factory.mktemp("ladder")
    pte = Path(shutil.copy(conv_pte, folder / "conv.pte"))
    plan = make_plan(
        pte, MeasureOptions(isa_ladder=True, threads=(1, 2), runs=2, warmup=1, processes=2), runner
    )
    plan = replace(plan, batch_ms=0.1, traced_runs=2)
    run_dir = run_plan(plan, runner, folder / "out")
    write_artifacts(wb.open_run(run_dir))
    return run_dir


@pytest.mark.slow
def test_every_level_of_this_cpu_is_measured_in_one_run(swept):
    run = store.load_run(swept)
    levels = find_levels(read_isa(find_runner().command))
    assert run.plan.toggle == LADDER_TOGGLE
    assert tuple(e.isa for e in run.plan.experiments if not e.control) == levels
    masked = {s.experiment: set(s.masked) for s in run.sessions}
    for below, above in pairwise(levels):
        assert masked[below] > masked[above]
    analysis = wb.open_run(swept)
    assert list(analysis.isa_levels["level"]) == [*levels, *levels]
    assert (analysis.isa_levels.loc[analysis.isa_levels["level"] != levels[0], "adds"] != "").all()
    assert len(analysis.scaling) == 2 * len(levels)
    checks = analysis.checks.set_index("check")["status"]
    effects = checks[checks.index.str.startswith("toggle took effect")]
    assert effects.iloc[0] == "ok"
    assert set(effects) <= {"ok", "note"}
    outputs = checks[checks.index.str.startswith("outputs of")]
    assert (outputs == "ok").all()
    assert len(outputs) == 2 * len(run.plan.pairs)


@pytest.mark.slow
def test_the_ladder_is_in_the_artifacts_with_what_it_does_not_cover(swept):
    summary = json.loads((swept / store.SUMMARY).read_text())
    assert [row["level"] for row in summary["ladder"]][-1] == "native"
    assert {row["threads"] for row in summary["scaling"]} == {1, 2}
    report = report_text(wb.open_run(swept))
    assert "portable and optimized kernels" in report
    assert "microarchitecture" in report
    assert "| native |" in report
    assert "% new" in report or "not sampled" in report
