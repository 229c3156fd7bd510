"""False positive rate of the verdicts, and their power to find a real slowdown.

Compares a model with itself many times, as ``workbench run --toggle none`` does but with a shorter
plan. Every verdict other than unchanged or inconclusive is false. For the power, the recorded
times of the second experiment are scaled by a known factor and judged again. Exits 1 if more than
5 of 100 verdicts are false.
"""

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))

from latencies import compare_latencies
from planned import make_plan, record_in

import workbench as wb
from workbench.analysis.statistics import tabulate_latencies
from workbench.run.recorder import Step
from workbench.run.steps import attempt_step

SLOWDOWNS = (0.0, 0.02, 0.05, 0.10)
MAX_FALSE = 0.05
CORRECT = ("unchanged", "inconclusive")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="toy_cnn")
    parser.add_argument("--comparisons", type=int, default=100)
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--batch-ms", type=float, default=5.0)
    options = parser.parse_args()

    runner = wb.find_runner()
    start, load = time.monotonic(), []
    verdicts = {slowdown: Counter() for slowdown in SLOWDOWNS}
    with tempfile.TemporaryDirectory() as folder:
        pte = wb.export_model(options.model, root=Path(folder)).path
        plan = make_plan(
            pte, wb.MeasureOptions(toggle="none", processes=options.processes, runs=1), runner
        )
        plan = replace(plan, batch_ms=options.batch_ms)
        for number in range(options.comparisons):
            latencies = measure(plan, runner, Path(folder) / str(number))
            load.append(os.getloadavg()[0])
            for slowdown, counts in verdicts.items():
                counts[judge(plan, slow_down(latencies, slowdown))] += 1
    seconds = (time.monotonic() - start) / options.comparisons
    print(
        f"{plan.stem} with itself, {options.comparisons} times, {options.processes} restarts each, "
        f"{seconds:.1f} s per comparison, load {min(load):.1f} to {max(load):.1f}"
    )
    table = pd.DataFrame(verdicts).fillna(0).astype(int).T.rename_axis("slowdown")
    print(table.rename(index="{:.0%}".format).to_markdown())
    false = sum(count for outcome, count in verdicts[0.0].items() if outcome not in CORRECT)
    print(f"{false} of {options.comparisons} verdicts are false")
    return 0 if false <= MAX_FALSE * options.comparisons else 1


def measure(plan, runner, folder) -> pd.DataFrame:
    """The untraced half of a run."""
    folder.mkdir()
    recorder = record_in(folder, plan, runner)
    for process in range(plan.processes):
        attempt_step(recorder, Step(1, process, (False,)))
    return tabulate_latencies(recorder.run)


def slow_down(latencies, share) -> pd.DataFrame:
    slower = latencies.copy()
    slower["cpu_ns"] = slower["cpu_ns"].astype(float)
    slower.loc[slower["experiment"] == "repeat", "cpu_ns"] *= 1 + share
    return slower.astype({"cpu_ns": "int64"})


def judge(plan, latencies) -> str:
    pair, control = plan.pairs[0], plan.experiments[-1].name
    row = compare_latencies(latencies, pair.baseline, pair.candidate, control=control).iloc[0]
    return row["outcome"]


if __name__ == "__main__":
    sys.exit(main())
