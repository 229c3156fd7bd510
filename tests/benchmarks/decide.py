"""What a run decides, and in how many seconds: this version against another checkout.

    python tests/benchmarks/decide.py --against CHECKOUT [--runs 10] [--models NAME,...]
    python tests/benchmarks/decide.py --equal [--runs 10]

Every model is exported once by each version, and measured by both in turn with their defaults: the
strongest extension off and on. The table has the medians over the runs of

- the seconds that measuring took;
- half the width of the speed-up's interval, and how many runs have grade A or B;
- the share of the operators' time with a verdict: faster, slower, unchanged (before: equivalent);
- the median of the minimum detectable changes of operators longer than 3 us;
- the CPU seconds that reading and analysing the run took, and the size of its folder.

With ``--equal``, the program is measured against itself by this version only: every verdict of
faster or slower is false, and 95 % of the intervals should hold a ratio of 1.

Each checkout needs a ``.venv`` (``python3 dev.py setup``). The load is printed. Exits 1 if a median
misses a goal: 90 % decided, 10 % detectable, grade A or B in 9 of 10 runs, 1.2 times the seconds of
the other version (half of them for models of 50 to 500 ms), twice its files, 1.3 times its reading;
with ``--equal``, if less than 93 % of the intervals of a level cover, or more than 5 % of its
verdicts are false. Goals are those of an idle machine.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parents[2]
NETWORKS = """
import torch


class Brief(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(128, 256), torch.nn.ReLU(), torch.nn.Linear(256, 128),
            torch.nn.Sigmoid(), torch.nn.Linear(128, 10),
        )

    def forward(self, x):
        return self.layers(x)


class Long(torch.nn.Module):
    def __init__(self):
        super().__init__()
        layers = [torch.nn.Conv2d(3, 96, 3, padding=1), torch.nn.ReLU()]
        for _ in range(5):
            layers += [torch.nn.Conv2d(96, 96, 3, padding=1), torch.nn.ReLU()]
        self.layers = torch.nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x)


def brief():
    return Brief(), (torch.ones(16, 128),)


def long():
    return Long(), (torch.ones(1, 3, 224, 224),)
"""
MODELS = {
    "mobilenet_v3_small": ("mobilenet_v3_small", "fp32"),
    "mobilenet_v3_small int8": ("mobilenet_v3_small", "int8"),
    "unet_small": ("unet_small", "fp32"),
    "vit_tiny": ("vit_tiny", "fp32"),
    "30 us": ("brief", "fp32"),
    "400 ms": ("long", "fp32"),
}
MEASURE = """
import importlib.util, json, os, resource, sys, time
import numpy as np
import workbench as wb

def say(**answer):
    print(json.dumps(answer), file=out, flush=True)

out, sys.stdout = sys.stdout, sys.stderr
name, dtype, networks, folder, toggle = sys.argv[1:]
model, inputs = name, None
if name in ("brief", "long"):
    spec = importlib.util.spec_from_file_location("networks", networks)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model, inputs = getattr(module, name)()
program = wb.export_model(model, inputs, options=wb.ExportOptions(dtype=dtype), root=folder)
say(ready=True)
for line in sys.stdin:
    load, start = os.getloadavg()[0], time.monotonic()
    run = wb.measure(program, options=wb.MeasureOptions(toggle=toggle), artifacts=False,
                     root=folder, progress=lambda *_: None)
    seconds, files = run.record.spent_s, sum(p.stat().st_size for p in run.path.rglob("*")
                                             if p.is_file() and "sampled" not in str(p))
    before = time.process_time()
    run = wb.open_run(run.path)
    (ab,) = run.comparisons
    operators, latency = ab.operators.dropna(subset=["speedup"]), ab.latency.iloc[0]
    reading = time.process_time() - before
    ms = operators["baseline_ms"]
    decided = operators["outcome"].isin(["faster", "slower", "equivalent", "unchanged"])
    levels = {}
    for level in ("latency", "categories", "operators", "layers"):
        table = getattr(ab, level)
        if table is not None:
            held = table.dropna(subset=["low", "high"]).query("baseline_ms > 0.001")
            levels[level] = [len(held), int(((held["low"] <= 1) & (held["high"] >= 1)).sum()),
                             int(held["outcome"].isin(["faster", "slower"]).sum())]
    say(load=load, seconds=seconds, total=time.monotonic() - start, files=files, reading=reading,
        half=float(np.log(latency["high"] / latency["low"]) / 2), text=ab.text,
        grade=str(run.quality["grade"].iloc[0]), latency_ms=float(latency["candidate_ms"]),
        decided=float((ms * decided).sum() / ms.sum()), levels=levels,
        detectable=float(operators.loc[ms > 0.003, "detectable"].median()),
        counts=operators["outcome"].value_counts().to_dict())
"""


def main() -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--against", type=Path, help="another checkout, with its .venv")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--equal", action="store_true")
    options = parser.parse_args()
    checkouts = [HERE, *([options.against.resolve()] if options.against else [])]
    toggle = "none" if options.equal else "auto"
    held = True
    with tempfile.TemporaryDirectory() as folder:
        networks = Path(folder) / "networks.py"
        networks.write_text(NETWORKS)
        for label in options.models.split(","):
            answers = measure(label, checkouts, networks, Path(folder), toggle, options.runs)
            if options.equal:
                held &= show_equal(label, answers[HERE])
            else:
                held &= show_decided(label, answers)
    return 0 if held else 1


def measure(label, checkouts, networks, folder, toggle, runs) -> dict[Path, list[dict]]:
    """The answers of every version, which measure in turn."""
    processes = {
        checkout: subprocess.Popen(
            [checkout / ".venv/bin/python", "-c", MEASURE, *MODELS[label], networks,
             folder / str(number) / label.replace(" ", "_"), toggle],
            cwd=checkout, stdin=-1, stdout=-1, stderr=subprocess.DEVNULL, text=True,
        )
        for number, checkout in enumerate(checkouts)
    }  # fmt: skip
    answers: dict[Path, list[dict]] = {checkout: [] for checkout in checkouts}
    for process in processes.values():
        json.loads(process.stdout.readline())
    for number in range(runs):
        for checkout in checkouts if number % 2 else checkouts[::-1]:
            process = processes[checkout]
            process.stdin.write("run\n")
            process.stdin.flush()
            answers[checkout].append(json.loads(process.stdout.readline()))
    for process in processes.values():
        process.stdin.close()
        process.wait()
    return answers


def median(answers: list[dict], key: str) -> float:
    """The median of a figure."""
    return statistics.median(answer[key] for answer in answers)


def show_decided(label: str, answers: dict[Path, list[dict]]) -> bool:
    """Print a row for every version; whether the goals are reached."""
    for checkout, runs in answers.items():
        good = sum(run["grade"] in "AB" for run in runs)
        loads = [run["load"] for run in runs]
        print(
            f"{label:24} {checkout.name:12} load {min(loads):.1f} to {max(loads):.1f}  "
            f"{median(runs, 'seconds'):6.1f} s  +-{100 * median(runs, 'half'):5.1f} %  "
            f"A or B {good}/{len(runs)}  decided {100 * median(runs, 'decided'):3.0f} %  "
            f"detectable {100 * median(runs, 'detectable'):5.1f} %  "
            f"read {median(runs, 'reading'):.2f} s  {median(runs, 'files') / 1e6:.1f} MB"
        )
    print(f"    {answers[HERE][-1]['counts']} {answers[HERE][-1]['text']}", flush=True)
    ours = answers.pop(HERE)
    held = median(ours, "decided") >= 0.9 and median(ours, "detectable") <= 0.1
    held &= sum(run["grade"] in "AB" for run in ours) >= 0.9 * len(ours)
    for theirs in answers.values():
        most = 0.5 if 50 <= median(theirs, "latency_ms") <= 500 else 1.2
        for key, limit in ("seconds", most), ("files", 2.0), ("reading", 1.3):
            held &= median(ours, key) <= limit * median(theirs, key)
    return held


def show_equal(label: str, runs: list[dict]) -> bool:
    """Print how often the intervals of equal sides hold 1; whether often enough."""
    held, texts = True, []
    for level in ("latency", "categories", "operators", "layers"):
        counts = [run["levels"][level] for run in runs if level in run["levels"]]
        rows, covering, false = map(sum, zip(*counts, strict=True))
        # The latency's intervals are one a run: too few for a limit.
        held &= level == "latency" or (covering >= 0.93 * rows and false <= 0.05 * rows)
        texts.append(f"{level} {100 * covering / rows:.1f} % of {rows}, {false} false")
    loads = [run["load"] for run in runs]
    print(f"{label:24} load {min(loads):.1f} to {max(loads):.1f}  {'; '.join(texts)}", flush=True)
    return held


if __name__ == "__main__":
    sys.exit(main())
