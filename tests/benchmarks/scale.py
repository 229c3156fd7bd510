"""Space and memory of large models and long runs, as ratios.

    python tests/benchmarks/scale.py [memory] [space] [events]

``memory``: the largest resident set of `profile`, over that of a script that exports as ExecuTorch
documents it and runs the program 20 times, each in a process of its own; and the size of all
artifacts over that of the ``.pte``. The models are like ViT-B (86 M weights) and ResNet-50.
``space``: the folder of a run of 200 tiny layers, and of one long inference. ``events``: a trace of
a million events, read, analysed and written as tables.

Exits 1 if a claim does not hold: memory at most 1.3 times the script's, artifacts twice the
``.pte``, a run 50 MB and 20 times its traces, a million events in 500 MB.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from parse import in_process, record

MOST_MEMORY, MOST_ARTIFACTS, MOST_MB, MOST_OF_TRACES, MOST_EVENTS_MB = 1.3, 2.0, 50, 20, 500
EVENTS = 1_000_000

NETWORKS = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        rows, width = x.shape[1:]
        heads = self.qkv(self.norms[0](x)).reshape(1, rows, 3, 12, width // 12)
        attended = nn.functional.scaled_dot_product_attention(*heads.permute(2, 0, 3, 1, 4))
        x = x + self.out(attended.transpose(1, 2).reshape(1, rows, width))
        return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))


class Bottleneck(nn.Module):
    def __init__(self, wide, narrow, stride):
        super().__init__()
        sizes = [(wide, narrow, 1, 1), (narrow, narrow, 3, stride), (narrow, 4 * narrow, 1, 1)]
        parts = [
            (nn.Conv2d(a, b, size, step, size // 2, bias=False), nn.BatchNorm2d(b), nn.ReLU())
            for a, b, size, step in sizes
        ]
        self.body = nn.Sequential(*[layer for part in parts for layer in part][:-1])
        change = wide != 4 * narrow or stride > 1
        self.skip = nn.Conv2d(wide, 4 * narrow, 1, stride) if change else nn.Identity()

    def forward(self, x):
        return torch.relu(self.body(x) + self.skip(x))


class Vision(nn.Module):
    def __init__(self, width=768, depth=12):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))
        self.head = nn.Linear(width, 1000)

    def forward(self, x):
        return self.head(self.blocks(self.patches(x).flatten(2).transpose(1, 2)).mean(1))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        layers, wide = [nn.Conv2d(3, 64, 7, 2, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 64
        for narrow, depth in ((64, 3), (128, 4), (256, 6), (512, 3)):
            for place in range(depth):
                layers.append(Bottleneck(wide, narrow, 2 if place == 0 and narrow > 64 else 1))
                wide = 4 * narrow
        self.body, self.head = nn.Sequential(*layers), nn.Linear(wide, 1000)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [layer for _ in range(200) for layer in (nn.Conv2d(4, 4, 1), nn.ReLU())]
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x[:, :1, :4, :4].expand(-1, 4, -1, -1))


def get_example_inputs():
    return (torch.randn(1, 3, 224, 224),)
"""

PLAIN = """
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from executorch.runtime import Runtime

import networks

net, inputs = getattr(networks, NAME)().eval(), networks.get_example_inputs()
exported = torch.export.export(net, inputs)
edge = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])
with open("plain.pte", "wb") as file:
    file.write(edge.to_executorch().buffer)
method = Runtime.get().load_program("plain.pte").load_method("forward")
for _ in range(20):
    method.execute(list(inputs))
"""

PROFILE = """
import workbench as wb

measure = wb.MeasureOptions(**OPTIONS)
wb.profile(f"networks.py:{NAME}", measure=measure, root=NAME, report=True)
"""


def run(folder: Path, code: str) -> float:
    """Run code in a process of its own; the largest resident set of that process, in MB."""
    code += "\nimport resource\nprint(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, stdout=subprocess.PIPE, text=True, check=True
    )
    return int(done.stdout.split()[-1]) / (1e6 if sys.platform == "darwin" else 1e3)


def size_mb(folder: Path, pattern: str = "*") -> float:
    return sum(path.stat().st_size for path in folder.rglob(pattern) if path.is_file()) / 1e6


def check_memory(folder: Path) -> list[bool]:
    claims = []
    for name in ("Vision", "Residual"):
        head = f"NAME = {name!r}\nOPTIONS = {{'processes': 2, 'runs': 4, 'evidence': False}}\n"
        plain, ours = run(folder, head + PLAIN), run(folder, head + PROFILE)
        artifacts = folder / name / "artifacts"
        space = size_mb(artifacts) / size_mb(artifacts, "*.pte")
        print(f"{name}: {plain:.0f} MB plain, {ours:.0f} MB profile: {ours / plain:.2f} x")
        print(f"{name}: artifacts {space:.2f} x the .pte")
        claims += [ours <= MOST_MEMORY * plain, space <= MOST_ARTIFACTS]
    return claims


def check_space(folder: Path) -> list[bool]:
    claims = []
    for name in ("Chain", "Vision"):
        run(folder, f"NAME = {name!r}\nOPTIONS = {{}}\n{PROFILE}")
        (run_dir,) = (folder / name / "runs").iterdir()
        space, traces = size_mb(run_dir), size_mb(run_dir, "*.etdump")
        print(f"{name}: run {space:.1f} MB, traces {traces:.1f} MB")
        claims += [space <= MOST_MB, space <= MOST_OF_TRACES * traces]
    return claims


def analyse(path: Path) -> float:
    import workbench as wb
    from workbench.report.artifacts import write_artifacts

    run = wb.open_run(path)
    assert len(run.findings) >= 0 and len(run.operators)
    write_artifacts(run)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e6 if sys.platform == "darwin" else 1e3)


def check_events(folder: Path) -> list[bool]:
    path = folder / "events" / "long.etdump"
    path.parent.mkdir()
    in_process(record, path, EVENTS)
    peak = in_process(analyse, path)
    print(f"{EVENTS:,} events, {size_mb(path.parent, '*.etdump'):.0f} MB: {peak:.0f} MB")
    return [peak <= MOST_EVENTS_MB]


CHECKS = {"memory": check_memory, "space": check_space, "events": check_events}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checks", nargs="*", metavar="|".join(CHECKS), default=[])
    options = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"load {load:.1f}, {json.dumps(options.checks or [*CHECKS])}")
    claims = []
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "networks.py").write_text(NETWORKS)
        for name in options.checks or CHECKS:
            claims += CHECKS[name](Path(folder))
    return int(not all(claims))


if __name__ == "__main__":
    sys.exit(main())
