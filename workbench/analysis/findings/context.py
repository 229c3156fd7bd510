"""What a finding is, and what the rules that find them look at."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterable
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
    describe_latencies,
    half_width,
    tabulate_latencies,
    undisturbed_times,
)
from workbench.errors import WorkbenchError
from workbench.records.layers import Method
from workbench.records.runs import Export, RunRecord
from workbench.store import RUNS, find_runs, load_run

if TYPE_CHECKING:
    from workbench.analysis.run import Measurement

#: Which part of what it could reach an operator of XNNPACK reaches: the least, typically, the most.
EFFICIENCY = (0.2, 0.5, 1.0)
#: Times shorter than this are blurred: XNNPACK logs whole microseconds.
RESOLVED_MS = 0.02


@dataclass(frozen=True)
class Gain:
    """What E2E would get shorter by, in ms, with the ends of its interval.

    ``basis`` is ``measured`` (both sides were), ``estimated``, or ``bound``: then it is known only
    between ``low`` and ``high``, and ``ms`` is NaN; or ``unknown``, where nobody measured: then all
    three are.
    """

    ms: float
    low: float
    high: float
    basis: str = "estimated"

    @classmethod
    def at_most(cls, high: float) -> Gain:
        """A gain of which only the upper bound is known."""
        return cls(math.nan, 0.0, high, "bound")

    @classmethod
    def unknown(cls) -> Gain:
        """Of a run whose times tell nothing."""
        return cls(math.nan, math.nan, math.nan, "unknown")


@dataclass(frozen=True)
class Finding:
    """Something to do next: what was seen, in which rows, what to do, and what it would bring.

    ``title`` leaves out how much of the time the rows take, which is added where it is known.
    ``keys`` are those of the operators frame, in whose times the gain is given; without any, it
    is one of latency. ``hint`` is code.
    """

    title: str
    gain: Gain
    keys: tuple[str, ...]
    action: str
    hint: str


@dataclass(frozen=True)
class AlternativeDtype:
    """The same model exported in another dtype and measured alike: median latency in ms."""

    dtype: str
    ms: float
    low: float
    high: float


@dataclass(frozen=True)
class RuleContext:
    """All that is known of one experiment at one thread count.

    Parameters
    ----------
    operators
        ``schema.OPERATORS``, with the columns of ``schema.ATTRIBUTION`` where there is a sidecar.
    runs
        Time in ms by key, as `undisturbed_times` has it; ``mean_ms`` of the operators is its mean.
    method
        The sidecar's method.
    export
        How the program came about.
    changes
        Of ``compare_operators``: the extension's effect on every operator of this experiment.
    toggle
        The extension.
    kernels
        The function that an operator ran in, by key, where samples of the program counter tell.
    statistics
        Of ``describe_latencies`` by wall time: this experiment at all thread counts.
    threads
        The thread count looked at.
    latency_ms
        Median latency of untraced inferences; 0 where it is not known.
    alternatives
        Other dtypes, and this one as ``own``, in the same clock.
    roof, roofline
        What the machine can do, and ``schema.ROOFLINE``, where its ceilings are known.
    emulated
        Whether the times are those of an emulator, and tell nothing.
    """

    operators: pd.DataFrame
    runs: pd.DataFrame
    method: Method | None = None
    export: Export | None = None
    changes: pd.DataFrame | None = None
    toggle: str = ""
    kernels: dict[str, str] = field(default_factory=dict)
    statistics: pd.DataFrame | None = None
    threads: int = 1
    latency_ms: float = 0.0
    own: AlternativeDtype | None = None
    alternatives: tuple[AlternativeDtype, ...] = ()
    roof: Roof | None = None
    roofline: pd.DataFrame | None = None
    emulated: bool = False

    @cached_property
    def e2e_ms(self) -> float:
        """Time of a traced inference."""
        return float(self.runs.sum(axis=1).mean())

    @cached_property
    def scale(self) -> float:
        """Untraced latency over traced time: what a traced millisecond is worth."""
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
        """Which operators of the program each row does the work of; rows of overhead do none."""
        found = {}
        for key, row in self.rows.iterrows():
            instruction = instruction_of(key)
            if row["kind"] == "portable":
                found[key] = ((instruction, -1),)
            elif row["kind"] == "delegated" and isinstance(row.get("xnodes"), str):
                found[key] = tuple((instruction, int(n)) for n in row["xnodes"].split(","))
        return found

    def keys_of(self, steps: Iterable[Step]) -> list[str]:
        """The rows that do the work of some operators, the most expensive first."""
        wanted = {step.id for step in steps}
        return [key for key, node_ids in self.node_ids.items() if wanted.intersection(node_ids)]

    def keys_within(self, steps: Collection[NodeId]) -> list[str]:
        """The rows that do the work of no operators but these."""
        return [key for key, node_ids in self.node_ids.items() if set(node_ids) <= set(steps)]

    def call_keys(self, keys: Iterable[str]) -> list[str]:
        """The overhead rows of the calls of some kernels."""
        called = {instruction_of(key) for key in keys if self.rows.loc[key, "kind"] == "portable"}
        overhead = self.rows.index[self.rows["kind"] == "call_overhead"]
        return [key for key in overhead if instruction_of(key) in called]

    def spent(self, keys: Iterable[str]) -> Gain:
        """The time of some rows, with Student's 95 % interval over the process restarts.

        The interval is that of their share. Other programs make whole inferences longer, and by
        how much differs from one restart to the next; on which rows that falls is what matters.
        """
        times = self.runs[[key for key in dict.fromkeys(keys) if key in self.runs]].sum(axis=1)
        shares = blocks_of(times) / blocks_of(self.runs.sum(axis=1))
        ms, half = float(times.mean()), self.e2e_ms * float(half_width(shares.to_numpy()))
        if math.isnan(half):  # a single run says nothing of the next one
            half = self.e2e_ms
        return Gain(ms, max(0.0, ms - half), min(ms + half, self.e2e_ms), "measured")

    def share(self, ms: float) -> float:
        """A time as a part of E2E."""
        return ms / self.e2e_ms if self.e2e_ms else math.nan

    @cached_property
    def best_rates(self) -> tuple[float, float]:
        """The most operations and bytes per ms that an operator of a delegate reached here."""
        known = self.operators
        if "flops" not in known:
            return math.nan, math.nan
        known = known[(known["kind"] == "delegated") & (known["mean_ms"] > RESOLVED_MS)]
        rates = known[["flops", "bytes"]].mul(known["calls"] / known["mean_ms"], axis=0)
        # Where nothing was long enough to be timed well: a slow core of today's.
        return tuple(rates.max().replace(0.0, np.nan).fillna(1e6))

    def least_ms(self, keys: Iterable[str]) -> float:
        """How long some rows would take at the best rates that were seen here."""
        rows = self.rows.loc[list(keys)]
        flops, size = (rows[name].fillna(0) * rows["calls"] for name in ("flops", "bytes"))
        per_flop, per_byte = self.best_rates
        return float(np.maximum(flops / per_flop, size / per_byte).sum())

    def replaced(self, keys: Collection[str], passes: int, extra: Collection[str] = ()) -> Gain:
        """What delegating some rows would bring: their time less that of what replaces them.

        Parameters
        ----------
        keys
            The rows that would go.
        passes
            How many operators of the delegate take the place of each.
        extra
            Rows that are needed only because of them; the lower end leaves these where they are.
        """
        now, around = self.spent(keys), self.spent(extra)
        slow, typical, fast = (passes * self.least_ms(keys) / part for part in EFFICIENCY)
        if now.ms + around.ms <= typical:
            return Gain.at_most(now.ms + around.ms - fast)
        return Gain(
            now.ms + around.ms - typical,
            max(0.0, now.low - slow),
            min(now.high + around.high, self.e2e_ms) - fast,
        )


def instruction_of(key: str) -> int:
    """The number of the instruction in a key of the ledger; -1 in another chain or method."""
    number = key.partition("/")[0]
    return int(number) if number.isdecimal() else -1


def count(number: int, noun: str) -> str:
    """``1 change of layout``, ``2 changes of layout``."""
    first, _, rest = noun.partition(" ")
    plural = first if number == 1 else f"{first}{'es' if first.endswith('x') else 's'}"
    return f"{number} {plural} {rest}".rstrip()


def layers_of(rows: pd.DataFrame) -> str:
    """The layers and lines of some rows, for a sentence: at most two, then how many more."""
    if "module" not in rows:
        return ""
    places = [
        f"{module or 'the model'}" + (f" ({source})" if isinstance(source, str) else "")
        for module, source in rows[["module", "source"]].itertuples(index=False)
        if isinstance(module, str)
    ]
    places = list(dict.fromkeys(places))
    more = f" and {len(places) - 2} more" if len(places) > 2 else ""
    return ", ".join(places[:2]) + more


def build_context(measurement: Measurement) -> RuleContext:
    """Everything that the rules look at."""
    run, export = measurement.run, measurement.run.record.export
    changes = [c for c in run.comparisons if c.candidate is measurement and c.toggle != "none"]
    wall = describe_latencies(run.latencies, clock="wall_ns")
    alternatives = {other.dtype: other for other in _measured_dtypes(measurement)}
    own = alternatives.pop(export.dtype, None) if export else None
    runs = undisturbed_times(total_runs(measurement.ledger, "key"))
    operators = measurement.operators.copy()
    operators["mean_ms"] = operators["key"].map(runs.mean())
    method = None
    if run.sidecar:
        method = find_method(measurement.ledger.drop_duplicates("key"), run.sidecar)
    roof, roofline = measurement.roof, None
    if roof is not None and "flops" in operators:
        roofline = place_operators(operators, roof, computed_dtype(run.record))
    names = measurement.kernels.get("function", pd.Series(dtype=object))
    return RuleContext(
        operators=operators,
        runs=runs,
        method=method,
        export=export,
        changes=changes[0].operators if changes else None,
        toggle=changes[0].toggle if changes else "",
        statistics=wall[wall["experiment"] == measurement.name],
        threads=measurement.threads,
        kernels={key: str(name) for key, name in names.items() if name},
        latency_ms=measurement.latency_ms,
        own=own,
        alternatives=tuple(alternatives.values()),
        roof=roof,
        roofline=roofline,
        emulated=run.emulated,
    )


def _measured_dtypes(measurement: Measurement) -> list[AlternativeDtype]:
    """The latency of every dtype that was measured alike, the program's own first."""
    own = measurement.run
    records = {own.path.resolve(): own.record}
    folder = own.path.resolve().parent
    for path in find_runs(folder.parent) if folder.name == RUNS else ():
        if path.resolve() not in records:
            with contextlib.suppress(WorkbenchError):  # not readable: no alternative
                records[path.resolve()] = load_run(path)
    found: dict[str, AlternativeDtype] = {}
    for record in records.values():
        dtype = record.export.dtype if record.export else ""
        if dtype in found or not _is_alike(record, own.record):
            continue
        alone = record is own.record
        table = own.statistics if alone else describe_latencies(tabulate_latencies(record))
        same = (table["experiment"] == measurement.name) & (table["threads"] == measurement.threads)
        for row in table[same].to_dict("records"):
            found[dtype] = AlternativeDtype(dtype, row["median"], row["low"], row["high"])
    return list(found.values())


def _is_alike(record: RunRecord, own: RunRecord) -> bool:
    """Whether a run differs in its dtype at most, and computes what the model does."""
    if not record.export or not own.export or record.state != "complete":
        return False
    return not record.export.problem and _identity(record) == _identity(own)


def _identity(record: RunRecord) -> tuple[object, ...]:
    shapes = tuple(tensor.shape for tensor in record.plan.inputs)
    machine = (record.platform, record.emulated, record.host.get("cpu"), record.runner.get("kind"))
    backend = record.export.backend if record.export else ""
    return (record.plan.model, backend, shapes, record.versions.get("executorch"), *machine)
