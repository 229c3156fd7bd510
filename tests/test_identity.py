"""What an export is made by: every file that may change a program or its record."""

import gc
import json
import os
import shutil
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
from exporting import NET
from needed import needs
from torch import nn

import workbench as wb

ROOT = Path(__file__).resolve().parents[1]
PORTABLE = wb.ExportOptions(backend="portable")
#: Identifies the exporter, and again after each of some changes, which it takes back.
CHANGES = """
import json, sys
from pathlib import Path
from workbench import plugin, upstream
from workbench.export.identity import identify_exporter

package, packages = Path(plugin.__file__).parent, Path(sys.argv[1])

def identify():
    plugin.load_plugins.cache_clear()
    return json.dumps(identify_exporter())

def edit(file):
    before = file.read_bytes()
    file.write_bytes(before + b"\\n# edited\\n")
    identified = identify()
    file.write_bytes(before)
    return identified

def move(path, target):
    path.rename(target)
    identified = identify()
    target.rename(path)
    return identified

seen = {"unchanged": identify(), "as before": identify()}
for name in sys.argv[2:]:
    seen[name] = edit(package / name)
remedies = package / "plugins" / "remedies"
seen["our rewriter removed"] = move(remedies, packages / "removed")
seen["a rewriter installed"] = move(packages / "off", packages / "mine-1.0.dist-info")
(packages / "off").rename(packages / "mine-1.0.dist-info")
seen["its rules edited"] = edit(packages / "mine" / "rules.json")
seen["its helper edited"] = edit(packages / "helper_of_mine.py")
(packages / "mine-1.0.dist-info").rename(packages / "off")
upstream.find_missing = lambda: {"a part": "it is gone"}
seen["a part of upstream missing"] = identify()
print(json.dumps(seen))
"""
DECIDING = [
    "upstream.py", "options.py", "remedies.py", "plugin.py", "process.py", "export/lower.py",
    "export/part.py", "models/loader.py", "records/exports.py",
    "plugins/remedies/single_operators.py",
]  # fmt: skip
OTHERS = ["plots/views.py", "report/report.py", "plugins/optimize/variants_figure.py"]
MINE = """
from workbench.api import Plugin, Remedies, Rewriter
PLUGIN = Plugin(remedies={"mine": "mine:ADDED"})
ADDED = Remedies({}, "mine:REWRITER")
class Mine(Rewriter):
    names = ("mine",)
REWRITER = Mine()
"""


@pytest.fixture
def packages(tmp_path):
    """A package with a rewriter that is not installed yet, and that has a module beside it."""
    folder = tmp_path / "packages"
    (folder / "mine").mkdir(parents=True)
    (folder / "mine" / "__init__.py").write_text(MINE)
    (folder / "mine" / "rules.json").write_text("{}")
    (folder / "helper_of_mine.py").write_text("LIMIT = 1\n")
    (folder / "off").mkdir()
    (folder / "off" / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (folder / "off" / "entry_points.txt").write_text("[workbench.plugins]\nmine = mine:PLUGIN\n")
    (folder / "off" / "RECORD").write_text("mine/__init__.py,,\nhelper_of_mine.py,,\n")
    return folder


@needs("remedies")
def test_whatever_changes_a_program_changes_its_identity(tmp_path, packages):
    ignored = shutil.ignore_patterns("__pycache__", "data", "notebooks")
    shutil.copytree(ROOT / "workbench", tmp_path / "workbench", ignore=ignored)
    done = subprocess.run(
        [sys.executable, "-P", "-c", CHANGES, str(packages), *DECIDING, *OTHERS],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{packages}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    before = seen.pop("unchanged")
    alike = {name for name, identified in seen.items() if identified == before}
    assert alike == {"as before", *OTHERS}
    assert len({*seen.values()}) == len(seen) - len(alike) + 1


#: Exports, and prints the modules of the workbench that it imported and the files that it opened,
#: and those that are in its identity, of which some are rewriters'.
EXPORT = """
import json, sys
from pathlib import Path

import workbench as wb
from workbench import plugin
from workbench.export.identity import list_modules

package, opened = Path(wb.__file__).parent, set()

def listen(event, arguments):
    if event == "open" and isinstance(arguments[0], str):
        opened.add(arguments[0])

sys.addaudithook(listen)
wb.export_model("net.py:Net", options=wb.ExportOptions(dtype="int8", rewrite=("all",)))
files = {getattr(each, "__file__", None) or "" for each in list(sys.modules.values())} | opened
used = [file for file in files if Path(file).is_relative_to(package)]
rewriters = plugin.list_files("remedies")["remedies"]
imported = [path for path in rewriters if path.name == "rewrite.py"]
code = list_modules([package / "export" / "artifact.py", *imported]).union(rewriters)
print(json.dumps([used, [*map(str, code)], [*map(str, rewriters)]]))
"""


@pytest.mark.whole
def test_all_that_an_export_imports_or_reads_is_in_its_identity(tmp_path):
    """A model itself is in the trace; what plug-ins may add is only looked up."""
    (tmp_path / "net.py").write_text(f"{NET}\n\nEXAMPLE_INPUTS = (torch.ones(1, 4),)\n")
    line = [sys.executable, "-c", EXPORT]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    package = ROOT / "workbench"
    lists = json.loads(done.stdout.splitlines()[-1])
    files, code, rewriters = ({Path(file) for file in each} for each in lists)
    looked_up = {*package.glob("plugins/**/__init__.py"), *package.glob("models/zoo/*.py")}
    read = {file for file in files - looked_up if file.parent.name != "__pycache__"}
    used = {file for file in read if file.suffix != ".pyi"}
    assert used <= code, f"what an export uses and its identity lacks: {used - code}"
    assert {package / "upstream.py", package / "remedies.py"} <= used and rewriters & used


class Net(nn.Module):
    """A layer, and an input by name."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x, *, scale):
        return self.linear(x) * scale


@pytest.mark.whole
def test_inputs_are_kept_no_longer_than_their_module(tmp_path):
    net, inputs = Net(), {"x": torch.ones(1, 4), "scale": torch.ones(1)}
    wb.export_model(net, inputs, PORTABLE, root=tmp_path)
    kept = [weakref.ref(each) for each in (net, *inputs.values())]
    del net, inputs
    gc.collect()
    assert [each() for each in kept] == [None] * 3
