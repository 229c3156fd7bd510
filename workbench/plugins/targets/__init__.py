"""Plug-in: other machines that run programs: QEMU on this one, and devices behind adb or ssh."""

from workbench.api import Plugin

_HERE = "workbench.plugins.targets"
PLUGIN = Plugin(
    targets={
        "qemu[:CPU]": f"{_HERE}.qemu:Qemu",
        "android[:SERIAL]": f"{_HERE}.android:Android",
        "ssh:HOST": f"{_HERE}.remote:Ssh",
    }
)
