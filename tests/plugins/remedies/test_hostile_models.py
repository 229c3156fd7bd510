"""Trying remedies loads a run's model, which a stranger may name."""

import json
import shutil

import pytest

import workbench as wb


@pytest.mark.parametrize("by", ["source", "spec"])
def test_a_trial_runs_no_code_that_only_the_manifest_names(tmp_path, by):
    evil, mark = tmp_path / "evil.py", tmp_path / "ran"
    evil.write_text(f"open({str(mark)!r}, 'w')\n")
    folder = shutil.copytree(wb.sample_run("vit_tiny"), tmp_path / "run")
    content = json.loads((folder / "manifest.json").read_text())
    content["export"] |= {"model": "Net", "source": str(evil)}
    content["export"]["spec"] = f"{evil}:Net" if by == "spec" else ""
    (folder / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(
        wb.WorkbenchError, match=r"is code in .*evil\.py.* -> if you trust it: --model"
    ):
        wb.check_findings(wb.open_run(folder))
    assert not mark.exists()
