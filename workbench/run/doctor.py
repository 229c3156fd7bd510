"""What this machine can do, which other targets it reaches, and the fix for what is missing."""

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

from workbench.errors import WorkbenchError, install_command
from workbench.run.build import ARCHITECTURES, ZIG, find_sdk, installed_compiler
from workbench.run.isa import resolve_toggle
from workbench.run.runner import find_runner
from workbench.run.targets.android import adb, list_devices
from workbench.run.targets.qemu import MACHINE, OLDEST, qemu_version
from workbench.store import cache_folder


@dataclass(frozen=True)
class Check:
    """The result of one check: ``status`` is ``ok``, ``note`` (works with less) or ``fail``."""

    subject: str
    status: str
    detail: str
    fix: str = ""


#: The CPU features, by the kernel's names, by which XNNPACK chooses its kernels.
FEATURES = ("sme2", "sme", "sve2", "i8mm", "bf16", "asimddp", "asimdhp")

TIMEOUT_S = 20.0


def examine_targets() -> list[Check]:
    """Check QEMU, the cross compiler, Android devices and ssh; downloads nothing."""
    return [_qemu(), _cross_compiler(), *_android(), _ssh()]


def _qemu() -> Check:
    subject, installed = "--target qemu", shutil.which(f"qemu-{MACHINE}")
    version = qemu_version(Path(installed)) if installed else ()
    if version >= OLDEST:
        return Check(subject, "ok", f"QEMU {'.'.join(map(str, version))}, {installed}")
    for path in cache_folder().glob(f"debian/qemu-user-*/qemu-{MACHINE}"):
        found = ".".join(map(str, qemu_version(path)))
        return Check(subject, "ok", f"QEMU {found}, {path}")
    least = ".".join(map(str, OLDEST))
    if sys.platform == "linux" and shutil.which("apt-get") and shutil.which("dpkg-deb"):
        return Check(subject, "ok", "downloaded from Debian (signed) on first use")
    return Check(subject, "note", f"no qemu-{MACHINE} {least}", "use a Debian machine")


def _cross_compiler() -> Check:
    installed = shutil.which(f"{ARCHITECTURES[MACHINE].triplet}-g++")
    return Check("cross compiler", "ok", installed or _zig())


def _zig() -> str:
    cached = (cache_folder() / "wheels" / f"ziglang-{ZIG}").exists()
    source = "in the cache" if cached else "downloaded by pip on first use, SHA-256 checked"
    return f"Zig {ZIG}, {source}"


def _android() -> Iterator[Check]:
    subject = "--target android"
    try:
        version = re.search(r"Version (\S+)", adb("version"))
        devices = list_devices()
    except WorkbenchError as error:
        yield Check(subject, "note", error.what, error.hint or "")
        return
    name = f"adb {version[1]}" if version else "adb"
    if not devices:
        yield Check(subject, "note", f"{name}, no device", "connect one with USB debugging on")
    for serial, state in sorted(devices.items()):
        status, detail, fix = "note", state, "allow USB debugging on its screen"
        if state == "device":
            status, detail, fix = "ok", _describe_cpu(serial), ""
        yield Check(f"{subject}:{serial}", status, f"{name}, {detail}", fix)


def _describe_cpu(serial: str) -> str:
    """The architecture of a device, and its features that XNNPACK uses."""
    try:
        said = adb("-s", serial, "shell", "-T", "uname -m; cat /proc/cpuinfo")
    except WorkbenchError as error:
        return error.what
    machine = said.partition("\n")[0].strip()
    listed = re.search(r"^Features\s*:(.*)$", said, re.MULTILINE)
    features = set(listed[1].split()) if listed else set()
    return f"{machine}: {', '.join(f for f in FEATURES if f in features) or 'no known extension'}"


def _ssh() -> Check:
    if not shutil.which("ssh"):
        return Check("--target ssh:HOST", "note", "no ssh client", "apt install openssh-client")
    said = subprocess.run(["ssh", "-V"], capture_output=True, timeout=TIMEOUT_S).stderr
    return Check("--target ssh:HOST", "ok", said.decode(errors="replace").strip().split(",")[0])


#: Older wheels have no event tracer.
OLDEST_EXECUTORCH = (1, 5, 1)
DISK_GB = 1.0


def examine_machine() -> list[Check]:
    """Check everything that a profile needs; it can run if no status is ``fail``.

    Builds the runner, if necessary.

    Examples
    --------
    >>> for check in wb.examine_machine():  # doctest: +SKIP
    ...     print(check.status, check.subject, check.detail, check.fix)
    ok Python 3.11.7 at /usr/bin/python3
    """
    python = Check("Python", "ok", f"{platform.python_version()} at {sys.executable}")
    needed = [python, *_packages(), _sdk(), _compiler(), *_runner(), _load(), _disk()]
    return [*needed, *examine_targets()]


def _packages() -> Iterator[Check]:
    for package in ("executorch", "torch", "pandas", "matplotlib", "papermill", "ipykernel"):
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            yield Check(package, "fail", "not installed", install_command("executorch-workbench"))
            continue
        parts = version.split("+")[0].split(".")[:3]
        numbers = tuple(int(part) for part in parts if part.isdigit())
        if package == "executorch" and numbers < OLDEST_EXECUTORCH:
            yield Check(
                package, "fail", f"{version} cannot trace", install_command("executorch==1.5.1")
            )
        else:
            yield Check(package, "ok", version)
    if not util.find_spec("jupyterlab"):
        problem, fix = "not installed: no `workbench lab`", install_command("jupyterlab")
        yield Check("jupyterlab", "note", problem, fix)


def _sdk() -> Check:
    try:
        return Check("C++ libraries", "ok", str(find_sdk()))
    except WorkbenchError as error:
        return Check("C++ libraries", "fail", error.what, error.hint or "")


def _compiler() -> Check:
    try:
        compiler = installed_compiler()
    except WorkbenchError as error:
        return Check("compiler", "fail", error.what, error.hint or "")
    if compiler:
        return Check("compiler", "ok", " ".join(compiler))
    if sys.platform != "linux":
        return Check("compiler", "fail", "no C++ compiler", "xcode-select --install")
    text = f"{_zig()}: the first build takes minutes"
    return Check("compiler", "note", text, "Debian: apt install g++")


def _runner() -> Iterator[Check]:
    try:
        runner = find_runner()
        isa = runner.isa
    except WorkbenchError as error:
        yield Check("runner", "fail", error.what, error.hint or "")
        return
    yield Check("runner", "ok", f"native, {runner.command[0]}")
    yield Check("CPU features", "ok", ", ".join(isa.features) or "none that XNNPACK uses")
    missing = Check("SME2", "note", "not in this CPU", "--target qemu shows which code runs")
    yield Check("SME2", "ok", "this CPU has it") if "sme2" in isa.features else missing
    if isa.self_check != "ok":
        fix = "--toggle none measures without hiding features"
        yield Check("hiding features", "fail", isa.self_check, fix)
        return
    yield Check("hiding features", "ok", "cpuinfo and the system agree")
    toggle = resolve_toggle("auto", isa)
    if toggle.name == "none":
        yield Check("--toggle auto", "note", "no extension to switch off: A/A runs only")
    else:
        yield Check("--toggle auto", "ok", f"{toggle.name}: {toggle.on} against {toggle.off}")


def _load() -> Check:
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > cores / 2:
        text = f"{load:.1f} on {cores} cores: intervals will be wide"
        return Check("load", "note", text, "stop other programs while measuring")
    return Check("load", "ok", f"{load:.1f} on {cores} cores")


def _disk() -> Check:
    here = Path.cwd()
    if not os.access(here, os.W_OK):
        return Check("disk", "fail", f"{here} is not writable", "change to a writable folder")
    free = shutil.disk_usage(here).free / 1e9
    if free < DISK_GB:
        return Check("disk", "fail", f"{free:.1f} GB free in {here}", "free space, or use --out")
    return Check("disk", "ok", f"{free:.0f} GB free in {here}")
