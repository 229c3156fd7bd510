"""Plug-in: configs and custom runners, as Arm's profiling kit has them."""

from workbench.api import Plugin

_HERE = "workbench.plugins.kit"
PLUGIN = Plugin(
    attributes={"workbench.run_config": f"{_HERE}.measure:run_config"},
    documents={"config": f"{_HERE}.documents:DOCUMENT"},
)
