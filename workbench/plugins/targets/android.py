"""An Android device reached with adb, by USB or network, and its power mode during a run.

Its own settings, saved on the device, are restored even if it is unplugged and reached later.
"""

import json
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from workbench import WorkbenchError
from workbench.api import UsageError
from workbench.jobs import TargetError
from workbench.plugins.targets.remote import TIMEOUT_S, Remote

#: A folder from which a device's shell can run programs.
BASE = "/data/local/tmp/executorch-workbench"

CONNECT_TIMEOUT_S = 5.0

_PROPERTIES = {
    "manufacturer": "ro.product.manufacturer",
    "model": "ro.product.model",
    "soc": "ro.soc.model",
    "android": "ro.build.version.release",
}

#: The output of ``settings get`` for a setting without a value.
UNSET = "null"

_SCALES = ("window_animation_scale", "transition_animation_scale", "animator_duration_scale")

#: The settings of each power mode: full speed, awake while plugged in; or as an app developer has
#: them. From Arm's learning path.
MODES = {
    "boost": {"low_power": "0", "stay_on_while_plugged_in": "15", **dict.fromkeys(_SCALES, "0")},
    "developer": {"low_power": "0", "stay_on_while_plugged_in": "1", **dict.fromkeys(_SCALES, "1")},
}
#: What can have been saved.
_KNOWN = frozenset(name for mode in MODES.values() for name in mode)
_VALUE = re.compile(r"[\w.-]{1,20}")
#: The CPU features, by the kernel's names, by which XNNPACK chooses its kernels.
FEATURES = ("sme2", "sme", "sve2", "i8mm", "bf16", "asimddp", "asimdhp")


class Android(Remote):
    """A device by its serial number or ``host:port``; by default, the only one connected.

    ``power`` is its power mode during a run (`MODES`); empty to leave it unchanged.
    """

    platform = "android"
    modes = MODES

    def __init__(self, serial: str = "", power: str = ""):
        self.power = power
        self.serial = find_device(serial)
        super().__init__(f"android:{self.serial}", BASE)
        self._saved = self.quote(f"{BASE}/settings.json")  # its own, while they are changed
        self._restore_settings()

    @staticmethod
    def examine() -> Iterator[tuple[str, ...]]:
        """A check of each device; one of adb where there is none."""
        subject = "--target android"
        try:
            version = re.search(r"Version (\S+)", adb("version"))
            devices = list_devices()
        except WorkbenchError as error:
            yield subject, "note", error.what, error.hint or ""
            return
        name = f"adb {version[1]}" if version else "adb"
        if not devices:
            yield subject, "note", f"{name}, no device", "connect one, USB debugging on"
        for serial, state in sorted(devices.items()):
            yield f"{subject}:{serial}", *_examine_device(name, serial, state)

    def shell(self, script: str) -> list[str]:
        """The adb command that runs a shell script on the device."""
        return ["adb", "-s", self.serial, "shell", "-T", script]

    def outline(self) -> dict[str, Any]:
        """The description of a Linux machine, and the device's make, SoC and Android release."""
        script = "\n".join(f"echo @{key}; getprop {name}" for key, name in _PROPERTIES.items())
        return {**super().outline(), **self.probe(script), "power": self.power}

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """Set the device's power mode; restore its own settings at the end."""
        if not self.power:
            yield
            return
        before = self._read_settings(MODES[self.power])
        self.sh(f"echo {self.quote(json.dumps(before))} > {self._saved}")
        try:
            self.sh("svc power stayon true")
            self._apply_settings(MODES[self.power])
            yield
        finally:
            with suppress(TargetError):  # out of reach: restored when the device is back
                self._apply_settings(before)
                self.sh(f"rm -f {self._saved}")

    def _restore_settings(self) -> None:
        """Restore the settings that a run saved on the device before it lost the connection."""
        text = self.sh(f"cat {self._saved} 2>/dev/null || true")
        with suppress(ValueError, AttributeError, RecursionError):
            saved = json.loads(text).items()
            settings = ((k, v) for k, v in saved if k in _KNOWN and isinstance(v, str))
            self._apply_settings({k: v for k, v in settings if _VALUE.fullmatch(v)})
        if text:
            self.sh(f"rm -f {self._saved}")

    def _read_settings(self, names: Iterable[str]) -> dict[str, str]:
        return {name: self.sh(f"settings get global {name}").decode().strip() for name in names}

    def _apply_settings(self, wanted: Mapping[str, str]) -> None:
        """Set global settings; TargetError if the device does not accept one."""
        for name, value in wanted.items():
            put = f"put global {name} {self.quote(value)}"
            self.sh(f"settings {put if value != UNSET else f'delete global {name}'}")
        for name, value in self._read_settings(wanted).items():
            if value != wanted[name]:
                what = f"setting {name} is {value:.60}, not {wanted[name]}"
                hint = "set it on the device, or run without a power mode"
                raise TargetError(what, where=self.name, hint=hint)


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
    absent = "no such device" if serial else "no device is connected"
    what = f"is {state}" if state else absent
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


def _examine_device(name: str, serial: str, state: str) -> tuple[str, ...]:
    """The architecture of a device, and its features that XNNPACK uses."""
    if state != "device":
        return "note", f"{name}, {state}", "allow USB debugging on its screen"
    try:
        answer = adb("-s", serial, "shell", "-T", "uname -m; cat /proc/cpuinfo")
    except WorkbenchError as error:
        return "note", error.what, error.hint or ""
    listed = re.search(r"^Features\s*:(.*)$", answer, re.MULTILINE)
    features = set(listed[1].split()) if listed else set()
    extensions = ", ".join(f for f in FEATURES if f in features) or "no known extension"
    return "ok", f"{name}, {answer.partition(chr(10))[0].strip()}: {extensions}"


def adb(*arguments: str) -> str:
    """The output of an adb command; WorkbenchError without adb, TargetError if it fails."""
    if not shutil.which("adb"):
        raise WorkbenchError("no adb", hint="install it (Debian: apt install adb)")
    done = Remote.ask(["adb", *arguments], f"adb {arguments[0]}", TIMEOUT_S)
    answer = done.stdout.decode(errors="replace")
    if done.returncode:
        words = (done.stderr.decode(errors="replace") or answer).strip().splitlines()
        raise TargetError(words[-1] if words else "adb failed", where=f"adb {arguments[0]}")
    return answer
