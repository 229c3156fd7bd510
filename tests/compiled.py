"""Compiled code, and the packages that a bundle for another machine takes."""

import subprocess
import zipfile
from importlib import metadata
from pathlib import Path

from devices import Tools

import workbench as wb
from workbench.run import build
from workbench.run.bundle import BACKENDS, C_LIBRARIES, CPP_LIBRARIES, KERNELS
from workbench.run.runner import Runner
from workbench.run.targets import open_target

SDK = build.find_sdk()
NATIVE = Path(wb.__file__).parent / "run" / "native"
#: Copies the wheel; finds no version but the installed one.
PIP = """
for word in "$@"; do [ "$last" = --dest ] && folder=$word; last=$word; done
wanted=$(grep -o '^[a-z]*==[^ ]*' "$last")
[ -e "{folder}/$wanted.whl" ] || {{ echo "ERROR: no matching distribution" >&2; exit 1; }}
cp "{folder}/$wanted.whl" "$folder/it-1-py3-none-any.whl"
"""
APT = """
case "$*" in
  indextargets*) printf 'http://one/ stable main\\nhttp://two/ stable main\\n'
                 printf 'http://three/ stable-security main\\n' ;;
  *update) grep -q http://two/ etc/mirror.sources || { echo 'E: no such suite' >&2; exit 100; } ;;
  *download*) touch it_1_any.deb ;;
esac
"""


def write_packages(tools: Tools, machine: str, runner: str) -> None:
    """Let pip and apt have what a bundle takes, and compile ``runner`` for a machine."""
    libraries = (*build.LIBRARIES, *KERNELS, *BACKENDS)
    names = [f"executorch/lib/lib{name}.so" for name in libraries]
    packages = {f"executorch=={metadata.version('executorch')}": names}
    packages[f"ziglang=={build.ZIG}"] = ["ziglang/zig"]
    for package, files in packages.items():
        with zipfile.ZipFile(tools.folder / f"{package}.whl", "w") as wheel:
            for name in files:
                wheel.writestr(name, "#!/bin/sh\n" + _compiler(tools.folder, runner, "zig"))
    tools.write("pip3", PIP.format(folder=tools.folder))
    tools.write("apt-get", APT)
    _, loader = build.ARCHITECTURES[machine]
    folder = f'"$3/usr/lib/{machine}-linux-gnu"'
    files = " ".join((*C_LIBRARIES, *CPP_LIBRARIES))
    # The loader is a script that starts what it is to load.
    start = f"printf '#!/bin/sh\\nshift 2\\nexec \"$@\"\\n' > {loader}; chmod +x {loader}"
    tools.write("dpkg-deb", f"mkdir -p {folder}; cd {folder}; touch {files}; {start}")
    tools.write(f"{machine}-linux-gnu-g++", _compiler(tools.folder, runner, "g++"))


def _compiler(folder: Path, runner: str, name: str) -> str:
    """A script that writes a runner: another one, without --lib_dir."""
    return (
        f'echo "$@" >> "{folder}/{name}.calls"\n'
        'for word in "$@"; do out=$word; done\n'
        'if [ "$out" = --version ]; then echo 1.0; exit; fi\n'
        f'printf \'#!/bin/sh\\nshift 2\\nexec {runner} "$@"\\n\' > "$out"; chmod +x "$out"\n'
    )


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


def runner_on(target: str) -> Runner:
    """The native runner on a target."""
    return wb.find_runner(open_target(target))
