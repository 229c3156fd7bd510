"""The machine's peaks: probe programs, run by the runner that runs the models."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench.records.runs import Ceilings, Probe, count_threads
from workbench.run.locks import device_behind, lock_device
from workbench.run.recorder import timestamp
from workbench.run.runner import Runner, open_runner

#: Fresh processes for each probe, each on another core; the best one counts.
PROCESSES = 2
#: How long each process runs, in seconds.
SECONDS = 0.1
MAX_ITERATIONS = 2000
TIMEOUT_S = 120.0


def measure_ceilings(
    probes: Sequence[Probe],
    folder: Path,
    runner: Runner,
    isa: str,
    threads: int,
    *,
    tell: Callable[[str], None] = lambda text: None,
) -> Ceilings:
    """The peaks: each probe's shortest iteration of two fresh processes.

    ``spread`` is how much longer the worse process took. Times are CPU time with one thread and
    wall time with several.
    """
    measured = []
    with lock_device(device_behind(runner.target.name), tell):
        for probe in probes:
            tell(f"machine peaks, {isa}, {count_threads(threads)}: {probe.kind} {probe.dtype}")
            times = sorted(_run(probe, folder, runner, isa, threads, n) for n in range(PROCESSES))
            measured.append(replace(probe, ms=times[0], spread=times[-1] / times[0] - 1))
    device = device_of(runner.target.describe(), runner.description)
    return Ceilings(device["cpu"], device["runner"], isa, threads, timestamp(), tuple(measured))


def device_of(host: dict[str, Any], runner: dict[str, Any]) -> dict[str, str]:
    """The CPU and the runner's build, for which peaks are valid."""
    return {
        "cpu": f"{host.get('machine')} {host.get('cpu')}, {host.get('cores_usable')} cores",
        "runner": f"{runner.get('kind')} runner, executorch {runner.get('executorch')}",
    }


def _run(probe: Probe, folder: Path, runner: Runner, isa: str, threads: int, process: int) -> float:
    """The shortest iteration in one process, in ms."""
    path = runner.target.push(folder / probe.file)
    flags = ["--model_path", path, "--cpu_threads", str(threads), "--isa", isa]
    cores = runner.target.cores() if threads == 1 else []
    if cores:
        flags += ["--cpus", str(cores[process % len(cores)])]
    with open_runner(runner, flags, timeout_s=TIMEOUT_S) as session:
        clock = "cpu_ns" if threads == 1 else "wall_ns"
        first = min(getattr(session.run(3), clock))
        count = min(MAX_ITERATIONS, max(5, int(SECONDS * 1e9 / max(first, 1))))
        return min(getattr(session.run(count), clock)) / 1e6
