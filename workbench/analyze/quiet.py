"""What the rest of the machine left alone: whole traced runs, and times within them."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

#: A run is quiet if it was off the CPU for at most this part of its time.
STOLEN_LIMIT = 0.02
#: Part of the runs, the fastest of each operator, that count as undisturbed.
_FASTEST = 1 / 4
#: Into how many a single restart is divided, where its scatter has to stand for that of restarts.
_PARTS = 4


def find_quiet_runs(wall_ns: np.ndarray, cpu_ns: np.ndarray, threads: int) -> np.ndarray:
    """Which runs of a trace to keep: those that ran almost without interruption.

    ETDump logs wall time, so whatever another program ran meanwhile is in the operators' times.
    With one thread, wall time less CPU time is what was stolen; the runs in which that is at most
    2 % are kept, and always the quieter half. With several threads CPU time does not tell, and
    every run is kept.

    Parameters
    ----------
    wall_ns, cpu_ns
        Of every run of one process, shape ``(runs,)``.
    threads
        CPU threads of the runner.

    Returns
    -------
    ndarray of bool
        Shape ``(runs,)``.
    """
    wall, cpu = np.asarray(wall_ns, dtype=float), np.asarray(cpu_ns, dtype=float)
    if threads != 1:
        return np.ones(wall.size, dtype=bool)
    stolen = 1 - cpu / np.maximum(wall, 1)
    quieter_half = np.argsort(stolen, kind="stable")[: (stolen.size + 1) // 2]
    keep = stolen <= STOLEN_LIMIT
    keep[quieter_half] = True
    return keep


def undisturbed_times(runs: pd.DataFrame) -> pd.DataFrame:
    """The time that every column took where other programs left it alone, by restart.

    What another program takes of the CPU makes the operator at work longer by whole slices of
    time. It does not hit all alike: a process that just woke up is let run for a while, so what
    comes late in an inference is hit more often. Means, and shares of these, are then off however
    many runs there are; the mean of the fastest quarter of each column is not.

    Parameters
    ----------
    runs
        Of `total_runs`.

    Returns
    -------
    DataFrame
        The same columns; one row for each ``process``, or for each quarter of the only one.
    """
    process = runs.index.get_level_values("process")
    if process.nunique() == 1:
        process = pd.Index(np.arange(len(runs)) * _PARTS // len(runs))
    ordered = {part: np.sort(runs[process == part].to_numpy(), axis=0) for part in process.unique()}
    times = {
        part: values[: math.ceil(_FASTEST * len(values))].mean(axis=0)
        for part, values in ordered.items()
    }
    index = pd.Index(times, name="process")
    return pd.DataFrame(list(times.values()), index, runs.columns)
