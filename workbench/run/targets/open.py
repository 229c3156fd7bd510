"""The targets by name."""

from __future__ import annotations

from workbench.errors import UsageError, unknown_name
from workbench.run.targets.android import Android
from workbench.run.targets.base import HOST, Host
from workbench.run.targets.qemu import Qemu
from workbench.run.targets.ssh import Ssh

TARGETS = ("host", "qemu[:CPU]", "android[:SERIAL]", "ssh:HOST")


def open_target(name: str, *, power: str = "") -> Host:
    """The target of that name: where a runner runs.

    Parameters
    ----------
    name
        ``host``, ``qemu[:CPU]``, ``android[:SERIAL]`` or ``ssh:HOST``.
    power
        ``boost`` or ``developer``: the mode that an Android device is put into while a run lasts.

    Raises
    ------
    UsageError
        An unknown target, or one that has no power modes.
    SetupError
        It needs something that this machine lacks.
    TargetError
        It cannot be reached.
    """
    kind, _, rest = name.partition(":")
    if power and kind != "android":
        raise UsageError("only an Android device has power modes", where=f"--power {power}")
    if name == "host":
        return HOST
    if kind == "qemu":
        return Qemu(rest or "max")
    if kind == "android":
        return Android(rest, power=power)
    if kind == "ssh":
        return Ssh(rest)
    raise unknown_name("target", name, TARGETS, where="--target")
