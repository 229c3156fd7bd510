"""All insight comes from recorded data alone: no PyTorch, no ExecuTorch, no other process."""

import subprocess
import sys
from pathlib import Path

import pytest

# What a notebook without a device does, in a process in which the rest cannot be had.
SCRIPT = """
import subprocess, sys

BLOCKED = ("torch", "torchao", "executorch", "torchvision")

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"{name} is not here")

def refuse(*_, **__):
    raise AssertionError("a process was started")

sys.meta_path.insert(0, Blocker())
subprocess.Popen.__init__ = refuse

import pandas as pd

import workbench as wb

def tell(what, frame):
    assert len(frame), what
    print(what, len(frame))

runs = {name: wb.sample_run(name) for name in sys.argv[1:]}
for name, folder in runs.items():
    run = wb.open_run(folder)
    ab, on = run.compare(), run.subject
    tell("findings", run.findings)
    str(wb.show(run, "findings"))
    tell("shift", ab.shift)
    assert wb.plot_shift(ab).alt_text
    tell("tree", on.layers)
    assert wb.plot_categories(on).alt_text
    tell("verdicts", ab.operators)
    assert str(wb.show(run))
    if not run.emulated:
        aligned = wb.combine_runs({m.label: m for m in (ab.baseline, on)}, across=()).align()
        tell("aligned", aligned)
    if on.roofline is not None:
        tell("roofline", on.roofline)
        tell("ceilings", run.ceilings)
        assert set(on.roofline["bound"]) & {"compute", "memory", "overhead"}
        assert wb.plot_roofline(on).alt_text
published = pd.read_csv(wb.sample_file("squeezesam.csv"))
off, on = [part for _, part in published.groupby("experiment", sort=False)][:2]
assert wb.plot_shift({"off": off, "on": on}).alt_text
assert not {name.partition(".")[0] for name in sys.modules} & set(BLOCKED)
"""


@pytest.mark.cases
def test_insight_needs_recorded_data_only():
    models = ["mobilenet_v3_small", "vit_tiny", "unet_small", "squeezesam", "toy_cnn"]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *models],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = [line.split()[0] for line in done.stdout.splitlines()]
    for what in ("findings", "shift", "tree", "verdicts"):
        assert told.count(what) == len(models), what
    assert told.count("aligned") == 4
    assert told.count("roofline") == told.count("ceilings") >= 1
