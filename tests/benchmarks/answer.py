"""Seconds of `workbench profile` to its verdict and in all, and where each of them goes.

    python tests/benchmarks/answer.py [--only NAME...] [--rounds N]

In turn with a script that exports the model as ExecuTorch documents it and runs it 20 times, both
with warm caches, imports included: of each, the median of the rounds. A phase has the seconds that
no phase within it has; an export those of importing PyTorch and ExecuTorch, as the script's. The
verdict is there when the first line of the output is.

Exits 1 if a claim does not hold: the verdict of mobilenet_v3_small in 1.25 times the seconds of the
script and all of it in 1.6 times; of ViT-B and a transformer of 12 layers, in 1.4 and 2.0 times.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from scale import PLAIN, SUBJECTS
from scale import run as run_script


@dataclass(frozen=True)
class Claim:
    """How many times the script's seconds the verdict of a model may take, and all of it."""

    spec: str
    verdict: float = 1.4
    whole: float = 2.0


CLAIMS = {
    "mobilenet_v3_small": Claim("mobilenet_v3_small", 1.25, 1.6),
    "ViT-B/16": Claim(SUBJECTS["ViT-B/16"].spec),
    "GPT-2, 12 layers": Claim(SUBJECTS["GPT-2, 12 layers"].spec),
}

#: Functions by the phase that they are, in the order of the table.
PHASES = {
    "export": ["workbench.workflow:export_model"],
    "compile": ["workbench.workflow:Warmup.finish"],
    "restarts": ["workbench.workflow:measure_restarts"],
    "analysis": ["workbench.cli.work:_Answer.print"],
    "starts": ["workbench.run.execute:time_starts"],
    "samples": ["workbench.run.execute:sample_experiments"],
    "code": ["workbench.workflow:keep_places"],
    "roofs": ["workbench.workflow:Peaks.measure"],
    "trials": ["workbench.plugins.remedies.remedy_trials:check_findings"],
    "report": ["workbench.workflow:make_report"],
}

#: Runs the command with a clock around each phase. Phases of other threads are not counted: the
#: command waits for them, if at all, in a phase of its own.
PROFILE = """
import functools, importlib, json, threading, time

spent, running = {}, []

def clock(phase, function):
    @functools.wraps(function)
    def timed(*arguments, **options):
        if threading.current_thread() is not threading.main_thread():
            return function(*arguments, **options)
        began = time.monotonic()
        running.append(0.0)
        try:
            return function(*arguments, **options)
        finally:
            seconds = time.monotonic() - began
            spent[phase] = spent.get(phase, 0.0) + seconds - running.pop()
            if running:
                running[-1] += seconds
    return timed

from workbench.cli import main

for phase, names in PHASES.items():
    for name in names:
        module, _, path = name.partition(":")
        owner = importlib.import_module(module)
        *parents, last = path.split(".")
        for parent in parents:
            owner = getattr(owner, parent)
        setattr(owner, last, clock(phase, getattr(owner, last)))
spent["import"] = time.time() - BEGAN
try:
    main()
finally:
    with open(SPENT, "w") as file:
        json.dump(spent, file)
"""


def profile(folder: Path, spec: str, *options: str) -> dict[str, float]:
    """The seconds of each phase of a profile, to its ``verdict``, and of the ``whole``."""
    spent, began = folder / "spent.json", time.time()
    names = {"PHASES": PHASES, "BEGAN": began, "SPENT": str(spent)}
    code = "".join(f"{name} = {value!r}\n" for name, value in names.items()) + PROFILE
    command = [sys.executable, "-c", code, "profile", spec, "--out", "profiled", *options]
    log = folder / "log.txt"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as child,
    ):
        first = child.stdout.readline()
        verdict = time.time() - began
        child.communicate()
    whole = time.time() - began
    if child.returncode or not first:
        raise SystemExit(f"{spec}: the profile failed\n{log.read_text()}")
    shutil.rmtree(folder / "profiled")
    return {**json.loads(spent.read_text()), "verdict": verdict, "whole": whole}


def measure(folder: Path, claim: Claim, rounds: int) -> tuple[float, dict[str, float]]:
    """The seconds of the script, and those of a profile by phase: medians of rounds."""
    plain, profiles = [], []
    for _ in range(rounds):
        plain.append(run_script(folder, PLAIN, SPEC=claim.spec, DTYPE="fp32")[0])
        profiles.append(profile(folder, claim.spec))
    names = dict.fromkeys(name for each in profiles for name in each)
    medians = {name: statistics.median(each.get(name, 0.0) for each in profiles) for name in names}
    return statistics.median(plain), medians


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=[*CLAIMS], default=[])
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    columns = ["import", *PHASES, "other"]
    print(f"| model | load | script | {' | '.join(columns)} | all | verdict | whole |")
    print("|---|" + "---:|" * (len(columns) + 5))
    hold = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(Path(__file__).with_name("_large.py"), folder / "networks.py")
        profile(folder, "toy_cnn")  # compiles the runner and measures the peaks
        for title, claim in CLAIMS.items():
            if options.only and title not in options.only:
                continue
            script, spent = measure(folder, claim, options.rounds)
            phases = {name: spent.get(name, 0.0) for name in columns}
            phases["other"] = spent["whole"] - sum(phases.values())
            ratios = [spent[name] / script for name in ("verdict", "whole")]
            hold += [ratios[0] <= claim.verdict, ratios[1] <= claim.whole]
            cells = [f"{seconds:.1f}" for seconds in (script, *phases.values(), spent["whole"])]
            cells += [f"{ratio:.2f} x" for ratio in ratios]
            print(f"| {title} | {os.getloadavg()[0]:.1f} | {' | '.join(cells)} |", flush=True)
    return int(not all(hold))


if __name__ == "__main__":
    sys.exit(main())
