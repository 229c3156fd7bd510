"""Compare E2E latencies: of experiments that took turns, and of runs of their own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from workbench.analyze.latencies import clock_of, pick_timed
from workbench.analyze.outcome import MARGIN, tabulate_outcomes
from workbench.analyze.speedup import Speedup, speedup_apart, speedup_of_pairs
from workbench.analyze.statistics import midmean
from workbench.errors import ComparisonError, unknown_name
from workbench.records import Batch, Run


def compare_latencies(
    latencies: pd.DataFrame,
    baseline: str,
    candidate: str,
    *,
    control: str | None = None,
    control_of: str | None = None,
    threads: int | None = None,
    clock: str | None = None,
    margin: float = MARGIN,
) -> pd.DataFrame:
    """Whether the candidate's E2E latency differs from the baseline's, from interleaved rounds.

    Within a round each experiment is measured there and back again (A B C C B A), so the mean of
    its two batches is free of linear drift; a batch counts with the midmean of its inferences.
    The speed-up and its interval come from ``speedup_of_pairs``. The noise floor is what the
    control, a repetition of the baseline or of ``control_of``, differed from that at most: the
    end of its interval that lies farther from 1.

    Parameters
    ----------
    latencies
        ``schema.LATENCIES``; traced rows count only where there are no others.
    baseline, candidate, control
        Names of experiments. None: no control, hence no noise floor.
    control_of
        Which experiment the control repeats; None: the baseline.
    threads
        Which thread count; None if the frame holds only one.
    clock
        ``cpu_ns`` or ``wall_ns``; None takes CPU time for one thread and wall time for several.
    margin
        Relative difference up to which latencies count as equal.

    Returns
    -------
    DataFrame
        One row of ``schema.COMPARISON`` with, besides, ``restarts`` and ``rounds``. The times are
        means over the restarts of the midmean over their rounds.

    Raises
    ------
    UsageError
        There is no such experiment or thread count.
    ComparisonError
        No round holds both experiments, or the clock did not tick.

    See Also
    --------
    judge : what the outcomes mean.
    """
    part = _one_thread_count(pick_timed(latencies), threads)
    clock = clock or clock_of(part)
    floor = np.zeros(1)
    if control is not None:
        alike = _paired_rounds(part, control_of or baseline, control, clock)
        floor = floor_of(speedup_of_pairs(*alike))
    before, after = _paired_rounds(part, baseline, candidate, clock)
    times = typical_times(before), typical_times(after)
    speedup = speedup_of_pairs(before, after)
    table = tabulate_outcomes("e2e", [candidate], times, speedup, floor, margin)
    return table.assign(restarts=len(before), rounds=sum(map(len, before)))


def compare_apart(
    baseline: pd.DataFrame,
    candidate: pd.DataFrame,
    *,
    floor: float = 0.0,
    margin: float = MARGIN,
    clock: str | None = None,
) -> pd.DataFrame:
    """Whether two latencies of different runs differ, by Welch's t over process restarts.

    Each restart counts with the logarithm of the midmean of its latencies. What changed on the
    machine between the two runs is in the speed-up and not in its interval: interleave them in
    one run where that is possible.

    Parameters
    ----------
    baseline, candidate
        ``schema.LATENCIES``, each of one experiment and thread count.
    floor
        The noise floor as a ratio - 1, from the controls of the runs.
    margin
        Relative difference up to which latencies count as equal.
    clock
        As for ``compare_latencies``; the same for both sides.

    Returns
    -------
    DataFrame
        One row of ``schema.COMPARISON``. The interval is NaN, and the outcome inconclusive, where
        a side has only one restart.

    Raises
    ------
    ComparisonError
        A side has no latency.
    """
    timed = [pick_timed(side) for side in (baseline, candidate)]
    if any(side.empty for side in timed):
        raise ComparisonError("there is no latency")
    # One clock for both: wall time as soon as either side has several threads.
    clock = clock or max(clock_of(side) for side in timed)
    sides = [split_restarts(side, clock) for side in timed]
    times = typical_times(sides[0]), typical_times(sides[1])
    return tabulate_outcomes("e2e", ["latency"], times, speedup_apart(*sides), floor, margin)


def split_restarts(timed: pd.DataFrame, clock: str) -> list[np.ndarray]:
    """The milliseconds of every process restart."""
    return [times.to_numpy() / 1e6 for _, times in timed.groupby("process")[clock]]


def typical_restarts(latencies: pd.DataFrame, clock: str | None = None) -> list[float]:
    """The midmean of the latencies of every process restart, in milliseconds.

    Parameters
    ----------
    latencies
        ``schema.LATENCIES`` of one experiment and thread count.
    clock
        As for ``compare_latencies``.
    """
    timed = pick_timed(latencies)
    return [float(midmean(times)) for times in split_restarts(timed, clock or clock_of(timed))]


def list_restarts(run: Run) -> dict[tuple[str, int], tuple[str, list[float]]]:
    """For every experiment and thread count of a run its clock, and ``typical_restarts``.

    The same as by way of ``tabulate_latencies``, without a frame: for who reads many runs.
    """
    sessions = [s for s in run.sessions if s.complete and s.batches]
    timed = [s for s in sessions if not s.traced] or sessions
    found: dict[tuple[str, int], dict[int, list[Batch]]] = {}
    for s in timed:
        found.setdefault((s.experiment, s.threads), {}).setdefault(s.process, []).extend(s.batches)
    return {key: _typical(key[1], restarts) for key, restarts in found.items()}


def _typical(threads: int, restarts: dict[int, list[Batch]]) -> tuple[str, list[float]]:
    by_cpu = threads == 1 and any(any(b.cpu_ns) for batches in restarts.values() for b in batches)
    clock = "cpu_ns" if by_cpu else "wall_ns"
    laps = [[ns for b in restarts[p] for ns in getattr(b, clock)] for p in sorted(restarts)]
    return clock, [float(midmean(np.array(ns) / 1e6)) for ns in laps if ns]


def compare_restarts(
    names: Sequence[str],
    baseline: Sequence[Sequence[float]],
    candidate: Sequence[Sequence[float]],
    *,
    floor: float = 0.0,
    margin: float = MARGIN,
) -> pd.DataFrame:
    """As ``compare_apart``, for many measurements at once, from ``typical_restarts`` alone.

    Parameters
    ----------
    names
        What was measured. All are judged as one family.
    baseline, candidate
        For each name the typical latencies of its restarts, in milliseconds.
    floor, margin
        As for ``compare_apart``.

    Returns
    -------
    DataFrame
        ``schema.COMPARISON``.
    """
    found = [
        speedup_apart(*([np.array([ms]) for ms in side] for side in sides))
        for sides in zip(baseline, candidate, strict=True)
    ]
    speedup = Speedup(
        *(np.concatenate([getattr(s, part) for s in found]) for part in ("log", "error", "freedom"))
    )
    times = tuple(np.array([np.mean(ms) for ms in side]) for side in (baseline, candidate))
    return tabulate_outcomes("e2e", names, times, speedup, floor, margin)


def floor_of(control: Speedup) -> np.ndarray:
    """The larger end of the control's interval as a ratio - 1; infinite where it has none."""
    ends = np.array([np.abs(np.log(control.low)), np.abs(np.log(control.high))])
    return np.expm1(np.nan_to_num(ends.max(axis=0), nan=np.inf))


def typical_times(restarts: list[np.ndarray]) -> np.ndarray:
    """The typical time of every quantity: midmean within, mean over the restarts."""
    return np.mean([np.atleast_1d(midmean(times)) for times in restarts], axis=0)


def _one_thread_count(latencies: pd.DataFrame, threads: int | None) -> pd.DataFrame:
    found = sorted(int(count) for count in latencies["threads"].unique())
    if threads is None:
        if not found:
            raise ComparisonError("no untraced latencies", hint="measure with tracing off too")
        if len(found) > 1:
            raise ComparisonError(
                f"latencies of several thread counts: {found}", hint="say which with threads="
            )
        return latencies
    if threads not in found:
        raise unknown_name("thread count", str(threads), map(str, found))
    return latencies[latencies["threads"] == threads]


def _paired_rounds(
    latencies: pd.DataFrame, baseline: str, candidate: str, clock: str
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Milliseconds of the rounds that hold both experiments, one array per restart."""
    before, after = (_round_times(latencies, name, clock) for name in (baseline, candidate))
    shared = before.index.intersection(after.index)
    if shared.empty:
        raise ComparisonError(
            f"no round holds both {baseline!r} and {candidate!r}",
            hint="measure them interleaved, in one run",
        )
    return tuple(
        [times.to_numpy() for _, times in side.loc[shared].groupby(level="process")]
        for side in (before, after)
    )


def _round_times(latencies: pd.DataFrame, experiment: str, clock: str) -> pd.Series:
    """Milliseconds of the experiment in every complete round, by ``(process, round)``."""
    part = latencies[latencies["experiment"] == experiment]
    if part.empty:
        raise unknown_name("experiment", experiment, latencies["experiment"].unique())
    batches = part.groupby(["process", "round", "batch"])[clock].agg(
        lambda times: midmean(times.to_numpy()) / 1e6
    )
    if not batches.gt(0).all():
        raise ComparisonError(
            f"the clock {clock} did not tick in some batches of {experiment!r}",
            hint="compare wall time (clock='wall_ns')",
        )
    rounds = batches.groupby(level=["process", "round"]).agg(["mean", "size"])
    return rounds.loc[rounds["size"] == rounds["size"].max(), "mean"]
