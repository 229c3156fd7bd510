"""From a clone to the first report, against installing the same packages and a plain export.

    python tests/benchmarks/first.py [--cold 2] [--warm 3]

Both sides start with an empty home and cache. The plain side installs the pinned torch and
executorch with uv and runs a script that exports the demo's models, one after the other; the other
side runs `python3 dev.py demo` in a clone. Which comes first alternates: on the virtual machines
that this ran on, one installation took 7 to 20 s, longer after others. Then, with everything
installed, plain export and `workbench profile` take turns. Prints seconds and the load. Exits 1 if
the first or both reports take more than 1.6 times as long as the plain side, a profile of
mobilenet_v3_small more than 1.35 times as long as its export, or one of toy_cnn more than 20 s.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tabulate import tabulate

ROOT = Path(__file__).resolve().parents[2]
MODELS = ("toy_cnn", "mobilenet_v3_small")
FIRST, BOTH = "first report", "both reports"
MOST_FROM_CLONE, MOST_WARM, MOST_TOY_S = 1.6, 1.35, 20.0
EXPORT = """
import sys, torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from workbench.{1}.zoo.{0} import get_eager_model, get_example_inputs
exported = torch.export.export(get_eager_model().eval(), get_example_inputs())
edge = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])
open("{0}.pte", "wb").write(edge.to_executorch().buffer)
"""
#: As set-up does it.
INSTALL = """
import sys; sys.path.insert(0, {0!r})
import dev; from pathlib import Path
dev.VENV, dev.PYTHON = Path({1!r}), Path({1!r}, "bin", "python")
dev._create_venv()
dev._install("torch", "executorch", fresh=True)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cold", type=int, default=2, help="repeats with an empty home")
    parser.add_argument("--warm", type=int, default=3, help="repeats with everything installed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        plain, ours = Path(name, "plain"), Path(name, "ours")
        cold: dict[str, list[float]] = {}
        for number in range(options.cold):
            for folder in (plain, ours)[:: -1 if number % 2 else 1]:
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                stages = start_plain(folder) if folder is plain else clone_and_demo(folder)
                for stage, seconds in stages.items():
                    cold.setdefault(stage, []).append(seconds)
        typical = {stage: statistics.median(seconds) for stage, seconds in cold.items()}
        plain_stages = {k: s for k, s in typical.items() if "report" not in k}
        limits = [
            (FIRST, typical[FIRST], sum([*plain_stages.values()][:2]), MOST_FROM_CLONE),
            (BOTH, typical[BOTH], sum(plain_stages.values()), MOST_FROM_CLONE),
        ]
        times = {(side, model): [] for side in (export, profile) for model in MODELS}
        for _ in range(options.warm):
            for (side, model), seconds in times.items():
                seconds.append(timed(side, plain if side is export else ours / "clone", model))
        median = {key: statistics.median(seconds) for key, seconds in times.items()}
        limits += [
            (f"warm profile of {model}", median[profile, model], median[export, model], MOST_WARM)
            for model in MODELS[1:]
        ]  # fmt: skip
    limits.append(("warm profile of toy_cnn", median[profile, "toy_cnn"], MOST_TOY_S, 1.0))
    print(tabulate([*plain_stages.items()], ["plain side", "s"], tablefmt="pipe", floatfmt=".1f"))
    rows = [(what, took, base, took / base, most) for what, took, base, most in limits]
    headers = ["", "s", "against s", "ratio", "at most"]
    print(tabulate(rows, headers, tablefmt="pipe", floatfmt=("", ".1f", ".1f", ".2f", ".2f")))
    print("load", *(f"{load:.1f}" for load in os.getloadavg()))
    return int(any(took > most * base for _, took, base, most in limits))


def install(folder: Path) -> None:
    """A virtual environment with the pinned torch and executorch, by uv; and the models' code."""
    shutil.copytree(ROOT / "workbench/models", folder / "workbench/models")
    run(folder, sys.executable, "-c", INSTALL.format(str(ROOT), str(folder / ".venv")))


def export(folder: Path, model: str) -> None:
    """The plain export script of a model."""
    code = EXPORT.format(model, "models" if model == "toy_cnn" else "plugins")
    run(folder, folder / ".venv/bin/python", "-c", code)


def profile(folder: Path, model: str) -> None:
    """`workbench profile`, of a model that was not exported before."""
    with tempfile.TemporaryDirectory() as out:
        python = folder / ".venv/bin/python"
        run(folder, python, "-m", "workbench", "profile", model, "--out", out)


def start_plain(folder: Path) -> dict[str, float]:
    """Seconds of each stage of the plain side."""
    stages = {"install": timed(install, folder)}
    return stages | {f"export {model}": timed(export, folder, model) for model in MODELS}


def clone_and_demo(folder: Path) -> dict[str, float]:
    """Seconds to the first and to both reports."""
    start, wall = time.monotonic(), time.time()
    run(folder, "git", "clone", "--quiet", ROOT, "clone")
    run(folder / "clone", sys.executable, "dev.py", "demo")
    both = time.monotonic() - start
    reports = [path.stat().st_mtime - wall for path in (folder / "clone").rglob("report.html")]
    return {FIRST: min(reports), BOTH: both}


def run(folder: Path, *command: str | Path) -> str:
    """A command in a folder with a home of its own; its output."""
    home = folder if folder.name != "clone" else folder.parent
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("VIRTUAL_ENV", "PYTHON"))}
    own = {
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
        "UV_CACHE_DIR": str(home / "uv"),
    }
    done = subprocess.run([*map(str, command)], cwd=folder, env={**kept, **own},
                          stdout=subprocess.PIPE, text=True, check=True)  # fmt: skip
    return done.stdout


def timed(stage, *arguments) -> float:
    """Seconds that a stage takes."""
    start = time.monotonic()
    stage(*arguments)
    return time.monotonic() - start


if __name__ == "__main__":
    sys.exit(main())
