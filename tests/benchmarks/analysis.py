"""CPU time of `analyze`, `report` and opening a run, against the first version of this project.

The first version comes from this repository's history. Both read copies of the same recorded run,
alternately, in fresh processes; the benchmark prints the median ratio. "open" is the time to open a
run in a warm process, up to its operators with their layers. Exits 1 if a limit is missed.
"""

import argparse
import io
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FIRST_VERSION = "b6b68bc"
SAMPLE = Path("data/samples/out_mobilenet_v3_small/runs/linux")
OLD_OPEN = "wb.analyze_run({run!r}).operators"
NEW_OPEN = "wb.open_run({run!r}).subject.operators"
WARM = """
import time
import workbench as wb
{open}
start = time.process_time()
{open}
print(time.process_time() - start)
"""
LIMITS_S = {"analyze": 2.0, "report": 5.0, "open": 0.3}
MIN_RATIO = 3.0


def extract(folder):
    """The first version's files."""
    packed = subprocess.run(
        ["git", "archive", FIRST_VERSION], cwd=ROOT, stdout=subprocess.PIPE, check=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def run_python(version, *arguments):
    """CPU seconds of a Python process with a version of the workbench, and what it printed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "PYTHONPATH": str(version)}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=version.parent,  # Python looks for modules in the working directory first
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return spent, done.stdout


def measure(version, task, run, opening):
    """CPU seconds of one task."""
    if task == "open":
        return float(run_python(version, "-c", WARM.format(open=opening.format(run=str(run))))[1])
    return run_python(version, "-m", "workbench", task, str(run))[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--run", type=Path, default=ROOT / SAMPLE, help="folder of a run")
    options = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sides = {
            "first": (extract(folder / "first"), OLD_OPEN),
            "now": (ROOT, NEW_OPEN),
        }
        runs = {side: folder / f"out_{side}" / "runs" / "linux" for side in sides}
        for run in runs.values():
            shutil.copytree(options.run, run)
        for task, limit in LIMITS_S.items():
            times = {
                side: [measure(version, task, runs[side], opening) for _ in range(options.repeats)]
                for side, (version, opening) in sides.items()
            }
            first, now = (statistics.median(times[side]) for side in ("first", "now"))
            ratios = [old / new for old, new in zip(times["first"], times["now"], strict=True)]
            ratio = statistics.median(ratios)
            passed = now <= limit and ratio >= MIN_RATIO
            failed |= not passed
            print(
                f"{task}: {now:.2f} s of CPU time, first version {first:.2f} s, {ratio:.1f}x "
                f"({min(ratios):.1f} to {max(ratios):.1f}); limits {limit} s and {MIN_RATIO}x: "
                f"{'met' if passed else 'NOT met'}"
            )
    return failed


if __name__ == "__main__":
    sys.exit(main())
