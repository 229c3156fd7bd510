"""A run and what follows from it; every frame is computed once, when it is first asked for."""

from __future__ import annotations

import contextlib
import math
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from workbench import frames
from workbench.analysis import findings_frame, operators, quality, roofline, statistics
from workbench.analysis.comparison import Comparison
from workbench.analysis.describe import name_record, tabulate_description
from workbench.analysis.etrecords import explain_etrecords, link_etrecord
from workbench.analysis.findings.finding import Finding
from workbench.analysis.foreign import Recording
from workbench.analysis.measurement import Measurement
from workbench.analysis.noun import Noun
from workbench.analysis.operator_times import Times
from workbench.analysis.operators import Scheme
from workbench.analysis.phase_times import outline_phase
from workbench.analysis.quality import Row
from workbench.emulation import frame_property, mark_frame
from workbench.errors import StoreError, WorkbenchError, unknown_name
from workbench.export.etrecord import add_etrecord
from workbench.options import RUNTIMES
from workbench.records.codec import to_json
from workbench.records.layer_sidecar import Layers
from workbench.records.runs import Note, PlannedProgram, RunRecord, Session
from workbench.records.trials import Applied, Trial
from workbench.shown import draw_page
from workbench.store import (
    APPLIED,
    ETRECORD,
    FUNCTIONS,
    RUNS,
    SAMPLES,
    add_note,
    atomic_write,
    find_runs,
    inside,
    kept_layers,
    load_layers,
    load_notes,
    load_record,
    load_run,
    output_folder,
    save_layers,
)
from workbench.trace import samples
from workbench.trace.etdump import read_etdump

#: Events of a trace that takes less memory, about 1 MB, than reading it again is worth.
_SHORT_TRACE = 10_000
#: Columns that identify a measurement.
MEASUREMENT = ["experiment", "threads"]


@dataclass(eq=False)
class Run(Noun):
    """A recorded run: its measurements, its comparisons and what they show.

    Frames of the whole run carry the columns ``experiment`` and ``threads``. What the run did not
    record is None. ``rules`` finds what can be made faster; ``scheme`` has the rules of the
    categories; ``recording`` is set if another tool recorded it; ``opened_with`` has the options of
    `open_run` that were given; ``given`` the modules that were profiled, which live as long as it,
    so that remedies can be tried and applied.

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
    given: tuple[Any, ...] = field(default=(), repr=False)
    _traces: dict[str, pd.DataFrame] = field(default_factory=dict, init=False)
    _sidecars: dict[str, Layers | None] = field(default_factory=dict, init=False)
    _times: dict[tuple[str, int], Times] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if self.recording:
            self._traces = self.recording.traces

    def __repr__(self) -> str:
        return f"Run({', '.join(self.facts)}: {', '.join(m.label for m in self.measurements)})"

    def _repr_html_(self) -> str:
        return draw_page(self)

    @property
    def facts(self) -> tuple[str, ...]:
        """Label, model, dtype, program, device, and when it was started, as far as known."""
        exports = [*filter(None, map(self.record.export_of, self.record.plan.all_programs))]
        exports = [export for export in exports if export.backend not in RUNTIMES]
        dtypes = " and ".join(dict.fromkeys(export.dtype for export in exports))
        program = " and ".join(dict.fromkeys(export.changes for export in exports))
        started = self.record.started[:16].replace("T", " ")
        facts = (self.label, self.model, dtypes, program, self.device, started)
        return tuple(filter(None, facts))

    @property
    def label(self) -> str:
        """What a person calls it; empty without a ``label=``."""
        return self.record.plan.label

    @property
    def title(self) -> str:
        """What lists call it: its label, or its models, their dtype and the platform."""
        return name_record(self.record)

    @property
    def notes(self) -> tuple[Note, ...]:
        """What people wrote about it with `note`, the oldest first."""
        return load_notes(self.output)

    def note(self, text: str) -> None:
        """Keep a note in its folder, which lists, the explorer and the report show.

        Raises
        ------
        UsageError
            It is empty or longer than 2 000 letters, or the run has 100 notes.

        Examples
        --------
        >>> run.note("no reflected padding; measured after a reboot")  # doctest: +SKIP
        """
        add_note(self.output, text)

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

    @property
    def root(self) -> Path | None:
        """The output folder that it lies in; None of samples, and of others' recordings."""
        is_sample = self.path.resolve().is_relative_to(SAMPLES)
        return None if is_sample or self.path.parent.name != RUNS else self.path.parents[1]

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

        An experiment that has only traces does not count if others were timed without traces.
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
            names = [m.name for m in self.measurements]
            raise unknown_name("experiment", experiment, names, where=self.path)
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
            for count in counts:
                before, after = (pair.baseline, count), (pair.candidate, count)
                if before in traced and after in traced:
                    ab = Comparison(traced[before], traced[after], pair.label)
                    label = f"{pair.label}, {ab.threads_text}" if len(counts) > 1 else pair.label
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
        for comparison in self.comparisons:
            before, after = comparison.baseline, comparison.candidate
            same = (baseline or before.name, candidate or after.name) == (before.name, after.name)
            if same and threads in (None, after.threads):
                return comparison
        if baseline is None or candidate is None:
            if not self.traced and self.record.plan.pairs:  # its manifest alone: of latencies
                pair = self.record.plan.pairs[0]
                return self.compare(baseline or pair.baseline, candidate or pair.candidate, threads)
            names = list(dict.fromkeys(m.name for m in self.measurements))
            sides = shlex.join(f"{self.path}:{name}" for name in names[:2])
            hint = f"add traces of another experiment to {names[0]}"
            hint = f"workbench compare {sides}" if len(names) > 1 else hint
            raise StoreError("compares no two experiments", where=self.path, hint=hint)
        counts = () if threads is None else (threads,)
        before, after = self[baseline, *counts], self[candidate, *counts]
        return Comparison(before, after, f"as {candidate} instead of {baseline}")

    @property
    def subject(self) -> Measurement:
        """What the report is about: the candidate of the first comparison."""
        if not self.measurements:
            raise StoreError("has no times", where=self.path)
        return self.comparisons[0].candidate if self.comparisons else self.measurements[0]

    @frame_property
    def latencies(self) -> pd.DataFrame:
        """Every timed inference: ``frames.LATENCIES``."""
        timed = statistics.tabulate_latencies(self.record)
        if all(s.batches for s in self.record.sessions):
            return timed
        traced = [m.times.inferences for m in self.traced or [self.subject]]
        return statistics.add_traced(timed, pd.concat(traced), self.record)

    @frame_property
    def statistics(self) -> pd.DataFrame:
        """Latency of every measurement in ms: ``frames.STATISTICS``."""
        return statistics.tabulate_statistics(self.latencies)

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
    def phases(self) -> pd.DataFrame | None:
        """Latency, tokens per second and bottleneck in every phase: ``frames.PHASES``."""
        if not self.record.plan.phases or not self.traced:
            return None
        sides = [m for m in self.traced if not m.control]
        rows = [outline_phase(m.phase, m.statistics, m.categories, m.roofline) for m in sides]
        table = pd.DataFrame(rows, columns=frames.PHASES.names)
        unknown = [not (m.emulated or "shares" in m.use.uses) for m in sides]
        table.loc[unknown, ["category", "bound"]] = ""
        table.loc[unknown, ["share", "bound_share"]] = math.nan
        return frames.PHASES.check(table)

    @cached_property
    def tracer_overhead(self) -> dict[tuple[str, int], float]:
        """How much longer traced inferences take, as a fraction, by experiment and threads.

        Of ExecuTorch: other runtimes are traced by tools of their own.
        """
        sides = [m for m in self.measurements if not (m.runtime or m.control)]
        overhead = {(m.name, m.threads): m.tracer_overhead for m in sides}
        return {side: cost for side, cost in overhead.items() if not math.isnan(cost)}

    @cached_property
    def ceilings(self) -> pd.DataFrame:
        """What the machine reaches at each ISA level and thread count, as far as measured."""
        return roofline.list_ceilings(self.path)

    @property
    def subjects(self) -> tuple[Measurement, ...]:
        """What its findings are about: the subject of each phase; of a sweep, those of the ends."""
        subjects = {ab.candidate.phase.name: ab.candidate for ab in reversed(self.comparisons)}
        if self.record.plan.sweep:
            ends = sorted(subjects.values(), key=lambda m: m.phase.size)
            subjects = {m.phase.name: m for m in (ends[0], ends[-1])}
        return (self.subject,) if len(subjects) < 2 else tuple(subjects.values())

    @property
    def opportunities(self) -> tuple[Finding, ...]:
        """What to optimise, the most promising first.

        With several phases, those of each, the largest part of the phase's latency first, then
        those without a known remedy or with one that does not help, then start and memory.
        """
        if len(self.subjects) < 2:
            return self.subject.opportunities
        findings = [
            replace(finding, phase=m.phase.name)
            for m in self.subjects
            for finding in m.opportunities
        ]

        def order(finding: Finding) -> tuple[bool, bool, float]:
            unknown = math.isnan(finding.share) or finding.gain.basis == "unknown"
            unknown |= finding.is_hopeless
            return finding.gain.of != "latency", unknown, -np.nan_to_num(finding.share)

        return tuple(sorted(findings, key=order))

    @property
    def findings(self) -> pd.DataFrame:
        """Optimisation opportunities, the most promising first: ``frames.FINDINGS``."""
        return mark_frame(self, findings_frame.tabulate_findings(self.opportunities, self))

    def apply(
        self, finding: Finding | str | None = None, model: Any = None, inputs: Any = None,
        **settings: Any,
    ) -> Run:  # fmt: skip
        """Export the model with the remedy of a finding, and measure it beside the original.

        Both are measured interleaved, and their outputs compared; ``applied`` of the new run says
        what was changed, and has the lines to write.

        Parameters
        ----------
        finding
            The finding or its id; by default, all that were shown to help, except other dtypes.
            A remedy is applied by its name, to all parts of the model that have it.
        model, inputs
            The run's model, as `load_model` takes it. By default the module that this process
            exported, else the run's model, if it is not code in a file.
        settings
            ``measure``: what to measure, latency and operators by default; ``root``: the output
            folder, that of this run by default; ``progress``.

        Raises
        ------
        UsageError
            The finding is unknown or has no remedy, or the model is unknown or another one by now.

        Examples
        --------
        >>> after = run.apply("constants-1f2e3d")  # doctest: +SKIP
        >>> after.compare().text  # doctest: +SKIP
        'Net: 1.31x faster ...'
        >>> print(after.applied.diff)  # doctest: +SKIP
        """
        apply = findings_frame.find_verb("apply_remedies", "applies remedies")
        return apply(self, finding, model, inputs, **settings)  # type: ignore[no-any-return]

    @cached_property
    def applied(self) -> Applied | None:
        """The remedies whose effect it measures; None of any other run."""
        path = self.path / APPLIED
        return load_record(Applied, path) if path.is_file() else None

    def keep(self, record: Trial | Applied) -> None:
        """Keep in its folder what a remedy brought, or which remedies its second program has."""
        if isinstance(record, Trial):
            findings_frame.keep_trial(self.path, record)
        else:
            atomic_write(self.path / APPLIED, to_json(record))

    @frame_property
    def quality(self) -> pd.DataFrame:
        """How good the measurement is: ``frames.QUALITY``; the first row's grade is the run's."""
        none = [pd.DataFrame(columns=frames.COMPARISON.names, dtype=float)]
        comparisons = pd.concat([c.latency for c in self.comparisons] or none, ignore_index=True)
        excess = [self[side].tracer_excess for side in self.tracer_overhead]
        overhead = max(excess, key=abs, default=math.nan)
        return quality.grade_run(self.record, self.statistics, comparisons, overhead)

    @property
    def busy(self) -> bool:
        """Whether other programs took so much that figures of some measurement suffer."""
        return any(m.use.busy for m in self.measurements)

    @property
    def grade(self) -> str:
        """The grade of the measurement in one line."""
        return quality.describe_quality(self.quality, busy=self.busy)

    @cached_property
    def checks(self) -> pd.DataFrame:
        """Whether the numbers can be trusted: ``check``, ``status``, ``evidence``."""
        subjects = {row[0]: row for m in self.measurements for row in m.checks}  # each once
        bundled = [a for a in self.record.agreements if a.baseline == a.candidate]
        expected = quality.check_outputs(bundled) if bundled else ()
        rows = [
            *quality.check_state(self.record, self.recording),
            *([("outputs of the bundled program", *expected)] if bundled else []),
            *subjects.values(),
            *(row for ab in self.comparisons for row in ab.checks),
            *self._check_traces(),
            *quality.check_criteria(self.quality),
        ]
        return pd.DataFrame(rows, columns=["check", "status", "evidence"])

    def _check_traces(self) -> list[Row]:
        """Rows of checks about its traces; none of a manifest alone."""
        if not self.traced:
            return []
        times = [m.times for m in self.traced]
        counted = pd.concat([each.scaled for each in times], ignore_index=True)
        return [
            quality.check_ledger(counted, [each.closed for each in times]),
            quality.check_traces(counted, times),
        ]

    @property
    def caveats(self) -> list[str]:
        """What weakens the figures of its first comparison, and failed checks."""
        caveats = (self.comparisons or (self.subject,))[0].caveats
        failed = self.checks[self.checks["status"] == "fail"]
        return caveats + [
            f"failed: {row.check} ({row.evidence})"
            for row in failed.itertuples()
            if not any(row.evidence in text for text in caveats)
        ]

    @property
    def methods(self) -> dict[str, tuple[str, ...]]:
        """The methods of each program that compute something, by its name in the plan."""
        sidecars = {each.name: self.read_sidecar(each) for each in self.record.plan.all_programs}
        return {
            name: tuple(each.name for each in layers.methods if each.instructions) if layers else ()
            for name, layers in sidecars.items()
        }

    @property
    def description(self) -> pd.DataFrame:
        """What was run, on what and how: ``what`` and ``value``, both text."""
        recorder = self.recording.source if self.recording else ""
        return tabulate_description(self.record, self.scheme.label, recorder)

    def locate(self, name: str) -> Path:
        """The path of a file that the manifest names."""
        return inside(self.path.parent if self.path.is_file() else self.path, name)

    def masked(self, experiment: str) -> set[str]:
        """The CPU features that every process of an experiment hid."""
        masks = [set(s.masked) for s in self.record.sessions if s.experiment == experiment]
        return set.intersection(*masks) if masks else set()

    def times_of(self, m: Measurement) -> Times:
        """The times of a measurement's operators, which a run that goes on keeps."""
        return self._times.setdefault((m.name, m.threads), Times(m))

    def extend(self, record: RunRecord) -> Run:
        """The run with what was recorded after its last restart; traces are not read again."""
        run = replace(self, record=record)
        run._traces, run._sidecars, run._times = self._traces, self._sidecars, self._times
        return run

    def read_trace(self, session: Session) -> pd.DataFrame:
        """The events of a session's ETDump; that of a first process is kept, and short ones."""
        events = self._traces.get(session.etdump)
        if events is None:
            events = read_etdump(self.locate(session.etdump))
            if not session.process or len(events) <= _SHORT_TRACE:
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
            etrecord = self.locate("") / ETRECORD
            if layers and not layers.has_modules and etrecord.is_file():
                with contextlib.suppress(StoreError):  # of another program
                    layers = add_etrecord(layers, etrecord)
            self._sidecars[program.name] = layers
        return self._sidecars[program.name]

    @cached_property
    def etrecord_problem(self) -> str:
        """Why an ETRecord that lies beside it gives no layers; empty if none does."""
        sidecars = [(each, self.read_sidecar(each)) for each in self.record.plan.all_programs]
        return explain_etrecords(self.locate(""), sidecars)

    def add_etrecord(self, etrecord: Path) -> None:
        """Keep the layers in an ETRecord with the run; StoreError if it is of no program of it."""
        sidecars = [(each, self.read_sidecar(each)) for each in self.record.plan.all_programs]
        program, layers = link_etrecord(self.path, sidecars, etrecord)
        save_layers(layers, kept_layers(self.output, program.name))
        self._sidecars[program.name] = layers

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
        path = self.path / FUNCTIONS
        if path.exists():
            return samples.read_functions(path)
        return samples.resolve_functions(self._samples.values())

    def _stack(self, name: str) -> pd.DataFrame:
        by_measurement = {(m.name, m.threads): getattr(m, name) for m in self.traced}
        stacked = pd.concat(by_measurement, names=MEASUREMENT)
        return stacked.reset_index(level=MEASUREMENT).reset_index(drop=True)
