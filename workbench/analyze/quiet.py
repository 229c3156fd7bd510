"""Which traced runs the rest of the machine left alone."""

from __future__ import annotations

import numpy as np

#: A run is quiet if it was off the CPU for at most this part of its time.
STOLEN_LIMIT = 0.02


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
