"""CPU time of commands on a recorded run, against `import torch` in the same round.

A first call has an empty cache of outputs, a second one finds the first one's. Medians of the
ratios over the rounds, and the least CPU time. Exits 1 if a command takes longer than it may.
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
SAMPLE = Path("data/samples/out_mobilenet_v3_small/runs/linux")
#: The most that a call may take, in times of `import torch`; second calls take as long as --help.
MOST_FIRST, MOST_SECOND = 0.6, 0.15
READING = ("findings", "compare", "validate", "analyze", "history")
OTHERS = {"--help": 0.15, "doctor": 0.4}


def spend(*arguments, cwd, allowed=(0,), **environment):
    """CPU seconds of a Python process, which may exit with the codes that are allowed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in allowed:
        sys.exit(f"{' '.join(arguments)}: {done.stderr}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(folder, commands):
    """CPU seconds of `import torch` and of each command in one round."""
    times = {"import torch": spend("-c", "import torch", cwd=folder)}
    for command in commands:
        call = ["-m", "workbench", command]
        if command in OTHERS:
            # An empty XDG_CACHE_HOME has no compiled runner, which doctor would look for.
            times[command] = spend(*call, cwd=folder, allowed=(0, 1))
            continue
        with tempfile.TemporaryDirectory(dir=folder) as name:
            run = shutil.copytree(ROOT / SAMPLE, Path(name, "out_sample", "runs", "linux"))
            for number in ("first", "second"):
                times[command, number] = spend(
                    *call, str(run), cwd=folder, allowed=(0, 1), XDG_CACHE_HOME=f"{name}/cache"
                )
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("commands", nargs="*", default=[*READING, *OTHERS])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if not {*options.commands} <= {*READING, *OTHERS}:
        parser.error(f"commands: {', '.join([*READING, *OTHERS])}")
    with tempfile.TemporaryDirectory() as name:
        measure(Path(name), options.commands)  # writes .pyc files, and reads all from the disk
        rounds = [measure(Path(name), options.commands) for _ in range(options.rounds)]
    limits = OTHERS | {(c, "first"): MOST_FIRST for c in READING}
    limits |= {(c, "second"): MOST_SECOND for c in READING}
    torch_s = [times.pop("import torch") for times in rounds]
    print(f"import torch: {min(torch_s):.2f} s of CPU time; load {os.getloadavg()[0]:.1f}")
    failed = False
    for call in rounds[0]:
        ratios = [times[call] / torch for times, torch in zip(rounds, torch_s, strict=True)]
        ratio, least_s = statistics.median(ratios), min(times[call] for times in rounds)
        failed |= ratio > limits[call]
        label = call if isinstance(call, str) else ", ".join(call)
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"{label:18} {ratio:.2f} ({spread}), {least_s:.2f} s; at most {limits[call]}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
