"""CONTRIBUTING: its map is that of the house, and what it says of additions was tried."""

import difflib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import house
import pytest
from additions import ADDITIONS
from needed import needs

ROOT = Path(__file__).resolve().parents[1]
#: A target is part of a plug-in.
MARKS = {"target": [needs("targets")]}
PAGE = ROOT / "CONTRIBUTING.md"
TEXT = PAGE.read_text()


@pytest.fixture
def copy(tmp_path):
    """A copy of the package, with links to its data."""
    hidden = shutil.ignore_patterns("__pycache__", "node_modules")
    shutil.copytree(ROOT / "workbench", tmp_path / "workbench", symlinks=True, ignore=hidden)
    for folder in ("data", "notebooks"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    return tmp_path


def apply(addition, package):
    """Make the edits; returns how many lines were added or changed."""
    count = 0
    for name, edits in {**addition.edits, **dict.fromkeys(addition.new, ())}.items():
        path = package / name
        before = path.read_text() if path.exists() else ""
        after = addition.new.get(name, before)
        for old, new in edits:
            assert after.count(old) >= 1, f"{name}: {old}"
            after = after.replace(old, new, 1)
        path.write_text(after)
        lines = difflib.ndiff(before.splitlines(), after.splitlines())
        count += sum(line.startswith("+ ") for line in lines)
    return count


def run(copy, code):
    environment = {**os.environ, "PYTHONPATH": str(copy), "MPLBACKEND": "agg"}
    line = [sys.executable, "-P", "-c", code]
    return subprocess.run(line, cwd=copy, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("name", [pytest.param(n, marks=MARKS.get(n, [])) for n in ADDITIONS])
def test_an_addition_takes_the_files_and_lines_that_the_page_states(copy, name):
    addition = ADDITIONS[name]
    lines = apply(addition, copy / "workbench")
    files = ", ".join(f"`{file}`" for file in sorted({*addition.edits, *addition.new}))
    assert f"| {name} | {files} | {lines} |" in TEXT


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[
                pytest.mark.whole if name == "rule" else pytest.mark.cases,
                *MARKS.get(name, []),
            ],
        )
        for name in ADDITIONS
    ],
)
def test_an_addition_is_one(copy, name):
    addition = ADDITIONS[name]
    assert run(copy, addition.shown_by).returncode != 0
    apply(addition, copy / "workbench")
    done = run(copy, addition.shown_by)
    assert done.returncode == 0, done.stderr


def test_the_map_is_that_of_the_house():
    tables = re.findall(r"(?:^\|.*\n)+", TEXT, re.M)
    assert house.describe_map(ROOT) in tables, "python tests/house.py --map"


#: Asks scripts for help, one after the other, each as if it had been started alone.
ASK = """
import contextlib, io, runpy, sys
from pathlib import Path

folder = Path(sys.argv[1])
paths = [str(folder), *sys.path[1:]]
for script in sorted(folder.glob("[!_]*.py")):
    sys.path[:], sys.argv[:], code, said = paths, [str(script), "--help"], None, io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            runpy.run_path(str(script), run_name="__main__")
    except SystemExit as ended:
        code = ended.code
    except Exception as error:
        lacking = getattr(error, "name", None) or ""
        _, _, plugin = lacking.partition("workbench.plugins.")
        if plugin and not Path(PLUGINS, plugin.partition(".")[0]).is_dir():
            continue
        code = repr(error)
    if code != 0 or script.name not in said.getvalue():
        print(f"{script.name}: {code!r}")
    for name, module in [*sys.modules.items()]:
        if str(folder.parent) in str(getattr(module, "__file__", "")):
            del sys.modules[name]
"""


@pytest.mark.cases
def test_every_benchmark_has_help():
    """But for those of plug-ins that are not there."""
    code = f"PLUGINS = {str(ROOT / 'workbench' / 'plugins')!r}\n{ASK}"
    command = [sys.executable, "-c", code, str(ROOT / "tests" / "benchmarks")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
