"""Plug-in: find a faster variant of a program: proposed, exported, measured."""

from workbench.api import Plugin

_HERE = "workbench.plugins.optimize"
PLUGIN = Plugin(
    commands={"optimize": f"{_HERE}.optimize_command:optimize"},
    attributes={
        "workbench.OptimizeOptions": f"{_HERE}.search_options:OptimizeOptions",
        "workbench.find_study": f"{_HERE}.study:find_study",
        "workbench.optimize": f"{_HERE}.search:optimize",
        "workbench.plot_noise": f"{_HERE}.variants_figure:plot_noise",
        "workbench.plot_variants": f"{_HERE}.variants_figure:plot_variants",
        "workbench.read_study": f"{_HERE}.records:Study.read",
    },
    views={
        "variants": f"{_HERE}.variants_figure:VARIANTS",
        "variants of a run": f"{_HERE}.variants_figure:OF_RUN",
    },
)
