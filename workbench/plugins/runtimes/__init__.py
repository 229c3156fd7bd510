"""Plug-in: a model in other runtimes, side by side with its program of ExecuTorch."""

from workbench.api import Plugin

_HERE = "workbench.plugins.runtimes.runtime_files"
PLUGIN = Plugin(
    sides={
        "compile": f"{_HERE}:COMPILE",
        "eager": f"{_HERE}:EAGER",
        "onnx": f"{_HERE}:ONNX",
    },
)
