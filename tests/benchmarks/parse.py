"""Speed of ``read_etdump``, compared with ``executorch.devtools.Inspector`` on the same file.

    python tests/benchmarks/parse.py [--events 1000,100000,1000000,10000000]

The traces are recorded with the runtime in the wheel. Every reader runs in its own process, on one
core. Times are CPU time, including child processes; imports are timed only in "first table", from
the start of the interpreter to the table.

Rates are medians of several reads. ``+RSS`` is the increase in peak resident memory, including the
mapped file. Exits 1 if a claim does not hold: from 100 000 events on 100 times the Inspector's
speed, 1.5 million events/s and at most 4 times the file's size, and half a second to the first
table of 10 MB.
"""

import argparse
import importlib.metadata
import logging
import multiprocessing
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

PROGRAM = Path(__file__).parents[1] / "data" / "etdump" / "two_methods.pte"
EVENTS_PER_RUN = 7
EVENTS_IN_10_MB = 130_000
MAX_INSPECTED = 200_000

# The claims; those on rates and memory apply from CLAIMED_FROM events on.
MIN_RATIO = 100
MIN_RATE = 1.5e6
MAX_MEMORY = 4
MAX_SECONDS = 0.5
CLAIMED_FROM = 100_000


def record(path: Path, events: int) -> None:
    """Record a trace of about ``events`` events."""
    _quieten()
    import torch
    from executorch.extension.pybindings.portable_lib import _load_for_executorch

    program = _load_for_executorch(str(PROGRAM), enable_etdump=True)
    image = (torch.ones(1, 3, 8, 8),)
    for _ in range(-(-events // EVENTS_PER_RUN)):
        program.run_method("encode", image)
    program.write_etdump_result_to_file(str(path))


def read(path: Path, times: int) -> dict[str, float]:
    """Seconds and memory of ``read_etdump``."""
    from workbench.trace.etdump import read_etdump

    before, seconds = _peak_rss(), []
    for _ in range(times):
        begin = _cpu_seconds()
        events = len(read_etdump(path))
        seconds.append(_cpu_seconds() - begin)
    return {
        "events": events,
        "seconds": statistics.median(seconds),
        "memory": _peak_rss() - before,
    }


def inspect(path: Path) -> float:
    """Seconds of the Inspector for the same file."""
    _quieten()
    from executorch.devtools import Inspector

    begin = _cpu_seconds()
    Inspector(etdump_path=str(path)).to_dataframe()
    return _cpu_seconds() - begin


def time_first_table(path: Path, times: int = 7) -> float:
    """Seconds from the start of the interpreter to the table."""
    code = "import sys; from workbench.trace.etdump import read_etdump; read_etdump(sys.argv[1])"
    seconds = []
    for _ in range(times):
        begin = _cpu_seconds()
        subprocess.run([sys.executable, "-c", code, path], check=True)
        seconds.append(_cpu_seconds() - begin)
    return statistics.median(seconds)


def _cpu_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _peak_rss() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _quieten() -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    # The C++ runtime writes to the file descriptor, not to a logger.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def in_process(function, *arguments):
    """The function's result, from a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def measure(path: Path, events: int) -> list[str]:
    """Print one row of the table; returns the claims that do not hold."""
    in_process(record, path, events)
    size = path.stat().st_size
    times = max(3, min(25, 2_000_000 // events))
    ours = in_process(read, path, times)
    theirs = in_process(inspect, path) if events <= MAX_INSPECTED else None
    path.unlink()
    events = ours["events"]
    rate, memory = events / ours["seconds"], ours["memory"] / size
    ratio = theirs / ours["seconds"] if theirs else None
    print(
        f"{events:>10,} {size / 1e6:>7.2f}"
        f" {1e3 * ours['seconds']:>8.1f} {rate:>10,.0f}"
        f" {ours['memory'] / 1e6:>8.1f} {f'{memory:.1f}x' if size > 1e6 else '':>5}"
        + (f" {events / theirs:>9,.0f} {ratio:>6.0f}" if theirs else ""),
        flush=True,
    )
    if events < CLAIMED_FROM:
        return []
    claims = {
        f"{MIN_RATIO} times the Inspector": ratio is None or ratio >= MIN_RATIO,
        f"{MIN_RATE:,.0f} events/s": rate >= MIN_RATE,
        f"{MAX_MEMORY} times the file": memory <= MAX_MEMORY,
    }
    return [f"{events:,} events: {claim}" for claim, met in claims.items() if not met]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--events", default="1000,100000,1000000,10000000", help="sizes, separated by commas"
    )
    options = parser.parse_args()

    packages = ("executorch", "torch", "numpy", "pandas")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    print(f"{_processor()}, {os.cpu_count()} cores; {platform.platform(terse=True)}")
    print(f"Python {platform.python_version()}, {versions}")
    print(f"{'':>18} {'read_etdump':^34} {'Inspector':^16}")
    print(
        f"{'events':>10} {'MB':>7} {'ms':>8} {'events/s':>10}"
        f" {'+RSS MB':>8} {'file':>5} {'events/s':>9} {'ratio':>6}"
    )
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.etdump"
        for events in map(int, options.events.split(",")):
            missed += measure(path, events)
        in_process(record, path, EVENTS_IN_10_MB)
        seconds = time_first_table(path)
        size = path.stat().st_size / 1e6
    print(f"first table of {size:.1f} MB, with interpreter and imports: {seconds:.2f} s")
    if seconds >= MAX_SECONDS:
        missed.append(f"{MAX_SECONDS} s to the first table")
    for claim in missed:
        print(f"missed: {claim}", file=sys.stderr)
    return int(bool(missed))


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


if __name__ == "__main__":
    sys.exit(main())
