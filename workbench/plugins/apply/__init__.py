"""Plug-in: apply remedies: both programs side by side, and the lines to write."""

from workbench.api import Plugin

PLUGIN = Plugin(
    attributes={
        "workbench.apply_remedies": f"{__name__}.apply:apply_remedies",
        "workbench.FindingCards": f"{__name__}.finding_cards:FindingCards",
    }
)
