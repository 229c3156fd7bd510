"""Files that are read are checked against their types."""

import json
import shutil
from pathlib import Path

import pytest

import workbench as wb


@pytest.fixture
def manifest(tmp_path):
    """Opens a run with a changed manifest."""
    folder = shutil.copytree(wb.sample_run("toy_cnn"), tmp_path / "run")

    def open_changed(change):
        path = folder / "manifest.json"
        content = json.loads((wb.sample_run("toy_cnn") / "manifest.json").read_bytes())
        change(content)
        path.write_text(json.dumps(content))
        return wb.open_run(folder)

    return open_changed


def test_what_records_do_not_have_is_passed_over(manifest):
    def make_earlier(content):
        content["paced"], content["plan"]["every_s"] = [], 0.0
        for experiment in content["plan"]["experiments"]:
            experiment |= {"mode": "timing", "weights": "packed"}
        content["sessions"][0]["log"] = "run.log"

    record = manifest(make_earlier).record
    assert record == wb.open_run(wb.sample_run("toy_cnn")).record


@pytest.mark.parametrize("version", [0, -1, 1, 2, 4, "3", None, True, 1.0])
def test_a_version_that_nobody_wrote_is_refused(manifest, version):
    with pytest.raises(Exception, match=r"schema version .*, this workbench reads 3"):
        manifest(lambda content: content.update(schema_version=version))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c["sessions"][0].update(threads="many"), "$.sessions[0].threads"),
        (lambda c: c["sessions"][1]["batches"][0].update(wall_ns=[1.5]), ".batches[0].wall_ns[0]"),
        (lambda c: c.update(sessions=3), "$.sessions"),
        (lambda c: c.update(spent_s="\ud800"), "not JSON"),
        (lambda c: c["export"].pop("model"), "$.export: object missing required field model"),
        (lambda c: c.update(sessions=[""] * 1_000_000), "$.sessions[0]"),
        (lambda c: c.update(exports=dict.fromkeys(map(str, range(10**5)), "")), "$.exports[...]"),
        (lambda c: c.update(host=[[]] * 700_000), "too many lists and objects"),
    ],
)
def test_a_bad_manifest_is_one_clear_line(manifest, change, words):
    with pytest.raises(Exception, match=r"manifest\.json: ") as caught:
        manifest(change)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not a JSON object"),
        ("{}", "is no manifest of a run"),
        ('{"schema_version": 9, "plan": {}}', "the workbench version that wrote it"),
        ('{"schema_version": 3, "plan": {}}', "not a RunRecord record"),
    ],
)
def test_a_bad_document_is_one_clear_line(cli, tmp_path, text, says):
    path = tmp_path / "main.json"
    path.write_text(text)
    code, out, err = cli("compare", wb.sample_run("toy_cnn"), "--baseline", path)
    assert (code, out) == (1, "") and says in err
    assert len(err.splitlines()) == 1 and "main.json: " in err


@pytest.mark.whole
def test_analysis_summarises_in_markdown_and_leaves_that_of_a_report(cli, tmp_path):
    run_dir = Path(shutil.copytree(wb.sample_run("Ready"), tmp_path / "out_r/runs/linux"))
    assert cli("analyze", run_dir)[0] == 0
    (brief,) = run_dir.glob("*_pipeline_summary.md")
    assert wb.open_run(run_dir).compare().text in brief.read_text()
    (run_dir / "report.md").write_text("a report")
    brief.write_text("its brief")
    assert cli("analyze", run_dir)[0] == 0
    assert brief.read_text() == "its brief"
