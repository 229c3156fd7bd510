"""Plug-in: what a process holds in memory, and how long it takes until its first output."""

from workbench.api import Attribute, Plugin

_HERE = "workbench.plugins.memory"
PLUGIN = Plugin(
    attributes={
        "Measurement.cold_start": Attribute(f"{_HERE}.tables:tabulate_starts", explored="start"),
        "Measurement.memory": Attribute(f"{_HERE}.tables:account_memory", explored="memory"),
        "Measurement.file_parts": f"{_HERE}.tables:list_file_parts",
        "Measurement.tensors": f"{_HERE}.activations:list_tensors",
    },
    rules={
        "memory peak": f"{_HERE}.findings:MEMORY_PEAK",
        "weights twice": f"{_HERE}.findings:WEIGHTS_TWICE",
        "slow start": f"{_HERE}.findings:SLOW_START",
        "wide arenas": f"{_HERE}.findings:WIDE_ARENAS",
    },
    views={"memory": f"{_HERE}.view:VIEW"},
)
