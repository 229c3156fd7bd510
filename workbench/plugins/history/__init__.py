"""Plug-in: runs over months, and when latency, starts and memory changed."""

from workbench.api import Plugin

_HERE = "workbench.plugins.history"
PLUGIN = Plugin(
    commands={"history": f"{_HERE}.history_command:history"},
    attributes={
        "workbench.plot_history": f"{_HERE}.history_figure:plot_history",
        "workbench.read_history": f"{_HERE}.read:read_history",
    },
)
