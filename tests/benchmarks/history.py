"""Time and memory of what is about many runs: a history, a comparison, findings beside them.

    python tests/benchmarks/history.py [--runs 1000]

The runs are resampled from the recorded ones, each with its own level, and with two planted
changes. Times are CPU time; that of the history includes imports. Exits 1 if a claim does not hold:
1 000 runs indexed in 10 s and 1 GB, and their figure drawn in 2 s; runs of one program compared in
10 ms each, and so findings beside them; three times as many in at most four times the time.
"""

import argparse
import gc
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from workbench.datasets import SAMPLES, sample_run
from workbench.records.runs import RunRecord
from workbench.store import find_runs, load_run, save_run

sys.path.insert(0, str(Path(__file__).parents[1]))
from synthetic import resample_run

CLAIMED_RUNS = 1000
MAX_SECONDS = 10.0
MAX_GB = 1.0
MAX_FIGURE_SECONDS = 2.0
#: For each run of a comparison, and for each run beside one whose findings are listed.
MAX_MS_OF_RUN = 10.0
#: Most that three times as many runs take, in times.
MOST_OF_TRIPLE = 4.0
#: Fractions of the runs from which on the latency has this factor.
PLANTED = ((0.0, 1.0), (0.4, 1.06), (0.7, 0.9))


def make_runs(root: Path, count: int, recorded: Sequence[RunRecord]) -> list[Path]:
    folders = []
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
        folder = root / f"out_{run.plan.model}" / "runs" / f"{run.platform}-{number}"
        save_run(run, folder)
        folders.append(folder)
    return folders


def make_identified(sample: Path) -> RunRecord:
    """A recorded run whose model is known by its graph, as that of a run of today is."""
    run = load_run(sample)
    return replace(run, export=replace(run.export, graph=32 * "ab"))


def spend_cpu(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def check_runs_of_one_program(root: Path, count: int) -> list[bool]:
    """Compare runs of one program, and list the findings of one of them beside the others."""
    from workbench.analysis.open import open_run
    from workbench.report.gate import compare_named

    recorded, names = make_identified(sample_run()), []
    for number, folder in enumerate(make_runs(root / "many", count, [recorded])):
        names.append(f"{folder}:avx512_on")
        if number == 0:
            shutil.copytree(sample_run(), folder, dirs_exist_ok=True)
            save_run(recorded, folder)
            shutil.copytree(folder, root / "alone" / "out_m" / "runs" / "linux")
    compare_named(names[:3])
    third, whole = (spend_cpu(lambda n=n: compare_named(names[:n])) for n in (count // 3, count))
    alone, first = root / "alone" / "out_m" / "runs" / "linux", names[0].partition(":")[0]
    listed = [spend_cpu(lambda run=run: open_run(run).findings) for run in (alone, alone, first)]
    each, beside = 1e3 * whole / count, 1e3 * (listed[2] - listed[1]) / count
    print(f"compare: {each:.1f} ms a run, {whole / third:.1f} x for 3 x the runs")
    print(f"findings: {beside:.1f} ms for each run beside it")
    return [max(each, beside) < MAX_MS_OF_RUN, whole < MOST_OF_TRIPLE * third]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=CLAIMED_RUNS)
    options = parser.parse_args()
    gc.set_threshold(300_000)  # as the command line does
    with tempfile.TemporaryDirectory() as folder:
        make_runs(Path(folder), options.runs, [load_run(path) for path in find_runs(SAMPLES)])
        begin, wall = time.process_time(), time.perf_counter()
        from workbench.plugins.history.history_figure import plot_history
        from workbench.plugins.history.read import read_history, write_figure

        history = read_history([folder])
        indexed, waited = time.process_time() - begin, time.perf_counter() - wall
        begin = time.process_time()
        write_figure(plot_history(history.rows, history.changes), Path(folder) / "history.png")
        drawn = time.process_time() - begin
        claims = check_runs_of_one_program(Path(folder), options.runs)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (
        1e9 if sys.platform == "darwin" else 1e6
    )
    lines, changes = history.rows["line"].nunique(), len(history.changes)
    print(f"{options.runs} runs, {lines} lines, {changes} changes")
    print(f"indexed in {indexed:.1f} s (wall time {waited:.1f} s), peak {peak:.2f} GB")
    print(f"figure in {drawn:.2f} s")
    print(history.changes["outcome"].value_counts().to_string())
    passed = indexed < MAX_SECONDS and peak < MAX_GB and drawn < MAX_FIGURE_SECONDS
    return 0 if passed and all(claims) else 1


if __name__ == "__main__":
    sys.exit(main())
