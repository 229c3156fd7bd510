"""The machine's peaks: shipped probe programs, run by the runner that runs the models."""

from __future__ import annotations

import contextlib
import itertools
import time
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from workbench.emulation import EMULATED
from workbench.errors import RunnerError, StoreError, UsageError
from workbench.key import make_key
from workbench.options import Progress, silent
from workbench.records.codec import parse_json, structure, to_json
from workbench.records.runs import Ceilings, Probe, RunRecord
from workbench.run.allocation import clock_at
from workbench.run.recorder import timestamp
from workbench.run.runner import Runner, find_runner
from workbench.store import (
    atomic_write,
    cache_folder,
    cached,
    ceilings_path,
    load_record,
    load_run,
    sha256_of,
    write_changed,
)
from workbench.wording import plural

#: Made by ``tests/record_programs.py``; in a checkout, ``workbench/data`` is a link.
SHIPPED = Path(__file__).parents[1] / "data" / "programs.zip"
#: Fresh processes for each probe, each on another core; the best one counts.
PROCESSES = 2
#: How long each process runs after its first iteration, in seconds; at least ``ITERATIONS``.
SECONDS, ITERATIONS, MAX_ITERATIONS = 0.03, 3, 2000
TIMEOUT_S = 120.0
#: The machine was busy while a peak was measured that no other process confirmed up to this share:
#: it is measured again by a later run, but not at once.
STEADY, RETRY = 0.25, timedelta(hours=1)
#: Bytes of the probe that streams main memory, which takes as long at every ISA level: the best of
#: ten processes took 16.9 to 18.8 ms from SSE2 to AVX-512 (AMD EPYC, load 3).
MAIN_MEMORY = 2**27


def measure_roof(run_dir: str | Path, *, progress: Progress = silent) -> list[Ceilings]:
    """Measure the peaks of a run's machine, at each of its ISA levels and thread counts.

    Only the dtypes that the run's programs compute in are measured. Peaks are cached by machine,
    runner, level and thread count; a copy is written into the run's folder. Those that scattered,
    as the machine was busy, are measured again after an hour, and the best counts.

    Parameters
    ----------
    run_dir
        The run's folder.
    progress
        Called with what is being done and the fraction done.

    Raises
    ------
    UsageError
        The run was emulated, or recorded on another machine.
    WorkbenchError, RunnerError
        The probes cannot be made or run.

    Examples
    --------
    >>> peaks = wb.measure_roof("out_toy_cnn/runs/RUN")  # doctest: +SKIP
    """
    run_dir = Path(run_dir)
    run = load_run(run_dir)
    if run.emulated:
        raise UsageError("an emulated run has no ceilings", where=run_dir, hint=EMULATED)
    peaks = Peaks.recall(run, run_dir)
    if peaks.is_due:
        peaks.measure(find_runner(), progress)
    return list(peaks.ceilings.values())


@dataclass(frozen=True)
class Peaks:
    """The peaks of a run's machine by ISA level and thread count, where they are known.

    Its folder has copies.
    """

    run: RunRecord
    run_dir: Path
    ceilings: dict[tuple[str, int], Ceilings]

    @classmethod
    def recall(cls, run: RunRecord, run_dir: Path) -> Peaks:
        """Those that earlier runs measured."""
        peaks = cls(run, run_dir, {})
        for isa, threads in peaks.places:
            path = _cache_path(run, isa, threads)
            with contextlib.suppress(StoreError, UsageError):  # of another version
                if path.is_file():
                    peaks._keep(load_record(Ceilings, path))
        return peaks

    @property
    def places(self) -> list[tuple[str, int]]:
        """The ISA levels and thread counts whose peaks the run can be compared with."""
        plan = self.run.plan
        levels = dict.fromkeys(e.isa for e in plan.experiments if e.has_roof)
        return [] if self.run.emulated else list(itertools.product(levels, plan.threads))

    @property
    def is_due(self) -> bool:
        """Whether some are to be measured."""
        return any(_list_due(self.run, self.ceilings.get(place)) for place in self.places)

    def measure(self, runner: Runner, progress: Progress = silent) -> None:
        """Measure those that are not known, or were disturbed a while ago."""
        _check_device(self.run, self.run_dir, runner)
        started = time.monotonic()
        for isa, threads in self.places:
            before = self.ceilings.get((isa, threads))
            shared = () if before else self._share(threads)
            if probes := _list_due(self.run, before, shared):
                kept = before.probes if before else shared
                peaks = measure_ceilings(probes, kept, runner, isa, threads, progress)
                atomic_write(_cache_path(self.run, isa, threads), to_json(peaks))
                self._keep(peaks)
        seconds = time.monotonic() - started
        progress(f"machine peaks measured in {seconds:.0f} s; later runs use these", 1.0)

    def _share(self, threads: int) -> tuple[Probe, ...]:
        """The peaks of other levels that hold at every level."""
        probes = (
            p for each in self.ceilings.values() if each.threads == threads for p in each.probes
        )
        return tuple(p for p in probes if p.kind == "stream" and p.bytes == MAIN_MEMORY)[:1]

    def _keep(self, peaks: Ceilings) -> None:
        """Write peaks into the run's folder."""
        self.ceilings[peaks.isa, peaks.threads] = peaks
        write_changed(ceilings_path(self.run_dir, peaks.isa, peaks.threads), to_json(peaks))


def _list_due(run: RunRecord, before: Ceilings | None, shared: Sequence[Probe] = ()) -> list[Probe]:
    """The probes to measure: in the dtypes of a run, and not known, or known but disturbed."""
    exports = [run.export_of(program) for program in run.plan.all_programs]
    dtypes = {"fp32", *(each.computed_dtype for each in exports if each)}
    probes = before.probes if before else shared
    measured = {replace(probe, ms=0.0, spread=0.0): probe for probe in probes}
    is_old = before and datetime.now(UTC) - datetime.fromisoformat(before.measured) >= RETRY
    return [
        probe
        for probe in load_probes()
        if probe.kind != "gemm" or probe.dtype in dtypes or None in exports
        if probe not in measured or (measured[probe].spread > STEADY and is_old)
    ]


def _check_device(run: RunRecord, run_dir: Path, runner: Runner) -> None:
    """UsageError if a run was not made where a runner runs."""
    here = device_of(runner.target.outline(), runner.description)
    then = device_of(run.host, run.runner)
    if here != then:
        raise UsageError(
            f"was made on {then['cpu']} with the {then['runner']}, this is "
            f"{here['cpu']} with the {here['runner']}",
            where=run_dir,
            hint="measure the ceilings where the run was made, or repeat the run here",
        )


def load_probes() -> tuple[Probe, ...]:
    """The probes that are shipped."""
    with zipfile.ZipFile(SHIPPED) as archive:
        return structure(Ceilings, parse_json(archive.read("probes.json"), SHIPPED), SHIPPED).probes


def unpack_program(name: str) -> Path:
    """A program that is shipped, in the cache."""

    def unpack(folder: Path) -> None:
        with zipfile.ZipFile(SHIPPED) as archive:
            archive.extract(name, folder)

    # Of a folder, sizes are checked, and not 100 MB read.
    return cached(f"programs/{sha256_of(SHIPPED)[:16]}/{Path(name).stem}", unpack) / name


def _cache_path(run: RunRecord, isa: str, threads: int) -> Path:
    device = device_of(run.host, run.runner)
    return ceilings_path(cache_folder() / "ceilings" / make_key(device)[:16], isa, threads)


def measure_ceilings(
    probes: Sequence[Probe],
    kept: Sequence[Probe],
    runner: Runner,
    isa: str,
    threads: int,
    progress: Progress = silent,
) -> Ceilings:
    """The peaks: each probe's shortest iteration in fresh processes, now and as far as known.

    Times are CPU time with one thread and wall time with several.
    """
    peaks = {probe.file: probe for probe in kept}
    with runner.lock(progress):
        for number, probe in enumerate(probes):
            text = f"machine peaks, {isa}, {plural(threads, 'thread')}: {probe.kind} {probe.dtype}"
            progress(text, number / len(probes))
            path = runner.target.push(unpack_program(probe.file))
            times = [_run(path, runner, isa, threads, n) for n in range(PROCESSES)]
            before = peaks.get(probe.file)
            if before and replace(before, ms=0.0, spread=0.0) == probe:
                times += [before.ms, before.ms * (1 + before.spread)]
            best, second, *_ = sorted(times)
            peaks[probe.file] = replace(probe, ms=best, spread=second / best - 1)
    device = device_of(runner.target.outline(), runner.description)
    measured = tuple(peaks.values())
    return Ceilings(device["cpu"], device["runner"], isa, threads, timestamp(), measured)


def device_of(host: dict[str, Any], runner: dict[str, Any]) -> dict[str, str]:
    """The CPU and the runner's build, for which peaks are valid."""
    return {
        "cpu": f"{host.get('machine')} {host.get('cpu')}, {host.get('cores_usable')} cores",
        "runner": f"{runner.get('kind')} runner, executorch {runner.get('executorch')}",
    }


def _run(path: str, runner: Runner, isa: str, threads: int, process: int) -> float:
    """The shortest iteration of a program in one process, in ms."""
    flags = ["--model_path", path, "--cpu_threads", str(threads), "--isa", isa]
    core = runner.target.core(threads, process)
    flags += [] if core is None else ["--cpus", str(core)]
    with runner.open(flags, timeout_s=TIMEOUT_S) as session:
        clock = clock_at(threads)
        times = list(getattr(session.run(1), clock))
        count = min(MAX_ITERATIONS, max(ITERATIONS, int(SECONDS * 1e9 / max(times[0], 1))))
        times += getattr(session.run(count), clock)
    # On a busy machine, a clock may stand still for an iteration.
    if not (moved := [ns for ns in times if ns > 0]):
        raise RunnerError(f"the clock does not tell how long {path} takes")
    return min(moved) / 1e6
