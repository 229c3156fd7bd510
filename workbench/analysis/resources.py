"""What a program needs besides time: memory, and the time until its first output."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from workbench import frames
from workbench.analysis.speedup import MARGIN, speedup_of_restarts
from workbench.analysis.statistics import half_width
from workbench.records.exports import Export
from workbench.records.runs import Start

MB = 1e6


def list_start_times(starts: Iterable[Start], clock: str = "ns") -> pd.Series:
    """The time to the first output in ms of each start, by number."""
    times = {s.number: sum(getattr(e, clock) for e in s.until_output) for s in starts}
    return pd.Series(times, dtype=float) / 1e6


def in_mode(starts: Iterable[Start], mode: str) -> list[Start]:
    """The starts of a mode: ``time``, ``cold`` or ``memory``."""
    return [start for start in starts if start.mode == mode]


def measure_resources(starts: Sequence[Start]) -> dict[str, tuple[str, pd.Series]]:
    """By resource, its unit and its value in every process, by number."""
    warm, cold = (in_mode(starts, mode) for mode in ("time", "cold"))
    sampled = [start for start in warm if start.memory.peak]
    timed = [s for s in warm if min((stage.cpu_ns for stage in s.stages), default=-1) >= 0]
    numbers = [start.number for start in sampled]
    outputs = [list_start_times(mode) for mode in (warm, cold)]
    if len(outputs[0]) and outputs[1].mean() < outputs[0].mean():
        outputs[1] = outputs[1][:0]
    resources = {
        "first output": ("ms", outputs[0]),
        "CPU time of a start": ("ms", list_start_times(timed, "cpu_ns")),
        "cold first output": ("ms", outputs[1]),
        "peak memory": ("MB", pd.Series([s.memory.peak / MB for s in sampled], numbers)),
        "anonymous memory": ("MB", pd.Series([s.memory.anonymous / MB for s in sampled], numbers)),
        "PSS": ("MB", pd.Series([s.memory.pss / MB for s in sampled], numbers)),
    }
    return {name: (unit, values) for name, (unit, values) in resources.items() if len(values)}


def tabulate_resources(
    latency: pd.Series, starts: Sequence[Start], export: Export | None
) -> pd.DataFrame:
    """Latency, first output, memory and size of one measurement: ``frames.RESOURCES``.

    Without the columns that name the measurement.
    """
    rows = [("latency", "ms", *latency[["latency", "low", "high"]])]
    for resource, (unit, values) in measure_resources(starts).items():
        mean, half = values.mean(), float(half_width(values.to_numpy()))
        half = math.nan if half > mean else half  # so few starts that scatter so show no interval
        rows.append((resource, unit, mean, mean - half, mean + half))
    if export:
        rows.append(("size", "MB", *[export.size_bytes / MB] * 3))
    return pd.DataFrame(rows, columns=frames.RESOURCES.names[2:])


#: Columns of what a measurement needs besides time, as one row.
SUMMARY = ("first_output_ms", "peak_mb", "anonymous_mb", "size_mb")


def outline_resources(starts: Sequence[Start], export: Export | None) -> dict[str, float]:
    """The first output, the memory and the size as one row, `SUMMARY`; NaN where unknown."""
    warm = in_mode(starts, "time")
    held = [start.memory for start in warm if start.memory.peak]
    columns = (
        list_start_times(warm).tolist(),
        [memory.peak / MB for memory in held],
        [memory.anonymous / MB for memory in held],
        [export.size_bytes / MB] if export else [],
    )
    means = (sum(values) / len(values) if values else math.nan for values in columns)
    return dict(zip(SUMMARY, means, strict=True))


def compare_resources(
    baseline: Sequence[Start],
    candidate: Sequence[Start],
    latency: pd.DataFrame | None,
    sizes: Sequence[int],
    *,
    separate: bool = False,
) -> pd.DataFrame:
    """Latency, sizes of two files, and what processes need: ``frames.RESOURCE_CHANGES``.

    Processes of equal number took turns, unless the runs were ``separate``; intervals are those of
    `speedup_of_restarts`.
    """
    rows: list[tuple[Any, ...]] = []
    if latency is not None:
        row = latency.iloc[0]
        ends = (1 / row[["speedup", "high", "low"]].astype(float)).tolist()
        outcome = {"faster": "less", "slower": "more"}.get(row["outcome"], row["outcome"])
        rows.append(("latency", "ms", row["baseline_ms"], row["candidate_ms"], *ends, outcome))
    if len(sizes) == 2:
        before, after = (size / MB for size in sizes)
        ratio = after / before
        rows.append(("size", "MB", before, after, *[ratio] * 3, judge_ratio(ratio, ratio)))
    earlier, later = measure_resources(baseline), measure_resources(candidate)
    for resource in (name for name in earlier if name in later):
        (unit, ours), (_, theirs) = earlier[resource], later[resource]
        if not separate:
            ours, theirs = ours.align(theirs, join="inner")
        if len(ours):
            speedup = speedup_of_restarts(theirs, ours, separate=separate)
            low, ratio, high = (float(end[0]) for end in (speedup.low, speedup.value, speedup.high))
            means = ours.mean(), theirs.mean()
            rows.append((resource, unit, *means, ratio, low, high, judge_ratio(low, high)))
    table = pd.DataFrame(rows, columns=frames.RESOURCE_CHANGES.names)
    return frames.RESOURCE_CHANGES.check(table)


def judge_ratio(low: float, high: float) -> str:
    """The outcome of a ratio with this interval: less, more, unchanged or inconclusive."""
    if low > 1 + MARGIN or high < 1 - MARGIN:
        return "more" if low > 1 else "less"
    return "unchanged" if low >= 1 - MARGIN and high <= 1 + MARGIN else "inconclusive"
