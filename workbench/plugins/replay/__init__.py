"""Plug-in: measure one layer of a run's model alone, and compare."""

from workbench.plugin import Plugin

_HERE = "workbench.plugins.replay"
PLUGIN = Plugin(
    commands={"replay": f"{_HERE}.command:replay"},
    gains={"replay": f"{_HERE}.findings:name_replays"},
    names={"replay_layer": f"{_HERE}.layer:replay_layer"},
)
