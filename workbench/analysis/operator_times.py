"""The times of a measurement's operators: as traced, scaled to its latency, and undisturbed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from workbench import frames
from workbench.analysis import ledger, operators, statistics
from workbench.records.runs import Session

if TYPE_CHECKING:
    from workbench.analysis.measurement import Measurement

#: Events of traces that are made a ledger together: one for each restart would take longer.
_MANY_EVENTS = 200_000
#: Nanoseconds beyond which wall less CPU time of an inference shows another program: in the samples
#: with one thread, it is below 3 us without a context switch, and above 4 us with one.
SWITCH_NS = 3000
#: Passes over the inferences; further ones change nothing.
PASSES = 3


class Traced(NamedTuple):
    """Traced processes: their ledger, and what is known of each inference.

    ``lost`` has, by row, the nanoseconds in which other programs had the core during its inference,
    and how often they took it. ``closed`` is whether its rows add up to ``Method::execute``;
    ``inferences`` has the times of those after the warm-up, by ``frames.SOURCE``; ``tracing_ns`` is
    what tracing added to those that the ledger has.
    """

    rows: pd.DataFrame
    lost: np.ndarray
    closed: np.ndarray
    inferences: pd.DataFrame
    tracing_ns: np.ndarray


@dataclass(frozen=True, eq=False)
class Times:
    """The times of a measurement's operators, each made of the one before when it is asked for.

    ``traced`` are the ledger's without what other programs took; ``scaled`` the same, as parts of
    the latency; ``runs`` these by inference and operator; ``undisturbed`` the fastest by restart.
    """

    of: Measurement

    @cached_property
    def processes(self) -> list[Traced]:
        """The traced processes, several of short traces together."""
        sessions = self.of.find_traced()
        parts, chosen, traces = list[Traced](), list[Session](), list[pd.DataFrame]()
        for session in sessions:
            chosen.append(session)
            traces.append(self.of.run.read_trace(session))
            if sum(map(len, traces)) >= _MANY_EVENTS or session is sessions[-1]:
                parts.append(read_processes(chosen, traces, self.of.run.path))
                chosen, traces = [], []
        return parts

    @property
    def closed(self) -> np.ndarray:
        """For every traced run, whether its ledger rows sum to ``Method::execute``."""
        return np.concatenate([each.closed for each in self.processes])

    @property
    def inferences(self) -> pd.DataFrame:
        """The nanoseconds of every traced inference after the warm-up, by ``frames.SOURCE``."""
        return pd.concat([each.inferences for each in self.processes], ignore_index=True)

    @cached_property
    def tracing_ms(self) -> float:
        """What tracing added to an inference, which is in no other time; 0 if unknown."""
        return float(np.concatenate([each.tracing_ns for each in self.processes]).mean() / 1e6)

    @property
    def is_timed(self) -> bool:
        """Whether the runner told the times of inferences, besides the traces."""
        return any(session.batches for session in self.of.sessions)

    @cached_property
    def traced(self) -> pd.DataFrame:
        """The ledger by the clock of the latency, for ratios of two sides; without layers."""
        rows = pd.concat([each.rows for each in self.processes], ignore_index=True)
        lost_ns, switches = np.concatenate([each.lost for each in self.processes]).T
        if (lost_ns > SWITCH_NS).any():  # on an idle machine, hardly ever
            inference = rows.groupby(["process", "run"], sort=False).ngroup().to_numpy()
            operator = pd.factorize(rows["key"])[0]
            times = rows["duration_ns"].to_numpy()
            rows["duration_ns"] = subtract_others(times, operator, inference, lost_ns, switches)
        return operators.add_categories(rows, self.of.run.scheme)

    @cached_property
    def scaled(self) -> pd.DataFrame:
        """The ledger scaled so that the inferences' mean is the latency; without layers."""
        rows, latency_ms = self.traced, self.of.latency_ms
        count = sum(len(each.tracing_ns) for each in self.processes)
        traced_ms = float(rows["duration_ns"].sum()) / 1e6 / max(count, 1)
        scale = latency_ms / traced_ms if traced_ms > 0 and latency_ms > 0 else 1.0
        return rows.assign(duration_ns=rows["duration_ns"] * scale)

    @cached_property
    def runs(self) -> pd.DataFrame:
        """Time in ms by inference and operator."""
        return operators.total_runs(self.scaled, "key")

    @cached_property
    def undisturbed(self) -> pd.DataFrame:
        """Time in ms by restart and operator without interference; adds up to the latency.

        By inference if the runner told no other times: then it is the time of the tables, too.
        """
        fastest = statistics.undisturbed_times(self.runs) if self.is_timed else self.runs
        total = float(fastest.sum(axis=1).mean())
        return fastest * (self.of.latency_ms / total if total > 0 else 1.0)


def subtract_others(
    times: np.ndarray,
    operator: np.ndarray,
    inference: np.ndarray,
    lost_ns: np.ndarray,
    switches: np.ndarray,
) -> np.ndarray:
    """The operators' times without what other programs took, which a trace's clock counts.

    How long they had the core during an inference is known, its wall time less its CPU time, and so
    is how often; not during which operators. Most likely are those that took longest beyond what
    they usually take: the first quartile of all inferences, or, of operators that are hit in most
    of them, the mean in proportion. What these do not explain all have in proportion to their
    times. Each pass knows better than the one before what an operator usually takes.

    Parameters
    ----------
    times : array, ns, a row for each operator of each inference
    operator, inference : arrays of its length: numbers from 0 on
    lost_ns, switches : arrays of its length: of the row's inference
    """
    rows = np.flatnonzero(lost_ns > SWITCH_NS)
    if not len(rows):
        return times
    place, wall = inference[rows], np.bincount(inference, times)
    share = times / wall[inference]
    # What an operator takes in all, over the inferences, is known well where it is often hit.
    even = pd.Series(times * (1 - lost_ns / wall[inference])).groupby(operator).mean().to_numpy()
    hits = pd.Series(switches * share).groupby(operator).mean().to_numpy()
    counted = times
    for _ in range(PASSES):
        quartile = pd.Series(counted).groupby(operator).quantile(0.25).to_numpy()
        usual = np.where(hits > 1, even, quartile)[operator]
        excess = (times - usual).clip(0)
        taken = _share_out(rows, excess, inference, lost_ns, switches)
        unexplained = lost_ns[rows] - np.bincount(place, taken[rows])[place]
        taken[rows] += unexplained * share[rows]
        counted = times - np.minimum(taken, times)
    return counted


def _share_out(
    rows: np.ndarray,
    excess: np.ndarray,
    inference: np.ndarray,
    lost_ns: np.ndarray,
    switches: np.ndarray,
) -> np.ndarray:
    """What each row gets of its inference's lost time: up to its excess, the largest first."""
    order = rows[np.lexsort((-excess[rows], inference[rows]))]
    start = np.flatnonzero(np.diff(inference[order], prepend=-1))
    length = np.diff(start, append=len(order))
    rank = np.arange(len(order)) - np.repeat(start, length)
    open_ns = np.where(rank < switches[order], excess[order], 0.0)
    before = np.cumsum(open_ns) - open_ns
    before -= np.repeat(before[start], length)
    taken = np.zeros(len(excess))
    taken[order] = np.clip(lost_ns[order] - before, 0, open_ns)
    return taken


def read_processes(
    sessions: Sequence[Session], traces: Sequence[pd.DataFrame], folder: Path
) -> Traced:
    """The ledger of the undisturbed inferences of some processes, from their traces."""
    events, firsts = ledger.join_traces(traces)
    rows = ledger.build_ledger(events)
    run, duration = rows["run"].to_numpy(), rows["duration_ns"].to_numpy()
    is_tracing = (rows["kind"] == ledger.TRACING).to_numpy()
    times, tracing = np.zeros((2, firsts[-1]), np.int64)
    np.add.at(times, run, duration)
    np.add.at(tracing, run[is_tracing], duration[is_tracing])
    counts = np.diff(firsts)
    number = np.arange(firsts[-1]) - np.repeat(firsts[:-1], counts)
    process = np.repeat(np.arange(len(sessions)), counts)
    parts = zip(sessions, np.split(times, firsts[1:-1]), strict=True)
    is_typical = np.concatenate(
        [ledger.kept_runs(session, part, folder / session.etdump) for session, part in parts]
    )
    chosen = is_typical[run] & ~is_tracing
    counted = number >= np.array([session.skipped for session in sessions])[process]
    index = pd.Index(number[counted], name="run")
    inferences = pd.DataFrame({"duration_ns": times[counted]}, index)
    closed, rows = ledger.closed_runs(events, rows), rows[chosen].assign(run=number[run[chosen]])
    parts = zip(sessions, np.split(times - tracing, firsts[1:-1]), strict=True)
    lost = np.concatenate([ledger.lost_times(session, part) for session, part in parts])
    return Traced(
        _name_processes(rows, sessions, process[run[chosen]]),
        lost[run[chosen]],
        closed,
        _name_processes(inferences, sessions, process[counted]),
        tracing[is_typical],
    )


def _name_processes(
    rows: pd.DataFrame, sessions: Sequence[Session], process: np.ndarray
) -> pd.DataFrame:
    """Rows with the columns of ``frames.SOURCE`` before the others."""
    for place, (name, kind) in enumerate(zip(frames.SOURCE, (object, int, int), strict=True)):
        values: np.ndarray = np.array([getattr(session, name) for session in sessions], kind)
        rows.insert(place, name, values[process])
    return rows
