"""Changes of latency, starts and memory over a series of runs."""

import math
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pandas as pd

from workbench import WorkbenchError
from workbench.api import Frame
from workbench.pages import Speedup

CHANGES = Frame.make(
    "changes",
    ("line", "text", "", "as in the history"),
    ("resource", "text", "", "latency | first output | peak memory | anonymous memory"),
    ("unit", "text", "", "ms or MB"),
    ("run_dir", "text", "", "the first run that has it"),
    ("run", "text", "", "its label, or what it ran"),
    ("started", "text", "", "when that began, UTC"),
    ("runs", "int", "", "runs that have it, until the next change"),
    ("baseline", "float", "", "typical value of the runs since the change before"),
    ("candidate", "float", "", "typical value of the runs that have it"),
    ("ratio", "float", "ratio", "candidate / baseline: above 1, it needs more"),
    *Frame.interval("its", "ratio"),
    ("outcome", "text", "", "faster | slower; of memory, less | more"),
)

#: Penalty of a further change point, in variances times the logarithm of the number of runs. At
#: most 2 % of 400 histories of 20 runs without a change then had one (tests/test_history.py).
PENALTY = 4.0
#: Runs that a change must last: fewer are disturbed runs.
RECURRENCE = 2
#: What is followed: its column of ``HISTORY``, and its unit.
FOLLOWED = {
    "latency": ("latency_ms", "ms"),
    "first output": ("first_output_ms", "ms"),
    "peak memory": ("peak_mb", "MB"),
    "anonymous memory": ("anonymous_mb", "MB"),
}
#: Memory comes in pages: equal values are no proof of less scatter than this.
_LEAST_NOISE = 1e-3
#: Normal scatter / median absolute deviation.
_MAD = 1.4826
#: Variance of the median of many / that of their mean.
_MEDIAN = np.pi / 2


def find_changes(history: pd.DataFrame) -> pd.DataFrame:
    """Where `FOLLOWED` changed for good in each line of ``HISTORY``: ``CHANGES``.

    Emulated runs and those with wrong outputs are skipped. Change points are those of the best
    piecewise constant logarithm of the values, by exact segmentation (ruptures), with pieces of at
    least ``RECURRENCE`` runs: a single slow run is no change. A change is shown if its interval,
    from the scatter between runs, excludes 1 and it exceeds the margin, with false discoveries
    among all lines held to 5 %.
    """
    counted = ~history["emulated"] & (history["problem"] == "")
    rows = [
        row
        for _, line in history[counted].groupby("line", sort=False)
        for resource in FOLLOWED
        for row in _changes_of(line, resource)
    ]
    fields = ("log", "error", "freedom")
    speedup = Speedup(*(np.array([row.pop(name) for row in rows], float) for name in fields))
    outcome = speedup.outcomes
    table = pd.DataFrame(rows, columns=CHANGES.names).astype({"line": "str", "runs": "int64"})
    table = table.assign(ratio=1 / speedup.value, low=1 / speedup.high, high=1 / speedup.low)
    of_memory = pd.Series(outcome, dtype="str").replace({"faster": "less", "slower": "more"})
    table["outcome"] = of_memory.where(table["unit"] == "MB", pd.Series(outcome, dtype="str"))
    changes = table[table["outcome"].isin(["faster", "slower", "less", "more"])]
    return CHANGES.check(changes[CHANGES.names].reset_index(drop=True))


def split_pieces(logs: np.ndarray, noise: float) -> list[int]:
    """The ends of the pieces of the best piecewise constant approximation; the last is the end.

    It approximates the medians of three neighbours, which keep steps and remove single outliers.
    """
    count = len(logs)
    if count < 2 * RECURRENCE or not noise > 0:
        return [count]
    try:  # importing it takes a second
        import ruptures
    except ModuleNotFoundError:
        what, install = "ruptures is not installed", "executorch-workbench[history]"
        raise WorkbenchError(what, install=install) from None
    ends = np.concatenate([logs[2:3], logs, logs[-3:-2]])
    smooth = np.median(np.lib.stride_tricks.sliding_window_view(ends, 3), axis=1)
    search = ruptures.KernelCPD(kernel="linear", min_size=RECURRENCE).fit(smooth[:, None])
    return [int(end) for end in search.predict(pen=PENALTY * noise**2 * np.log(count))]


def estimate_noise(logs: np.ndarray, within: np.ndarray) -> float:
    """The scatter from run to run of logarithms of values, robust against a few jumps.

    ``within`` are standard errors, each from the restarts of one run: the scatter is no smaller.
    """
    finite = within[np.isfinite(within)]
    steps = _MAD * np.median(np.abs(np.diff(logs))) / np.sqrt(2) if len(logs) > 1 else 0.0
    return max(steps, np.median(finite) if finite.size else 0.0, _LEAST_NOISE)


def _changes_of(line: pd.DataFrame, resource: str) -> Iterator[dict[str, object]]:
    column, unit = FOLLOWED[resource]
    line = line.dropna(subset=column).sort_values("started")
    values, within = line[column].to_numpy(float), np.array([])
    logs = np.log(values)
    if resource == "latency":
        from scipy.special import stdtrit

        # Half of a 95 % interval, over Student's quantile for the restarts: the standard error.
        half = line["high_ms"].to_numpy(float) - values
        quantile = stdtrit(np.maximum(line["restarts"].to_numpy(float) - 1, 1), 0.975)
        within = half / quantile / values
    noise = estimate_noise(logs, within)
    bounds = [0, *split_pieces(logs, noise)]
    pieces = [logs[start:end] for start, end in pairwise(bounds)]
    named = line[["line", "run_dir", "run", "started"]].to_dict("records")
    for start, (before, after) in zip(bounds[1:], pairwise(pieces), strict=False):
        levels = float(np.median(before)), float(np.median(after))
        yield {
            **named[start],
            "resource": resource,
            "unit": unit,
            "runs": len(after),
            "baseline": math.exp(levels[0]),
            "candidate": math.exp(levels[1]),
            "log": levels[0] - levels[1],
            "error": noise * np.sqrt(_MEDIAN / len(before) + _MEDIAN / len(after)),
            "freedom": max(len(logs) - len(pieces), 1),
        }
