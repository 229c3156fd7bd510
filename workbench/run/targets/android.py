"""The settings of an Android device that decide how fast it runs: read, set, and put back.

What they were is written down in the run's folder, and on the device, before anything is changed:
if the device is unplugged in the middle, they are put back when it is reached again.

An Android device through adb, by USB or network.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from workbench.errors import SetupError, TargetError, UsageError, unknown_name
from workbench.run.targets.remote import Remote
from workbench.store import atomic_write

#: In the run's folder.
RECORD = "device_settings.json"

#: What ``settings get`` says of one that is not set.
UNSET = "null"

_SCALES = ("window_animation_scale", "transition_animation_scale", "animator_duration_scale")

#: What a device is set to, by mode: as fast as it can, plugged in and awake; or as someone who
#: develops an app has it. The values of Arm's learning path.
MODES = {
    "boost": {"low_power": "0", "stay_on_while_plugged_in": "15", **dict.fromkeys(_SCALES, "0")},
    "developer": {"low_power": "0", "stay_on_while_plugged_in": "1", **dict.fromkeys(_SCALES, "1")},
}
_KNOWN = frozenset(name for mode in MODES.values() for name in mode)


@contextmanager
def keep_settings(device: Remote, wanted: Mapping[str, str], run_dir: Path) -> Iterator[None]:
    """Change global settings of a device for a while.

    Raises
    ------
    TargetError
        The device cannot be reached, or does not take a setting.
    """
    before = read_settings(device, wanted)
    record = {"device": device.name, "before": before, "during": dict(wanted), "restored": False}
    _write_record(run_dir, record)
    write_note(device, before)
    try:
        if wanted["stay_on_while_plugged_in"] != "0":
            device.sh("svc power stayon true")
        apply_settings(device, wanted)
        yield
    finally:
        with suppress(TargetError):  # out of reach: it is done when the device is back
            apply_settings(device, before)
            device.sh(f"rm -f {device.quote(note_path(device))}")
            _write_record(run_dir, {**record, "restored": True})


def restore_leftover(device: Remote) -> None:
    """Put back what a run could not that lost the device."""
    note = device.quote(note_path(device))
    text = device.sh(f"cat {note} 2>/dev/null || true")
    with suppress(ValueError, AttributeError):
        apply_settings(device, _plausible(json.loads(text)))
    if text:
        device.sh(f"rm -f {note}")


def read_settings(device: Remote, names: Mapping[str, str]) -> dict[str, str]:
    """The values of global settings."""
    return {
        name: device.sh(f"settings get global {device.quote(name)}").decode().strip()
        for name in names
    }


def apply_settings(device: Remote, wanted: Mapping[str, str]) -> None:
    """Set global settings, and look whether the device took them.

    Raises
    ------
    TargetError
        It did not take one.
    """
    for name, value in wanted.items():
        change = f"delete global {device.quote(name)}"
        if value != UNSET:
            change = f"put global {device.quote(name)} {device.quote(value)}"
        device.sh(f"settings {change}")
    for name, value in read_settings(device, wanted).items():
        if value != wanted[name]:
            raise TargetError(
                f"setting {name} is {value}, not {wanted[name]}",
                where=device.name,
                hint="set it on the device, or run without --power",
            )


def note_path(device: Remote) -> str:
    """Where the device keeps its own settings while they are changed."""
    return f"{device.base}/settings.json"


def write_note(device: Remote, settings: Mapping[str, str]) -> None:
    """Write on the device what its settings are."""
    text, path = device.quote(json.dumps(settings)), device.quote(note_path(device))
    device.sh(f"echo {text} > {path}")


def _plausible(settings: dict[str, object]) -> dict[str, str]:
    """Of what a note says, what this module could have written."""
    return {
        name: value
        for name, value in settings.items()
        if name in _KNOWN and isinstance(value, str) and re.fullmatch(r"[\w.-]{1,20}", value)
    }


def _write_record(run_dir: Path, record: dict[str, object]) -> None:
    atomic_write(run_dir / RECORD, json.dumps(record, indent=1) + "\n")


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
