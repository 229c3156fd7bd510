"""The native runner, compiled on first use by C++ or Zig against the installed ExecuTorch wheel."""

import contextlib
import importlib.util
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, Self

from workbench.errors import RunnerError, WorkbenchError, install_command
from workbench.key import make_key
from workbench.options import Progress, silent
from workbench.store import cache_folder, cached, sha256_of
from workbench.upstream import TESTED

NATIVE = Path(__file__).parent / "native"
WHEELS = Path(__file__).parent / "wheels.txt"

#: The wheel's headers must be compiled with the definitions of its libraries.
DEFINITIONS = ("C10_USING_CUSTOM_GENERATED_MACROS", "ET_EVENT_TRACER_ENABLED", "ET_USE_THREADPOOL")
LIBRARIES = ("executorch", "executorch_etdump", "executorch_threadpool")
#: Zig also compiles its C++ library, the first time, which took over 15 minutes at a load of 20.
TOOL_TIMEOUT_S = 3600.0
ZIG = "0.16.0"
#: In the line that says why a compiler, a linker, pip or apt failed.
_ERROR = re.compile("error:|undefined |^E:", re.IGNORECASE)
#: What every compiler for C++17 takes, with the parts of its library that the runner needs.
TRIVIAL = """\
#include <filesystem>
#include <optional>
#include <thread>
int main() { return std::optional<int>{}.value_or(std::filesystem::path{"/"}.is_relative()); }
"""


def find_sdk() -> Path:
    """The folder of the installed executorch package, with its headers and libraries."""
    # Importing it would take seconds.
    spec = importlib.util.find_spec("executorch")
    if spec is None or not spec.submodule_search_locations:
        raise WorkbenchError("executorch is not installed", install=f"executorch=={TESTED[-1]}")
    # A checkout in the working directory, as the kit has one, is part of the namespace package.
    for folder in (folders := [*map(Path, spec.submodule_search_locations)]):
        if (folder / "include").is_dir() and library_path(folder, "executorch").is_file():
            return folder
    what = "this executorch has no C++ libraries"
    raise WorkbenchError(what, where=folders[0], install=f"executorch=={TESTED[-1]}")


def library_path(sdk: Path, name: str) -> Path:
    """The path of one of the wheel's shared libraries."""
    mac = sdk / "lib" / f"lib{name}.dylib"
    return mac if mac.exists() else mac.with_suffix(".so")


def installed_compiler() -> list[str] | None:
    """The installed C++ compiler: ``$CXX``, else c++, g++ or clang++; None without one."""
    chosen = shlex.split(os.environ.get("CXX", ""))
    if chosen:
        if not shutil.which(chosen[0]):
            raise WorkbenchError(f"no such compiler: {chosen[0]!r}", where="$CXX", hint="unset it")
        return chosen
    compilers = filter(None, map(shutil.which, ("c++", "g++", "clang++")))
    return next(([compiler] for compiler in compilers), None)


def find_compiler() -> list[str]:
    """The C++ compiler's command; Zig where none is installed (Linux)."""
    if installed := installed_compiler():
        return installed
    if sys.platform != "linux":
        raise WorkbenchError("no C++ compiler", hint="xcode-select --install")
    try:
        return zig_compiler(platform.machine())
    except WorkbenchError as error:
        hint = "install g++ or clang++ (Debian: apt install g++)"
        raise WorkbenchError(f"no C++ compiler, and no Zig: {error.what}", hint=hint) from None


def zig_compiler(machine: str) -> list[str]:
    """The command of Zig's C++ compiler for an architecture; downloaded by pip on first use."""
    zig = fetch_wheel("ziglang", ZIG) / "ziglang" / "zig"
    zig.chmod(0o755)
    return [str(zig), "c++", "-target", f"{machine}-linux-gnu.2.28"]


@dataclass(frozen=True)
class Toolchain:
    """A compiler for another machine, and the executorch package that a runner there needs."""

    sdk: Path
    compiler: tuple[str, ...]
    cached = staticmethod(cached)

    @staticmethod
    def download(command: Sequence[str], *, what: str, cwd: Path | None = None) -> None:
        """Run a package manager's command."""
        hint = "check the network and the configuration of pip and apt"
        run_tool(command, f"cannot get {what}", hint, cwd)

    @classmethod
    def of(cls, machine: str) -> Self:
        """That for an architecture (``uname -m``); parts are downloaded on first use."""
        version = metadata.version("executorch")  # that which is installed here
        wheel = fetch_wheel("executorch", version, f"manylinux_2_28_{machine}")
        installed = shutil.which(f"{machine}-linux-gnu-g++")
        compiler = [installed] if installed else zig_compiler(machine)
        return cls(wheel / "executorch", tuple(compiler))

    @property
    def key(self) -> str:
        """A short hash of everything that a runner's binary depends on."""
        return fingerprint(self.sdk, self.compiler, "$ORIGIN")

    def compile(self, folder: Path) -> None:
        """Compile the runner into a folder, beside what it is linked with."""
        for name in LIBRARIES:
            shutil.copy(library_path(self.sdk, name), folder)
        compile_runner(self.sdk, self.compiler, folder / "runner", rpath="$ORIGIN")


def fetch_wheel(package: str, version: str, platform: str = "") -> Path:
    """The unpacked wheel of a package, by pip; for this machine or another ``platform``.

    Its SHA-256 must be in ``wheels.txt``.
    """
    name = f"wheels/{package}-{version}{'-' if platform else ''}{platform}"
    return cached(name, partial(_unpack_wheel, f"{package}=={version}", platform))


def _unpack_wheel(requirement: str, platform: str, folder: Path) -> None:
    other = ["--platform", platform] if platform else []
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    flags = ["--quiet", "--no-deps", "--only-binary=:all:", "--python-version", python, *other]
    pinned = WHEELS.read_text().replace("\\\n", "").splitlines()
    with tempfile.TemporaryDirectory(dir=folder.parent) as downloads:
        (wanted := Path(downloads) / "wanted.txt").write_text(
            "".join(line for line in pinned if line.split()[0] == requirement)
        )
        if not wanted.stat().st_size:
            what = f"no known hash of the wheels of {requirement}"
            raise WorkbenchError(what, install=f"executorch=={TESTED[-1]}")
        flags += ["--require-hashes", "--dest", downloads, "-r", str(wanted)]
        Toolchain.download([*_pip(), "download", *flags], what=requirement)
        (wheel,) = Path(downloads).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)


def _pip() -> list[str]:
    """The command of the pip of this environment, on the path, or of the Python that made it."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    installed = shutil.which("pip3") or shutil.which("pip")
    if installed:
        return [installed]
    base = [getattr(sys, "_base_executable", "") or "python3", "-m", "pip"]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        if subprocess.run([*base, "--version"], capture_output=True, timeout=60).returncode == 0:
            return base
    raise WorkbenchError("no pip", hint="install pip (Debian: apt install python3-pip)")


@contextlib.contextmanager
def work_beside() -> Iterator[ThreadPoolExecutor]:
    """A thread to compile in; if its user fails or is interrupted, nothing waits for it."""
    beside = ThreadPoolExecutor(1)
    try:
        yield beside
    except BaseException:
        beside.shutdown(wait=False, cancel_futures=True)
        raise
    beside.shutdown()


def run_tool(command: Sequence[str], problem: str, hint: str, cwd: Path | None = None) -> None:
    """Run a compiler or a package manager; WorkbenchError with its reason if it fails."""
    where = Path(command[0]).name
    try:
        tool = subprocess.run(
            command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, timeout=TOOL_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        what = f"{problem}: timed out after {TOOL_TIMEOUT_S:g} s"
        raise WorkbenchError(what, where=where) from None
    if tool.returncode:
        text = (tool.stderr or tool.stdout or b"no reason given").decode(errors="replace")
        lines = text.strip().splitlines()
        reason = next((line for line in lines if _ERROR.search(line)), lines[0])
        raise WorkbenchError(f"{problem}: {reason.strip()}", where=where, hint=hint)


def compile_flags(sdk: Path, rpath: str = "") -> list[str]:
    """The compiler's arguments, up to the output file."""
    include = sdk / "include"
    portable_types = include / "executorch/runtime/core/portable_type/c10"
    mac = library_path(sdk, "executorch").suffix == ".dylib"
    return [
        *("-std=c++17", "-O2"),
        *(f"-D{definition}" for definition in DEFINITIONS),
        *("-isystem", str(include), "-isystem", str(portable_types)),
        str(NATIVE / "runner.cpp"),
        f"-L{sdk / 'lib'}",
        f"-Wl,-rpath,{rpath or sdk / 'lib'}",
        *(f"-l{library}" for library in LIBRARIES),
        # XNNPACK's delegate finds functions of the runner (upstream.h).
        *(() if mac else ("-fvisibility-inlines-hidden", "-rdynamic", "-ldl", "-pthread")),
    ]


#: Held while one thread compiles a runner, which others then find.
_BUILDING = threading.Lock()


def build_runner(progress: Progress = silent) -> Path:
    """The native runner's binary in the cache; compiled on first use."""

    def make(binary: Path) -> None:
        progress(describe_build(), 0.0)
        compile_runner(sdk, compiler, binary)

    with _BUILDING:
        _check_executable(cache_folder())
        sdk, compiler = find_sdk(), find_compiler()
        return cached(f"runner-{fingerprint(sdk, compiler)}", make)


def _check_executable(folder: Path) -> None:
    """WorkbenchError if no program can be started in a folder."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if sys.platform == "linux" and os.statvfs(existing).f_flag & os.ST_NOEXEC:
        hint = "set XDG_CACHE_HOME to a folder elsewhere"
        raise WorkbenchError("programs cannot run here (noexec)", where=folder, hint=hint)


def describe_build() -> str:
    """What is waited for while a runner is compiled."""
    if installed_compiler():
        return "compiling the runner (once)"
    return "compiling Zig's C++ library, as no compiler is installed, and the runner (once)"


def compile_runner(sdk: Path, compiler: Sequence[str], binary: Path, rpath: str = "") -> None:
    """Compile the runner against the executorch package ``sdk``.

    WorkbenchError if that fails: for want of a compiler, or because the API of ExecuTorch differs.
    """
    command = [*compiler, *compile_flags(sdk, rpath), "-o", str(binary)]
    differs = f"this ExecuTorch's C++ API differs from the tested {' and '.join(TESTED)}"
    hint = f"{differs}: {install_command(f'executorch=={TESTED[-1]}')}"
    try:
        run_tool(command, "the runner does not compile", hint)
    except WorkbenchError:
        check_compiler(compiler)
        raise


def check_compiler(compiler: Sequence[str]) -> None:
    """Compile a few lines; WorkbenchError if that fails."""
    with tempfile.TemporaryDirectory() as folder:
        (source := Path(folder) / "trivial.cpp").write_text(TRIVIAL)
        command = [*compiler, "-std=c++17", str(source), "-o", f"{folder}/trivial"]
        hint = "set $CXX to another C++17 compiler"
        run_tool(command, "the compiler does not compile C++17", hint)


def find_operator_libraries() -> list[Path]:
    """The libraries with operators of language models that the wheel brings; to load in order.

    The first one is empty, with the name of the Python bindings: the second names them as a
    dependency, uses nothing of them, and would load Python with them.
    """
    sdk, bindings = find_sdk(), f"_C{sysconfig.get_config_var('EXT_SUFFIX')}"
    library = sdk / "extension/llm/custom_ops/libcustom_ops_aot_lib.so"
    if sys.platform != "linux" or not library.is_file():
        return []
    compiler = find_compiler()

    def compile_empty(path: Path) -> None:
        flags = ("-shared", f"-Wl,-soname,{bindings}", "-x", "c++", os.devnull, "-o", str(path))
        run_tool([*compiler, *flags], "an empty library does not compile", "set $CXX to another")

    return [cached(f"{bindings}-{fingerprint(sdk, compiler)}", compile_empty), library]


def ask_runner(command: Sequence[str], flag: str) -> dict[str, Any]:
    """What a runner says of itself: an object in JSON."""
    words = b""
    try:
        done = subprocess.run([*command, flag], capture_output=True, timeout=60)
        words = done.stderr
        return dict(json.loads(done.stdout))
    except OSError as error:
        what = f"cannot start the runner: {error.strerror}"
        raise WorkbenchError(what, where=command[0]) from None
    except (subprocess.TimeoutExpired, ValueError, TypeError):
        lines = words.decode(errors="replace").strip().splitlines()[-1:]
        what = f"no answer to {flag}{''.join(f' ({line})' for line in lines)}"
        hint = "is this the workbench's runner?"
        raise RunnerError(what, where=Path(command[0]).name, hint=hint, kind="protocol") from None


def outline_runner(command: Sequence[str], binary: Path) -> dict[str, str]:
    """A runner's entry in the manifest: kind, compiler, hash and wheel."""
    answer = ask_runner(command, "--version")
    return {
        "kind": str(answer.get("runner")),
        "compiler": str(answer.get("compiler")),
        "sha256": sha256_of(binary),
        "executorch": metadata.version("executorch"),
    }


def fingerprint(sdk: Path, compiler: Sequence[str], rpath: str = "") -> str:
    """A short hash of everything that a runner's binary depends on."""
    version = subprocess.run([*compiler, "--version"], capture_output=True, timeout=60).stdout
    parts = [*compiler, *compile_flags(sdk, rpath), metadata.version("executorch")]
    parts.append(version.decode(errors="replace").partition("\n")[0])
    for source in sorted(NATIVE.iterdir()):
        parts += [source.name, sha256_of(source)]
    for name in LIBRARIES:  # by size and time: hashing 15 MB at every start takes too long
        status = library_path(sdk, name).stat()
        parts += [name, str(status.st_size), str(status.st_mtime_ns)]
    return make_key(parts)[:16]
