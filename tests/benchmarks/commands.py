"""CPU time of commands that read a recorded run, and of two others, against `import torch`.

A first call finds no cached output, a second one that of the first. All processes have compiled
modules; `doctor` also has a compiled runner, in the cache of the user. Prints the median ratio of
the rounds. Exits 1 if a command takes longer than it may.
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
#: The most that calls may take, in times of `import torch`. `analyze` writes files: it is the last.
FIRST = {"findings": 0.6, "compare": 0.6, "validate": 0.6, "history": 0.6, "analyze": 1.0}
SECOND = 0.15
OTHERS = {"--help": 0.15, "doctor": 0.4}
LIMITS = OTHERS | {(name, "first"): limit for name, limit in FIRST.items()}
LIMITS |= {(name, "second"): SECOND for name in FIRST}


def spend(*arguments, cwd, **environment):
    """CPU seconds of a Python process; exit code 1 is a result, such as that of a failed check."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 1) or "Traceback" in done.stderr:
        sys.exit(f"{' '.join(arguments)}: {done.stderr}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure():
    """CPU seconds of `import torch` and of each call, once."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as cache:
        # The copy has the old times: outputs that depend on files of this second are not cached.
        run = shutil.copytree(SAMPLES, Path(folder, SAMPLES.name)) / "runs" / "linux"
        times = {"import torch": spend("-c", "import torch", cwd=folder)}
        times |= {name: spend("-m", "workbench", name, cwd=folder) for name in OTHERS}
        for name in FIRST:
            for call in ("first", "second"):
                words = ("-m", "workbench", name, str(run))
                times[name, call] = spend(*words, cwd=folder, XDG_CACHE_HOME=f"{cache}/{name}")
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    measure()  # compiles modules
    rounds = [measure() for _ in range(options.rounds)]
    torch_s = [times["import torch"] for times in rounds]
    load = os.getloadavg()[0]
    print(f"import torch: {statistics.median(torch_s):.2f} s of CPU time; load {load:.1f}")
    failed = False
    for call, limit in LIMITS.items():
        ratios = [times[call] / torch for times, torch in zip(rounds, torch_s, strict=True)]
        ratio, label = statistics.median(ratios), call if isinstance(call, str) else ", ".join(call)
        met = ratio <= limit
        failed |= not met
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"{label:16} {ratio:.2f} ({spread}); limit {limit}: {'met' if met else 'NOT met'}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
