"""Cost of sampling the program counter: interleaved processes with and without it.

A third process, without sampling, is the A/A control. Exits 1 if sampling costs more than the noise
floor and more than the 2 % within which latencies are equivalent.
"""

import argparse
import contextlib
import sys
import tempfile
from pathlib import Path

import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))

from latencies import compare_latencies

import workbench as wb
from workbench.run.steps import interleave

NAMES = ("plain", "sampled", "plain again")
BATCH_MS = 100.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="toy_cnn")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--hz", type=int, default=249)
    options = parser.parse_args()

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        pte = wb.export_model(options.model, root=Path(folder)).path
        for process in range(options.processes):
            rows += measure(pte, Path(folder), process, options)
    latencies = pd.DataFrame(rows).assign(threads=options.threads, traced=False)
    found = compare_latencies(
        latencies, "plain", "sampled", control="plain again", threads=options.threads
    ).iloc[0]
    cost, floor = 1 / found["speedup"] - 1, found["floor"]
    print(
        f"{options.model}, {options.threads} threads, {options.hz} Hz: sampling costs "
        f"{100 * cost:+.2f} % (95 % interval {100 * (1 / found['high'] - 1):+.2f} to "
        f"{100 * (1 / found['low'] - 1):+.2f}), two equal processes differ by up to "
        f"{100 * floor:.2f} %: {found['outcome']}"
    )
    return 0 if cost <= max(floor, found["margin"]) else 1


def measure(pte, folder, process, options) -> list[dict]:
    """The iterations of three live, interleaved processes."""
    base = ["--model_path", str(pte), "--cpu_threads", str(options.threads)]
    sampling = ["--samples_path", str(folder / "x.samples"), "--sample_hz", str(options.hz)]
    rows = []
    with contextlib.ExitStack() as stack:
        sessions = {
            name: stack.enter_context(
                wb.find_runner().open(
                    [*base, *(sampling if name == "sampled" else [])],
                    timeout_s=120,
                )
            )
            for name in NAMES
        }
        sizes = {
            n: round(BATCH_MS * 1e6 / min(s.run(10).wall_ns)) or 1 for n, s in sessions.items()
        }
        for number, order in enumerate(interleave(list(sessions), options.rounds)):
            for place, name in enumerate(order):
                times = sessions[name].run(sizes[name])
                rows += [
                    {
                        **{"experiment": name, "process": process, "round": number},
                        **{"batch": place, "wall_ns": wall, "cpu_ns": cpu, "preempted": preempted},
                    }
                    for wall, cpu, preempted in zip(
                        times.wall_ns, times.cpu_ns, times.preempted, strict=True
                    )
                ]
    return rows


if __name__ == "__main__":
    sys.exit(main())
