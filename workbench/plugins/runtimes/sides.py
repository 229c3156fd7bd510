"""The sides that the plug-in brings."""

from workbench.plugins.runtimes.files import PACKAGES, make_file
from workbench.run.sides import Side

PROCESS = "workbench.plugins.runtimes.process"
EAGER = COMPILE = Side(make_file, PROCESS)
ONNX = Side(make_file, PROCESS, PACKAGES["onnx"])
OPENVINO = Side(make_file, PROCESS, PACKAGES["openvino"])
