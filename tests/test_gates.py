"""Gates: the interval decides, refusals are clear, and CI can read the outcome."""

import json
import shutil
from pathlib import Path

import junitparser
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import workbench as wb
from workbench.analysis.compare import compare_restarts
from workbench.analysis.compare_runs import compare_many, compare_with_metrics, judge_rows
from workbench.analysis.open import open_run
from workbench.errors import ComparisonError, StoreError, UsageError
from workbench.portfolio.stages import tabulate_row
from workbench.portfolio.state import render_index
from workbench.records.codec import from_json, to_document, to_json
from workbench.records.portfolio import Cell, Outcome, Portfolio
from workbench.records.runs import RunRecord
from workbench.report.artifacts import summarize_metrics, write_documents
from workbench.report.gate import write_gate_summary, write_junit

SAMPLE = wb.sample_run()


@pytest.fixture(scope="module")
def baseline(tmp_path_factory):
    """What the recorded run has left of itself."""
    run_dir = copy_run(tmp_path_factory.mktemp("baseline"))
    return write_documents(open_run(run_dir))[0]


def copy_run(folder, change=lambda content: None):
    """A copy of the recorded run, with another manifest."""
    run_dir = Path(shutil.copytree(SAMPLE, folder / "out_m" / "runs" / "linux"))
    path = run_dir / "manifest.json"
    content = json.loads(to_json(from_json(RunRecord, path.read_bytes(), path)))
    change(content)
    path.write_text(json.dumps(content))
    return run_dir


def slow_down(factor):
    """All inferences take so many times as long."""

    def change(content):
        for session in content["sessions"]:
            for batch in session["batches"]:
                for clock in ("cpu_ns", "wall_ns"):
                    batch[clock] = [int(factor * ns) for ns in batch[clock]]

    return change


def gates(compared):
    return dict(zip(compared.rows["subject"], compared.rows["gate"], strict=True))


def test_a_run_passes_against_itself(baseline):
    held = compare_with_metrics(baseline, str(SAMPLE), fail_above=0.15)
    assert held.passed and "failed" not in gates(held).values()
    assert gates(held)["mobilenet_v3_small, avx512_on, 1 thread"] == "passed"
    assert [name.split(", ")[1] for name in gates(held)] == ["avx512_off", "avx512_on"]
    assert held.rows["speedup"].tolist() == pytest.approx([1, 1])
    assert "measured apart" in held.notes[-1]


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


def test_wrong_outputs_are_never_a_win(baseline, tmp_path):
    fault = "SQNR -0.2 dB, at least 10 expected"
    run = open_run(copy_run(tmp_path, be_wrong))
    assert run.compare().text.startswith(
        f"mobilenet_v3_small: outputs are wrong ({fault}): no speed-up is claimed; ran with avx512"
    )
    assert set(run.compare().speedups["outcome"]) == {"wrong outputs"}
    names = [str(SAMPLE), str(run.path)]
    pair = compare_many(names, across=["program"], by="category", fail_above=0.05)
    (text,) = pair.verdicts
    assert f"outputs of the candidate are wrong ({fault}): no speed-up is claimed" in text
    assert "; int8: SQNR -0.2 dB, 2.7 MB, 0 of 43 convolutions and matrix products ran in" in text
    assert text.endswith("; fp32: SQNR unknown, 10.2 MB")
    assert not pair.passed and set(pair.rows["gate"]) == {"failed"}
    held = compare_with_metrics(baseline, str(run.path), across=["program"], fail_above=0.05)
    assert not held.passed and "no speed-up is claimed" in held.verdicts[0]
    suite = junitparser.JUnitXml.fromfile(str(write_junit(pair, tmp_path / "gate.xml")))
    assert suite.failures == len(pair.rows)
    (run.path / "metrics.json").write_text(to_document(summarize_metrics(run)))
    back = compare_with_metrics(run.path / "metrics.json", str(SAMPLE), across=["program"])
    assert "outputs of the baseline are wrong" in back.verdicts[0]
    rows = [tabulate_row(m) for m in run.measurements]
    assert {(row.outcome, row.speedup) for row in rows} == {("wrong outputs", None)}
    assert all(row.median_ms > 0 for row in rows)
    cell = Cell("m", "m", "int8", "host", "auto", "m", "k")
    page = render_index(Portfolio({}, "2026-01-01T00:00", (Outcome(cell, "done", rows=(*rows,)),)))
    assert "<td>wrong outputs</td>" in page and "x</span>" not in page
    several = compare_many([*names, f"{SAMPLE}:avx512_off"], across=["program"], by="category")
    assert any(f"outputs are wrong ({fault})" in note for note in several.notes)
    of_wrong = several.aligned[several.aligned["run"] == names[1]]
    assert set(of_wrong["outcome"].dropna()) == {"wrong outputs"}


def test_a_baseline_of_the_first_version_is_read():
    old = Path(__file__).parent / "data" / "documents" / "metrics_v2.json"
    held = compare_with_metrics(old, str(SAMPLE), fail_above=0.05)
    assert held.passed and held.rows["speedup"].tolist() == pytest.approx([1, 1])


def test_a_slower_run_fails_only_beyond_the_limit(baseline, tmp_path):
    run_dir = copy_run(tmp_path, slow_down(1.3))
    assert set(gates(compare_with_metrics(baseline, str(run_dir), fail_above=0.05)).values()) == {
        "failed"
    }
    held = compare_with_metrics(baseline, f"{run_dir}:avx512_on:1", fail_above=1.0)
    assert gates(held) == {"mobilenet_v3_small, avx512_on, 1 thread": "passed"}
    assert held.rows["speedup"].iloc[0] == pytest.approx(1 / 1.3, rel=1e-6)


def test_a_faster_run_never_fails(baseline, tmp_path):
    run_dir = copy_run(tmp_path, slow_down(0.5))
    assert set(gates(compare_with_metrics(baseline, str(run_dir), fail_above=0.0)).values()) == {
        "passed"
    }


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m.update(emulated=True), "no speed to compare"),
        (lambda m: m.update(device="a phone"), "the two differ in device: a phone against linux"),
        (lambda m: m.update(program="other 0"), "the two differ in program"),
        (lambda m: m["latencies"][0].update(experiment="sme2_on"), "sme2_on with 1 thread was not"),
        (lambda m: m["latencies"][0].update(clock="wall_ns"), "the clocks differ"),
    ],
)
def test_what_cannot_be_compared_is_refused(baseline, tmp_path, change, words):
    metrics = json.loads(baseline.read_text())
    change(metrics)
    path = tmp_path / "main.json"
    path.write_text(json.dumps(metrics))
    with pytest.raises(ComparisonError, match=words):
        compare_with_metrics(path, str(SAMPLE), fail_above=0.05)


def test_a_declared_axis_may_differ(baseline, tmp_path):
    run_dir = copy_run(tmp_path, lambda c: c["plan"].update(sha256="0" * 64))
    with pytest.raises(ComparisonError, match="--across program"):
        compare_with_metrics(baseline, str(run_dir))
    held = compare_with_metrics(baseline, str(run_dir), across=["program"])
    assert list(gates(held).values()) == ["open", "open"] and held.passed


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        (f"{SAMPLE}:sme2_on", UsageError, "unknown measurement 'sme2_on:'"),
        (f"{SAMPLE}:avx512_on:8", UsageError, "unknown measurement 'avx512_on:8'"),
        ("nothing", UsageError, "no such file or folder"),
    ],
)
def test_a_wrong_name_is_one_clear_line(baseline, name, error, words):
    with pytest.raises(error, match=words):
        compare_with_metrics(baseline, name)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"schema_version": 1}'])
def test_a_bad_baseline_is_one_clear_line(tmp_path, content):
    path = tmp_path / "main.json"
    path.write_text(content)
    with pytest.raises(StoreError, match=r"main\.json"):
        compare_with_metrics(path, str(SAMPLE))


def test_one_restart_is_undecided():
    table = compare_restarts(["x"], [[1.0]], [[2.0]]).rename(columns={"name": "subject"})
    held = judge_rows(table, 0.05)
    assert list(held.rows["gate"]) == ["undecided"] and held.passed


@given(st.floats(0.2, 5), st.floats(0, 0.5), st.floats(0, 0.5), st.floats(0, 1), st.integers(0, 3))
def test_a_gate_fails_only_where_the_whole_interval_is_beyond(ratio, down, up, limit, outcome):
    row = {
        "subject": "x",
        "level": "e2e",
        "baseline_ms": ratio,
        "candidate_ms": 1.0,
        "speedup": ratio,
        "low": ratio * (1 - down),
        "high": ratio * (1 + up),
        "outcome": ("faster", "slower", "equivalent", "inconclusive")[outcome],
    }
    gate = judge_rows(pd.DataFrame([row]), limit).rows["gate"].iloc[0]
    least, most = 1 / row["high"] - 1, 1 / row["low"] - 1
    if gate == "failed":
        assert least > limit - 1e-9
    elif gate == "passed":
        assert most <= limit + 1e-9
    else:
        assert most > limit - 1e-9 and (least <= limit + 1e-9 or row["outcome"] != "slower")


def test_the_false_alarms_of_a_gate_are_rare_where_nothing_changed():
    rng = np.random.default_rng(0)
    failed = 0
    for _ in range(400):
        sides = [[list(rng.lognormal(0, 0.02, 5))] for _ in range(2)]
        table = compare_restarts(["x"], *sides).rename(columns={"name": "subject"})
        failed += not judge_rows(table, 0.0).passed
    assert failed / 400 < 0.05


@pytest.fixture
def held(baseline, tmp_path):
    """One measurement that failed, one that passed, one that cannot be told."""
    compared = compare_with_metrics(baseline, str(SAMPLE), fail_above=0.05)
    rows = pd.concat([compared.rows] * 2, ignore_index=True).iloc[:3]
    rows = rows.assign(
        gate=["failed", "passed", "undecided"],
        subject=["a\x00<b>|", "c", "d"],
        low=[0.5, 1, np.nan],
    )
    return type(compared)(rows, compared.verdicts, None, compared.notes, 0.05)


def test_junit_has_a_case_per_row(held, tmp_path):
    path = write_junit(held, tmp_path / "gate.xml")
    (suite,) = junitparser.JUnitXml.fromfile(str(path))
    assert (suite.tests, suite.failures, suite.skipped) == (3, 1, 1)
    cases = list(suite)
    assert [case.name for case in cases] == ["a?<b>|", "c", "d"]
    assert "latency" in cases[0].result[0].message
    assert "too few restarts" in cases[2].result[0].message


def test_the_summary_names_what_failed_first(held, tmp_path):
    text = write_gate_summary(held, tmp_path / "gate.md").read_text()
    assert text.startswith("# At most 5 % slower: 1 failed, 1 passed, 1 undecided")
    assert text.index("| failed |") < text.index("| undecided |") < text.index("| passed |")
    assert "<b>" not in text and "measured apart" in text


def test_two_runs_and_their_parts_are_rows(tmp_path):
    off, on = f"{SAMPLE}:avx512_off", f"{SAMPLE}:avx512_on"
    one = compare_many([on, off], fail_above=0.05)
    assert list(one.rows["gate"]) == ["failed"] and not one.passed
    parts = compare_many([off, on], by="category", fail_above=0.05)
    assert list(parts.rows["level"]) == ["e2e", *["category"] * (len(parts.rows) - 1)]
    assert parts.rows["candidate_ms"].iloc[1:].sum() == pytest.approx(
        parts.rows["candidate_ms"].iloc[0], rel=0.2
    )
    assert to_document(parts.record)


def test_the_command_gates_and_writes_its_files(cli, baseline, tmp_path):
    slow = copy_run(tmp_path / "slow", slow_down(1.3))
    files = ["--junit", "gate.xml", "--markdown", "gate.md"]
    code, out, err = cli("compare", slow, "--baseline", baseline, "--fail-above", "5%", *files)
    assert code == 1 and err.startswith("next: workbench findings ")
    assert "1.3x slower" in out
    assert {"gate.xml", "gate.md"} <= {path.name for path in tmp_path.iterdir()}
    code, out, _ = cli("compare", SAMPLE, "--baseline", baseline, "--fail-above", "5%", "--json")
    assert code == 0 and json.loads(out)["passed"]
    code, _, err = cli("compare", SAMPLE, "--baseline", baseline, "--junit", "x.xml")
    assert code == 2 and "needs --fail-above" in err
    code, _, err = cli("compare", SAMPLE, SAMPLE, "--baseline", baseline)
    assert code == 2 and "E2E latency of one run" in err
