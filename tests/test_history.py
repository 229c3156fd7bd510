"""The history of runs: lines are kept apart, changes are found, and one run is no change."""

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from changed_runs import write_record
from run_folder import make_start, write_run
from synthetic import resample_run

import workbench as wb

SMALL = wb.open_run(wb.sample_run("Ready")).record
START = datetime(2026, 1, 1, tzinfo=UTC)
#: Latencies in ms of runs of one program, a day apart, by the device that they ran on.
LINES = {
    "one slow run": [10.0] * 8 + [10.8],
    "two slow runs": [10.0] * 8 + [10.8] * 2,
    **{f"disturbed {n}": [10.0] * n + [20.0] + [10.0] * (11 - n) for n in (1, 6, 10)},
    "three levels": [10.0] * 8 + [11.0] * 8 + [9.0] * 8,
    "within the margin": [10.0] * 10 + [10.1] * 10,
    "three runs": [10.0, 10.0, 20.0],
    "emulated": [10.0] * 4 + [20.0] * 4,
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The history of the made lines."""
    root = tmp_path_factory.mktemp("made")
    options = {"traced": 0, "rounds": 1, "batch": 1, "noise": 0, "drift": 0, "outliers": 0}
    for device, levels in LINES.items():
        rng = np.random.default_rng(0)
        scatter = 0.001 if device == "within the margin" else 0.01
        for number, ms in enumerate(levels * np.exp(rng.normal(0, scatter, len(levels)))):
            changes = {
                "started": (START + timedelta(days=number)).isoformat(),
                "host": {"cpu": device},
                "emulated": device == "emulated",
            }
            folder = root / device / f"run-{number}"
            write_run(folder, {"x": ms}, restart=0.008, seed=number, changes=changes, **options)
    return wb.read_history([root])


@pytest.mark.ci
def test_only_a_change_that_lasts_and_exceeds_the_margin_is_one(made):
    assert made.rows["line"].nunique() == len(LINES)
    folders = made.changes["run_dir"].map(lambda path: tuple(path.split("/")[-2:]))
    assert dict(zip(folders, made.changes["outcome"], strict=True)) == {
        ("two slow runs", "run-8"): "slower",
        ("three levels", "run-8"): "slower",
        ("three levels", "run-16"): "faster",
    }
    twice = made.changes[made.changes["runs"] == 2].iloc[0]
    assert twice["ratio"] == pytest.approx(1.08, rel=0.02)
    assert twice["low"] < twice["ratio"] < twice["high"]


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """Twelve runs of a model, the last six slower, and runs that differ in something."""
    root = tmp_path_factory.mktemp("archive")
    for number in range(12):
        run = resample_run(
            SMALL,
            factor=1.0 if number < 6 else 1.2,
            started=(START + timedelta(days=number)).isoformat(),
            scatter=0.005,
            seed=number,
        )
        write_record(run, root / "deep" / "down" / f"out_{number}" / "runs" / "linux")
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
        write_record(run, root / f"out_{name}" / "runs" / "linux")
    damaged = root / "out_damaged" / "runs" / "linux" / "manifest.json"
    damaged.parent.mkdir(parents=True)
    damaged.write_text("{")
    write_record(replace(SMALL, started="soon"), root / "out_timeless" / "runs" / "linux")
    return root


@pytest.fixture(scope="module")
def history(archive):
    return wb.read_history([archive, archive / "deep"])


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


@pytest.mark.ci
@pytest.mark.parametrize("started", ["9999-12-31T23:59:59-01:00", "0001-01-01T00:00:00+01:00"])
def test_a_time_that_no_clock_says_is_refused_and_a_hundred_runs_are_drawn(tmp_path, cli, started):
    days = [(START + timedelta(days=number)).isoformat() for number in range(97)]
    for number, when in enumerate([*days, started, "1970-01-02T00:00:00", "2026-11-01"]):
        write_record(replace(SMALL, started=when), tmp_path / str(number))
    code, out, err = cli("history", tmp_path, "--figure", tmp_path / "x.png")
    assert code == 0 and f"bad start time '{started}'" in out + err
    assert (tmp_path / "x.png").is_file() and "2026-11-01" in out


def test_changes_of_real_runs_are_found(history):
    assert len(history.changes) == 2
    assert history.changes["run_dir"].str.contains("out_6").all()
    assert len(history.exceeding({"latency": 0.05})) == 2
    assert history.exceeding({"latency": 0.5}).empty


@pytest.fixture(scope="module")
def grown(tmp_path_factory):
    """Ten runs, of which the last three start later and need more memory, all to the same page."""
    root = tmp_path_factory.mktemp("grown")
    for number in range(10):
        started = (START + timedelta(days=number)).isoformat()
        starts = (make_start("avx512_on", scale=1.0 if number < 7 else 1.3),)
        write_record(replace(SMALL, started=started, starts=starts), root / str(number))
    return root


def test_starts_and_memory_have_changes(grown):
    history = wb.read_history([grown])
    changes = history.changes.set_index("resource")
    assert changes["outcome"].to_dict() == {"first output": "slower", "peak memory": "more"}
    assert changes["ratio"].tolist() == pytest.approx([1.3, 1.3])
    assert "first output: slower, peak memory: more" in str(history.tables[0])
    assert not wb.plot_history(history.rows, history.changes).axes[0].texts


@pytest.mark.parametrize(
    ("flag", "limit", "code"),
    [
        ("--fail-start-above", "20%", 1),
        ("--fail-memory-above", "20%", 1),
        ("--fail-memory-above", "40%", 0),
        ("--fail-above", "20%", 0),
    ],
)
def test_starts_and_memory_are_held_to_limits(cli, grown, flag, limit, code):
    found = cli("history", grown, flag, limit, "--json")
    assert (found[0], json.loads(found[1])["passed"]) == (code, code == 0)


def test_a_program_with_wrong_outputs_becomes_no_faster(tmp_path):
    for number in range(10):
        run = resample_run(
            SMALL,
            factor=1.0 if number < 8 else 0.5,
            started=(START + timedelta(days=number)).isoformat(),
            scatter=0.005,
            seed=number,
        )
        wrong = replace(run, export=replace(run.export, problem="SQNR -0.2 dB"))
        write_record(run, tmp_path / "right" / f"{number}")
        write_record(run if number < 8 else wrong, tmp_path / "wrong" / f"{number}")
    assert set(wb.read_history([tmp_path / "right"]).changes["outcome"]) == {"faster"}
    history = wb.read_history([tmp_path / "wrong"])
    assert history.changes.empty and "wrong outputs" in str(history.tables[0])
    axis = wb.plot_history(history.rows, history.changes).axes[0]
    assert [len(dots.get_offsets()) for dots in axis.collections[1:]] == [10, 2]


def test_only_the_program_is_an_axis(archive):
    with pytest.raises(wb.WorkbenchError, match="unknown axis 'device' -> valid: program"):
        wb.read_history([archive], across=["device"])


@pytest.mark.parametrize("folder", [".hidden", "below/.venv", "env"])
def test_hidden_folders_and_python_environments_are_left_out(tmp_path, folder):
    write_record(SMALL, tmp_path / "runs" / "a")
    write_record(SMALL, tmp_path / folder / "b")
    (tmp_path / "env").mkdir(exist_ok=True)
    (tmp_path / "env" / "pyvenv.cfg").touch()
    found = {Path(row).name for row in wb.read_history([tmp_path]).rows["run_dir"]}
    assert found == {"a"}


def test_an_empty_folder_has_no_history(tmp_path):
    nothing = wb.read_history([tmp_path])
    assert nothing.rows.empty and nothing.changes.empty and nothing.problems == ()
    assert wb.plot_history(nothing.rows, nothing.changes).axes
    assert [str(table) for table in nothing.tables][1] == ""


def test_emulated_runs_have_no_figure(tmp_path, cli):
    write_record(replace(SMALL, emulated=True), tmp_path / "run")
    history = wb.read_history([tmp_path])
    figure = wb.plot_history(history.rows, history.changes)
    assert "emulated runs have none" in figure.alt_text and not figure.axes[0].axison
    code, out, err = cli("history", tmp_path, "--figure", "h.svg")
    assert code == 0 and "no figure: emulated runs have no times" in err and "h.svg" not in out
    assert not (tmp_path / "h.svg").exists()


def test_a_line_without_changes_says_so(archive):
    calm = wb.read_history([archive / "out_program"])
    lines, changes = calm.tables
    assert str(lines).count("| none |") == 2 and str(changes) == ""


def test_times_that_are_none_are_left_out(tmp_path):
    for name, times in (("empty", ()), ("zero", (0, 0)), ("negative", (-5, -5))):
        clocks = dict.fromkeys(("wall_ns", "cpu_ns", "preempted"), times)
        spoilt = tuple(
            replace(s, batches=tuple(replace(b, **clocks) for b in s.batches))
            for s in SMALL.sessions
        )
        write_record(replace(SMALL, sessions=spoilt), tmp_path / f"out_{name}" / "runs" / "linux")
    history = wb.read_history([tmp_path])
    assert history.rows["latency_ms"].isna().all() and history.changes.empty


def test_the_figure_marks_changes(history):
    odd = history.rows.assign(line=r"a $\frac{ b $ <c>")
    assert wb.plot_history(odd, history.changes[:0]).to_png()
    figure = wb.plot_history(history.rows, history.changes)
    figure.canvas.draw()
    dates = [label.get_text() for label in figure.axes[-1].get_xticklabels()]
    assert len(dates) > 1 and all(re.match(r"\d{4}-\d\d-\d\d", date) for date in dates)
    assert "slower" in figure.alt_text
    assert len(figure.axes) == 8
    assert "6 more lines are not shown" in figure.alt_text


@pytest.mark.ci
def test_the_command_lists_draws_and_gates(cli, archive, tmp_path):
    code, out, err = cli("history", archive, "--figure", "h.svg", "--csv", "h.csv")
    assert code == 0 and "slower" in out and err.count("skipped") == 2
    assert (tmp_path / "h.svg").read_bytes().startswith(b"<?xml")
    assert len(pd.read_csv(tmp_path / "h.csv")) == 24 + 14
    code, _, err = cli("history", archive / "out_program", "--figure", "h.gfi")
    assert code == 2 and "unknown format 'gfi'" in err
    code, out, _ = cli("history", archive, "--fail-above", "5%", "--json")
    found = json.loads(out)
    assert (code, found["passed"], len(found["changes"])) == (1, False, 2)
    assert cli("history", archive, "--fail-above", "50%")[0] == 0
    code, _, err = cli("history", "nowhere")
    assert code == 2 and "nowhere: no such folder" in err
    code, _, err = cli("history", "--fail-above", "5%")
    assert code == 2 and "no runs found" in err
