"""A matrix of 4 models x 3 dtypes x 2 ISA levels: the time of each stage, recovery from kills.

First the matrix runs undisturbed. With ``--kills`` it runs again, and all its processes are killed
at several moments; then once more, and the measuring worker is killed. The files must prove that
nothing was measured twice or lost, and that no two measurements overlapped.
"""

import argparse
import json
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from batch_evidence import (
    MOMENTS,
    Starter,
    check_finished,
    kill_group,
    kill_worker,
    take_snapshot,
    wait_until,
)

from workbench.plugins.batch.matrix import plan_cells, read_matrix
from workbench.store import cache_folder

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--matrix", type=Path, default=ROOT / "data" / "matrix.yaml")
    parser.add_argument("--out", type=Path, help="write the portfolios here")
    parser.add_argument("--kills", action="store_true", help="kill it at every stage, and resume")
    options = parser.parse_args()

    cells = len(plan_cells(read_matrix(options.matrix)))
    with tempfile.TemporaryDirectory() as folder:
        place = options.out or Path(folder)
        start = Starter(cache_folder().parent)
        try:
            plain = run_undisturbed(start, options.matrix, place / "plain", cells)
            if options.kills:
                kill_and_resume(start, options.matrix, place / "killed", cells)
                compare(plain, place / "killed")
                kill_a_worker(start, options.matrix, place / "worker", cells)
                compare(plain, place / "worker")
        finally:
            start.kill_all()
    return 0


def run_undisturbed(start, matrix, out, cells):
    began = time.monotonic()
    err = finish(start(matrix, out))
    report_stages(err, time.monotonic() - began, cells)
    return check_finished(out, cells)


def kill_and_resume(start, matrix, out, cells):
    snapshots = []
    for moment, has_come in MOMENTS.items():
        process = start(matrix, out)
        if wait_until(process, lambda has_come=has_come: has_come(out), seconds=7200):
            kill_group(process)
            snapshots.append(take_snapshot(out))
            print(f"killed while {moment}: {len(snapshots[-1])} sessions complete")
    finish(start(matrix, out))
    check_finished(out, cells, snapshots)
    print(f"resumed: {cells} cells done, no complete session measured again")


def kill_a_worker(start, matrix, out, cells):
    process = start(matrix, out)
    snapshot = kill_worker(process, out, seconds=7200)
    finish(process)
    check_finished(out, cells, [snapshot])
    print(f"worker killed after {len(snapshot)} sessions: {cells} cells done, none measured again")


def finish(process):
    _, err = process.communicate()
    assert process.returncode == 0, err
    return err


def report_stages(err, wall_s, cells):
    """Print how long each stage took, by when it was first said to run."""
    begins = dict[str, float]()
    for seconds, stage in re.findall(r"^ *(\d+) s  (\w+ing) \d+ of", err, re.MULTILINE):
        begins.setdefault(stage, float(seconds))
    ends = [*list(begins.values())[1:], wall_s]
    times = [
        f"{stage} {end - begins[stage]:.0f} s" for stage, end in zip(begins, ends, strict=True)
    ]
    print(f"{cells} cells in {wall_s:.0f} s: {', '.join(times)}")


def compare(portfolio, out):
    """Print how much the speed-ups differ between two portfolios."""
    other = json.loads((out / "portfolio.json").read_text())
    ratios = [
        after["speedup"] / before["speedup"]
        for one, two in zip(portfolio["cells"], other["cells"], strict=True)
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
