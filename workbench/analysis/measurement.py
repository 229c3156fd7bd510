"""A measurement: an experiment at a thread count, and what follows from its times and traces."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from workbench import emulation, frames, wording
from workbench.analysis import (
    dtypes,
    findings_frame,
    layers,
    line_times,
    machine_code,
    needed,
    operators,
    quality,
    resources,
    roofline,
    statistics,
)
from workbench.analysis.attribution import UNSIZED, attribute_layers, find_method
from workbench.analysis.compare_exports import Original, model_spec
from workbench.analysis.dataflow import Dataflow, NodeId, instruction_of
from workbench.analysis.describe import describe_latency, identify_run
from workbench.analysis.findings.complete import complete_finding
from workbench.analysis.findings.finding import (
    Finding,
    apply_trials,
    rank_findings,
    revise_findings,
)
from workbench.analysis.noun import Noun
from workbench.analysis.operator_times import Times
from workbench.analysis.potential import Potential, find_potential
from workbench.analysis.quality import Row
from workbench.analysis.roofline import Roof
from workbench.analysis.use import Use, describe_use, use_latency, use_parts
from workbench.emulation import frame_property, mark_frame
from workbench.errors import StoreError
from workbench.export.sidecar import resize
from workbench.options import RUNTIMES
from workbench.records.exports import Export, Identity
from workbench.records.layer_sidecar import Layers, Method
from workbench.records.runs import (
    EXPORTED,
    GIVEN,
    Experiment,
    Phase,
    PlannedProgram,
    Session,
    Start,
)
from workbench.records.trials import Scope, Trial
from workbench.run.tensor_files import locate_inputs
from workbench.trace import samples
from workbench.trace.etdump import read_etdump

if TYPE_CHECKING:
    from workbench.analysis.run import Run


@dataclass(frozen=True, eq=False)
class Measurement(Noun):
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
    def summary(self) -> dict[str, Any]:
        """Its facts with its latency, grade and verdict: a row of ``frames.RUNS``."""
        times = [math.nan] * 3
        if len(self.statistics) and not self.emulated:
            times = self.statistics[["latency", "low", "high"]].to_numpy(float)[0].tolist()
        return {
            **self.facts,
            **dict(zip(("latency_ms", "low_ms", "high_ms"), times, strict=True)),
            "run_dir": str(self.run.path),
            "grade": self.run.quality["grade"].iloc[0],
            "verdict": next((ab.text for ab in self.run.comparisons if ab.candidate is self), ""),
        }

    @property
    def spec(self) -> str:
        """What ``load_model`` takes for its model; empty if that is unknown."""
        return model_spec(self.export) if self.export else ""

    @property
    def original(self) -> Original:
        """The model that its program was exported from."""
        return Original(self)

    @property
    def input_files(self) -> Sequence[Sequence[Path]]:
        """The files that it was run on: of calls that fill its state, then of the timed one."""
        return locate_inputs(self.run.record.plan, self.run.path)[self.name]

    @property
    def facts(self) -> dict[str, Any]:
        """What it is of and what it needs besides time, as columns of ``frames.RUNS``."""
        return {
            **self.identity.axes,
            "model": self.program.model,
            "experiment": self.name,
            "threads": self.threads,
            "emulated": self.emulated,
            **resources.outline_resources(self.starts, self.export),
        }

    @property
    def identity(self) -> Identity:
        """What tells its program, model, device and build from others."""
        return identify_run(self.run.record, self.program)

    @cached_property
    def sidecar(self) -> Layers | None:
        """What its program's instructions were in the model, at the largest sizes it takes."""
        sidecar = self.run.read_sidecar(self.program)
        if sidecar and (methods := [m for m in sidecar.methods if m.name == self.phase.method]):
            sidecar = replace(sidecar, methods=tuple(methods))
        return sidecar

    @cached_property
    def resized(self) -> Layers | None:
        """The sidecar at the sizes that were measured; None where they cannot be told."""
        shapes = [(tensor.most, tensor.shape) for tensor in self.phase.inputs if tensor.most]
        return resize(self.sidecar, shapes) if self.sidecar and shapes else self.sidecar

    @property
    def has_layers(self) -> bool:
        """Whether the layers of its program are known."""
        has_modules = self.sidecar is not None and self.sidecar.has_modules
        return has_modules and not self.opaque

    @property
    def wrong(self) -> str:
        """What is wrong with its program's outputs; empty if nothing is known to be."""
        return self.identity.fault

    @property
    def timing(self) -> Use:
        """What of `use` follows from its latencies, without its traces."""
        return use_latency(self)

    @cached_property
    def use(self) -> Use:
        """What may be used of its times, of ``latency``, ``shares``, ``milliseconds``; and why."""
        return use_parts(self)

    @cached_property
    def share_error(self) -> float:
        """How far a share of its time may be off, as a part of the whole; NaN if unknown."""
        if self.emulated or not self.sessions or self.latencies["traced"].all():
            return math.nan
        runs = operators.total_runs(self.times.scaled, "category")
        fastest = self.times.undisturbed.mean().groupby(self.costs["category"].astype(object)).sum()
        return quality.bound_shares(runs, fastest, np.nan_to_num(self.tracer_excess))

    @cached_property
    def impossible(self) -> str:
        """Why no part of its time can be stated; empty if all can."""
        return quality.find_impossible(self.operators) if self.sessions else ""

    @cached_property
    def largest(self) -> tuple[tuple[str, float], ...]:
        """The category that takes most, and its share; two, where their order is open."""
        first, second = self.categories.nlargest(2, "share").to_dict("records")
        is_open = first["share"] - second["share"] <= np.nan_to_num(self.share_error)
        rows = (first, second) if is_open else (first,)
        return tuple((self.name_category(row["category"]), row["share"]) for row in rows)

    @cached_property
    def tracer_overhead(self) -> float:
        """How much longer traced inferences take, by the clock of its latency; NaN if unknown."""
        return statistics.compare_traced(self.latencies)

    @property
    def tracer_excess(self) -> float:
        """What tracing adds beyond its calibrated cost, which is in no part, over the latency."""
        return self.traced_ms / self.latency_ms - 1

    @property
    def caveats(self) -> list[str]:
        """What weakens its figures: emulation, other programs, and its ``defects``."""
        emulated = [emulation.EMULATED] if self.emulated else []
        return [*emulated, *describe_use([self.use]), *self.defects]

    @property
    def defects(self) -> list[str]:
        """What else weakens its figures: losses of its program, a missing part, grade C."""
        texts = [f"{name}: {text}" for name, status, text in self.checks if status == "note"]
        texts += [f"{name}: {text}" for name, text in self.run.record.missing.items()]
        grade = self.run.quality["grade"].iloc[0]
        text = quality.describe_quality(self.run.quality, busy=self.use.busy)
        return [*texts, text] if grade == "C" and ":" in text else texts

    @property
    def checks(self) -> list[Row]:
        """Whether its program computes what the model does: rows of the run's checks."""
        subject = self.program.stem if self.run.record.plan.programs else "the program"
        rows = [*quality.check_program(subject, self.export, self.dtypes)]
        if self.impossible:
            rows.append((f"parts of {self.label} are possible", "fail", self.impossible))
        if problem := self.run.etrecord_problem:
            rows.append(("layers", "note", problem))
        return rows

    @property
    def label(self) -> str:
        """The experiment, with the threads where the run has several counts."""
        several = len(self.run.record.plan.threads) > 1
        return f"{self.name}, {wording.plural(self.threads, 'thread')}" if several else self.name

    @cached_property
    def sessions(self) -> tuple[Session, ...]:
        """The runner processes that were traced."""
        traced = (s for s in self.run.record.counted if s.etdump)
        return tuple(s for s in traced if (s.experiment, s.threads) == (self.name, self.threads))

    def find_traced(self) -> tuple[Session, ...]:
        """The same; StoreError if there are none."""
        if self.sessions:
            return self.sessions
        path, hint = self.run.path, "name the run's folder, with its traces"
        is_alone = path.suffix == ".json"
        raise StoreError(f"{self.label} has no trace", where=path, hint=hint if is_alone else None)

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

    def restarts_by(self, clock: str) -> pd.Series:
        """The same by another clock: ``cpu_ns`` or ``wall_ns``."""
        return statistics.restart_latencies(self._timed, clock)

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
        return self._read_events(self.find_traced()[0])

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

    @cached_property
    def times(self) -> Times:
        """The times of its operators."""
        return self.run.times_of(self)

    @frame_property
    def spans(self) -> pd.DataFrame:
        """The same events with their categories: ``frames.SPANS``."""
        return operators.tabulate_spans(self.events, self.run.scheme)

    def traced_rows(self, level: str) -> pd.DataFrame:
        """The ledger as traced, for ratios of two sides; with layers if these are compared."""
        # Layers are looked up for their own sake only: most comparisons need none.
        if level != "layer" or self._attribution is None:
            return self.times.traced
        return layers.place_rows(self.times.traced, self._attribution)

    @cached_property
    def _attribution(self) -> pd.DataFrame | None:
        if self.sidecar is None:
            return None
        if self.resized is None:
            return attribute_layers(self.times.scaled, self.sidecar).assign(**UNSIZED)
        return attribute_layers(self.times.scaled, self.resized)

    @frame_property
    def ledger(self) -> pd.DataFrame:
        """Every nanosecond of its undisturbed traced inferences: ``frames.LEDGER``.

        Without what tracing added to them (``tracing_ms``), and scaled so that the mean of the
        inferences is the latency. `build_ledger` of ``events`` has the times as traced.
        Where layers are known, ``layer`` names that of every row.
        """
        attribution = self._attribution
        return (
            self.times.scaled
            if attribution is None
            else layers.place_rows(self.times.scaled, attribution)
        )

    @frame_property
    def operators(self) -> pd.DataFrame:
        """The operators, most expensive first: ``frames.OPERATORS`` (and ``ATTRIBUTION``)."""
        table = operators.tabulate_operators(self.times.scaled)
        return table if self._attribution is None else layers.add_layers(table, self._attribution)

    @frame_property
    def categories(self) -> pd.DataFrame:
        """Time by category: ``frames.CATEGORIES``."""
        return operators.tabulate_categories(self.times.scaled)

    @frame_property
    def layers(self) -> pd.DataFrame | None:
        """Time by layer of the model: ``frames.LAYERS``."""
        if self.sidecar is None or not self.has_layers:
            return None
        return layers.tabulate_layers(self.operators, self.sidecar, self.times.runs)

    @frame_property
    def source(self) -> pd.DataFrame | None:
        """Time by line of the model's source: ``frames.SOURCE_LINES``; None if none is known."""
        return line_times.tabulate_lines(self) if self.has_layers else None

    @frame_property
    def machine_code(self) -> pd.DataFrame | None:
        """Samples of the program counter by operator and function: ``frames.EVIDENCE``."""
        sampled = self.run._samples.get((self.name, self.threads))
        if sampled is None:
            return None
        if "key" not in sampled:  # an interrupted run, whose trace is still there
            key = (self.name, self.threads)
            samplings = {(s.experiment, s.threads): s for s in self.run.record.samplings}
            events = read_etdump(self.run.locate(samplings[key].etdump))
            sampled = machine_code.place_samples(sampled, events)
        located = samples.locate_samples(sampled, self.run._functions)
        return machine_code.gather_evidence(located, self.run.scheme)

    @cached_property
    def starts(self) -> tuple[Start, ...]:
        """The processes that were timed from their start."""
        key = (self.name, self.threads)
        return tuple(s for s in self.run.record.starts if (s.experiment, s.threads) == key)

    @cached_property
    def traced_ms(self) -> float:
        """How long a traced inference took, without the calibrated cost of tracing.

        By the clock of the latency; NaN where no traced inference has that.
        """
        if math.isnan(self.tracer_overhead):
            return math.nan
        return self.latency_ms * (1 + self.tracer_overhead) - self.times.tracing_ms

    @cached_property
    def costs(self) -> pd.DataFrame:
        """The operators by key, with their times without interference."""
        rows = self.operators.set_index("key")
        columns = dict.fromkeys(frames.ATTRIBUTION.names[1:]) | {"flops": np.nan, "bytes": np.nan}
        lacking = {name: value for name, value in columns.items() if name not in rows}
        return rows.assign(mean_ms=self.times.undisturbed.mean().reindex(rows.index), **lacking)

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
    def traced_nodes(self) -> dict[str, frozenset[str]]:
        """The operators of the model's trace that each row executes, by their names there."""
        origins = {step.id: step.origin for step in self.structure.steps if step.origin}
        names = {node: origin.traced for node, origin in origins.items()}
        return {
            key: frozenset(names.get(node, "") for node in nodes)
            for key, nodes in self.nodes.items()
        }

    @cached_property
    def flow(self) -> Dataflow:
        """The program as a graph, with its sizes; empty if these or its operators are unknown."""
        return self._draw(self.resized)

    @cached_property
    def structure(self) -> Dataflow:
        """The same at the largest sizes that it takes, which are always known."""
        return self._draw(self.sidecar) if self.resized is None else self.flow

    def _draw(self, sidecar: Layers | None) -> Dataflow:
        method = sidecar and find_method(self.ledger.drop_duplicates("key"), sidecar)
        return Dataflow(method or Method("", (), {}))

    @frame_property
    def resources(self) -> pd.DataFrame:
        """Latency, first output, memory and size: ``frames.RESOURCES``."""
        table = resources.tabulate_resources(self.statistics.iloc[0], self.starts, self.export)
        table = table.assign(experiment=self.name, threads=self.threads)
        return frames.RESOURCES.check(table[frames.RESOURCES.names])

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
        return roofline.place_on_roof(
            self.operators, self.roof, roofline.computed_dtype(self.export)
        )

    @cached_property
    def judged(self) -> pd.DataFrame:
        """What each operator of a delegate needs of its time: ``frames.NEEDED``."""
        parts = self.flow, self.nodes, self.roofline, self.kernels
        return needed.judge_operators(self.costs, *parts)

    @frame_property
    def needed(self) -> pd.DataFrame:
        """Operators of delegates that take a tenth of the time, and why: ``frames.NEEDED``.

        The reason is empty where none is known: then a finding is about the operator.
        """
        rows = self.judged[self.judged["mean_ms"] >= needed.LEAST_PART * self.latency_ms]
        return rows.sort_values("mean_ms", ascending=False, ignore_index=True)

    def list_dtypes(self, names: Iterable[str]) -> list[str]:
        """In which dtype each operator computes, by its name as logged."""
        asked = roofline.computed_dtype(self.export)
        return [roofline.dtype_of(name, asked) for name in names]

    @frame_property
    def dtypes(self) -> pd.DataFrame | None:
        """In which dtype convolutions and matrix products ran: ``frames.DTYPES``.

        None for fp32, without a trace, and for a program of unknown origin.
        """
        if self.export is None or self.export.dtype == "fp32" or not self.sessions:
            return None
        table = dtypes.tabulate_dtypes(self.operators, self.export)
        return None if table.empty else table

    @cached_property
    def _causes(self) -> Sequence[Finding]:
        """What the rules find."""
        return self.run.rules(self)

    @property
    def needs(self) -> dict[str, tuple[str, pd.Series]]:
        """By resource, such as peak memory, its unit and its value in every start, by number."""
        return resources.measure_resources(self.starts)

    @property
    def scope(self) -> Scope:
        """What a trial has to agree with, beside the program, to hold for it."""
        return findings_frame.find_scope(self)

    @property
    def trials(self) -> list[Trial]:
        """The remedies that were tried on its program, in its scope."""
        if self.export is None or self.emulated:
            return []
        program, trials = self.export.sha256, findings_frame.read_trials(self.run.path)
        return [each for each in trials if (each.program, each.scope) == (program, self.scope)]

    @property
    def potential(self) -> Potential:
        """What it could gain: remedies as they were tried, and what the machine's peaks leave."""
        return find_potential(self.latency_ms, self.opportunities, self.trials, self.roofline)

    @property
    def opportunities(self) -> tuple[Finding, ...]:
        """What to optimise, the most promising first, with the trials that the run's folder has."""
        findings = list(self._causes)
        if self.export and not self.emulated:
            findings = revise_findings(self, findings)
            findings = apply_trials(findings, self.trials, self.scope)
        ranked = rank_findings(findings, by_gain=not self.emulated)
        return tuple(complete_finding(self, finding) for finding in ranked)

    @property
    def findings(self) -> pd.DataFrame:
        """Optimisation opportunities, the most promising first: ``frames.FINDINGS``."""
        return mark_frame(self, findings_frame.tabulate_findings(self.opportunities, self))

    @property
    def is_given(self) -> bool:
        """Whether its module was given in Python, so that no name loads it."""
        export = self.export
        if export is None or export.spec:
            return False
        return export.input_source == GIVEN or export.source == EXPORTED

    @property
    def in_script(self) -> bool:
        """Whether its module was given by a script, and not by a cell of a notebook."""
        if not self.is_given:
            return False
        lines = self.operators["source"].dropna() if "source" in self.operators else ()
        return not any(line.startswith("In [") for line in lines)

    def _select(self, frame: pd.DataFrame) -> pd.DataFrame:
        chosen = (frame["experiment"] == self.name) & (frame["threads"] == self.threads)
        return frame[chosen].reset_index(drop=True)
