"""Other machines, played by scripts on PATH, and compiled code: for tests of several files."""

import shlex
import shutil
import subprocess
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import workbench as wb
from workbench.run import build
from workbench.run.bundle import BACKENDS, C_LIBRARIES, CPP_LIBRARIES, KERNELS
from workbench.run.runner import Runner
from workbench.run.targets import open_target

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="no C++ compiler"
)
SDK = build.find_sdk()
NATIVE = Path(wb.__file__).parent / "run" / "native"

TRACE = Path(__file__).parent / "data" / "etdump" / "native_fp32.etdump"
#: A custom runner that copies a trace instead of making one.
COPY_TRACE = f"""for word in "$@"; do
[ "$last" = --etdump_path ] && cp {shlex.quote(str(TRACE))} "$word"; last=$word
done"""
#: Runs what it is asked to in a local shell; its home has a name that careless commands trip over.
SSH = """
if [ "$1" = -V ]; then echo OpenSSH_9 >&2; exit; fi
while :; do case $1 in -o|-O) shift 2;; -*) shift;; *) break;; esac; done
shift
if [ -e '{home}.unplugged' ]; then echo 'device offline' >&2; exit 255; fi
if [ $# = 0 ]; then exit; fi
HOME='{home}' exec sh -c "$*"
"""
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


class Tools:
    """A folder on PATH: what a test writes into it, and how it was called."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir()

    def write(self, name: str, body: str, log: bool = True) -> Path:
        """Write a shell script, which logs how it is called."""
        path = self.folder / name
        logs = f'echo "$@" >> "{path}.calls"\n' if log else ""
        path.write_text(f"#!/bin/sh\n{logs}PATH=$PATH:/usr/bin:/bin\n{body}\n")
        path.chmod(0o755)
        return path

    def calls(self, name: str) -> list[str]:
        """How a script was called."""
        log = self.folder / f"{name}.calls"
        return log.read_text().splitlines() if log.exists() else []

    def write_ssh(self, home: Path) -> None:
        """Let every ssh host be this machine; it is out of reach while HOME.unplugged exists."""
        home.mkdir()
        self.write("ssh", SSH.format(home=str(home).replace("'", "'\\''")), log=False)

    def write_packages(self, machine: str, runner: str) -> None:
        """Let pip and apt have what a bundle takes, and compile ``runner`` for a machine."""
        libraries = (*build.LIBRARIES, *KERNELS, *BACKENDS)
        names = [f"executorch/lib/lib{name}.so" for name in libraries]
        packages = {f"executorch=={metadata.version('executorch')}": names}
        packages[f"ziglang=={build.ZIG}"] = ["ziglang/zig"]
        for package, files in packages.items():
            with zipfile.ZipFile(self.folder / f"{package}.whl", "w") as wheel:
                for name in files:
                    wheel.writestr(name, "#!/bin/sh\n" + self._compiler(runner, "zig"))
        self.write("pip3", PIP.format(folder=self.folder))
        self.write("apt-get", APT)
        _, loader = build.ARCHITECTURES[machine]
        folder = f'"$3/usr/lib/{machine}-linux-gnu"'
        files = " ".join((*C_LIBRARIES, *CPP_LIBRARIES))
        # The loader is a script that starts what it is to load.
        start = f"printf '#!/bin/sh\\nshift 2\\nexec \"$@\"\\n' > {loader}; chmod +x {loader}"
        self.write("dpkg-deb", f"mkdir -p {folder}; cd {folder}; touch {files}; {start}")
        self.write(f"{machine}-linux-gnu-g++", self._compiler(runner, "g++"))

    def _compiler(self, runner: str, name: str) -> str:
        """A script that writes a runner: another one, without --lib_dir."""
        return (
            f'echo "$@" >> "{self.folder}/{name}.calls"\n'
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


class Board:
    """A machine reached by ssh, which is this one; all that the workbench has there."""

    def __init__(self, tools, home):
        self.tools, self.home = tools, home
        self.base = home / ".cache" / "executorch-workbench" / "target"

    def unplug(self):
        self._mark.touch()

    def plug(self):
        self._mark.unlink()

    @property
    def _mark(self):
        return self.home.with_name(f"{self.home.name}.unplugged")

    @property
    def runs(self):
        return sorted(path.name for path in self.base.glob("run-*"))


def pretend_clusters(board, khz):
    """Let the board state the largest clock of each core."""
    name = "/sys/devices/system/cpu/cpu{}/cpufreq/cpuinfo_max_freq:{}"
    lines = "\\n".join(name.format(core, clock) for core, clock in enumerate(khz))
    script = (board.tools.folder / "ssh").read_text()
    edit = f"/cpu_capacity:/d; s|^@frequency|&\\n{lines}|"
    script = script.replace('exec sh -c "$*"', f"sh -c \"$*\" | sed '{edit}'")
    board.tools.write("ssh", script, log=False)
