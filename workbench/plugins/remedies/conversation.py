"""What calls in a row take of a model that was split in two."""

import math

import pandas as pd

from workbench import Measurement, Run
from workbench.api import Frame

#: Numbers of calls in a row that are told.
_CALLS = (1, 2, 10, 100)
#: The parts of a model that was split: what is computed in the first call, and in each.
_PARTS = ("once", "each")
CONVERSATION = Frame.make(
    "conversation",
    "threads",
    ("calls", "int", "", "calls in a row; the first one also computes what stays"),
    ("ms", "float", "ms", "latency of all of them"),
    *Frame.interval("its", "ms", suffix="_ms"),
    ("each_ms", "float", "ms", "latency of each further call"),
)


def tabulate_conversation(run: Run) -> pd.DataFrame | None:
    """What calls in a row take of a model that was split in two: `CONVERSATION`.

    The parts are phases or programs of one run. Their restarts are other processes: the intervals
    of both add up by their squares.
    """
    latencies = {
        (part, m.threads): m.statistics[["latency", "low", "high"]].iloc[0]
        for m in reversed(run.measurements)  # of several experiments, the first counts
        if not m.emulated and (part := _find_part(m))
    }
    threads = sorted({count for _, count in latencies})
    rows = []
    for count in threads:
        once, each = (latencies.get((part, count)) for part in _PARTS)
        if once is None or each is None:
            continue
        for calls in _CALLS:
            ms = once["latency"] + calls * each["latency"]
            widths = once["high"] - once["low"], calls * (each["high"] - each["low"])
            half = math.hypot(*widths) / 2
            rows.append((count, calls, ms, ms - half, ms + half, each["latency"]))
    table = pd.DataFrame(rows, columns=CONVERSATION.names)
    return CONVERSATION.check(table) if rows else None


def _find_part(m: Measurement) -> str:
    """Which part of a split model a measurement is of; empty of another one."""
    name = m.phase.method or (m.export.model.rpartition("_")[2] if m.export else "")
    return name if name in _PARTS and not m.control else ""
