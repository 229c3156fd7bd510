"""Plug-in: find faster or smaller variants of a program: proposed, exported, measured."""

from workbench.api import Plugin, Section

_HERE = "workbench.plugins.optimize"
PLUGIN = Plugin(
    commands={"optimize": f"{_HERE}.command:optimize"},
    makers={"optimize": f"{_HERE}.command:make_study"},
    names={
        "OptimizeOptions": f"{_HERE}.options:OptimizeOptions",
        "find_study": f"{_HERE}.study:find_study",
        "optimize": f"{_HERE}.search:optimize",
        "pick_variant": f"{_HERE}.widget:pick_variant",
        "plot_noise": f"{_HERE}.figure:plot_noise",
        "plot_variants": f"{_HERE}.figure:plot_variants",
        "read_study": f"{_HERE}.records:Study.read",
    },
    gains={"optimize": f"{_HERE}.study:add_gains"},
    views={
        "variants": f"{_HERE}.figure:VARIANTS",
        "variants of a run": f"{_HERE}.figure:OF_RUN",
    },
    sections=(
        Section(
            "What was tried, and what did it bring?",
            "Variants of the program from `workbench optimize`. Hollow dots are too inaccurate to "
            "be recommended.",
            "variants of a run",
        ),
    ),
    notebooks=("12_optimize.ipynb",),
)
