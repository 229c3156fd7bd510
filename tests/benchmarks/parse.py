"""How fast ``read_etdump`` is, against ``executorch.devtools.Inspector`` on the same file.

    python tests/benchmarks/parse.py [--events 1000,100000] [--least 100]

Traces are recorded on the spot by the runtime in the wheel, up to a million events; larger ones are
one block written over and over. Each reader runs in a process of its own. Its imports are not
timed; the Inspector reads once, ``read_etdump`` once and then five times more, of which the median
counts. ``+RSS`` is what reading added to the peak of resident memory, the mapped file included.
Exit code 1 if ``read_etdump`` is less than ``--least`` times as fast as the Inspector on a trace of
100 000 events or more.
"""

import argparse
import importlib.metadata
import logging
import multiprocessing
import os
import platform
import resource
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path

PROGRAM = Path(__file__).parents[1] / "data" / "etdump" / "two_methods.pte"
EVENTS_PER_RUN = 7
MOST_RECORDED = 1_000_000
MOST_INSPECTED = 200_000
GATED_FROM = 100_000


def record(path: Path, events: int) -> None:
    """Record a trace of about ``events`` events by running a program that often."""
    _quieten()
    import torch
    from executorch.extension.pybindings.portable_lib import _load_for_executorch

    program = _load_for_executorch(str(PROGRAM), enable_etdump=True)
    image = (torch.ones(1, 3, 8, 8),)
    for _ in range(-(-events // EVENTS_PER_RUN)):
        program.run_method("encode", image)
    program.write_etdump_result_to_file(str(path))


def repeat(path: Path, events: int) -> None:
    """Write a trace of ``events`` events that is one block over and over."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from etdump_builder import Block, Profile, repeat_block

    operators = ["Transpose (ND, X32) #1", "Convolution (NHWC, F32) IGEMM #1"]
    run = [
        *[Profile(None, 0, 0, delegate_str=name, metadata=b"", end=9) for name in operators],
        Profile("DELEGATE_CALL", 0, 0, end=20),
        Profile("native_call_mean.out", 0, 1, start=20, end=29),
        Profile("OPERATOR_CALL", 0, 1, start=20, end=30),
        Profile("Method::execute", -1, 0, end=40),
    ]
    path.write_bytes(repeat_block(Block("Execute", run), events // len(run)))


def time_reader(path: Path) -> dict[str, float]:
    """Seconds of ``read_etdump`` cold and warm, and the memory that it takes."""
    from workbench.trace import read_etdump

    before = _peak_rss()
    seconds = []
    for _ in range(6):
        begin = time.perf_counter()
        events = len(read_etdump(path))
        seconds.append(time.perf_counter() - begin)
    return {
        "events": events,
        "cold": seconds[0],
        "warm": statistics.median(seconds[1:]),
        "memory": _peak_rss() - before,
    }


def time_inspector(path: Path) -> float:
    """Seconds that the Inspector takes to read the same file into its data frame."""
    _quieten()
    from executorch.devtools import Inspector

    begin = time.perf_counter()
    Inspector(etdump_path=str(path)).to_dataframe()
    return time.perf_counter() - begin


def _peak_rss() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _quieten() -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    # The runtime's C++ lines go to the file descriptor, past every logger.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def apart(function, *arguments):
    """The function's result, from a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def measure(folder: Path, events: int) -> float | None:
    """Print one row of the table; returns how many times faster than the Inspector."""
    path = folder / f"{events}.etdump"
    recorded = events <= MOST_RECORDED
    apart(record if recorded else repeat, path, events)
    size = path.stat().st_size
    ours = apart(time_reader, path)
    theirs = apart(time_inspector, path) if events <= MOST_INSPECTED else None
    path.unlink()
    ratio = theirs / ours["warm"] if theirs else None
    rate, times = ours["events"] / ours["warm"], ours["memory"] / size
    print(
        f"{ours['events']:>10,} {'recorded' if recorded else 'repeated':>9} {size / 1e6:>8.2f}"
        f" {1e3 * ours['cold']:>9.1f} {1e3 * ours['warm']:>9.1f} {rate:>11,.0f}"
        f" {ours['memory'] / 1e6:>8.1f} {f'{times:.1f}x file' if size > 1e6 else '':>10}"
        + (f" {ours['events'] / theirs:>11,.0f} {ratio:>7.0f}" if theirs else ""),
        flush=True,
    )
    return ratio


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", default="1000,100000", help="sizes, separated by commas")
    parser.add_argument("--least", type=float, default=100, help="ratio below which to fail")
    options = parser.parse_args()

    packages = ("executorch", "torch", "numpy", "pandas")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    print(f"{_processor()}, {os.cpu_count()} cores; {platform.platform(terse=True)}")
    print(f"Python {platform.python_version()}, {versions}")
    print(f"{'':>29} {'read_etdump':^51} {'Inspector':^19}")
    print(
        f"{'events':>10} {'trace':>9} {'MB':>8} {'cold ms':>9} {'warm ms':>9} {'events/s':>11}"
        f" {'+RSS MB':>8} {'':>10} {'events/s':>11} {'ratio':>7}"
    )
    too_slow = False
    with tempfile.TemporaryDirectory() as folder:
        for events in map(int, options.events.split(",")):
            ratio = measure(Path(folder), events)
            too_slow |= ratio is not None and events >= GATED_FROM and ratio < options.least
    return int(too_slow)


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


if __name__ == "__main__":
    sys.exit(main())
