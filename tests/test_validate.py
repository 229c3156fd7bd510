"""What validation finds: nothing in a good run, and each kind of damage by its name."""

import shutil

import pytest
from changed_runs import edit_json

import workbench as wb


@pytest.fixture
def run_dir(analysed, tmp_path):
    """A copy of an analysed run that a test may spoil."""
    return shutil.copytree(analysed.path, tmp_path / "runs" / "linux")


def failures(table):
    return table.set_index("check")["evidence"][(table["status"] == "fail").to_numpy()].to_dict()


def test_a_good_run_has_no_failure(analysed):
    table = wb.validate_run(analysed)
    assert failures(table) == {}
    checks = set(table["check"])
    assert {"manifest", "ledger closes", "artifacts are there"} <= checks


@pytest.mark.whole
def test_a_missing_table_is_named_with_its_remedy(run_dir):
    next(run_dir.glob("avx512_on/*_ops_stats.csv")).unlink()
    found = failures(wb.validate_run(run_dir))
    assert "ops_stats.csv" in found["artifacts are there"]
    assert "workbench analyze" in found["artifacts are there"]


def test_a_cut_trace_is_caught(run_dir):
    path = next(run_dir.glob("avx512_on/*_t1.etdump"))
    path.write_bytes(path.read_bytes()[:1000])
    assert path.name in str(failures(wb.validate_run(run_dir)))


@pytest.mark.whole
def test_another_program_is_caught(run_dir):
    artifacts = run_dir.parents[1] / "artifacts"
    artifacts.mkdir()
    (artifacts / "mobilenet_v3_small_xnnpack_fp32.pte").write_bytes(b"another")
    edit_json(run_dir / "layers.json", lambda c: c.update(sha256="0" * 64))
    found = failures(wb.validate_run(run_dir))
    assert {"program is the one that ran", "sidecar is of that program"} <= found.keys()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"plan": 3}'])
def test_a_bad_manifest_is_a_row_or_an_error_never_a_traceback(run_dir, text):
    (run_dir / "manifest.json").write_text(text)
    assert failures(wb.validate_run(run_dir))


@pytest.mark.whole
def test_the_folder_of_another_tool_is_looked_at_trace_by_trace(run_dir):
    edit_json(run_dir / "manifest.json", lambda c: (c.pop("plan"), c.pop("results")))
    table = wb.validate_run(run_dir)
    assert failures(table) == {}
    assert table.set_index("check").at["recorded by", "evidence"] == "another tool"
    assert table["evidence"].str.contains("do not add up its rows").any()
    next(run_dir.glob("*/*.etdump")).write_bytes(b"nothing")
    assert len(failures(wb.validate_run(run_dir))) == 1


def test_an_empty_folder_is_no_run(tmp_path):
    with pytest.raises(Exception, match=r"no manifest\.json and no ETDump"):
        wb.validate_run(tmp_path)
