"""Which targets besides this machine can be reached from here; nothing is fetched to find out."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from workbench.errors import WorkbenchError
from workbench.run.android import adb, list_devices
from workbench.run.bundle import ARCHITECTURES, ZIG
from workbench.run.cache import cache_folder
from workbench.run.finding import Finding
from workbench.run.qemu import MACHINE, OLDEST, qemu_version

#: Of a CPU's features, as the kernel lists them, those that XNNPACK's kernels are chosen by.
TOLD = ("sme2", "sme", "sve2", "i8mm", "bf16", "asimddp", "asimdhp")

TIMEOUT_S = 20.0


def examine_targets() -> list[Finding]:
    """QEMU, the cross compiler, Android devices and ssh, each with what would help."""
    return [_qemu(), _cross_compiler(), *_android(), _ssh()]


def _qemu() -> Finding:
    subject, installed = "--target qemu", shutil.which(f"qemu-{MACHINE}")
    version = qemu_version(Path(installed)) if installed else ()
    if version >= OLDEST:
        return Finding(subject, "ok", f"QEMU {'.'.join(map(str, version))}, {installed}")
    for path in cache_folder().glob(f"debian/qemu-user-*/qemu-{MACHINE}"):
        found = ".".join(map(str, qemu_version(path)))
        return Finding(subject, "ok", f"QEMU {found}, {path}")
    least = ".".join(map(str, OLDEST))
    if sys.platform == "linux" and shutil.which("apt-get") and shutil.which("dpkg-deb"):
        return Finding(subject, "ok", "fetched from Debian by apt on first use")
    return Finding(subject, "note", f"no qemu-{MACHINE} {least}", "use a Debian machine for it")


def _cross_compiler() -> Finding:
    subject, compiler = "cross compiler", f"{ARCHITECTURES[MACHINE].triplet}-g++"
    if installed := shutil.which(compiler):
        return Finding(subject, "ok", installed)
    fetched = (cache_folder() / "wheels" / f"ziglang-{ZIG}").exists()
    where = "in the cache" if fetched else "fetched by pip on first use"
    return Finding(subject, "ok", f"Zig {ZIG}, {where}")


def _android() -> Iterator[Finding]:
    subject = "--target android"
    try:
        version = re.search(r"Version (\S+)", adb("version"))
        devices = list_devices()
    except WorkbenchError as error:
        yield Finding(subject, "note", error.what, error.hint or "")
        return
    name = f"adb {version[1]}" if version else "adb"
    if not devices:
        yield Finding(subject, "note", f"{name}, no device", "connect one with USB debugging on")
    for serial, state in sorted(devices.items()):
        about = f"{subject}:{serial}"
        if state == "device":
            yield Finding(about, "ok", f"{name}, {_describe_cpu(serial)}")
        else:
            yield Finding(about, "note", f"{name}, {state}", "allow USB debugging on its screen")


def _describe_cpu(serial: str) -> str:
    """The architecture of a device, and which of the features that matter its kernel lists."""
    try:
        said = adb("-s", serial, "shell", "-T", "uname -m; cat /proc/cpuinfo")
    except WorkbenchError as error:
        return error.what
    machine = said.partition("\n")[0].strip()
    listed = re.search(r"^Features\s*:(.*)$", said, re.MULTILINE)
    features = set(listed[1].split()) if listed else set()
    return f"{machine}: {', '.join(f for f in TOLD if f in features) or 'no extension we know'}"


def _ssh() -> Finding:
    if not shutil.which("ssh"):
        return Finding("--target ssh:HOST", "note", "no ssh client", "apt install openssh-client")
    said = subprocess.run(["ssh", "-V"], capture_output=True, timeout=TIMEOUT_S).stderr
    return Finding("--target ssh:HOST", "ok", said.decode(errors="replace").strip().split(",")[0])
