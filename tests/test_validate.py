"""What validation finds: nothing in a good run, and each kind of damage by its name."""

import json
import shutil

import pytest

import workbench as wb
from workbench.errors import UsageError
from workbench.report.artifacts import write_artifacts
from workbench.report.gate import validate_run


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("good") / "runs" / "linux"
    shutil.copytree(wb.sample_run(), folder)
    write_artifacts(wb.open_run(folder))
    return folder


@pytest.fixture
def run_dir(good, tmp_path):
    return shutil.copytree(good, tmp_path / "runs" / "linux")


def failures(table):
    return table.set_index("check")["evidence"][(table["status"] == "fail").to_numpy()].to_dict()


def test_a_good_run_has_no_failure(good):
    table = validate_run(good, known_good=good)
    assert failures(table) == {}
    checks = set(table["check"])
    assert {"manifest", "every trace closes", "artifacts are there"} <= checks
    assert "operators of avx512_on" in checks


def edit(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_a_missing_table_is_named_with_its_remedy(run_dir):
    next(run_dir.glob("avx512_on/*_ops_stats.csv")).unlink()
    found = failures(validate_run(run_dir))
    assert "ops_stats.csv" in found["artifacts are there"]
    assert "workbench analyze" in found["artifacts are there"]


def test_a_summary_with_another_latency_is_caught(run_dir):
    path = run_dir / "analysis_summary.json"
    edit(path, lambda c: c["per_etdump"][0]["e2e"].update(mean=1.0))
    assert "1.0 ms" in failures(validate_run(run_dir))["summary has the latency of the traces"]


def test_a_summary_with_another_verdict_is_caught(run_dir):
    path = run_dir / "analysis_summary.json"
    edit(path, lambda c: c["comparisons"][0].update(verdict="ten times faster"))
    assert "ten times" in failures(validate_run(run_dir))["summary has the verdicts of the data"]


def test_metrics_that_differ_from_the_manifest_are_caught(run_dir):
    edit(run_dir / "metrics.json", lambda c: c["latencies"][0].update(latency=9.0))
    assert failures(validate_run(run_dir)).keys() == {"metrics have the latencies of the manifest"}


def test_a_cut_trace_is_caught(run_dir):
    path = next(run_dir.glob("avx512_on/*_t1.etdump"))
    path.write_bytes(path.read_bytes()[:1000])
    assert path.name in str(failures(validate_run(run_dir)))


def test_another_program_is_caught(run_dir):
    artifacts = run_dir.parents[1] / "artifacts"
    artifacts.mkdir()
    (artifacts / "mobilenet_v3_small_xnnpack_fp32.pte").write_bytes(b"another")
    edit(run_dir / "layers.json", lambda c: c.update(sha256="0" * 64))
    found = failures(validate_run(run_dir))
    assert found.keys() == {"program is the one that ran", "sidecar is of that program"}


def test_a_run_unlike_the_known_good_one_is_caught(good):
    found = failures(validate_run(good, known_good=wb.sample_run("Ready")))
    assert "missing: Batch Matrix Multiply" in found["operators of avx512_on"]
    assert "shares of categories of avx512_on" in found


@pytest.mark.parametrize("text", ["", "{", "[]", '{"plan": 3}'])
def test_a_bad_manifest_is_a_row_or_an_error_never_a_traceback(run_dir, text):
    (run_dir / "manifest.json").write_text(text)
    assert failures(validate_run(run_dir))


def test_a_bad_summary_is_a_row(run_dir):
    (run_dir / "analysis_summary.json").write_text("[]")
    assert failures(validate_run(run_dir)) == {
        "summary can be read": f"{run_dir / 'analysis_summary.json'}: not a JSON object"
    }


def test_what_does_not_fit_its_schema_is_a_row(run_dir):
    checks = {"analysis_summary": "summary", "metrics": "metrics", "_pipeline_summary": "pipeline"}
    for name in checks:
        (path,) = run_dir.glob(f"*{name}.json")
        edit(path, lambda c: c.pop("model"))
    found = failures(validate_run(run_dir))
    assert found.keys() == {f"{check} can be read" for check in checks.values()}
    assert all("required field model" in evidence for evidence in found.values())


def test_the_folder_of_another_tool_is_looked_at_trace_by_trace(run_dir):
    edit(run_dir / "manifest.json", lambda c: c.pop("plan"))
    table = validate_run(run_dir)
    assert failures(table) == {}
    assert table.set_index("check").at["recorded by", "evidence"] == "another tool"
    assert table["evidence"].str.contains("do not add up its rows").any()
    next(run_dir.glob("*/*.etdump")).write_bytes(b"nothing")
    assert len(failures(validate_run(run_dir))) == 1


def test_an_empty_folder_is_no_run(tmp_path):
    with pytest.raises(UsageError, match=r"no manifest\.json and no ETDump"):
        validate_run(tmp_path)
