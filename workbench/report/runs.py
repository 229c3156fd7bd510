"""The runs that there are to look at, and what was measured in them."""

from __future__ import annotations

import itertools
from pathlib import Path

from workbench.records import count_threads
from workbench.store import find_runs, load_run
from workbench.testing import SAMPLES, sample_run


def list_runs(folder: str | Path = ".") -> dict[str, Path]:
    """The runs below a folder by name, the newest first, and after them the recorded samples."""
    here = [(_name(path), path) for path in reversed(find_runs(Path(folder).resolve()))]
    samples = sorted(find_runs(SAMPLES), key=lambda path: (path != sample_run(), path))
    return dict(here) | {f"{_name(path)} (recorded)": path for path in samples}


def list_measurements(folder: str | Path = ".") -> dict[str, str]:
    """What `compare_runs` can compare of these runs: its name for each, by one for people.

    Emulated runs are left out, unfinished ones, and controls.
    """
    measurements = {}
    for label, path in list_runs(folder).items():
        run = load_run(path)
        if run.state != "complete" or run.emulated:
            continue
        names = [experiment.name for experiment in run.plan.experiments if not experiment.control]
        for threads, name in itertools.product(run.plan.threads, names):
            measurements[f"{label}: {name}, {count_threads(threads)}"] = f"{path}:{name}:{threads}"
    return measurements


def _name(run_dir: Path) -> str:
    return f"{run_dir.parents[1].name.removeprefix('out_')}, {run_dir.name}"
