"""An Android device reached with adb, by USB or network, and its power mode during a run.

Its own settings, saved on the device, are restored even if it is unplugged and reached later.
"""

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from workbench.errors import TargetError, UsageError, WorkbenchError, unknown_name
from workbench.run.targets.remote import Remote
from workbench.store import atomic_write

#: A folder from which a device's shell can run programs.
BASE = "/data/local/tmp/executorch-workbench"

ADB_TIMEOUT_S, CONNECT_TIMEOUT_S = 30.0, 5.0

_PROPERTIES = {
    "manufacturer": "ro.product.manufacturer",
    "model": "ro.product.model",
    "soc": "ro.soc.model",
    "android": "ro.build.version.release",
}


class Android(Remote):
    """A device by its serial number or ``host:port``; by default, the only one connected.

    ``power`` is its power mode during a run (`MODES`); empty to leave it unchanged.
    """

    platform = "android"

    def __init__(self, serial: str = "", *, power: str = "", base: str = BASE):
        if power and power not in MODES:
            raise unknown_name("power mode", power, MODES, where="--power")
        self.power = power
        self.serial = find_device(serial)
        super().__init__(f"android:{self.serial}", base)
        restore_saved(self)

    def shell(self, script: str) -> list[str]:
        """The adb command that runs a shell script on the device."""
        return ["adb", "-s", self.serial, "shell", "-T", script]

    def describe(self) -> dict[str, Any]:
        """The description of a Linux machine, and the device's make, SoC and Android release."""
        script = "\n".join(f"echo @{key}; getprop {name}" for key, name in _PROPERTIES.items())
        return {**super().describe(), **self._probe(script), "power": self.power}

    @contextmanager
    def prepared(self, run_dir: Path) -> Iterator[None]:
        """Set the device's power mode; restore its own settings at the end."""
        if not self.power:
            yield
            return
        with changed_settings(self, MODES[self.power], run_dir):
            yield


def find_device(serial: str = "") -> str:
    """The serial number of a connected device; connects to ``host:port`` first."""
    if re.fullmatch(r"[\w.-]+:\d{1,5}", serial, re.ASCII):
        connect_device(serial)
    devices = list_devices()
    if not serial and len(devices) > 1:
        hint = f"select one, such as android:{min(devices)}"
        raise UsageError("several devices are connected", where="--target android", hint=hint)
    serial = serial or next(iter(devices), "")
    state = devices.get(serial)
    if state == "device":
        return serial
    hints = {
        "unauthorized": "allow USB debugging on its screen",
        "offline": "unplug and plug it in, or run `adb reconnect`",
    }
    what = f"is {state}" if state else "no such device" if serial else "no device is connected"
    listed = f"`adb devices` lists {', '.join(sorted(devices)) or 'none'}"
    where = f"android:{serial}" if serial else "android"
    raise TargetError(what, where=where, hint=hints.get(state or "", listed))


def connect_device(address: str) -> None:
    """Connect to a device by network; reconnect if adb keeps a broken connection."""
    deadline = time.monotonic() + CONNECT_TIMEOUT_S
    adb("connect", address)
    while list_devices().get(address) != "device" and time.monotonic() < deadline:
        time.sleep(0.5)
        with suppress(TargetError):  # adb may have noticed by itself
            adb("disconnect", address)
        adb("connect", address)


def list_devices() -> dict[str, str]:
    """The state of every device that adb lists, by serial number."""
    lines = adb("devices").splitlines()[1:]
    return dict(re.findall(r"^(\S+)[ \t]+(\S+)", "\n".join(lines), re.MULTILINE))


def adb(*arguments: str) -> str:
    """The output of an adb command; WorkbenchError without adb, TargetError if it fails."""
    if not shutil.which("adb"):
        raise WorkbenchError("no adb", hint="install it (Debian: apt install adb)")
    try:
        done = subprocess.run(["adb", *arguments], capture_output=True, timeout=ADB_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise TargetError("adb does not answer", hint="run `adb kill-server`") from None
    said = done.stdout.decode(errors="replace")
    if done.returncode:
        words = (done.stderr.decode(errors="replace") or said).strip().splitlines()
        raise TargetError(words[-1] if words else "adb failed", where=f"adb {arguments[0]}")
    return said


#: The file in the run's folder.
RECORD = "device_settings.json"
#: The output of ``settings get`` for a setting without a value.
UNSET = "null"

_SCALES = ("window_animation_scale", "transition_animation_scale", "animator_duration_scale")

#: The settings of each power mode: full speed, awake while plugged in; or as an app developer has
#: them. From Arm's learning path.
MODES = {
    "boost": {"low_power": "0", "stay_on_while_plugged_in": "15", **dict.fromkeys(_SCALES, "0")},
    "developer": {"low_power": "0", "stay_on_while_plugged_in": "1", **dict.fromkeys(_SCALES, "1")},
}
_KNOWN = frozenset(name for mode in MODES.values() for name in mode)


@contextmanager
def changed_settings(device: Remote, wanted: Mapping[str, str], run_dir: Path) -> Iterator[None]:
    """Change global settings of a device, and restore them at the end."""
    before = read_settings(device, wanted)
    record = {"device": device.name, "before": before, "during": dict(wanted), "restored": False}
    _write_record(run_dir, record)
    text, saved = device.quote(json.dumps(before)), device.quote(saved_path(device))
    device.sh(f"echo {text} > {saved}")
    try:
        if wanted["stay_on_while_plugged_in"] != "0":
            device.sh("svc power stayon true")
        apply_settings(device, wanted)
        yield
    finally:
        with suppress(TargetError):  # out of reach: restored when the device is back
            apply_settings(device, before)
            device.sh(f"rm -f {saved}")
            _write_record(run_dir, {**record, "restored": True})


def restore_saved(device: Remote) -> None:
    """Restore the settings that a run saved on the device before it lost the connection."""
    saved = device.quote(saved_path(device))
    text = device.sh(f"cat {saved} 2>/dev/null || true")
    with suppress(ValueError, AttributeError):
        apply_settings(device, _plausible(json.loads(text)))
    if text:
        device.sh(f"rm -f {saved}")


def read_settings(device: Remote, names: Mapping[str, str]) -> dict[str, str]:
    """The values of global settings."""
    ask = "settings get global"
    return {name: device.sh(f"{ask} {device.quote(name)}").decode().strip() for name in names}


def apply_settings(device: Remote, wanted: Mapping[str, str]) -> None:
    """Set global settings; TargetError if the device does not accept one."""
    for name, value in wanted.items():
        change = f"delete global {device.quote(name)}"
        if value != UNSET:
            change = f"put global {device.quote(name)} {device.quote(value)}"
        device.sh(f"settings {change}")
    for name, value in read_settings(device, wanted).items():
        if value != wanted[name]:
            what = f"setting {name} is {value}, not {wanted[name]}"
            hint = "set it on the device, or run without --power"
            raise TargetError(what, where=device.name, hint=hint)


def saved_path(device: Remote) -> str:
    """The path of the device's own settings, on the device, while they are changed."""
    return f"{device.base}/settings.json"


def _plausible(settings: dict[str, object]) -> dict[str, str]:
    """The saved settings that this module can have written."""
    return {
        name: value
        for name, value in settings.items()
        if name in _KNOWN and isinstance(value, str) and re.fullmatch(r"[\w.-]{1,20}", value)
    }


def _write_record(run_dir: Path, record: dict[str, object]) -> None:
    atomic_write(run_dir / RECORD, json.dumps(record, indent=1) + "\n")
