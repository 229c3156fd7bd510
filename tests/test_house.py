"""The house keeps its shape: layers, pins, imports, notebooks."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from workbench.cli import workbench

ROOT = Path(__file__).resolve().parents[1]


def pins_in(text):
    found = re.findall(r"^(?:\s*- )?([\w.-]+)==(\S+)$", text, re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}


def test_data_walks_one_way():
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_environment_yml_has_the_same_pins():
    constraints = pins_in((ROOT / "constraints.txt").read_text())
    environment = pins_in((ROOT / "environment.yml").read_text())
    assert environment
    assert {name: constraints.get(name) for name in environment} == environment


def test_every_dependency_is_in_environment_yml():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"]]
    for extra in ("lab", "test"):
        wanted += project["optional-dependencies"][extra]
    names = {re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", line)[0]).lower() for line in wanted}
    assert names == pins_in((ROOT / "environment.yml").read_text()).keys()


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


def test_the_readme_lists_every_command():
    table = (ROOT / "README.md").read_text().partition("| command |")[2].partition("\n\n")[0]
    listed = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]*)`", table))))
    assert set(workbench.commands) <= listed


@pytest.mark.parametrize(
    "page",
    [*ROOT.glob("README.md"), *ROOT.glob("[!.]*/README.md")],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_links_of_a_page_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target
