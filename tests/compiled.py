"""Compiled code."""

import subprocess
from importlib import metadata
from pathlib import Path

import workbench as wb
from workbench.run import build

SDK = build.find_sdk()
NATIVE = Path(wb.__file__).parent / "run" / "native"


def compile_cpp(binary: Path, *flags: str, source: Path | None = None) -> None:
    """Compile the native runner as the workbench does, or a source that includes its headers."""
    words = build.compile_flags(SDK)
    if source:
        words = [f"-I{NATIVE}", *(str(source) if w.endswith("runner.cpp") else w for w in words)]
    command = [*build.find_compiler(), *words, *flags, "-o", str(binary)]
    subprocess.run(command, check=True, capture_output=True, text=True)


def mac_sdk() -> Path:
    """The folder of executorch's wheel for macOS."""
    version = metadata.version("executorch")
    return build.fetch_wheel("executorch", version, "macosx_14_0_arm64") / "executorch"


def link_for_mac(sdk: Path, binary: Path) -> None:
    """Compile the native runner for macOS, by Zig."""
    zig = build.fetch_wheel("ziglang", build.ZIG) / "ziglang" / "zig"
    zig.chmod(0o755)
    build.compile_runner(sdk, [str(zig), "c++", "-target", "aarch64-macos"], binary)
