"""A run and what follows from it; every frame is computed once, when it is first asked for."""

from __future__ import annotations

import contextlib
import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from workbench.analysis.align import Traced, align_layers, match_operators, rename
from workbench.analysis.attribution import attribute_layers, find_method
from workbench.analysis.categories import Scheme, add_categories, load_scheme
from workbench.analysis.compare import PARTS, compare_apart, compare_latencies, compare_parts
from workbench.analysis.dtypes import describe_coverage, tabulate_dtypes
from workbench.analysis.findings.context import RuleContext, build_context
from workbench.analysis.findings.dataflow import Dataflow
from workbench.analysis.findings.rules import find_bottlenecks
from workbench.analysis.foreign import OUTPUT, Recording, read_recording
from workbench.analysis.layers import (
    add_layers,
    place_rows,
    summarize_layer_types,
    summarize_layers,
)
from workbench.analysis.ledger import build_ledger
from workbench.analysis.machine_code import (
    compare_evidence,
    compare_kernels,
    explain_unchanged,
    gather_evidence,
    name_kernels,
    prove_change,
)
from workbench.analysis.memory import (
    MB,
    Needs,
    account_memory,
    compare_loading,
    compare_needs,
    judge_need,
    list_file_parts,
    list_tensors,
    measure_needs,
    tabulate_starts,
)
from workbench.analysis.operators import (
    describe_spans,
    summarize_categories,
    summarize_operators,
    total_runs,
)
from workbench.analysis.quality import (
    TRACER_LIMIT,
    check_program,
    check_run,
    grade_run,
    is_foreign,
    summarize_quality,
)
from workbench.analysis.roofline import (
    Roof,
    computed_dtype,
    find_roof,
    list_ceilings,
    place_operators,
)
from workbench.analysis.shift import bottleneck_shift, bound_shift
from workbench.analysis.statistics import (
    add_traced,
    clock_of,
    describe_latencies,
    find_undisturbed_runs,
    half_width,
    pick_timed,
    tabulate_latencies,
)
from workbench.analysis.sweeps import (
    compare_isa_levels,
    describe_sizes,
    find_crossovers,
    fit_sizes,
    sweep_threads,
)
from workbench.analysis.variants import STUDY, add_measured, read_study
from workbench.analysis.verdict import (
    Verdict,
    describe_differences,
    describe_faults,
    reach_verdict,
    summarize_verdict,
)
from workbench.errors import StoreError, TraceError, UsageError, unknown_name
from workbench.export.layers import resize
from workbench.frames import (
    COMPARISON,
    EMULATED,
    NEEDS,
    PHASES,
    SOURCE,
    WRONG,
    check,
    format_range,
    format_share,
    format_time,
    mark_emulated,
)
from workbench.models.registry import list_models
from workbench.records.layers import Layers
from workbench.records.optimize import Study
from workbench.records.runs import (
    LADDER_TOGGLE,
    Agreement,
    Experiment,
    Export,
    Pair,
    Phase,
    PlannedProgram,
    Proof,
    RunRecord,
    Session,
    Start,
    count_threads,
)
from workbench.run.plan import BY_ORDER, pair_experiments
from workbench.store import FUNCTIONS, inside, is_ours, kept_layers, load_layers, load_run
from workbench.trace.etdump import read_etdump
from workbench.trace.samples import (
    count_instructions,
    locate_samples,
    read_functions,
    read_samples,
    resolve_functions,
)
from workbench.trace.xnn_log import read_xnn_log

F = TypeVar("F", pd.DataFrame, "pd.DataFrame | None")

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
            frame = frame.assign(outcome="emulated" if owner.emulated else WRONG)
        return mark_emulated(frame.copy(deep=False)) if owner.emulated else frame

    return cached_property(marked)


@dataclass(eq=False)
class Run:
    """A recorded run: its measurements, its comparisons and what they show.

    Frames of the whole run carry the columns ``experiment`` and ``threads``. What the run did not
    record is None. ``scheme`` has the rules of the categories; ``recording`` is set if another
    tool recorded it.

    Examples
    --------
    >>> run = wb.open_run(wb.sample_run())
    >>> [measurement.label for measurement in run.measurements]
    ['avx512_off', 'avx512_on', 'avx512_off_control']
    >>> run.operators.loc[:2, ["name", "module", "mean_ms"]].shape
    (3, 3)
    """

    path: Path
    record: RunRecord
    scheme: Scheme = field(default_factory=load_scheme)
    recording: Recording | None = None
    _traces: dict[str, pd.DataFrame] = field(default_factory=dict, init=False)
    _sidecars: dict[str, Layers | None] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if self.recording:
            self._traces, self._sidecars = self.recording.traces, self.recording.layers

    def __repr__(self) -> str:
        return f"Run({', '.join(self.facts)}: {', '.join(m.label for m in self.measurements)})"

    def _repr_html_(self) -> str:
        import workbench as wb

        return wb.show_verdicts(self)._repr_html_() if self.measurements else f"<p>{self.model}</p>"

    @property
    def facts(self) -> tuple[str, ...]:
        """Model, dtype, device, and when it was started, as far as they are known."""
        exports = filter(None, map(self.record.export_of, self.record.plan.all_programs))
        dtypes = " and ".join(dict.fromkeys(export.dtype for export in exports))
        started = self.record.started[:16].replace("T", " ")
        return tuple(filter(None, (self.model, dtypes, self.device, started)))

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
        if self.recording is None:
            return self.path
        return self.path / OUTPUT if self.path.is_dir() else self.path.with_suffix(f".{OUTPUT}")

    @property
    def study(self) -> Study | None:
        """The optimisation that it was measured for, if any."""
        folder = self.path.resolve().parent.parent
        return read_study(folder) if (folder / STUDY).is_file() else None

    @cached_property
    def known_study(self) -> Study | None:
        """That, or the one in the same output folder; None without one that can be read."""
        with contextlib.suppress(UsageError, StoreError):
            return self.study or read_study(self.path.resolve().parent.parent)
        return None

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
        """Every experiment at every thread count that was measured, controls included."""
        experiments = {e.name: e for e in self.record.plan.experiments}
        found = dict.fromkeys(
            (s.experiment, s.threads)
            for s in self.record.sessions
            if s.complete and (s.etdump or s.batches)
        )
        return tuple(Measurement(self, experiments[name], threads) for name, threads in found)

    @cached_property
    def traced(self) -> tuple[Measurement, ...]:
        """The measurements that have a trace."""
        return tuple(m for m in self.measurements if m.sessions)

    def __getitem__(self, key: str | tuple[str | int, ...]) -> Measurement:
        """``run[experiment]``, ``run[experiment, threads]``, ``run[phase, experiment]``."""
        parts = key if isinstance(key, tuple) else (key,)
        names = [part for part in parts if isinstance(part, str)]
        counts = [part for part in parts if not isinstance(part, str)]
        experiment = "_".join(names)
        named = [m for m in self.measurements if m.name == experiment]
        if not named:
            known = [m.name for m in self.measurements]
            raise unknown_name("experiment", experiment, known, where=self.path)
        if not counts:
            return named[0]
        if found := [m for m in named if m.threads == counts[0]]:
            return found[0]
        known = [str(m.threads) for m in named]
        raise unknown_name("thread count", str(counts[0]), known, where=self.path)

    @cached_property
    def comparisons(self) -> tuple[Comparison, ...]:
        """The comparisons that the run was planned for, as far as both sides were measured."""
        keys = pick_timed(self.latencies)[MEASUREMENT].drop_duplicates()
        measured = set(keys.itertuples(index=False, name=None))
        traced = {(m.name, m.threads): m for m in self.traced if (m.name, m.threads) in measured}
        counts, found = self.record.plan.threads, []
        for pair in self.record.plan.pairs:
            for few, count in [pair.threads] if pair.threads else [(n, n) for n in counts]:
                before, after = (
                    traced.get(key) for key in ((pair.baseline, few), (pair.candidate, count))
                )
                if before and after:
                    ending = f", {count_threads(count)}" if len(counts) > 1 or few != count else ""
                    ending += f" against {few}" if few != count else ""
                    found.append(Comparison(before, after, pair.label + ending))
        return tuple(found)

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
            several = len({m.name for m in self.measurements}) > 1
            hint = "name both" if several else "it has one experiment: add traces of another"
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
        timed = tabulate_latencies(self.record)
        untimed = any(not s.batches for s in self.record.sessions)
        return add_traced(timed, self.ledger, self.record) if untimed else timed

    @frame_property
    def statistics(self) -> pd.DataFrame:
        """Latency of every measurement in ms: ``frames.STATISTICS``."""
        return describe_latencies(self.latencies)

    @frame_property
    def ledger(self) -> pd.DataFrame:
        """Every nanosecond of every traced inference: ``frames.LEDGER``."""
        return pd.concat([m.ledger for m in self.traced], ignore_index=True)

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

    @frame_property
    def evidence(self) -> pd.DataFrame | None:
        """Which machine code ran: ``frames.EVIDENCE``."""
        return self._stack("machine_code") if self._samples else None

    @property
    def experiments(self) -> list[str]:
        """The experiments that are compared, without their controls."""
        return [e.name for e in self.record.plan.experiments if not e.control]

    @cached_property
    def floor(self) -> float:
        """The largest difference of an A/A control, as a ratio - 1; 0 without one."""
        floors = [float(c.latency["floor"].iloc[0]) for c in self.comparisons]
        return max(floors, default=0.0)

    @frame_property
    def needs(self) -> pd.DataFrame:
        """Latency, first output, memory and size of every measurement: ``frames.NEEDS``."""
        return pd.concat([m.needs for m in self.measurements], ignore_index=True)

    @frame_property
    def isa_levels(self) -> pd.DataFrame | None:
        """Every ISA level against the one below: ``frames.LADDER``."""
        if self.record.plan.toggle != LADDER_TOGGLE:
            return None
        masked = {s.experiment: s.masked for s in self.record.sessions}
        adds = {
            above: ", ".join(f for f in masked[below] if f not in masked[above])
            for names in self._phased
            for below, above in pairwise(names)
        }
        levels = []
        for names in self._phased:
            original, control = self.find_control(names[-1])
            noise = {"control": control, "control_of": original}
            levels += [
                compare_isa_levels(self.latencies, names, threads=threads, adds=adds, **noise)
                for threads in self._counts
            ]
        return pd.concat(levels, ignore_index=True)

    @frame_property
    def scaling(self) -> pd.DataFrame | None:
        """Latency over the number of threads: ``frames.SCALING``."""
        return sweep_threads(self.latencies, self._swept) if self._swept else None

    @cached_property
    def crossovers(self) -> tuple[str, ...]:
        """What changes with more threads, as sentences."""
        if not self._swept or self.emulated:
            return ()
        swept = ([name for name in names if name in self._swept] for names in self._phased)
        return tuple(text for names in swept for text in find_crossovers(self.latencies, names))

    @frame_property
    def phases(self) -> pd.DataFrame | None:
        """Latency, tokens per second and bottleneck in every phase: ``frames.PHASES``."""
        rows = []
        for m in self.traced if self.record.plan.phases else ():
            if m.control:
                continue
            tokens, top = m.phase.tokens or math.nan, m.categories.nlargest(1, "mean_ms").iloc[0]
            latency = m.statistics[["latency", "low", "high"]].iloc[0].tolist()
            ends = (latency[0], *latency[:0:-1])
            rates = [tokens / ms * 1e3 if ms > 0 else math.nan for ms in ends]
            shares = {} if m.roofline is None else m.roofline.groupby("bound")["share"].sum()
            roofs = {shares[b]: b for b in ("compute", "memory", "neither") if b in shares}
            found = (roofs[max(roofs)], max(roofs)) if roofs else ("", math.nan)
            place = m.phase.name, m.name, m.threads, tokens, m.phase.position
            size = m.phase.size or math.nan
            rows.append((*place, size, *latency, *rates, top["category"], top["share"], *found))
        return check(pd.DataFrame(rows, columns=PHASES.names), PHASES) if rows else None

    @frame_property
    def size_fits(self) -> pd.DataFrame | None:
        """Straight lines through the latency over the swept size: ``frames.SIZE_FITS``."""
        if not self.record.plan.sweep or self.emulated:
            return None
        phases = self.record.plan.phases
        work = {p.size: max(math.prod(t.shape) for t in p.inputs) for p in phases}
        (few, least), *_, (many, most) = sorted(work.items())
        power = max(1, round(math.log(most / least) / math.log(many / few)))
        sides = {m.name: (m.side, m.phase.size) for m in self.measurements if not m.control}
        fits = fit_sizes(self.latencies, sides, power)
        return None if fits.empty else fits

    @cached_property
    def size_changes(self) -> tuple[str, ...]:
        """What changes with the swept size, as sentences."""
        if not self.record.plan.sweep or self.phases is None or self.emulated:
            return ()
        sides = {m.name: m.side for m in self.measurements}
        phases = self.phases.assign(side=self.phases["experiment"].map(sides))
        judged = []
        for ab in self.comparisons:
            label = f"{ab.candidate.side} over {ab.baseline.side}"
            label += f", {count_threads(ab.candidate.threads)}"
            judged.append(ab.latency.assign(label=label, size=ab.candidate.phase.size))
        return tuple(describe_sizes(phases, self.record.plan.sweep, pd.concat(judged)))

    @property
    def _phased(self) -> list[list[str]]:
        """The experiments of every phase, without controls."""
        found: dict[str, list[str]] = {}
        for experiment in self.record.plan.experiments:
            if not experiment.control:
                found.setdefault(experiment.phase, []).append(experiment.name)
        return list(found.values())

    @cached_property
    def _counts(self) -> list[int]:
        return sorted(set(pick_timed(self.latencies)["threads"]))

    @cached_property
    def _swept(self) -> list[str]:
        """The experiments that were measured at each of several thread counts."""
        at = pick_timed(self.latencies).groupby("experiment")["threads"].nunique()
        found = [name for name in self.experiments if at.get(name, 0) == len(self._counts)]
        return found if len(self._counts) > 1 else []

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
            f"{p.candidate} against {p.baseline}": compare_kernels(
                logs[p.candidate], logs[p.baseline]
            )
            for p in pairs
        }

    @cached_property
    def tracer_overhead(self) -> dict[tuple[str, int], float]:
        """How much longer traced inferences take, as a fraction, by experiment and threads."""
        found = {}
        for (experiment, threads), part in self.latencies.groupby(MEASUREMENT):
            median = part.groupby("traced")[clock_of(part)].median()
            if experiment in self.experiments and {True, False} <= set(median.index):
                found[experiment, threads] = median[True] / median[False] - 1
        return found

    @cached_property
    def ceilings(self) -> pd.DataFrame:
        """What the machine reaches at each ISA level and thread count, as far as measured."""
        return list_ceilings(self.path)

    @property
    def findings(self) -> pd.DataFrame:
        """Optimisation opportunities, largest gain first: ``frames.FINDINGS``.

        With several phases, those of each, the largest part of the phase's latency first; of a
        sweep, those of the ends.
        """
        subjects = {ab.candidate.phase.name: ab.candidate for ab in reversed(self.comparisons)}
        if self.record.plan.sweep:
            ends = sorted(subjects.values(), key=lambda m: m.phase.size)
            subjects = {m.phase.name: m for m in (ends[0], ends[-1])}
        if len(subjects) < 2:
            return self.subject.findings
        found = [
            m.findings.assign(title=f"{phase}: " + m.findings["title"])
            for phase, m in subjects.items()
        ]
        merged = pd.concat(found).sort_values("share", ascending=False, kind="stable")
        return merged.reset_index(drop=True).assign(rank=np.arange(1, len(merged) + 1))

    @frame_property
    def quality(self) -> pd.DataFrame:
        """How good the measurement is: ``frames.QUALITY``; the first row's grade is the run's."""
        none = [pd.DataFrame(columns=COMPARISON.names, dtype=float)]
        comparisons = pd.concat([c.latency for c in self.comparisons] or none, ignore_index=True)
        overhead = max(self.tracer_overhead.values(), key=abs, default=math.nan)
        return grade_run(self.record, self.latencies, comparisons, overhead)

    @cached_property
    def checks(self) -> pd.DataFrame:
        """Whether the numbers can be trusted: ``check``, ``status``, ``evidence``."""
        return check_run(self)

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

    def report(self) -> tuple[Path, Path]:
        """Write ``report.html`` and ``report.md``; returns their paths."""
        import workbench as wb

        return wb.make_report(self)

    def locate(self, name: str) -> Path:
        """The path of a file that the manifest names."""
        return inside(self.path.parent if self.path.is_file() else self.path, name)

    def masked(self, experiment: str) -> set[str]:
        """The CPU features that every process of an experiment hid."""
        masks = [set(s.masked) for s in self.record.sessions if s.experiment == experiment]
        return set.intersection(*masks) if masks else set()

    def read_trace(self, session: Session) -> pd.DataFrame:
        """The events of a session's ETDump; that of a first process is kept."""
        if session.etdump in self._traces:
            return self._traces[session.etdump]
        events = read_etdump(self.locate(session.etdump))
        if session.process == 0:
            self._traces[session.etdump] = events
        return events

    def read_sidecar(self, program: PlannedProgram) -> Layers | None:
        """What a program's instructions were in the model, if the run's folder has it."""
        if program.name not in self._sidecars:
            path = kept_layers(self.path, program.name)
            self._sidecars[program.name] = load_layers(path, program.sha256)
        return self._sidecars[program.name]

    def find_control(self, experiment: str) -> tuple[str | None, str | None]:
        """An experiment and its repetition, which show the noise; its own if it has one."""
        experiments = self.record.plan.experiments
        found = [
            (e.name, c.name)
            for c in experiments
            for e in experiments
            if c.control and replace(e, name=c.name, control=True) == c and not e.control
        ]
        return next((pair for pair in found if pair[0] == experiment), (*found, (None, None))[0])

    @cached_property
    def _samples(self) -> dict[tuple[str, int], tuple[pd.DataFrame, Path]]:
        """The PC samples of every measurement, and the trace of the same process."""
        return {
            (s.experiment, s.threads): (read_samples(self.locate(s.samples)), self.locate(s.etdump))
            for s in self.record.samplings
            if s.samples
        }

    @cached_property
    def _functions(self) -> Any:
        kept = self.path / FUNCTIONS
        if kept.exists():
            return read_functions(kept)
        return resolve_functions([samples for samples, _ in self._samples.values()])

    def _stack(self, name: str) -> pd.DataFrame:
        frames = {(m.name, m.threads): getattr(m, name) for m in self.traced}
        known = {key: frame for key, frame in frames.items() if frame is not None}
        stacked = pd.concat(known, names=MEASUREMENT)
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
    def emulated(self) -> bool:
        """Whether its times mean nothing."""
        return self.run.emulated

    @cached_property
    def program(self) -> PlannedProgram:
        """What was run."""
        return self.run.record.plan.program_of(self.experiment)

    @property
    def export(self) -> Export | None:
        """How its program was exported; None if that is unknown."""
        return self.run.record.export_of(self.program)

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
        return self.sidecar is not None and any(m.modules for m in self.sidecar.methods)

    @property
    def wrong(self) -> str:
        """What is wrong with its program's outputs; empty if nothing is known to be."""
        return self.export.fault if self.export else ""

    @property
    def caveats(self) -> list[str]:
        """What weakens its figures: emulation, what its program lost, a measurement of grade C."""
        quality = self.run.quality
        found = [EMULATED] if self.emulated else []
        found += [f"{check}: {evidence}" for check, status, evidence in check_program(self)
                  if status == "note"]  # fmt: skip
        return found + [summarize_quality(quality)] * (quality["grade"].iloc[0] in "CD")

    @property
    def label(self) -> str:
        """The experiment, with the threads where the run has several counts."""
        several = len(self.run.record.plan.threads) > 1
        return ", ".join([self.name, *([count_threads(self.threads)] if several else [])])

    @cached_property
    def sessions(self) -> tuple[Session, ...]:
        """The runner processes that were traced."""
        return tuple(
            s
            for s in self.run.record.sessions
            if (s.experiment, s.threads) == (self.name, self.threads) and s.complete and s.etdump
        )

    @frame_property
    def latencies(self) -> pd.DataFrame:
        """Every timed inference: ``frames.LATENCIES``."""
        return self._select(self.run.latencies)

    @frame_property
    def statistics(self) -> pd.DataFrame:
        """Latency in ms, one row of ``frames.STATISTICS``."""
        return self._select(self.run.statistics)

    @property
    def latency_ms(self) -> float:
        """The latency: mean over the restarts of the midmean of each; untraced if measured so."""
        return float(self.statistics["latency"].iloc[0])

    @property
    def latency_text(self) -> str:
        """The latency with half the width of its 95 % interval, and over how many restarts."""
        row = self.statistics.iloc[0]
        restarts = int(row["restarts"])
        text = format_time(row["latency"], row["high"] - row["latency"])
        if restarts == 1:
            return f"{text} (1 restart: no interval)"
        return f"{text} (95 % CI, n = {restarts} restarts)"

    @property
    def rate_text(self) -> str:
        """Tokens per second, after a comma; empty if it is no step of a language model."""
        tokens = self.phase.tokens
        return f", {float(f'{tokens / self.latency_ms * 1e3:.3g}'):.10g} tokens/s" if tokens else ""

    @property
    def times_text(self) -> str:
        """How the latency and the sum of its parts, which are of traced inferences, compare."""
        parts, clock = float(self.categories["mean_ms"].sum()), self.statistics["clock"].iloc[0]
        shown, latency = format_range(parts, self.latency_ms)
        text = f"The parts of {self.label} add up to {shown}: traced, "
        text += "wall time, the least disturbed inferences."
        if self.emulated:
            return f"{EMULATED.capitalize()}."
        if self.latencies["traced"].all():
            return text
        kind = "CPU" if clock == "cpu_ns" else "wall"
        apart = parts / self.latency_ms - 1
        text += f" The latency is {latency}: untraced, {kind} time."
        if abs(apart) < TRACER_LIMIT:
            return text
        return f"{text} They differ by {format_share(apart)}: use the shares, not the milliseconds."

    @property
    def events(self) -> pd.DataFrame:
        """The events of the first process after its warm-up: ``frames.EVENTS``."""
        if not self.sessions:
            raise StoreError(f"{self.label} has no trace", where=self.run.path)
        session = self.sessions[0]
        events = self.run.read_trace(session)
        if not session.skipped:
            return events
        inside = events["run"] >= 0
        events = events.assign(run=events["run"] - session.skipped * inside)
        return events[~inside | (events["run"] >= 0)].reset_index(drop=True)

    @frame_property
    def spans(self) -> pd.DataFrame:
        """The same events with their categories: ``frames.SPANS``."""
        return describe_spans(self.events, self.run.scheme)

    @cached_property
    def _rows(self) -> pd.DataFrame:
        """The ledger without layers."""
        return pd.concat([rows for rows, _ in self._parts], ignore_index=True)

    @cached_property
    def _parts(self) -> list[tuple[pd.DataFrame, np.ndarray]]:
        """Of every traced process, its ledger, and whether the rows of each run add up."""
        if not self.sessions:
            raise StoreError(f"{self.label} has no trace", where=self.run.path)
        return [self._read_ledger(session) for session in self.sessions]

    @property
    def run_count(self) -> int:
        """How many traced runs were read."""
        return sum(len(closed) for _, closed in self._parts)

    @property
    def open_runs(self) -> int:
        """Of these, how many have ledger rows that do not sum to ``Method::execute``."""
        return sum(int((~closed).sum()) for _, closed in self._parts)

    @cached_property
    def _attribution(self) -> pd.DataFrame | None:
        return attribute_layers(self._rows, self.sidecar) if self.sidecar else None

    @frame_property
    def ledger(self) -> pd.DataFrame:
        """Every nanosecond of its undisturbed traced inferences: ``frames.LEDGER``.

        Where layers are known, ``layer`` names that of every row.
        """
        known = self._attribution
        return self._rows if known is None else place_rows(self._rows, known)

    @frame_property
    def operators(self) -> pd.DataFrame:
        """The operators, most expensive first: ``frames.OPERATORS`` (and ``ATTRIBUTION``)."""
        operators, known = summarize_operators(self._rows), self._attribution
        return operators if known is None else add_layers(operators, known)

    @frame_property
    def categories(self) -> pd.DataFrame:
        """Time by category: ``frames.CATEGORIES``."""
        return summarize_categories(self._rows)

    @frame_property
    def layers(self) -> pd.DataFrame | None:
        """Time by layer of the model: ``frames.LAYERS``."""
        if self.sidecar is None or not self.has_layers:
            return None
        return summarize_layers(self.operators, self.sidecar, total_runs(self._rows, "key"))

    @frame_property
    def layer_types(self) -> pd.DataFrame | None:
        """Time by class of layer and category of operator: ``frames.LAYER_TYPES``."""
        if self.layers is None:
            return None
        return summarize_layer_types(self.operators, total_runs(self._rows, "key"))

    @frame_property
    def machine_code(self) -> pd.DataFrame | None:
        """Samples of the program counter by operator and function: ``frames.EVIDENCE``."""
        found = self.run._samples.get((self.name, self.threads))
        if found is None:
            return None
        samples, etdump = found
        located = locate_samples(samples, self.run._functions)
        return gather_evidence(read_etdump(etdump), located, self.run.scheme)

    @cached_property
    def starts(self) -> tuple[Start, ...]:
        """The processes that were timed from their start."""
        key = (self.name, self.threads)
        return tuple(s for s in self.run.record.starts if (s.experiment, s.threads) == key)

    @frame_property
    def cold_start(self) -> pd.DataFrame | None:
        """Time from the start of a process to its first output: ``frames.COLD_START``."""
        return tabulate_starts(self.starts)

    @frame_property
    def memory(self) -> pd.DataFrame | None:
        """What the process holds when most of it is resident: ``frames.MEMORY``."""
        return account_memory(self.starts)

    @frame_property
    def loading(self) -> pd.DataFrame | None:
        """Starts that read the file against those that map it: ``frames.NEEDS_COMPARED``."""
        return compare_loading(self.starts)

    @cached_property
    def flow(self) -> Dataflow | None:
        """The program as a graph; None if its operators are unknown."""
        known = self.sidecar and find_method(self.ledger.drop_duplicates("key"), self.sidecar)
        return Dataflow(known) if known else None

    @frame_property
    def tensors(self) -> pd.DataFrame | None:
        """Every activation and when it is live, the largest first: ``frames.TENSORS``."""
        return list_tensors(self.flow) if self.flow else None

    @frame_property
    def file_parts(self) -> pd.DataFrame | None:
        """The program's file by part and layer, the largest first: ``frames.FILE_PARTS``."""
        return list_file_parts(self.run.read_sidecar(self.program))

    @property
    def measured_needs(self) -> Needs:
        """What `needs` has of every process."""
        key = (self.name, self.threads, False)
        every = self.run.record.sessions
        sessions = [s for s in every if (s.experiment, s.threads, s.traced) == key]
        return measure_needs(self.starts, sessions)

    @frame_property
    def needs(self) -> pd.DataFrame:
        """Latency, first output, memory, energy and size: ``frames.NEEDS``."""
        latency = self.statistics[["latency", "low", "high"]].iloc[0]
        rows = [("latency", "ms", *latency)]
        for need, (unit, values) in self.measured_needs.items():
            half = float(half_width(values.to_numpy()))
            rows.append((need, unit, values.mean(), values.mean() - half, values.mean() + half))
        if self.export:
            size = self.export.size_bytes / MB
            rows.append(("size", "MB", size, size, size))
        table = pd.DataFrame(rows, columns=NEEDS.names[2:])
        return check(table.assign(experiment=self.name, threads=self.threads)[NEEDS.names], NEEDS)

    @cached_property
    def loops(self) -> dict[str, pd.Series]:
        """The hot loops of the functions that ran: samples by instruction."""
        found = self.run._samples.get((self.name, self.threads))
        return {} if found is None else count_instructions(found[0], self.run._functions)

    @cached_property
    def kernels(self) -> pd.DataFrame:
        """The microkernel of every operator by key, where the samples agree on one."""
        return pd.DataFrame() if self.machine_code is None else name_kernels(self.machine_code)

    @cached_property
    def roof(self) -> Roof | None:
        """What the machine can do at this ISA level and thread count, if it was measured."""
        return find_roof(self.run.path, self.experiment, self.threads)

    @frame_property
    def roofline(self) -> pd.DataFrame | None:
        """Every operator below the roof: ``frames.ROOFLINE``."""
        if self.roof is None or "flops" not in self.operators:
            return None
        return place_operators(self.operators, self.roof, computed_dtype(self.export))

    @frame_property
    def dtypes(self) -> pd.DataFrame | None:
        """In which dtype convolutions and matrix products ran: ``frames.DTYPES``.

        None for fp32, without a trace, and for a program of unknown origin.
        """
        if self.export is None or self.export.dtype == "fp32" or not self.sessions:
            return None
        found = tabulate_dtypes(self.operators, self.export)
        return None if found.empty else found

    @cached_property
    def context(self) -> RuleContext:
        """What the rules for findings look at."""
        return build_context(self)

    @frame_property
    def findings(self) -> pd.DataFrame:
        """Optimisation opportunities, largest gain first: ``frames.FINDINGS``."""
        found = find_bottlenecks(self.context)
        if (study := self.run.known_study) and self.export and not self.emulated:
            found = add_measured(found, study, self.export.sha256)
        return found.assign(hint=found["hint"].map(self.complete_command))

    def complete_command(self, command: str) -> str:
        """A command with its run and program for ``RUN_DIR``, ``MODEL.pte`` and ``MODEL``."""
        folder, export = self.run.path.resolve(), self.export
        inside_cwd = folder.is_relative_to(Path.cwd())
        names = {
            "RUN_DIR": str(folder.relative_to(Path.cwd()) if inside_cwd else folder),
            "MODEL.pte": self.program.pte or "MODEL.pte",
            "MODEL": model_spec(export) if export else "MODEL",
        }
        return re.sub(r"RUN_DIR|MODEL(\.pte)?", lambda m: shlex.quote(names[m[0]]), command)

    def _select(self, frame: pd.DataFrame) -> pd.DataFrame:
        chosen = (frame["experiment"] == self.name) & (frame["threads"] == self.threads)
        return frame[chosen].reset_index(drop=True)

    def _read_ledger(self, session: Session) -> tuple[pd.DataFrame, np.ndarray]:
        events = self.run.read_trace(session)
        ledger = build_ledger(events)
        closed = closed_runs(events, ledger)
        kept = kept_runs(session, len(closed), self.run.path / session.etdump)
        ledger = add_categories(ledger[kept[ledger["run"]]], self.run.scheme)
        for place, (name, *_) in enumerate(SOURCE):
            ledger.insert(place, name, getattr(session, name))
        return ledger, closed


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
        faults = describe_faults(self.candidate.wrong, self.baseline.wrong)
        judged = [a for a in self.agreements if self.same_model and not a.note]
        return faults or describe_differences(judged)

    @property
    def programs(self) -> str:
        """The SQNR and size of two programs of different dtypes; empty if they have one dtype."""
        sides = [side for side in (self.candidate, self.baseline) if side.export]
        if len({side.export.dtype for side in sides if side.export}) < 2:
            return ""
        return "; ".join(map(describe_program, sides))

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
    def interleaved(self) -> bool:
        """Whether both sides were measured interleaved."""
        return not self.apart and self.baseline.threads == self.candidate.threads

    @property
    def threads_text(self) -> str:
        """``1 thread``, or ``4 threads against 1``."""
        before, after = self.baseline.threads, self.candidate.threads
        return count_threads(after) + ("" if before == after else f" against {before}")

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
    def same_model(self) -> bool:
        """Whether both sides ran programs of one model, which should compute the same."""
        return self.baseline.program.model == self.candidate.program.model

    @property
    def agreements(self) -> list[Agreement]:
        """How far the outputs of both sides are apart."""
        sides = (self.baseline.name, self.candidate.name, self.candidate.threads)
        known = self.run.record.agreements if self.within_run else ()
        return [a for a in known if (a.baseline, a.candidate, a.threads) == sides]

    @cached_property
    def _controls(self) -> dict[str, Measurement]:
        """A control of the baseline's program and what it repeats, which show the noise."""
        names = map(str, self.run.find_control(self.baseline.name))
        traced = {m.name: m for m in self.run.traced if m.threads == self.candidate.threads}
        found = [traced[name] for name in names if name in traced]
        if self.apart or len(found) < 2 or found[0].program.name != self.baseline.program.name:
            return {}
        return dict(zip(("control_of", "control"), found, strict=True))

    @cached_property
    def keys(self) -> dict[str, str]:
        """The baseline's keys of the candidate's operators, where these are of another program."""
        return {} if self.same_program else match_operators(*self._traced)

    @property
    def candidate_operators(self) -> pd.DataFrame:
        """The candidate's operators, with the baseline's keys where the two are paired."""
        operators = self.candidate.operators
        return operators if self.same_program else self._rekey(operators)

    def _rekey(self, rows: pd.DataFrame) -> pd.DataFrame:
        return rows.assign(key=[self._key(key) for key in rows["key"]])

    @property
    def _traced(self) -> tuple[Traced, Traced]:
        before, after = (Traced(m.ledger, m.operators) for m in (self.baseline, self.candidate))
        return before, after

    @frame_property
    def latency(self) -> pd.DataFrame:
        """E2E latency, one row of ``frames.COMPARISON``."""
        before, after = self.baseline, self.candidate
        if not self.interleaved:
            return compare_apart(
                before.latencies,
                after.latencies,
                clock="wall_ns" if self.within_run else None,
                separate=self.apart,
            )
        noise = {side: m.name for side, m in self._controls.items()}
        timed, threads = self.run.latencies, after.threads
        return compare_latencies(timed, before.name, after.name, threads=threads, **noise)

    @frame_property
    def categories(self) -> pd.DataFrame:
        """Time of every category: ``frames.COMPARISON``."""
        return self._compare("category")

    @frame_property
    def operators(self) -> pd.DataFrame:
        """Time of every operator, the largest change first: ``frames.COMPARISON``.

        Operators of different programs are paired by layer, kind, shapes and cost in order of
        execution; ``candidate_key`` is the candidate's.
        """
        if self.same_program:
            compared = self._compare("operator")
            return compared.assign(
                candidate_key=compared["key"].where(compared["candidate_ms"].notna())
            )
        theirs = {key: self._key(key) for key in self.candidate.operators["key"]}
        compared = self._compare("operator", after=theirs)
        own = {key: theirs for theirs, key in theirs.items()}
        return compared.assign(candidate_key=compared["key"].map(own))

    def compare_groups(self, groups: Mapping[str, Any]) -> pd.DataFrame:
        """Time of groups of operators, which are given by the candidate's keys: ``COMPARISON``."""
        before = {self.keys.get(key, key): group for key, group in groups.items()}
        compared = self._compare("operator", before, groups).set_index("key")
        return compared[compared.index.isin(set(groups.values()))]

    @frame_property
    def layers(self) -> pd.DataFrame | None:
        """Own time of every layer, the largest change first: ``frames.COMPARISON``."""
        if not (self.baseline.has_layers and self.candidate.has_layers):
            return None
        if self.same_program:
            return self._compare("layer")
        _, names = align_layers(dict(zip(("before", "after"), self._traced, strict=True)))
        return self._compare("layer", **names)

    @frame_property
    def kinds(self) -> pd.DataFrame:
        """Time in the delegate, in portable kernels and in overhead: ``frames.COMPARISON``."""
        return self._compare("kind")

    @property
    def speedups(self) -> pd.DataFrame:
        """E2E and every category: ``frames.COMPARISON``."""
        return pd.concat([self.latency.assign(name="E2E"), self.categories], ignore_index=True)

    @frame_property
    def needs(self) -> pd.DataFrame:
        """Latency, starts, memory, energy and size of both sides: ``frames.NEEDS_COMPARED``.

        The size only if the programs differ.
        """
        sides, rows = (self.baseline, self.candidate), []
        if not self.emulated:
            row = self.latency.iloc[0]
            ends = (1 / row[["speedup", "high", "low"]].astype(float)).tolist()
            outcome = {"faster": "less", "slower": "more"}.get(row["outcome"], row["outcome"])
            rows = [("latency", "ms", row["baseline_ms"], row["candidate_ms"], *ends, outcome)]
        sizes = [side.export.size_bytes / MB for side in sides if side.export]
        if len(sizes) == len(sides) and not self.same_program:
            ratio = sizes[1] / sizes[0]
            rows.append(("size", "MB", *sizes, *[ratio] * 3, judge_need(ratio, ratio)))
        table = compare_needs(self.baseline.measured_needs, self.candidate.measured_needs, rows)
        if self._controls and not self.candidate.control:
            again = Comparison(self._controls["control_of"], self._controls["control"]).needs
            table["control"] = table["need"].map(again.set_index("need")["ratio"])
        return table

    @frame_property
    def shift(self) -> pd.DataFrame:
        """How the bottleneck moves: ``frames.SHIFT``."""
        shift = bottleneck_shift(self.baseline.categories, self.candidate.categories)
        if self.apart:
            return shift
        return bound_shift(shift, self.baseline.ledger, self.candidate.ledger)

    @frame_property
    def kernels(self) -> pd.DataFrame | None:
        """The microkernel of every operator on both sides: ``frames.KERNEL_EVIDENCE``."""
        before, after = self.baseline.machine_code, self.candidate.machine_code
        if before is None or after is None:
            return None
        return compare_evidence(before, after if self.same_program else self._rekey(after))

    @cached_property
    def proof(self) -> Proof | None:
        """Whether both sides ran the same machine code; None where it was not sampled."""
        before, after = self.baseline.machine_code, self.candidate.machine_code
        return None if before is None or after is None else prove_change(before, after)

    @cached_property
    def verdict(self) -> Verdict:
        """What the comparison showed."""
        unchanged = ""
        if self.proof and self.proof.outcome == "same" and self.toggled:
            hidden = self.run.masked(self.baseline.name) ^ self.run.masked(self.candidate.name)
            dtype = self.candidate.export.dtype if self.candidate.export else ""
            unchanged = explain_unchanged(self.proof, hidden, self.baseline.ledger, dtype)
        subject, label = self.subject or self.candidate.program.model, self.label
        named = self.within_run and self.baseline.program != self.candidate.program
        if named and not self.subject:
            subject, label = f"{self.candidate.label} against {self.baseline.label}", ""
        return reach_verdict(
            subject, label, self.latency, self.shift, emulated=self.emulated, wrong=self.wrong,
            programs=self.programs, unchanged=unchanged, separate=self.separation,
        )  # fmt: skip

    @property
    def text(self) -> str:
        """The verdict in one line."""
        return summarize_verdict(self.verdict)

    @property
    def caveats(self) -> list[str]:
        """What weakens the verdict."""
        verdict = self.verdict
        found = [f"{verdict.wrong}: no speed-up is claimed"] if verdict.wrong else []
        found += [verdict.unchanged] if verdict.unchanged else []
        if verdict.outcome == "inconclusive" and verdict.detectable < 10:
            least = format_share(verdict.detectable)
            found.append(f"inconclusive: only a change above {least} was detectable")
        if not self.within_run:
            what = "the interval does not cover what changed on the machine in between"
            found.append(f"measured apart: {what}")
        sides = (self.candidate,) if self.same_program else (self.candidate, self.baseline)
        return [*dict.fromkeys(found + [caveat for side in sides for caveat in side.caveats])]

    def _key(self, key: str) -> str:
        """A candidate's key where the two sides are paired; marked if the baseline lacks it."""
        return self.keys.get(key) or f"{key} ({self.candidate.name})"

    def _compare(
        self, level: str, before: Mapping[str, str] = {}, after: Mapping[str, str] = {}
    ) -> pd.DataFrame:
        """Compare the parts of both sides, by other names if given."""
        ours, theirs = self.baseline.ledger, self.candidate.ledger
        noise = {side: m.ledger for side, m in self._controls.items()}
        if after:
            column = PARTS[level]
            ours, theirs = rename(ours, column, before), rename(theirs, column, after)
            noise = {side: rename(ledger, column, before) for side, ledger in noise.items()}
        return compare_parts(level, ours, theirs, apart=self.apart, **noise)


def open_run(path: str | Path | Run, *, baseline: str = "", categories: str | Path = "") -> Run:
    """Open a recorded run; its traces are read when a frame needs them.

    Parameters
    ----------
    path
        The folder of a run, one of Arm's profiling kit, any folder with ETDumps, or an ETDump. Of
        the latter, subfolders or file names name the experiments, ``_t4`` is a thread count and
        ``_p2`` a restart; a ``.pte`` (with its ``.etrecord``) and logs of XNNPACK nearby are used.
        A `Run` is returned as is, or opened again for other categories.
    baseline
        The experiment to compare all others with, in place of the run's own comparisons.
    categories
        The categories of its operators: ``kit`` for those of Arm's profiling kit, or a YAML file of
        rules such as ``workbench/analysis/schemes/kit.yaml``.

    Raises
    ------
    UsageError
        The folder is no run, the baseline no experiment, or there are no such categories.
    StoreError
        The manifest is corrupt or names a file outside of the folder, nothing was measured
        completely, or no ETDump can be read.

    Examples
    --------
    >>> wb.open_run(wb.sample_run()).model
    'mobilenet_v3_small'
    """
    scheme = load_scheme(categories or "workbench")
    if isinstance(path, Run):
        return replace(path, scheme=scheme) if categories else path
    path = Path(path)
    if not is_ours(path):
        found = read_recording(path)
        return _orient(Run(path, found.record, scheme, found), baseline)
    record = load_run(path)
    if not any(session.complete and session.traced for session in record.sessions):
        hint = "repeat the `workbench run` command: it resumes where it stopped"
        raise StoreError("nothing was measured completely", where=path, hint=hint)
    names = [name for s in record.sessions for name in (s.etdump, s.log)]
    names += [name for s in record.samplings for name in (s.etdump, s.samples)]
    programs = map(record.plan.program_of, record.plan.experiments)
    for name in [*names, *(str(kept_layers(Path(), program.name)) for program in programs)]:
        inside(path, name)
    return _orient(Run(path, record, scheme), baseline)


#: XNNPACK's operators with kernels for packed operands, which need SME: ``(NHWC, PF32)``.
_SME_OPERATOR = re.compile(r"\bP(?:F16|F32|QS8)\b")


def _orient(run: Run, baseline: str) -> Run:
    """Choose the baselines again if one is named, or if only the order chose them."""
    plan = run.record.plan
    if not baseline and plan.direction != BY_ORDER and run.recording is None:
        return run
    timed = [e for e in plan.experiments if not e.control and e.mode == "timing"]
    pairs: list[Pair] = []
    how: list[str] = []
    for program in dict.fromkeys(e.program for e in timed if not baseline):
        names = [e.name for e in timed if e.program == program]
        lacking, shown = _find_lacking(run, names)
        found, why = pair_experiments(names, lacking=lacking, shown=shown)
        pairs += found
        how += [why] if found else []
    if baseline:
        found, why = pair_experiments([e.name for e in timed], baseline=baseline)
        pairs, how = [*found], [why]
    planned = {(pair.baseline, pair.candidate): pair for pair in plan.pairs}
    pairs = [planned.get((pair.baseline, pair.candidate), pair) for pair in pairs]
    direction = "; ".join(dict.fromkeys(how))
    plan = replace(plan, pairs=tuple(pairs) or plan.pairs, direction=direction)
    run.record = replace(run.record, plan=plan)
    return run


def _find_lacking(run: Run, names: Sequence[str]) -> tuple[list[str], str]:
    """The experiments that ran with fewer CPU features than others, and what shows it."""
    masks = {name: run.masked(name) for name in names}
    if lacking := [n for n in names if any(masks[n] > mask for mask in masks.values())]:
        return lacking, f"{lacking[0]}: it hides {', '.join(sorted(masks[lacking[0]]))}"
    sme = [name for name in names if _runs_sme(run, name)]
    lacking = [name for name in names if name not in sme] if sme else []
    evidence = f"the traces or logs of {', '.join(sme)} name SME kernels"
    return lacking, f"{''.join(lacking[:1])}: {evidence}"


def _runs_sme(run: Run, experiment: str) -> bool:
    """Whether a trace or log of an experiment names kernels that need SME."""
    sessions = [s for s in run.record.sessions if s.experiment == experiment and s.complete]
    for session in sessions:
        if session.log:
            with contextlib.suppress(TraceError):  # names no kernel
                if read_xnn_log(run.locate(session.log))["sme"].any():
                    return True
    traced = [session for session in sessions if session.etdump][:1]
    names = [name for s in traced for name in run.read_trace(s)["name"].cat.categories]
    return any(_SME_OPERATOR.search(name) for name in names)


def describe_program(measurement: Measurement) -> str:
    """``int8: SQNR 25.0 dB, 2.7 MB``, and how much ran in this dtype; of unknown origin: empty."""
    export = measurement.export
    if export is None:
        return ""
    ratio = "unknown" if export.sqnr_db is None else f"{export.sqnr_db:.1f} dB"
    parts = [f"{export.dtype}: SQNR {ratio}", f"{export.size_bytes / 1e6:.1f} MB"]
    if measurement.dtypes is not None:
        parts.append(describe_coverage(measurement.dtypes))
    return ", ".join(parts)


def model_spec(export: Export) -> str:
    """What ``load_model`` takes for the model of an export."""
    is_file = export.source.endswith(".py") and export.model not in list_models()
    return f"{export.source}:{export.model}" if is_file else export.model


def kept_runs(session: Session, runs: int, path: Path) -> np.ndarray:
    """Which runs of a trace count: undisturbed ones, or all after the warm-up if none was timed."""
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


def closed_runs(events: pd.DataFrame, ledger: pd.DataFrame) -> np.ndarray:
    """For every run of a trace, whether its ledger rows sum to ``Method::execute``."""
    methods = events[(events["kind"] == "method") & (events["run"] >= 0)]
    executes = methods.set_index("run")["duration_ns"]
    sums = ledger.groupby("run")["duration_ns"].sum()
    return (sums.reindex(executes.index) == executes).to_numpy()


def describe_run(run: Run) -> pd.DataFrame:
    """What was run, on what and how: ``what`` and ``value``, both text.

    Examples
    --------
    >>> wb.describe_run(wb.open_run(wb.sample_run()))["what"].tolist()[:2]
    ['program', 'inputs']
    """
    record, plan, host = run.record, run.record.plan, run.record.host
    machine = [host.get("cpu"), f"{host.get('cores_usable')} cores", host.get("system")]
    machine += ["virtual"] if host.get("virtual") else []
    facts = {}
    for program in plan.all_programs:
        ending = f" {program.name}" if program.name else ""
        shapes = ", ".join(f"{t.dtype} {'x'.join(map(str, t.shape))}" for t in program.inputs)
        file = f"{program.stem}.pte, SHA-256 {program.sha256[:16]}"
        facts[f"program{ending}"] = file if program.pte else program.stem
        facts[f"inputs{ending}"] = f"{shapes} ({program.input_source})" if shapes else ""
        facts |= _describe_export(record.export_of(program), ending)
    facts |= {
        "recorded by": run.recording.source if run.recording else "",
        "machine": ", ".join(map(str, machine)) if host else "",
        "platform": record.platform + (" (emulated)" if run.emulated else ""),
        "load at the start": " ".join(str(load) for load in host.get("load_average", [])),
        "runner": ", ".join(f"{k} {v}" for k, v in record.runner.items()),
        "versions": ", ".join(f"{name} {version}" for name, version in record.versions.items()),
        "protocol": _describe_protocol(record),
        "experiments": "; ".join(map(_describe_experiment, plan.experiments)),
        "baseline": plan.direction,
        "categories": run.scheme.label,
        "measured": f"{record.started} to {record.finished or 'interrupted'}",
    }
    if run.recording:
        facts["measured"] = record.started
    known = [(what, value) for what, value in facts.items() if value]
    return pd.DataFrame(known, columns=["what", "value"])


def _describe_experiment(experiment: Experiment) -> str:
    """What was run; which CPU features a custom runner uses is unknown."""
    custom = "/" in experiment.runner or not experiment.runner
    how = experiment.runner if custom else f"ISA level {experiment.isa}"
    named = f"{experiment.name}: {how}" if how else experiment.name
    return f"{named}{', control' if experiment.control else ''}"


def _describe_protocol(record: RunRecord) -> str:
    plan = record.plan
    if is_foreign(record):
        order = "run alternately" if record.runner else "in an unknown order"
        processes = f"{plan.processes} process" + ("es" if plan.processes > 1 else "")
        warmup = f" after the first {plan.warmup}" if plan.warmup else ""
        times = f"each at least {plan.runs} inferences{warmup}, timed in its trace"
        return f"{processes} per experiment, {order}; {times}"
    batches = f"batches of about {plan.batch_ms:g} ms" if plan.batch_ms else "single inferences"
    return (
        f"{plan.processes} processes per experiment, interleaved in {batches}; at least "
        f"{plan.runs} timed inferences each"
    )


def _describe_export(export: Export | None, ending: str) -> dict[str, str]:
    if export is None:
        return {}
    delegates = ", ".join(f"{name} x{count}" for name, count in export.delegates.items())
    how = f"{export.dtype}, {export.backend}, {export.size_bytes / 1e6:.1f} MB"
    return {
        f"weights{ending}": export.weights or "not recorded",
        f"exported{ending}": f"{how}, delegates: {delegates or 'none'}",
    }


def identify_run(record: RunRecord, program: PlannedProgram | None = None) -> dict[str, str]:
    """The program, device and build of a measurement, empty if unknown; others must agree.

    The default is the run's first program.
    """
    if not record.runner:  # another tool's recording
        chosen = program or record.plan.all_programs[0]
        program_name = f"{chosen.stem} {chosen.sha256[:12]}" if chosen.pte else chosen.sha256
        return {"program": program_name, "device": "", "build": ""}
    device = f"{record.platform}, {record.host.get('cpu')}"
    device += ", emulated" if record.emulated else ""
    build = f"executorch {record.versions.get('executorch')}, {record.runner.get('kind')} runner"
    build += f" {str(record.runner.get('sha256', ''))[:12]}".rstrip()
    chosen = program or record.plan.all_programs[0]
    name = f"{chosen.stem} {chosen.sha256[:12]}"
    return {"program": name, "device": device, "build": build}


def undelegated(run: Run) -> pd.DataFrame | None:
    """Operators that the partitioner left to portable kernels; None if the export is unknown."""
    export = run.subject.export
    if export is None:
        return None
    rows = [(u.operator, u.count) for u in export.undelegated]
    table = pd.DataFrame(rows, columns=["operator", "count"])
    return table.sort_values("count", ascending=False, kind="stable").reset_index(drop=True)
