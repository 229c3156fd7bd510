"""Is the measured ceiling of matrix products what this machine reaches, and does nothing pass it?

The probe of ``workbench roofline`` and a plain large product in PyTorch take turns at the same
thread counts; CPU time with one thread, wall time with several. PyTorch is taken at its best: of
several sizes, and of ``torch.mm`` and a linear layer whose operands oneDNN may lay out as it likes
(``torch.utils.mkldnn``), for ``mm`` goes to another library, which is not the fastest on every
CPU. The exit code is 1 if the two differ by more than a tenth.

    python tests/benchmarks/roofline.py [--threads 1,2] [--rounds 8]

Models are exported and measured, and their operators held against the ceilings, at each ISA level:
the exit code is 1 if one of them is above 105 % of its roof.

    python tests/benchmarks/roofline.py --models mobilenet_v3_small,vit_tiny,unet_small
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch.utils.mkldnn import to_mkldnn

from workbench.analysis.compat import analyze_run, find_roofline
from workbench.export.artifact import export_model
from workbench.options import MeasureOptions
from workbench.run.runner import find_runner, open_runner
from workbench.workflow import find_probes, measure, measure_roof

SIDES = (1024, 1536, 2048)


def make_products(side):
    """A product of two square matrices in PyTorch, by what computes it."""
    a, b, out = torch.randn(side, side), torch.randn(side, side), torch.empty(side, side)
    layer = to_mkldnn(torch.nn.Linear(side, side, bias=False).eval())
    laid_out = a.to_mkldnn()
    return {"mm": lambda: torch.mm(a, b, out=out), "oneDNN": lambda: layer(laid_out)}


def time_products(threads):
    """GFLOP/s by what computes the product, the best of all sizes and three attempts each."""
    clock = time.process_time_ns if threads == 1 else time.perf_counter_ns
    best = {}
    for side in SIDES:
        for name, product in make_products(side).items():
            product()
            for _ in range(3):
                start = clock()
                product()
                rate = 2 * side**3 / (clock() - start)
                best[name] = max(rate, best.get(name, 0.0))
    return best


def place_model(name, folder):
    """The highest share of its roof that an operator of a model reaches."""
    root = folder / name
    pte = export_model(name, root=root)
    run_dir = measure(pte, MeasureOptions(runs=8, processes=2, evidence=False), root=root).path
    measure_roof(run_dir, again=True)
    analysis = analyze_run(run_dir)
    highest = 0.0
    for experiment in analysis.run.plan.experiments:
        table = find_roofline(analysis, experiment.name)
        timed = table.dropna(subset=["roof_share"]) if table is not None else None
        if timed is None or timed.empty:
            continue
        top = timed.loc[timed["roof_share"].idxmax()]
        highest = max(highest, top["roof_share"])
        print(
            f"{name}, {experiment.name}: of {len(timed)} operators that take long enough "
            f"{top['name']} is the highest, at {100 * top['roof_share']:.0f} % of its roof "
            f"({top['bound']}-bound, {1e3 * top['mean_ms']:.0f} us)",
            flush=True,
        )
    return highest


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--models", default="")
    options = parser.parse_args()
    if options.models:
        with tempfile.TemporaryDirectory() as folder:
            shares = [place_model(name, Path(folder)) for name in options.models.split(",")]
        raise SystemExit(0 if max(shares) <= 1.05 else 1)
    threads = [int(count) for count in options.threads.split(",")]
    ratios = compare_ceilings(threads, options.rounds)
    raise SystemExit(0 if all(abs(ratio - 1) <= 0.1 for ratio in ratios) else 1)


@torch.inference_mode()
def compare_ceilings(counts, attempts):
    """Ceiling over PyTorch's best rate at each thread count."""
    ratios = []
    folder, probes = find_probes(lambda text, part: print(text))
    probe = next(p for p in probes if (p.kind, p.dtype) == ("gemm", "fp32"))
    for threads in counts:
        torch.set_num_threads(threads)
        flags = ["--model_path", str(folder / probe.file), "--cpu_threads", str(threads)]
        ours, theirs = [], []
        with open_runner(find_runner(), flags, timeout_s=120) as session:
            session.run(2)
            for _ in range(attempts):
                laps = session.run(3)
                ours.append(probe.flops / min(laps.cpu_ns if threads == 1 else laps.wall_ns))
                theirs.append(time_products(threads))
        best = {name: max(rates[name] for rates in theirs) for name in theirs[0]}
        ratios.append(max(ours) / max(best.values()))
        rounds = np.divide(ours, [max(rates.values()) for rates in theirs])
        told = ", ".join(f"{name} {rate:.1f}" for name, rate in best.items())
        print(
            f"{threads} threads: probe {max(ours):.1f} GFLOP/s; PyTorch: {told}; ratio to its best "
            f"{ratios[-1]:.3f} (median of {len(rounds)} rounds {np.median(rounds):.3f})",
            flush=True,
        )
    return ratios


if __name__ == "__main__":
    main()
