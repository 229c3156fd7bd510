"""Plug-in: apply remedies: both programs side by side, and the lines to write."""

from workbench.api import Plugin

PLUGIN = Plugin(attributes={"workbench.apply_findings": f"{__name__}.apply:apply_findings"})
