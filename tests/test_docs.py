"""The documentation's own pages: their commands exist, and the site leads to every page."""

import importlib.util
import re
import shlex
import sys
from pathlib import Path

import pytest
from command_line import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "data" / "docs").glob("*.md"))
README_PAGES = [ROOT / "README.md", ROOT / "workbench" / "README.md"]


def calls_of(page):
    """The command lines of a page's blocks: name and arguments, without comments."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).splitlines()
    return [line for line in lines if line.startswith("workbench ")]


@pytest.mark.parametrize("page", [*PAGES, *README_PAGES], ids=lambda page: page.name)
def test_the_commands_of_a_page_exist_and_take_these_arguments(page):
    for line in calls_of(page):
        _, name, *words = shlex.split(line, comments=True)
        COMMANDS[name].make_context(name, words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_options_in_its_text_exist(page):
    params = [param for command in COMMANDS.values() for param in command.params]
    known = {option for param in params for option in (*param.opts, *param.secondary_opts)}
    mentioned = set(re.findall(r"`[^`]*?(--[a-z][a-z-]+)", page.read_text()))
    assert mentioned - known == {"--debug", "--help"} & mentioned


@pytest.fixture
def conf(monkeypatch, tmp_path):
    """The configuration of the site, which writes its pages into another folder."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delenv("WORKBENCH_WIDGETS", raising=False)
    monkeypatch.setenv("WORKBENCH_WIDGETS", "")  # put back at the end
    spec = importlib.util.spec_from_file_location("conf", ROOT / "data" / "docs" / "conf.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_site_leads_to_every_page(conf):
    assert conf.CONTENTS["Project"][:1] == ["CHANGELOG"]
    listed = {page for pages in conf.CONTENTS.values() for page in pages}
    included = {
        path.relative_to(ROOT).with_suffix("").as_posix()
        for pattern in conf.include_patterns
        for path in ROOT.glob(pattern)
        if path.suffix == ".md" and path.name != "SKILL.md"
    }
    assert included - listed == {conf.root_doc}
    generated = {page for page in listed if page.startswith("build/")}
    assert all((ROOT / f"{page}.md").is_file() for page in listed - generated)


def test_reference_pages_have_every_public_name_and_playbook(conf, monkeypatch, tmp_path):
    import workbench as wb

    links = {"data": ROOT / "data", "workbench": ROOT / "workbench"}
    for name, target in links.items():
        (tmp_path / name).symlink_to(target)
    monkeypatch.setattr(conf, "ROOT", tmp_path)
    conf.write_reference()
    pages = {path.name: path.read_text() for path in (tmp_path / "build/reference").iterdir()}
    api = "".join(text for name, text in pages.items() if name.startswith("api"))
    assert {name for name in wb.__all__ if f":: workbench.{name}\n" not in api} == set()
    assert pages["playbooks.rst"].count("SKILL") == 9
    schemas = {path.name for path in (ROOT / "data/schemas/v3").iterdir()}
    assert set(re.findall(r"`([\w.]+) <", pages["files.rst"])) == schemas
