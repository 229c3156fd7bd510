"""The ETDumps and logs in a run's folder, as the manifest names them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from workbench.analyze import build_ledger, compare_kernels, find_quiet_runs
from workbench.errors import StoreError, TraceError
from workbench.records import Run, Session
from workbench.schema import SOURCE
from workbench.trace import read_etdump, read_xnn_log


def compare_logs(run_dir: Path, run: Run) -> dict[str, pd.DataFrame]:
    """Which microkernels differ between the runs whose logs name them, by what was compared."""
    logs = {
        s.experiment: read_xnn_log(inside(run_dir, s.log))
        for s in run.sessions
        if s.complete and s.log and not s.etdump
    }
    pairs = [
        (p.baseline, p.candidate)
        for p in run.plan.pairs
        if {p.baseline, p.candidate} <= logs.keys()
    ]
    first, *others = logs or [""]
    return {
        f"{after} against {before}": compare_kernels(logs[after], logs[before])
        for before, after in pairs or [(first, other) for other in others]
    }


def inside(run_dir: Path, name: str) -> Path:
    """A file that the manifest names, which must lie in the run's folder.

    Raises
    ------
    StoreError
        It lies elsewhere.
    """
    path = run_dir / name
    if not path.resolve().is_relative_to(run_dir.resolve()):
        raise StoreError("names a trace outside its folder", where=run_dir / "manifest.json")
    return path


def read_ledger(run_dir: Path, session: Session) -> pd.DataFrame:
    """The ledger of the quiet runs of one traced process, with the columns that say whose it is."""
    path = inside(run_dir, session.etdump)
    ledger = build_ledger(read_etdump(path))
    keep = kept_runs(session, ledger["run"].nunique(), path)
    ledger = ledger[keep[ledger["run"]]].reset_index(drop=True)
    for place, (name, *_) in enumerate(SOURCE):
        ledger.insert(place, name, getattr(session, name))
    return ledger


def kept_runs(session: Session, runs: int, path: Path) -> np.ndarray:
    """Which runs of a trace count: the quiet ones; all after the warm-up if nobody timed them."""
    if not session.batches:
        if runs <= session.skipped:
            raise TraceError(f"holds {runs} runs, {session.skipped} of them to warm up", where=path)
        return np.arange(runs) >= session.skipped
    wall, cpu = (
        np.concatenate([getattr(batch, clock) for batch in session.batches])
        for clock in ("wall_ns", "cpu_ns")
    )
    if runs != len(wall):
        raise TraceError(f"holds {runs} runs, the manifest {len(wall)}", where=path)
    return find_quiet_runs(wall, cpu, session.threads)
