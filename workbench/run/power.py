"""The settings of an Android device that decide how fast it runs: read, set, and put back.

What they were is written down in the run's folder, and on the device, before anything is changed:
if the device is unplugged in the middle, they are put back when it is reached again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.errors import TargetError
from workbench.store import write_whole

if TYPE_CHECKING:
    from workbench.run.remote import Remote

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
    write_whole(run_dir / RECORD, json.dumps(record, indent=1) + "\n")
