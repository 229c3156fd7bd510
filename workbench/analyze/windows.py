"""When each operator of a traced run was at work, for joining what else was noted with its time."""

from __future__ import annotations

import numpy as np
import pandas as pd

from workbench.analyze.ledger import build_ledger

#: XNNPACK rounds each operator's time down to a microsecond, and so loses half of one on average.
_LOST_NS = 500.0
#: Standard deviation of what one rounding loses: that of a uniform distribution over 1000 ns.
_SPREAD_NS = 1000 / np.sqrt(12)


def find_operators(events: pd.DataFrame, time_ns: np.ndarray) -> pd.DataFrame:
    """Which operator was at work at certain times.

    The innermost span that holds a time has it. XNNPACK logs durations only, which the runtime lays
    end to end from the start of the inference; since operators follow one another at once, a start
    is too early by the sum of what rounding took from those before. Each one is put later by the
    mean of that; within a standard deviation of a boundary, which side is meant is not ``sure``.

    Parameters
    ----------
    events
        ``schema.EVENTS`` of whole runs.
    time_ns
        Times on the clock of the events, in any order.

    Returns
    -------
    DataFrame
        ``key``, ``operator`` and ``kind`` as in the ledger, and ``sure``; one row for each time,
        with NaN outside any run.
    """
    ledger = build_ledger(events)
    events = events[events["run"] >= 0].reset_index(drop=True)
    start, end, margin = _spans(events)
    kind = events["kind"].to_numpy(object)
    row = np.full(len(time_ns), -1)
    sure = np.ones(len(time_ns), bool)
    calls = np.isin(kind, ("delegate_call", "operator_call"))
    layers = (kind == "method", calls, ~calls & (kind != "method"))
    for spans in map(np.flatnonzero, layers):
        spans = spans[np.argsort(start[spans], kind="stable")]
        at = np.searchsorted(start[spans], time_ns, side="right") - 1
        held = at >= 0
        held[held] = time_ns[held] < end[spans[at[held]]]
        row[held] = spans[at[held]]
        near = _is_near(time_ns, start, end, margin, spans, at)
        sure[near] = False
    found = ledger[["key", "operator", "kind"]].astype(object).reindex(row).reset_index(drop=True)
    return found.assign(sure=sure & (row >= 0))


def _spans(events: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Start and end of every event, and how far from its end it is unsure where that lies."""
    start = events["start_ns"].to_numpy(float)
    duration = events["duration_ns"].to_numpy(float)
    margin = np.zeros(len(events))
    inner = events[events["kind"] == "delegate_operator"]
    for _, rows in inner.groupby("parent", sort=False).indices.items():
        rows = inner.index.to_numpy()[rows]
        if not _is_laid_out(start[rows], duration[rows]):
            continue
        place = np.arange(len(rows))
        start[rows] += _LOST_NS * place
        duration[rows] += _LOST_NS
        margin[rows] = _SPREAD_NS * np.sqrt(place + 1)
    return start, start + duration, margin


def _is_laid_out(start: np.ndarray, duration: np.ndarray) -> bool:
    """Whether spans lie end to end in whole microseconds: durations made into times."""
    return bool((start[1:] == (start + duration)[:-1]).all() and (duration % 1000 == 0).all())


def _is_near(
    time_ns: np.ndarray,
    start: np.ndarray,
    end: np.ndarray,
    margin: np.ndarray,
    spans: np.ndarray,
    at: np.ndarray,
) -> np.ndarray:
    """Whether a time is too close to the end of its span, or of the one before, to tell."""
    near = np.zeros(len(time_ns), bool)
    for shift in (0, -1):
        place = at + shift
        known = place >= 0
        span = spans[place[known]]
        near[known] |= np.abs(time_ns[known] - end[span]) < margin[span]
    return near
