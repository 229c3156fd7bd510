"""A machine that is reached through a shell on it: files and commands go through that alone.

A device differs from another one in a single method, ``shell``: the local command that runs a
script there. What has to be there twice is there once, under its hash; what a run writes lies in a
folder of its own, which is removed at the end, or by the next one that comes along.
"""

from __future__ import annotations

import abc
import contextlib
import itertools
import os
import re
import secrets
import shlex
import subprocess
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workbench.errors import TargetError, UsageError
from workbench.run.host import name_cpu
from workbench.run.targets.base import Host
from workbench.store import atomic_write, safe_name, sha256_of

#: How long a file may take to get there or back, and anything else, in seconds.
TRANSFER_TIMEOUT_S, TIMEOUT_S = 600.0, 30.0

#: Folders of runs that this process has open.
_OPEN: set[str] = set()

_PROBE = """
echo @machine; uname -m
echo @system; uname -sr
echo @cores; nproc
echo @cpuinfo; cat /proc/cpuinfo
echo @meminfo; cat /proc/meminfo
echo @load; cat /proc/loadavg
echo @allowed; grep Cpus_allowed_list /proc/self/status
echo @governor; cat /sys/devices/system/cpu/cpu0/cpufreq/scaling_governor
echo @capacity; grep . /sys/devices/system/cpu/cpu[0-9]*/cpu_capacity
"""


class Remote(Host, abc.ABC):
    """A machine behind a shell, with a folder ``base`` there in which programs may lie and run.

    Raises
    ------
    TargetError
        It cannot be reached.
    """

    def __init__(self, name: str, base: str):
        self.name, self.base = name, base
        self._there: set[str] = set()
        self._numbers = itertools.count(1)
        self._facts = self._probe(_PROBE)
        self.run_dir = f"{base}/{_owner()}-{os.getpid()}-{secrets.token_hex(4)}"
        _OPEN.add(self.run_dir)
        self.sh(f"mkdir -p {self.quote(f'{base}/files')} {self.quote(self.run_dir)}")
        self._remove_leftovers()

    @abc.abstractmethod
    def shell(self, script: str) -> list[str]:
        """The local command that runs a shell script there; further words join the script."""

    def sh(self, script: str, *, stdin: Path | None = None, timeout_s: float = TIMEOUT_S) -> bytes:
        """Run a shell script there to its end; returns what it said.

        Raises
        ------
        TargetError
            It failed, took too long, or the machine cannot be reached.
        """
        with open(stdin or os.devnull, "rb") as source:
            try:
                done = subprocess.run(
                    self.shell(script), stdin=source, capture_output=True, timeout=timeout_s
                )
            except OSError as error:
                raise TargetError(f"cannot be reached: {error.strerror}", where=self.name) from None
            except subprocess.TimeoutExpired:
                raise TargetError(f"no answer in {timeout_s:g} s", where=self.name) from None
        if done.returncode:
            words = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
            reason = words[0] if words else f"code {done.returncode}"
            raise TargetError(reason, where=self.name, hint="is it still connected, with space?")
        return done.stdout

    def command(self, argv: Sequence[str]) -> list[str]:
        """The local command that runs ``argv`` there."""
        return self.shell(shlex.join(argv))

    def quote(self, word: str) -> str:
        """A word that the shell there takes as it is."""
        if "\0" in word:
            raise UsageError("a null byte reaches no shell", where=repr(word))
        return shlex.quote(word)

    def push(self, path: Path, *, executable: bool = False) -> str:
        """Make a local file available there, under its hash; returns its path there."""
        digest = sha256_of(path)
        remote = f"{self.base}/files/{digest[:16]}-{safe_name(path.name)}"
        if remote not in self._there:
            self._upload({path: remote}, executable=executable)
            self._there.add(remote)
        return remote

    def push_folder(self, folder: Path) -> str:
        """Make a local folder of programs available there, under its name."""
        remote = f"{self.base}/{safe_name(folder.name)}"
        self.sh(f"mkdir -p {self.quote(remote)}")
        files = sorted(path for path in folder.iterdir() if path.is_file())
        self._upload({path: f"{remote}/{path.name}" for path in files}, executable=True)
        return remote

    def place(self, path: Path) -> str:
        """A path in the run's folder there, for what belongs into a local file."""
        return f"{self.run_dir}/{next(self._numbers)}-{safe_name(path.name)}"

    def pull(self, remote: str, path: Path) -> None:
        """Fetch a file, whole, and remove it there."""
        name = self.quote(remote)
        script = f"sha256sum < {name} && cat {name} && rm -f {name}"
        said, _, content = self.sh(script, timeout_s=TRANSFER_TIMEOUT_S).partition(b"\n")
        atomic_write(path, content)
        if said.split()[:1] != [sha256_of(path).encode()]:
            raise TargetError("a file arrived damaged", where=path, hint="try another cable")

    def is_alive(self) -> bool:
        """Whether it answers."""
        with contextlib.suppress(TargetError):
            self.sh("true", timeout_s=10.0)
            return True
        return False

    @property
    def machine(self) -> str:
        """The architecture, as ``uname -m`` calls it."""
        return self._facts["machine"]

    def describe(self) -> dict[str, Any]:
        """CPU, cores, memory, kernel, frequency governor and load, as far as it tells."""
        facts = self._facts
        memory = re.search(r"MemTotal:\s*(\d+) kB", facts["meminfo"])
        return {
            "cpu": name_cpu(facts["cpuinfo"], self.machine),
            "machine": self.machine,
            "cores": int(facts["cores"]) if facts["cores"].isdecimal() else None,
            "cores_usable": len(self._allowed()) or None,
            "memory_gb": round(int(memory[1]) / 2**20, 1) if memory else None,
            "system": facts["system"],
            "governor": facts["governor"],
            "load_average": [float(x) for x in re.findall(r"\d+\.\d+", facts["load"])[:3]],
        }

    def cores(self) -> list[int]:
        """The cores that a measurement may be bound to, the slow ones left out; [] if unknown."""
        allowed = self._allowed()
        rows = re.findall(r"/cpu(\d+)/cpu_capacity:(\d+)", self._facts["capacity"])
        capacity = {int(core): int(value) for core, value in rows}
        best = max((capacity.get(core, 0) for core in allowed), default=0)
        return [core for core in allowed if capacity.get(core, 0) == best]

    def close(self) -> None:
        """Remove the run's folder, if the machine can still be reached."""
        _OPEN.discard(self.run_dir)
        with contextlib.suppress(TargetError):
            self.sh(f"rm -rf {self.quote(self.run_dir)}")

    def _probe(self, script: str) -> dict[str, str]:
        """What a script says, by the headings ``@name`` that it echoes."""
        text = self.sh(f"{{ {script}\n}} 2>/dev/null; true").decode(errors="replace")
        parts = re.split(r"^@(\w+)\s*$", text, flags=re.MULTILINE)
        return {name: body.strip() for name, body in zip(parts[1::2], parts[2::2], strict=True)}

    def _allowed(self) -> list[int]:
        ranges = re.findall(r"(\d+)(?:-(\d+))?", self._facts["allowed"].partition(":")[2])
        return [core for low, high in ranges for core in range(int(low), int(high or low) + 1)]

    def _upload(self, files: dict[Path, str], *, executable: bool) -> None:
        """Bring files to paths there, but those that are there already."""
        names = " ".join(map(self.quote, files.values()))
        listed = self.sh(f"sha256sum {names} 2>/dev/null || true").decode(errors="replace")
        there = {path: digest for digest, path in re.findall(r"^(\w{64})\s+(.*)$", listed, re.M)}
        for path, remote in files.items():
            digest = sha256_of(path)
            if there.get(remote) == digest:
                continue
            new = self.quote(f"{remote}.{secrets.token_hex(4)}")
            mode = "755" if executable else "644"
            script = f"cat > {new} && chmod {mode} {new} && sha256sum < {new}"
            said = self.sh(script, stdin=path, timeout_s=TRANSFER_TIMEOUT_S)
            if said.split()[:1] != [digest.encode()]:
                self.sh(f"rm -f {new}")
                raise TargetError(f"{path.name} arrived damaged", where=self.name)
            self.sh(f"mv -f {new} {self.quote(remote)}")

    def _remove_leftovers(self) -> None:
        """Remove folders of runs of this machine and user whose process is gone."""
        listed = self.sh(f"ls {self.quote(self.base)}").decode(errors="replace").split()
        for name in listed:
            found = re.fullmatch(rf"{_owner()}-(\d+)-\w{{8}}", name)
            path = f"{self.base}/{name}"
            if found and path not in _OPEN and not _is_running(int(found[1])):
                self.sh(f"rm -rf {self.quote(path)}")


class LocalShell(Remote):
    """A shell on this very machine, as if it were another one: for tests, and to try things out."""

    platform = "shell"

    def __init__(self, base: Path):
        super().__init__("shell", os.fspath(base))

    def shell(self, script: str) -> list[str]:
        """A local shell; like adb and ssh it takes further words as part of the script."""
        return ["sh", "-c", 'eval "$*"', "sh", script]


def _owner() -> str:
    """Who makes folders on other machines: this machine and user."""
    return f"run-{uuid.getnode():x}-{os.getuid()}"


def _is_running(pid: int) -> bool:
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
