"""Memory and starts against independent readings, and a memory finding against its fix.

``python tests/benchmarks/memory.py [--pte FILE...]`` measures five models (or these programs) with
nothing toggled, and prints for each: the largest resident set and the part of it that no row
accounts for; the resident set by its rows against the one that Linux states for another process;
the arenas against upstream's reader of programs; the file's parts against its size; the stages of a
start against the wall time that its parent sees; and the differences of an A/A control. Then it
exports a network whose peak is one concatenation, and the same without it.

Exits 1 if more than 2 % of the memory is not accounted for or differs between processes, arenas or
files differ at all, stages take longer than the parent waits, the control needs more or less, or
the finding's promise is more than 10 % off.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import workbench as wb
from workbench.plugins.memory.activations import activation_bytes

MODELS = ("mobilenet_v3_small", "toy_cnn", "vit_tiny", "unet_small", "squeezesam")
BRIEF = wb.MeasureOptions(toggle="none", runs=2, warmup=1, processes=5, evidence=False, roof=False)
TOLERANCE, PROMISE = 0.02, 0.1


class Joined(nn.Module):
    """Two branches that are joined at full resolution: the copy is the peak."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Conv2d(3, 24, 1), nn.Conv2d(3, 24, 1)
        self.head, self.out = nn.Conv2d(48, 8, 1), nn.Conv2d(8, 4, 1, stride=2)

    def branches(self, x):
        return torch.relu(self.a(x)), torch.relu(self.b(x))

    def forward(self, x):
        return self.out(torch.relu(self.head(torch.cat(self.branches(x), 1))))

    @staticmethod
    def example_inputs():
        return (torch.randn(1, 3, 256, 256),)


class Split(Joined):
    """The same, as the finding advises."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(24, 8, 1), nn.Conv2d(24, 8, 1, bias=False)
        self.first.bias = self.head.bias
        self.first.weight = nn.Parameter(self.head.weight[:, :24].clone())
        self.second.weight = nn.Parameter(self.head.weight[:, 24:].clone())

    def forward(self, x):
        a, b = self.branches(x)
        return self.out(torch.relu(self.first(a) + self.second(b)))


def read_arenas(pte):
    """The sizes of the planned buffers, as upstream's own reader has them."""
    from executorch.exir._serialize._program import deserialize_pte_binary

    plan = deserialize_pte_binary(pte.read_bytes()).program.execution_plan[0]
    return sum(plan.non_const_buffer_sizes)


def watch_start(pte):
    """Of a start: the resident set that Linux states, its stages and the parent's wall time, ms."""
    runner, began = wb.find_runner(), time.monotonic_ns()
    flags = ["--model_path", str(pte), "--cpu_threads", "1", "--stages", "time"]
    with runner.open(flags, timeout_s=120) as session:
        elapsed = time.monotonic_ns() - began
        rollup = Path(f"/proc/{session._process.pid}/smaps_rollup").read_text()
        stages = sum(stage.ns for stage in session.ready.stages)
    rss = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Rss:"))
    return rss * 1024, stages / 1e6, elapsed / 1e6


def examine(pte, root):
    """One row of the table, and whether it is as it should be."""
    run = wb.measure(pte, options=BRIEF, root=root)
    on, file = run.subject, run.subject.file_parts
    sizes = on.memory.set_index("part")["size_bytes"]
    peak, resident = int(sizes.sum()), int(sizes.drop("freed", errors="ignore").sum())
    watched = [watch_start(pte) for _ in range(5)]
    rss = sorted(entry[0] for entry in watched)[2]
    start, wall = min(((s, w) for _, s, w in watched), key=lambda pair: pair[1] - pair[0])
    control = next(m for m in run.measurements if m.control)
    resources = wb.Comparison(run.comparisons[0].baseline, control).resources
    outcomes = dict(zip(resources["resource"], resources["outcome"], strict=True))
    rest, apart = sizes["not accounted for"] / peak, resident / rss - 1
    fine = {
        "rest": abs(rest) <= TOLERANCE,
        "RSS": abs(apart) <= TOLERANCE,
        "arenas": int(sizes["arenas"]) == read_arenas(pte),
        "file": file is None or int(file["size_bytes"].sum()) == pte.stat().st_size,
        "start": all(stages <= waited for _, stages, waited in watched),
        "A/A": not {"less", "more"} & set(outcomes.values()),
    }
    packed = sizes[sizes.index.str.startswith("delegate")].sum()
    cells = [
        pte.stem, f"{peak / 1e6:.2f}", f"{packed / 1e6:.2f}",
        f"{sizes['first inference'] / 1e6:.2f}", f"{rest:+.2%}", f"{apart:+.2%}",
        f"{sizes['arenas'] / 1e6:.3f}", f"{start:.1f} of {wall:.1f}",
        ", ".join(f"{row.resource} {row.ratio:.3f}" for row in resources.itertuples()),
        ", ".join(name for name, good in fine.items() if not good) or "ok",
    ]  # fmt: skip
    print("| " + " | ".join(cells) + " |", flush=True)
    return all(fine.values())


def keep_promise(root):
    """Whether the fix of the finding brings what it says."""
    runs = {}
    for name in ("Joined", "Split"):
        pte = wb.export_model(f"{__file__}:{name}", root=root).path
        runs[name] = wb.measure(pte, options=BRIEF, root=root)
    findings = runs["Joined"].subject.findings
    found = findings[findings["rule"] == "memory peak"]
    if found.empty:
        print("the concatenation was not found")
        return False
    promised = float(found["share"].iloc[0]) * activation_bytes(runs["Joined"].subject)
    sizes = [
        runs[name].subject.memory.set_index("part").loc[["arenas", "first inference"], "size_bytes"]
        for name in runs
    ]
    saved = int(sizes[0].sum() - sizes[1].sum())
    print(
        f"\n{found['title'].iloc[0]}: promised {promised / 1e6:.2f} MB, saved {saved / 1e6:.2f} MB"
    )
    return abs(saved / promised - 1) <= PROMISE


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pte", type=Path, nargs="*", help="programs, instead of five models")
    options = parser.parse_args()
    print("| program | peak MB | packed MB | workspace MB | not accounted for | against Rss | "
          "arenas MB | stages of wall ms | A/A | checks |")  # fmt: skip
    print("|---|" + "---:|" * 7 + "---|---|")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        ptes = options.pte or [wb.export_model(name, root=root).path for name in MODELS]
        fine = [examine(pte, root) for pte in ptes]
        fine.append(keep_promise(root))
    return 0 if all(fine) else 1


if __name__ == "__main__":
    sys.exit(main())
