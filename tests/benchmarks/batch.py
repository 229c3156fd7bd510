"""A matrix of 4 models x 3 dtypes x 2 ISA levels: overhead of a batch, and recovery from kills.

First the matrix runs undisturbed: the time without an export or a measurement may be at most 15 %
of the time with one. With ``--kills`` the matrix runs again, and all its processes are killed at
several moments. With ``--dask`` it runs on a local cluster of two workers, and the measuring worker
is killed. The files must then prove that nothing was measured twice or lost, and that no two
measurements overlapped.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from portfolio_evidence import (
    MOMENTS,
    Starter,
    check_index,
    check_nothing_twice,
    check_one_at_a_time,
    kill_group,
    measuring_process,
    take_snapshot,
    wait_until,
)

from workbench.portfolio.matrix import plan_cells, read_matrix
from workbench.store import cache_folder

MAX_OVERHEAD = 0.15
ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--matrix", type=Path, default=ROOT / "data" / "matrix.yaml")
    parser.add_argument("--out", type=Path, help="write the portfolios here")
    parser.add_argument("--kills", action="store_true", help="kill it at every stage, and resume")
    parser.add_argument("--dask", action="store_true", help="run on a cluster, and kill a worker")
    options = parser.parse_args()

    cells = len(plan_cells(read_matrix(options.matrix)))
    with tempfile.TemporaryDirectory() as folder:
        place = options.out or Path(folder)
        start = Starter(cache_folder().parent)
        try:
            began = time.monotonic()
            plain = run_undisturbed(start, options.matrix, place / "plain", cells)
            passed = report_overhead(plain, time.monotonic() - began)
            if options.kills:
                kill_and_resume(start, options.matrix, place / "killed", cells)
                compare(plain, place / "killed")
            if options.dask:
                kill_a_worker(start, options.matrix, place / "dask", cells)
                compare(plain, place / "dask")
        finally:
            start.kill_all()
    return 0 if passed else 1


def run_undisturbed(start, matrix, out, cells):
    finish(start(matrix, out))
    check_nothing_twice(out, cells)
    check_one_at_a_time(out)
    return check_index(out, cells)


def kill_and_resume(start, matrix, out, cells):
    snapshots = []
    for moment, has_come in MOMENTS.items():
        process = start(matrix, out)
        if wait_until(process, lambda has_come=has_come: has_come(out), seconds=7200):
            kill_group(process)
            snapshots.append(take_snapshot(out))
            print(f"killed while {moment}: {len(snapshots[-1])} sessions complete")
    finish(start(matrix, out))
    check_nothing_twice(out, cells, snapshots)
    check_one_at_a_time(out)
    check_index(out, cells)
    print(f"resumed: {cells} cells done, no complete session measured again")


def kill_a_worker(start, matrix, out, cells):
    process = start(matrix, out, "--dask", "local:2")
    worker = wait_until(
        process, lambda: len(take_snapshot(out)) > 3 and measuring_process(process), seconds=7200
    )
    assert worker, process.communicate()
    worker.kill()
    snapshot = take_snapshot(out)
    finish(process)
    check_nothing_twice(out, cells, [snapshot])
    check_one_at_a_time(out)
    check_index(out, cells)
    print(f"worker killed after {len(snapshot)} sessions: {cells} cells done, none measured again")


def finish(process):
    _, err = process.communicate()
    assert process.returncode == 0, err


def report_overhead(portfolio, wall_s):
    """Print what each stage took, and the part of the time without an export or a measurement."""
    stages = [stage for outcome in portfolio["outcomes"] for stage in outcome["stages"]]
    for name in dict.fromkeys(stage["name"] for stage in stages):
        spent = [s["seconds"] for s in stages if s["name"] == name and not s["cached"]]
        if spent:
            each = f"median {statistics.median(spent):.0f} s, longest {max(spent):.0f} s"
            print(f"{name}: {len(spent)} in {sum(spent):.0f} s, {each}")
    begins = [(datetime.fromisoformat(s["started"]).timestamp(), s) for s in stages]
    pure, until = 0.0, 0.0
    for begin, stage in sorted(begins, key=lambda pair: pair[0]):
        if stage["name"] != "report" and not stage["cached"]:
            end = begin + stage["seconds"]
            pure += max(0.0, end - max(begin, until))
            until = max(until, end)
    overhead = wall_s / pure - 1
    print(
        f"{len(portfolio['outcomes'])} cells in {wall_s:.0f} s: {pure:.0f} s with an export or a "
        f"measurement, overhead {100 * overhead:.1f} %"
    )
    return overhead <= MAX_OVERHEAD


def compare(portfolio, out):
    """Print how much the speed-ups differ between two portfolios."""
    other = json.loads((out / "portfolio.json").read_text())
    ratios = [
        after["speedup"] / before["speedup"]
        for one, two in zip(portfolio["outcomes"], other["outcomes"], strict=True)
        for before, after in zip(one["rows"], two["rows"], strict=True)
        if before["speedup"]
    ]
    apart = [abs(ratio - 1) for ratio in ratios]
    print(
        f"{len(ratios)} speed-ups differ from the undisturbed ones by up to "
        f"{100 * max(apart):.1f} %, median {100 * statistics.median(apart):.1f} %"
    )


if __name__ == "__main__":
    sys.exit(main())
