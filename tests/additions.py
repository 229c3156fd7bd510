"""What a new dtype, category, rule and target take: the edits, and code that shows that it works.

Each is tried on a copy of the package by ``test_contributing.py``; CONTRIBUTING.md states its files
and lines. An edit replaces a text by another one; of a file without edits, it is all.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Addition:
    """Edits by file, new files, and a program that fails without them."""

    edits: dict[str, tuple[tuple[str, str], ...]]
    shown_by: str
    new: dict[str, str] = field(default_factory=dict)


_NET = """
import torch
import workbench as wb
net, x = torch.nn.Linear(4, 4), torch.ones(1, 4)
"""
ADDITIONS = {
    "dtype": Addition(
        {
            "export/precision.py": (
                ('    "bf16": ', '    "fp64": Precision("float64", "double precision", 100),\n'
                 '    "bf16": '),
            ),
            "options.py": (('"fp32, fp16, fp16w,', '"fp64, fp32, fp16, fp16w,'),),
        },
        _NET + """
options = wb.ExportOptions("fp64", backend="portable")
export = wb.export_model(net, x, options=options, root="out").export
assert export.dtype == "fp64" and export.runs, export
""",
    ),
    "category": Addition(
        {
            "analysis/operators.py": (
                ('"Elementwise", "Other")', '"Elementwise", "Softmax", "Other")'),
            ),
            "analysis/schemes/workbench.yaml": (
                ("- name: softmax\n  kind: delegated\n  category: Other\n",
                 "- name: softmax\n  kind: delegated\n  category: Softmax\n"),
            ),
            "plots/tables.py": (
                ('    "Other": "#EFE2EF",', '    "Softmax": "#CC79A7",\n    "Other": "#EFE2EF",'),
            ),
            "frames.py": (("Elementwise | Other", "Elementwise | Softmax | Other"),),
        },
        """
import workbench as wb
run = wb.open_run(wb.sample_run("vit_tiny"))
table = run.subject.categories.set_index("category")
assert table.loc["Softmax", "mean_ms"] > 0
wb.plot_categories(run)
""",
    ),
    "rule": Addition(
        {
            "analysis/findings/rules.py": (
                ('    "layout": Rule(',
                 '    "width": Rule(bounds.find_width),\n'
                 '    "layout": Rule('),
            ),
            "analysis/findings/bounds.py": (
                ("def find_compute_bound(", '''\
def find_width(m: Measurement, unclaimed: Collection[str]) -> Iterator[Finding]:
    """Convolutions, which take less time with fewer channels."""
    keys = list(m.operators.loc[m.operators["name"].str.contains("Convolution"), "key"])
    gain = Gain.at_most(time_spent(m, keys).high)
    yield Finding("convolutions", gain, keys, "use fewer channels", "nn.Conv2d(16, 16, 3)")


def find_compute_bound('''),
            ),
        },
        """
import workbench as wb
findings = wb.open_run(wb.sample_run()).subject.findings.set_index("rule")
assert findings.loc["width", "high_ms"] > 0
""",
    ),
    "target": Addition(
        {
            "plugins/targets/__init__.py": (
                ('        "ssh:HOST"',
                 '        "shell": f"{_HERE}.shell:Shell",\n        "ssh:HOST"'),
            ),
        },
        """
import pathlib
from workbench.run.targets import open_target
target = open_target("shell")
pathlib.Path("sent").write_text("sent")
assert target.sh(f"cat {target.push(pathlib.Path('sent'))}") == b"sent"
assert target.is_alive() and target.platform.startswith("linux")
""",
        {
            "plugins/targets/shell.py": '''"""A shell on this machine."""

import tempfile

from workbench.plugins.targets.remote import Remote


class Shell(Remote):
    """All files and commands go through ``sh``."""

    def __init__(self, rest: str, power: str) -> None:
        super().__init__("shell", tempfile.mkdtemp(prefix="wb-"))

    @property
    def platform(self) -> str:
        """The platform's name."""
        return self.name_platform("linux", self.machine)

    def shell(self, script: str) -> list[str]:
        """The command that runs a shell script."""
        return ["sh", "-c", script]

    def is_lost(self, code: int) -> bool:
        """Whether a command that ended with ``code`` was cut off."""
        return False
''',
        },
    ),
}  # fmt: skip
