"""The packages that a bundle for another machine takes."""

import zipfile
from importlib import metadata
from pathlib import Path

from devices import Tools

ZIG = "0.16.0"
LIBRARIES = (
    *("executorch", "executorch_etdump", "executorch_threadpool", "executorch_backend_xnnpack"),
    *("executorch_kernels_optimized", "executorch_kernels_quantized"),
)
C_LIBRARIES = (
    *("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1"),
    *("libstdc++.so.6", "libgcc_s.so.1"),
)
LOADERS = {"aarch64": "ld-linux-aarch64.so.1", "x86_64": "ld-linux-x86-64.so.2"}
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
    names = [f"executorch/lib/lib{name}.so" for name in LIBRARIES]
    packages = {f"executorch=={metadata.version('executorch')}": names}
    packages[f"ziglang=={ZIG}"] = ["ziglang/zig"]
    for package, files in packages.items():
        with zipfile.ZipFile(tools.folder / f"{package}.whl", "w") as wheel:
            for name in files:
                wheel.writestr(name, "#!/bin/sh\n" + _compiler(tools.folder, runner, "zig"))
    tools.write("pip3", PIP.format(folder=tools.folder))
    tools.write("apt-get", APT)
    loader = LOADERS[machine]
    folder = f'"$3/usr/lib/{machine}-linux-gnu"'
    files = " ".join(C_LIBRARIES)
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
