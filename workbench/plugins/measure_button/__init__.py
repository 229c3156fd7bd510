"""Plug-in: a program that is shown in a live notebook has a button that measures it."""

from workbench.api import Plugin

PLUGIN = Plugin(attributes={"workbench.ProgramMap": f"{__name__}.program_map:ProgramMap"})
