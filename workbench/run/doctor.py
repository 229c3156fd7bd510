"""What this machine can do, and the fix for what it cannot."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata, util
from pathlib import Path

from workbench.errors import WorkbenchError
from workbench.run.build import find_compiler, find_sdk
from workbench.run.equipment import examine_targets
from workbench.run.finding import Finding
from workbench.run.isa import read_isa, resolve_toggle
from workbench.run.runner import find_runner

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
