"""The runner's aarch64 build under QEMU's user mode: says which code runs, never how fast."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workbench.errors import SetupError, unknown_name
from workbench.run.bundle import BACKPORTS, BY_HAND, fetch_debian
from workbench.run.host import describe_host
from workbench.run.targets.base import Host

#: Older ones do not know SME2.
OLDEST = (10, 1)

MACHINE = "aarch64"

#: Models that name no one CPU: ``max`` has all that QEMU can emulate. Its pointer authentication
#: takes as long as all the rest unless told to be cheap.
PROPERTIES = {"max": "max,pauth-impdef=on"}


class Qemu(Host):
    """An emulated aarch64 CPU of a model that QEMU knows; files are those of this machine."""

    emulated = True
    platform = f"qemu-{MACHINE}"
    machine = MACHINE

    def __init__(self, cpu: str):
        self.emulator = find_qemu()
        known = list_cpus(self.emulator)
        if cpu not in known:
            raise unknown_name("CPU", cpu, known, where="--target qemu")
        self.cpu = cpu
        self.name = "qemu" if cpu == "max" else f"qemu:{cpu}"

    def command(self, argv: Sequence[str]) -> list[str]:
        """The local command that runs ``argv`` on the emulated CPU."""
        return [str(self.emulator), "-cpu", PROPERTIES.get(self.cpu, self.cpu), *argv]

    def describe(self) -> dict[str, Any]:
        """The emulated CPU, the emulator, and the machine that it runs on."""
        host = describe_host()
        version = ".".join(map(str, qemu_version(self.emulator)))
        return {
            **host,
            "cpu": f"{self.cpu} of QEMU {version}",
            "machine": MACHINE,
            "emulated_on": f"{host['cpu']} ({host['machine']})",
        }


def find_qemu() -> Path:
    """QEMU's user mode for aarch64: the installed one if it is new enough, else Debian's by apt.

    Raises
    ------
    SetupError
        There is none, and none can be fetched.
    """
    installed = shutil.which(f"qemu-{MACHINE}")
    if installed and qemu_version(Path(installed)) >= OLDEST:
        return Path(installed)
    if sys.platform != "linux":
        raise SetupError("QEMU's user mode needs Linux", hint="use a Linux machine or container")
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine())
    if architecture is None:
        raise SetupError(f"no qemu-{MACHINE} of 10.1 or newer", hint=BY_HAND)
    path = f"usr/bin/qemu-{MACHINE}"
    files = fetch_debian(["qemu-user"], [path], architecture=architecture, suite=BACKPORTS)
    return files / Path(path).name


def qemu_version(emulator: Path) -> tuple[int, ...]:
    """The version of an emulator, as numbers; () if it does not say."""
    said = _ask(emulator, "--version")
    found = re.search(r"version (\d+)\.(\d+)\.(\d+)", said)
    return tuple(map(int, found.groups())) if found else ()


def list_cpus(emulator: Path) -> list[str]:
    """The CPU models that an emulator knows."""
    lines = _ask(emulator, "-cpu", "help").splitlines()
    return [line.strip() for line in lines if re.fullmatch(r"\s+\S+", line)]


def _ask(emulator: Path, *flags: str) -> str:
    try:
        done = subprocess.run([emulator, *flags], capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetupError(f"cannot be started: {error}", where=emulator) from None
    return done.stdout.decode(errors="replace")
