"""The sides that the plug-in brings."""

from workbench.api import Side
from workbench.plugins.runtimes.files import PACKAGES, make_file

PROCESS = "workbench.plugins.runtimes.serve"
EAGER = COMPILE = Side(make_file, PROCESS)
ONNX = Side(make_file, PROCESS, PACKAGES["onnx"])
