"""Plug-in: find a faster variant of a program: proposed, exported, measured."""

from workbench.api import Plugin

_HERE = "workbench.plugins.optimize"
PLUGIN = Plugin(
    commands={"optimize": f"{_HERE}.command:optimize"},
    attributes={
        "workbench.OptimizeOptions": f"{_HERE}.options:OptimizeOptions",
        "workbench.find_study": f"{_HERE}.study:find_study",
        "workbench.optimize": f"{_HERE}.search:optimize",
        "workbench.plot_noise": f"{_HERE}.figure:plot_noise",
        "workbench.plot_variants": f"{_HERE}.figure:plot_variants",
        "workbench.read_study": f"{_HERE}.records:Study.read",
    },
    views={
        "variants": f"{_HERE}.figure:VARIANTS",
        "variants of a run": f"{_HERE}.figure:OF_RUN",
    },
)
