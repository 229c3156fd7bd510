"""Scatter of an estimated speed-up: interleaved against sequential measurements.

``workbench run`` interleaves. A script around a runner is sequential: as many inferences of one
experiment, then of the other, and the ratio of the medians of their wall times. Other programs
interfere meanwhile. Exits 1 if the interleaved speed-ups scatter more than the sequential ones, or
by more than 2 % (standard deviation).
"""

import argparse
import contextlib
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))

from latencies import compare_latencies
from null import measure
from planned import make_plan, record_in

import workbench as wb
from workbench.run.start import start_runner

CLOCKS = ("cpu_ns", "wall_ns")
#: Maximum standard deviation of the interleaved speed-ups, in per cent.
MAX_SPREAD = 2.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="toy_cnn")
    parser.add_argument("--toggle", default="auto")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--batch-ms", type=float, default=10.0)
    parser.add_argument("--idle", action="store_true", help="start no other programs")
    options = parser.parse_args()

    runner = wb.find_runner()
    load = contextlib.nullcontext() if options.idle else interference()
    estimates = {(name, clock): [] for name in ("interleaved", "sequential") for clock in CLOCKS}
    with tempfile.TemporaryDirectory() as folder, load:
        pte = wb.export_model(options.model, root=Path(folder)).path
        plan = make_plan(
            pte,
            wb.MeasureOptions(toggle=options.toggle, processes=options.processes, runs=1),
            runner,
        )
        plan = replace(plan, batch_ms=options.batch_ms)
        for number in range(options.repeats):
            run_dir = Path(folder) / str(number)
            latencies = measure(plan, runner, run_dir)
            count = (latencies["experiment"] == plan.pairs[0].candidate).sum()
            sequential = measure_sequentially(plan, runner, run_dir, int(count))
            for clock in CLOCKS:
                estimates["interleaved", clock].append(estimate(plan, latencies, clock))
                estimates["sequential", clock].append(sequential[clock])
    table = pd.DataFrame(
        [(*key, statistics.mean(e), 100 * statistics.stdev(e) / statistics.mean(e),
          100 * (max(e) / min(e) - 1)) for key, e in estimates.items()],
        columns=["protocol", "clock", "mean speed-up", "std dev (%)", "max / min - 1 (%)"],
    )  # fmt: skip
    others = "no other programs" if options.idle else "other programs"
    print(
        f"{plan.stem}, {plan.toggle} on against off, {options.repeats} repeats of "
        f"{options.processes} restarts, {others}, load {os.getloadavg()[1]:.1f}"
    )
    print(table.to_markdown(index=False, floatfmt=".2f"))
    spread = table.set_index(["protocol", "clock"])["std dev (%)"]
    ratio = spread["sequential", "wall_ns"] / spread["interleaved", "cpu_ns"]
    print(f"sequential, by wall time, scatters {ratio:.1f} times as much as interleaved")
    return 0 if ratio > 1 and spread["interleaved", "cpu_ns"] <= MAX_SPREAD else 1


def estimate(plan, latencies, clock) -> float:
    pair = plan.pairs[0]
    by_wall = latencies.assign(cpu_ns=0)  # without CPU times, wall time counts
    timed = latencies if clock == "cpu_ns" else by_wall
    row = compare_latencies(timed, pair.baseline, pair.candidate).iloc[0]
    return float(row["speedup"])


def measure_sequentially(plan, runner, run_dir, count) -> dict[str, float]:
    """The speed-up by each clock, from one process per experiment."""
    medians = {}
    for experiment in plan.experiments[:2]:
        with start_runner(record_in(run_dir, plan, runner), experiment, 1, None) as session:
            session.run(plan.warmup + 5)
            iterations = session.run(count)
        medians[experiment.name] = {
            clock: np.median(getattr(iterations, clock)) for clock in CLOCKS
        }
    off, on = medians.values()
    return {clock: float(off[clock] / on[clock]) for clock in CLOCKS}


@contextlib.contextmanager
def interference():
    """Run one intermittently busy program per core."""
    processes = [
        multiprocessing.Process(target=load_machine, args=(seed,), daemon=True)
        for seed in range(multiprocessing.cpu_count())
    ]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
            process.join()


def load_machine(seed: int) -> None:
    """Alternate between idling and memory-heavy work, each for up to four seconds."""
    rng = random.Random(seed)
    values = np.ones(8_000_000)
    while True:
        end = time.monotonic() + rng.uniform(0.1, 4)
        while time.monotonic() < end:
            values += 1
        time.sleep(rng.uniform(0.1, 4))


if __name__ == "__main__":
    sys.exit(main())
