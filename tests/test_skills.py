"""The playbooks: each has all its parts, and every command block does what it says."""

import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from command_line import COMMANDS, list_playbooks

ROOT = Path(__file__).resolve().parents[1]
SKILLS = list_playbooks()
SECTIONS = ["Prerequisites", "Commands", "Expected outputs", "Success check", "On failure"]
#: Seconds that one playbook may take.
PATIENCE = 900


def test_those_of_the_core_are_numbered_and_shipped():
    core = [skill.name for skill in SKILLS if (ROOT / "workbench/skills" / skill.name).is_dir()]
    assert [name[:2] for name in core] == [f"{number:02}" for number in range(1, 9)]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    shipped = project["tool"]["setuptools"]["package-data"]["workbench"]
    found = {path for pattern in shipped for path in (ROOT / "workbench").glob(pattern)}
    assert {path.parent.name for path in found} >= set(core)


@pytest.mark.parametrize("skill", SKILLS, ids=lambda skill: skill.name)
def test_a_playbook_is_short_and_has_all_its_parts(skill):
    assert re.findall(r"^## (.+)$", skill.text, re.MULTILINE) == SECTIONS
    assert re.search(r"^name: \w+$", skill.text, re.MULTILINE)
    assert len(skill.text.splitlines()) < 70
    assert len(skill.commands) >= 2 and skill.outputs
    _, _, failure = skill.text.partition("## On failure\n")
    assert len(re.findall(r"^- ", failure, re.MULTILINE)) >= 2


@pytest.mark.parametrize("skill", SKILLS, ids=lambda skill: skill.name)
def test_its_commands_and_options_exist(skill):
    calls = re.findall(r"^\s*(?:LATER=.*)?workbench (.+)$", "".join(skill.commands), re.MULTILINE)
    for call in calls:
        name, *words = shlex.split(call.split("|")[0].split(">")[0])
        params = COMMANDS[name].params
        known = {option for param in params for option in (*param.opts, *param.secondary_opts)}
        assert {word for word in words if word.startswith("--")} <= known, call


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """A folder that the playbooks work in one after the other, outside of the checkout."""
    return tmp_path_factory.mktemp("playbooks")


@pytest.fixture
def clone():
    """The clone, if it has been set up; else the first playbook would install everything."""
    spec = importlib.util.spec_from_file_location("dev", ROOT / "dev.py")
    dev = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(dev)
    if not (dev.STAMP.exists() and dev._fingerprint() in dev.STAMP.read_text()):
        pytest.skip("this clone is not set up: `python3 dev.py setup` would install everything")
    return ROOT


def execute(skill, folder, tools):
    """Run the blocks of a playbook in one shell; look for what it promises."""
    script = "set -eu\n" + "".join(skill.commands)
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env={"PATH": f"{tools}:/usr/local/bin:/usr/bin:/bin", "HOME": str(Path.home())},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, f"{skill.name}: {done.stderr[-3000:]}"
    for pattern in skill.outputs:
        found = list(folder.glob(pattern))
        assert found, f"{skill.name} left no {pattern}"
        assert all(path.stat().st_size for path in found)


@pytest.mark.cases
@pytest.mark.timeout(PATIENCE)
def test_the_first_playbook_runs(clone):
    execute(SKILLS[0], clone, Path(sys.base_prefix) / "bin")


@pytest.mark.cases
@pytest.mark.timeout(8 * PATIENCE)
def test_the_other_playbooks_run_in_order(workspace, installed):
    for skill in SKILLS[1:]:
        execute(skill, workspace, installed / "bin")


def test_a_check_that_fails_fails_the_playbook(workspace):
    (broken,) = (skill for skill in SKILLS if skill.name.endswith("generate_report"))
    with pytest.raises(AssertionError, match=r"07_generate_report: .*run_dir\.txt"):
        execute(broken, workspace, Path(sys.executable).parent)
