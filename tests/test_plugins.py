"""Plug-ins: a stranger's is used everywhere, a broken one costs itself only, any can be deleted."""

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from needed import needs

import workbench as wb
from workbench.plugin import Plugin

ROOT = Path(__file__).resolve().parents[1]
DEPTHWISE = ROOT / "tests" / "data" / "depthwise"
PAGE = ROOT / "data" / "docs" / "plugins" / "README.md"
OURS = [path.parent.name for path in ROOT.glob("workbench/plugins/*/__init__.py")]
BROKEN = {
    "no such module": "nowhere:PLUGIN",
    "no plug-in": "json:dumps",
    "fails": "failing:PLUGIN",
}


@pytest.fixture
def command(tmp_path):
    """Run a command line beside packages of others, in a process of its own."""

    def run(*words, packages=DEPTHWISE):
        line = [sys.executable, "-P", "-m", "workbench", *map(str, words)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(packages), str(ROOT)])}
        return subprocess.run(
            line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280
        )

    return run


@pytest.fixture
def run_dir(tmp_path):
    return shutil.copytree(wb.sample_run(), tmp_path / "run")


def write_package(folder, name, value, code=""):
    """A package that brings a plug-in."""
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[workbench.plugins]\n{name} = {value}\n")
    if code:
        (folder / f"{name}.py").write_text(code)


def test_a_command_and_a_rule_of_a_stranger_are_as_ours(command, run_dir):
    assert "depthwise" in command("--help").stdout
    listed = json.loads(command("depthwise", run_dir, "--json").stdout)["keys"]
    assert len(listed) == 11
    findings = json.loads(command("findings", run_dir, "--json").stdout)["findings"]
    (finding,) = (row for row in findings if row["rule"] == "depthwise")
    assert finding["operators"] == listed and finding["high_ms"] > 0


@pytest.fixture
def python(tmp_path):
    """Run code beside packages of others, in a process of its own; returns what it prints."""

    def run(code, packages):
        path = os.pathsep.join([str(packages), str(ROOT)])
        line = [sys.executable, "-P", "-c", f"import workbench as wb\n{code}"]
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "default"}
        done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stderr
        return done

    return run


def test_an_attribute_of_a_stranger_is_as_ours(python):
    code = (
        "m, toy = (wb.open_run(f).subject for f in (wb.sample_run(), wb.sample_run('toy_cnn')))\n"
        "print(len(m.depthwise), m.depthwise is m.depthwise, 'depthwise' in dir(m))\n"
        "print(wb.emulation.is_emulated(toy.depthwise), wb.emulation.is_emulated(m.depthwise))\n"
        "print(hasattr(m, 'dept'), hasattr(m.run, 'depthwise'))"
    )
    lines = python(code, DEPTHWISE).stdout.splitlines()
    assert lines == ["11 True True", "True False", "False False"]


ADDED = """
from workbench.api import Attribute, Plugin
PLUGIN = Plugin(attributes={
    "Run.words": Attribute("added:say", summary="words", printed=True),
    "Run.wrong_one": Attribute("added:fail", summary="lost", printed=True),
})
def say(run):
    return ("one thread", run.model)
def fail(run):
    return 1 / 0
"""


def test_what_a_stranger_adds_to_summaries_fails_alone(python, tmp_path):
    write_package(tmp_path, "added", "added:PLUGIN", ADDED)
    code = (
        "run = wb.open_run(wb.sample_run())\n"
        "summary = run.list_shown('summary')\n"
        "print(summary['words'][0], 'lost' in summary)\n"
        "print(run.list_shown('printed')['Run.words'])"
    )
    done = python(code, tmp_path)
    assert done.stdout == "one thread False\n('one thread', 'mobilenet_v3_small')\n"
    assert "attribute wrong_one: ZeroDivisionError" in done.stderr


def test_an_absent_attribute_names_what_cannot_be_used(python, tmp_path):
    write_package(tmp_path, "failing", "nowhere:PLUGIN")
    code = (
        "try: wb.open_run(wb.sample_run()).sigmoids\nexcept AttributeError as error: print(error)"
    )
    text = python(code, tmp_path).stdout
    assert text.startswith("Run has no attribute 'sigmoids'; plug-ins that cannot be used: ")
    assert "failing" in text and text.count("\n") == 1


@pytest.mark.cases
def test_a_section_of_a_stranger_is_in_the_report(command, run_dir):
    done = command("report", run_dir)
    assert done.returncode == 0, done.stderr
    report = (run_dir / "report.md").read_text()
    section = report.partition("## Which convolutions are depthwise?")[2].partition("\n## ")[0]
    assert section.count("DWConv") >= 11
    order = r"## Which layers and lines\?.*## Which convolutions.*## What was not"
    assert re.search(order, report, re.S)


@pytest.mark.parametrize(
    ("problem", "value"),
    [
        pytest.param(*case, marks=[pytest.mark.cases] * (case[0] != "fails"))
        for case in BROKEN.items()
    ],
)
def test_a_broken_one_costs_itself_only(command, run_dir, tmp_path, problem, value):
    write_package(tmp_path, "failing", value, "raise RuntimeError('no luck')")
    done = command("findings", run_dir, packages=tmp_path)
    assert done.returncode == 0 and "Traceback" not in done.stderr
    assert done.stderr.count("plug-in failing") <= 1
    assert "failing" in command("--help", packages=tmp_path).stderr


def test_several_broken_ones_are_one_line(command, tmp_path):
    for name in ("first", "second"):
        write_package(tmp_path, name, "nowhere:PLUGIN")
    lines = command("--help", packages=tmp_path).stderr.splitlines()
    (line,) = (line for line in lines if "warning" in line)
    names = line.removeprefix("warning: plug-in ").partition(": ModuleNotFoundError")[0]
    assert {"first", "second"} <= set(names.split(", "))


def test_a_rule_that_fails_costs_its_findings_only(command, run_dir, tmp_path):
    code = "from workbench.api import Plugin\nPLUGIN = Plugin(rules={'x': 'failing:find'})\n"
    write_package(tmp_path, "failing", "failing:PLUGIN", code + "def find(m, keys): return [1 / 0]")
    plain, done = command("findings", run_dir), command("findings", run_dir, packages=tmp_path)
    assert done.returncode == 0 and "rule x: ZeroDivisionError" in done.stderr
    assert len(done.stdout.splitlines()) >= len(plain.stdout.splitlines()) - 5


@pytest.mark.whole
def test_the_doctor_names_what_is_broken(command, tmp_path):
    write_package(tmp_path, "failing", "failing:PLUGIN", "raise RuntimeError('no luck')")
    done = command("doctor", packages=tmp_path)
    assert "note  plug-in failing" in done.stdout and "no luck" in done.stdout
    assert ", ".join(sorted(OURS)) in done.stdout.replace("failing, ", "")


@pytest.fixture
def guest(tmp_path):
    """The rewriter and the runtime of the page, installed."""
    blocks = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE.read_text(), re.S)
    for name, code in blocks:
        (tmp_path / name).write_text(code)
    write_package(tmp_path, "guest", "guest:PLUGIN")
    assert [name for name, _ in blocks] == ["guest.py", "guest_process.py"]
    return tmp_path


DOUBLED = """
import torch
class Doubled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)
    def forward(self, x):
        return self.layer(x) * 2
options = wb.ExportOptions(rewrite=NAMES)
program = wb.export_model(Doubled(), torch.randn(4, 64), options, root=ROOT)
"""


@pytest.mark.whole
@needs("remedies")
def test_a_rewriter_of_a_stranger_is_as_ours(python, cli, guest):
    code = f"NAMES, ROOT = ('doublings', 'powers'), {str(guest)!r}\n{DOUBLED}"
    code += (
        "print(program.export.options['rewritten'], program.export.rewrite)\n"
        "from workbench.cli import workbench\n"
        "workbench(['export', 'toy_cnn', '--rewrite', 'list'], standalone_mode=False)"
    )
    rewritten, *listed = python(code, guest).stdout.splitlines()
    assert rewritten == "1 doublings ('doublings',)"
    assert any(line.startswith("doublings: ") for line in listed)
    refused = cli("export", "toy_cnn", "--rewrite", "doublings")
    assert refused[0] == 2 and "unknown rewrite 'doublings'" in refused[2]


@pytest.mark.cases
def test_a_runtime_and_an_offer_of_a_stranger_are_as_ours(python, guest):
    code = f"NAMES, ROOT = (), {str(guest)!r}\n{DOUBLED}" + (
        "print([each.name for each in program.export.rewrites][0])\n"
        "brief = wb.MeasureOptions(runs=4, processes=2, cold_start=False, evidence=False, "
        "roof=False, against=('bindings',))\n"
        "run = wb.measure(program, options=brief, root=ROOT)\n"
        "(other,) = (m for m in run.measurements if m.runtime)\n"
        "print(other.runtime, other.latency_ms > 0)"
    )
    lines = python(code, guest).stdout.splitlines()
    assert lines == ["doublings", "bindings True"]


@needs("remedies", "memory")
def test_plug_ins_are_switched_off(python, guest, monkeypatch):
    code = (
        "from workbench import plugin, options, remedies\n"
        "print('powers' in options.REWRITES, 'doublings' in options.REWRITES,"
        " 'sums' in options.REWRITES, len(remedies.NEAREST) > 0, len(plugin.list_plugins()))"
    )
    monkeypatch.setenv("WORKBENCH_PLUGINS", "-remedies")
    assert python(code, guest).stdout == f"False True True False {len(OURS)}\n"
    monkeypatch.setenv("WORKBENCH_PLUGINS", "remedies, memory")
    assert python(code, guest).stdout == "True False True True 2\n"


@needs("remedies", "memory")
def test_equal_names_are_said(python, tmp_path):
    code = "from workbench.api import Plugin\nPLUGIN = Plugin(views={'memory': 'json:dumps'})\n"
    write_package(tmp_path, "views", "views:PLUGIN", code)
    write_package(tmp_path, "remedies", "other:PLUGIN", code)
    done = python("from workbench import plugin; print(len(plugin.list_plugins()))", tmp_path)
    assert int(done.stdout) == len(OURS) + 1
    assert "plug-in views: ValueError: 'memory' of views is that of plug-in memory" in done.stderr
    assert "plug-in remedies: ValueError: other:PLUGIN is not used" in done.stderr


def test_the_page_has_the_bodies_of_the_example():
    page = PAGE.read_text()
    assert (DEPTHWISE / "depthwise.py").read_text() in page
    assert {*re.findall(r"^(?:from|import) (workbench\S*)", page, re.M)} == {
        "workbench",
        "workbench.api",
    }


def describe_kinds():
    """The table of what a plug-in may add, from the docstring of `Plugin`."""
    attributes = inspect.getdoc(Plugin).partition("----------\n")[2]
    fields = re.findall(r"^(\w+)\n((?:    .+\n?)+)", attributes, re.M)
    rows = [f"| `{name}` | {' '.join(text.split())} |" for name, text in fields]
    return "\n".join(["| adds | what |", "| --- | --- |", *rows, ""])


def test_the_page_says_all_that_a_plug_in_may_add():
    assert PAGE.read_text().endswith(f"\n\n{describe_kinds()}"), f"python {__file__} writes it"
    assert describe_kinds().count("\n") == len(fields(Plugin)) + 2


def test_the_core_needs_no_plug_in():
    code = (
        "import sys, warnings; sys.modules['workbench.plugins'] = None; import workbench as wb;"
        "warnings.simplefilter('ignore'); from workbench import cli, magics;"
        "run = wb.open_run(wb.sample_run()); print(len(run.findings) > 0);"
        "wb.explore(run); wb.show(run); wb.show(run, 'findings', 'quality')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.split()[0] == "True", done.stderr


if __name__ == "__main__":
    PAGE.write_text(PAGE.read_text().partition("| adds |")[0] + describe_kinds())
