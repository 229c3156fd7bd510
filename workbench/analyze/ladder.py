"""What every rung of the ISA ladder buys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from workbench.analyze.compare import compare_latencies
from workbench.analyze.statistics import describe_latencies
from workbench.schema import LADDER, check


def climb_ladder(
    latencies: pd.DataFrame,
    rungs: Sequence[str],
    *,
    threads: int,
    reveals: Mapping[str, str] | None = None,
    control: str | None = None,
    control_of: str | None = None,
) -> pd.DataFrame:
    """The latency of every level, against the level below it and against the lowest.

    Parameters
    ----------
    latencies
        ``schema.LATENCIES``, all levels interleaved in one run.
    rungs
        The experiments of the levels, the lowest first.
    threads
        Which thread count.
    reveals
        By rung, the CPU features that the rung below hides.
    control, control_of
        An experiment and the rung that it repeats: the noise floor of every step.

    Returns
    -------
    DataFrame
        ``schema.LADDER``, one row per rung. Latency is CPU time for one thread and wall time for
        several. A step is judged as by ``compare_latencies``.

    Raises
    ------
    UsageError, ComparisonError
        As from ``compare_latencies``.
    """
    part = latencies[latencies["threads"] == threads]
    medians = describe_latencies(part).set_index("experiment")
    noise = {"control": control, "control_of": control_of, "threads": threads}
    rows = []
    for place, rung in enumerate(rungs):
        row = {
            "level": rung,
            "reveals": (reveals or {}).get(rung, ""),
            "threads": threads,
            "latency_ms": medians.at[rung, "median"],
            "latency_low_ms": medians.at[rung, "low"],
            "latency_high_ms": medians.at[rung, "high"],
            **dict.fromkeys(("speedup", "low", "high", "floor"), np.nan),
            **dict.fromkeys(("total", "total_low", "total_high"), 1.0),
            "outcome": None,
        }
        if place:
            step = compare_latencies(part, rungs[place - 1], rung, **noise).iloc[0]
            row |= step[["speedup", "low", "high", "outcome", "floor"]].to_dict()
            whole = compare_latencies(part, rungs[0], rung, **noise).iloc[0]
            row |= {"total": whole["speedup"], "total_low": whole["low"]}
            row |= {"total_high": whole["high"]}
        rows.append(row)
    return check(pd.DataFrame(rows)[LADDER.names], LADDER)
