"""Frames and runs with known answers, made from seeded random numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any

import numpy as np
import pandas as pd

#: A small network, as its ledger would show it: category, kind, operator, milliseconds.
NETWORK = (
    ("Other", "framework", "Method::execute", 0.021),
    ("Other", "delegate_overhead", "DELEGATE_CALL", 0.160),
    ("Data Movement", "delegated", "Transpose (ND, X32)", 0.230),
    ("Convolution", "delegated", "Convolution (NHWC, F32) IGEMM", 2.140),
    ("Elementwise", "delegated", "HardSwish (NC)", 0.090),
    ("Convolution", "delegated", "Convolution (NHWC, F32) DWConv", 0.610),
    ("GEMM", "delegated", "Fully Connected (NC, F32) GEMM", 1.320),
    ("Other", "delegated", "Average Pooling (NHWC, F32) Average Pooling", 0.055),
    ("Elementwise", "delegated", "Multiply (ND)", 0.048),
    ("Convolution", "delegated", "Convolution (NHWC, F32) IGEMM", 1.470),
    ("GEMM", "delegated", "Fully Connected (NC, F32) GEMM", 0.410),
    ("Data Movement", "delegated", "Copy (NC, X32)", 0.120),
    ("Other", "call_overhead", "OPERATOR_CALL", 0.004),
    ("Other", "portable", "native_call_mean.out", 0.035),
)


def synthetic_latencies(
    latencies_ms: Mapping[str, float],
    *,
    threads: int = 1,
    processes: int = 5,
    rounds: int = 8,
    batch: int = 3,
    noise: float = 0.01,
    restart: float = 0.003,
    drift: float = 0.03,
    outliers: float = 0.03,
    traced: bool = False,
    seed: int = 0,
) -> pd.DataFrame:
    """``frames.LATENCIES`` of experiments whose true ratio is known, in the order of measurement.

    ``batch`` inferences are timed in one go, twice a round. ``noise`` and ``restart`` are the
    log-normal scatter of single inferences and of an experiment between restarts; the machine
    wanders by ``drift`` over a restart, all experiments alike; a part of the inferences,
    ``outliers``, is disturbed by 30 % on average.
    """
    rng = np.random.default_rng(seed)
    names = list(latencies_ms)
    places = 2 * len(names)
    shape = (processes, rounds, places, batch)
    process, number, place, _ = np.indices(shape)
    # There and back again, one experiment further each round.
    step = np.minimum(place, places - 1 - place)
    experiment = (number + step) % len(names)

    level = np.log(list(latencies_ms.values())) + rng.normal(0, restart, (processes, len(names)))
    walk = rng.normal(0, drift / np.sqrt(rounds * places), (processes, rounds * places))
    walk = walk.cumsum(axis=1).reshape(processes, rounds, places, 1)
    disturbed = rng.random(shape) < outliers
    noises = rng.normal(0, noise, shape) + disturbed * rng.exponential(0.3, shape)
    cpu = np.exp(level[process, experiment] + walk + noises) * 1e6
    frame = pd.DataFrame(
        {
            "experiment": np.array(names, dtype=object)[experiment.ravel()],
            "threads": threads,
            "process": process.ravel(),
            "traced": traced,
            "round": number.ravel(),
            "batch": place.ravel(),
            "wall_ns": (cpu * (1.01 + disturbed)).astype("int64").ravel(),
            "cpu_ns": (cpu * threads).astype("int64").ravel(),
            "preempted": disturbed.astype("int64").ravel(),
        }
    )
    return frame


def synthetic_ledger(
    speedups: Mapping[str, float] | None = None,
    *,
    processes: int = 3,
    runs: int = 10,
    noise: float = 0.01,
    restart: float = 0.003,
    seed: int = 0,
) -> pd.DataFrame:
    """The ledger of ``NETWORK``, each category made faster by a factor of ``speedups``.

    ``noise`` and ``restart`` are the log-normal scatter of an operator from run to run, and of all
    of them between restarts. Delegated operators take whole microseconds.
    """
    rng = np.random.default_rng(seed)
    speedups = speedups or {}
    true_us = [1e3 * ms / speedups.get(category, 1.0) for category, _, _, ms in NETWORK]
    frames = []
    for process in range(processes):
        level = rng.normal(0, restart)
        for run in range(runs):
            times = true_us * np.exp(level + rng.normal(0, noise, len(NETWORK)))
            whole = [kind == "delegated" for _, kind, _, _ in NETWORK]
            frames.append(
                pd.DataFrame(
                    {
                        "process": process,
                        "run": run,
                        "row": range(len(NETWORK)),
                        "kind": [kind for _, kind, _, _ in NETWORK],
                        "name": [
                            f"{operator} #{row}" if kind == "delegated" else operator
                            for row, (_, kind, operator, _) in enumerate(NETWORK)
                        ],
                        "operator": [operator for _, _, operator, _ in NETWORK],
                        "key": [f"{kind}/{row}" for row, (_, kind, _, _) in enumerate(NETWORK)],
                        "instruction": [-1, *range(len(NETWORK) - 1)],
                        "duration_ns": np.where(whole, np.floor(times), times.round(3)) * 1e3,
                    }
                ).astype({"duration_ns": "int64"})
            )
    return pd.concat(frames, ignore_index=True)


def resample_run(run: Any, *, factor: float, started: str, scatter: float, seed: int) -> Any:
    """A record as the same machine might have made it at another time, ``factor`` times as long.

    Every process's inferences are drawn again from those that it measured, with a log-normal
    ``scatter`` of all inferences of one process.
    """
    rng = np.random.default_rng(seed)

    def draw(batch: Any, level: float) -> Any:
        chosen = rng.integers(0, len(batch.wall_ns), len(batch.wall_ns))
        wall, cpu = (
            tuple((np.array(times)[chosen] * level).astype("int64").tolist())
            for times in (batch.wall_ns, batch.cpu_ns)
        )
        return replace(batch, wall_ns=wall, cpu_ns=cpu)

    sessions = []
    for session in run.sessions:
        level = factor * np.exp(rng.normal(0, scatter))
        sessions.append(replace(session, batches=tuple(draw(b, level) for b in session.batches)))
    return replace(run, started=started, finished=started, sessions=tuple(sessions))


#: True speed-ups by category, and the name of an operator of it.
TRUE_SPEEDUPS = {
    "Convolution": (1.0, "Convolution (NHWC, F32) IGEMM"),
    "GEMM": (1.05, "Fully Connected (NC, F32) GEMM"),
    "Elementwise": (1.25, "Multiply (ND)"),
    "Data Movement": (2.0, "Copy (NC, X32)"),
}


def network_of(us: Sequence[float]) -> list[tuple[str, str, str, float]]:
    """A network whose delegate has operators of these times, of each category in turn."""
    names = [(category, name) for category, (_, name) in TRUE_SPEEDUPS.items()]
    operators = [
        (category, "delegated", name, time / 1e3)
        for time, (category, name) in zip(us, cycle(names), strict=False)
    ]
    return [row for row in NETWORK if row[1] != "delegated"] + operators
