"""Compiled code."""

import os
import shlex
import subprocess
from pathlib import Path

import workbench as wb

NATIVE = Path(wb.__file__).parent / "run" / "native"
DEFINITIONS = ("C10_USING_CUSTOM_GENERATED_MACROS", "ET_EVENT_TRACER_ENABLED", "ET_USE_THREADPOOL")
LIBRARIES = ("executorch", "executorch_etdump", "executorch_threadpool")


def find_compiler() -> list[str]:
    """The command of ``$CXX``, else c++."""
    return shlex.split(os.environ.get("CXX", "")) or ["c++"]


def compile_cpp(source: Path, binary: Path, *flags: str) -> None:
    """Compile a source that includes headers of the native runner."""
    libraries = wb.find_runner().libraries
    include = libraries.parent / "include"
    words = [
        *find_compiler(), "-std=c++17", *(f"-D{name}" for name in DEFINITIONS), f"-I{NATIVE}",
        "-isystem", include, "-isystem", include / "executorch/runtime/core/portable_type/c10",
        *flags, source, f"-L{libraries}", f"-Wl,-rpath,{libraries}",
        *(f"-l{name}" for name in LIBRARIES), "-rdynamic", "-ldl", "-pthread", "-o", binary,
    ]  # fmt: skip
    subprocess.run(words, check=True, capture_output=True, text=True)
