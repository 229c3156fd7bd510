"""The doctor reports what works and how to fix what does not."""

import json
import os
import shlex
import subprocess
import sys
from importlib import metadata
from types import SimpleNamespace

import pytest
from devices import find_check

import workbench as wb
from workbench.jobs import Runner


def test_a_machine_is_described_in_full():
    checks = {check.subject: check for check in wb.examine_machine()}
    for subject in ("compiler", "C++ libraries", "runner", "CPU features", "SME2"):
        assert checks[subject].detail
    assert checks["hiding features"].status == "ok"
    assert all(check.fix for check in checks.values() if check.status == "fail")


def test_an_executorch_that_is_not_tested_is_a_note(tools, monkeypatch):
    monkeypatch.setattr("workbench.upstream.TESTED", ("1.4.0",))
    check = find_check("executorch")
    assert check.status == "note" and "is not among the tested versions, 1.4.0" in check.detail


def test_what_is_missing_is_no_failure(tools):
    checks = {check.subject: check for check in wb.examine_machine()}
    assert {check.subject for check in checks.values() if check.status == "fail"} <= {"runner"}
    assert all(check.fix for check in checks.values() if check.status != "ok")
    assert "downloaded by pip" in checks["cross compiler"].detail


@pytest.mark.parametrize(
    ("origin", "words"),
    [
        ({"url": "file:///a%20b", "dir_info": {"editable": True}}, ["-e", "/a b[mcp]"]),
        ({"url": "file:///a/w.whl", "archive_info": {}}, ["/a/w.whl[mcp]"]),
        (
            {"url": "https://a/w.git", "vcs_info": {"vcs": "git", "commit_id": "1f"}},
            ["executorch-workbench[mcp] @ git+https://a/w.git@1f"],
        ),
        (None, ["-e", ".[mcp]"]),
    ],
)
def test_extras_are_installed_from_where_the_workbench_came(monkeypatch, origin, words):
    content = json.dumps(origin) if origin else None
    found = SimpleNamespace(read_text=lambda name: content)
    monkeypatch.setattr(metadata, "distributions", lambda **_: [found])
    error = wb.WorkbenchError("mcp is not installed", install="executorch-workbench[mcp]")
    assert shlex.split(error.hint)[-len(words) - 1 :] == ["install", *words]


@pytest.mark.parametrize(
    ("variable", "compiled", "status", "fix"),
    [
        ("", True, "ok", ""),
        ("1", True, "note", "unset PYTHONDONTWRITEBYTECODE"),
        ("", False, "note", "-m compileall -q "),
    ],
)
def test_bytecode_that_is_missing_or_not_kept_is_a_note(tmp_path, variable, compiled, status, fix):
    code = "from workbench.run.doctor import _bytecode; print(*_bytecode(), sep='|')"
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": variable}
    if not compiled:
        environment["PYTHONPYCACHEPREFIX"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    answer = done.stdout.strip().split("|")
    assert answer[0] == status
    assert fix in [*answer, ""][2]
    assert compiled == answer[1].startswith("compiled")


def test_a_command_keeps_what_it_compiles_whatever_the_variable_says(tmp_path):
    settings = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": str(tmp_path / "compiled")}
    command = [sys.executable, "-m", "workbench", "export", "--help"]
    subprocess.run(command, env={**os.environ, **settings}, check=True, capture_output=True)
    assert [*(tmp_path / "compiled").rglob("*.pyc")]


def test_children_keep_what_they_compile(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    told = tmp_path / "told"
    code = f"import os; open({str(told)!r}, 'w').write(' '.join(os.environ))"
    with pytest.raises(wb.WorkbenchError, match="ended"):
        Runner((sys.executable, "-S", "-c", code), {}).open([], timeout_s=60)
    assert "PATH" in told.read_text() and "PYTHONDONTWRITEBYTECODE" not in told.read_text()
