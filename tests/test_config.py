"""Configs of the kit, and runners of one's own: read, checked, measured, reported."""

import json
import os
import shlex
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import report_text

import workbench as wb
from workbench import store
from workbench.cli import main
from workbench.errors import RunnerError, RunnerTimeout, StoreError, UsageError, WorkbenchError
from workbench.run.build import installed_compiler
from workbench.run.config import plan_config, read_config
from workbench.run.custom_runner import order_experiments, run_processes, run_to_end
from workbench.run.isa import read_isa, resolve_toggle
from workbench.run.runner import find_runner
from workbench.run.targets.host import Host
from workbench.workflow import run_config

needs_compiler = pytest.mark.skipif(installed_compiler() is None, reason="no C++ compiler")

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
    (runner,) = find_runner().command
    path.write_text(STAND_IN.format(runner=shlex.quote(runner), level=level, log=log))
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def kit(conv_pte, tmp_path, monkeypatch):
    """A config as the kit has them, with two stand-ins, and the folder it is run from."""
    monkeypatch.chdir(tmp_path)
    Path("models").mkdir()
    shutil.copy(conv_pte, "models/conv_xnnpack_fp32.pte")
    switch = resolve_toggle("auto", read_isa(find_runner().command))
    if switch.name == "none":
        pytest.skip("this CPU has nothing to switch off")
    Path("run ners").mkdir()
    experiments = []
    for name, level in (("sme2_off", switch.off), ("sme2_on", switch.on)):
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


@pytest.mark.slow
@needs_compiler
def test_a_kit_config_with_two_runner_paths_runs_unchanged(kit, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["run", "kit.json"])
    out, err = capsys.readouterr()
    assert ended.value.code == 0, err
    out = out.splitlines()
    assert out[0].startswith("conv_xnnpack_fp32: ")
    assert "(SME2 on, one thread), 1 thread" in out[0]
    assert out[-1] == "out_conv/runs/mac"
    run_dir = Path(out[-1])
    run = store.load_run(run_dir)
    assert run.state == "complete"
    assert run.runner["kind"] == "executor_runner"
    names = {path.name for path in run_dir.iterdir()}
    assert {"manifest.json", "metrics.json", "analysis_summary.json"} <= names
    for threads in (1, 2):
        stem = f"sme2_on/conv_xnnpack_fp32_sme2_on_t{threads}"
        for ending in (".etdump", ".log", "_all_runs_timeline.csv", "_ops_stats.csv"):
            assert (run_dir / f"{stem}{ending}").is_file(), stem + ending
    analysis = wb.open_run(run_dir)
    assert len(analysis.comparisons) == 2
    rows = analysis.statistics.set_index(["experiment", "threads"])
    assert rows.at[("sme2_on", 1), "n"] == 10  # five processes, two runs each after the warm-up
    table = pd.read_csv(next(run_dir.glob("sme2_on/*_t1_all_runs_timeline.csv")))
    assert sorted(set(table["run_index"])) == [0, 1]
    assert set(rows["clock"]) == {"wall_ns"}
    first, second = analysis.comparisons
    assert [(m.name, m.threads) for m in (first.baseline, first.candidate)] == [
        ("sme2_off", 1),
        ("sme2_on", 1),
    ]
    assert [(m.name, m.threads) for m in (second.baseline, second.candidate)] == [
        ("sme2_on", 1),
        ("sme2_on", 2),
    ]
    summary = json.loads((run_dir / store.SUMMARY).read_text())
    assert summary["comparisons"][1]["candidate"] == {"experiment": "sme2_on", "threads": 2}
    (changes,) = analysis.kernel_changes.values()
    assert changes["change"].tolist() == ["changed"]
    checks = analysis.checks.set_index("check")
    assert "traced" in checks.at["runner", "evidence"]
    page = report_text(wb.open_run(run_dir))
    assert "7x16__avx512f_broadcast" in page
    assert "Method::execute in the ETDump (traced)" in page


@needs_compiler
def test_chosen_experiments_that_only_log_kernels_run_alone(kit, capsys):
    kit["experiments"].reverse()  # the kit lists the candidate first
    Path("kit.json").write_text(json.dumps(kit))
    names = ["--only", "trace_off", "--only", "trace_on"]
    with pytest.raises(SystemExit) as ended:
        main(["run", "kit.json", *names, "--target", "host", "--verbose"])
    out, err = capsys.readouterr()
    assert ended.value.code == 0, err
    assert "trace_on against trace_off: 1 of 1 kinds of microkernel differ" in out
    run_dir = Path(out.splitlines()[-1])
    run = wb.open_run(run_dir)
    assert [s.experiment for s in run.record.sessions] == ["trace_on", "trace_off"]
    tables = [
        f"trace_{side}/conv_xnnpack_fp32_trace_{side}_t1_kernels.csv" for side in ("off", "on")
    ]
    assert all("xnn_f32_gemm" in (run_dir / name).read_text() for name in tables)
    with pytest.raises(StoreError, match="only kernel logs"):
        wb.make_report(run)
    with pytest.raises(SystemExit) as ended:
        main(["run", "kit.json", "--only", "trace_onn"])
    assert ended.value.code == 2
    assert "did you mean 'trace_on'?" in capsys.readouterr().err


def test_a_config_can_name_a_power_mode(tmp_path, capsys):
    runner = str(make_executable(tmp_path / "runner"))
    config = {"model": str(tmp_path / "x.pte"), "experiments": [{**ENTRY, "runner_path": runner}]}
    (tmp_path / "x.pte").write_bytes(b"x")
    (tmp_path / "x.json").write_text(json.dumps({**config, "power": "boost"}))
    for more in ([], ["--power", "developer"]):
        with pytest.raises(SystemExit) as ended:
            main(["run", str(tmp_path / "x.json"), *more])
        assert ended.value.code == 2
        word = more[-1] if more else "boost"
        assert f"--power {word}: only Android devices" in capsys.readouterr().err


@pytest.mark.slow
@needs_compiler
def test_the_same_config_continues_and_never_overwrites(kit):
    first = run_config(Path("kit.json")).path
    assert run_config(Path("kit.json")).path.name == "mac-2"
    run = store.load_run(first)
    partial = [s for s in run.sessions if s.process < 2]
    store.save_run(type(run)(**{**vars(run), "state": "incomplete", "sessions": partial}), first)
    assert run_config(Path("kit.json")).path == first
    assert len(store.load_run(first).sessions) == len(run.sessions)


class Elsewhere(Host):
    """A folder in place of another machine; a command there cannot reach the machine again."""

    def __init__(self, folder):
        self.folder = folder
        self.pushed = []

    def command(self, argv):
        return ["sh", "-c", '[ -z "$THERE" ] || exit 9; THERE=1 exec "$@"', "sh", *argv]

    def push(self, path, *, executable=False):
        self.pushed.append(path.name)
        there = self.folder / path.name
        shutil.copy2(path, there)
        return str(there)

    def place(self, path):
        return str(self.folder / path.name)

    def pull(self, remote, path):
        shutil.move(remote, path)


def test_the_name_of_the_control_has_no_part_of_another(kit):
    """The kit's reports choose sides by parts of names: sme2_on, sme2_off."""
    plan = plan_config(read_config(Path("kit.json")), Path())
    assert [e.name for e in plan.experiments if e.control] == ["control"]
    kit["experiments"][0]["name"] = "control"
    Path("kit.json").write_text(json.dumps({**kit, "analysis": {"compare_pairs": []}}))
    plan = plan_config(read_config(Path("kit.json")), Path())
    assert [e.name for e in plan.experiments if e.control] == ["control_"]


@needs_compiler
def test_a_custom_runner_runs_on_a_target(kit, tmp_path):
    there = tmp_path / "there"
    there.mkdir()
    target = Elsewhere(there)
    plan = plan_config(read_config(Path("kit.json")), Path())
    run_dir = run_processes(replace(plan, processes=1), tmp_path / "out", target=target)
    run = store.load_run(run_dir)
    assert run.state == "complete"
    assert {"sme2_on", "conv_xnnpack_fp32.pte"} <= set(target.pushed)
    assert all((run_dir / s.etdump).is_file() for s in run.sessions if s.etdump)
    assert not list(there.glob("*.etdump"))


@pytest.mark.slow
@needs_compiler
def test_the_extension_is_credited_though_the_config_lists_it_first(kit, capsys):
    """As all of the kit's configs: ``sme2_on`` first, ``compare_pairs`` empty."""
    on_first = kit["experiments"][1::-1]
    for entry in on_first:
        entry.update(runs=2, warmup=0, threads=[1])
    Path("kit.json").write_text(
        json.dumps({**kit, "experiments": on_first, "analysis": {"compare_pairs": []}})
    )
    run = run_config(Path("kit.json"))
    (ab,) = run.comparisons
    assert (ab.baseline.name, ab.candidate.name) == ("sme2_off", "sme2_on")
    about = run.description.set_index("what")["value"]
    assert about["baseline"] == "sme2_off, by name"
    assert "ISA level" not in about["experiments"]
    assert "batches" not in about["protocol"]
    swapped = wb.open_run(run.path, baseline="sme2_on")
    assert [ab.candidate.name for ab in swapped.comparisons] == ["sme2_off"]
    for command in ("analyze", "report", "findings"):
        with pytest.raises(SystemExit) as ended:
            main([command, str(run.path), "--baseline", "sme2_on"])
        assert ended.value.code == 0, capsys.readouterr().err
    assert "as sme2_off" in (run.path / "report.md").read_text()
    assert "fail" not in set(wb.validate_run(run.path)["status"])
    with pytest.raises(UsageError, match="unknown experiment 'sme'"):
        run_config(Path("kit.json"), baseline="sme")


@pytest.mark.slow
@needs_compiler
def test_a_config_with_additional_keys(conv_pte, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(conv_pte, "conv.pte")
    experiments = [{"name": "all", "threads": [1, 2], "num_runs": 2}]
    experiments += [{"name": "none", "isa": read_levels()[-1], "threads": 1, "cpu_affinity": "1"}]
    Path("x.json").write_text(json.dumps({"model": "conv.pte", "experiments": experiments}))
    run_dir = run_config(Path("x.json")).path
    run = store.load_run(run_dir)
    assert {(s.experiment, s.threads) for s in run.sessions if not s.traced} == {
        *(("all", 1), ("all", 2), ("none", 1), ("control", 1))
    }
    assert [(c.candidate.name, c.candidate.threads) for c in wb.open_run(run_dir).comparisons] == [
        ("all", 1)
    ]
    assert run.plan.direction == "none, by isa and isa_off"


def read_levels():
    return list(read_isa(find_runner().command).levels)


ENTRY = {"name": "a", "runner_path": "/bin/true"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"experiments": []}, "1 to 64 experiments"),
        ({"experiments": 5}, "not a list of experiments"),
        ({"experiments": [ENTRY, ENTRY]}, "two experiments have the name 'a'"),
        ({"experiments": [{**ENTRY, "name": "../../etc"}]}, "is not a valid experiment name"),
        ({"experiments": [{**ENTRY, "name": "a b"}]}, "is not a valid experiment name"),
        ({"experiments": [{**ENTRY, "mode": "timming"}]}, "did you mean 'timing'?"),
        ({"experiments": [{**ENTRY, "threads": [0]}]}, "threads is out of range"),
        ({"experiments": [{**ENTRY, "threads": ["2"]}]}, "threads[0]: expected int"),
        ({"experiments": [{**ENTRY, "runs": 1.5}]}, "$.experiments[0].runs: expected int | null"),
        ({"experiments": [{**ENTRY, "runs": 10**9}]}, "runs is out of range"),
        ({"experiments": [{**ENTRY, "warmup": -1}]}, "warmup is out of range"),
        ({"experiments": [{**ENTRY, "cpu_affinity": "zz"}]}, "not a CPU mask"),
        ({"experiments": [{**ENTRY, "extra_args": ["x" * 5000]}]}, "too long"),
        ({"experiments": [{**ENTRY, "runner": "gpu"}]}, "valid: native, wheel"),
        ({"experiments": [{**ENTRY, "extra_args": ["--warmup", "x"]}]}, "invalid int value: 'x'"),
        ({"experiments": [{**ENTRY, "extra_args": ["--timing-runs=-1"]}]}, "runs is out of range"),
        ({"model": "REPLACE_WITH_PATH_TO_MODEL_PTE"}, "write the path of a .pte there"),
        ({"experiments": [ENTRY, {"name": "b"}]}, "only some experiments"),
        ({"experiments": [{**ENTRY, "runner_path": "none/such"}]}, "no such runner"),
        ({"experiments": [{**ENTRY, "runner_path": "config.json"}]}, "not executable"),
        ({"model": "none.pte"}, "none.pte: no such file"),
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
    with pytest.raises((UsageError, StoreError)) as caught:
        plan_config(read_config(path), path.parent)
    assert words in str(caught.value)


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
    path, warnings = tmp_path / "config.json", []
    path.write_text(json.dumps({"model": "x.pte", "experiments": [ENTRY], **change}))
    assert read_config(path, warnings.append).experiments[0].name == "a"
    (warning,) = warnings
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


def make_executable(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


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
    warnings = []
    plan = plan_config(read_config(place / "x.json", warnings.append), place)
    assert not warnings
    assert Path(plan.pte).resolve() == pte
    assert [Path(e.runner) for e in plan.experiments[:2]] == runners
    assert {(e.runs, e.warmup) for e in plan.experiments} == {(10, 1)}


@needs_compiler
def test_every_config_of_the_kit_runs_from_off_to_on(conv_pte, tmp_path, monkeypatch):
    """Files of the checkout that PROFILING_KIT names; the model and its runners are stand-ins."""
    if not (checkout := os.environ.get("PROFILING_KIT")):
        pytest.skip("PROFILING_KIT names no checkout of Arm's profiling kit")
    switch = resolve_toggle("auto", read_isa(find_runner().command))
    configs = sorted(Path(checkout).glob("model_profiling/configs/**/*.json"))
    assert configs
    for number, path in enumerate(configs):
        root = tmp_path / str(number)
        place = root / path.relative_to(checkout)
        place.parent.mkdir(parents=True)
        shutil.copy(path, place)
        config = json.loads(path.read_text())
        for entry in config["experiments"]:
            level = switch.off if "off" in entry["runner_path"] else switch.on
            stand_in(make_executable(root / entry["runner_path"]), level)
        (root / config["model"]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(conv_pte, root / config["model"])
        monkeypatch.chdir(root)
        run = run_config(place)
        (ab,) = run.comparisons
        assert ab.baseline.name.endswith("_sme2_off"), path
        assert ab.candidate.name.endswith("_sme2_on"), path
        assert run.record.plan.direction == f"{ab.baseline.name}, by name"
        assert run.path.resolve() == (root / config["output_root"]).resolve()


def read_entry(tmp_path, **keys):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model": "x.pte", "experiments": [{"name": "a", **keys}]}))
    (tmp_path / "x.pte").write_bytes(b"x")
    (experiment, *_) = plan_config(read_config(path), tmp_path).experiments
    return experiment


def test_defaults_are_those_of_the_kit_for_its_runners(tmp_path):
    runner = str(make_executable(tmp_path / "executorch" / "cmake-out" / "executor_runner"))
    for name in ("executorch/cmake-out/executor_runner", "cmake-out/executor_runner", runner):
        kit = read_entry(tmp_path, runner_path=name)
        assert (kit.runner, kit.runs, kit.warmup) == (runner, 100, 10)
    own = read_entry(tmp_path)
    assert (own.runs, own.warmup) == (wb.MeasureOptions.runs, wb.MeasureOptions.warmup)
    assert read_entry(tmp_path, runner_path=runner, warmup=0).warmup == 0


def test_options_of_the_kits_script_are_not_passed_to_the_runner(tmp_path):
    quiet, verbose = (str(make_executable(tmp_path / name)) for name in ("quiet", "verbose"))
    extra = ["--verbose-runner", verbose, "--timing-runs=7", "--warmup", "2", "--data_path", "x"]
    for mode, runner in (("timing", quiet), ("xnntrace", verbose)):
        found = read_entry(tmp_path, runner_path=quiet, mode=mode, extra_args=extra)
        assert (found.runner, found.runs, found.warmup) == (runner, 7, 2)
        assert found.extra_args == ("--data_path", "x")


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"{" * 5000, b" " * 1_000_001])
def test_other_files_are_not_configs(tmp_path, content):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"x\.json"):
        read_config(path)
    with pytest.raises(StoreError, match=r"none\.json"):
        read_config(tmp_path / "none.json")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
keys = st.sampled_from(
    ["name", "runner_path", "threads", "mode", "runs", "extra_args", "cpu_affinity", "num_threads"]
)


@settings(max_examples=2 * settings().max_examples)
@given(st.lists(st.dictionaries(keys, json_values, max_size=4), max_size=3), json_values)
def test_any_json_is_a_config_or_a_clear_error(tmp_path_factory, entries, analysis):
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps({"model": "m", "experiments": entries, "analysis": analysis}))
    try:
        config = read_config(path)
    except WorkbenchError:
        return
    assert all(entry.name for entry in config.experiments)


def test_options_and_a_config_contradict_each_other(tmp_path, capsys):
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(SystemExit) as ended:
        main(["run", str(tmp_path / "x.json"), "--threads", "2"])
    assert ended.value.code == 2
    assert "--threads: the config sets this" in capsys.readouterr().err


def test_processes_are_interleaved():
    from workbench.records.runs import Experiment

    orders = [
        "".join(e.name for e in order)
        for order in order_experiments([Experiment(n) for n in "abc"], 5)
    ]
    assert orders == ["abc", "cba", "bca", "acb", "cab"]


@pytest.mark.parametrize(
    ("script", "error", "words"),
    [
        ("echo no such model >&2; exit 3", RunnerError, "ended with code 3 (no such model)"),
        ("kill -9 $$", RunnerError, "killed by signal 9"),
        ("sleep 60", RunnerTimeout, "did not end within 0.3 s"),
        ("printf 'a\\033[31mred\\n'; exit 1", RunnerError, "a\\x1b[31mred"),
    ],
)
def test_a_runner_that_fails_is_one_line(tmp_path, script, error, words):
    with pytest.raises(error) as caught:
        run_to_end(["/bin/sh", "-c", script], tmp_path / "log", timeout_s=0.3)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_log_is_cut_while_it_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr("workbench.run.custom_runner.LONGEST_LOG", 100)
    log = tmp_path / "log"
    script = f"yes | head -c 10000000; wc -c < {log}; echo the end"
    words = run_to_end(["sh", "-c", script], log, timeout_s=20)
    assert int(words.split("; ")[-2]) <= 100
    assert words.endswith("; the end)")
    assert log.stat().st_size == 100


def test_what_a_runner_leaves_behind_is_killed(tmp_path):
    mark = tmp_path / "mark"
    script = f"(sleep 1; touch {mark}) & echo started"
    begin = time.monotonic()
    assert "started" in run_to_end(["sh", "-c", script], tmp_path / "log", timeout_s=20)
    assert time.monotonic() - begin < 0.9
    time.sleep(1.2)
    assert not mark.exists()
