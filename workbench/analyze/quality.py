"""How good a measurement is: a grade from A to D, with the reasons."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from workbench.analyze.latencies import clock_of, pick_timed
from workbench.records import Run, Session
from workbench.schema import QUALITY, check

GRADES = "ABCD"


@dataclass(frozen=True)
class Criterion:
    """Something that makes a measurement better or worse.

    ``limits`` are the largest values for grades A, B and C; ``unit`` is ``%`` for fractions;
    ``source`` says where the limits come from.
    """

    name: str
    limits: tuple[float, float, float]
    unit: str
    source: str


CRITERIA = {
    c.name: c
    for c in (
        Criterion(
            "half width of the interval", (0.01, 0.02, 0.05), "%",
            "the margin of equivalence is 2 %",
        ),
        Criterion(
            "A/A control", (0.02, 0.05, 0.10), "%", "the margin of equivalence is 2 %"
        ),
        Criterion(
            "restarts missing to five", (0, 2, 3), "",
            "Student's t / sqrt(n): 1.2 for five, 2.5 for three, 9.0 for two",
        ),
        Criterion(
            "drift within a restart", (0.02, 0.05, 0.10), "%",
            "turns cancel linear drift; a choice, without a benchmark of its own",
        ),
        Criterion(
            "outliers", (0.05, 0.10, 0.25), "%",
            "the midmean leaves out the outer quarters: 25 % is its breakdown point",
        ),
        Criterion(
            "time taken by other programs", (0.10, 0.50, 0.90), "%",
            "tests/benchmarks/null.py: no false verdict in turns and CPU time while others took "
            "more than half",
        ),
        Criterion(
            "tracer overhead", (0.02, 0.05, 0.10), "%",
            "it moves shares, not latencies; 0 to 3 % was seen",
        ),
        Criterion(
            "spread of the clock frequency", (0.05, 0.10, 0.20), "%",
            "turns cancel what all experiments share",
        ),
        Criterion("steps measured twice", (0, 3, 10), "", "the plan's retries"),
        Criterion("throttling events", (0, 0, 10), "", "the kernel's count, or Android's status"),
        Criterion(
            "latency only from traces", (0, 1, 1), "", "runners of one's own tell no other times"
        ),
        Criterion("emulated", (0, 0, 0), "", "an emulator's times say nothing of speed"),
    )
}  # fmt: skip


def grade_run(
    run: Run, latencies: pd.DataFrame, comparisons: pd.DataFrame, tracer_overhead: float = math.nan
) -> pd.DataFrame:
    """Every criterion that this run can be judged by, the worst first.

    Parameters
    ----------
    run
        Its sessions and readings.
    latencies
        ``schema.LATENCIES``.
    comparisons
        ``schema.COMPARISON`` of the E2E latencies.
    tracer_overhead
        The largest of the run, as a fraction.

    Returns
    -------
    DataFrame
        ``schema.QUALITY``; the first row's grade is that of the run.
    """
    timed = pick_timed(latencies)
    widths = np.log(comparisons["high"] / comparisons["low"]) / 2
    values = {
        "half width of the interval": float(widths.max(skipna=False)) if len(widths) else math.nan,
        "A/A control": _largest(comparisons["floor"]),
        "restarts missing to five": max(0, 5 - timed["process"].nunique()),
        "drift within a restart": measure_drift(timed),
        "outliers": count_outliers(timed),
        "time taken by other programs": stolen(run.sessions),
        "tracer overhead": tracer_overhead,
        "latency only from traces": int(bool(timed["traced"].all())),
        "emulated": int(run.emulated),
        "steps measured twice": len(
            {(s.threads, s.process, s.traced) for s in run.sessions if s.attempts > 1}
        ),
        **dict(_of_readings(run)),
    }
    rows = [_row(CRITERIA[name], value) for name, value in values.items() if not math.isnan(value)]
    if math.isnan(values["half width of the interval"]):
        rows.append(_row(CRITERIA["half width of the interval"], math.inf))
    table = pd.DataFrame(rows, columns=QUALITY.names)
    table = table.sort_values("grade", ascending=False, kind="stable").reset_index(drop=True)
    return check(table, QUALITY)


def summarize_quality(quality: pd.DataFrame) -> str:
    """The grade in one line, with what keeps it from being better.

    Examples
    --------
    >>> summarize_quality(pd.DataFrame([["outliers", "7.0 %", "B", "5 %", "why"]],
    ...     columns=["criterion", "value", "grade", "limit", "source"]))
    'measurement quality B: outliers 7.0 % (5 % for an A)'
    """
    grade = quality["grade"].iloc[0]
    if grade == "A":
        return "measurement quality A"
    worst = quality[quality["grade"] == grade]
    why = [f"{row.criterion} {row.value} ({row.limit} for an A)" for row in worst.itertuples()]
    return f"measurement quality {grade}: {', '.join(why)}"


def measure_drift(timed: pd.DataFrame) -> float:
    """How far latency wandered from the first to the last third of a restart's rounds.

    The median over restarts and experiments of the distance of the two thirds' medians, as a
    fraction; NaN where there are fewer than three rounds.
    """
    drifts = []
    for _, part in timed.groupby(["experiment", "threads", "process"]):
        rounds = part.groupby("round")[clock_of(part)].median()
        third = len(rounds) // 3
        if third:
            first, last = rounds.iloc[:third].median(), rounds.iloc[-third:].median()
            drifts.append(abs(math.log(last / first)) if first > 0 and last > 0 else math.nan)
    return float(np.median(drifts)) if drifts else math.nan


def count_outliers(timed: pd.DataFrame) -> float:
    """The part of inferences beyond 1.5 interquartile ranges from the quartiles of their restart.

    J. W. Tukey's rule; of normal values it finds 0.7 %.
    """
    beyond = total = 0
    for _, part in timed.groupby(["experiment", "threads", "process"]):
        values = part[clock_of(part)].to_numpy()
        low, high = np.percentile(values, [25, 75])
        reach = 1.5 * (high - low)
        beyond += np.count_nonzero((values < low - reach) | (values > high + reach))
        total += values.size
    return beyond / total if total else math.nan


def stolen(sessions: Sequence[Session]) -> float:
    """The part of the wall time of untraced runs with one thread in which others had the core."""
    batches = [
        batch
        for session in sessions
        if session.complete and not session.traced and session.threads == 1
        for batch in session.batches
    ]
    wall, cpu = (sum(sum(getattr(b, clock)) for b in batches) for clock in ("wall_ns", "cpu_ns"))
    return max(0.0, 1 - cpu / wall) if wall else math.nan


def _of_readings(run: Run) -> Iterator[tuple[str, float]]:
    clocks = [reading.mhz for reading in run.readings if reading.mhz]
    if len(clocks) > 1:
        yield "spread of the clock frequency", max(clocks) / min(clocks) - 1
    counts = [reading.throttled for reading in run.readings if reading.throttled is not None]
    statuses = [r.thermal_status for r in run.readings if r.thermal_status is not None]
    if counts or statuses:
        events = max(counts, default=0) - min(counts, default=0)
        yield "throttling events", events + sum(status > 0 for status in statuses)


def _largest(values: pd.Series) -> float:
    finite = values[np.isfinite(values) & (values > 0)]
    return float(finite.max()) if len(finite) else math.nan


def _row(criterion: Criterion, value: float) -> tuple[str, str, str, str, str]:
    place = sum(value > limit for limit in criterion.limits)
    texts = (_text(criterion, number) for number in (value, criterion.limits[0]))
    shown, limit = texts
    return criterion.name, shown, GRADES[place], limit, criterion.source


def _text(criterion: Criterion, value: float) -> str:
    if math.isinf(value):
        return "unknown"
    return f"{100 * value:.1f} %" if criterion.unit == "%" else f"{value:g}"
