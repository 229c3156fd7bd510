"""The command line: one clear line and the documented exit code for whatever goes wrong."""

import json
import re
import shutil
from pathlib import Path

import pytest
from needed import needs

import workbench as wb

SIDE = str(wb.sample_run("toy_cnn"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["export", "toy_cmn"], "did you mean 'toy_cnn'?"),
        (
            ["export", "toy_cnn", "--dtype", "fp8"],
            "valid: 8da4c, 8da4w, bf16, fp16, fp16w, fp32, int8, int8dyn",
        ),
        (["export", "toy_cnn", "--backend", "vulkan"], "valid: portable, xnnpack"),
        (["export", "nothing.py:Net"], "nothing.py"),
        (["export", "toy_cnn", "--size", "batch"], "not a size such as batch=4"),
        (["export", "toy_cnn", "--size", "bath=2"], "unknown dynamic dimension 'bath'"),
        (
            ["export", "toy_cnn", "--measure", "group_size=a"],
            "group_size: 'a' is not",
        ),
        (["export", "toy_cnn", "--measure", "warmup=1"], "unknown setting 'warmup'"),
        (["run", "x.pte", "--measure", "warmpu=1"], "did you mean 'warmup'?"),
        (["run", "x.pte", "--no-roof"], "is a setting: --measure roof=VALUE"),
        (["export", "toy_cnn", "--inputs", "none.npy"], "none.npy: no such file"),
        (["profile", "toy_cnn", "--toggle", "sme9"], "unknown toggle 'sme9'"),
        (["profile", "a", "b", "--out", "x"], "--out"),
        (["run", "x.pte", "--threads", "one"], "whole numbers"),
        (["compare", "a", "b"], "a: no such file or folder"),
        (["compare", "a", "b", "--fail-above", "lots"], "not a percentage"),
        (
            ["compare", SIDE, f"{SIDE}:sme2_off", "--across", "colour"],
            "valid: build, device, program, threads",
        ),
        (["analyze", "."], "not a run folder"),
        (["nonsense"], "nonsense"),
        (["run", "--effort"], "No such option '--effort'.\n"),
        (["profile", "toy_cnn", "--efort"], "Did you mean '--effort'?"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(cli, tmp_path, arguments, words):
    code, out, err = cli(*arguments)
    assert code == 2
    assert out == ""
    assert words in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_warnings_of_python_stay_off_the_terminal(cli):
    Path("noisy.py").write_text(
        "import logging, warnings\nwarnings.warn('look here', stacklevel=1)\n"
        "logging.getLogger('torch').warning('look here, too')\n"
    )
    code, out, err = cli("export", "noisy.py:Net")
    assert (code, out) == (2, "") and "error: noisy.py" in err
    assert "look here" not in err


@pytest.mark.parametrize(
    "content",
    [None, b"", b"not a program\n" * 20, bytes(range(256)) * 8],
    ids=["missing", "empty", "foreign", "random"],
)
def test_a_bad_program_is_one_line_and_exit_code_1(cli, tmp_path, content):
    if content is not None:
        (tmp_path / "bad.pte").write_bytes(content)
    code, out, err = cli("run", "bad.pte")
    assert code == 1
    assert out == ""
    assert err.startswith("error: ")
    assert "bad.pte" in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "out_bad").exists()


def test_a_truncated_program(cli, conv_pte, tmp_path):
    data = conv_pte.read_bytes()
    (tmp_path / "cut.pte").write_bytes(data[: len(data) // 2])
    code, _, err = cli("run", "cut.pte")
    assert code == 1
    assert "its header promises more" in err


@pytest.fixture(scope="module")
def recorded(conv_pte, tmp_path_factory):
    """A small finished run of a program without export record."""
    folder = tmp_path_factory.mktemp("recorded")
    pte = shutil.copy(conv_pte, folder / "conv.pte")
    return wb.measure(
        pte,
        options=wb.MeasureOptions(runs=8, processes=2, evidence=False),
        root=folder / "out_conv",
    ).path


@pytest.fixture
def run_dir(recorded, tmp_path):
    """A copy of that run."""
    return Path(shutil.copytree(recorded, tmp_path / "out_conv" / "runs" / recorded.name))


def test_a_run_leaves_all_artifacts(run_dir):
    names = {path.name for path in run_dir.iterdir()}
    assert {"manifest.json", "metrics.json", "analysis_summary.json"} <= names
    assert "conv_pipeline_summary.json" in names
    etdumps = set(run_dir.glob("*/*.etdump")) - set(run_dir.glob("*/*_sampled.etdump"))
    summary = json.loads((run_dir / "analysis_summary.json").read_text())
    assert summary["etdump_count"] == len(etdumps)
    for measured in [summary, *summary["measurements"]]:
        total = sum(measured["category_totals_ms"].values())
        assert total == pytest.approx(measured["latency"]["latency"], rel=1e-6)
        details = sum(detail["total_ms"] for detail in measured["operator_details"])
        assert details == pytest.approx(measured["latency"]["latency"], rel=1e-6)


@pytest.mark.whole
def test_a_deleted_artifact_can_be_made_anew(run_dir, cli):
    kept = {"manifest.json", "layers.json", "functions.json"}
    before = {p: p.read_bytes() for p in run_dir.rglob("*") if p.is_file()}
    for path in before:
        measured = path.suffix in (".etdump", ".samples") or path.name.startswith("ceilings")
        if not measured and path.name not in kept:
            path.unlink()
    code, out, _ = cli("analyze", run_dir, "--quiet")
    assert code == 0
    assert {run_dir / line for line in out.split()} <= before.keys()
    assert all(path.read_bytes() == before[path] for path in run_dir.rglob("*") if path.is_file())


@pytest.mark.parametrize("damage", ["truncate", "random", "delete"])
def test_a_bad_trace_is_one_line_and_exit_code_1(run_dir, cli, damage):
    trace = sorted(run_dir.glob("*/*.etdump"))[0]
    if damage == "truncate":
        trace.write_bytes(trace.read_bytes()[:-40])
    elif damage == "random":
        trace.write_bytes(bytes(range(256)) * 4)
    else:
        trace.unlink()
    code, _, err = cli("analyze", run_dir)
    assert code == 1
    assert trace.name in err
    assert len(err.splitlines()) == 1


def test_analyze_prints_the_time_by_category_unless_it_is_quiet(run_dir, cli):
    summary, quiet = (cli("analyze", run_dir, *flags)[1] for flags in ([], ["--quiet"]))
    assert summary.endswith(quiet) and "| Convolution | " in summary and "|" not in quiet


def test_compare_gates_on_the_interval(run_dir, cli):
    run = wb.open_run(run_dir).record
    pair = run.plan.pairs[0]
    if run.plan.toggle == "none":
        pytest.skip("this CPU has nothing to switch off")
    off, on = f"{run_dir}:{pair.baseline}", f"{run_dir}:{pair.candidate}"
    assert cli("compare", off, on, "--fail-above", "5%")[0] == 0
    code, out, _ = cli("compare", off, f"{run_dir}:control", "--fail-above", "50%")
    assert code == 0
    assert "faster" not in out


def test_a_profile_takes_every_option_of_an_export(cli):
    export, profile = (
        set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", cli(name, "--help")[1], re.M))
        for name in ("export", "profile")
    )
    assert {"--inputs", "--size", "--module-dtype", "--measure"} <= export
    assert export <= profile


def test_the_help_names_the_commands(cli):
    code, out, _ = cli("--help")
    assert code == 0
    assert all(name in out for name in ("doctor", "export", "run", "compare", "report", "profile"))


def test_doctor_finds_the_main_job_possible_here(cli):
    code, out, err = cli("doctor")
    assert code == 0, out + err
    assert "runner" in out


def test_completion_names_commands(cli, monkeypatch):
    monkeypatch.setenv("_WORKBENCH_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "workbench re")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert cli()[1] == "plain,report\n"


@needs("remedies")
def test_rewrites_are_listed_and_not_in_the_help(cli):
    code, out, _ = cli("export", "toy_cnn", "--rewrite", "list")
    assert code == 0 and "gelu (all): " in out and "matrices: " in out
    code, out, _ = cli("export", "--help")
    assert code == 0 and "--rewrite list" in out and "matrices" not in out
