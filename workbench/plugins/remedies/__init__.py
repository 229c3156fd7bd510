"""Plug-in: remedies of what makes a program slow or wrong, applied, proposed and tried."""

from workbench.api import Plugin

_HERE = "workbench.plugins.remedies"
PLUGIN = Plugin(
    attributes={
        "Run.conversation": f"{_HERE}.conversation:tabulate_conversation",
        "workbench.check_findings": f"{_HERE}.remedy_trials:check_findings",
        "workbench.split": f"{_HERE}.split:split",
    },
    remedies={"remedies": f"{_HERE}.table:ADDED"},
)
