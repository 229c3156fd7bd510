"""Findings, their gains, and the data that the rules use."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from workbench.analysis.attribution import find_method
from workbench.analysis.findings.dataflow import Dataflow, NodeId, Step
from workbench.analysis.operators import total_runs
from workbench.analysis.roofline import Roof, computed_dtype, place_operators
from workbench.analysis.statistics import (
    blocks_of,
    half_width,
    pick_timed,
    restart_latencies,
    tabulate_latencies,
    undisturbed_times,
)
from workbench.errors import WorkbenchError
from workbench.records.layers import Method
from workbench.records.runs import Export, PlannedProgram, RunRecord
from workbench.store import RUNS, find_runs, load_run

if TYPE_CHECKING:
    from workbench.analysis.run import Measurement

#: Fraction of the attainable rate that an XNNPACK operator reaches: worst, typical, best.
EFFICIENCY = (0.2, 0.5, 1.0)
#: Shorter operators do not count for the best rates: XNNPACK logs whole microseconds, and the
#: maximum would be the rate of the operator whose time is most underestimated.
_RATED_MS = 0.02
LEAST_TWINS = 3

#: Share of the best rates, worst, typical and best, and the basis of an estimate from it.
Pace = tuple[tuple[float, float, float], str]


@dataclass(frozen=True)
class Gain:
    """The expected reduction of E2E latency in ms, with its interval.

    ``basis`` is ``measured`` (both sides were), ``removal`` (the measured time of what goes away),
    ``twin`` (what comes instead runs like similar operators of this program), ``roofline`` (or at
    the usual share of the machine's peaks), ``bound`` (only the limits ``low`` and ``high`` are
    known; ``ms`` is NaN) or ``unknown`` (not measured; all three are NaN). Where a finding gains
    no latency, ``of`` says of what it gains the ``share``, which is a ``bound``, or ``planned``
    by the exporter.
    """

    ms: float = math.nan
    low: float = math.nan
    high: float = math.nan
    basis: str = "roofline"
    share: float = math.nan
    of: str = "latency"

    @classmethod
    def at_most(cls, high: float) -> Gain:
        """A gain with only an upper bound."""
        return cls(math.nan, 0.0, high, "bound")


@dataclass(frozen=True)
class Finding:
    """An optimisation opportunity: observation, affected rows, action and gain.

    ``keys`` are keys of the operators frame; the gain is then in traced time, otherwise in latency.
    ``hint`` is code; ``place`` is where they are, if not in the layers of these rows.
    """

    title: str
    gain: Gain
    keys: tuple[str, ...]
    action: str
    hint: str
    place: str = ""


@dataclass(frozen=True)
class RuleContext:
    """The data of one measurement that the rules use.

    ``runs`` is time in ms by key, from `undisturbed_times`; ``changes`` the extension's effect on
    every operator; ``scaling`` has the wall time of every restart in ms by thread count,
    ``dtypes`` the latency of those of separate runs by dtype, this one's among them;
    ``latency_ms`` is the untraced latency, 0 if unknown.
    """

    operators: pd.DataFrame
    runs: pd.DataFrame
    method: Method | None = None
    export: Export | None = None
    changes: pd.DataFrame | None = None
    toggle: str = ""
    kernels: dict[str, str] = field(default_factory=dict)
    scaling: Mapping[int, pd.Series] = field(default_factory=dict)
    threads: int = 1
    latency_ms: float = 0.0
    dtypes: Mapping[str, Sequence[float]] = field(default_factory=dict)
    roof: Roof | None = None
    roofline: pd.DataFrame | None = None
    emulated: bool = False
    machine: str = ""
    cold_start: pd.DataFrame | None = None

    @cached_property
    def e2e_ms(self) -> float:
        """Time of a traced inference."""
        return float(self.runs.sum(axis=1).mean())

    @cached_property
    def scale(self) -> float:
        """Untraced latency per traced time."""
        return self.latency_ms / self.e2e_ms if self.latency_ms and self.e2e_ms else 1.0

    @cached_property
    def rows(self) -> pd.DataFrame:
        """The operators by key."""
        return self.operators.set_index("key")

    @cached_property
    def flow(self) -> Dataflow | None:
        """The program as a graph; None without a sidecar."""
        return Dataflow(self.method) if self.method and "xnodes" in self.operators else None

    @cached_property
    def node_ids(self) -> dict[str, tuple[NodeId, ...]]:
        """The program's operators that each row executes; overhead rows execute none."""
        found: dict[str, tuple[NodeId, ...]] = {}
        for key, row in self.rows.iterrows():
            instruction = instruction_of(key)
            if row["kind"] == "portable":
                found[key] = ((instruction, -1),)
            elif row["kind"] == "delegated" and isinstance(row.get("xnodes"), str):
                found[key] = tuple((instruction, int(n)) for n in row["xnodes"].split(","))
        return found

    def keys_of(self, steps: Iterable[Step]) -> list[str]:
        """The rows that execute some of these operators, most expensive first."""
        wanted = {step.id for step in steps}
        return [key for key, node_ids in self.node_ids.items() if wanted.intersection(node_ids)]

    def keys_within(self, steps: Collection[NodeId]) -> list[str]:
        """The rows that execute only these operators."""
        return [key for key, node_ids in self.node_ids.items() if set(node_ids) <= set(steps)]

    def call_keys(self, keys: Iterable[str]) -> list[str]:
        """The overhead rows of calls to some kernels."""
        called = {instruction_of(key) for key in keys if self.rows.loc[key, "kind"] == "portable"}
        overhead = self.rows.index[self.rows["kind"] == "call_overhead"]
        return [key for key in overhead if instruction_of(key) in called]

    def spent(self, keys: Iterable[str]) -> Gain:
        """The time of some rows, with Student's 95 % interval over the process restarts.

        The interval is that of their share: interference lengthens whole inferences by an amount
        that varies between restarts and cancels in a share.
        """
        times = self.runs[[key for key in dict.fromkeys(keys) if key in self.runs]].sum(axis=1)
        shares = blocks_of(times) / blocks_of(self.runs.sum(axis=1))
        ms, half = float(times.mean()), self.e2e_ms * float(half_width(shares.to_numpy()))
        if math.isnan(half):  # one run has no interval
            half = self.e2e_ms
        return Gain(ms, max(0.0, ms - half), min(ms + half, self.e2e_ms), "removal")

    def share(self, ms: float) -> float:
        """A time as a part of E2E."""
        return ms / self.e2e_ms if self.e2e_ms else math.nan

    @cached_property
    def best_rates(self) -> tuple[float, float]:
        """The highest operations and bytes per ms that a delegated operator reached."""
        known = self._rated
        if "flops" not in known:
            return math.nan, math.nan
        rates = known[["flops", "bytes"]].mul(known["calls"] / known["mean_ms"], axis=0)
        # If no operator was long enough to be timed well, assume a slow core: 1 GFLOP/s, 1 GB/s.
        return tuple(rates.max().replace(0.0, np.nan).fillna(1e6))

    @cached_property
    def _rated(self) -> pd.DataFrame:
        """The delegated operators that are long enough to be timed well, by key."""
        rows = self.rows
        return rows[(rows["kind"] == "delegated") & (rows["mean_ms"] > _RATED_MS * rows["calls"])]

    def least_ms(self, keys: Iterable[str]) -> float:
        """How long some rows would take at the best rates."""
        rows = self.rows.loc[list(keys)]
        flops, size = (rows[name].fillna(0) * rows["calls"] for name in ("flops", "bytes"))
        per_flop, per_byte = self.best_rates
        return float(np.maximum(flops / per_flop, size / per_byte).sum())

    def pace(self, twins: Iterable[str], usual: tuple[float, float, float] = EFFICIENCY) -> Pace:
        """The share of the best rates that similar operators reach, and the basis of an estimate.

        Tenth, median and ninetieth percentile of the ``twins`` that are timed well; with fewer than
        three, the ``usual`` shares.
        """
        known = [key for key in twins if key in self._rated.index]
        shares = [self.least_ms([key]) / float(self._rated.at[key, "mean_ms"]) for key in known]
        shares = [share for share in shares if share > 0]
        if len(shares) < LEAST_TWINS:
            return usual, "roofline"
        worst, typical, best = np.percentile(shares, (10, 50, 90))
        return (float(worst), float(typical), float(best)), "twin"

    def replaced(
        self,
        keys: Collection[str],
        passes: int,
        extra: Collection[str] = (),
        pace: Pace | None = None,
    ) -> Gain:
        """The gain of replacing some rows: their time less that of their replacements.

        Each is replaced by ``passes`` delegated operators, at a ``pace``: by default that of the
        delegated operators of its category. ``extra`` rows exist only because of them; the lower
        bound assumes that these stay.
        """
        now, around = self.spent(keys), self.spent(extra)
        if not passes:
            high = min(now.high + around.high, self.e2e_ms)
            return Gain(now.ms + around.ms, now.low, high, "removal")
        if pace is None:
            categories = set(self.rows.loc[list(keys), "category"])
            pace = self.pace(self.rows.index[self.rows["category"].isin(categories)])
        shares, basis = pace
        slow, typical, fast = (passes * self.least_ms(keys) / share for share in shares)
        low, high = max(0.0, now.low - slow), min(now.high + around.high, self.e2e_ms) - fast
        return Gain(now.ms + around.ms - typical, low, high, basis)


def instruction_of(key: str) -> int:
    """The instruction number in a ledger key; -1 for another chain or method."""
    number = key.partition("/")[0]
    return int(number) if number.isdecimal() else -1


def count(number: int, noun: str) -> str:
    """``1 layout conversion``, ``2 layout conversions``."""
    ending = "" if number == 1 else "es" if noun.endswith("x") else "s"
    return f"{number} {noun}{ending}"


def layers_of(rows: pd.DataFrame) -> str:
    """The layers and source lines of some rows in words: two at most, then a count."""
    if "module" not in rows:
        return ""
    known = rows.dropna(subset="module")[["module", "source"]].drop_duplicates()
    places = [
        f"{module or 'the model'}" + (f" ({source})" if isinstance(source, str) else "")
        for module, source in known.itertuples(index=False)
    ]
    more = f" and {len(places) - 2} more" if len(places) > 2 else ""
    return ", ".join(places[:2]) + more


def build_context(measurement: Measurement) -> RuleContext:
    """The data of a measurement that the rules use."""
    run, export = measurement.run, measurement.export
    changes = [c for c in run.comparisons if c.candidate is measurement and c.toggle != "none"]
    timed = pick_timed(run.latencies)
    timed = timed[timed["experiment"] == measurement.name]
    runs = undisturbed_times(total_runs(measurement.ledger, "key"))
    operators = measurement.operators.copy()
    operators["mean_ms"] = operators["key"].map(runs.mean())
    method = None
    if measurement.sidecar:
        method = find_method(measurement.ledger.drop_duplicates("key"), measurement.sidecar)
    roof, roofline = measurement.roof, None
    if roof is not None and "flops" in operators:
        roofline = place_operators(operators, roof, computed_dtype(export))
    names = measurement.kernels.get("function", pd.Series(dtype=object))
    return RuleContext(
        operators,
        runs,
        method,
        export,
        changes=changes[0].operators if changes else None,
        toggle=changes[0].toggle if changes else "",
        kernels={key: str(name) for key, name in names.items() if name},
        scaling={int(n): restart_latencies(t, "wall_ns") for n, t in timed.groupby("threads")},
        threads=measurement.threads,
        latency_ms=measurement.latency_ms,
        dtypes=_measured_dtypes(measurement),
        roof=roof,
        roofline=roofline,
        emulated=run.emulated,
        machine=str(run.record.host.get("machine", "")),
        cold_start=measurement.cold_start,
    )


def _measured_dtypes(measurement: Measurement) -> dict[str, list[float]]:
    """The latency in ms of every restart, by dtype measured alike, the program's own first."""
    own = measurement.run
    records = {own.path.resolve(): own.record}
    folder = own.path.resolve().parent
    for path in find_runs(folder.parent) if folder.name == RUNS else ():
        if path.resolve() not in records:
            with contextlib.suppress(WorkbenchError):  # not readable: no alternative
                records[path.resolve()] = load_run(path)
    found: dict[str, list[float]] = {}
    wanted = _identity(own.record, measurement.program)
    for record in records.values():
        named = [e for e in record.plan.experiments if e.name == measurement.name]
        program = record.plan.program_of(named[0]) if named else record.plan.all_programs[0]
        export, dtype = record.export_of(program), ""
        if record.state == "complete" and export and _identity(record, program) == wanted:
            dtype = export.dtype if not export.problem else ""
        if not dtype or dtype in found:
            continue
        timed = own.latencies if record is own.record else tabulate_latencies(record)
        same = (timed["experiment"] == measurement.name) & (timed["threads"] == measurement.threads)
        if same.any():
            found[dtype] = restart_latencies(timed[same]).to_list()
    return found


def _identity(record: RunRecord, program: PlannedProgram) -> tuple[object, ...]:
    """What two runs share that differ in their dtype at most."""
    shapes, export = tuple(tensor.shape for tensor in program.inputs), record.export_of(program)
    machine = (record.platform, record.emulated, record.host.get("cpu"), record.runner.get("kind"))
    backend = export.backend if export else None
    return (program.model, backend, shapes, record.versions.get("executorch"), *machine)
