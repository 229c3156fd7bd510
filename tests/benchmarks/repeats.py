"""Does the interval of one run cover what other runs of the same program measure?

    python tests/benchmarks/repeats.py [--model toy_cnn] [--runs 30] [--processes 5]

Measures one program many times, each time as a separate short run (untraced, fresh processes), and
prints

- the coverage of each run's 95 % interval: how often it holds the mean of all other runs, given
  the error of that mean too;
- how often two runs have disjoint intervals;
- the scatter between runs that the scatter between the restarts of one run does not explain;
- how often `compare_restarts` calls two of the runs different, which are equal, and which share of
  runs made slower by 5 and by 10 % it finds.

Exits 1 if more than 5 % of the pairs are called different.
"""

import argparse
import itertools
import math
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.special import stdtrit

sys.path.insert(0, str(Path(__file__).parents[1]))

from null import measure
from planned import make_plan

import workbench as wb
from workbench.analysis.comparison_tables import compare_restarts
from workbench.analysis.statistics import half_width, restart_latencies

MAX_FALSE = 0.05
SLOWER = (1.0, 1.05, 1.10)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="toy_cnn")
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--batch-ms", type=float, default=10.0)
    parser.add_argument("--save", type=Path, help="write the latencies of all restarts as .npy")
    options = parser.parse_args()
    restarts = measure_runs(options)
    if options.save:
        np.save(options.save, restarts)
    return report(restarts, options.model)


def measure_runs(options) -> np.ndarray:
    """The latency in ms of every restart: (runs, restarts)."""
    runner, found = wb.find_runner(), []
    with tempfile.TemporaryDirectory() as folder:
        pte = wb.export_model(options.model, root=Path(folder)).path
        wanted = wb.MeasureOptions(toggle="none", processes=options.processes, runs=1)
        plan = replace(make_plan(pte, wanted, runner), batch_ms=options.batch_ms)
        for number in range(options.runs):
            latencies = measure(plan, runner, Path(folder) / str(number))
            first = latencies[latencies["experiment"] == plan.experiments[0].name]
            found.append(restart_latencies(first).to_numpy())
    return np.array(found)


def report(restarts: np.ndarray, model: str) -> int:
    """Print the table; returns the exit code."""
    runs, count = restarts.shape
    means, halves = restarts.mean(axis=1), half_width(restarts.T)
    covered = []
    for run in range(runs):
        others = np.delete(means, run)
        error = others.std(ddof=1) / np.sqrt(len(others))
        reach = math.hypot(halves[run], stdtrit(len(others) - 1, 0.975) * error)
        covered.append(abs(means[run] - others.mean()) <= reach)
    pairs = list(itertools.combinations(range(runs), 2))
    apart = [abs(means[a] - means[b]) > halves[a] + halves[b] for a, b in pairs]
    within = restarts.var(axis=1, ddof=1).mean()
    between = math.sqrt(max(0.0, means.var(ddof=1) - within / count)) / means.mean()
    print(f"{model}, {runs} runs of {count} restarts, {means.mean():.3f} ms")
    print(f"scatter between restarts {100 * math.sqrt(within) / means.mean():.2f} %, ", end="")
    print(f"between runs beyond that {100 * between:.2f} %")
    print(
        f"coverage {100 * np.mean(covered):.0f} %, disjoint {100 * np.mean(apart):.0f} % of pairs"
    )
    called = {}
    for slower in SLOWER:
        sides = [[restarts[a] for a, _ in pairs], [slower * restarts[b] for _, b in pairs]]
        # One family each: these are separate questions.
        rows = [compare_restarts(["x"], [a], [b]) for a, b in zip(*sides, strict=True)]
        different = [row["outcome"].item() in ("faster", "slower") for row in rows]
        called[slower] = np.mean(different)
        print(f"{slower:.2f}x as long: {100 * called[slower]:.0f} % called different")
    return 0 if called[1.0] <= MAX_FALSE else 1


if __name__ == "__main__":
    sys.exit(main())
