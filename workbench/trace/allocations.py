"""Allocation events: how much memory was taken from which allocator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from workbench.schema import ALLOCATIONS, check
from workbench.trace.blocks import Trace, collect_events
from workbench.trace.fields import Allocation, Allocator, Event


def read_allocations(path: str | Path) -> pd.DataFrame:
    """Read the allocation events of an ETDump, one row each, in the order of the file.

    The runtime logs what is taken from an allocator for which this was turned on
    (``MemoryAllocator::enable_profiling``); it does not log what is given back.

    Parameters
    ----------
    path
        An ETDump.

    Returns
    -------
    pandas.DataFrame
        Columns of :data:`workbench.schema.ALLOCATIONS`. The names of allocators are those that the
        event's block gives or, if it gives none, the last one before it that does.

    Raises
    ------
    TraceError
        The file cannot be read, is no ETDump, or is malformed.
    """
    trace = Trace(Path(path))
    buffer = trace.buffer
    (blocks,) = trace.blocks()

    def decode(at: np.ndarray) -> dict[str, np.ndarray]:
        table = buffer.tables(at, "an allocation event")
        size = buffer.u64(table.field(Allocation.SIZE, 8), 0)
        buffer.require(size < np.uint64(2**63), at, "an allocation of more than 2**63 bytes")
        return {"allocator_id": buffer.i32(table.field(Allocation.ALLOCATOR), 0), "size": size}

    columns = collect_events(
        *(buffer, blocks.entries, blocks.counts, Event.ALLOCATION, "an allocation event"),
        decode,
        {"allocator_id": np.int32, "size": np.int64},
    )
    block, number = columns["block"], columns["allocator_id"]
    given = np.where(blocks.allocators > 0, np.arange(len(blocks.counts)), 0)
    allocators = blocks.allocators[np.maximum.accumulate(given)][block]
    name = trace.names.intern(_names_at(trace, allocators, number))
    frame = {
        "block": block,
        "event": columns["place"] + blocks.first_events[block],
        "allocator": pd.Categorical.from_codes(name, trace.names.values, validate=False),
        "allocator_id": number,
        "size": columns["size"],
    }
    return check(pd.DataFrame(frame), ALLOCATIONS)


def _names_at(trace: Trace, allocators: np.ndarray, number: np.ndarray) -> np.ndarray:
    """Positions of the names of allocators, which the vectors list from number 1 on."""
    buffer = trace.buffer
    _, counts = buffer.vectors(allocators, "the allocators of a block")
    listed = (number > 0) & (number <= counts)
    at = np.where(listed, allocators + 4 * number.astype(np.int64), 0)
    names = np.zeros(len(at), np.int64)
    tables = buffer.tables(buffer.follow(at[listed], "an allocator"), "an allocator")
    names[listed] = buffer.follow(tables.field(Allocator.NAME), "an allocator's name")
    return names
