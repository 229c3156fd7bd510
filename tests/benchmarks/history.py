"""Time and memory of a history of many runs.

    python tests/benchmarks/history.py [--runs 1000]

The runs are resampled from the recorded ones, each with its own level, and with two planted
changes. Times are CPU time, including imports. Exits 1 if a claim does not hold: 1 000 runs indexed
in 10 s and 1 GB, and their figure drawn in 2 s.
"""

import argparse
import resource
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from workbench.datasets import SAMPLES
from workbench.store import find_runs, load_run, save_run

sys.path.insert(0, str(Path(__file__).parents[1]))
from synthetic import resample_run

CLAIMED_RUNS = 1000
MAX_SECONDS = 10.0
MAX_GB = 1.0
MAX_FIGURE_SECONDS = 2.0
#: Fractions of the runs from which on the latency has this factor.
PLANTED = ((0.0, 1.0), (0.4, 1.06), (0.7, 0.9))


def make_runs(root: Path, count: int) -> None:
    recorded = [load_run(path) for path in find_runs(SAMPLES)]
    for number in range(count):
        factor = [factor for part, factor in PLANTED if number >= part * count][-1]
        started = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=6 * number)
        run = resample_run(
            recorded[number % len(recorded)],
            factor=factor,
            started=started.isoformat(),
            scatter=0.01,
            seed=number,
        )
        save_run(run, root / f"out_{run.plan.model}" / "runs" / f"{run.platform}-{number}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=CLAIMED_RUNS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_runs(Path(folder), options.runs)
        begin, wall = time.process_time(), time.perf_counter()
        from workbench.plugins.history.figure import plot_history
        from workbench.plugins.history.read import read_history, write_figure

        history = read_history([folder])
        indexed, waited = time.process_time() - begin, time.perf_counter() - wall
        begin = time.process_time()
        write_figure(plot_history(history.rows, history.changes), Path(folder) / "history.png")
        drawn = time.process_time() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (
        1e9 if sys.platform == "darwin" else 1e6
    )
    lines, changes = history.rows["line"].nunique(), len(history.changes)
    print(f"{options.runs} runs, {lines} lines, {changes} changes")
    print(f"indexed in {indexed:.1f} s (wall time {waited:.1f} s), peak {peak:.2f} GB")
    print(f"figure in {drawn:.2f} s")
    print(history.changes["outcome"].value_counts().to_string())
    passed = indexed < MAX_SECONDS and peak < MAX_GB and drawn < MAX_FIGURE_SECONDS
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
