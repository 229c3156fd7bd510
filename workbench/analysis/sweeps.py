"""What every rung of the ISA ladder buys.

How latency goes with the number of threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import pandas as pd

from workbench.analysis.compare import MARGIN, compare_latencies, judge
from workbench.analysis.speedup import speedup_of_runs
from workbench.analysis.statistics import describe_latencies, pick_timed
from workbench.frames import LADDER, SCALING, check


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


#: Latency with several threads is how long the caller waits; with one it then must be, too.
CLOCK = "wall_ns"


def sweep_threads(latencies: pd.DataFrame, experiments: Sequence[str]) -> pd.DataFrame:
    """Wall time of every experiment at every thread count, against the fewest threads.

    Thread counts are measured one after the other within a restart, so each restart gives one
    ratio; the interval is over the restarts.

    Parameters
    ----------
    latencies
        ``schema.LATENCIES``; traced rows are left out.
    experiments
        Which, in the order of the rows.

    Returns
    -------
    DataFrame
        ``schema.SCALING``.
    """
    timed = pick_timed(latencies)
    rows = []
    for name in experiments:
        part = timed[timed["experiment"] == name]
        medians = describe_latencies(part, CLOCK).sort_values("threads")
        fewest = int(medians["threads"].min())
        for entry in medians.itertuples():
            row = {
                "experiment": name,
                "threads": entry.threads,
                "latency_ms": entry.median,
                "latency_low_ms": entry.low,
                "latency_high_ms": entry.high,
                **dict.fromkeys(("speedup", "low", "high", "efficiency"), 1.0),
                "outcome": None,
            }
            if entry.threads != fewest:
                row |= compare_setups(timed, (name, fewest), (name, entry.threads))
                row["efficiency"] = row["speedup"] * fewest / entry.threads
            rows.append(row)
    return check(pd.DataFrame(rows, columns=SCALING.names), SCALING)


def compare_setups(
    latencies: pd.DataFrame, baseline: tuple[str, int], candidate: tuple[str, int]
) -> dict[str, float | str]:
    """The speed-up in wall time between two pairs of experiment and thread count.

    Returns
    -------
    dict
        ``speedup``, ``low``, ``high`` and ``outcome``; without a noise floor.
    """
    sides = [_restarts(latencies, *setup) for setup in (baseline, candidate)]
    shared = sorted(set(sides[0]) & set(sides[1]))
    found = speedup_of_runs(*([side[process] for process in shared] for side in sides))
    value, low, high = (float(number[0]) for number in (found.value, found.low, found.high))
    return {
        "speedup": value,
        "low": low,
        "high": high,
        "outcome": judge(value, low, high, 0.0, MARGIN),
    }


def find_crossovers(latencies: pd.DataFrame, experiments: Sequence[str]) -> list[str]:
    """What changes on the way to more threads, as sentences.

    Which experiments more threads make slower, or do not help, step by step: cores share memory,
    and some of them the unit that computes with SME2. Of each two neighbours: where the slower
    one, with more threads, beats the faster one with the fewest; and where their order turns
    round. That something is faster is said only where its interval shows it.

    Parameters
    ----------
    latencies, experiments
        As for ``sweep_threads``, the lower level first.
    """
    timed = pick_timed(latencies)
    counts = sorted(int(count) for count in timed["threads"].unique())

    def outcome(baseline: tuple[str, int], candidate: tuple[str, int]) -> str:
        return compare_setups(timed, baseline, candidate)["outcome"]

    def faster(baseline: tuple[str, int], candidate: tuple[str, int]) -> bool:
        return outcome(baseline, candidate) == "faster"

    found = []
    for few, more in pairwise(counts):
        outcomes = {name: outcome((name, few), (name, more)) for name in experiments}
        slower = [name for name, told in outcomes.items() if told == "slower"]
        idle = [name for name, told in outcomes.items() if told not in ("faster", "slower")]
        if slower:
            found.append(f"{more} threads are slower than {few} for {', '.join(slower)}")
        if idle:
            who = ", ".join(idle)
            found.append(f"{more} threads were not shown to be faster than {few} for {who}")
    for one, other in pairwise(experiments):
        first = counts[0]
        slow, fast = (one, other) if faster((one, first), (other, first)) else (other, one)
        if not faster((slow, first), (fast, first)):
            continue
        for count in counts[1:]:
            if faster((slow, count), (fast, count)):
                continue
            if faster((fast, count), (slow, count)):
                found.append(f"from {count} threads on, {slow} is faster than {fast}")
                break
        overtaking = (count for count in counts[1:] if faster((fast, first), (slow, count)))
        if (count := next(overtaking, None)) is not None:
            found.append(f"{slow} with {count} threads is faster than {fast} with {first}")
    return found


def _restarts(latencies: pd.DataFrame, experiment: str, threads: int) -> dict[int, np.ndarray]:
    chosen = (latencies["experiment"] == experiment) & (latencies["threads"] == threads)
    return {
        int(process): part[CLOCK].to_numpy() / 1e6
        for process, part in latencies[chosen].groupby("process")
    }
