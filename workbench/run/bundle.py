"""The native runner for another machine, with all that it needs, in one folder.

The folder holds the runner, ExecuTorch's libraries from the wheel of that platform, a C library
and its loader: it runs from anywhere on a kernel of that architecture, whatever else is installed.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path

from workbench.errors import unknown_name
from workbench.run.build import LIBRARIES, compile_runner, fingerprint
from workbench.run.cache import keep
from workbench.run.fetch import fetch_debian, fetch_wheel

#: The cross compiler where none is installed, as pip knows it.
ZIG = "0.16.0"

#: Besides those that the runner is linked with: loaded at run time.
KERNELS = ("executorch_kernels_optimized", "executorch_kernels_quantized")
BACKENDS = ("executorch_backend_xnnpack",)
C_LIBRARIES = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1")
CPP_LIBRARIES = ("libstdc++.so.6", "libgcc_s.so.1")


@dataclass(frozen=True)
class Architecture:
    """How an architecture is called: by the kernel, by Debian, and in a wheel's name."""

    name: str
    debian: str
    loader: str

    @property
    def wheel(self) -> str:
        """The platform of the wheel."""
        return f"manylinux_2_28_{self.name}"

    @property
    def triplet(self) -> str:
        """The name of its libraries' folder."""
        return f"{self.name}-linux-gnu"


ARCHITECTURES = {
    "aarch64": Architecture("aarch64", "arm64", "ld-linux-aarch64.so.1"),
    "x86_64": Architecture("x86_64", "amd64", "ld-linux-x86-64.so.2"),
}


@dataclass(frozen=True)
class Bundle:
    """A folder with a runner that brings everything along."""

    folder: Path
    architecture: Architecture

    @property
    def runner(self) -> Path:
        """The runner's binary."""
        return self.folder / "runner"

    def command(self, folder: str) -> tuple[str, ...]:
        """How the runner is started where the bundle lies in ``folder``."""
        loader = f"{folder}/{self.architecture.loader}"
        return (loader, "--library-path", folder, f"{folder}/runner", "--lib_dir", folder)


def make_bundle(machine: str) -> Bundle:
    """The bundle for a machine as ``uname -m`` calls it; made on first use, then cached.

    Raises
    ------
    UsageError
        There is none for this architecture.
    SetupError
        A part cannot be fetched, or the runner does not compile.
    """
    if machine not in ARCHITECTURES:
        raise unknown_name("architecture", machine, ARCHITECTURES)
    architecture = ARCHITECTURES[machine]
    sdk = fetch_sdk(architecture)
    compiler = find_cross_compiler(architecture)
    name = f"bundles/{machine}-{fingerprint(sdk, compiler, '$ORIGIN')}"
    return Bundle(keep(name, partial(_fill, architecture, sdk, compiler)), architecture)


def fetch_sdk(architecture: Architecture) -> Path:
    """The executorch package for an architecture, in the version that is installed here."""
    wheel = fetch_wheel("executorch", metadata.version("executorch"), architecture.wheel)
    return wheel / "executorch"


def find_cross_compiler(architecture: Architecture) -> list[str]:
    """The command of a C++ compiler for an architecture: GCC's if installed, else Zig's by pip."""
    installed = shutil.which(f"{architecture.triplet}-g++")
    if installed:
        return [installed]
    zig = fetch_wheel("ziglang", ZIG) / "ziglang" / "zig"
    zig.chmod(0o755)
    return [str(zig), "c++", "-target", f"{architecture.triplet}.2.28"]


def fetch_c_library(architecture: Architecture) -> Path:
    """A folder with the loader, the C and the C++ library of an architecture."""
    libraries = f"usr/lib/{architecture.triplet}"
    names = (architecture.loader, *C_LIBRARIES, *CPP_LIBRARIES)
    return fetch_debian(
        ("libc6", "libstdc++6", "libgcc-s1"),
        [f"{libraries}/{name}" for name in names],
        architecture=architecture.debian,
    )


def _fill(architecture: Architecture, sdk: Path, compiler: list[str], folder: Path) -> None:
    shutil.copytree(fetch_c_library(architecture), folder)
    for name in (*LIBRARIES, *KERNELS, *BACKENDS):
        shutil.copy(sdk / "lib" / f"lib{name}.so", folder)
    compile_runner(sdk, compiler, folder / "runner", rpath="$ORIGIN")
