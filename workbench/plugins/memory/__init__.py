"""Plug-in: what a process holds in memory, and how long it takes until its first output."""

from workbench.api import Attribute, Plugin

_HERE = "workbench.plugins.memory"
_TABLES = f"{_HERE}.memory_tables"
PLUGIN = Plugin(
    attributes={
        "Measurement.cold_start": Attribute(f"{_TABLES}:tabulate_starts", explored="start"),
        "Measurement.memory": Attribute(f"{_TABLES}:account_memory", explored="memory"),
        "Measurement.file_parts": f"{_TABLES}:list_file_parts",
        "Measurement.tensors": f"{_HERE}.activations:list_tensors",
    },
    rules={
        "memory peak": f"{_HERE}.memory_findings:MEMORY_PEAK",
        "weights twice": f"{_HERE}.memory_findings:WEIGHTS_TWICE",
        "slow start": f"{_HERE}.memory_findings:SLOW_START",
        "wide arenas": f"{_HERE}.memory_findings:WIDE_ARENAS",
    },
    views={"memory": f"{_HERE}.memory_view:VIEW"},
)
