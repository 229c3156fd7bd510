"""Set-up with uv against set-up with pip, by stage, in new environments without any cache.

    python tests/benchmarks/setup.py

Both sides install the same pins from the same indexes, one stage of each side in turn. Exits 1 if
it takes more than 120 s from a clone to the first report, or if uv is not faster.
"""

import importlib.util
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tabulate import tabulate

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 120
Stages = dict[str, Callable[[], object]]


def load_dev(folder: Path):
    """The module ``dev`` with its virtual environment in another folder."""
    spec = importlib.util.spec_from_file_location("dev", ROOT / "dev.py")
    dev = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(dev)
    dev.VENV, dev.PYTHON = folder / ".venv", folder / ".venv" / "bin" / "python"
    return dev


def first_report(python: Path, folder: Path) -> None:
    """Profile the demo's first model from an empty folder, with an empty cache."""
    subprocess.run(
        [python, "-m", "workbench", "profile", "toy_cnn", "--dtype", "fp32"],
        cwd=folder,
        env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache")},
        check=True,
        stdout=subprocess.DEVNULL,
    )


def timed(stage: Callable[[], object]) -> tuple[float, float]:
    """Seconds, and CPU seconds of the processes that a stage started."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    stage()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - start, cpu


def main() -> int:
    """Time all stages, print a table."""
    os.environ |= {"PIP_NO_CACHE_DIR": "1", "UV_NO_CACHE": "1"}
    with tempfile.TemporaryDirectory() as name:
        old, new = Path(name, "pip"), Path(name, "uv")
        old.mkdir(), new.mkdir()
        pip, uv = load_dev(old), load_dev(new)
        stages: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "environment": (pip._create_venv, uv._create_venv),
            "PyTorch": (pip._install_torch, uv._install_torch),
            "packages of the demo": (
                lambda: pip._pip("install", "-c", str(pip.CONSTRAINTS), "-e", str(ROOT)),
                lambda: uv._install("-e", str(ROOT)),
            ),
            "first report": (
                lambda: first_report(pip.PYTHON, old),
                lambda: first_report(uv.PYTHON, new),
            ),
            "packages of lab and tests": (
                lambda: pip._pip("install", "-c", str(pip.CONSTRAINTS), "-e", f"{ROOT}[lab,test]"),
                lambda: uv._install("-e", f"{ROOT}[lab,test]"),
            ),
        }
        rows = [[stage, *timed(before), *timed(after)] for stage, (before, after) in stages.items()]
    to_report = ["clone to first report", *(sum(row[n] for row in rows[:4]) for n in range(1, 5))]
    everything = ["everything", *(sum(row[n] for row in rows) for n in range(1, 5))]
    headers = ["stage", "pip s", "pip CPU s", "uv s", "uv CPU s"]
    print(tabulate([*rows, to_report, everything], headers, tablefmt="pipe", floatfmt=".1f"))
    return int(to_report[3] > LIMIT_S or everything[4] > everything[2])


if __name__ == "__main__":
    sys.exit(main())
