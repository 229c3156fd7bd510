"""The native runner: compiled on first use against the installed ExecuTorch wheel, then cached."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from functools import partial
from importlib import metadata
from pathlib import Path

from workbench.errors import RunnerError, SetupError
from workbench.store import cached, sha256_of

NATIVE = Path(__file__).parent / "native"

#: What the wheel's headers must be compiled with: the same as the wheel's libraries were.
DEFINITIONS = ("C10_USING_CUSTOM_GENERATED_MACROS", "ET_EVENT_TRACER_ENABLED", "ET_USE_THREADPOOL")
LIBRARIES = ("executorch", "executorch_etdump", "executorch_threadpool")
#: Zig compiles its C++ library too, the first time.
COMPILE_TIMEOUT_S = 900.0


def find_sdk() -> Path:
    """The folder of the installed executorch package, with its headers and libraries.

    Found without importing it, which would take seconds.

    Raises
    ------
    SetupError
        It is not installed, or has no C++ part.
    """
    spec = importlib.util.find_spec("executorch")
    if spec is None or not spec.submodule_search_locations:
        raise SetupError("executorch is not installed", hint="pip install executorch==1.5.1")
    sdk = Path(next(iter(spec.submodule_search_locations)))
    if not (sdk / "include").is_dir() or not library_path(sdk, "executorch").is_file():
        raise SetupError(
            "this executorch has no C++ libraries",
            where=sdk,
            hint="pip install executorch==1.5.1, or choose the Python runner",
        )
    return sdk


def library_path(sdk: Path, name: str) -> Path:
    """Where the wheel keeps one of its shared libraries."""
    mac = sdk / "lib" / f"lib{name}.dylib"
    return mac if mac.exists() else mac.with_suffix(".so")


def find_compiler() -> list[str] | None:
    """The C++ compiler: ``$CXX``, else the first of c++, g++, clang++; None if there is none.

    Raises
    ------
    SetupError
        ``$CXX`` is set to something that is not there.
    """
    chosen = shlex.split(os.environ.get("CXX", ""))
    if chosen:
        if not shutil.which(chosen[0]):
            raise SetupError(f"$CXX is {chosen[0]!r}, which is not there", hint="unset it")
        return chosen
    for name in ("c++", "g++", "clang++"):
        if found := shutil.which(name):
            return [found]
    return None


def compile_flags(sdk: Path, rpath: str = "") -> list[str]:
    """The compiler's arguments, up to the output file.

    Parameters
    ----------
    sdk
        The executorch package of the platform that is compiled for.
    rpath
        Where the runner will look for its libraries; empty for those of ``sdk``.
    """
    include = sdk / "include"
    portable_types = include / "executorch/runtime/core/portable_type/c10"
    mac = library_path(sdk, "executorch").suffix == ".dylib"
    return [
        *("-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror"),
        *(f"-D{definition}" for definition in DEFINITIONS),
        *("-isystem", str(include), "-isystem", str(portable_types)),
        str(NATIVE / "runner.cpp"),
        f"-L{sdk / 'lib'}",
        f"-Wl,-rpath,{rpath or sdk / 'lib'}",
        *(f"-l{library}" for library in LIBRARIES),
        *(() if mac else ("-ldl", "-pthread")),
    ]


def build_runner() -> Path:
    """The native runner's binary, compiled if this wheel, compiler and source have none yet.

    Lies in the cache. Several processes may build at once: each compiles for itself.

    Raises
    ------
    SetupError
        There is no compiler (see `find_compiler`), it failed, or the cache cannot be written.
    """
    sdk, compiler = find_sdk(), find_compiler()
    if compiler is None:
        raise SetupError("no C++ compiler", hint="install g++ or clang++, or use the Python runner")
    return cached(f"runner-{fingerprint(sdk, compiler)}", partial(compile_runner, sdk, compiler))


def compile_runner(sdk: Path, compiler: Sequence[str], binary: Path, rpath: str = "") -> None:
    """Compile the runner with a compiler, against the executorch package ``sdk``.

    Raises
    ------
    SetupError
        It does not compile.
    """
    _compile([*compiler, *compile_flags(sdk, rpath), "-o", str(binary)])


def describe_runner(runner: Path | Sequence[str], binary: Path | None = None) -> dict[str, str]:
    """What a runner says of itself, for the manifest: kind, compiler, hash and wheel.

    Parameters
    ----------
    runner
        A binary, or a command line such as the Python runner's.
    binary
        The file whose hash tells it from others; by default the last word of the command line.

    Raises
    ------
    SetupError, RunnerError
        It cannot be started, or does not speak the protocol.
    """
    command = [str(runner)] if isinstance(runner, Path) else [str(part) for part in runner]
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, timeout=60, check=False)
        said = json.loads(done.stdout)
        kind, compiler = str(said["runner"]), str(said["compiler"])
    except OSError as error:
        raise SetupError(f"cannot start it: {error.strerror}", where=command[0]) from None
    except (subprocess.TimeoutExpired, ValueError, TypeError, KeyError):
        raise RunnerError(
            "does not answer to --version", where=command[0], kind="protocol"
        ) from None
    return {
        "kind": kind,
        "compiler": compiler,
        "sha256": sha256_of(binary or Path(command[-1])),
        "executorch": metadata.version("executorch"),
    }


def fingerprint(sdk: Path, compiler: Sequence[str], rpath: str = "") -> str:
    """What a runner's binary depends upon, as a short hash.

    A library counts by name, size and time: hashing 15 MB at every start would cost more than it
    tells, since pip writes new files whenever it installs another wheel.
    """
    parts = [*compiler, *compile_flags(sdk, rpath), metadata.version("executorch")]
    parts.append(_first_line([*compiler, "--version"]))
    for source in sorted(NATIVE.iterdir()):
        parts += [source.name, sha256_of(source)]
    for name in LIBRARIES:
        status = library_path(sdk, name).stat()
        parts += [name, str(status.st_size), str(status.st_mtime_ns)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _first_line(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    return done.stdout.decode(errors="replace").partition("\n")[0]


def _compile(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, timeout=COMPILE_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise SetupError("the C++ compiler does not come to an end", where=command[0]) from None
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").splitlines()
        errors = [line for line in lines if "error" in line] or lines or ["no reason given"]
        raise SetupError(
            f"the runner does not compile: {errors[0].strip()}",
            where=command[0],
            hint="set $CXX to a C++17 compiler, or use the Python runner",
        )
