"""What an examination of this machine finds.

Which targets besides this machine can be reached from here; nothing is fetched to find out.

What this machine can do, and the fix for what it cannot.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

from workbench.errors import WorkbenchError
from workbench.run.build import find_compiler, find_sdk
from workbench.run.bundle import ARCHITECTURES, ZIG
from workbench.run.isa import read_isa, resolve_toggle
from workbench.run.runner import find_runner
from workbench.run.targets.android import adb, list_devices
from workbench.run.targets.qemu import MACHINE, OLDEST, qemu_version
from workbench.store import cache_folder


@dataclass(frozen=True)
class Finding:
    """One thing looked at: ``status`` is ``ok``, ``note`` (works with less) or ``fail``."""

    subject: str
    status: str
    detail: str
    fix: str = ""


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


#: Older wheels have no event tracer.
OLDEST_EXECUTORCH = (1, 5, 1)
DISK_GB = 1.0


def examine_machine() -> list[Finding]:
    """Look at everything the main job needs; it can run if nothing is ``fail``."""
    return [
        _python(),
        *_packages(),
        _sdk(),
        _compiler(),
        *_runner(),
        _load(),
        _disk(),
        *examine_targets(),
    ]


def _python() -> Finding:
    return Finding("Python", "ok", f"{platform.python_version()} at {sys.executable}")


def _packages() -> Iterator[Finding]:
    for package in ("executorch", "torch", "pandas", "matplotlib", "papermill", "ipykernel"):
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            yield Finding(package, "fail", "not installed", "python3 dev.py setup")
            continue
        numbers = tuple(
            int(part) for part in version.split("+")[0].split(".")[:3] if part.isdigit()
        )
        if package == "executorch" and numbers < OLDEST_EXECUTORCH:
            yield Finding(package, "fail", f"{version} cannot trace", "python3 dev.py setup")
        else:
            yield Finding(package, "ok", version)
    if not util.find_spec("jupyterlab"):
        yield Finding("jupyterlab", "note", "not installed: no `workbench lab`", "dev.py setup")


def _sdk() -> Finding:
    try:
        return Finding("C++ libraries", "ok", str(find_sdk()))
    except WorkbenchError as error:
        return Finding("C++ libraries", "fail", error.what, error.hint or "")


def _compiler() -> Finding:
    try:
        compiler = find_compiler()
    except WorkbenchError as error:
        return Finding("compiler", "fail", error.what, error.hint or "")
    if compiler is None:
        return Finding("compiler", "note", "no C++ compiler", "Debian: apt install g++")
    return Finding("compiler", "ok", " ".join(compiler))


def _runner() -> Iterator[Finding]:
    try:
        runner = find_runner()
        isa = read_isa(runner.command)
    except WorkbenchError as error:
        yield Finding("runner", "fail", error.what, error.hint or "")
        return
    if runner.kind == "native":
        yield Finding("runner", "ok", f"native, {runner.command[0]}")
    else:
        yield Finding(
            "runner", "note", "Python: no C++ compiler", "install one (Debian: apt install g++)"
        )
    yield Finding("CPU features", "ok", ", ".join(isa.features) or "none that XNNPACK consults")
    if "sme2" in isa.features:
        yield Finding("SME2", "ok", "this CPU has it")
    else:
        yield Finding("SME2", "note", "not in this CPU", "--target qemu shows which code it runs")
    if isa.self_check != "ok":
        fix = "--toggle none measures without hiding any"
        yield Finding("hiding features", "fail", isa.self_check, fix)
        return
    yield Finding("hiding features", "ok", "cpuinfo and the system agree on where they are")
    toggle = resolve_toggle("auto", isa)
    if toggle.name == "none":
        yield Finding("--toggle auto", "note", "nothing to switch off: A/A runs only")
    else:
        yield Finding("--toggle auto", "ok", f"{toggle.name}: {toggle.on} against {toggle.off}")


def _load() -> Finding:
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > cores / 2:
        text = f"{load:.1f} on {cores} cores: intervals will be wide"
        return Finding("load", "note", text, "stop other programs while measuring")
    return Finding("load", "ok", f"{load:.1f} on {cores} cores")


def _disk() -> Finding:
    here = Path.cwd()
    if not os.access(here, os.W_OK):
        return Finding("disk", "fail", f"{here} is not writable", "change to a folder of yours")
    free = shutil.disk_usage(here).free / 1e9
    if free < DISK_GB:
        return Finding("disk", "fail", f"{free:.1f} GB free in {here}", "free some, or use --out")
    return Finding("disk", "ok", f"{free:.0f} GB free in {here}")
