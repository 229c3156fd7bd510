"""CPU time of commands that read a recorded run, and of two others, against `import torch`.

All processes have compiled modules; `doctor` also has a compiled runner, in the cache of the user.
Prints the median ratio of the rounds. Exits 1 if a command takes longer than it may.
"""

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "data/samples/out_mobilenet_v3_small"
#: The most that commands may take, in times of `import torch`, without a run and with one.
OTHERS = {"--help": 0.15, "doctor": 0.4}
READERS = {"findings": 0.6, "compare": 0.6, "history": 0.6, "analyze": 1.0}


def spend(*arguments, cwd):
    """CPU seconds of a Python process; exit code 1 is a result, such as that of a failed check."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 1) or "Traceback" in done.stderr:
        sys.exit(f"{' '.join(arguments)}: {done.stderr}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(folder):
    """CPU seconds of `import torch` and of each command, once, in a folder with a run."""
    run = folder / SAMPLES.name / "runs" / "linux"
    times = {"import torch": spend("-c", "import torch", cwd=folder)}
    times |= {name: spend("-m", "workbench", name, cwd=folder) for name in OTHERS}
    return times | {name: spend("-m", "workbench", name, str(run), cwd=folder) for name in READERS}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    # In one folder: what Python finds in it is a part of what doctor remembers.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(SAMPLES, folder / SAMPLES.name)
        measure(folder)  # compiles modules
        rounds = [measure(folder) for _ in range(options.rounds)]
    torch_s = [times["import torch"] for times in rounds]
    load = os.getloadavg()[0]
    print(f"import torch: {statistics.median(torch_s):.2f} s of CPU time; load {load:.1f}")
    failed = False
    for name, limit in (OTHERS | READERS).items():
        ratios = [times[name] / torch for times, torch in zip(rounds, torch_s, strict=True)]
        ratio = statistics.median(ratios)
        met = ratio <= limit
        failed |= not met
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"{name:10} {ratio:.2f} ({spread}); limit {limit}: {'met' if met else 'NOT met'}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
