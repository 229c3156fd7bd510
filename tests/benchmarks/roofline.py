"""Does this machine reach the measured matmul peak, and does any operator exceed its roof?

The probe of `measure_roof` and a large PyTorch matmul are interleaved at the same thread
counts; CPU time with one thread, wall time with several. PyTorch's best rate counts, over several
sizes, ``torch.mm``, and a linear layer whose operand layout oneDNN chooses
(``torch.utils.mkldnn``): ``mm`` uses another library, which is not the fastest on every CPU. Exits
1 if the two differ by more than 10 %.

    python tests/benchmarks/roofline.py [--threads 1,2] [--rounds 8]

With ``--models``, models are exported and measured, and their operators compared with the peaks at
each ISA level. Exits 1 if one of them is above 105 % of its roof.

    python tests/benchmarks/roofline.py --models mobilenet_v3_small,vit_tiny,unet_small
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch.utils.mkldnn import to_mkldnn

from workbench.export.artifact import export_model
from workbench.options import MeasureOptions
from workbench.run.ceilings import load_probes, measure_roof, unpack_program
from workbench.run.runner import find_runner
from workbench.workflow import measure

SIDES = (1024, 1536, 2048)


def make_products(side):
    """A product of two square matrices in PyTorch, by implementation."""
    a, b, out = torch.randn(side, side), torch.randn(side, side), torch.empty(side, side)
    layer = to_mkldnn(torch.nn.Linear(side, side, bias=False).eval())
    operand = a.to_mkldnn()
    return {"mm": lambda: torch.mm(a, b, out=out), "oneDNN": lambda: layer(operand)}


def time_products(threads):
    """GFLOP/s by implementation: the best of all sizes and three attempts each."""
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


def find_highest_share(name, folder):
    """The highest share of its roof that an operator of the model reaches."""
    root = folder / name
    pte = export_model(name, root=root).path
    run = measure(pte, options=MeasureOptions(runs=8, processes=2, evidence=False), root=root)
    measure_roof(run.path)
    highest = 0.0
    for measurement in run.measurements:
        table = measurement.roofline
        timed = table.dropna(subset=["roof_share"]) if table is not None else None
        if timed is None or timed.empty:
            continue
        top = timed.loc[timed["roof_share"].idxmax()]
        highest = max(highest, top["roof_share"])
        print(
            f"{name}, {measurement.label}: highest of {len(timed)} timed operators: "
            f"{top['name']} at {100 * top['roof_share']:.0f} % of its roof "
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
            shares = [find_highest_share(name, Path(folder)) for name in options.models.split(",")]
        raise SystemExit(0 if max(shares) <= 1.05 else 1)
    threads = [int(count) for count in options.threads.split(",")]
    ratios = compare_peaks(threads, options.rounds)
    raise SystemExit(0 if all(abs(ratio - 1) <= 0.1 for ratio in ratios) else 1)


@torch.inference_mode()
def compare_peaks(counts, attempts):
    """The measured peak, relative to PyTorch's best rate, for each thread count."""
    ratios = []
    probe = next(p for p in load_probes() if (p.kind, p.dtype) == ("gemm", "fp32"))
    for threads in counts:
        torch.set_num_threads(threads)
        flags = ["--model_path", str(unpack_program(probe.file)), "--cpu_threads", str(threads)]
        ours, theirs = [], []
        with find_runner().open(flags, timeout_s=120) as session:
            session.run(2)
            for _ in range(attempts):
                times = session.run(3)
                ours.append(probe.flops / min(times.cpu_ns if threads == 1 else times.wall_ns))
                theirs.append(time_products(threads))
        best = {name: max(rates[name] for rates in theirs) for name in theirs[0]}
        ratios.append(max(ours) / max(best.values()))
        rounds = np.divide(ours, [max(rates.values()) for rates in theirs])
        listed = ", ".join(f"{name} {rate:.1f}" for name, rate in best.items())
        print(
            f"{threads} threads: probe {max(ours):.1f} GFLOP/s; PyTorch: {listed}; ratio to its "
            f"best {ratios[-1]:.3f} (median of {len(rounds)} rounds {np.median(rounds):.3f})",
            flush=True,
        )
    return ratios


if __name__ == "__main__":
    main()
