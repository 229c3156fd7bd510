"""The view of memory and starts."""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from workbench import Run, plot_speedups
from workbench.api import Section, Table, View, show_table
from workbench.pages import Chart

#: How many rows a table has for each that others have.
_LONGER = 4


def show_memory(run: Any, top: int) -> Iterator[Table | Chart]:
    """What every measurement needs, and what the subject of the run holds, and when."""
    ab, on = next(iter(run.comparisons), None), run.subject
    resources = pivot_resources(run.resources)
    if len(resources.columns) > 3:  # else, another section has the latency
        yield show_table(resources, caption="Times, memory and size")
        if ab is not None:
            yield show_table(ab.resources, caption="Candidate against baseline")
            yield plot_speedups(ab.resources)
    parts = {"Memory": on.memory, "Start": on.cold_start, "File": on.file_parts}
    parts["Largest activations"] = on.tensors
    for caption, table in parts.items():
        if table is not None:
            yield show_table(table, top=_LONGER * top).fold(caption)


def pivot_resources(resources: pd.DataFrame) -> pd.DataFrame:
    """``frames.RESOURCES`` with a row for each measurement, and a column for each resource."""
    named = resources.assign(resource=resources["resource"] + "_" + resources["unit"].str.lower())
    wide = named.pivot(index=["experiment", "threads"], columns="resource", values="value")
    return wide[named["resource"].unique()].reset_index()


SECTION = Section(
    "How much memory, and how long until the first output?",
    "The largest resident set of a process by what it holds; the time from its start to "
    "its first output; activations as planned, with the steps at which each is written "
    "and read last. Every byte and every millisecond is in one row. A `size_bytes` below "
    "0 was counted, but was not resident. PSS divides pages that processes share.",
    after="What was not delegated?",
)
VIEW = View((Run,), show_memory, SECTION)
