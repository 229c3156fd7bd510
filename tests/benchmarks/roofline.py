"""Is the measured ceiling of matrix products what this machine reaches?

The probe of ``workbench roofline`` and a plain large product in PyTorch, the best of several sizes,
take turns at the same thread counts; CPU time with one thread, wall time with several. A ceiling
more than a tenth below PyTorch's product is none, and the exit code is then 1. It may lie above:
PyTorch's library is not the fastest on every CPU. On a busy AMD EPYC (Zen 4) the probe reached 110
GFLOP/s with one thread and PyTorch 95 to 97.

    python tests/benchmarks/roofline.py [--threads 1,2] [--rounds 8]
"""

import argparse
import time

import numpy as np
import torch

from workbench.report.ceilings import find_probes
from workbench.run import find_runner
from workbench.run.runner import open_runner

SIDES = (1024, 1536, 2048)


def torch_rate(side, threads):
    """GFLOP/s of one product in PyTorch, at its best of three."""
    clock = time.process_time_ns if threads == 1 else time.perf_counter_ns
    a, b = torch.randn(side, side), torch.randn(side, side)
    best = np.inf
    for _ in range(3):
        start = clock()
        torch.mm(a, b)
        best = min(best, clock() - start)
    return 2 * side**3 / best


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    ratios = []
    folder, probes = find_probes(lambda text, part: print(text))
    probe = next(p for p in probes if (p.kind, p.dtype) == ("gemm", "fp32"))
    for threads in map(int, options.threads.split(",")):
        torch.set_num_threads(threads)
        flags = ["--model_path", str(folder / probe.file), "--cpu_threads", str(threads)]
        ours, theirs = [], []
        with open_runner(find_runner(), flags, timeout_s=120) as session:
            session.run(2)
            for _ in range(options.rounds):
                laps = session.run(3)
                ours.append(probe.flops / min(laps.cpu_ns if threads == 1 else laps.wall_ns))
                theirs.append(max(torch_rate(side, threads) for side in SIDES))
        ratio = max(ours) / max(theirs)
        ratios.append(ratio)
        print(
            f"{threads} threads: probe {max(ours):.1f}, torch {max(theirs):.1f} GFLOP/s, "
            f"ratio {ratio:.3f} (median of rounds {np.median(np.divide(ours, theirs)):.3f})"
        )
    raise SystemExit(0 if min(ratios) > 0.9 else 1)


if __name__ == "__main__":
    main()
