"""The history of runs: lines are kept apart, changes are found, and one run is no change."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest
from synthetic import resample_run

import workbench as wb
from workbench.analysis.history import estimate_noise, find_changes, split_pieces
from workbench.errors import UsageError
from workbench.frames import HISTORY, check
from workbench.plots.latencies import plot_history
from workbench.portfolio.history import read_history, write_figure
from workbench.store import load_run, save_run

SMALL = load_run(wb.sample_run("Ready"))


def make_history(*levels, seed=0, noise=0.01, emulated=False, problem=""):
    """A line of runs at these levels."""
    rng = np.random.default_rng(seed)
    times = np.array(levels) * np.exp(rng.normal(0, noise, len(levels)))
    start = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [
        {
            **dict.fromkeys(("line", "model", "program", "device", "build", "experiment"), "x"),
            "run_dir": f"run-{number}",
            "started": (start + timedelta(days=number)).isoformat(),
            "threads": 1,
            "emulated": emulated,
            "problem": problem,
            "clock": "cpu_ns",
            "restarts": 5,
            "latency_ms": ms,
            "low_ms": ms * 0.99,
            "high_ms": ms * 1.01,
        }
        for number, ms in enumerate(times)
    ]
    frame = pd.DataFrame(rows, columns=HISTORY.names).astype({"emulated": "bool"})
    return check(frame, HISTORY)


def facts(changes):
    return list(changes[["run_dir", "outcome"]].itertuples(index=False, name=None))


def test_a_program_with_wrong_outputs_becomes_no_faster():
    right, wrong = make_history(*[10.0] * 8), make_history(5.0, 5.0, problem="SQNR -0.2 dB")
    wrong = wrong.assign(
        started=[f"2026-02-0{day}T00:00:00+00:00" for day in (1, 2)], run_dir=["w-0", "w-1"]
    )
    rows = pd.concat([right, wrong], ignore_index=True)
    assert facts(find_changes(rows.assign(problem=""))) == [("w-0", "faster")]
    assert find_changes(rows).empty
    axis = plot_history(rows, find_changes(rows)).axes[0]
    assert [len(dots.get_offsets()) for dots in axis.collections[1:]] == [10, 2]


def test_two_slow_runs_are_a_change_and_one_is_none():
    calm = [10.0] * 8
    assert facts(find_changes(make_history(*calm, 10.8))) == []
    twice = find_changes(make_history(*calm, 10.8, 10.8))
    assert facts(twice) == [("run-8", "slower")]
    assert twice["speedup"].iloc[0] == pytest.approx(10 / 10.8, rel=0.02)
    assert twice["low"].iloc[0] < 10 / 10.8 < twice["high"].iloc[0]


def test_one_disturbed_run_is_no_change():
    for place in range(1, 12):
        levels = [10.0] * 12
        levels[place] = 20.0
        assert find_changes(make_history(*levels)).empty


def test_every_level_of_a_line_is_found():
    levels = [*[10.0] * 10, *[11.0] * 10, *[9.0] * 10]
    assert facts(find_changes(make_history(*levels))) == [
        ("run-10", "slower"),
        ("run-20", "faster"),
    ]


def test_a_change_within_the_margin_is_none():
    assert facts(find_changes(make_history(*[10.0] * 20, *[10.1] * 20, noise=0.001))) == []


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_few_runs_have_no_changes(count):
    assert facts(find_changes(make_history(*[10.0] * count))) == []


def test_emulated_runs_never_change():
    assert facts(find_changes(make_history(*[10.0] * 8, *[20.0] * 8, emulated=True))) == []


def test_a_line_without_noise_does_not_divide_by_zero():
    history = make_history(*[10.0] * 6, *[12.0] * 6, noise=0.0).assign(
        low_ms=np.nan, high_ms=np.nan
    )
    assert len(find_changes(history)) <= 1
    assert split_pieces(np.zeros(8), 0.0) == [8]


@pytest.mark.parametrize("count", [8, 20, 50])
def test_false_alarms_are_rare(count):
    rng = np.random.default_rng(0)
    lines = [rng.normal(0, 0.01, count) for _ in range(400)]
    noise = [estimate_noise(line, np.array([0.008])) for line in lines]
    split = [len(split_pieces(*pair)) > 1 for pair in zip(lines, noise, strict=True)]
    assert sum(split) <= 0.02 * 400


def test_a_regression_of_five_per_cent_is_found():
    planted = [10.0] * 15 + [10.5] * 5
    lines = [make_history(*planted, seed=seed).assign(line=str(seed)) for seed in range(50)]
    changes = find_changes(pd.concat(lines, ignore_index=True))
    found = changes[changes["run_dir"] == "run-15"]
    assert len(found) >= 45
    assert ((found["low"] < 10 / 10.5) & (found["high"] > 10 / 10.5)).sum() >= 43


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """Twelve runs of a model, the last six slower, and runs that differ in something."""
    root = tmp_path_factory.mktemp("archive")
    start = datetime(2026, 1, 1, tzinfo=UTC)
    for number in range(12):
        run = resample_run(
            SMALL,
            factor=1.0 if number < 6 else 1.2,
            started=(start + timedelta(days=number)).isoformat(),
            scatter=0.005,
            seed=number,
        )
        save_run(run, root / "deep" / "down" / f"out_{number}" / "runs" / "linux")
    others = {
        "program": replace(SMALL, plan=replace(SMALL.plan, sha256="0" * 64)),
        "device": replace(SMALL, host={**SMALL.host, "cpu": "another"}),
        "platform": replace(SMALL, platform="linux-aarch64"),
        "emulated": replace(SMALL, emulated=True),
        "threads": replace(
            SMALL, sessions=tuple(replace(session, threads=4) for session in SMALL.sessions)
        ),
        "runner": replace(SMALL, runner={**SMALL.runner, "kind": "python"}),
        "inputs": replace(
            SMALL, plan=replace(SMALL.plan, inputs=(replace(SMALL.plan.inputs[0], shape=(2, 3)),))
        ),
    }
    for name, run in others.items():
        save_run(run, root / f"out_{name}" / "runs" / "linux")
    damaged = root / "out_damaged" / "runs" / "linux" / "manifest.json"
    damaged.parent.mkdir(parents=True)
    damaged.write_text("{")
    save_run(replace(SMALL, started="soon"), root / "out_timeless" / "runs" / "linux")
    return root


@pytest.fixture(scope="module")
def history(archive):
    return read_history([archive, archive / "deep"])


def test_what_differs_is_never_in_one_line(history):
    sizes = history.rows["line"].value_counts()
    assert sorted(sizes) == [*[1] * 14, 12, 12]
    assert history.rows["run_dir"].nunique() == 12 + 7
    lonely = history.rows[history.rows["line"].isin(sizes.index[sizes == 1])]
    assert lonely.loc[lonely["emulated"], "latency_ms"].isna().all()
    assert lonely["emulated"].sum() == 2
    assert lonely["line"][lonely["emulated"]].str.contains("emulated").all()


def test_what_cannot_be_read_is_named(history):
    assert len(history.problems) == 2
    assert any("out_damaged" in problem and "not JSON" in problem for problem in history.problems)
    assert any("bad start time 'soon'" in problem for problem in history.problems)


def test_changes_of_real_runs_are_found(history):
    assert len(history.changes) == 2
    assert history.changes["run_dir"].str.contains("out_6").all()
    assert len(history.slower_by(0.05)) == 2
    assert history.slower_by(0.5).empty


def test_a_declared_axis_joins_lines(archive):
    joined = read_history([archive], across=["program"])
    assert joined.rows["line"].value_counts().max() == 13
    with pytest.raises(UsageError, match="unknown axis 'device' -> valid: program"):
        read_history([archive], across=["device"])


def test_an_empty_folder_has_no_history(tmp_path):
    nothing = read_history([tmp_path])
    assert nothing.rows.empty and nothing.changes.empty and nothing.problems == ()
    assert plot_history(nothing.rows, nothing.changes).axes
    assert [str(table) for table in nothing.tables][1] == ""


def test_a_line_without_changes_says_so(archive):
    calm = read_history([archive / "out_program"])
    lines, changes = calm.tables
    assert str(lines).count("| none |") == 2 and str(changes) == ""


def test_times_that_are_none_are_left_out(tmp_path):
    for name, times in (("empty", ()), ("zero", (0, 0)), ("negative", (-5, -5))):
        spoilt = tuple(
            replace(
                s,
                batches=tuple(
                    replace(b, wall_ns=times, cpu_ns=times, preempted=times) for b in s.batches
                ),
            )
            for s in SMALL.sessions
        )
        save_run(replace(SMALL, sessions=spoilt), tmp_path / f"out_{name}" / "runs" / "linux")
    history = read_history([tmp_path])
    assert history.rows["latency_ms"].isna().all() and history.changes.empty


def test_the_figure_marks_changes(history, tmp_path):
    odd = make_history(*[10.0] * 8).assign(line=r"a $\frac{ b $ <c>")
    assert plot_history(odd, find_changes(odd)).to_png()
    figure = plot_history(history.rows, history.changes)
    assert "slower" in figure.alt_text
    assert len(figure.axes) == 8
    assert "6 more lines are not shown" in figure.alt_text
    assert write_figure(figure, tmp_path / "h.svg").read_bytes().startswith(b"<?xml")
    with pytest.raises(UsageError, match="unknown format 'gfi'"):
        write_figure(figure, tmp_path / "h.gfi")


def test_the_command_lists_draws_and_gates(cli, archive, tmp_path):
    code, out, err = cli("history", archive, "--figure", "h.png", "--csv", "h.csv")
    assert code == 0 and "slower" in out and err.count("skipped") == 2
    assert (tmp_path / "h.png").read_bytes().startswith(b"\x89PNG")
    assert len(pd.read_csv(tmp_path / "h.csv")) == 24 + 14
    code, out, _ = cli("history", archive, "--fail-above", "5%", "--json")
    found = json.loads(out)
    assert (code, found["passed"], len(found["changes"])) == (1, False, 2)
    assert cli("history", archive, "--fail-above", "50%")[0] == 0
    code, _, err = cli("history", "nowhere")
    assert code == 2 and "nowhere: no such folder" in err
    code, _, err = cli("history", "--fail-above", "5%")
    assert code == 2 and "no runs found" in err
