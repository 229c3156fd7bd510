"""Is the share of an operator outside of the delegate right in small networks, and is it stated?

Twelve networks of 0.1 to 2 ms, each with one operation that XNNPACK does not take, are profiled
with the defaults: an extension off and on. The true share is measured without our runner and
without traces, in two ways between which it lies. ExecuTorch's Python runtime runs in turn

- the network and the operation as a program of its own, with the input that it has in the network,
  and for each a program that takes the same input and calls a kernel with one number, whose time is
  taken off (a program copies its input into its own memory, and calls cost time): the operation
  finds less of its input in caches than in the network;
- the network with the operation once more, on the same input: it finds more of it.

CPU time, midmeans of five processes with Student's 95 % interval.

    python tests/benchmarks/small.py [--runs 1] [--busy 0] [NAME...]

``--busy`` starts so many busy loops beside it. The table has the latency, the share that the run
states with how far it may be off, the true share (once more, and alone) with half of its interval,
what tracing added (CPU time of traced inferences over that of others, less what the tracer takes
off) and the caveat, if there is one. Exits 1 if anything is withheld, if what is stated lies
outside of the range of both true shares with their intervals, or if the order of the two
largest categories is open and only one is named.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from _runs import busy_loops

import workbench as wb
from workbench.analysis.statistics import half_width
from workbench.analysis.use import describe_use

RESTARTS = 5
#: The programs run in turn in a process of its own; their CPU times in ns, and the load.
TIME = """
import json, os, sys, time
import torch
from executorch.extension.pybindings import portable_lib

portable_lib._unsafe_reset_threadpool(1)
torch.set_num_threads(1)
inputs = torch.load(sys.argv[1])
programs = [portable_lib._load_for_executorch(path) for path in sys.argv[2:]]
times = [[] for _ in programs]
end = time.monotonic() + 1.5
while time.monotonic() < end:
    for program, given, into in zip(programs, inputs, times):
        start = time.process_time_ns()
        program.run_method("forward", given, clone_outputs=False)
        into.append(time.process_time_ns() - start)
middle = [sorted(each[10:]) for each in times]
print(json.dumps([sum(m[len(m) // 4 : -len(m) // 4]) / len(m[len(m) // 4 : -len(m) // 4])
                  for m in middle]))
"""


class Network(torch.nn.Module):
    """Layers, an operation that is not delegated, and layers."""

    def __init__(self, before, part, after):
        super().__init__()
        self.before, self.part, self.after = before, Part(part), after

    def forward(self, x):
        return self.after(self.part(self.before(x)))


class Twice(torch.nn.Module):
    """A network whose operation is done once more; both results are outputs."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        middle = self.network.before(x)
        return self.network.after(self.network.part(middle)), self.network.part(middle)


class Part(torch.nn.Module):
    """An operation as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Nothing(torch.nn.Module):
    """One call of a kernel with one number, whatever the input is."""

    def __init__(self):
        super().__init__()
        self.one = torch.nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.one.sin()


def images(inputs, outputs, kernel=3, groups=1):
    """A convolution of images with ReLU."""
    layer = torch.nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, groups=groups)
    return torch.nn.Sequential(layer, torch.nn.ReLU())


def sequences(inputs, outputs):
    """A convolution of sequences with ReLU."""
    layer = torch.nn.Conv1d(inputs, outputs, 5, padding=2)
    return torch.nn.Sequential(layer, torch.nn.ReLU())


def vectors(*widths):
    """Linear layers with ReLU."""
    layers = []
    for width, more in pairwise(widths):
        layers += [torch.nn.Linear(width, more), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers)


def build():
    """The networks and their inputs, by what is not delegated."""
    torch.manual_seed(0)
    image, wide = torch.randn(1, 16, 32, 32), torch.randn(1, 8, 64, 64)
    sequence, tokens = torch.randn(1, 32, 256), torch.randn(64, 128)
    order = torch.randperm(64)
    lookup = torch.nn.Embedding(1000, 128)
    return {
        "atan": (images(16, 32), torch.atan, images(32, 16), image),
        "cumsum": (images(8, 16), lambda x: x.cumsum(3), images(16, 8), wide),
        "flip": (images(8, 16), lambda x: x.flip(2), images(16, 8), wide),
        "erf": (images(16, 64, 1), torch.erf, images(64, 16, 1), image),
        "group norm": (sequences(32, 64), torch.nn.GroupNorm(8, 64), sequences(64, 32), sequence),
        "layer norm": (vectors(128, 256), torch.nn.LayerNorm(256), vectors(256, 128), tokens),
        "remainder": (
            vectors(128, 128), lambda x: torch.remainder(x, 0.7), vectors(128, 64), tokens,
        ),
        "top k": (vectors(128, 256), lambda x: x.topk(32, 1).values, vectors(32, 64), tokens),
        "gather": (vectors(128, 512), lambda x: x[order], vectors(512, 64), tokens),
        "nearest": (
            images(16, 16),
            lambda x: torch.nn.functional.interpolate(x, scale_factor=2.0),
            images(16, 16, groups=16),
            image,
        ),
        "largest": (images(16, 64), lambda x: x.amax((2, 3)), vectors(64, 64), image),
        "embedding": (
            torch.nn.Identity(), lookup, vectors(128, 256, 128), torch.randint(0, 1000, (1, 96)),
        ),
    }  # fmt: skip


def export(module, given, folder):
    """A program of ExecuTorch's documented lines, with what is not delegated outside."""
    return str(wb.export_model(module, (given,), root=folder).path.resolve())


def measure_truth(paths, inputs, folder):
    """The share of the operation in the network, once more and alone; half of the intervals.

    The programs: the network, the operation, both less all that they do with their inputs, and the
    network with the operation once more.
    """
    torch.save(inputs, folder / "inputs.pt")
    shares = []
    for _ in range(RESTARTS):
        command = [sys.executable, "-c", TIME, folder / "inputs.pt", *paths]
        times = json.loads(subprocess.check_output(command, text=True))
        whole, part, before_whole, before_part, twice = times
        network = whole - before_whole
        shares.append(((twice - whole) / network, (part - before_part) / network))
    return np.mean(shares, axis=0), half_width(np.array(shares))


def check(name, given, folder):
    """Profile a network and print a row; what does not hold."""
    before, part, after, inputs = given
    network, alone = Network(before, part, after).eval(), Part(part).eval()
    with torch.no_grad():
        middle = network.before(inputs)
    nothing = Nothing().eval()
    paths = [
        export(network, inputs, folder / "whole"),
        export(alone, middle, folder / "part"),
        export(nothing, inputs, folder / "before_whole"),
        export(nothing, middle, folder / "before_part"),
        export(Twice(network), inputs, folder / "twice"),
    ]
    measured = wb.measure(paths[0], root=folder, artifacts=False, progress=lambda *_: None)
    run = wb.open_run(measured.path)
    side = run.subject
    rows = side.operators
    stated = float(rows.loc[rows["kind"] == "portable", "share"].sum())
    given = [(inputs,), (middle,), (inputs,), (middle,), (inputs,)]
    truth, half = measure_truth(paths, given, folder)
    low, high = (truth - half).min(), (truth + half).max()
    first, second = sorted(side.categories["share"])[:-3:-1]
    verdict = run.comparisons[0].verdict if run.comparisons else None
    wrong = []
    if lost := {"latency", "shares", "milliseconds"} - side.use.uses:
        wrong.append(f"withheld: {', '.join(sorted(lost))}")
    if verdict is not None and not verdict.bottleneck:
        wrong.append("no bottleneck is named")
    if not low - side.share_error <= stated <= high + side.share_error:
        wrong.append("the true share is outside")
    if first - second <= side.share_error and len(side.largest) < 2:
        wrong.append("the order is open, and one category is named")
    print(
        f"{name:11} {side.latency_ms:6.3f} ms  stated {100 * stated:5.1f} "
        f"± {100 * side.share_error:4.1f} %  true {100 * truth[0]:5.1f} ± {100 * half[0]:4.1f} to "
        f"{100 * truth[1]:5.1f} ± {100 * half[1]:4.1f} %  "
        f"tracing {100 * side.tracer_excess:+5.1f} %  load {os.getloadavg()[0]:.1f}  "
        f"{'; '.join([*wrong, *describe_use([side.use])])}",
        flush=True,
    )
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--busy", type=int, default=0)
    options = parser.parse_args()
    networks = build()
    names = [name for name in networks if name in options.names or not options.names]
    wrong = 0
    with busy_loops(options.busy):
        for name in names * options.runs:
            with tempfile.TemporaryDirectory() as folder:
                wrong += bool(check(name, networks[name], Path(folder)))
    print(f"{wrong} rows do not hold")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
