"""Where a runner runs: this machine, QEMU on it, or a device reached with adb or ssh."""

from workbench.errors import UsageError, unknown_name
from workbench.run.targets.host import HOST, Host

TARGETS = ("host", "qemu[:CPU]", "android[:SERIAL]", "ssh:HOST")


def open_target(name: str, *, power: str = "") -> Host:
    """Open a target: where a runner runs."""
    from workbench.run.targets.android import Android
    from workbench.run.targets.qemu import Qemu
    from workbench.run.targets.remote import Ssh

    kind, _, rest = name.partition(":")
    if power and kind != "android":
        raise UsageError("only Android devices have power modes", where=f"power {power}")
    if name == "host":
        return HOST
    if kind == "qemu":
        return Qemu(rest or "max")
    if kind == "android":
        return Android(rest, power=power)
    if kind == "ssh":
        return Ssh(rest)
    raise unknown_name("target", name, TARGETS, where="--target")
