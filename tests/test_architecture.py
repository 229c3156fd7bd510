"""Layers, file names, version pins, import cost, and the READMEs."""

import re
import subprocess
import sys
import tomllib
from collections import Counter
from importlib import metadata
from pathlib import Path

import pytest
import yaml

from workbench.cli import workbench

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted((ROOT / "workbench").rglob("*.py"))

#: File names that several packages may share, and why.
SHARED_NAMES = {
    "history": "computed in analysis, read in portfolio, drawn in plots",
    "layers": "made in export, stored in records, computed in analysis, drawn in plots",
    "machine_code": "computed in analysis, drawn in plots",
    "operators": "computed in analysis, with XNNPACK's in analysis.xnnpack, drawn in plots",
    "roofline": "computed in analysis, drawn in plots",
    "sweeps": "computed in analysis, drawn in plots",
    "variants": "read in analysis, drawn in plots",
    "what_if": "computed in analysis, drawn in plots",
    "graph": "XNNPACK's graph, and the findings about a graph",
    "options": "the records, and the command-line options made from them",
}
#: Metaphors that the code does not use; standard terms say the same.
PRIVATE_WORDS = {
    *("answers", "blame", "book", "calm", "climb", "deeds", "depot", "desk", "equipment", "facts"),
    *("house", "journal", "keep", "lap", "naive", "notes", "office", "place", "quiet", "rival"),
    *("rung", "rungs", "sheet", "spot", "turns", "wishes"),
}


def pins_in(text):
    found = re.findall(r"^(?:\s*- )?([\w.-]+)==(\S+)$", text, re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}


def test_layers_import_downwards_only():
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_modules_share_no_file_names():
    counts = Counter(path.stem for path in SOURCES if not path.stem.startswith("__"))
    shared = {name for name, count in counts.items() if count > 1}
    assert shared == SHARED_NAMES.keys()


def test_file_names_use_standard_terms():
    files = [*SOURCES, *(ROOT / "tests").rglob("*.py")]
    assert not [path for path in files if PRIVATE_WORDS & set(path.stem.split("_"))]


def test_every_package_is_pinned_once_and_has_hashes():
    pins = pins_in((ROOT / "constraints.txt").read_text())
    assert len(pins) == len((ROOT / "constraints.txt").read_text().splitlines())
    text = (ROOT / "hashes.txt").read_text().replace(" \\\n    --hash=sha256:", " ")
    hashed = [line.split() for line in text.splitlines()]
    del pins["torch"]  # its CPU build has other hashes than the default build
    assert pins_in("\n".join(pin for pin, *_ in hashed)) == pins
    assert all(hashes and all(len(h) == 64 for h in hashes) for _, *hashes in hashed)


def licence_of(package):
    """What a package states: an expression, else its classifier, else its text's first line."""
    about = metadata.metadata(package)
    classes = [text for text in about.get_all("Classifier", []) if "License ::" in text]
    stated = classes or (about.get("License") or "?").splitlines()
    return about.get("License-Expression") or stated[0].rpartition(" :: ")[2]


def test_licences_of_the_dependencies_are_listed():
    rows = dict(
        re.findall(r"^\| ([\w-]+) \| .+ \| (.+) \|$", (ROOT / "data/licences.md").read_text(), re.M)
    )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {re.match(r"[\w.-]+", line)[0] for line in project["dependencies"]}
    assert wanted <= rows.keys()
    stated = {name: licence_of(name) for name in wanted}
    assert stated == {name: rows[name] for name in wanted}


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda p: p.name)
def test_workflows_are_valid_and_their_commands_exist(path):
    text = path.read_text()
    assert yaml.safe_load(text)["name"]
    for name, rest in re.findall(r"^\s+- run: workbench (\w+) (.+)$", text, re.M):
        params = workbench.commands[name].params
        assert set(re.findall(r"--[\w-]+", rest)) <= {o for p in params for o in p.opts}


def test_import_is_cheap_and_needs_no_torch():
    code = (
        "import sys, time; t = time.process_time(); import workbench; dir(workbench);"
        "print(time.process_time() - t, *(m for m in ('torch', 'executorch', 'pandas') "
        "if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, *loaded = done.stdout.split()
    assert loaded == []
    assert float(seconds) < 0.3


def test_readme_lists_every_command():
    table = (ROOT / "README.md").read_text().partition("| command |")[2].partition("\n\n")[0]
    listed = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]*)`", table))))
    assert set(workbench.commands) <= listed


@pytest.mark.parametrize(
    "page",
    [*ROOT.glob("*.md"), *ROOT.glob("[!.]*/*.md"), *ROOT.glob("data/docs/*.md")],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_links_of_a_page_exist(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target
