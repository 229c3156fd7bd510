"""A run and what follows from it; every frame is computed once, when it is first asked for."""

from __future__ import annotations

import contextlib
import html
import math
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from workbench import frames, plugin
from workbench.analysis import (
    compare,
    dtypes,
    layers,
    ledger,
    machine_code,
    memory,
    operators,
    promises,
    quality,
    roofline,
    sme2,
    statistics,
    sweeps,
    what_if,
)
from workbench.analysis.attribution import attribute_layers, find_method
from workbench.analysis.compare import Verdict
from workbench.analysis.dataflow import Dataflow, NodeId, instruction_of
from workbench.analysis.describe import describe_latency, describe_run
from workbench.analysis.etrecords import explain_etrecords
from workbench.analysis.exports import model_spec
from workbench.analysis.foreign import Recording
from workbench.analysis.layers import Traced
from workbench.analysis.operators import Scheme
from workbench.analysis.quality import Row
from workbench.analysis.roofline import Roof
from workbench.errors import StoreError, WorkbenchError, unknown_name
from workbench.export.etrecord import add_etrecord
from workbench.export.layers import resize
from workbench.options import RUNTIMES
from workbench.records.layers import Layers, Method
from workbench.records.pairing import pair_experiments
from workbench.records.runs import (
    GIVEN,
    Agreement,
    Experiment,
    Export,
    Identity,
    Phase,
    PlannedProgram,
    Proof,
    RunRecord,
    Session,
    Start,
    contrast_models,
)
from workbench.store import (
    ETRECORD,
    FUNCTIONS,
    RUNS,
    artifacts_dir,
    find_runs,
    inside,
    kept_layers,
    load_layers,
    load_run,
    output_folder,
    save_layers,
)
from workbench.trace import samples
from workbench.trace.etdump import read_etdump
from workbench.trace.xnn_log import read_xnn_log

F = TypeVar("F", pd.DataFrame, "pd.DataFrame | None")

#: Events of a trace that takes less memory, about 1 MB, than reading it again is worth.
_SHORT_TRACE = 10_000
#: How far shares may be off, as a part of the whole, without a verdict saying so.
SAID_POINTS = 0.02
#: Events of traces that are made a ledger together: one for each restart would take longer.
_MANY_EVENTS = 200_000

#: Columns that identify a measurement.
MEASUREMENT = ["experiment", "threads"]


def frame_property(compute: Callable[[Any], F]) -> cached_property[F]:
    """A frame that is computed once; wrong outputs and emulated times are no outcome."""

    @wraps(compute)
    def marked(owner: Any) -> F:
        frame = compute(owner)
        if frame is None:
            return frame
        if "outcome" in frame and (owner.emulated or owner.wrong):
            frame = frame.assign(outcome="emulated" if owner.emulated else frames.WRONG)
        return frames.mark_emulated(frame.copy(deep=False)) if owner.emulated else frame

    return cached_property(marked)


@dataclass(eq=False)
class Run:
    """A recorded run: its measurements, its comparisons and what they show.

    Frames of the whole run carry the columns ``experiment`` and ``threads``. What the run did not
    record is None. ``rules`` finds what can be made faster, ``try_remedies`` tries it; ``scheme``
    has the rules of the categories; ``recording`` is set if another tool recorded it;
    ``opened_with`` has the options of `open_run` that were given.

    Examples
    --------
    >>> run = wb.open_run(wb.sample_run())
    >>> [measurement.label for measurement in run.measurements]
    ['avx512_off', 'avx512_on', 'control']
    >>> run.operators.loc[:2, ["name", "module", "mean_ms"]].shape
    (3, 3)
    """

    path: Path
    record: RunRecord
    rules: Callable[[Measurement], pd.DataFrame]
    scheme: Scheme = field(default_factory=operators.load_scheme)
    recording: Recording | None = None
    opened_with: dict[str, str] = field(default_factory=dict)
    try_remedies: Callable[..., Any] | None = None
    _traces: dict[str, pd.DataFrame] = field(default_factory=dict, init=False)
    _sidecars: dict[str, Layers | None] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if self.recording:
            self._traces = self.recording.traces

    def __repr__(self) -> str:
        return f"Run({', '.join(self.facts)}: {', '.join(m.label for m in self.measurements)})"

    def _repr_html_(self) -> str:
        texts = [" · ".join(self.facts), *(ab.text for ab in self.comparisons)]
        return "".join(f"<p>{html.escape(text)}</p>" for text in texts)

    @property
    def facts(self) -> tuple[str, ...]:
        """Model, dtype, program, device, and when it was started, as far as they are known."""
        exports = [*filter(None, map(self.record.export_of, self.record.plan.all_programs))]
        exports = [export for export in exports if export.backend not in RUNTIMES]
        dtypes = " and ".join(dict.fromkeys(export.dtype for export in exports))
        program = " and ".join(dict.fromkeys(export.changes for export in exports))
        started = self.record.started[:16].replace("T", " ")
        return tuple(filter(None, (self.model, dtypes, program, self.device, started)))

    @property
    def device(self) -> str:
        """The CPU, or the platform where it is unknown."""
        host = self.record.host
        device = str(host.get("cpu") or self.record.platform)
        device += " (virtual machine)" if host.get("virtual") else ""
        return device + (" (emulated)" if self.emulated else "")

    @property
    def model(self) -> str:
        """What was run."""
        return self.record.plan.model

    @property
    def output(self) -> Path:
        """Where files about the run are written: for others' recordings, a folder of our own."""
        return self.path if self.recording is None else output_folder(self.path)

    @cached_property
    def siblings(self) -> tuple[RunRecord, ...]:
        """The records of the complete runs beside it, the latest first."""
        path, records = self.path.resolve(), list[RunRecord]()
        beside = find_runs(path.parents[1]) if path.parent.name == RUNS else []
        for other in reversed(beside):
            if other.resolve() != path:
                with contextlib.suppress(WorkbenchError):  # not readable: nothing to compare with
                    records.append(load_run(other))
        return tuple(record for record in records if record.state == "complete")

    @property
    def emulated(self) -> bool:
        """Whether an emulated CPU ran it, so that times mean nothing."""
        return self.record.emulated

    @property
    def wrong(self) -> str:
        """What is wrong with the outputs of some program; empty if nothing is."""
        return next((m.wrong for m in self.measurements if m.wrong), "")

    @cached_property
    def measurements(self) -> tuple[Measurement, ...]:
        """Every experiment at every thread count that was measured, controls included.

        One of which only traces are left is none beside others that were timed without them.
        """
        experiments = {e.name: e for e in self.record.plan.experiments}
        timed = [s for s in self.record.sessions if s.complete and (s.etdump or s.batches)]
        timed = [s for s in timed if not s.traced] or timed
        setups = dict.fromkeys((s.experiment, s.threads) for s in timed)
        return tuple(Measurement(self, experiments[name], threads) for name, threads in setups)

    @cached_property
    def traced(self) -> tuple[Measurement, ...]:
        """The measurements that have a trace."""
        return tuple(m for m in self.measurements if m.sessions)

    def __getitem__(self, key: str | tuple[str | int, ...]) -> Measurement:
        """``run[experiment]``, ``run[experiment, threads]``, ``run[phase, experiment]``."""
        parts = key if isinstance(key, tuple) else (key,)
        experiment = "_".join(part for part in parts if isinstance(part, str))
        by_threads = {m.threads: m for m in self.measurements if m.name == experiment}
        if not by_threads:
            known = [m.name for m in self.measurements]
            raise unknown_name("experiment", experiment, known, where=self.path)
        threads = next((n for n in parts if not isinstance(n, str)), next(iter(by_threads)))
        if threads not in by_threads:
            raise unknown_name("thread count", str(threads), map(str, by_threads), where=self.path)
        return by_threads[threads]

    @cached_property
    def comparisons(self) -> tuple[Comparison, ...]:
        """The comparisons that the run was planned for, as far as both sides were measured."""
        timed = statistics.pick_timed(self.latencies)
        measured = set(zip(timed["experiment"], timed["threads"], strict=True))
        traced = {(m.name, m.threads): m for m in self.traced if (m.name, m.threads) in measured}
        counts, comparisons = self.record.plan.threads, []
        for pair in self.record.plan.pairs:
            for few, count in [pair.threads] if pair.threads else [(n, n) for n in counts]:
                before, after = (pair.baseline, few), (pair.candidate, count)
                if before in traced and after in traced:
                    ab = Comparison(traced[before], traced[after], pair.label)
                    named = len(counts) > 1 or few != count
                    label = f"{pair.label}, {ab.threads_text}" if named else pair.label
                    comparisons.append(replace(ab, label=label))
        return tuple(comparisons)

    def compare(
        self, baseline: str | None = None, candidate: str | None = None, threads: int | None = None
    ) -> Comparison:
        """Compare two experiments; without names, the first comparison that was planned.

        Examples
        --------
        >>> run = wb.open_run(wb.sample_run())
        >>> run.compare("avx512_off", "avx512_on").verdict.outcome
        'faster'
        """
        for known in self.comparisons:
            before, after = known.baseline, known.candidate
            same = (baseline or before.name, candidate or after.name) == (before.name, after.name)
            if same and threads in (None, after.threads):
                return known
        if baseline is None or candidate is None:
            names = ", ".join(dict.fromkeys(m.label for m in self.measurements))
            several = len({m.name for m in self.measurements}) > 1
            hint = "name both of" if several else "add traces of another experiment to"
            hint += f" {names}"
            raise StoreError("compares no two experiments", where=self.path, hint=hint)
        counts = () if threads is None else (threads,)
        before, after = self[baseline, *counts], self[candidate, *counts]
        return Comparison(before, after, f"as {candidate} instead of {baseline}")

    @property
    def subject(self) -> Measurement:
        """What the report is about: the candidate of the first comparison."""
        if not self.measurements:
            raise StoreError("has no times, only kernel logs", where=self.path)
        return self.comparisons[0].candidate if self.comparisons else self.measurements[0]

    @frame_property
    def latencies(self) -> pd.DataFrame:
        """Every timed inference: ``frames.LATENCIES``."""
        timed = statistics.tabulate_latencies(self.record)
        untimed = any(not s.batches for s in self.record.sessions)
        if not untimed:
            return timed
        traced = [m.traced_times for m in self.traced or [self.subject]]
        return statistics.add_traced(timed, pd.concat(traced), self.record)

    @frame_property
    def statistics(self) -> pd.DataFrame:
        """Latency of every measurement in ms: ``frames.STATISTICS``."""
        return statistics.describe_latencies(self.latencies)

    @frame_property
    def ledger(self) -> pd.DataFrame:
        """Every nanosecond of every traced inference: ``frames.LEDGER``."""
        return pd.concat([m.ledger for m in self.traced or [self.subject]], ignore_index=True)

    @frame_property
    def operators(self) -> pd.DataFrame:
        """Every operator of every measurement: ``frames.OPERATORS``."""
        return self._stack("operators")

    @frame_property
    def categories(self) -> pd.DataFrame:
        """Every category of every measurement: ``frames.CATEGORIES``."""
        return self._stack("categories")

    @frame_property
    def layers(self) -> pd.DataFrame | None:
        """Every layer of every measurement: ``frames.LAYERS``."""
        return self._stack("layers") if any(m.has_layers for m in self.traced) else None

    @property
    def experiments(self) -> list[str]:
        """The experiments that are compared, without their controls."""
        return [e.name for e in self.record.plan.experiments if not e.control]

    @cached_property
    def noise_floor(self) -> float:
        """The largest difference of an A/A control, as a ratio - 1; 0 without one."""
        floors = [float(c.latency["floor"].iloc[0]) for c in self.comparisons]
        return max(floors, default=0.0)

    @frame_property
    def resources(self) -> pd.DataFrame:
        """Latency, first output, memory and size of every measurement: ``frames.RESOURCES``."""
        return pd.concat([m.resources for m in self.measurements], ignore_index=True)

    @frame_property
    def isa_levels(self) -> pd.DataFrame | None:
        """Every ISA level against the one below: ``frames.LADDER``."""
        return sweeps.list_isa_levels(self.latencies, self.record)

    @frame_property
    def paced(self) -> pd.DataFrame | None:
        """Wall times at the rate of an application, and without pauses: ``frames.PACED``."""
        return statistics.sum_up_paced(self.latencies, self.record)

    @frame_property
    def scaling(self) -> pd.DataFrame | None:
        """Latency over the number of threads: ``frames.SCALING``."""
        swept = sweeps.list_swept(self.latencies, self.experiments)
        return sweeps.sweep_threads(self.latencies, swept) if swept else None

    @cached_property
    def crossovers(self) -> tuple[str, ...]:
        """What changes with more threads, as sentences."""
        if self.emulated:
            return ()
        phases = sweeps.experiments_by_phase(self.record.plan)
        priced = sweeps.price_threads(self.latencies, self.record.plan, self.experiments)
        swept = (sweeps.list_swept(self.latencies, names) for names in phases)
        found = (t for names in swept for t in sweeps.find_crossovers(self.latencies, names))
        return *priced, *found

    @frame_property
    def phases(self) -> pd.DataFrame | None:
        """Latency, tokens per second and bottleneck in every phase: ``frames.PHASES``."""
        if not self.record.plan.phases or not self.traced:
            return None
        sides = [m for m in self.traced if not m.control]
        rows = [
            sweeps.describe_phase(m.phase, m.statistics, m.categories, m.roofline) for m in sides
        ]
        table = pd.DataFrame(rows, columns=frames.PHASES.names)
        unknown = [not (m.emulated or "shares" in m.use[0]) for m in sides]
        table.loc[unknown, ["category", "bound"]] = ""
        table.loc[unknown, ["share", "bound_share"]] = math.nan
        return frames.check(table, frames.PHASES)

    @frame_property
    def size_fits(self) -> pd.DataFrame | None:
        """Straight lines through the latency over the swept size: ``frames.SIZE_FITS``."""
        if not self.record.plan.sweep or self.emulated:
            return None
        sides = {m.name: (m.side, m.phase.size) for m in self.measurements if not m.control}
        fits = sweeps.fit_sizes(self.latencies, sides, sweeps.size_power(self.record.plan.phases))
        return None if fits.empty else fits

    @cached_property
    def size_changes(self) -> tuple[str, ...]:
        """What changes with the swept size, as sentences."""
        if not self.record.plan.sweep or self.phases is None or self.emulated:
            return ()
        sides = {m.name: m.side for m in self.measurements}
        phases = self.phases.dropna(subset="share")
        phases = phases.assign(side=phases["experiment"].map(sides))
        speedups = [
            ab.latency.assign(
                label=f"{ab.candidate.side} over {ab.baseline.side}, {ab.threads_text}",
                size=ab.candidate.phase.size,
            )
            for ab in self.comparisons
        ]
        return tuple(sweeps.describe_sizes(phases, self.record.plan.sweep, pd.concat(speedups)))

    @cached_property
    def kernel_changes(self) -> dict[str, pd.DataFrame]:
        """Which microkernels differ between experiments whose logs name them."""
        logs = {
            s.experiment: read_xnn_log(self.locate(s.log))
            for s in self.record.sessions
            if s.complete and s.log and not s.etdump
        }
        planned = [p for p in self.record.plan.pairs if {p.baseline, p.candidate} <= logs.keys()]
        sme = [name for name, kernels in logs.items() if kernels["sme"].any()]
        pairs = planned or pair_experiments([*logs], lacking=logs.keys() - set(sme))[0]
        return {
            f"{p.candidate} against {p.baseline}": machine_code.compare_kernels(
                logs[p.candidate], logs[p.baseline]
            )
            for p in pairs
        }

    @cached_property
    def tracer_overhead(self) -> dict[tuple[str, int], float]:
        """How much longer traced inferences take, as a fraction, by experiment and threads.

        Of ExecuTorch: other runtimes are traced by tools of their own.
        """
        overhead, own = {}, {m.name for m in self.measurements if not m.runtime}
        for (experiment, threads), part in self.latencies.groupby(MEASUREMENT):
            median = part.groupby("traced")[statistics.clock_of(part)].median()
            if experiment in own.intersection(self.experiments) and len(median) == 2:
                overhead[experiment, threads] = median[True] / median[False] - 1
        return overhead

    @cached_property
    def ceilings(self) -> pd.DataFrame:
        """What the machine reaches at each ISA level and thread count, as far as measured."""
        return roofline.list_ceilings(self.path)

    @property
    def findings(self) -> pd.DataFrame:
        """Optimisation opportunities, the most promising first: ``frames.FINDINGS``.

        With several phases, those of each, the largest part of the phase's latency first, then
        those about the start and memory; of a sweep, those of the ends.
        """
        subjects = {ab.candidate.phase.name: ab.candidate for ab in reversed(self.comparisons)}
        if self.record.plan.sweep:
            ends = sorted(subjects.values(), key=lambda m: m.phase.size)
            subjects = {m.phase.name: m for m in (ends[0], ends[-1])}
        if len(subjects) < 2:
            return self.subject.findings
        merged = pd.concat(
            m.findings.assign(title=f"{phase}: " + m.findings["title"])
            for phase, m in subjects.items()
        ).sort_values("share", ascending=False, kind="stable")
        latency = merged["of"] == "latency"
        merged = pd.concat([merged[latency], merged[~latency]], ignore_index=True)
        return promises.Findings(merged.assign(rank=np.arange(1, len(merged) + 1)), self)

    @frame_property
    def quality(self) -> pd.DataFrame:
        """How good the measurement is: ``frames.QUALITY``; the first row's grade is the run's."""
        none = [pd.DataFrame(columns=frames.COMPARISON.names, dtype=float)]
        comparisons = pd.concat([c.latency for c in self.comparisons] or none, ignore_index=True)
        excess = [m.tracer_excess for m in self.measurements if not math.isnan(m.tracer_excess)]
        overhead = max(excess, key=abs, default=math.nan)
        return quality.grade_run(self.record, self.latencies, comparisons, overhead)

    @cached_property
    def checks(self) -> pd.DataFrame:
        """Whether the numbers can be trusted: ``check``, ``status``, ``evidence``."""
        subjects = {row[0]: row for m in self.measurements for row in m.checks}  # each once
        bundled = [a for a in self.record.agreements if a.baseline == a.candidate]
        expected = quality.check_outputs(bundled) if bundled else ()
        counted = pd.concat([m._rows for m in self.traced or [self.subject]], ignore_index=True)
        rows = [
            *quality.check_state(self.record, self.recording),
            *([("outputs of the bundled program", *expected)] if bundled else []),
            *subjects.values(),
            *(row for ab in self.comparisons for row in ab.checks),
            quality.check_ledger(counted, [m.closed for m in self.traced]),
            quality.check_traces(
                counted,
                sum(len(m.traced_times) for m in self.traced),
                is_timed=any(m.is_timed for m in self.traced),
            ),
            *quality.check_criteria(self.quality),
        ]
        return pd.DataFrame(rows, columns=["check", "status", "evidence"])

    @property
    def caveats(self) -> list[str]:
        """What weakens the figures of its first comparison, and failed checks."""
        found = (self.comparisons or (self.subject,))[0].caveats
        failed = self.checks[self.checks["status"] == "fail"]
        return found + [
            f"failed: {row.check} ({row.evidence})"
            for row in failed.itertuples()
            if not any(row.evidence in text for text in found)
        ]

    @property
    def description(self) -> pd.DataFrame:
        """What was run, on what and how: ``what`` and ``value``, both text."""
        recorder = self.recording.source if self.recording else ""
        return describe_run(self.record, self.scheme.label, recorder)

    def locate(self, name: str) -> Path:
        """The path of a file that the manifest names."""
        return inside(self.path.parent if self.path.is_file() else self.path, name)

    def masked(self, experiment: str) -> set[str]:
        """The CPU features that every process of an experiment hid."""
        masks = [set(s.masked) for s in self.record.sessions if s.experiment == experiment]
        return set.intersection(*masks) if masks else set()

    def read_trace(self, session: Session) -> pd.DataFrame:
        """The events of a session's ETDump; that of a first process is kept, and short ones."""
        events = self._traces.get(session.etdump)
        if events is None:
            events = read_etdump(self.locate(session.etdump))
            if session.process == 0 or len(events) <= _SHORT_TRACE:
                self._traces[session.etdump] = events
        return events

    def read_sidecar(self, program: PlannedProgram) -> Layers | None:
        """What a program's instructions were in the model, if the run's folder has it.

        Layers of a program that was exported elsewhere may be in an ``etrecord.bin`` there.
        """
        if program.name not in self._sidecars:
            layers = load_layers(kept_layers(self.output, program.name), program.sha256)
            if layers is None and self.recording:
                layers = self.recording.layers.get(program.name)
            folder = self.path if self.path.is_dir() else self.path.parent
            if layers and not layers.has_modules and (folder / ETRECORD).is_file():
                with contextlib.suppress(StoreError):  # of another program
                    layers = add_etrecord(layers, folder / ETRECORD)
            self._sidecars[program.name] = layers
        return self._sidecars[program.name]

    @cached_property
    def etrecord_problem(self) -> str:
        """Why an ETRecord that lies beside it gives no layers; empty if none does."""
        folder = self.path if self.path.is_dir() else self.path.parent
        programs = self.record.plan.all_programs
        return explain_etrecords(folder, [(each, self.read_sidecar(each)) for each in programs])

    def add_etrecord(self, etrecord: Path) -> None:
        """Keep the layers in an ETRecord with the run; StoreError if it is of no program of it."""
        what, hint = "no program of the run is without layers", "put the .pte beside the traces"
        problem = StoreError(what, where=self.path, hint=hint)
        for program in self.record.plan.all_programs:
            if (layers := self.read_sidecar(program)) and not layers.has_modules:
                try:
                    known = add_etrecord(layers, etrecord)
                except StoreError as error:
                    problem = error
                    continue
                save_layers(known, kept_layers(self.output, program.name))
                self._sidecars[program.name] = known
                return
        raise problem

    @cached_property
    def _samples(self) -> dict[tuple[str, int], pd.DataFrame]:
        """The PC samples of every measurement."""
        return {
            (s.experiment, s.threads): samples.read_samples(self.locate(s.samples))
            for s in self.record.samplings
            if s.samples
        }

    @cached_property
    def _functions(self) -> Any:
        kept = self.path / FUNCTIONS
        if kept.exists():
            return samples.read_functions(kept)
        return samples.resolve_functions(self._samples.values())

    def _stack(self, name: str) -> pd.DataFrame:
        by_measurement = {(m.name, m.threads): getattr(m, name) for m in self.traced}
        stacked = pd.concat(by_measurement, names=MEASUREMENT)
        return stacked.reset_index(level=MEASUREMENT).reset_index(drop=True)


@dataclass(frozen=True, eq=False)
class Measurement:
    """One experiment of a run at one thread count, in one phase.

    Examples
    --------
    >>> on = wb.open_run(wb.sample_run())["avx512_on"]
    >>> on.operators["share"].sum().round(6)
    np.float64(1.0)
    """

    run: Run
    experiment: Experiment
    threads: int

    def __repr__(self) -> str:
        return f"Measurement({self.label!r} of {str(self.run.path)!r})"

    def _repr_html_(self) -> str:
        time = "emulated" if self.emulated else describe_latency(self.statistics)
        text = f"{self.run.model} · {self.label}: {time}"
        return f"<p>{html.escape(text)}</p>"

    @property
    def name(self) -> str:
        """The name of the experiment."""
        return self.experiment.name

    @property
    def phase(self) -> Phase:
        """The inputs that it ran on; its name is empty where there is only one phase."""
        return self.run.record.plan.phase_of(self.experiment)

    @property
    def side(self) -> str:
        """The name of the experiment without its phase."""
        return self.name.removeprefix(f"{self.experiment.phase}_")

    @property
    def control(self) -> bool:
        """Whether it only repeats another experiment, to show the noise."""
        return self.experiment.control

    @property
    def runtime(self) -> str:
        """The other runtime that ran it, such as ``ONNX Runtime``; empty for ExecuTorch."""
        return RUNTIMES.get(self.experiment.runner, "")

    @property
    def opaque(self) -> bool:
        """Whether its runtime tells no operators, as ``torch.compile``."""
        return bool(self.runtime) and "delegate_overhead" not in set(self.operators["kind"])

    @property
    def emulated(self) -> bool:
        """Whether its times mean nothing."""
        return self.run.emulated

    def name_category(self, category: str) -> str:
        """A category; that without another name with what takes most: ``Other (softmax)``."""
        rows = self.operators[self.operators["category"] == category]
        if category != "Other" or rows.empty:
            return category
        largest = rows.groupby("family", observed=True)["mean_ms"].sum().idxmax()
        outside = self.runtime and largest == "delegate overhead"
        return f"{category} ({'between operators' if outside else largest})"

    @cached_property
    def program(self) -> PlannedProgram:
        """What was run."""
        return self.run.record.plan.program_of(self.experiment)

    @property
    def export(self) -> Export | None:
        """How its program was exported; None if that is unknown."""
        return self.run.record.export_of(self.program)

    @property
    def identity(self) -> Identity:
        """What tells its program and model from others."""
        return self.run.record.identify(self.program)

    @cached_property
    def sidecar(self) -> Layers | None:
        """What its program's instructions were in the model, at the sizes that were measured."""
        known = self.run.read_sidecar(self.program)
        if known and (own := [m for m in known.methods if m.name == self.phase.method]):
            known = replace(known, methods=tuple(own))
        shapes = [(tensor.most, tensor.shape) for tensor in self.phase.inputs if tensor.most]
        return resize(known, shapes) if known and shapes else known

    @property
    def has_layers(self) -> bool:
        """Whether the layers of its program are known."""
        known = self.sidecar is not None and self.sidecar.has_modules
        return known and not self.opaque

    @property
    def wrong(self) -> str:
        """What is wrong with its program's outputs; empty if nothing is known to be."""
        return self.export.fault if self.export else ""

    @cached_property
    def use(self) -> tuple[frozenset[str], str]:
        """What may be used of its times, of ``latency``, ``shares``, ``milliseconds``; and why."""
        row, latency_ms = self.statistics.iloc[0], self.latency_ms
        if self.emulated or not latency_ms:
            return frozenset(), ""
        longer = math.nan
        if self.sessions and not self.latencies["traced"].all():
            longer = 1 / self._scale - 1
        width = row["high"] / latency_ms - 1
        uses, why = quality.decide_use(
            width, self.tracer_excess, longer, self.share_error, self.impossible
        )
        return uses, f"{self.label}: {why}" if why else ""

    @cached_property
    def share_error(self) -> float:
        """How far a share of its time may be off, as a part of the whole; NaN if unknown."""
        if self.emulated or not self.sessions or self.latencies["traced"].all():
            return math.nan
        runs = operators.total_runs(self._rows, "category")
        fastest = self.undisturbed.mean().groupby(self.costs["category"].astype(object)).sum()
        longer = max(self.traced_ms / self.latency_ms - 1, np.nan_to_num(self.tracer_excess))
        return quality.bound_shares(runs, fastest, longer)

    @cached_property
    def impossible(self) -> str:
        """Why no part of its time can be stated; empty if all can."""
        return quality.find_impossible(self.operators) if self.sessions else ""

    @cached_property
    def largest(self) -> tuple[str, str]:
        """The category that takes most, and its share; two, where their order is open."""
        first, second = self.categories.nlargest(2, "share").to_dict("records")
        names, shares = [self.name_category(first["category"])], [first["share"]]
        if first["share"] - second["share"] <= np.nan_to_num(self.share_error):
            names.append(self.name_category(second["category"]))
            shares.append(second["share"])
        return " or ".join(names), " or ".join(map(frames.format_share, shares))

    @property
    def tracer_excess(self) -> float:
        """What tracing adds beyond its calibrated cost, which is in no part, over the latency."""
        overhead = self.run.tracer_overhead.get((self.name, self.threads), math.nan)
        return overhead - (self.tracing_ms / self.latency_ms if overhead == overhead else 0.0)

    @property
    def caveats(self) -> list[str]:
        """What weakens its figures: emulation, losses of its program, a missing part, grade C."""
        caveats = [text for text in (frames.EMULATED * self.emulated, self.use[1]) if text]
        caveats += [f"{name}: {text}" for name, status, text in self.checks if status == "note"]
        caveats += [f"{name}: {text}" for name, text in self.run.record.missing.items()]
        if self.run.quality["grade"].iloc[0] in "CD":
            caveats.append(quality.summarize_quality(self.run.quality))
        return caveats

    @property
    def checks(self) -> list[Row]:
        """Whether its program computes what the model does: rows of the run's checks."""
        subject = self.program.stem if self.run.record.plan.programs else "the program"
        rows = [*quality.check_program(subject, self.export, self.dtypes)]
        if self.impossible:
            rows.append((f"parts of {self.label} are possible", "fail", self.impossible))
        rows += memory.check_starts(self.starts, self.label)
        if problem := self.run.etrecord_problem:
            rows.append(("layers are known", "note", problem))
        return rows

    @property
    def label(self) -> str:
        """The experiment, with the threads where the run has several counts."""
        several = len(self.run.record.plan.threads) > 1
        return f"{self.name}, {frames.plural(self.threads, 'thread')}" if several else self.name

    @cached_property
    def sessions(self) -> tuple[Session, ...]:
        """The runner processes that were traced."""
        traced = (s for s in self.run.record.sessions if s.complete and s.etdump)
        return tuple(s for s in traced if (s.experiment, s.threads) == (self.name, self.threads))

    @frame_property
    def latencies(self) -> pd.DataFrame:
        """Every timed inference: ``frames.LATENCIES``."""
        return self._select(self.run.latencies)

    @cached_property
    def _timed(self) -> pd.DataFrame:
        """The inferences that its latency is of."""
        return statistics.pick_timed(self.latencies)

    @cached_property
    def clock(self) -> str:
        """The clock that its latency is read from, as of `statistics.clock_of`."""
        return statistics.clock_of(self._timed)

    @cached_property
    def restarts(self) -> pd.Series:
        """The latency in ms of every process restart, a midmean, by its clock."""
        return statistics.restart_latencies(self._timed, self.clock)

    @frame_property
    def statistics(self) -> pd.DataFrame:
        """Latency in ms, one row of ``frames.STATISTICS``."""
        return self._select(self.run.statistics)

    @property
    def latency_ms(self) -> float:
        """The latency: mean over the restarts of the midmean of each; untraced if measured so."""
        return float(self.statistics["latency"].iloc[0])

    @property
    def events(self) -> pd.DataFrame:
        """The events of the first process after its warm-up: ``frames.EVENTS``."""
        if not self.sessions:
            raise StoreError(f"{self.label} has no trace", where=self.run.path)
        return self._read_events(self.sessions[0])

    def read_processes(self) -> Iterator[pd.DataFrame]:
        """The same of every process, one after the other."""
        return map(self._read_events, self.sessions)

    def _read_events(self, session: Session) -> pd.DataFrame:
        events = self.run.read_trace(session)
        if not session.skipped:
            return events
        inside = events["run"] >= 0
        events = events.assign(run=events["run"] - session.skipped * inside)
        return events[~inside | (events["run"] >= 0)].reset_index(drop=True)

    @frame_property
    def spans(self) -> pd.DataFrame:
        """The same events with their categories: ``frames.SPANS``."""
        return operators.describe_spans(self.events, self.run.scheme)

    @cached_property
    def _traced_rows(self) -> pd.DataFrame:
        """The ledger as traced, without layers."""
        rows = pd.concat([rows for rows, *_ in self._parts], ignore_index=True)
        return operators.add_categories(rows, self.run.scheme)

    def traced_rows(self, level: str) -> pd.DataFrame:
        """The ledger as traced, for ratios of two sides; with layers if these are compared."""
        # Layers are looked up for their own sake only: most comparisons need none.
        if level != "layer" or self._attribution is None:
            return self._traced_rows
        return layers.place_rows(self._traced_rows, self._attribution)

    @cached_property
    def _scale(self) -> float:
        """The latency per traced time: what makes the parts add up to the latency."""
        inferences = sum(len(spent) for *_, spent in self._parts)
        traced = float(self._traced_rows["duration_ns"].sum()) / 1e6 / max(inferences, 1)
        return self.latency_ms / traced if traced > 0 and self.latency_ms > 0 else 1.0

    @cached_property
    def _rows(self) -> pd.DataFrame:
        """The ledger without layers, scaled to the latency: the one place where that is done."""
        rows = self._traced_rows
        return rows.assign(duration_ns=rows["duration_ns"] * self._scale)

    @cached_property
    def _parts(self) -> list[tuple[pd.DataFrame, np.ndarray, pd.DataFrame, np.ndarray]]:
        """Of traced processes: ledger, whether the rows of each run add up, times, tracing."""
        if not self.sessions:
            raise StoreError(f"{self.label} has no trace", where=self.run.path)
        parts, sessions, traces = [], list[Session](), list[pd.DataFrame]()
        for session in self.sessions:
            sessions.append(session)
            traces.append(self.run.read_trace(session))
            if sum(map(len, traces)) >= _MANY_EVENTS or session is self.sessions[-1]:
                parts.append(self._build_ledger(sessions, traces))
                sessions, traces = [], []
        return parts

    @cached_property
    def _runs(self) -> pd.DataFrame:
        """Its time in ms by run and operator."""
        return operators.total_runs(self._rows, "key")

    @property
    def closed(self) -> np.ndarray:
        """For every traced run, whether its ledger rows sum to ``Method::execute``."""
        return np.concatenate([closed for _, closed, *_ in self._parts])

    @property
    def traced_times(self) -> pd.DataFrame:
        """The nanoseconds of every traced inference after the warm-up, by ``frames.SOURCE``."""
        return pd.concat([times for *_, times, _ in self._parts], ignore_index=True)

    @cached_property
    def tracing_ms(self) -> float:
        """What tracing added to an inference, which is in no other time; 0 if unknown."""
        return float(np.concatenate([spent for *_, spent in self._parts]).mean() / 1e6)

    @cached_property
    def _attribution(self) -> pd.DataFrame | None:
        return attribute_layers(self._rows, self.sidecar) if self.sidecar else None

    @frame_property
    def ledger(self) -> pd.DataFrame:
        """Every nanosecond of its undisturbed traced inferences: ``frames.LEDGER``.

        But for what tracing added to them, ``tracing_ms``; scaled, so that the mean of the
        inferences is the latency. `build_ledger` of ``events`` has the times as traced.
        Where layers are known, ``layer`` names that of every row.
        """
        known = self._attribution
        return self._rows if known is None else layers.place_rows(self._rows, known)

    @frame_property
    def operators(self) -> pd.DataFrame:
        """The operators, most expensive first: ``frames.OPERATORS`` (and ``ATTRIBUTION``)."""
        table = operators.summarize_operators(self._rows)
        return table if self._attribution is None else layers.add_layers(table, self._attribution)

    @frame_property
    def categories(self) -> pd.DataFrame:
        """Time by category: ``frames.CATEGORIES``."""
        return operators.summarize_categories(self._rows)

    @frame_property
    def layers(self) -> pd.DataFrame | None:
        """Time by layer of the model: ``frames.LAYERS``."""
        if self.sidecar is None or not self.has_layers:
            return None
        return layers.summarize_layers(self.operators, self.sidecar, self._runs)

    @frame_property
    def layer_types(self) -> pd.DataFrame | None:
        """Time by class of layer and category of operator: ``frames.LAYER_TYPES``."""
        if self.layers is None:
            return None
        return layers.summarize_layer_types(self.operators, self._runs)

    @frame_property
    def machine_code(self) -> pd.DataFrame | None:
        """Samples of the program counter by operator and function: ``frames.EVIDENCE``."""
        sampled = self.run._samples.get((self.name, self.threads))
        if sampled is None:
            return None
        if "key" not in sampled:  # an interrupted run, of which the trace is still there
            key = (self.name, self.threads)
            samplings = {(s.experiment, s.threads): s for s in self.run.record.samplings}
            events = read_etdump(self.run.locate(samplings[key].etdump))
            sampled = machine_code.place_samples(sampled, events)
        located = samples.locate_samples(sampled, self.run._functions)
        return machine_code.gather_evidence(located, self.run.scheme)

    @frame_property
    def sme2(self) -> pd.DataFrame | None:
        """The kernels that its program would run with SME2 and without: ``frames.SME2``."""
        sidecar = self.sidecar
        return sme2.predict_kernels(sidecar) if sidecar and sidecar.methods else None

    @cached_property
    def starts(self) -> tuple[Start, ...]:
        """The processes that were timed from their start."""
        key = (self.name, self.threads)
        return tuple(s for s in self.run.record.starts if (s.experiment, s.threads) == key)

    @property
    def paced(self) -> pd.DataFrame | None:
        """Wall times at the rate of an application, and without pauses: ``frames.PACED``."""
        rows = None if self.run.paced is None else self._select(self.run.paced)
        return None if rows is None or rows.empty else rows

    @frame_property
    def cold_start(self) -> pd.DataFrame | None:
        """Time from the start of a process to its first output: ``frames.COLD_START``."""
        return memory.tabulate_starts(self.starts)

    @frame_property
    def memory(self) -> pd.DataFrame | None:
        """What the process holds when most of it is resident: ``frames.MEMORY``."""
        return memory.account_memory(self.starts)

    @cached_property
    def undisturbed(self) -> pd.DataFrame:
        """Its time in ms by restart and operator without interference; adds up to the latency.

        By run if the runner told no other times: then it is the time of the tables, too.
        """
        total = float(self._fastest.sum(axis=1).mean())
        return self._fastest * (self.latency_ms / total if total > 0 else 1.0)

    @cached_property
    def _fastest(self) -> pd.DataFrame:
        return statistics.undisturbed_times(self._runs) if self.is_timed else self._runs

    @property
    def is_timed(self) -> bool:
        """Whether its runner told the times of inferences, besides the traces."""
        return any(session.batches for session in self.sessions)

    @cached_property
    def traced_ms(self) -> float:
        """How long a traced inference took without interference, in wall time."""
        return float(self._fastest.sum(axis=1).mean()) / self._scale

    @cached_property
    def costs(self) -> pd.DataFrame:
        """The operators by key, with their times without interference."""
        rows = self.operators.set_index("key")
        columns = dict.fromkeys(frames.ATTRIBUTION.names[1:]) | {"flops": np.nan, "bytes": np.nan}
        lacking = {name: value for name, value in columns.items() if name not in rows}
        return rows.assign(mean_ms=self.undisturbed.mean().reindex(rows.index), **lacking)

    @cached_property
    def nodes(self) -> dict[str, tuple[NodeId, ...]]:
        """The program's operators that each row executes; overhead rows execute none."""
        nodes: dict[str, tuple[NodeId, ...]] = {}
        for key, row in self.costs.iterrows():
            instruction = instruction_of(key)
            if row["kind"] == "portable":
                nodes[key] = ((instruction, -1),)
            elif row["kind"] == "delegated" and isinstance(row.get("xnodes"), str):
                nodes[key] = tuple((instruction, int(n)) for n in row["xnodes"].split(","))
        return nodes

    @cached_property
    def flow(self) -> Dataflow:
        """The program as a graph; empty if its operators are unknown."""
        known = self.sidecar and find_method(self.ledger.drop_duplicates("key"), self.sidecar)
        return Dataflow(known or Method("", (), {}, ()))

    @frame_property
    def tensors(self) -> pd.DataFrame | None:
        """Every activation and when it is live, the largest first: ``frames.TENSORS``."""
        return memory.list_tensors(self.flow) if self.flow.steps else None

    @frame_property
    def file_parts(self) -> pd.DataFrame | None:
        """The program's file by part and layer, the largest first: ``frames.FILE_PARTS``."""
        return memory.list_file_parts(self.run.read_sidecar(self.program))

    @frame_property
    def resources(self) -> pd.DataFrame:
        """Latency, first output, memory and size: ``frames.RESOURCES``."""
        table = memory.tabulate_resources(self.statistics.iloc[0], self.starts, self.export)
        table = table.assign(experiment=self.name, threads=self.threads)
        return frames.check(table[frames.RESOURCES.names], frames.RESOURCES)

    @cached_property
    def loops(self) -> dict[str, pd.Series]:
        """The hot loops of the functions that ran: samples by instruction."""
        sampled = self.run._samples.get((self.name, self.threads))
        return {} if sampled is None else samples.count_instructions(sampled, self.run._functions)

    @cached_property
    def kernels(self) -> pd.DataFrame:
        """The microkernel of every operator by key, where the samples agree on one."""
        samples = self.machine_code
        return pd.DataFrame() if samples is None else machine_code.name_kernels(samples)

    @cached_property
    def roof(self) -> Roof | None:
        """What the machine can do at this ISA level and thread count, if it was measured."""
        return roofline.find_roof(self.run.path, self.experiment, self.threads)

    @frame_property
    def roofline(self) -> pd.DataFrame | None:
        """Every operator below the roof: ``frames.ROOFLINE``."""
        if self.roof is None or "flops" not in self.operators:
            return None
        return roofline.place_operators(
            self.operators, self.roof, roofline.computed_dtype(self.export)
        )

    @frame_property
    def dtypes(self) -> pd.DataFrame | None:
        """In which dtype convolutions and matrix products ran: ``frames.DTYPES``.

        None for fp32, without a trace, and for a program of unknown origin.
        """
        if self.export is None or self.export.dtype == "fp32" or not self.sessions:
            return None
        found = dtypes.tabulate_dtypes(self.operators, self.export)
        return None if found.empty else found

    @frame_property
    def findings(self) -> pd.DataFrame:
        """Optimisation opportunities, the most promising first: ``frames.FINDINGS``."""
        findings = self.run.rules(self)
        if self.export and not self.emulated:
            findings = plugin.apply("gains", self, findings)
            made = promises.read_checks(self.run.path)
            tried = [check for check in made if check.program == self.export.sha256]
            findings = promises.add_checked(findings, tried) if tried else findings
        findings = findings.assign(hint=findings["hint"].map(self.complete_command))
        return promises.Findings(findings, self.run)

    def complete_command(self, command: str) -> str:
        """A command with its run and program for ``RUN_DIR``, ``MODEL.pte`` and ``MODEL``."""
        folder, export = self.run.path.resolve(), self.export
        inside_cwd = folder.is_relative_to(Path.cwd())
        model = model_spec(export) if export else "MODEL"
        planned = Path(self.program.pte or "MODEL.pte")
        places = planned, artifacts_dir(self.run.path.parent.parent) / planned.name
        names = {
            "RUN_DIR": str(folder.relative_to(Path.cwd()) if inside_cwd else folder),
            "MODEL.pte": str(next(filter(Path.is_file, places), planned)),
            "MODEL": model,
            "llm:NAME": model if model.startswith("llm:") else "llm:NAME",
        }
        found = "RUN_DIR|MODEL(?:[.]pte)?|llm:NAME"
        if export and export.input_source == GIVEN and re.search(r"MODEL(?![.]pte)", command):
            # A module of a notebook: the magic takes it, and its inputs, by their names there.
            return re.sub("^workbench", "%workbench", command).replace("MODEL", "net x")
        text = re.sub(found, lambda m: shlex.quote(names[m[0]]), command)
        # A setting of the rule replaces that of the model.
        return re.sub(r",(\w+)=[^,\s]*(?=\S*,\1=)", "", text)

    def _select(self, frame: pd.DataFrame) -> pd.DataFrame:
        chosen = (frame["experiment"] == self.name) & (frame["threads"] == self.threads)
        return frame[chosen].reset_index(drop=True)

    def _build_ledger(
        self, sessions: Sequence[Session], traces: Sequence[pd.DataFrame]
    ) -> tuple[pd.DataFrame, np.ndarray, pd.DataFrame, np.ndarray]:
        events, firsts = join_traces(traces)
        rows = ledger.build_ledger(events)
        closed, run = ledger.closed_runs(events, rows), rows["run"].to_numpy()
        tracing = (rows["kind"] == ledger.TRACING).to_numpy()
        times, spent = np.zeros((2, firsts[-1]), np.int64)
        np.add.at(times, run, rows["duration_ns"].to_numpy())
        np.add.at(spent, run[tracing], rows["duration_ns"].to_numpy()[tracing])
        counts = np.diff(firsts)
        number = np.arange(firsts[-1]) - np.repeat(firsts[:-1], counts)
        places: dict[str, np.ndarray] = {
            name: np.repeat(np.array([getattr(s, name) for s in sessions], kind), counts)
            for name, kind in zip(frames.SOURCE, (object, int, int), strict=True)
        }
        kept = np.concatenate(
            [
                ledger.kept_runs(session, times[first:end], self.run.path / session.etdump)
                for session, first, end in zip(sessions, firsts, firsts[1:], strict=False)
            ]
        )
        rows = rows[kept[run] & ~tracing]
        chosen = rows["run"].to_numpy()
        rows = rows.assign(run=number[chosen])
        counted = number >= np.repeat([s.skipped for s in sessions], counts)
        table = pd.DataFrame({"duration_ns": times[counted]}, pd.Index(number[counted], name="run"))
        for place, (name, values) in enumerate(places.items()):
            rows.insert(place, name, values[chosen])
            table.insert(place, name, values[counted])
        return rows, closed, table, spent[kept]


def join_traces(traces: Sequence[pd.DataFrame]) -> tuple[pd.DataFrame, np.ndarray]:
    """Traces whose runs and events follow one another, and the first run of each; and their end."""
    parts, first, firsts = list[pd.DataFrame](), 0, [0]
    for events in traces:
        inside = events[events["run"] >= 0]
        parents = inside["parent"].where(inside["parent"] < 0, inside["parent"] + first)
        numbers = {"run": inside["run"] + firsts[-1], "event": inside["event"] + first}
        parts.append(inside.assign(**numbers, parent=parents))
        firsts.append(firsts[-1] + inside["run"].nunique())
        first += int(events["event"].max()) + 1 if len(events) else 0
    return pd.concat(parts, ignore_index=True), np.array(firsts)


@dataclass(frozen=True)
class Comparison:
    """A candidate against its baseline.

    Two measurements of one run at one thread count were interleaved; others were measured apart.
    ``label`` says what the candidate does differently, ``subject`` what was run.

    Examples
    --------
    >>> ab = wb.open_run(wb.sample_run()).compare()
    >>> ab.categories["name"].tolist()[:2]
    ['Convolution', 'GEMM']
    >>> ab.speedups.loc[0, "name"]
    'E2E'
    """

    baseline: Measurement
    candidate: Measurement
    label: str = ""
    subject: str = ""

    def __repr__(self) -> str:
        return f"Comparison({self.text!r})"

    def _repr_html_(self) -> str:
        texts = [self.text, *(f"Caveat: {text}." for text in self.caveats)]
        return "".join(f"<p>{html.escape(text)}</p>" for text in texts)

    @property
    def run(self) -> Run:
        """The run of the candidate."""
        return self.candidate.run

    @property
    def emulated(self) -> bool:
        """Whether a side's times mean nothing."""
        return self.baseline.emulated or self.candidate.emulated

    @cached_property
    def wrong(self) -> str:
        """Why no speed-up can be claimed: wrong outputs of a side, or different ones of both."""
        faults = compare.describe_faults(self.candidate.wrong, self.baseline.wrong)
        judged = [a for a in self.agreements if not (self.models or a.note or a.agree)]
        texts = "; ".join(map(compare.describe_difference, judged))
        return faults or (texts and f"outputs differ ({texts})")

    @property
    def programs(self) -> str:
        """What else is to be known of two programs; empty if they differ in their speed alone.

        Whether they are of two models, and the SQNR and size of different dtypes. Against another
        runtime, whether the outputs agree.
        """
        if self.baseline.runtime:
            return self._describe_outputs()
        texts = [self.models] if self.models else []
        sides = [side for side in (self.candidate, self.baseline) if side.export]
        if len({side.export.dtype for side in sides if side.export}) > 1:
            texts += [dtypes.summarize_program(side.export, side.dtypes) for side in sides]
        return "; ".join(texts)

    def _describe_outputs(self) -> str:
        """Whether the outputs of both sides were compared, and are the same."""
        judged = [a for a in self.agreements if not a.note]
        if not judged:
            return "outputs not compared"
        if all(a.agree for a in judged):
            return "same outputs"
        return "; ".join(filter(None, ["other outputs", self.models]))

    @property
    def within_run(self) -> bool:
        """Whether both sides are of one run."""
        return self.baseline.run.path.resolve() == self.candidate.run.path.resolve()

    @property
    def apart(self) -> bool:
        """Whether nothing shows that the restarts of both sides alternated."""
        return not self.within_run or self.run.recording is not None

    @property
    def separation(self) -> str:
        """In words, how both sides were measured apart; empty if they were not."""
        if not self.within_run:
            return "separate runs"
        single = max(len(m.sessions) for m in (self.baseline, self.candidate)) == 1
        one = ", one process each" if single else ""
        return f"measured apart{one}" if self.apart else ""

    @property
    def threads_text(self) -> str:
        """``1 thread``, or ``4 threads against 1``."""
        before, after = self.baseline.threads, self.candidate.threads
        return frames.plural(after, "thread") + ("" if before == after else f" against {before}")

    @property
    def toggled(self) -> bool:
        """Whether the two sides hide different CPU features."""
        before, after = self.baseline.experiment, self.candidate.experiment
        return (before.isa, before.isa_off) != (after.isa, after.isa_off)

    @property
    def same_program(self) -> bool:
        """Whether both sides ran one program."""
        return self.baseline.program.sha256 == self.candidate.program.sha256

    @property
    def toggle(self) -> str:
        """The CPU extension whose effect is measured, ``none``, or empty."""
        return self.run.record.plan.toggle if self.same_program else "none"

    @property
    def models(self) -> str:
        """What speaks against both sides being of one model; empty if their outputs must agree."""
        within_recording = self.within_run and self.same_program
        sides = self.baseline.identity, self.candidate.identity
        return "" if within_recording else contrast_models(*sides)

    @property
    def agreements(self) -> list[Agreement]:
        """How far the outputs of both sides are apart."""
        sides = (self.baseline.name, self.candidate.name, self.candidate.threads)
        known = self.run.record.agreements if self.within_run else ()
        return [a for a in known if (a.baseline, a.candidate, a.threads) == sides]

    @cached_property
    def _controls(self) -> dict[str, Measurement]:
        """A control of the baseline's program and what it repeats, which show the noise."""
        names = map(str, sweeps.find_control(self.run.record.plan, self.baseline.name))
        traced = {m.name: m for m in self.run.traced if m.threads == self.candidate.threads}
        found = [traced[name] for name in names if name in traced]
        if self.apart or len(found) < 2 or found[0].program.name != self.baseline.program.name:
            return {}
        return dict(zip(("control_of", "control"), found, strict=True))

    @cached_property
    def keys(self) -> dict[str, str]:
        """The baseline's keys of the candidate's operators, where these are of another program."""
        known = self.baseline.sidecar and self.candidate.sidecar
        return {} if self.same_program or not known else layers.match_operators(*self._traced)

    def rekey(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Rows of the candidate's operators, with the baseline's keys where the two are paired."""
        keys = rows["key"] if self.same_program else [self._key(key) for key in rows["key"]]
        return rows.assign(key=keys)

    @property
    def _traced(self) -> tuple[Traced, Traced]:
        before, after = ((m.ledger, m.operators) for m in (self.baseline, self.candidate))
        return before, after

    @frame_property
    def latency(self) -> pd.DataFrame:
        """E2E latency, one row of ``frames.COMPARISON``."""
        same_threads = self.baseline.threads == self.candidate.threads
        noise = self._controls.values() if same_threads else ()
        sides = [self.baseline, self.candidate, *noise]
        # One clock for all: wall time as soon as one side has several threads.
        clock = max(side.clock for side in sides)
        before, after, *control = (
            side.restarts
            if side.clock == clock
            else statistics.restart_latencies(side.latencies, clock)
            for side in sides
        )
        return compare.compare_restarts(
            [self.candidate.name], [before], [after], control=control, separate=self.apart
        )

    @frame_property
    def categories(self) -> pd.DataFrame:
        """Time of every category: ``frames.COMPARISON``."""
        return self.compare_by("category")

    @frame_property
    def operators(self) -> pd.DataFrame:
        """Time of every operator, the largest change first: ``frames.COMPARISON``.

        Operators of different programs are paired by layer, kind, shapes and cost in order of
        execution; ``candidate_key`` is the candidate's.
        """
        if self.same_program:
            compared = self.compare_by("operator")
            return compared.assign(
                candidate_key=compared["key"].where(compared["candidate_ms"].notna())
            )
        theirs = {key: self._key(key) for key in self.candidate.operators["key"]}
        compared = self.compare_by("operator", after=theirs)
        own = {key: theirs for theirs, key in theirs.items()}
        return compared.assign(candidate_key=compared["key"].map(own))

    def compare_groups(self, groups: Mapping[str, Any]) -> pd.DataFrame:
        """Time of groups of operators, which are given by the candidate's keys: ``COMPARISON``."""
        before = {self.keys.get(key, key): group for key, group in groups.items()}
        compared = self.compare_by("operator", before, groups).set_index("key")
        return compared[compared.index.isin(set(groups.values()))]

    @frame_property
    def layers(self) -> pd.DataFrame | None:
        """Own time of every layer, the largest change first: ``frames.COMPARISON``.

        Against another runtime, ``differs`` says what ExecuTorch does otherwise.
        """
        if not (self.baseline.has_layers and self.candidate.has_layers):
            return None
        if self.same_program:
            return self.compare_by("layer")
        compared = self.compare_by("layer", **self._aligned)
        if not self.baseline.runtime:
            return compared
        return compared.assign(differs=compared["name"].map(self._list_differences()))

    @cached_property
    def _aligned(self) -> dict[str, dict[str, str]]:
        """The common names of the layers ``before`` and ``after``."""
        return layers.align_layers(dict(zip(("before", "after"), self._traced, strict=True)))[1]

    @cached_property
    def _operators_of_layers(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """The operators of both sides without overhead, and in ``layer`` its common name."""
        theirs, ours = (
            m.operators[m.operators["role"] != "overhead"].assign(
                layer=lambda rows, names=names: rows["module"].map(layers.name_layer).map(names)
            )
            for m, names in zip(
                (self.baseline, self.candidate), self._aligned.values(), strict=True
            )
        )
        return theirs, ours

    def operators_of(self, names: Collection[str]) -> tuple[str, ...]:
        """Keys of the candidate's operators in the layers of these names, as in ``layers``."""
        ours = self._operators_of_layers[1]
        return tuple(ours.loc[ours["layer"].isin(names), "key"])

    def _list_differences(self) -> dict[str, str]:
        """What ExecuTorch does otherwise than the other runtime in each layer, by common names."""
        theirs, ours = self._operators_of_layers
        dtypes = [m.export.dtype if m.export else "" for m in (self.candidate, self.baseline)]
        other = f"{dtypes[0]} instead of {dtypes[1]}" if all(dtypes) else ""
        texts = {}
        for layer, own in ours.groupby("layer"):
            kernels = own.loc[own["kind"] == "portable", "operator"].unique()
            outside = [name.removeprefix("native_call_").partition(".")[0] for name in kernels]
            known = int((theirs["layer"] == layer).sum())
            said = [other] if other and dtypes[0] != dtypes[1] else []
            said += [f"not delegated: {', '.join(outside)}"] if outside else []
            said += ["layout conversion"] if (own["role"] == "layout").any() else []
            if 0 < known != len(own):
                said.append(f"{len(own)} operator{'s' * (len(own) > 1)} instead of {known}")
            texts[str(layer)] = "; ".join(said) or "other kernels"
        return texts

    @frame_property
    def kinds(self) -> pd.DataFrame:
        """Time in the delegate, in portable kernels and in overhead: ``frames.COMPARISON``."""
        return self.compare_by("kind")

    @property
    def speedups(self) -> pd.DataFrame:
        """E2E and every category: ``frames.COMPARISON``."""
        return pd.concat([self.latency.assign(name="E2E"), self.categories], ignore_index=True)

    @frame_property
    def resources(self) -> pd.DataFrame:
        """Latency, starts, memory and size of both sides: ``frames.RESOURCE_CHANGES``.

        The size only if the programs differ.
        """
        exports = [side.export for side in (self.baseline, self.candidate)]
        sizes = [e.size_bytes for e in exports if e and not self.same_program]
        starts = self.baseline.starts, self.candidate.starts
        latency = None if self.emulated else self.latency
        table = memory.compare_resources(*starts, latency, sizes)
        if self._controls and not self.candidate.control:
            again = Comparison(self._controls["control_of"], self._controls["control"]).resources
            table["control"] = table["resource"].map(again.set_index("resource")["ratio"])
        return table

    @frame_property
    def shift(self) -> pd.DataFrame:
        """How the bottleneck moves: ``frames.SHIFT``."""
        before, after = self.baseline, self.candidate
        ledgers = None if self.apart else (before._rows, after._rows)
        return what_if.bottleneck_shift(before.categories, after.categories, ledgers)

    @frame_property
    def kernels(self) -> pd.DataFrame | None:
        """The microkernel of every operator on both sides: ``frames.KERNEL_EVIDENCE``."""
        before, after = self.baseline.machine_code, self.candidate.machine_code
        if before is None or after is None:
            return None
        return machine_code.compare_evidence(before, self.rekey(after))

    @frame_property
    def sme2(self) -> pd.DataFrame | None:
        """The kernels that the program would run with SME2 and without: ``frames.SME2``.

        If the sides differ in SME2, and both were sampled, ``executed_off`` and ``executed_on``
        name those that did run.
        """
        table, sides = self.candidate.sme2, (self.baseline, self.candidate)
        evidence = [side.machine_code for side in sides]
        if table is None or self.toggle != "sme2" or any(each is None for each in evidence):
            return table
        operators = [side.operators for side in sides]
        return sme2.add_executed(table, list(zip(operators, evidence, strict=True)))

    @cached_property
    def proof(self) -> Proof | None:
        """Whether both sides ran the same machine code; None where it was not sampled."""
        before, after = self.baseline.machine_code, self.candidate.machine_code
        return None if before is None or after is None else machine_code.prove_change(before, after)

    @cached_property
    def verdict(self) -> Verdict:
        """What the comparison showed."""
        unchanged = ""
        if self.proof and self.proof.outcome == "same" and self.toggled:
            hidden = self.run.masked(self.baseline.name) ^ self.run.masked(self.candidate.name)
            dtype = self.candidate.export.dtype if self.candidate.export else ""
            unchanged = machine_code.explain_unchanged(
                self.proof, hidden, self.baseline._rows, dtype
            )
        subject, label = self.subject or self.candidate.program.model, self.label
        named = self.within_run and self.baseline.program != self.candidate.program
        if self.baseline.runtime and not self.subject:
            subject, label = f"{subject}, ExecuTorch against {self.baseline.runtime}", ""
        elif named and not self.subject:
            subject, label = f"{self.candidate.label} against {self.baseline.label}", ""
        ends = pd.concat(
            [side.statistics[["low", "high"]] for side in (self.baseline, self.candidate)]
        )
        shared = not self.baseline.opaque and all(
            "shares" in side.use[0] for side in (self.baseline, self.candidate)
        )
        verdict = compare.reach_verdict(
            subject, label, self.latency, emulated=self.emulated, wrong=self.wrong,
            programs=self.programs, same_code=unchanged, separate=self.separation,
            paired=not self.apart and bool(ends["low"].max() <= ends["high"].min()),
        )  # fmt: skip
        if not shared or self.wrong or self.emulated:
            return verdict
        return replace(verdict, bottleneck=self._describe_bottleneck(verdict.outcome))

    def _describe_bottleneck(self, outcome: str) -> str:
        """The largest category of both sides, and its share of E2E."""
        (before, was), (after, now) = self.baseline.largest, self.candidate.largest
        error = np.nanmax([0.0, self.baseline.share_error, self.candidate.share_error])
        off = f" ± {100 * error:.2g} points" if error > SAID_POINTS else ""
        if self.baseline.runtime:
            return f"{after} {now} ({self.baseline.runtime}: {before} {was}){off}"
        if before != after:
            return f"{before} {was} -> {after} {now}{off}"
        alike = outcome in ("unchanged", "inconclusive")
        return f"{before} {was}{off}" if alike else f"still {before}, {was} -> {now}{off}"

    @property
    def checks(self) -> list[Row]:
        """Whether the toggle took effect, and the outputs agree: rows of the run's checks."""
        before, after = self.baseline, self.candidate
        name, rows = f"{after.name} against {before.name}, {self.threads_text}", []
        if before.program == after.program:
            rows = [(f"toggle took effect in {name}", *self._check_toggle())]
        elif self.same_program:
            evidence = "both files have the same content (SHA-256)"
            rows = [(f"programs differ in {name}", "note", evidence)]
        threads = frames.plural(after.threads, "thread")
        outputs = f"outputs of {after.name} and {before.name} agree, {threads}"
        return [
            *rows,
            (outputs, *quality.check_outputs(self.agreements, self.models)),
        ]

    def _check_toggle(self) -> tuple[str, str]:
        run, before, after = self.run, self.baseline, self.candidate
        both = self.operators.dropna(subset=["candidate_ms", "baseline_ms"])
        renamed = int((both["name"] != both["candidate_name"]).sum())
        if before.experiment.runner != after.experiment.runner or run.recording:
            if renamed:
                return "ok", f"{frames.plural(renamed, 'operator')} with another kernel"
            return "note", "not shown: no operator logs another kernel"
        if not self.toggled:
            return "ok", "none wanted: both sides are the same"
        hidden = run.masked(before.name) - run.masked(after.name)
        if hidden and self.verdict.same_code:
            # A ladder of ISA levels is measured to find those that bring nothing.
            status = "fail" if run.isa_levels is None else "note"
            return status, f"no: {self.verdict.same_code}"
        return quality.check_toggle_effect(
            hidden, renamed, self.proof, machine_code.explain_lack(run.record)
        )

    @property
    def text(self) -> str:
        """The verdict in one line."""
        return self.verdict.text

    @property
    def caveats(self) -> list[str]:
        """What weakens the verdict."""
        verdict = self.verdict
        caveats = [f"{verdict.wrong}: no speed-up is claimed"] if verdict.wrong else []
        caveats += [verdict.same_code] if verdict.same_code else []
        if verdict.outcome == "inconclusive" and verdict.detectable < 10:
            least = frames.format_share(verdict.detectable)
            caveats.append(f"inconclusive: only a change above {least} was detectable")
        if not self.within_run:
            what = "the interval does not cover what changed on the machine in between"
            offer = "wb.profile([before, after]) measures both side by side"
            caveats.append(f"measured apart: {what}; {offer}")
        sides = [self.candidate] if self.same_program else [self.candidate, self.baseline]
        return list(dict.fromkeys([*caveats, *chain.from_iterable(map(self._caveats_of, sides))]))

    def _caveats_of(self, side: Measurement) -> list[str]:
        """The caveats of a side; they name its program where the label is that of both."""
        if self.same_program or self.baseline.label != self.candidate.label:
            return side.caveats
        texts = (text.removeprefix(f"{side.label}: ") for text in side.caveats)
        return [f"{side.program.stem}: {text}" for text in texts]

    def _key(self, key: str) -> str:
        """A candidate's key where the two sides are paired; marked if the baseline lacks it."""
        return self.keys.get(key) or f"{key} ({self.candidate.name})"

    def compare_by(
        self, level: str, before: Mapping[str, str] = {}, after: Mapping[str, str] = {}
    ) -> pd.DataFrame:
        """Compare the parts of both sides, by other names if given."""
        ours, theirs = (m.traced_rows(level) for m in (self.baseline, self.candidate))
        noise = {side: m.traced_rows(level) for side, m in self._controls.items()}
        if after:
            column = "key" if level == "operator" else level
            ours, theirs = layers.rename(ours, column, before), layers.rename(theirs, column, after)
            noise = {side: layers.rename(ledger, column, before) for side, ledger in noise.items()}
        whole = self.latency[["baseline_ms", "candidate_ms"]].iloc[0].to_list()
        return compare.compare_parts(level, ours, theirs, whole, apart=self.apart, **noise)
