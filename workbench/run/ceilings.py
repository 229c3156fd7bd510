"""What a machine can do at most: probes, run by the very runner that runs the models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from workbench.records.runs import Ceilings, Probe, count_threads
from workbench.run.locks import device_behind, take_device
from workbench.run.runner import Runner, open_runner

#: Fresh processes for each probe, on a core of their own each; the best one counts.
PROCESSES = 2
#: How long each of them runs, in seconds.
SECONDS = 0.5
_MOST_LAPS = 2000
_TIMEOUT_S = 120.0


def measure_ceilings(
    probes: Sequence[Probe],
    folder: Path,
    runner: Runner,
    isa: str,
    threads: int,
    *,
    tell: Callable[[str], None] = lambda text: None,
) -> Ceilings:
    """Run each probe in two fresh processes and keep its shortest times.

    The ceiling is what the machine *can* do: the shortest lap of the better process, ``spread`` how
    far the other one's lay from it. Times are CPU time with one thread and wall time with several.

    Parameters
    ----------
    probes, folder
        Programs, and where they lie.
    runner
        The one that ran the model.
    isa, threads
        The level and the thread count to measure at.

    Raises
    ------
    RunnerError
        A probe failed.
    """
    measured = []
    with take_device(device_behind(runner.target.name), tell):
        for probe in probes:
            tell(f"ceilings, {isa}, {count_threads(threads)}: {probe.kind} {probe.dtype}")
            times = sorted(_run(probe, folder, runner, isa, threads, n) for n in range(PROCESSES))
            measured.append(replace(probe, ms=times[0], spread=times[-1] / times[0] - 1))
    return Ceilings(
        **device_of(runner.target.describe(), runner.description),
        isa=isa,
        threads=threads,
        measured=datetime.now(UTC).isoformat(timespec="seconds"),
        probes=tuple(measured),
    )


def device_of(host: dict[str, object], runner: dict[str, object]) -> dict[str, str]:
    """What ceilings hold for: the CPU, and the wheel that the kernels are from."""
    return {
        "cpu": f"{host.get('machine')} {host.get('cpu')}, {host.get('cores_usable')} cores",
        "runner": f"{runner.get('kind')} runner, executorch {runner.get('executorch')}",
    }


def _run(probe: Probe, folder: Path, runner: Runner, isa: str, threads: int, process: int) -> float:
    """The time that one execution takes at its best in one process, in ms."""
    path = runner.target.push(folder / probe.file)
    flags = ["--model_path", path, "--cpu_threads", str(threads), "--isa", isa]
    cores = runner.target.cores() if threads == 1 else []
    if cores:
        flags += ["--cpus", str(cores[process % len(cores)])]
    with open_runner(runner, flags, timeout_s=_TIMEOUT_S) as session:
        clock = "cpu_ns" if threads == 1 else "wall_ns"
        first = min(getattr(session.run(3), clock))
        count = int(np.clip(SECONDS * 1e9 / max(first, 1), 5, _MOST_LAPS))
        laps = getattr(session.run(count), clock)
    return float(np.min(laps)) / 1e6
