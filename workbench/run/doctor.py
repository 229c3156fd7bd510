"""What this machine can do, which other targets it reaches, and the fix for what is missing."""

import contextlib
import os
import platform
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.util import cache_from_source, find_spec
from pathlib import Path
from typing import TypeAlias

from workbench.errors import WorkbenchError, install_command
from workbench.plugin import collect, examine_plugins
from workbench.process import NO_BYTECODE, silent_stderr
from workbench.run.build import ZIG, find_sdk, installed_compiler
from workbench.run.ceilings import unpack_program
from workbench.run.isa import Isa, resolve_toggle
from workbench.run.runner import Runner, find_runner
from workbench.store import cache_folder
from workbench.upstream import TESTED, describe_version, find_missing


@dataclass(frozen=True)
class Check:
    """The result of one check: ``status`` is ``ok``, ``note`` (works with less) or ``fail``."""

    subject: str
    status: str
    detail: str
    fix: str = ""


PACKAGES = ("executorch", "torch", "pandas", "matplotlib", "papermill", "ipykernel", "jupyterlab")
#: What takes longest to compile, in every process that imports it if none keeps the bytecode.
COMPILED = ("torch", "sympy", "pandas", "matplotlib")
DISK_GB, TIMEOUT_S = 1.0, 20.0
#: A program of `workbench.run.ceilings` with one operator, which is delegated.
PROBE = "program_fp32_0.pte"
#: What to do about a part that ExecuTorch lacks.
TESTED_VERSION = f"install a tested version: {' or '.join(TESTED)}"

#: Status, detail and fix of a check; the last one or two may be missing.
Answer: TypeAlias = tuple[str, ...]


def examine_machine() -> list[Check]:
    """Check everything that a profile needs; it can run if no status is ``fail``.

    Builds the runner, if necessary.

    Examples
    --------
    >>> for check in wb.examine_machine():  # doctest: +SKIP
    ...     print(check.status, check.subject, check.detail, check.fix)
    ok Python 3.11.7 at /usr/bin/python3
    """
    checks = [
        Check("Python", "ok", f"{platform.python_version()} at {sys.executable}"),
        Check("bytecode", *_bytecode()),
    ]
    checks += map(_package, PACKAGES)
    checks += [
        _ask("C++ libraries", lambda: ("ok", str(find_sdk())), "fail"),
        _ask("compiler", _compiler, "fail"),
        _ask("runner", lambda: ("ok", f"native, {find_runner().command[0]}"), "fail"),
    ]
    if checks[-1].status == "ok":
        checks += [*_features(find_runner().isa), *_upstream(find_runner())]
    return [
        *checks,
        Check("load", *_load()),
        Check("disk", *_disk()),
        Check("cross compiler", "ok", shutil.which("aarch64-linux-gnu-g++") or _zig()),
        *(Check(*each) for kind in collect("targets").values() for each in kind.examine()),
        *_plugins(),
    ]


def _ask(subject: str, examine: Callable[[], Answer], problem: str = "note") -> Check:
    try:
        return Check(subject, *examine())
    except WorkbenchError as error:
        return Check(subject, problem, error.what, error.hint or "")


def _package(package: str) -> Check:
    with contextlib.suppress(metadata.PackageNotFoundError):
        version = metadata.version(package)
        if package == "executorch" and (untested := describe_version(version)):
            return Check(package, "note", untested, TESTED_VERSION)
        return Check(package, "ok", version)
    if package == "jupyterlab":
        fix = install_command(package)
        return Check(package, "note", "not installed: no `workbench lab`", fix)
    requirement = f"executorch=={TESTED[-1]}" if package == "executorch" else package
    return Check(package, "fail", "not installed", install_command(requirement))


def _bytecode() -> Answer:
    """Whether what a profile imports is compiled; asked before anything here imports it."""
    specs = [find_spec(package) for package in COMPILED]
    files = [Path(spec.origin) for spec in specs if spec and spec.origin]
    missing = [
        file.parent.name for file in files if not Path(cache_from_source(str(file))).exists()
    ]
    if missing:
        text = f"{', '.join(missing)} not compiled: the first commands take longer"
        if not all(os.access(file.parent, os.W_OK) for file in files):
            text = f"{', '.join(missing)} not compiled, and not writable: all commands take longer"
        where = shlex.join(sorted({str(file.parents[1]) for file in files}))
        return "note", text, f"{shlex.quote(sys.executable)} -m compileall -q {where}"
    if sys.flags.dont_write_bytecode:
        text = f"compiled; {NO_BYTECODE} is set: other programs compile what they import each time"
        return "note", text, f"unset {NO_BYTECODE}"
    return "ok", "compiled"


def _compiler() -> Answer:
    if compiler := installed_compiler():
        return "ok", " ".join(compiler)
    if sys.platform != "linux":
        return "fail", "no C++ compiler", "xcode-select --install"
    return "note", f"{_zig()}: the first build takes minutes", "Debian: apt install g++"


def _features(isa: Isa) -> Iterator[Check]:
    """What the CPU has, and whether it can be hidden."""
    yield Check("CPU features", "ok", ", ".join(isa.features) or "none that XNNPACK uses")
    missing = Check("SME2", "note", "not in this CPU", "--target qemu shows which code runs")
    yield Check("SME2", "ok", "this CPU has it") if "sme2" in isa.features else missing
    if isa.self_check != "ok":
        return
    yield Check("hiding features", "ok", "cpuinfo and the system agree")
    toggle = resolve_toggle("auto", isa)
    if toggle.name == "none":
        yield Check("--toggle auto", "note", "no extension to switch off: A/A runs only")
    else:
        yield Check("--toggle auto", "ok", f"{toggle.name}: {toggle.on} against {toggle.off}")


def _upstream(runner: Runner) -> Iterator[Check]:
    """What exports lack, and what tracing a small program does; one check if that is nothing."""
    flags = ["--model_path", str(unpack_program(PROBE)), "--etdump_path", os.devnull]
    try:
        with runner.open(flags, timeout_s=TIMEOUT_S) as session:
            missing = find_missing(probed=True) | session.ready.missing
    except WorkbenchError as error:
        yield Check("parts of ExecuTorch", "fail", error.what, error.hint or TESTED_VERSION)
        return
    for name, consequence in missing.items():
        yield Check(name, "note", consequence, TESTED_VERSION)
    if not missing:
        yield Check("parts of ExecuTorch", "ok", "all that exports, tracing and masks need")


def _load() -> Answer:
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    text = f"{load:.1f} on {cores} cores"
    if load > cores / 2:
        return "note", f"{text}: intervals will be wide", "stop other programs while measuring"
    return "ok", text


def _disk() -> Answer:
    here = Path.cwd()
    if not os.access(here, os.W_OK):
        return "fail", f"{here} is not writable", "change to a writable folder"
    free = shutil.disk_usage(here).free / 1e9
    if free < DISK_GB:
        return "fail", f"{free:.1f} GB free in {here}", "free space, or use --out"
    return "ok", f"{free:.0f} GB free in {here}"


def _zig() -> str:
    cached = (cache_folder() / "wheels" / f"ziglang-{ZIG}").exists()
    return f"Zig {ZIG}, {'in the cache' if cached else 'downloaded by pip, SHA-256 checked'}"


def _plugins() -> Iterator[Check]:
    """The plug-ins in one check, and one of each that cannot be used."""
    with silent_stderr():
        problems = examine_plugins()  # imports them all, and PyTorch
    working = [name for name, problem in problems.items() if not problem]
    yield Check("plug-ins", "ok", ", ".join(working) or "none")
    for name, problem in problems.items():
        if problem:
            yield Check(f"plug-in {name}", "note", problem, "update or uninstall its package")
