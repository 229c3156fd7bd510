"""The machine's peaks: probe programs, run by the runner that runs the models, and cached."""

import contextlib
import hashlib
import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from workbench.errors import StoreError, UsageError
from workbench.frames import EMULATED
from workbench.options import Progress, silent
from workbench.records.codec import to_json
from workbench.records.runs import Ceilings, Probe, RunRecord, count_threads
from workbench.run.locks import THIS_MACHINE, device_behind, lock_device
from workbench.run.recorder import timestamp
from workbench.run.runner import Runner, find_runner, open_runner
from workbench.run.targets import open_target
from workbench.store import (
    atomic_write,
    cache_folder,
    cached,
    ceilings_path,
    load_record,
    load_run,
)

#: Fresh processes for each probe, each on another core; the best one counts.
PROCESSES = 2
#: How long each process runs, in seconds.
SECONDS = 0.1
MAX_ITERATIONS = 2000
TIMEOUT_S = 120.0
#: What matrix products are probed in.
_PROBED = ("fp32", "fp16", "int8")
_PROBES = "probes.json"
#: Peaks that vary by more between processes are not kept: the machine was busy.
STEADY = 0.25


def measure_roof(
    run_dir: str | Path,
    *,
    again: bool = False,
    target: str = "",
    runner: Runner | None = None,
    progress: Progress = silent,
) -> list[Ceilings]:
    """Measure the peaks of a run's machine, at each of the run's ISA levels and thread counts.

    Peaks are cached by machine, runner, level and thread count; a copy is written into the run's
    folder.

    Parameters
    ----------
    run_dir
        The run's folder.
    again
        Measure again even if the peaks are cached, for example because the machine was busy.
    target
        Where to measure; by default where the run was made, if that was this machine.
    runner
        A runner on the target, if one is known.
    progress
        Called with what is being done and the fraction done.

    Raises
    ------
    UsageError
        The run was emulated, or recorded on another machine.
    SetupError, RunnerError
        The probes cannot be made or run.

    Examples
    --------
    >>> peaks = wb.measure_roof("out_toy_cnn/runs/RUN")  # doctest: +SKIP
    """
    run_dir = Path(run_dir)
    run = load_run(run_dir)
    if run.emulated:
        raise UsageError("an emulated run has no ceilings", where=run_dir, hint=EMULATED)
    measured: list[Ceilings] = []
    started, new = time.monotonic(), 0
    with contextlib.ExitStack() as stack:
        for isa, threads in list_roofs(run):
            peaks = None if again else find_peaks(run, isa, threads)
            if peaks is None:
                if runner is None:
                    there = open_target(target or trusted_target(run, run_dir))
                    runner = find_runner(target=stack.enter_context(there))
                _check_device(run, run_dir, runner)
                folder, probes = find_probes(progress)
                peaks = measure_ceilings(probes, folder, runner, isa, threads, progress=progress)
                if peaks.spread <= STEADY:
                    atomic_write(_cache_path(run, isa, threads), to_json(peaks))
                new += 1
            save_peaks(peaks, run_dir)
            measured.append(peaks)
    if new:
        text = f"machine peaks measured in {time.monotonic() - started:.0f} s; later runs use these"
        progress(text, 1.0)
    return measured


def list_roofs(run: RunRecord) -> list[tuple[str, int]]:
    """The ISA levels and thread counts whose peaks a run can be compared with."""
    if run.emulated:
        return []
    levels = dict.fromkeys(e.isa for e in run.plan.experiments if e.has_roof)
    return [(isa, threads) for isa in levels for threads in run.plan.threads]


def find_peaks(run: RunRecord, isa: str, threads: int) -> Ceilings | None:
    """The peaks of a run's machine, if an earlier run measured them."""
    path = _cache_path(run, isa, threads)
    with contextlib.suppress(StoreError, UsageError):  # of another version
        return load_record(Ceilings, path) if path.is_file() else None
    return None


def save_peaks(peaks: Ceilings, run_dir: Path) -> None:
    """Write peaks into a run's folder."""
    atomic_write(ceilings_path(run_dir, peaks.isa, peaks.threads), to_json(peaks))


def trusted_target(run: RunRecord, run_dir: Path) -> str:
    """The target of a run; UsageError if it is not this machine: a file must not choose a host."""
    if device_behind(target := run.plan.target) != THIS_MACHINE:
        hint = f"name it to go there: --target {shlex.quote(target)}"
        raise UsageError(f"was made on {target}", where=run_dir, hint=hint)
    return target


def _check_device(run: RunRecord, run_dir: Path, runner: Runner) -> None:
    """UsageError if a run was not made where a runner runs."""
    here = device_of(runner.target.describe(), runner.description)
    then = device_of(run.host, run.runner)
    if here != then:
        raise UsageError(
            f"was made on {then['cpu']} with the {then['runner']}, this is "
            f"{here['cpu']} with the {here['runner']}",
            where=run_dir,
            hint="measure the ceilings where the run was made, or repeat the run here",
        )


def find_probes(progress: Progress) -> tuple[Path, tuple[Probe, ...]]:
    """The probes' folder in the cache, exported on first use, and what is in it."""
    from workbench.export.probes import PROBES_VERSION, export_probes

    def make(folder: Path) -> None:
        progress("exporting the probes, once", 0.0)
        folder.mkdir()
        blank = Ceilings("", "", "", 0, "", tuple(export_probes(_PROBED, folder)))
        atomic_write(folder / _PROBES, to_json(blank))

    folder = cached(f"probes/{PROBES_VERSION}-{metadata.version('executorch')}", make)
    index = folder / _PROBES
    if not index.is_file():
        raise StoreError("is incomplete", where=cache_folder(), hint="delete its folder probes")
    return folder, load_record(Ceilings, index).probes


def _cache_path(run: RunRecord, isa: str, threads: int) -> Path:
    device = device_of(run.host, run.runner)
    digest = hashlib.sha256(f"{device['cpu']} {device['runner']}".encode()).hexdigest()[:16]
    return ceilings_path(cache_folder() / "ceilings" / digest, isa, threads)


def measure_ceilings(
    probes: Sequence[Probe],
    folder: Path,
    runner: Runner,
    isa: str,
    threads: int,
    *,
    progress: Progress = silent,
) -> Ceilings:
    """The peaks: each probe's shortest iteration of two fresh processes.

    ``spread`` is how much longer the worse process took. Times are CPU time with one thread and
    wall time with several.
    """
    measured = []
    with lock_device(device_behind(runner.target.name), progress):
        for number, probe in enumerate(probes):
            text = f"machine peaks, {isa}, {count_threads(threads)}: {probe.kind} {probe.dtype}"
            progress(text, number / len(probes))
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
