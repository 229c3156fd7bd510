"""Plug-in, experimental: project a run to another ISA level or device, with an interval.

No device has confirmed these projections yet: they are no verdict.
"""

from workbench.plugin import Plugin

_HERE = "workbench.plugins.project"
PLUGIN = Plugin(
    commands={"atlas": f"{_HERE}.command:atlas", "project": f"{_HERE}.command:project"},
    names={"project": f"{_HERE}.atlas:project"},
    views={"projection": f"{_HERE}.explorer:VIEW"},
)
