"""Plug-in: times and speed-ups on graphs of Model Explorer."""

from workbench.api import Plugin

PLUGIN = Plugin(
    formats={"model-explorer": "workbench.plugins.model_explorer.node_data:NODE_DATA"},
)
