"""The runs that there are to look at."""

from __future__ import annotations

from pathlib import Path

from workbench.store import find_runs
from workbench.testing import SAMPLES


def list_runs(folder: str | Path = ".") -> list[Path]:
    """The runs below a folder, the newest first, and after them the recorded samples."""
    return [*reversed(find_runs(Path(folder))), *find_runs(SAMPLES)]
