"""The ETDumps and logs in a run's folder, as the manifest names them.

A run's folder as frames: everything that figures, tables and reports are made from.

What was measured, on what, with what: the provenance of every figure.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from workbench.analysis.attribution import attribute_layers
from workbench.analysis.compare import (
    compare_apart,
    compare_categories,
    compare_latencies,
    compare_layers,
    compare_operators,
)
from workbench.analysis.layers import add_layers, place_rows, summarize_layers
from workbench.analysis.ledger import build_ledger
from workbench.analysis.machine_code import compare_code, compare_kernels, read_evidence
from workbench.analysis.operators import summarize_categories, summarize_operators, total_runs
from workbench.analysis.shift import bottleneck_shift, bound_shift
from workbench.analysis.statistics import (
    add_traced,
    describe_latencies,
    find_undisturbed_runs,
    pick_timed,
    tabulate_latencies,
)
from workbench.analysis.sweeps import compare_isa_levels, find_crossovers, sweep_threads
from workbench.analysis.verdict import Verdict, reach_verdict, summarize_verdict
from workbench.errors import StoreError, TraceError
from workbench.frames import SOURCE, mark_emulated
from workbench.records.runs import (
    LADDER_TOGGLE,
    Experiment,
    Pair,
    Plan,
    Proof,
    RunRecord,
    Session,
    count_threads,
)
from workbench.store import LAYERS, load_layers, load_run
from workbench.trace.etdump import read_etdump
from workbench.trace.xnn_log import read_xnn_log


def compare_logs(run_dir: Path, run: RunRecord) -> dict[str, pd.DataFrame]:
    """Which microkernels differ between the runs whose logs name them, by what was compared."""
    logs = {
        s.experiment: read_xnn_log(inside(run_dir, s.log))
        for s in run.sessions
        if s.complete and s.log and not s.etdump
    }
    pairs = [
        (p.baseline, p.candidate)
        for p in run.plan.pairs
        if {p.baseline, p.candidate} <= logs.keys()
    ]
    first, *others = logs or [""]
    return {
        f"{after} against {before}": compare_kernels(logs[after], logs[before])
        for before, after in pairs or [(first, other) for other in others]
    }


def inside(run_dir: Path, name: str) -> Path:
    """A file that the manifest names, which must lie in the run's folder.

    Raises
    ------
    StoreError
        It lies elsewhere.
    """
    path = run_dir / name
    if not path.resolve().is_relative_to(run_dir.resolve()):
        raise StoreError("names a trace outside its folder", where=run_dir / "manifest.json")
    return path


def read_ledger(run_dir: Path, session: Session) -> pd.DataFrame:
    """The ledger of the quiet runs of one traced process, with the columns that say whose it is."""
    path = inside(run_dir, session.etdump)
    ledger = build_ledger(read_etdump(path))
    keep = kept_runs(session, ledger["run"].nunique(), path)
    ledger = ledger[keep[ledger["run"]]].reset_index(drop=True)
    for place, (name, *_) in enumerate(SOURCE):
        ledger.insert(place, name, getattr(session, name))
    return ledger


def kept_runs(session: Session, runs: int, path: Path) -> np.ndarray:
    """Which runs of a trace count: the quiet ones; all after the warm-up if nobody timed them."""
    if not session.batches:
        if runs <= session.skipped:
            raise TraceError(f"holds {runs} runs, {session.skipped} of them to warm up", where=path)
        return np.arange(runs) >= session.skipped
    wall, cpu = (
        np.concatenate([getattr(batch, clock) for batch in session.batches])
        for clock in ("wall_ns", "cpu_ns")
    )
    if runs != len(wall):
        raise TraceError(f"holds {runs} runs, the manifest {len(wall)}", where=path)
    return find_undisturbed_runs(wall, cpu, session.threads)


T = TypeVar("T")

#: Whose rows: what the frames of several measurements are told apart by.
MEASUREMENT = ["experiment", "threads"]


@dataclass(frozen=True)
class Comparison:
    """A candidate against its baseline at one thread count; frames as ``schema`` has them.

    ``layers`` is None where no layer is known; ``kernels`` (``schema.KERNEL_EVIDENCE``) and
    ``proof`` of the machine code that ran are None where it was not sampled.
    """

    pair: Pair
    threads: int
    latency: pd.DataFrame
    categories: pd.DataFrame
    operators: pd.DataFrame
    shift: pd.DataFrame
    verdict: Verdict
    layers: pd.DataFrame | None = None
    kernels: pd.DataFrame | None = None
    proof: Proof | None = None
    baseline_threads: int | None = None

    @property
    def sides(self) -> tuple[tuple[str, int], tuple[str, int]]:
        """Experiment and thread count of the baseline and of the candidate."""
        before = self.threads if self.baseline_threads is None else self.baseline_threads
        return (self.pair.baseline, before), (self.pair.candidate, self.threads)

    @property
    def text_threads(self) -> str:
        """``1 thread``, or ``1 thread against 4``."""
        (_, before), (_, after) = self.sides
        if before == after:
            return count_threads(after)
        return f"{count_threads(after)} against {before}"

    @property
    def speedups(self) -> pd.DataFrame:
        """E2E and every category as ``schema.COMPARISON``."""
        return pd.concat([self.latency.assign(name="E2E"), self.categories], ignore_index=True)

    @property
    def text(self) -> str:
        """The verdict in one line."""
        return summarize_verdict(self.verdict)


@dataclass(frozen=True)
class Analysis:
    """All that a run says.

    ``latencies`` and ``ledger`` hold every measurement; ``statistics``, ``operators`` and
    ``categories`` one summary for each experiment and thread count; all carry the columns
    ``experiment`` and ``threads``. With a sidecar, ``operators`` has the columns of
    ``schema.ATTRIBUTION`` and ``ledger`` that of `place_rows` besides; ``layers`` is None where
    the sidecar is missing or names none. ``ladder`` (``schema.LADDER``) is None unless every ISA
    level was measured, ``scaling`` (``schema.SCALING``) unless several thread counts were;
    ``crossovers`` says what changes between these. ``kernel_changes`` (``schema.KERNEL_CHANGES``)
    come from logs, by what was compared; ``evidence`` (``schema.EVIDENCE``) is None where no
    machine code was sampled.
    """

    run_dir: Path
    run: RunRecord
    latencies: pd.DataFrame
    ledger: pd.DataFrame
    statistics: pd.DataFrame
    operators: pd.DataFrame
    categories: pd.DataFrame
    comparisons: tuple[Comparison, ...]
    layers: pd.DataFrame | None = None
    ladder: pd.DataFrame | None = None
    scaling: pd.DataFrame | None = None
    crossovers: tuple[str, ...] = ()
    evidence: pd.DataFrame | None = None
    kernel_changes: dict[str, pd.DataFrame] = field(default_factory=dict)

    @property
    def experiments(self) -> list[str]:
        """The experiments that are compared, without their controls."""
        return [e.name for e in self.run.plan.experiments if not e.control]

    @property
    def bars(self) -> dict[str, pd.DataFrame]:
        """Categories by what was measured, without the controls."""
        several = len(self.run.plan.threads) > 1
        return {
            f"{name}, {count_threads(threads)}" if several else name: part
            for threads in self.run.plan.threads
            for name in self.experiments
            if len(part := self.select(self.categories, name, threads))
        }

    @property
    def floor(self) -> float:
        """What the A/A controls of the run differed at most, as a ratio - 1; 0 without control."""
        return max((float(c.latency["floor"].iloc[0]) for c in self.comparisons), default=0.0)

    def select(self, frame: pd.DataFrame, experiment: str, threads: int) -> pd.DataFrame:
        """The rows of one experiment at one thread count."""
        return pick(frame, experiment, threads).reset_index(drop=True)


_known: dict[Path, Analysis] = {}


@contextlib.contextmanager
def remember(analysis: Analysis) -> Iterator[None]:
    """While it lasts, `analyze_run` takes an analysis for what it would find itself."""
    place = analysis.run_dir.resolve()
    _known[place] = analysis
    try:
        yield
    finally:
        del _known[place]


def analyze_run(run_dir: str | Path) -> Analysis:
    """Read the manifest and the ETDumps of a run, and work out everything from them.

    Raises
    ------
    UsageError
        The folder is no run.
    StoreError
        Nothing in it was measured to the end.
    TraceError
        An ETDump is malformed.
    """
    run_dir = Path(run_dir)
    if (known := _known.get(run_dir.resolve())) is not None:
        return known
    run = load_run(run_dir)
    if not any(session.complete and session.traced for session in run.sessions):
        raise StoreError(
            "nothing was measured to its end",
            where=run_dir,
            hint="the same `workbench run` goes on where it stopped",
        )
    latencies = tabulate_latencies(run)
    ledger = pd.concat(
        [read_ledger(run_dir, s) for s in run.sessions if s.complete and s.etdump],
        ignore_index=True,
    )
    latencies = add_traced(latencies, ledger, run)
    groups = dict(list(ledger.groupby(MEASUREMENT, sort=False)))
    operators = {key: summarize_operators(part) for key, part in groups.items()}
    sidecar, layers = load_layers(run_dir / LAYERS, run.plan.sha256), None
    if sidecar:
        for key, part in groups.items():
            attribution = attribute_layers(part, sidecar)
            operators[key] = add_layers(operators[key], attribution)
            groups[key] = place_rows(part, attribution)
        ledger = pd.concat(groups.values(), ignore_index=True)
        if any(method.modules for method in sidecar.methods):
            layers = {
                key: summarize_layers(operators[key], sidecar, total_runs(part, "key"))
                for key, part in groups.items()
            }
    evidence = read_evidence(run_dir, run)
    analysis = Analysis(
        run_dir=run_dir,
        run=run,
        latencies=latencies,
        ledger=ledger,
        statistics=describe_latencies(latencies),
        operators=_stack(operators),
        categories=_stack({key: summarize_categories(part) for key, part in groups.items()}),
        comparisons=tuple(
            compare_pair(run, pair, threads, latencies, ledger, evidence, layers is not None)
            for pair, threads in compared(run, latencies)
        ),
        layers=_stack(layers) if layers else None,
        evidence=evidence,
        kernel_changes=compare_logs(run_dir, run),
        **analyze_axes(run, latencies),
    )
    return mark_analysis(analysis) if run.emulated else analysis


def mark_analysis(analysis: Analysis) -> Analysis:
    """The analysis of an emulated run: every frame is marked, and nothing is said of speed."""
    return replace(
        _mark_frames(analysis),
        comparisons=tuple(
            replace(
                _mark_frames(comparison),
                verdict=replace(comparison.verdict, outcome="emulated", before=None, after=None),
            )
            for comparison in analysis.comparisons
        ),
        crossovers=(),
    )


def _mark_frames(record: T) -> T:
    """A record whose frames are marked, and judge nothing."""
    frames = {}
    for entry in fields(record):
        frame = getattr(record, entry.name)
        if isinstance(frame, pd.DataFrame):
            judged = {"outcome": "emulated"} if "outcome" in frame else {}
            frames[entry.name] = mark_emulated(frame.assign(**judged))
    return replace(record, **frames)


def compared(run: RunRecord, latencies: pd.DataFrame) -> Iterator[tuple[Pair, tuple[int, int]]]:
    """The pairs that were measured, with the thread counts of baseline and candidate."""
    keys = pick_timed(latencies)[MEASUREMENT].itertuples(index=False, name=None)
    measured = set(keys)
    for pair in run.plan.pairs:
        counts = [pair.threads] if pair.threads else [(n, n) for n in run.plan.threads]
        for before, after in counts:
            if {(pair.baseline, before), (pair.candidate, after)} <= measured:
                yield pair, (before, after)


def compare_pair(
    run: RunRecord,
    pair: Pair,
    threads: tuple[int, int],
    latencies: pd.DataFrame,
    ledger: pd.DataFrame,
    evidence: pd.DataFrame | None = None,
    layered: bool = False,
) -> Comparison:
    """Compare the two experiments of a pair, with the noise that the control shows.

    Layers are compared where the ledger is ``layered``: has the column ``layer``. Measurements
    with unlike numbers of ``threads`` did not take turns, and are compared by wall time.
    """
    few, count = threads
    origin, control = find_control(run.plan, pair.baseline)
    before, after = _measured(ledger, pair.baseline, few), _measured(ledger, pair.candidate, count)
    noise = find_noise(run.plan, pair.baseline, ledger, count)
    if few == count:
        names = {"control": control, "control_of": origin} if noise else {}
        latency = compare_latencies(
            latencies, pair.baseline, pair.candidate, threads=count, **names
        )
    else:
        sides = (pick(latencies, pair.baseline, few), pick(latencies, pair.candidate, count))
        latency = compare_apart(*sides, clock="wall_ns")
    shift = bottleneck_shift(summarize_categories(before), summarize_categories(after))
    shift = bound_shift(shift, before, after)
    kernels, proof, unchanged = compare_code(run, pair, threads, evidence, before)
    return Comparison(
        pair=pair,
        threads=count,
        baseline_threads=few,
        latency=latency,
        categories=compare_categories(before, after, **noise),
        operators=compare_operators(before, after, **noise),
        shift=shift,
        verdict=reach_verdict(
            run.plan.model,
            describe_change(run, pair, few, count),
            latency,
            shift,
            [
                a
                for a in run.agreements
                if (a.baseline, a.candidate, a.threads) == (pair.baseline, pair.candidate, count)
            ],
            unchanged,
        ),
        kernels=kernels,
        proof=proof,
        layers=compare_layers(before, after, **noise) if layered else None,
    )


def describe_change(run: RunRecord, pair: Pair, few: int, count: int) -> str:
    """What the candidate of a pair does differently, with the threads where there is a choice."""
    if few != count:
        return f"{pair.label}, {count_threads(count)} against {few}"
    return pair.label if len(run.plan.threads) == 1 else f"{pair.label}, {count_threads(count)}"


def pick(frame: pd.DataFrame, experiment: str, threads: int) -> pd.DataFrame:
    """The rows of one experiment at one thread count, with their index."""
    return frame[(frame["experiment"] == experiment) & (frame["threads"] == threads)]


def analyze_axes(run: RunRecord, latencies: pd.DataFrame) -> dict[str, Any]:
    """What a run says of the ladder of ISA levels, and of several thread counts."""
    names = [e.name for e in run.plan.experiments if not e.control]
    counts = sorted(set(pick_timed(latencies)["threads"]))
    found: dict[str, Any] = {}
    if run.plan.toggle == LADDER_TOGGLE:
        masked = {s.experiment: s.masked for s in run.sessions}
        adds = {
            above: ", ".join(f for f in masked[below] if f not in masked[above])
            for below, above in pairwise(names)
        }
        origin, control = find_control(run.plan, names[-1])
        noise = {"adds": adds, "control": control, "control_of": origin}
        climbs = [compare_isa_levels(latencies, names, threads=count, **noise) for count in counts]
        found["ladder"] = pd.concat(climbs, ignore_index=True)
    at = pick_timed(latencies).groupby("experiment")["threads"].nunique()
    swept = [name for name in names if at.get(name, 0) == len(counts)]
    if len(counts) > 1 and swept:
        found["scaling"] = sweep_threads(latencies, swept)
        found["crossovers"] = tuple(find_crossovers(latencies, swept))
    return found


def find_control(plan: Plan, experiment: str) -> tuple[str | None, str | None]:
    """What tells the noise: an experiment and its repetition, this one's own if it has one."""
    setup = {e.name: replace(e, name="", control=False) for e in plan.experiments}
    found = [
        (e.name, c.name)
        for c in plan.experiments
        if c.control
        for e in plan.experiments
        if not e.control and setup[e.name] == setup[c.name]
    ]
    return next((pair for pair in found if pair[0] == experiment), (*found, (None, None))[0])


def find_noise(
    plan: Plan, experiment: str, ledger: pd.DataFrame, threads: int
) -> dict[str, pd.DataFrame | None]:
    """What `find_control` names, as parts of a ledger; nothing if the control was not measured."""
    original, repeated = (
        _measured(ledger, name, threads) for name in find_control(plan, experiment)
    )
    return {} if repeated is None else {"control": repeated, "control_of": original}


def _measured(ledger: pd.DataFrame, experiment: str | None, threads: int) -> pd.DataFrame | None:
    if experiment is None or (part := pick(ledger, experiment, threads)).empty:
        return None
    return part


def _stack(frames: dict[tuple[str, int], pd.DataFrame]) -> pd.DataFrame:
    stacked = pd.concat(frames, names=MEASUREMENT)
    return stacked.reset_index(level=MEASUREMENT).reset_index(drop=True)


def describe_run(analysis: Analysis) -> pd.DataFrame:
    """Program, machine, runner and protocol of a run.

    Returns
    -------
    DataFrame
        ``what`` and ``value``, both text.
    """
    run, plan, host = analysis.run, analysis.run.plan, analysis.run.host
    machine = [host.get("cpu"), f"{host.get('cores_usable')} cores", host.get("system")]
    machine += ["virtual"] if host.get("virtual") else []
    facts = {
        "program": f"{plan.stem}.pte, SHA-256 {plan.sha256[:16]}",
        "inputs": _inputs(analysis),
        "machine": ", ".join(map(str, machine)),
        "platform": run.platform + (" (emulated)" if run.emulated else ""),
        "load at the start": " ".join(str(load) for load in host.get("load_average", [])),
        "runner": ", ".join(f"{k} {v}" for k, v in run.runner.items()),
        "versions": ", ".join(f"{name} {version}" for name, version in run.versions.items()),
        "protocol": (
            f"{plan.processes} processes of every experiment, taking turns in batches of about "
            f"{plan.batch_ms:g} ms; at least {plan.runs} timed inferences each"
        ),
        "experiments": "; ".join(map(_describe_experiment, plan.experiments)),
        "measured": f"{run.started} to {run.finished or 'interrupted'}",
    }
    if run.export:
        facts["weights"] = run.export.weights or "not recorded"
        facts["exported"] = (
            f"{run.export.dtype}, {run.export.backend}, {run.export.size_bytes / 1e6:.1f} MB, "
            f"delegates: {_counts(run.export.delegates)}"
        )
    return pd.DataFrame(facts.items(), columns=["what", "value"])


def identify_run(run: RunRecord) -> dict[str, str]:
    """The program, device and build of a run: what may differ only where that is the question."""
    device = f"{run.platform}, {run.host.get('cpu')}" + (", emulated" if run.emulated else "")
    build = f"executorch {run.versions.get('executorch')}, {run.runner.get('kind')} runner"
    build += f" {str(run.runner.get('sha256', ''))[:12]}".rstrip()
    program = f"{run.plan.stem} {run.plan.sha256[:12]}"
    return {"program": program, "device": device, "build": build}


def undelegated(analysis: Analysis) -> pd.DataFrame | None:
    """Operators that the partitioner left to portable kernels; None if the export is unknown."""
    export = analysis.run.export
    if export is None:
        return None
    rows = [(u.operator, u.count) for u in export.undelegated]
    table = pd.DataFrame(rows, columns=["operator", "count"])
    return table.sort_values("count", ascending=False, kind="stable").reset_index(drop=True)


def _describe_experiment(experiment: Experiment) -> str:
    control = ", control" if experiment.control else ""
    return f"{experiment.name}: ISA level {experiment.isa}{control}"


def _inputs(analysis: Analysis) -> str:
    plan = analysis.run.plan
    shapes = ", ".join(f"{t.dtype} {'x'.join(map(str, t.shape))}" for t in plan.inputs)
    return f"{shapes} ({plan.input_source})"


def _counts(delegates: dict[str, int]) -> str:
    return ", ".join(f"{name} x{count}" for name, count in delegates.items()) or "none"
