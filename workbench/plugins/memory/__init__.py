"""Plug-in: what a process holds in memory, and how long it takes until its first output."""

from workbench.api import Plugin, Section

_HERE = "workbench.plugins.memory"
PLUGIN = Plugin(
    attributes={
        "Measurement.cold_start": f"{_HERE}.tables:tabulate_starts",
        "Measurement.memory": f"{_HERE}.tables:account_memory",
        "Measurement.file_parts": f"{_HERE}.tables:list_file_parts",
    },
    explored={"memory": "memory", "start": "cold_start"},
    rules={
        "memory peak": f"{_HERE}.findings:MEMORY_PEAK",
        "weights twice": f"{_HERE}.findings:WEIGHTS_TWICE",
        "slow start": f"{_HERE}.findings:SLOW_START",
        "wide arenas": f"{_HERE}.findings:WIDE_ARENAS",
    },
    views={"memory": f"{_HERE}.view:VIEW"},
    sections=(
        Section(
            "How much memory, and how long until the first output?",
            "The largest resident set of a process by what it holds; the time from its start to "
            "its first output; activations as planned, with the steps at which each is written "
            "and read last. Every byte and every millisecond is in one row. A `size_bytes` below "
            "0 was counted, but was not resident. PSS divides pages that processes share. "
            "`control`: the ratio of two equal experiments. `explore.html` draws all but the "
            "comparisons.",
            "memory",
            after="What was not delegated?",
        ),
    ),
)
