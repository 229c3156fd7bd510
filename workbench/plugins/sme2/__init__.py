"""Plug-in: which kernels a program would run with Arm SME2, and what keeps others from it."""

from workbench.api import Plugin

_HERE = "workbench.plugins.sme2"
PLUGIN = Plugin(
    commands={"sme2": f"{_HERE}.sme2_command:sme2"},
    attributes={
        "Measurement.sme2": f"{_HERE}.predict:predict_measured",
        "Comparison.sme2": f"{_HERE}.predict:predict_compared",
    },
    views={"sme2": f"{_HERE}.sme2_view:VIEW", "sme2 of a run": f"{_HERE}.sme2_view:OF_RUN"},
)
