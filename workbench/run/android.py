"""An Android device through adb, by USB or network."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from workbench.errors import SetupError, TargetError, UsageError, unknown_name
from workbench.run.power import MODES, keep_settings, restore_leftover
from workbench.run.remote import Remote

#: Where a shell on a device may put programs and run them.
BASE = "/data/local/tmp/executorch-workbench"

ADB_TIMEOUT_S, CONNECT_TIMEOUT_S = 30.0, 5.0

_PROPERTIES = {
    "manufacturer": "ro.product.manufacturer",
    "model": "ro.product.model",
    "soc": "ro.soc.model",
    "android": "ro.build.version.release",
}


class Android(Remote):
    """A device by its serial number or ``host:port``; the only one connected if none is given.

    ``power`` is the mode that the device is put into for the time of a run (`MODES`), empty to
    leave it as it is.

    Raises
    ------
    UsageError
        An unknown mode, or several devices and none named.
    SetupError
        There is no adb.
    TargetError
        The device cannot be reached, or does not let us in.
    """

    platform = "android"

    def __init__(self, serial: str = "", *, power: str = "", base: str = BASE):
        if power and power not in MODES:
            raise unknown_name("power mode", power, MODES, where="--power")
        self.power = power
        self.serial = find_device(serial)
        super().__init__(f"android:{self.serial}", base)
        restore_leftover(self)

    def shell(self, script: str) -> list[str]:
        """The adb command that runs a shell script on the device."""
        return ["adb", "-s", self.serial, "shell", "-T", script]

    def describe(self) -> dict[str, Any]:
        """What a Linux machine tells, and the device's make, system on chip and release."""
        script = "\n".join(f"echo @{key}; getprop {name}" for key, name in _PROPERTIES.items())
        return {**super().describe(), **self._probe(script), "power": self.power}

    @contextmanager
    def prepared(self, run_dir: Path) -> Iterator[None]:
        """The device in its power mode; its own settings come back at the end."""
        if not self.power:
            yield
            return
        with keep_settings(self, MODES[self.power], run_dir):
            yield


def find_device(serial: str = "") -> str:
    """The serial number of a connected device; ``host:port`` is connected to first.

    Raises
    ------
    UsageError
        Several are connected and none is named.
    SetupError, TargetError
        As for `Android`.
    """
    if re.fullmatch(r"[\w.-]+:\d{1,5}", serial, re.ASCII):
        connect_device(serial)
    devices = list_devices()
    if not serial and len(devices) > 1:
        raise UsageError(
            "several devices are connected",
            where="--target android",
            hint=f"name one, such as android:{min(devices)}",
        )
    serial = serial or next(iter(devices), "")
    state = devices.get(serial)
    if state == "device":
        return serial
    hints = {
        "unauthorized": "allow USB debugging on its screen",
        "offline": "plug it in anew, or `adb reconnect`",
    }
    raise TargetError(
        f"is {state}" if state else "no such device" if serial else "no device is connected",
        where=f"android:{serial}" if serial else "android",
        hint=hints.get(state or "", f"`adb devices` lists {', '.join(sorted(devices)) or 'none'}"),
    )


def connect_device(address: str) -> None:
    """Connect to a device by network, anew if adb holds on to a connection that broke."""
    deadline = time.monotonic() + CONNECT_TIMEOUT_S
    adb("connect", address)
    while list_devices().get(address) != "device" and time.monotonic() < deadline:
        time.sleep(0.5)
        adb("disconnect", address)
        adb("connect", address)


def list_devices() -> dict[str, str]:
    """The state of every device that adb knows, by serial number."""
    lines = adb("devices").splitlines()[1:]
    return dict(found.groups() for line in lines if (found := re.match(r"(\S+)\s+(\S+)", line)))


def adb(*arguments: str) -> str:
    """What an adb command says.

    Raises
    ------
    SetupError
        There is no adb.
    TargetError
        It failed.
    """
    if not shutil.which("adb"):
        raise SetupError("no adb", hint="install it (Debian: apt install adb)")
    try:
        done = subprocess.run(["adb", *arguments], capture_output=True, timeout=ADB_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise TargetError("adb does not answer", hint="`adb kill-server`, then again") from None
    said = done.stdout.decode(errors="replace")
    if done.returncode:
        words = (done.stderr.decode(errors="replace") or said).strip().splitlines()
        raise TargetError(words[-1] if words else "adb failed", where=f"adb {arguments[0]}")
    return said
