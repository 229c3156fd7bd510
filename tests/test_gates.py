"""Gates: the interval decides, refusals are clear, and CI can read the outcome."""

import json
import shutil
from pathlib import Path

import junitparser
import pytest
from changed_runs import edit_json
from run_folder import write_run

import workbench as wb

SAMPLE = wb.sample_run()


@pytest.fixture
def baseline(analysed):
    """The manifest of the recorded run, kept alone."""
    return analysed.path / "manifest.json"


@pytest.fixture
def gate(cli):
    """Run ``compare`` as a program reads it: what it found, or the error; and its exit code."""

    def run(*arguments):
        code, out, err = cli("compare", *arguments, "--json")
        return (json.loads(out) if out else err), code

    return run


def copy_run(folder, change=lambda content: None):
    """A copy of the recorded run, with another manifest."""
    run_dir = Path(shutil.copytree(SAMPLE, folder / "out_m" / "runs" / "linux"))
    edit_json(run_dir / "manifest.json", change)
    return run_dir


def slow_down(factor):
    """All inferences take so many times as long."""

    def change(content):
        for session in content["sessions"]:
            for batch in session["batches"]:
                for clock in ("cpu_ns", "wall_ns"):
                    times = batch[clock]
                    batch[clock] = [int(factor * ns) for ns in times]

    return change


def gates(found):
    return {row["subject"]: row["gate"] for row in found["rows"]}


def test_a_run_passes_against_itself(gate, baseline):
    found, code = gate(SAMPLE, "--baseline", baseline, "--fail-above", "15%")
    assert code == 0 and found["passed"] and "failed" not in gates(found).values()
    assert gates(found)["mobilenet_v3_small, avx512_on, 1 thread"] == "passed"
    assert [name.split(", ")[1] for name in gates(found)] == ["avx512_off", "avx512_on"]
    assert [row["speedup"] for row in found["rows"]] == pytest.approx([1, 1])
    assert "measured apart" in found["notes"][-1]


def test_a_manifest_alone_opens_as_a_run_with_the_same_numbers(gate, analysed, tmp_path):
    """It takes the place of its run wherever no trace is needed."""
    baseline = shutil.copy(analysed.path / "manifest.json", tmp_path / "main.json")
    saved = wb.open_run(baseline)
    assert [m.label for m in saved.measurements] == [m.label for m in analysed.measurements]
    columns = ["latency", "low", "high", "restarts"]
    now, then = (run.statistics[columns].to_numpy() for run in (analysed, saved))
    assert then == pytest.approx(now, rel=1e-12)
    name = saved.measurements[1].name
    (row,) = wb.compare(saved[name], analysed[name]).latency.to_dict("records")
    assert row["speedup"] == pytest.approx(1, rel=1e-12)
    assert str(wb.show(saved))
    assert wb.open_run(analysed.path / "manifest.json").traced, "beside its traces, it is not alone"
    assert saved.checks.set_index("check").at["not recorded", "evidence"] == "traces, samples"
    assert "fail" not in set(saved.checks["status"])
    assert saved.compare().verdict.outcome == analysed.compare().verdict.outcome
    with pytest.raises(wb.WorkbenchError, match="has no trace -> name the run's folder"):
        saved.subject.operators  # noqa: B018
    (tmp_path / "main").mkdir()
    shutil.copy(baseline, tmp_path / "main" / "manifest.json")
    assert not wb.open_run(tmp_path / "main").traced, "nor has a folder that holds nothing else"
    by_file, by_folder = (
        gate(SAMPLE, "--baseline", each)[0]["rows"] for each in (baseline, copy_run(tmp_path))
    )
    for one, other in zip(by_file, by_folder, strict=True):
        assert one.pop("outcome") == other.pop("outcome")
        assert one["high"] == pytest.approx(other["high"], rel=1e-5)


WRONG = {
    "dtype": "int8",
    "size_bytes": 2_700_000,
    "problem": "output 0 is not the model's: SQNR -0.2 dB, at least 10 expected; likely cause: x",
    "fidelity": [
        {"output": 0, "dtype": "float32", "least_sqnr_db": 10, "sqnr_db": -0.2, "faithful": False}
    ],
}


def be_wrong(content):
    """Half the time, another program, and outputs that are wrong."""
    slow_down(0.5)(content)
    content["export"] |= WRONG
    content["plan"]["sha256"] = "0" * 64


@pytest.mark.whole
def test_wrong_outputs_are_never_a_win(gate, cli, baseline, tmp_path):
    fault = "SQNR -0.2 dB, at least 10 expected"
    run = wb.open_run(copy_run(tmp_path, be_wrong))
    assert f"outputs are wrong ({fault}): no speed-up is claimed" in run.compare().text
    assert set(run.compare().speedups["outcome"]) == {"wrong outputs"}
    limits = ["--across", "program", "--fail-above", "5%"]
    pair, code = gate(SAMPLE, run.path, *limits, "--by", "category", "--junit", "gate.xml")
    (text,) = pair["verdicts"]
    assert f"outputs of the candidate are wrong ({fault}): no speed-up is claimed" in text
    assert code == 1 and set(gates(pair).values()) == {"failed"}
    suite = junitparser.JUnitXml.fromfile(str(tmp_path / "gate.xml"))
    assert suite.failures == len(pair["rows"])
    found, code = gate(run.path, "--baseline", baseline, *limits)
    assert code == 1 and "no speed-up is claimed" in found["verdicts"][0]
    assert cli("analyze", run.path)[0] == 0
    back, _ = gate(SAMPLE, "--baseline", run.path / "manifest.json", "--across", "program")
    assert "outputs of the baseline are wrong" in back["verdicts"][0]
    several, _ = gate(SAMPLE, run.path, f"{SAMPLE}:avx512_off", *limits[:2], "--by", "category")
    assert any(f"outputs are wrong ({fault})" in note for note in several["notes"])


def test_only_a_run_slower_than_the_limit_fails(gate, baseline, tmp_path):
    slow, fast = (copy_run(tmp_path / str(f), slow_down(f)) for f in (1.3, 0.5))
    found, code = gate(slow, "--baseline", baseline, "--fail-above", "5%")
    assert code == 1 and set(gates(found).values()) == {"failed"}
    found, code = gate(f"{slow}:avx512_on:1", "--baseline", baseline, "--fail-above", "100%")
    assert code == 0 and gates(found) == {"mobilenet_v3_small, avx512_on, 1 thread": "passed"}
    assert found["rows"][0]["speedup"] == pytest.approx(1 / 1.3, rel=1e-6)
    found, code = gate(fast, "--baseline", baseline, "--fail-above", "0%")
    assert code == 0 and set(gates(found).values()) == {"passed"}


def rename(manifest):
    """Call an experiment by another name."""
    text = json.dumps(manifest).replace('"avx512_on"', '"sme2_on"')
    manifest.update(json.loads(text))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m.update(emulated=True), "the two differ in device: linux, AMD EPYC"),
        (lambda m: m["host"].update(cpu="a phone"), "the two differ in device: linux, a phone"),
        (lambda m: m["plan"].update(sha256="0" * 64), "the two differ in program"),
        (rename, "sme2_on with 1 thread was not measured"),
        (lambda m: m.pop("plan"), "main.json: is no manifest of a run -> name the folder of a run"),
    ],
)
def test_what_cannot_be_compared_is_refused(cli, baseline, tmp_path, change, words):
    manifest = json.loads(baseline.read_text())
    change(manifest)
    (tmp_path / "main.json").write_text(json.dumps(manifest))
    code, out, err = cli("compare", SAMPLE, "--baseline", "main.json", "--fail-above", "5%")
    assert (code, out) == (2 if "differ in" in words else 1, "") and words in err


def test_a_declared_axis_may_differ(gate, cli, baseline, tmp_path):
    run_dir = copy_run(tmp_path, lambda c: c["plan"].update(sha256="0" * 64))
    code, _, err = cli("compare", run_dir, "--baseline", baseline)
    assert code == 2 and "--across program" in err
    found, code = gate(run_dir, "--baseline", baseline, "--across", "program")
    assert code == 0 and list(gates(found).values()) == ["open", "open"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (f"{SAMPLE}:sme2_on", "unknown experiment 'sme2_on'"),
        (f"{SAMPLE}:avx512_on:8", "unknown measurement 'avx512_on:8'"),
        ("nothing", "no such file or folder"),
    ],
)
def test_a_wrong_name_is_one_clear_line(cli, baseline, name, words):
    code, out, err = cli("compare", name, "--baseline", baseline)
    assert (code, out) == (2, "") and words in err and err.count("\n") == 1


def test_one_restart_is_undecided(gate, cli, tmp_path):
    runs = [
        write_run(tmp_path / name, {"on": ms}, processes=1) for name, ms in (("a", 1), ("b", 2))
    ]
    found, code = gate(*runs, "--fail-above", "5%", "--junit", "gate.xml")
    assert code == 0 and list(gates(found).values()) == ["undecided"]
    (suite,) = junitparser.JUnitXml.fromfile(str(tmp_path / "gate.xml"))
    assert (suite.tests, suite.failures, suite.skipped) == (1, 0, 1)
    assert "at most 5 % slower: 1 undecided\n" in cli("compare", *runs, "--fail-above", "5%")[1]


@pytest.mark.whole
def test_two_runs_and_their_parts_are_rows(gate):
    off, on = f"{SAMPLE}:avx512_off", f"{SAMPLE}:avx512_on"
    one, code = gate(on, off, "--fail-above", "5%")
    assert code == 1 and list(gates(one).values()) == ["failed"]
    parts, _ = gate(off, on, "--by", "category", "--fail-above", "5%")
    levels = [row["level"] for row in parts["rows"]]
    assert levels == ["e2e", *["category"] * (len(levels) - 1)]
    e2e, *others = (row["candidate_ms"] for row in parts["rows"])
    assert sum(others) == pytest.approx(e2e, rel=0.2)


def test_several_runs_are_a_row_each_and_their_traces_are_not_needed(cli, gate, tmp_path):
    runs = [copy_run(tmp_path / str(factor), slow_down(factor)) for factor in (1, 1.02, 1.5, 2)]
    for trace in tmp_path.rglob("*.etdump"):
        trace.unlink()
    found, code = gate(*runs, "--fail-above", "30%")
    speedups = [row["speedup"] for row in found["rows"]]
    assert code == 1 and speedups == pytest.approx([1 / 1.02, 1 / 1.5, 1 / 2], rel=1e-3)
    assert gates(found) == {
        f"E2E in {run}": gate
        for run, gate in zip(runs[1:], ["passed", "failed", "failed"], strict=True)
    }
    assert cli("compare", *runs)[1].count("slower") == 2
    code, _, err = cli("compare", *runs, "--by", "category")
    assert code == 1 and err.count("\n") == 1 and "has no trace ->" in err


def test_the_command_gates_and_says_what_is_next(cli, baseline, tmp_path):
    slow = copy_run(tmp_path / "slow", slow_down(1.3))
    code, out, err = cli("compare", slow, "--baseline", baseline, "--fail-above", "5%")
    assert code == 1 and err.startswith("next: workbench findings ")
    assert "1.30x slower" in out
    code, _, err = cli("compare", SAMPLE, "--baseline", baseline, "--junit", "x.xml")
    assert code == 2 and "needs --fail-above" in err
    code, _, err = cli("compare", SAMPLE, SAMPLE, "--baseline", baseline)
    assert code == 2 and "the whole of one run" in err


@pytest.mark.whole
def test_one_run_compares_its_own_pair(cli, gate):
    own = wb.open_run(SAMPLE).compare().latency.iloc[0]
    found, code = gate(SAMPLE, "--fail-above", "5%")
    assert code == 0 and found["rows"][0]["speedup"] == pytest.approx(own["speedup"])
    assert f"{own['speedup']:.2f}x faster" in found["verdicts"][0]


def test_a_folder_of_other_traces_says_what_there_is(cli, tmp_path):
    (tmp_path / "mine").mkdir()
    shutil.copy(next(SAMPLE.rglob("*.etdump")), tmp_path / "mine" / "fast.etdump")
    shutil.copytree(SAMPLE, tmp_path / "several" / "out_net" / "runs" / "linux")
    for folder, words in (("mine", "fast"), ("several", "runs: several/out_net/runs/linux")):
        code, out, err = cli("compare", folder)
        assert (code > 0, out) == (True, "") and words in err and err.count("\n") == 1
