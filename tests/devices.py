"""Other machines, played by scripts on PATH: for tests of several files."""

import shlex
import shutil
from pathlib import Path

import pytest

import workbench as wb

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="no C++ compiler"
)
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


def find_check(subject):
    """What the doctor says of a subject."""
    (check,) = [check for check in wb.examine_machine() if check.subject == subject]
    return check
