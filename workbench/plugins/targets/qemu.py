"""The runner's aarch64 build in QEMU's user mode: shows which code runs, not how fast."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from workbench import WorkbenchError
from workbench.api import Host
from workbench.jobs import Progress, silent, unknown_name
from workbench.plugins.targets.bundle import fetch_tool, install_bundle

#: The first version with SME2.
OLDEST = (10, 1)

MACHINE = "aarch64"

#: ``max`` has every feature that QEMU emulates. Its default pointer authentication takes as long
#: as everything else together.
PROPERTIES = {"max": "max,pauth-impdef=on"}


class Qemu(Host):
    """An emulated aarch64 CPU, by QEMU's name of the model; it sees this machine's files."""

    emulated = True
    platform = f"qemu-{MACHINE}"
    machine = MACHINE

    def __init__(self, cpu: str = "", power: str = ""):
        cpu = cpu or "max"
        self.emulator = find_qemu()
        cpus = re.findall(r"^[ \t]+(\S+)$", _ask(self.emulator, "-cpu", "help"), re.MULTILINE)
        if cpu not in cpus:
            raise unknown_name("CPU", cpu, cpus, where="--target qemu")
        self.cpu = cpu
        self.name = "qemu" if cpu == "max" else f"qemu:{cpu}"

    @staticmethod
    def examine() -> Iterator[tuple[str, ...]]:
        """Whether there is an emulator, or where it comes from: a check of the doctor."""
        subject, installed = "--target qemu", shutil.which(f"qemu-{MACHINE}")
        version = qemu_version(Path(installed)) if installed else ()
        if version >= OLDEST:
            yield subject, "ok", f"QEMU {'.'.join(map(str, version))}, {installed}"
        elif sys.platform == "linux" and shutil.which("apt-get") and shutil.which("dpkg-deb"):
            yield subject, "ok", "downloaded from Debian (signed) on first use"
        else:
            least = ".".join(map(str, OLDEST))
            yield subject, "note", f"no qemu-{MACHINE} {least}", "use a Debian machine"

    def command(self, argv: Sequence[str]) -> list[str]:
        """The local command that runs ``argv`` on the emulated CPU."""
        return [str(self.emulator), "-cpu", PROPERTIES.get(self.cpu, self.cpu), *argv]

    def install_runner(self, progress: Progress = silent) -> tuple[list[str], Path, Path]:
        """A bundle of the runner with all its libraries."""
        return install_bundle(self)

    def outline(self) -> dict[str, Any]:
        """The emulated CPU, the emulator, and the machine that it runs on."""
        host, version = Host().outline(), ".".join(map(str, qemu_version(self.emulator)))
        names = {"cpu": f"{self.cpu} of QEMU {version}", "machine": MACHINE}
        return {**host, **names, "emulated_on": f"{host['cpu']} ({host['machine']})"}


def find_qemu() -> Path:
    """QEMU's user mode for aarch64: the installed one if it is new enough, else Debian's by apt."""
    installed = shutil.which(f"qemu-{MACHINE}")
    if installed and qemu_version(Path(installed)) >= OLDEST:
        return Path(installed)
    if sys.platform != "linux":
        raise WorkbenchError(
            "QEMU's user mode needs Linux", hint="use a Linux machine or container"
        )
    return fetch_tool("qemu-user", f"usr/bin/qemu-{MACHINE}")


def qemu_version(emulator: Path) -> tuple[int, ...]:
    """The version of an emulator, as numbers; () if unknown."""
    match = re.search(r"version (\d+)\.(\d+)\.(\d+)", _ask(emulator, "--version"))
    return tuple(map(int, match.groups())) if match else ()


def _ask(emulator: Path, *flags: str) -> str:
    try:
        done = subprocess.run([emulator, *flags], capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise WorkbenchError(f"cannot be started: {error}", where=emulator) from None
    return done.stdout.decode(errors="replace")
