"""The local machine, the interface that all targets share, and readings of their state."""

import io
import os
import platform
import re
import selectors
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import IO, Any, Self

from workbench.errors import TargetError
from workbench.options import Progress, silent
from workbench.run.build import build_runner, find_sdk
from workbench.store import sha256_of

#: Of an answer that is kept in memory, in bytes: ``/proc/cpuinfo`` takes 2 kB a core.
LONGEST_ANSWER = 2**22
#: Time limit of a command, in seconds.
TIMEOUT_S = 30.0
#: Of facts about a machine, in characters.
LONGEST_FACT = 200


def ask(
    command: Sequence[str | os.PathLike[str]],
    name: str,
    timeout_s: float,
    *,
    stdin: IO[bytes] | None = None,
    out: IO[bytes] | None = None,
    most: int = LONGEST_ANSWER,
) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end; TargetError if that takes too long, or it says too much.

    Its standard output goes to the file ``out``, if there is one.
    """
    deadline, size, streams = time.monotonic() + timeout_s, 0, (out or io.BytesIO(), io.BytesIO())
    source = stdin or subprocess.DEVNULL
    try:
        with (
            subprocess.Popen(command, stdin=source, stdout=-1, stderr=-1) as process,
            selectors.DefaultSelector() as pipes,
        ):
            try:
                for pipe, file in zip((process.stdout, process.stderr), streams, strict=True):
                    assert pipe
                    pipes.register(pipe, selectors.EVENT_READ, file)
                while pipes.get_map():
                    ready = pipes.select(max(0.0, deadline - time.monotonic()))
                    if time.monotonic() > deadline:
                        raise subprocess.TimeoutExpired(command, timeout_s)
                    for key, _ in ready:
                        size += key.data.write(part := os.read(key.fd, 2**18))
                        if not part:
                            pipes.unregister(key.fileobj)
                    check_length(size, name, most)
                code = process.wait(max(0.0, deadline - time.monotonic()))
            finally:
                process.kill()
    except OSError as error:
        raise TargetError(f"cannot be reached: {error.strerror}", where=name) from None
    except subprocess.TimeoutExpired:
        raise TargetError(f"no answer in {timeout_s:g} s", where=name) from None
    output = streams[0].getvalue() if isinstance(streams[0], io.BytesIO) else b""
    return subprocess.CompletedProcess(command, code, output, streams[1].getvalue())


def check_length(size: int, name: str, most: int = LONGEST_ANSWER) -> None:
    """TargetError if an answer is too long."""
    if size > most:
        raise TargetError(f"an answer of more than {most / 1e6:.0f} MB", where=name)


def platform_name(system: str, machine: str) -> str:
    """The platform's name: ``mac``, ``linux`` or ``linux-aarch64``."""
    if system == "darwin":
        return "mac"
    return "linux" if machine in ("x86_64", "AMD64") else f"linux-{machine}"


#: Prints what Linux, Android and macOS say of the machine, as far as they do.
FACTS = """
echo @machine; uname -m
echo @system; uname -sr
echo @cores; grep -c ^processor /proc/cpuinfo || sysctl -n hw.ncpu
echo @cpuinfo; cat /proc/cpuinfo || echo "model name : $(sysctl -n machdep.cpu.brand_string)"
echo @meminfo; cat /proc/meminfo || echo "MemTotal: $(($(sysctl -n hw.memsize) / 1024)) kB"
echo @load; cat /proc/loadavg || sysctl -n vm.loadavg
echo @allowed; grep Cpus_allowed_list /proc/self/status
echo @governor; cat /sys/devices/system/cpu/cpu0/cpufreq/scaling_governor
echo @capacity; grep . /sys/devices/system/cpu/cpu[0-9]*/cpu_capacity
echo @frequency; grep . /sys/devices/system/cpu/cpu[0-9]*/cpufreq/cpuinfo_max_freq
"""


class Host:
    """The local machine, and the interface of targets; times of ``emulated`` ones mean nothing."""

    name = "host"
    emulated = False
    modes: Collection[str] = ()
    ask = staticmethod(ask)
    check_length = staticmethod(check_length)
    name_platform = staticmethod(platform_name)
    hash_file = staticmethod(sha256_of)

    def __init__(self, rest: str = "", power: str = "") -> None:
        """Reach what the ``rest`` of its name says, in one of its power ``modes``."""

    @staticmethod
    def examine() -> Iterator[tuple[str, ...]]:
        """What such targets lack here: subject, status, detail and fix of checks of the doctor."""
        yield from ()

    @property
    def platform(self) -> str:
        """The platform's name."""
        return platform_name(sys.platform, self.machine)

    @property
    def machine(self) -> str:
        """The architecture, as ``uname -m`` calls it."""
        return platform.machine()

    def command(self, argv: Sequence[str]) -> list[str]:
        """The local command that runs ``argv`` there; more words, quoted by `quote`, may follow."""
        return list(argv)

    def quote(self, word: str) -> str:
        """A word, quoted so that it arrives unchanged when it follows a `command`."""
        return word

    def install_runner(self, progress: Progress = silent) -> tuple[list[str], Path, Path]:
        """The command that starts the runner there, its binary here, and its libraries here."""
        binary = build_runner(progress=progress)
        return [str(binary)], binary, find_sdk() / "lib"

    def push(self, path: Path) -> str:
        """Copy a local file there unless it is there already; returns its path there."""
        return os.fspath(path)

    def push_folder(self, folder: Path) -> str:
        """Copy a local folder of programs there; returns its path there."""
        return os.fspath(folder)

    def place(self, path: Path) -> str:
        """Where a program there must write the contents of the local file ``path``."""
        return os.fspath(path)

    def pull(self, remote: str, path: Path) -> None:
        """Copy a file that was written there to the local file ``path``."""

    def is_alive(self) -> bool:
        """Whether it can still be reached."""
        return True

    def outline(self) -> dict[str, Any]:
        """CPU, cores, memory, kernel, frequency governor and load, as far as they are known."""
        facts = self.probe(FACTS)  # the load changes
        memory = re.search(r"MemTotal:\s*(\d{1,15}) kB", facts["meminfo"])
        flags = re.search(r"^flags\s*:(.*)$", facts["cpuinfo"], re.MULTILINE)
        cores = int(facts["cores"]) if re.fullmatch("[0-9]{1,4}", facts["cores"]) else None
        return {
            "cpu": name_cpu(facts["cpuinfo"], self.machine)[:LONGEST_FACT],
            "machine": self.machine,
            "cores": cores,
            "cores_usable": len(self._allowed()) or cores,
            "memory_gb": round(int(memory[1]) / 2**20, 1) if memory else None,
            "system": facts["system"][:LONGEST_FACT],
            "virtual": "hypervisor" in flags[1].split() if flags else None,
            "governor": facts["governor"][:LONGEST_FACT],
            "clusters": ", ".join(f"{n} x {mhz} MHz" for n, mhz in self.clusters)[:LONGEST_FACT],
            "load_average": [float(x) for x in re.findall(r"\d+\.\d+", facts["load"][:99])[:3]],
        }

    def sh(self, script: str) -> bytes:
        """Run a shell script there; returns its output."""
        return ask(["sh", "-c", script], self.name, TIMEOUT_S).stdout

    def probe(self, script: str) -> dict[str, str]:
        """The output of a script, by the headings ``@name`` that it echoes; TargetError without."""
        text = self.sh(f"{{ {script}\n}} 2>/dev/null; true").decode(errors="replace")
        parts = re.split(r"^@(\w+)\s*$", text, flags=re.MULTILINE)
        answers = {name: body.strip() for name, body in zip(parts[1::2], parts[2::2], strict=True)}
        if missing := [name for name in re.findall(r"@(\w+)", script) if name not in answers]:
            what = f"does not answer as a shell does: no {missing[0]}"
            raise TargetError(what, where=self.name, hint="see what `uname -m` prints there")
        return answers

    @cached_property
    def facts(self) -> dict[str, str]:
        """What its system says of itself; see `FACTS`."""
        return self.probe(FACTS)

    def cores(self) -> list[int]:
        """The cores to pin measurements to, without a mixed CPU's slow ones; [] if unknown."""
        capacity = _by_core(self.facts["capacity"])
        best = max((capacity.get(core, 0) for core in self._allowed()), default=0)
        return [core for core in self._allowed() if capacity.get(core, 0) == best]

    @property
    def clusters(self) -> list[tuple[int, int]]:
        """How many cores share a largest clock, and that in MHz, the fastest first; [] if unknown.

        Cores of one clock may differ in their capacity, which decides then.
        """
        capacity, khz = (_by_core(self.facts[name]) for name in ("capacity", "frequency"))
        kinds = Counter((capacity.get(core, 0), clock) for core, clock in khz.items())
        return [(count, clock // 1000) for (_, clock), count in sorted(kinds.items())[::-1]]

    def _allowed(self) -> list[int]:
        """The cores of a list such as ``0-3,8``; [] if it is none."""
        listed = self.facts["allowed"].partition(":")[2].strip()
        if not re.fullmatch(r"[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?){,999}", listed):
            return []
        ranges = re.findall(r"(\d+)(?:-(\d+))?", listed)
        return sorted({n for low, high in ranges for n in range(int(low), int(high or low) + 1)})

    def core(self, threads: int, process: int) -> int | None:
        """The core that all single-threaded programs of a restart share: no two are equal."""
        cores = self.cores() if threads == 1 else []
        return cores[process % len(cores)] if cores else None

    def is_lost(self, code: int) -> bool:
        """Whether a command ended with ``code`` because the target is out of reach."""
        return not self.is_alive()

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """Prepare the target for measuring; undone at the end."""
        yield

    def close(self) -> None:
        """Clean up."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _by_core(text: str) -> dict[int, int]:
    """The numbers in files of cores, as ``grep`` prints them."""
    rows = re.findall(r"/cpu(\d{1,4})/[a-z_/]{1,40}:(\d{1,9})$", text, re.MULTILINE)
    return {int(core): int(value) for core, value in rows}


HOST = Host()


def name_cpu(cpuinfo: str, machine: str) -> str:
    """The CPU's name from the text of ``/proc/cpuinfo``, or Arm's implementer and part numbers."""
    if named := re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE):
        return named[1].strip()
    ids = [re.search(rf"^CPU {key}\s*:\s*(\S+)$", cpuinfo, re.M) for key in ("implementer", "part")]
    parts = " ".join(match[1] for match in ids if match)
    return f"{machine} {parts}".strip()


#: Prints one reading per line, and nothing for what a system does not have. The paths are those of
#: the Linux kernel's documentation (cpufreq, thermal, thermal_throttle); Android has them too.
READINGS = r"""
show() { word=$1; shift; for f in "$@"; do [ -r "$f" ] && echo "$word $(cat "$f")"; done; }
show load /proc/loadavg
show khz /sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq
show governor /sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor
show millidegrees /sys/class/thermal/thermal_zone*/temp
show throttled /sys/devices/system/cpu/cpu[0-9]*/thermal_throttle/core_throttle_count
[ -r /proc/cpuinfo ] && grep '^cpu MHz' /proc/cpuinfo
command -v dumpsys >/dev/null && dumpsys thermalservice | grep 'Thermal Status'
[ -r /proc/loadavg ] || sysctl -n vm.loadavg 2>/dev/null
true
"""
READING_TIMEOUT_S = 5.0
#: Zones outside of this range, in degrees Celsius, measure something else.
PLAUSIBLE_C = (1.0, 150.0)


def read_environment(target: Host) -> dict[str, Any]:
    """The fields of ``records.Reading`` that this target reports; empty if there are none."""
    try:
        command = target.command(["sh", "-c", READINGS])
        done = ask(command, target.name, READING_TIMEOUT_S)
    except TargetError:
        return {}
    return parse_environment(done.stdout.decode(errors="replace"))


def parse_environment(text: str) -> dict[str, Any]:
    """Parse the output of ``READINGS``, in kHz and millidegrees; other lines are skipped."""
    number = r"(\d{1,12}(?:\.\d{1,6})?)"
    environment: dict[str, Any] = {}
    if load := re.search(rf"^(?:load|\{{) ?{number} ", text, re.MULTILINE):
        environment["load"] = float(load[1])
    clocks = [khz / 1e3 for khz in _numbers(rf"^khz {number}$", text)]
    clocks = clocks or _numbers(rf"^cpu MHz\s*: {number}$", text)
    if clocks:
        environment["mhz"] = round(median(clocks), 1)
    if governors := re.findall(r"^governor (\w{1,40})$", text, re.MULTILINE):
        environment["governor"] = ", ".join(dict.fromkeys(governors))
    zones = [value / 1e3 for value in _numbers(rf"^millidegrees {number}$", text)]
    low, high = PLAUSIBLE_C
    if zones := [value for value in zones if low <= value <= high]:
        environment["temperature_c"] = round(max(zones), 1)
    if counts := _numbers(r"^throttled (\d{1,12})$", text):
        environment["throttled"] = int(sum(counts))
    if status := re.search(r"Thermal Status: (\d)\b", text):
        environment["thermal_status"] = int(status[1])
    return environment


def _numbers(pattern: str, text: str) -> list[float]:
    return [float(value) for value in re.findall(pattern, text, re.MULTILINE)]
