"""What this machine is, and the readings that tell whether a measurement on it can be trusted."""

from __future__ import annotations

import os
import platform
import re
import sys
from pathlib import Path
from typing import Any


def platform_name() -> str:
    """The platform's name in the artifact layout: ``mac``, ``linux`` or ``linux-aarch64``."""
    if sys.platform == "darwin":
        return "mac"
    machine = platform.machine()
    return "linux" if machine in ("x86_64", "AMD64") else f"linux-{machine}"


def describe_host() -> dict[str, Any]:
    """CPU, cores, memory, kernel, frequency governor and load, as far as the system tells."""
    return {
        "cpu": platform.processor()
        if sys.platform == "darwin"
        else name_cpu(_read("/proc/cpuinfo"), platform.machine()),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "cores_usable": _usable_cores(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "virtual": _is_virtual(),
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def fast_cores() -> list[int]:
    """The cores this process may use, without the slower ones of a mixed CPU; [] if unknown."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    cores = sorted(os.sched_getaffinity(0))
    capacity = [_read(f"/sys/devices/system/cpu/cpu{core}/cpu_capacity") for core in cores]
    values = [int(text) if text.isdecimal() else 0 for text in capacity]
    return [core for core, value in zip(cores, values, strict=True) if value == max(values)]


def _usable_cores() -> int | None:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def name_cpu(cpuinfo: str, machine: str) -> str:
    """The CPU's name from the text of ``/proc/cpuinfo``, or the numbers that stand for it."""
    named = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    if named:
        return named[1].strip()
    # Arm kernels print the implementer's and the part's number, no name.
    ids = [re.search(rf"^CPU {key}\s*:\s*(\S+)$", cpuinfo, re.M) for key in ("implementer", "part")]
    found = " ".join(match[1] for match in ids if match)
    return f"{machine} {found}".strip()


def _is_virtual() -> bool | None:
    cpuinfo = _read("/proc/cpuinfo")
    if "flags" not in cpuinfo:
        return None
    return bool(re.search(r"^flags\s*:.*\bhypervisor\b", cpuinfo, re.MULTILINE))


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""
