"""Configs of the kit, and runners of one's own: read, checked, measured, reported."""

import contextlib
import json
import re
import shlex
import shutil
import subprocess
import time
from pathlib import Path

import mutants
import pandas as pd
import pytest
from devices import COPY_TRACE, needs_compiler
from recorded import report_text

import workbench as wb
from workbench.errors import RunnerError, StoreError, TargetError
from workbench.plugins.kit.config import plan_config, read_config
from workbench.plugins.kit.custom_runner import process_command, run_process
from workbench.run.targets.host import Host

#: An executor_runner as upstream's: these flags and no others, no server mode.
STAND_IN = """#!/bin/sh
for word in "$@"; do case "$word" in
  --model_path|--num_executions|--cpu_threads|--etdump_path|--inputs|[!-]*) ;;
  *) echo "unknown flag $word" >&2; exit 1;;
esac; done
{log}
exec {runner} "$@" --isa {level} >/dev/null
"""
KERNEL_LINE = "Using gemm microkernel 'xnn_f32_gemm_minmax_ukernel_{kernel}'."


def stand_in(path, level, log=""):
    (runner,) = wb.find_runner().command
    path.write_text(STAND_IN.format(runner=shlex.quote(runner), level=level, log=log))
    path.chmod(0o755)
    return str(path)


def make_executable(path, body=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def hidden_level():
    """The level that hides most of this CPU."""
    isa = wb.read_isa(wb.find_runner().command)
    level = list(isa.levels)[-1]
    if not isa.hidden_by(level):
        pytest.skip("this CPU has nothing to switch off")
    return level


@pytest.fixture
def kit(conv_pte, tmp_path, monkeypatch):
    """A config as the kit has them, with two stand-ins, and the folder it is run from."""
    monkeypatch.chdir(tmp_path)
    Path("models").mkdir()
    shutil.copy(conv_pte, "models/conv_xnnpack_fp32.pte")
    Path("run ners").mkdir()
    experiments = []
    for name, level in (("sme2_off", hidden_level()), ("sme2_on", "native")):
        runner = stand_in(Path("run ners") / name, level)
        experiments.append(
            {"name": name, "runner_path": runner, "mode": "timing", "runs": 10, "warmup": 2,
             "threads": [1, 2]}
        )  # fmt: skip
    for side, kernel in (("off", "7x16__avx_broadcast"), ("on", "7x16__avx512f_broadcast")):
        line = KERNEL_LINE.format(kernel=kernel)
        runner = stand_in(Path("run ners") / f"log_{side}", "native", f'echo "{line}" >&2')
        experiments.append(
            {"name": f"trace_{side}", "runner_path": runner, "mode": "xnntrace", "num_threads": 1}
        )
    config = {
        "model": "models/conv_xnnpack_fp32.pte",
        "output_root": "out_conv/runs/mac",
        "experiments": experiments,
        "analysis": {
            "compare_pairs": [
                {
                    "baseline": {"experiment": "sme2_off", "threads": 1},
                    "candidate": {"experiment": "sme2_on", "threads": 1},
                    "label": "SME2 on, one thread",
                },
                {
                    "baseline": {"experiment": "sme2_on", "threads": 1},
                    "candidate": {"experiment": "sme2_on", "threads": 2},
                },
            ]
        },
    }
    Path("kit.json").write_text(json.dumps(config))
    return config


@pytest.mark.cases
@needs_compiler
def test_a_kit_config_with_two_runner_paths_runs_unchanged(kit, cli):
    code, out, err = cli("run", "kit.json")
    assert code == 0, err
    out = out.splitlines()
    assert out[0].startswith("conv_xnnpack_fp32: ")
    assert "(SME2 on, one thread), 1 thread" in out[0]
    assert out[-1] == "out_conv/runs/mac"
    run_dir = Path(out[-1])
    run = wb.open_run(run_dir)
    assert run.record.state == "complete"
    assert run.record.runner["kind"] == "executor_runner"
    names = {path.name for path in run_dir.iterdir()}
    assert {"manifest.json", "metrics.json", "analysis_summary.json"} <= names
    for threads in (1, 2):
        stem = f"sme2_on/conv_xnnpack_fp32_sme2_on_t{threads}"
        for ending in (".etdump", ".log", "_all_runs_timeline.csv", "_ops_stats.csv"):
            assert (run_dir / f"{stem}{ending}").is_file(), stem + ending
    rows = run.statistics.set_index(["experiment", "threads"])
    assert rows.at[("sme2_on", 1), "n"] == 10  # five processes, two runs each after the warm-up
    table = pd.read_csv(next(run_dir.glob("sme2_on/*_t1_all_runs_timeline.csv")))
    assert sorted(set(table["run_index"])) == [*range(10)], "of all processes"
    assert set(rows["clock"]) == {"wall_ns"}
    sides = [[(m.name, m.threads) for m in (c.baseline, c.candidate)] for c in run.comparisons]
    assert sides == [
        [("sme2_off", 1), ("sme2_on", 1)],
        [("sme2_on", 1), ("sme2_on", 2)],
    ]
    summary = json.loads((run_dir / "analysis_summary.json").read_text())
    assert summary["comparisons"][1]["candidate"] == {"experiment": "sme2_on", "threads": 2}
    (changes,) = run.kernel_changes.values()
    assert changes["change"].tolist() == ["changed"]
    checks = run.checks.set_index("check")
    assert "traced" in checks.at["runner", "evidence"]
    page = report_text(wb.open_run(run_dir))
    assert "7x16__avx512f_broadcast" in page
    assert "Method::execute in the ETDump (traced)" in page


@pytest.mark.whole
@needs_compiler
def test_chosen_experiments_that_only_log_kernels_run_alone(kit, cli):
    kit["experiments"].reverse()  # the kit lists the candidate first
    Path("kit.json").write_text(json.dumps(kit))
    names = ["--only", "trace_off", "--only", "trace_on"]
    code, out, err = cli("run", "kit.json", *names, "--target", "host", "--verbose")
    assert code == 0, err
    assert "trace_on against trace_off: 1 of 1 kinds of microkernel differ" in out
    run_dir = Path(out.splitlines()[-1])
    run = wb.open_run(run_dir)
    assert {s.experiment for s in run.record.sessions} == {"trace_on", "trace_off"}
    tables = [
        f"trace_{side}/conv_xnnpack_fp32_trace_{side}_t1_kernels.csv" for side in ("off", "on")
    ]
    assert all("xnn_f32_gemm" in (run_dir / name).read_text() for name in tables)
    with pytest.raises(wb.WorkbenchError, match="only kernel logs"):
        wb.make_report(run)
    code, _, err = cli("run", "kit.json", "--only", "trace_onn")
    assert code == 2
    assert "did you mean 'trace_on'?" in err


@pytest.mark.cases
@needs_compiler
def test_a_config_with_additional_keys(conv_pte, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(conv_pte, "conv.pte")
    experiments = [{"name": "all", "threads": [1, 2], "num_runs": 2}]
    experiments += [{"name": "none", "isa": hidden_level(), "threads": 1, "cpu_affinity": "1"}]
    Path("x.json").write_text(json.dumps({"model": "conv.pte", "experiments": experiments}))
    run = wb.run_config("x.json")
    assert {(s.experiment, s.threads) for s in run.record.sessions if not s.traced} == {
        *(("all", 1), ("all", 2), ("none", 1), ("control", 1))
    }
    assert [(c.candidate.name, c.candidate.threads) for c in run.comparisons] == [("all", 1)]
    assert run.record.plan.direction == "none, by isa and isa_off"
    defaults = wb.MeasureOptions
    assert {e.warmup for e in run.record.plan.experiments} == {defaults.warmup}
    assert [e.runs for e in run.record.plan.experiments] == [2, defaults.runs, defaults.runs]


@pytest.fixture
def copies(tmp_path, monkeypatch):
    """Write a config of runners that copy a trace, each with a name; in the kit's order."""
    monkeypatch.chdir(tmp_path)
    Path("x.pte").write_bytes(b"x")

    def write(*names, **keys):
        entries = [
            {"name": name, "runner_path": f"{make_executable(tmp_path / name, COPY_TRACE)}",
             "runs": 2, "warmup": 0}
            for name in names
        ]  # fmt: skip
        content = {"model": "x.pte", "experiments": entries, "output_root": "out/runs/mac", **keys}
        Path("x.json").write_text(json.dumps(content))
        return Path("x.json")

    return write


@pytest.mark.parametrize("place", ["../elsewhere", "{}/elsewhere", "out/../../elsewhere"])
def test_only_with_runners_of_its_own_a_config_writes_elsewhere(tmp_path, cli, place):
    content = {"model": "x.pte", "experiments": [{"name": "a"}], "output_root": place}
    (tmp_path / "x.pte").write_bytes(b"x")
    text = json.dumps(content).replace("{}", str(tmp_path.parent))
    (tmp_path / "x.json").write_text(text)
    code, _, err = cli("run", "x.json")
    assert code == 2
    assert re.search("output_root .*: leads outside of the working folder -> .*--out", err)


def test_a_long_path_is_cut_in_an_error(cli):
    code, _, err = cli("report", "x" * 6000)
    assert code == 1
    assert len(err) < 1000


@pytest.mark.whole
def test_the_same_config_continues_and_never_overwrites(copies, cli):
    """Its processes are interleaved: every second one backwards, each pair another way."""
    first = wb.run_config(copies("a", "b", "c"))
    orders = [
        [s.experiment for s in first.record.sessions if s.process == process]
        for process in range(5)
    ]
    assert (orders[1], orders[3]) == (orders[0][::-1], orders[2][::-1])
    assert orders[0] != orders[2] != orders[4]
    assert {tuple(sorted(order)) for order in orders} == {("a", "b", "c", "control")}

    second = wb.run_config("x.json").path
    assert second.name == "mac-2"
    assert f"a newer run has the name {second}" in cli("findings", first.path)[2]
    assert "a newer run" not in cli("report", first.path, second)[2]
    assert "newer" not in cli("findings", second)[2]
    manifest = first.path / "manifest.json"
    content = json.loads(manifest.read_text())
    partial = [session for session in content["sessions"] if session["process"] < 2]
    manifest.write_text(json.dumps({**content, "state": "incomplete", "sessions": partial}))
    again = wb.run_config("x.json")
    assert again.path == first.path
    assert len(again.record.sessions) == len(first.record.sessions)


@pytest.mark.whole
def test_the_extension_is_credited_though_the_config_lists_it_first(copies, cli):
    """As all of the kit's configs: ``sme2_on`` first, ``compare_pairs`` empty."""
    run = wb.run_config(copies("sme2_on", "sme2_off", analysis={"compare_pairs": []}))
    (ab,) = run.comparisons
    assert (ab.baseline.name, ab.candidate.name) == ("sme2_off", "sme2_on")
    about = run.description.set_index("what")["value"]
    assert about["baseline"] == "sme2_off, by name"
    assert "ISA level" not in about["experiments"]
    assert "batches" not in about["protocol"]
    # The kit's reports choose sides by parts of names: the control's has none of another.
    assert [e.name for e in run.record.plan.experiments if e.control] == ["control"]
    swapped = wb.open_run(run.path, baseline="sme2_on")
    assert [ab.candidate.name for ab in swapped.comparisons] == ["sme2_off"]
    for command in ("analyze", "findings"):
        code, _, err = cli(command, run.path.resolve(), "--baseline", "sme2_on")
        assert code == 0, err
    with pytest.raises(wb.WorkbenchError, match="unknown experiment 'sme'"):
        wb.run_config("x.json", baseline="sme")
    run = wb.run_config(copies("control", "b"))
    assert [e.name for e in run.record.plan.experiments if e.control] == ["control_"]


ENTRY = {"name": "a", "runner_path": "/bin/true"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"experiments": []}, "1 to 64 experiments"),
        ({"experiments": 5}, "not a list of experiments"),
        ({"experiments": [ENTRY, ENTRY]}, "two experiments have the name 'a'"),
        ({"experiments": [{**ENTRY, "name": "../../etc"}]}, "is not a valid experiment name"),
        ({"experiments": [{**ENTRY, "mode": "timming"}]}, "did you mean 'timing'?"),
        ({"experiments": [{**ENTRY, "threads": [0]}]}, "threads is out of range"),
        ({"experiments": [{**ENTRY, "runs": 1.5}]}, "$.experiments[0].runs: expected int"),
        ({"experiments": [{**ENTRY, "warmup": -1}]}, "warmup is out of range"),
        ({"experiments": [{**ENTRY, "cpu_affinity": "zz"}]}, "not a CPU mask"),
        ({"experiments": [{**ENTRY, "extra_args": ["x" * 5000]}]}, "too long"),
        ({"experiments": [{**ENTRY, "extra_args": ["--warmup", "x"]}]}, "invalid int value: 'x'"),
        ({"experiments": [{**ENTRY, "extra_args": ["--timing-runs=-1"]}]}, "runs is out of range"),
        ({"model": "REPLACE_WITH_PATH_TO_MODEL_PTE"}, "write the path of a .pte there"),
        ({"experiments": [ENTRY, {"name": "b"}]}, "only some experiments"),
        ({"experiments": [{**ENTRY, "runner_path": "none/such"}]}, "no such runner"),
        ({"experiments": [{**ENTRY, "runner_path": "config.json"}]}, "not executable"),
        ({"model": "none.pte"}, "none.pte: no such file"),
        ({"power": "boost"}, "power boost: only Android devices"),
        (
            {"analysis": {"compare_pairs": [
                {"baseline": {"experiment": "aa"}, "candidate": {"experiment": "a"}}]}},
            "did you mean 'a'?",
        ),
        (
            {"analysis": {"compare_pairs": [
                {"candidate": {"experiment": "a"}, "baseline": {"experiment": "a", "threads": 4}}
            ]}},
            "unknown thread count '4'",
        ),
    ],
)  # fmt: skip
def test_a_bad_config_names_what_is_wrong(tmp_path, monkeypatch, change, words):
    monkeypatch.chdir(tmp_path)
    Path("x.pte").write_bytes(b"x")
    path = Path("config.json")
    path.write_text(json.dumps({"model": "x.pte", "experiments": [ENTRY], **change}))
    with pytest.raises(wb.WorkbenchError, match=re.escape(words)):
        wb.run_config(path)
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "x.pte"}


def plan_of(path, progress=lambda text, fraction: None):
    """The plan of a config, of whose runners none makes a trace."""
    with contextlib.suppress(wb.WorkbenchError):
        wb.run_config(path, root=path.parent / "out", progress=progress)
    (manifest,) = (path.parent / "out").rglob("manifest.json")
    plan = json.loads(manifest.read_text())["plan"]
    shutil.rmtree(path.parent / "out")
    return plan


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"modle": "x"}, "unknown key 'modle' is ignored -> did you mean 'model'?"),
        ({"experiments": [{**ENTRY, "runer_path": "x"}]}, "did you mean 'runner_path'?"),
        ({"analysis": {"compare_pair": []}}, "did you mean 'compare_pairs'?"),
        ({"description": "of the kit"}, "unknown key 'description' is ignored"),
    ],
)
def test_an_unknown_key_is_a_warning(tmp_path, change, words):
    path, texts = tmp_path / "config.json", []
    (tmp_path / "x.pte").write_bytes(b"x")
    path.write_text(json.dumps({"model": "x.pte", "experiments": [ENTRY], **change}))
    assert plan_of(path, lambda text, fraction: texts.append(text))["experiments"][0]["name"] == "a"
    (warning,) = [text for text in texts if text.startswith("warning: ")]
    assert words in warning


#: The configs of the kit: platform, model, and the keys that vary between its versions.
KIT_CONFIGS = {
    f"{platform}_{stem}": {
        "model": f"{place}/artifacts/{stem}.pte",
        "output_root": f"{place}/runs/{platform}",
        "experiments": [
            {
                "name": f"{platform}_sme2_{side}",
                key: f"executorch/cmake-out/{build}{ending}/executor_runner",
                "mode": "timing",
                "runs": 10,
                "warmup": 1,
                "threads": [1],
            }
            for side, ending in (("on", ""), ("off", "-sme2-off"))
        ],
        "analysis": {"compare_pairs": []},
    }
    for platform, build, place, stem, key in (
        ("mac", "mac-arm64", "model_profiling/out_toy_cnn", "toy_cnn_xnnpack_fp16", "runner_path"),
        ("mac", "mac-arm64", "out_mobilenet", "mobilenet_v3_small_xnnpack_fp16", "quiet_runner"),
        ("android", "android-arm64-v9a", "out_a/b", "efficient_sam_xnnpack_fp32", "runner_path"),
    )
}


@pytest.mark.parametrize("name", KIT_CONFIGS)
@pytest.mark.parametrize("start", [".", "executorch", "elsewhere"])
def test_paths_of_the_kit_are_found_from_its_checkouts(tmp_path, monkeypatch, name, start):
    config = KIT_CONFIGS[name]
    place = tmp_path / "model_profiling" / "configs" / "examples"
    place.mkdir(parents=True)
    for folder in ("executorch", "elsewhere"):
        (tmp_path / folder).mkdir()
    (place / "x.json").write_text(json.dumps(config))
    runners = [
        make_executable(tmp_path / (entry.get("runner_path") or entry["quiet_runner"]))
        for entry in config["experiments"]
    ]
    # The workbench exports beside the kit's checkout, without its folder.
    pte = tmp_path / config["model"].removeprefix("model_profiling/")
    pte.parent.mkdir(parents=True)
    pte.write_bytes(b"x")
    monkeypatch.chdir(tmp_path / start)
    texts = []
    plan = plan_of(place / "x.json", lambda text, fraction: texts.append(text))
    assert not any("warning" in text for text in texts)
    assert Path(plan["pte"]).resolve() == pte
    assert [Path(e["runner"]) for e in plan["experiments"][:2]] == runners
    assert {(e["runs"], e["warmup"]) for e in plan["experiments"]} == {(10, 1)}


@needs_compiler
def test_every_config_of_the_kit_runs_from_off_to_on(
    profiling_kit, conv_pte, tmp_path, monkeypatch
):
    """The model and its runners are stand-ins."""
    configs = sorted(profiling_kit.glob("model_profiling/configs/**/*.json"))
    assert configs
    for number, path in enumerate(configs):
        root = tmp_path / str(number)
        place = root / path.relative_to(profiling_kit)
        place.parent.mkdir(parents=True)
        shutil.copy(path, place)
        config = json.loads(path.read_text())
        for entry in config["experiments"]:
            level = hidden_level() if "off" in entry["runner_path"] else "native"
            stand_in(make_executable(root / entry["runner_path"]), level)
        (root / config["model"]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(conv_pte, root / config["model"])
        monkeypatch.chdir(root)
        run = wb.run_config(place)
        (ab,) = run.comparisons
        assert ab.baseline.name.endswith("_sme2_off"), path
        assert ab.candidate.name.endswith("_sme2_on"), path
        assert run.record.plan.direction == f"{ab.baseline.name}, by name"
        assert run.path.resolve() == (root / config["output_root"]).resolve()


def read_entry(tmp_path, **keys):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model": "x.pte", "experiments": [{"name": "a", **keys}]}))
    (tmp_path / "x.pte").write_bytes(b"x")
    return plan_of(path)["experiments"][0]


def test_defaults_are_those_of_the_kit_for_its_runners(tmp_path):
    runner = str(make_executable(tmp_path / "executorch" / "cmake-out" / "executor_runner"))
    for name in ("executorch/cmake-out/executor_runner", "cmake-out/executor_runner", runner):
        entry = read_entry(tmp_path, runner_path=name)
        assert (entry["runner"], entry["runs"], entry["warmup"]) == (runner, 100, 10)
    assert read_entry(tmp_path, runner_path=runner, warmup=0)["warmup"] == 0


def test_options_of_the_kits_script_are_not_passed_to_the_runner(tmp_path):
    quiet, verbose = (str(make_executable(tmp_path / name)) for name in ("quiet", "verbose"))
    extra = ["--verbose-runner", verbose, "--timing-runs=7", "--warmup", "2", "--data_path", "x"]
    for mode, runner in (("timing", quiet), ("xnntrace", verbose)):
        entry = read_entry(tmp_path, runner_path=quiet, mode=mode, extra_args=extra)
        assert (entry["runner"], entry["runs"], entry["warmup"]) == (runner, 7, 2)
        assert entry["extra_args"] == ["--data_path", "x"]


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"{" * 5000, b" " * 1_000_001, None])
def test_other_files_are_not_configs(tmp_path, content):
    path = tmp_path / "x.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(wb.WorkbenchError, match=r"^\S*x\.json: "):
        wb.run_config(path)


def test_options_and_a_config_contradict_each_other(tmp_path, cli):
    (tmp_path / "x.json").write_text("{}")
    code, _, err = cli("run", "x.json", "--threads", "2")
    assert code == 2
    assert "--threads: the config sets this" in err


@pytest.fixture
def run_script(tmp_path):
    """Measure with a script as the runner; returns the error, of one line."""

    def fail(script):
        (tmp_path / "x.pte").write_bytes(b"x")
        runner = make_executable(tmp_path / "runner", script)
        entry = {"name": "a", "runner_path": str(runner)}
        (tmp_path / "x.json").write_text(json.dumps({"model": "x.pte", "experiments": [entry]}))
        with pytest.raises(wb.WorkbenchError, match=r"^\S*runner: ") as caught:
            wb.run_config(tmp_path / "x.json", root=tmp_path / "out")
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return fail


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo no such model >&2; exit 3", "ended with code 3 (no such model)"),
        ("kill -9 $$", "killed by signal 9"),
        ("printf 'a\\033[31mred\\n'; exit 1", "a\\x1b[31mred"),
        ("sleep 60", "did not end within"),
        (f'{COPY_TRACE}; : > "$word"', "wrote no ETDump"),
    ],
)
def test_a_runner_that_fails_is_one_line(run_script, monkeypatch, script, words):
    if "within" in words:
        real = subprocess.Popen.wait
        monkeypatch.setattr(
            subprocess.Popen, "wait", lambda p, timeout=None: real(p, timeout and 0.3)
        )
    assert words in run_script(script)


def test_a_log_is_cut_while_it_is_written(run_script, tmp_path):
    said = run_script("yes | head -c 40000000; echo the end")
    assert "; the end)" in said
    (log,) = (tmp_path / "out").rglob("*.log")
    assert log.stat().st_size == 16 * 2**20


def test_what_a_runner_leaves_behind_is_killed(run_script, tmp_path):
    mark = tmp_path / "mark"
    assert "(started)" in run_script(f"(sleep 1; touch {mark}) & echo started")
    time.sleep(1.2)
    assert not mark.exists()


@pytest.mark.parametrize("key", ["program", "model"])
def test_an_experiment_of_a_config_may_name_its_program(programs, tmp_path, key):
    entries = [{"name": "before"}, {"name": "after", key: str(programs[2])}]
    for entry in entries:
        entry["runner_path"] = shutil.which("true")
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model": str(programs[0]), "experiments": entries}))
    plan, _ = plan_config(read_config(path), tmp_path)
    assert [e.program for e in plan.experiments] == ["", "pair", ""]
    commands = [process_command(plan, e, 1, 1, "") for e in plan.experiments]
    ran = [command[command.index("--model_path") + 1] for command in commands]
    assert ran == [str(programs[0]), str(programs[2]), str(programs[0])]
    entries[1][key] = "nowhere.pte"
    path.write_text(json.dumps({"model": str(programs[0]), "experiments": entries}))
    with pytest.raises(StoreError, match=r"nowhere\.pte: no such file"):
        plan_config(read_config(path), tmp_path)


def test_programs_of_a_config_get_the_inputs_that_they_take(programs, tmp_path):
    entries = [{"name": "before", "runs": 4}, {"name": "after", "program": str(programs[2])}]
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model": str(programs[0]), "experiments": entries}))
    plan, _ = plan_config(read_config(path), tmp_path, runner=wb.find_runner())
    ran = {e.name: plan.program_of(e) for e in plan.experiments}
    assert [(p.baseline, p.candidate) for p in plan.pairs] == [("before", "after")]
    assert [t.dtype for t in ran["before"].inputs] == ["float32"]
    assert [t.dtype for t in ran["after"].inputs] == ["float32", "int64"]
    (control,) = (e for e in plan.experiments if e.control)
    assert ran[control.name] == ran[plan.pairs[0].baseline]


def test_a_trace_that_cannot_be_copied_says_why(programs, tmp_path):
    class FullDisk(Host):
        def pull(self, remote, path):
            raise TargetError("No space left on device", where="board")

    entry = {"name": "a", "runner_path": shutil.which("true")}
    config = {"model": str(programs[0]), "experiments": [entry]}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    plan, _ = plan_config(read_config(path), tmp_path)
    with pytest.raises(RunnerError, match="wrote no ETDump; No space left on device") as error:
        run_process(tmp_path, plan, plan.experiments[0], 1, 0, FullDisk())
    assert isinstance(error.value.__cause__, TargetError)


def make_configs(folder: Path) -> list[bytes]:
    """A config of ours, and one of the kit's shape."""
    (folder / "a.pte").write_bytes(b"x")
    (folder / "runner").write_text("#!/bin/sh\n")
    (folder / "runner").chmod(0o755)
    sides = {"baseline": {"experiment": "off", "threads": 1}, "candidate": {"experiment": "on"}}
    ours = {"model": "a.pte", "output_root": "out", "experiments": [
        {"name": "off", "isa_off": ["avx512"], "threads": [1, 2], "runs": 5},
        {"name": "on", "program": "a.pte", "warmup": 1},
    ], "analysis": {"compare_pairs": [{**sides, "label": "x"}]}}  # fmt: skip
    kit = {"model": "a.pte", "output_root": "runs/mac", "experiments": [
        {"name": name, "runner_path": "runner", "mode": mode, "runs": 3, "num_threads": 1,
         "extra_args": ["--timing-runs", "4"], "cpu_affinity": "0x3"}
        for name, mode in (("a", "timing"), ("b", "xnntrace"))]}  # fmt: skip
    return [json.dumps(ours).encode(), json.dumps(kit).encode()]


@pytest.mark.parametrize("seed", range(3))
def test_a_damaged_config_is_refused_in_one_line(seed, tmp_path):
    kind = mutants.Kind("c.json", make_configs, lambda p: plan_config(read_config(p), p.parent))
    ends, failures = mutants.fuzz(kind, seed, range(200), tmp_path)
    assert not failures and sum(ends.values()) == 200
