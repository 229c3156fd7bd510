"""The history of runs: lines are kept apart, changes are found, and one run is no change."""

import json
import re
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from changed_runs import change_manifest, edit_json
from made_models import net, put
from made_starts import make_start
from manifests import write_manifest
from run_folder import write_run
from synthetic import resample_run

import workbench as wb
from workbench.plugins.history.change_points import estimate_noise, find_changes, split_pieces
from workbench.plugins.history.read import HISTORY

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
    options = {"traced": 1, "rounds": 1, "batch": 1, "noise": 0, "drift": 0, "outliers": 0}
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


@pytest.mark.whole
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
        write_manifest(run, root / "deep" / "down" / f"out_{number}" / "runs" / "linux")
    others = {
        "export": replace(SMALL, export=replace(SMALL.export, rewrite=("softmax",))),
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
        write_manifest(run, root / f"out_{name}" / "runs" / "linux")
    damaged = root / "out_damaged" / "runs" / "linux" / "manifest.json"
    damaged.parent.mkdir(parents=True)
    damaged.write_text("{")
    write_manifest(replace(SMALL, started="soon"), root / "out_timeless" / "runs" / "linux")
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


@pytest.mark.whole
@pytest.mark.parametrize("started", [
    "9999-12-31T23:59:59-01:00",
    pytest.param("0001-01-01T00:00:00+01:00", marks=pytest.mark.cases),
])  # fmt: skip
def test_a_time_that_no_clock_says_is_refused_and_a_hundred_runs_are_drawn(tmp_path, cli, started):
    days = [(START + timedelta(days=number)).isoformat() for number in range(97)]
    for number, when in enumerate([*days, started, "1970-01-02T00:00:00", "2026-11-01"]):
        write_manifest(replace(SMALL, started=when), tmp_path / str(number))
    code, out, err = cli("history", tmp_path, "--figure", tmp_path / "x.png")
    assert code == 0 and f"bad start time '{started}'" in out + err
    assert (tmp_path / "x.png").is_file() and "| 99 |" in out


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
        write_manifest(replace(SMALL, started=started, starts=starts), root / str(number))
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
        write_manifest(run, tmp_path / "right" / f"{number}")
        write_manifest(run if number < 8 else wrong, tmp_path / "wrong" / f"{number}")
    assert set(wb.read_history([tmp_path / "right"]).changes["outcome"]) == {"faster"}
    history = wb.read_history([tmp_path / "wrong"])
    assert history.changes.empty and "wrong outputs" in str(history.tables[0])
    axis = wb.plot_history(history.rows, history.changes).axes[0]
    assert [len(dots.get_offsets()) for dots in axis.collections[1:]] == [10, 2]


@pytest.mark.parametrize("folder", [".hidden", "below/.venv", "env"])
def test_hidden_folders_and_python_environments_are_left_out(tmp_path, folder):
    write_manifest(SMALL, tmp_path / "runs" / "a")
    write_manifest(SMALL, tmp_path / folder / "b")
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
    write_manifest(replace(SMALL, emulated=True), tmp_path / "run")
    history = wb.read_history([tmp_path])
    figure = wb.plot_history(history.rows, history.changes)
    assert "emulated runs have none" in figure.alt_text and not figure.axes[0].axison
    code, out, err = cli("history", tmp_path, "--figure", "h.svg")
    assert code == 0 and "no figure: emulated runs have no times" in err and "h.svg" not in out
    assert not (tmp_path / "h.svg").exists()


def test_a_line_without_changes_says_so(archive):
    calm = wb.read_history([archive / "out_export"])
    lines, changes = calm.tables
    assert str(lines).count("| none |") == 2 and str(changes) == ""


def test_times_that_are_none_are_left_out(tmp_path):
    for name, times in (("empty", ()), ("zero", (0, 0)), ("negative", (-5, -5))):
        clocks = dict.fromkeys(("wall_ns", "cpu_ns", "preempted"), times)
        spoilt = tuple(
            replace(s, batches=tuple(replace(b, **clocks) for b in s.batches))
            for s in SMALL.sessions
        )
        write_manifest(replace(SMALL, sessions=spoilt), tmp_path / f"out_{name}" / "runs" / "linux")
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


@pytest.mark.whole
def test_the_command_lists_draws_and_gates(cli, archive, tmp_path):
    code, out, err = cli("history", archive, "--figure", "h.svg", "--csv", "h.csv")
    assert code == 0 and "slower" in out and err.count("skipped") == 2
    assert (tmp_path / "h.svg").read_bytes().startswith(b"<?xml")
    assert len(pd.read_csv(tmp_path / "h.csv")) == 24 + 14
    code, _, err = cli("history", archive / "out_export", "--figure", "h.gfi")
    assert code == 2 and "unknown format 'gfi'" in err
    code, out, _ = cli("history", archive, "--fail-above", "5%", "--json")
    found = json.loads(out)
    assert (code, found["passed"], len(found["changes"])) == (1, False, 2)
    assert cli("history", archive, "--fail-above", "50%")[0] == 0
    code, _, err = cli("history", "nowhere")
    assert code == 2 and "nowhere: no such file or folder" in err
    code, _, err = cli("history", "--fail-above", "5%")
    assert code == 2 and "no runs found" in err


@pytest.mark.parametrize("count", [8, 20, 50])
def test_false_alarms_are_rare(count):
    rng = np.random.default_rng(0)
    lines = [rng.normal(0, 0.01, count) for _ in range(400)]
    noise = [estimate_noise(line, np.array([0.008])) for line in lines]
    split = [len(split_pieces(*pair)) > 1 for pair in zip(lines, noise, strict=True)]
    assert sum(split) <= 0.02 * 400


def test_a_regression_of_five_per_cent_is_found():
    rng = np.random.default_rng(0)
    times = np.repeat([10.0, 10.5], [15, 5]) * np.exp(rng.normal(0, 0.01, (50, 20)))
    place = np.indices(times.shape).reshape(2, -1)
    history = pd.DataFrame({"line": place[0], "run_dir": place[1], "started": place[1]}).astype(str)
    history["started"] = history["started"].str.zfill(2)
    history["run"] = history["run_dir"]
    history = history.assign(emulated=False, problem="", restarts=5, latency_ms=times.ravel())
    history = history.assign(high_ms=1.01 * history["latency_ms"])
    changes = find_changes(history.reindex(columns=HISTORY.names))
    found = changes[changes["run_dir"] == "15"]
    assert len(found) >= 45
    assert ((found["low"] < 1.05) & (found["high"] > 1.05)).sum() >= 43


def test_pages_of_runs_without_starts_have_no_empty_columns(tmp_path):
    folder = shutil.copytree(wb.sample_run("unet_small"), tmp_path / "run")
    change_manifest(folder, starts=[])
    table = str(wb.read_history([folder]).tables[0])
    assert "first output" not in table and "latency (ms)" in table


def test_a_history_is_of_one_model(tmp_path):
    sides = [
        net("mlp"), net("mlp", created="later", versions={"executorch": "1.5.0"}),
        net("mlp", rewrite=("softmax",)), net("mlp", options={"group_size": "64"}),
        net("linear"), net("", created="one"), net("", created="other"),
    ]  # fmt: skip
    for number, side in enumerate(sides):
        put(tmp_path, f"{number}", side, 10.0)
    joined = wb.read_history([tmp_path]).rows.set_index("run_dir")["line"]
    lines = [joined[f"{tmp_path / 'runs' / str(number)}"] for number in range(7)]
    assert lines[0] == lines[1] and len(set(lines)) == 6


def test_the_history_names_the_problem_of_the_program_that_ran(tmp_path):
    run_dir = shutil.copytree(wb.sample_run("toy_cnn"), tmp_path / "run")

    def add_program(content):
        plan, wrong = content["plan"], "its outputs differ from the model's: SQNR 1 dB"
        fields = ("pte", "sha256", "model", "stem", "inputs", "input_source")
        plan["programs"] = [{name: plan[name] for name in fields} | {"name": "b"}]
        plan["experiments"][1]["program"] = "b"
        content["exports"] = {"b": content["export"] | {"problem": wrong}}

    edit_json(run_dir / "manifest.json", add_program)
    history = wb.read_history([run_dir])
    assert history.rows["problem"].tolist() == ["", "SQNR 1 dB"]


def test_a_program_that_was_renamed_stays_in_its_line(tmp_path):
    for pte in ("a.pte", "b.pte"):
        put(tmp_path / pte, "run", replace(net("mlp"), pte=pte), 10.0)
    assert wb.read_history([tmp_path]).rows["line"].nunique() == 1


@pytest.mark.whole
def test_a_history_has_the_needs_of_every_run(tmp_path):
    write_manifest(replace(SMALL, starts=(make_start("avx512_on", scale=1.5),)), tmp_path / "run")
    history = wb.read_history([tmp_path])
    row = history.rows.set_index("experiment").loc["avx512_on"]
    assert row["first_output_ms"] == pytest.approx(1.5 * 10.1)
    assert row["peak_mb"] == pytest.approx(1.5 * 1.0)
    assert "| peak (MB) |" in str(history.tables[0])
