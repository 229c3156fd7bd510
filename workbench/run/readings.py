"""What a machine is like right now: load, clock, governor, temperature, throttling."""

from __future__ import annotations

import re
import subprocess
from statistics import median
from typing import Any

from workbench.run.targets.base import Host, run_there

#: Prints what there is, one reading a line; what a system lacks, it leaves out. Paths are those
#: of the Linux kernel's documentation (cpufreq, thermal, thermal_throttle), which Android has too.
SCRIPT = r"""
show() { word=$1; shift; for f in "$@"; do [ -r "$f" ] && echo "$word $(cat "$f")"; done; }
show load /proc/loadavg
show khz /sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq
show governor /sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor
show millidegrees /sys/class/thermal/thermal_zone*/temp
show throttled /sys/devices/system/cpu/cpu[0-9]*/thermal_throttle/core_throttle_count
[ -r /proc/cpuinfo ] && grep '^cpu MHz' /proc/cpuinfo
command -v dumpsys >/dev/null && dumpsys thermalservice | grep 'Thermal Status'
[ -r /proc/loadavg ] || sysctl -n vm.loadavg 2>/dev/null
true
"""
TIMEOUT_S = 5.0
#: Zones that say less or more than this, in degrees Celsius, measure something else.
PLAUSIBLE_C = (1.0, 150.0)


def read_environment(target: Host) -> dict[str, Any]:
    """The fields of ``records.Reading`` that this target tells; empty if it tells nothing."""
    try:
        done = run_there(target, ["sh", "-c", SCRIPT], timeout_s=TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return parse_environment(done.stdout.decode(errors="replace"))


def parse_environment(text: str) -> dict[str, Any]:
    r"""What the lines of ``SCRIPT`` say; a line that is none is passed over.

    Examples
    --------
    >>> parse_environment("load 0.52 0.3 0.1 1/99 7\nkhz 1800000\nmillidegrees 41000")
    {'load': 0.52, 'mhz': 1800.0, 'temperature_c': 41.0}
    """
    number = r"(\d{1,12}(?:\.\d{1,6})?)"
    found: dict[str, Any] = {}
    if load := re.search(rf"^(?:load|\{{) ?{number} ", text, re.MULTILINE):
        found["load"] = float(load[1])
    clocks = [float(khz) / 1e3 for khz in re.findall(rf"^khz {number}$", text, re.MULTILINE)]
    clocks = clocks or _numbers(rf"^cpu MHz\s*: {number}$", text)
    if clocks:
        found["mhz"] = round(median(clocks), 1)
    governors = re.findall(r"^governor (\w{1,40})$", text, re.MULTILINE)
    if governors:
        found["governor"] = ", ".join(dict.fromkeys(governors))
    zones = [value / 1e3 for value in _numbers(rf"^millidegrees {number}$", text)]
    low, high = PLAUSIBLE_C
    if zones := [value for value in zones if low <= value <= high]:
        found["temperature_c"] = round(max(zones), 1)
    if counts := _numbers(r"^throttled (\d{1,12})$", text):
        found["throttled"] = int(sum(counts))
    if status := re.search(r"Thermal Status: (\d)\b", text):
        found["thermal_status"] = int(status[1])
    return found


def _numbers(pattern: str, text: str) -> list[float]:
    return [float(value) for value in re.findall(pattern, text, re.MULTILINE)]
