"""Sweeps over ISA levels and over thread counts: what each step gains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise

import numpy as np
import pandas as pd

from workbench.analysis.compare import MARGIN, compare_latencies, judge
from workbench.analysis.speedup import speedup_of_runs
from workbench.analysis.statistics import describe_latencies, pick_timed
from workbench.frames import LADDER, SCALING, check


def compare_isa_levels(
    latencies: pd.DataFrame,
    levels: Sequence[str],
    *,
    threads: int,
    adds: Mapping[str, str] | None = None,
    control: str | None = None,
    control_of: str | None = None,
) -> pd.DataFrame:
    """The latency of every ISA level, against the level below it and against the lowest.

    ``levels`` are experiments interleaved in one run, the lowest first; ``adds`` has the CPU
    features that each adds to the level below; ``control`` repeats the level ``control_of`` and
    gives the noise floor of every step. ``frames.LADDER``, one row per level; latency is CPU time
    for one thread and wall time for several.
    """
    part = latencies[latencies["threads"] == threads]
    medians = describe_latencies(part).set_index("experiment")

    @cache
    def compare(baseline: str, candidate: str) -> pd.Series:
        return compare_latencies(
            part, baseline, candidate, control=control, control_of=control_of, threads=threads
        ).iloc[0]

    rows = []
    for below, level in pairwise(["", *levels]):
        row = {
            "level": level,
            "adds": (adds or {}).get(level, ""),
            "threads": threads,
            **_latency(medians.loc[level]),
            **dict.fromkeys(("speedup", "low", "high", "floor"), np.nan),
            **dict.fromkeys(("total", "total_low", "total_high"), 1.0),
            "outcome": None,
        }
        if below:
            step, total = compare(below, level), compare(levels[0], level)
            row |= step[["speedup", "low", "high", "outcome", "floor"]].to_dict()
            row |= {"total": total["speedup"]}
            row |= {"total_low": total["low"], "total_high": total["high"]}
        rows.append(row)
    return check(pd.DataFrame(rows)[LADDER.names], LADDER)


def _latency(statistics: pd.Series) -> dict[str, object]:
    names = {"median": "latency_ms", "low": "latency_low_ms", "high": "latency_high_ms"}
    return {name: statistics[column] for column, name in names.items()}


#: With several threads, latency is the time that the caller waits; the same clock for one.
_CLOCK = "wall_ns"

_Setup = tuple[str, int]


def sweep_threads(latencies: pd.DataFrame, experiments: Sequence[str]) -> pd.DataFrame:
    """Wall time of every experiment at every thread count, against the fewest: ``frames.SCALING``.

    Thread counts are measured one after the other within a restart, so each restart gives one
    ratio; the interval is over the restarts.
    """
    timed = pick_timed(latencies)
    restarts = _split_restarts(timed)
    rows = []
    for name in experiments:
        part = timed[timed["experiment"] == name]
        medians = describe_latencies(part, _CLOCK).set_index("threads").sort_index()
        fewest = int(medians.index[0])
        for threads, statistics in medians.iterrows():
            row = {
                "experiment": name,
                "threads": threads,
                **_latency(statistics),
                **dict.fromkeys(("speedup", "low", "high", "efficiency"), 1.0),
                "outcome": None,
            }
            if threads != fewest:
                value, low, high = _compare_setups(restarts, (name, fewest), (name, int(threads)))
                row |= {"speedup": value, "low": low, "high": high}
                row |= {"outcome": judge(value, low, high, 0.0, MARGIN)}
                row["efficiency"] = value * fewest / threads
            rows.append(row)
    return check(pd.DataFrame(rows, columns=SCALING.names), SCALING)


def find_crossovers(latencies: pd.DataFrame, experiments: Sequence[str]) -> list[str]:
    """Sentences on what more threads change; the experiments from the lowest level up.

    For each step to more threads: the experiments that become slower, or do not become faster
    (cores share memory, and some share the SME2 unit). For each two neighbouring experiments:
    whether the slower one with more threads beats the faster one with the fewest, and from which
    thread count on their order reverses. Only differences that the interval shows are stated.
    """
    timed = pick_timed(latencies)
    restarts = _split_restarts(timed)
    first, *larger = counts = sorted(int(count) for count in timed["threads"].unique())

    @cache
    def verdict(baseline: _Setup, candidate: _Setup) -> str:
        return judge(*_compare_setups(restarts, baseline, candidate), 0.0, MARGIN)

    found = []
    for few, more in pairwise(counts):
        verdicts = {name: verdict((name, few), (name, more)) for name in experiments}
        slower = [name for name, told in verdicts.items() if told == "slower"]
        idle = [name for name, told in verdicts.items() if told not in ("faster", "slower")]
        if slower:
            found.append(f"{more} threads are slower than {few} for {', '.join(slower)}")
        if idle:
            names = ", ".join(idle)
            found.append(f"{more} threads were not shown to be faster than {few} for {names}")
    for one, other in pairwise(experiments):
        upwards = verdict((one, first), (other, first)) == "faster"
        slow, fast = (one, other) if upwards else (other, one)
        if verdict((slow, first), (fast, first)) != "faster":
            continue
        for count in larger:
            if verdict((slow, count), (fast, count)) == "faster":
                continue
            if verdict((fast, count), (slow, count)) == "faster":
                found.append(f"from {count} threads on, {slow} is faster than {fast}")
                break
        for count in larger:
            if verdict((fast, first), (slow, count)) == "faster":
                found.append(f"{slow} with {count} threads is faster than {fast} with {first}")
                break
    return found


def _split_restarts(timed: pd.DataFrame) -> dict[_Setup, dict[int, np.ndarray]]:
    """Times in ms by experiment and thread count, then by process."""
    found: dict[_Setup, dict[int, np.ndarray]] = {}
    for (name, threads, process), times in timed.groupby(["experiment", "threads", "process"]):
        setup = (str(name), int(threads))
        found.setdefault(setup, {})[int(process)] = times[_CLOCK].to_numpy() / 1e6
    return found


def _compare_setups(
    restarts: Mapping[_Setup, Mapping[int, np.ndarray]], baseline: _Setup, candidate: _Setup
) -> tuple[float, float, float]:
    """The speed-up in wall time and its interval, over the restarts that both setups have."""
    before, after = restarts[baseline], restarts[candidate]
    shared = sorted(before.keys() & after.keys())
    found = speedup_of_runs([before[process] for process in shared],
                            [after[process] for process in shared])  # fmt: skip
    return float(found.value[0]), float(found.low[0]), float(found.high[0])
