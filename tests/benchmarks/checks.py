"""What trying remedies takes: `findings.check()`, in seconds for each finding.

    python tests/benchmarks/checks.py [NETWORK...]

The networks are those of `tests/hinted_models.py`, and a loop of 64 steps. Each is exported and
measured for a moment; then the remedies of all its findings are tried, with the model at
hand, as in `profile`. Beside the seconds are those of the CPU, with child processes.

Exits 1 if trying the remedies of a network takes more than three seconds for each on average. On a
busy machine, judge the seconds of the CPU.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import workbench as wb
from workbench.export.artifact import keep_models

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import hinted_models

MOST_S = 3.0
NETWORKS = ("Pooled", "Attention", "Norms", "Doubles", "Loop", "Fixed", "Lookup", "Steps")


class Steps(nn.Module):
    """A recurrence whose products do not all wait for the state."""

    example_inputs = (torch.randn(1, 64, 64),)

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(64, 64, bias=False), nn.Linear(64, 64)

    def forward(self, x):
        state, results = torch.zeros(1, 64), []
        for step in range(64):
            state = torch.tanh(self.inner(state) + self.outer(x[:, step]))
            results.append(self.outer(state))
        return torch.stack(results, 1)


def seconds():
    """The time now: on the clock, and of the CPU with that of child processes."""
    times = os.times()
    return time.monotonic(), sum(times[:4])


def measure(name):
    """The seconds of a network's checks, and the checks."""
    kind = Steps if name == "Steps" else getattr(hinted_models, name)
    torch.manual_seed(0)
    module = kind().eval()
    brief = wb.MeasureOptions(processes=2, runs=4, evidence=False, cold_start=False, roof=False)
    with tempfile.TemporaryDirectory() as folder, keep_models():
        program = wb.export_model(module, kind.example_inputs, root=folder, progress=quiet)
        run = wb.measure(program, options=brief, root=folder, progress=quiet)
        top = len(run.findings)
        before = seconds()
        checks = wb.check_findings(run, top=top, progress=quiet)
        return [after - start for after, start in zip(seconds(), before, strict=True)], checks


def quiet(text, fraction):
    """Report nothing."""


def main():
    """Try all networks, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=f"of {', '.join(NETWORKS)}")
    slow = []
    print(f"{'network':10} {'checks':>6} {'s each':>7} {'CPU s':>7}  load {os.getloadavg()[0]:.1f}")
    measure(NETWORKS[0])  # imports ExecuTorch
    for name in parser.parse_args().networks or NETWORKS:
        (clock, cpu), checks = measure(name)
        count = max(1, len(checks))
        print(f"{name:10} {len(checks):6} {clock / count:7.2f} {cpu / count:7.2f}", flush=True)
        for each in checks:
            gain = each.problem or f"{each.before_ms:.3g} -> {each.after_ms:.3g} ms"
            print(f"    {each.remedy}: {each.tried} of {each.parts} parts: {gain}")
        slow += [name] * (clock / count > MOST_S)
    if slow:
        sys.exit(f"more than {MOST_S:g} s for each finding: {', '.join(slow)}")


if __name__ == "__main__":
    main()
