"""ETDump files to the events frame, straight from the bytes as they lie in memory."""

from __future__ import annotations

import math
import warnings
from collections.abc import Hashable, Iterable, Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd

from workbench.errors import TraceError, UsageError
from workbench.schema import EVENTS, check
from workbench.trace.blocks import Blocks, Trace
from workbench.trace.nesting import KINDS
from workbench.trace.repeats import read_blocks

# Beyond this, sums of durations would no longer fit 64 bits.
_LONGEST_NS = 2**62


def read_etdump(
    path: str | Path, *, ticks_per_second: float = 1e9, partial: bool = False
) -> pd.DataFrame:
    """Read the profile events of an ETDump, one row each, in the order of the file.

    The runtime writes an event when it ends, so children precede their parent; how ``parent``
    and ``run`` are found is told in :mod:`workbench.trace.nesting`. Allocation and debug events
    get no row, but ``event`` counts them: it is the position among all events of the file. A
    run that never reached the end of its ``Method::execute`` keeps its rows, with ``run`` -1, and
    a warning says so: the ledger and all statistics leave it out.

    Parameters
    ----------
    path
        An ETDump (identifier ``ED00``), with or without the 4-byte size prefix.
    ticks_per_second
        Rate of the clock that the runtime logged; its default clock counts nanoseconds. The
        ends of an event are each rounded down to a nanosecond.
    partial
        Of a file that was cut short, read the runs that are whole, and warn. These are the last
        ones, for the runtime lays a trace out back to front; they are numbered from 0. It works
        for files by the writer of ExecuTorch 1.5 that hold nothing but profile events there; see
        :mod:`workbench.trace.recover`.

    Returns
    -------
    pandas.DataFrame
        Columns of :data:`workbench.schema.EVENTS`; and ``bundled_input``, the index of the block's
        bundled input or -1, and ``metadata``, the bytes that a delegate added. Text and bytes are
        categorical. A delegate's event without a name is named by its integer id.

    Raises
    ------
    TraceError
        The file cannot be read, is no ETDump, is cut short, or is malformed: what, and at which
        byte.
    UsageError
        ``ticks_per_second`` is no clock rate.
    """
    rate = _clock_rate(ticks_per_second)
    (events,) = _frames(Trace(Path(path), partial=partial), rate)
    return events


def stream_etdump(
    path: str | Path, runs_per_chunk: int = 5000, *, ticks_per_second: float = 1e9
) -> Iterator[pd.DataFrame]:
    """Read an ETDump that may be larger than memory, some runs at a time.

    Chunks put together are the frame of :func:`read_etdump`, but for the categories that later
    chunks add. The runtime starts a block for every run, and a chunk is so many whole blocks.

    Parameters
    ----------
    path, ticks_per_second
        As for :func:`read_etdump`.
    runs_per_chunk
        Blocks of a chunk; the memory that is used grows with it, not with the file.

    Yields
    ------
    pandas.DataFrame
        Columns of :data:`workbench.schema.EVENTS`.

    Raises
    ------
    TraceError, UsageError
        As :func:`read_etdump`; the former perhaps after some chunks.

    Examples
    --------
    The time of every operator, from a trace of any length::

        methods = find_methods(stream_etdump(path))
        for events in stream_etdump(path):
            ledger = build_ledger(events, methods)
    """
    if runs_per_chunk < 1:
        raise UsageError("runs_per_chunk must be at least 1", where=runs_per_chunk)
    rate = _clock_rate(ticks_per_second)
    trace = Trace(Path(path))
    for events in _frames(trace, rate, runs_per_chunk):
        yield events
        trace.forget()


def _frames(trace: Trace, rate: Fraction, at_a_time: int | None = None) -> Iterator[pd.DataFrame]:
    """The events of all blocks, or of so many at a time."""
    runs = 0
    for blocks in trace.blocks(at_a_time):
        columns = read_blocks(trace, blocks)
        columns["run"][columns["run"] >= 0] += runs
        runs = max(runs, int(columns["run"].max(initial=-1)) + 1)
        yield _frame(trace, blocks, columns, rate)


def _frame(
    trace: Trace, blocks: Blocks, columns: dict[str, np.ndarray], rate: Fraction
) -> pd.DataFrame:
    path, block = trace.buffer.path, columns["block"]
    start = _to_ns(columns["start"], rate, path)
    duration = _to_ns(columns["end"], rate, path) - start
    if duration.sum(dtype=float) > _LONGEST_NS:
        raise TraceError("the durations add up to more than a century", where=path)
    if unfinished := np.count_nonzero((columns["run"] < 0) & (columns["chain"] >= 0)):
        warnings.warn(f"{path}: {unfinished} events are of a run without an end", stacklevel=4)
    frame = {
        "block": block + np.int32(blocks.first),
        "block_name": _categorical(blocks.name[block], trace.block_names.values),
        "bundled_input": blocks.bundled_input[block],
        "run": columns["run"],
        "event": columns["event"],
        "parent": columns["parent"],
        "kind": _categorical(columns["kind"], KINDS),
        "name": _categorical(columns["name"], trace.names.values),
        "chain": columns["chain"],
        "instruction": columns["instruction"],
        "delegate_id": columns["delegate_id"],
        "metadata": _categorical(columns["metadata"], trace.metadata.values),
        "start_ns": start,
        "duration_ns": duration,
    }
    return check(pd.DataFrame(frame, copy=False), EVENTS)


def _to_ns(ticks: np.ndarray, rate: Fraction, path: Path) -> np.ndarray:
    """Ticks of a clock of ``rate`` per second in whole nanoseconds, rounded down, exactly."""
    scale = 10**9 / rate
    if scale == 1:
        return ticks
    whole, rest = np.divmod(ticks, scale.denominator)
    if (int(whole.max(initial=0)) + 1) * scale.numerator >= 2**63:
        raise TraceError(f"runs past the year 2262 at {float(rate):g} ticks per second", where=path)
    return whole * scale.numerator + rest * scale.numerator // scale.denominator


def _clock_rate(ticks_per_second: float) -> Fraction:
    """The rate as a fraction that 64-bit arithmetic can scale times with."""
    if math.isfinite(ticks_per_second) and ticks_per_second > 0:
        rate = Fraction(ticks_per_second).limit_denominator(1000)
        if rate and (scale := 10**9 / rate).numerator * scale.denominator < 2**63:
            return rate
    raise UsageError("ticks_per_second must be a clock rate", where=ticks_per_second)


def _categorical(codes: np.ndarray, values: Iterable[Hashable]) -> pd.Categorical:
    return pd.Categorical.from_codes(codes, list(values), validate=False)
