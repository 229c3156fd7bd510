"""Is the measured ceiling of matrix products what this machine reaches?

The probe of ``workbench roofline`` and a plain large product in PyTorch, the best of several sizes,
take turns at the same thread counts; CPU time with one thread, wall time with several.

    python tests/benchmarks/roofline.py [--threads 1,2] [--rounds 8]
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from workbench.export import export_probes
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
    with tempfile.TemporaryDirectory() as folder:
        probe = export_probes(["fp32"], Path(folder))[0]
        for threads in map(int, options.threads.split(",")):
            torch.set_num_threads(threads)
            flags = ["--model_path", str(Path(folder) / probe.file), "--cpu_threads", str(threads)]
            ours, theirs = [], []
            with open_runner(find_runner(), flags, timeout_s=120) as session:
                session.run(2)
                for _ in range(options.rounds):
                    laps = session.run(3)
                    ours.append(probe.flops / min(laps.cpu_ns if threads == 1 else laps.wall_ns))
                    theirs.append(max(torch_rate(side, threads) for side in SIDES))
            ratio = max(ours) / max(theirs)
            print(
                f"{threads} threads: probe {max(ours):.1f}, torch {max(theirs):.1f} GFLOP/s, "
                f"ratio {ratio:.3f} (median of rounds {np.median(np.divide(ours, theirs)):.3f})"
            )


if __name__ == "__main__":
    main()
