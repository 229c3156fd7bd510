"""CI runs failed tests once more; at the end, all of them are counted and named."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

#: Stands for dev.py: the first lane is pytest, all others do nothing.
LANES = """\
if [ "$2" = test ]; then $LINT; shift 2; exec .venv/bin/python -m pytest -q -p no:randomly "$@"; fi
[ "$1" = dev.py ]
"""

TESTS = """\
from pathlib import Path

def test_steady(): pass

def test_broken(): assert 0

def test_flaky():
    first = not Path("tried").exists()
    Path("tried").touch()
    assert not first
"""


@pytest.fixture
def run_ci(tmp_path):
    """Run `.ci/run` on a folder with some tests; no tool is found that it would install or use."""
    tools = tmp_path / "tools"
    for folder in (tools, tmp_path / ".ci", tmp_path / ".venv" / "bin"):
        folder.mkdir(parents=True)
    (tmp_path / ".ci" / "run").write_text((ROOT / ".ci" / "run").read_text())
    scripts = {tools / "python3": LANES, tools / "id": "echo 1000", tools / "npm": "exit 0"}
    scripts[tmp_path / ".venv" / "bin" / "python"] = f'exec {sys.executable} "$@"'
    for path, text in scripts.items():
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def run(tests, lint=""):
        (tmp_path / "test_it.py").write_text(tests)
        (tmp_path / "pytest.ini").write_text("[pytest]\n")
        environment = {**os.environ, "PATH": f"{tools}:/usr/bin:/bin", "LINT": lint}
        for name in [name for name in environment if name.startswith("PYTEST_")]:
            del environment[name]
        command = ["bash", tmp_path / ".ci" / "run"]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    return run


@pytest.mark.whole
def test_failures_are_counted_and_named_last(run_ci):
    done = run_ci(TESTS)
    assert done.returncode == 1
    assert done.stdout.endswith(
        "passed on the second try: 1\ntest_it.py::test_flaky\n"
        "failed twice: 1\ntest_it.py::test_broken\n"
    ), done.stdout + done.stderr
    assert "2 failed, 1 passed" in done.stdout and "1 failed, 1 passed" in done.stdout


@pytest.mark.whole
def test_a_flaky_test_does_not_end_the_run(run_ci):
    done = run_ci(TESTS.replace("assert 0", "pass"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("passed on the second try: 1\ntest_it.py::test_flaky\n")


def test_what_fails_before_the_tests_is_not_run_again(run_ci):
    done = run_ci(TESTS, lint="exit 1")
    assert done.returncode == 1
    assert done.stdout == ""
