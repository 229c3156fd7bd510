"""The caches of decoders: what each call moves, and how fast."""

import math
from collections.abc import Iterable
from typing import Any

import pandas as pd

from workbench import Measurement
from workbench.api import Frame
from workbench.graphs import list_caches

CACHES = Frame.make(
    "caches",
    ("module", "text", "", "layer that writes it, empty for the model itself"),
    ("source", "text", "", "the user's line that writes it"),
    ("size_bytes", "int", "B", "size of the buffer"),
    ("written_bytes", "int", "B/run", "new values"),
    ("moved_bytes", "int", "B/run", "read and written to put them into the buffer"),
    ("write_ms", "float", "ms/run", "time of the operator that writes them"),
    ("copy_ms", "float", "ms/run", "time of the copy of the result into the buffer"),
    ("read_ms", "float", "ms/run", "time of the operators that read the buffer then"),
    ("gbps", "float", "GB/s", "moved bytes by the time of writing and copying"),
    ("roof_gbps", "float", "GB/s", "the most that the machine reaches at its size; NaN: unknown"),
)


def tabulate_caches(m: Measurement) -> pd.DataFrame:
    """Buffers that are written at some positions and read whole: `CACHES`."""
    row_of = {node: row for row, nodes in m.nodes.items() for node in nodes}

    def sum_up(steps: Iterable[Any]) -> float:
        rows = {row_of[step.id] for step in steps if step.id in row_of}
        return float(m.costs["mean_ms"][[*rows]].sum())

    rows = []
    for cache in list_caches(m.flow):
        origin, copies = cache.write.origin, [cache.copy] if cache.copy else []
        write_ms, copy_ms = sum_up((*cache.indices, cache.write)), sum_up(copies)
        spent_ms = write_ms + copy_ms
        rows.append(
            {
                "module": origin.module if origin else "",
                "source": origin.source if origin else "",
                "size_bytes": cache.size_bytes,
                "written_bytes": cache.written_bytes,
                "moved_bytes": cache.moved_bytes,
                "write_ms": write_ms,
                "copy_ms": copy_ms,
                "read_ms": sum_up(cache.readers),
                "gbps": cache.moved_bytes / spent_ms / 1e6 if spent_ms else math.nan,
                "roof_gbps": m.roof.bandwidth(cache.size_bytes) if m.roof else math.nan,
            }
        )
    return CACHES.check(pd.DataFrame(rows, columns=CACHES.names))
