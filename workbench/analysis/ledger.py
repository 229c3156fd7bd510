"""The ledger: every nanosecond of ``Method::execute`` in exactly one row."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from workbench.analysis.statistics import find_undisturbed_runs, middle_half
from workbench.errors import StoreError, TraceError
from workbench.frames import EVENTS, LEDGER
from workbench.records.runs import Session
from workbench.trace.etdump import (
    DELEGATE_CALL,
    METHOD,
    OPERATOR_CALL,
    OTHER,
    TRACING,
    describe_metadata,
    map_names,
    strip_ordinal,
)
from workbench.trace.etdump import KINDS as EVENT_KINDS


class Key(NamedTuple):
    """What names an operator in every run: ``<instruction>/<operator>/<occurrence>``.

    The operator is cut before its layout, types and microkernel, which differ between ISA levels.
    The occurrence counts equal operators of one instruction within a run, so a key is unique in its
    run even where control flow repeats an instruction. A chain other than 0 precedes the
    instruction (``1:7``). Keys of the second method begin with ``m1/``, of the third with ``m2/``.
    """

    method: int
    chain: int
    instruction: int
    operator: str
    occurrence: int

    def __str__(self) -> str:
        return f"{self.call}/{self.operator}/{self.occurrence}"

    @property
    def call(self) -> str:
        """The key up to the instruction: ``m1/1:7``."""
        method = f"m{self.method}/" if self.method else ""
        return method + (f"{self.chain}:" if self.chain > 0 else "") + str(self.instruction)

    @classmethod
    def parse(cls, text: str) -> Key:
        """The parts of a key; another text is an operator outside any instruction."""
        parts = _KEY.fullmatch(text)
        if parts is None:
            return cls(0, 0, -1, text, 0)
        method, chain, instruction, operator, occurrence = parts.groups("0")
        return cls(int(method), int(chain), int(instruction), operator, int(occurrence))


_KEY = re.compile(r"(?:m(\d+)/)?(?:(\d+):)?(-?\d+)/(.*)/(\d+)", re.DOTALL)


def _parent_positions(events: pd.DataFrame) -> np.ndarray:
    event, parent = events["event"].to_numpy(), events["parent"].to_numpy()
    if not (np.diff(event) > 0).all():
        raise StoreError(
            "the events are out of order or from several traces",
            where="events frame",
            hint="pass the events of one trace as read_etdump returns them",
        )
    position = np.searchsorted(event, parent).clip(max=max(len(event) - 1, 0))
    present = event[position] == parent if len(event) else parent >= 0
    lost = np.flatnonzero(~present & (parent >= 0))
    if len(lost):
        raise StoreError(
            f"event {event[lost[0]]} lies in event {parent[lost[0]]}, which is missing",
            where="events frame",
        )
    return np.where(present, position, -1)


def _top_positions(kind: np.ndarray, parent: np.ndarray) -> np.ndarray:
    below = np.flatnonzero((parent >= 0) & (kind[parent] != METHOD))
    top = np.arange(len(kind))
    top[below] = parent[below]
    while not np.array_equal(above := top[top], top):
        top = above
    return top


# With more methods than this, the calls of one method differ from run to run.
_MOST_METHODS = 16

# Any odd number mixes the call into the hash of what it does.
_MIX = np.uint64(0x9E37_79B9_7F4A_7C15)


def number_methods(
    run: np.ndarray, kind: np.ndarray, top: np.ndarray, call: np.ndarray, base: pd.Categorical
) -> np.ndarray:
    """The number of each event's method: a trace does not name them.

    Two runs are of one method if the instructions that both executed do the same: what the call of
    an instruction does is the bag of operators within it. Control flow may skip instructions.
    """
    weights = pd.util.hash_array(np.asarray(base.categories, object), categorize=False)
    bag = np.zeros(len(run), np.uint64)
    np.add.at(bag, top, weights[base.codes])
    signature = bag + call.astype(np.uint64) * _MIX
    method_of_run = np.zeros(run.max(initial=-1) + 1, np.int64)
    unassigned = np.flatnonzero((top == np.arange(len(run))) & (kind != METHOD))
    for number in range(_MOST_METHODS):
        if not len(unassigned):
            return method_of_run[run]
        first = unassigned[run[unassigned] == run[unassigned[0]]]
        calls, signatures = np.unique(call[first]), np.unique(signature[first])
        method_of_run[run[unassigned]] = number
        differs = np.isin(call[unassigned], calls) & ~np.isin(signature[unassigned], signatures)
        unassigned = unassigned[np.isin(run[unassigned], run[unassigned[differs]])]
    return np.zeros(len(run), np.int64) if len(unassigned) else method_of_run[run]


#: Values of the column ``kind``; their positions are the codes below. Custom events inside a call
#: have the kind of its operators or kernels.
#:
#: - ``delegated``: an operator of a delegate, or a whole ``DELEGATE_CALL`` if it logs none.
#: - ``portable``: a kernel (``native_call_*``), or a whole ``OPERATOR_CALL`` without one (the
#:   primitive operators of the runtime).
#: - ``delegate_overhead``: the rest of a ``DELEGATE_CALL``.
#: - ``call_overhead``: the rest of an ``OPERATOR_CALL``; other instructions (``JF_CALL``,
#:   ``MOVE_CALL``, ``FREE_CALL``).
#: - ``framework``: the rest of ``Method::execute``; custom events outside any instruction.
#: - ``tracing``: what the workbench's runner added to the inference by tracing it.
KINDS = ("delegated", "portable", "delegate_overhead", "call_overhead", "framework", TRACING)
_DELEGATED, _PORTABLE, _DELEGATE_OVERHEAD, _CALL_OVERHEAD, _FRAMEWORK, _TRACING = range(len(KINDS))

# The ledger's kind for each kind of event: for one that holds no other, and for one that does.
_OF_LEAF = (_FRAMEWORK, _DELEGATED, _PORTABLE, _PORTABLE, _DELEGATED, _CALL_OVERHEAD)
_OF_SPAN = (_FRAMEWORK, _DELEGATE_OVERHEAD, _CALL_OVERHEAD, _PORTABLE, _DELEGATED, _CALL_OVERHEAD)


def build_ledger(events: pd.DataFrame) -> pd.DataFrame:
    """Split the time of every ``Method::execute`` into rows that sum to it exactly.

    Each event of a run is one row of a kind of `KINDS`; its time is its duration minus that of the
    events directly in it. The rows of a run sum to the duration of its ``Method::execute`` in whole
    nanoseconds; a row of what XNNPACK rounds to microseconds can be slightly negative for that.
    ``key`` names an operator alike in all runs (see `Key`). Two methods that run the same operators
    count as one, because the trace does not name them.

    Parameters
    ----------
    events
        A frame of ``frames.EVENTS`` with whole runs, from `read_etdump`.

    Returns
    -------
    DataFrame
        ``frames.LEDGER`` in the order of the events, and ``method``, the number of the method;
        where delegates logged any, ``metadata`` as text.
        Events outside any run, or in a last run that was cut off, have no row.

    Examples
    --------
    >>> import workbench as wb
    >>> events = wb.read_etdump(next(wb.sample_run().rglob("*.etdump")))
    >>> ledger = wb.build_ledger(events)
    >>> runs = events[(events["kind"] == "method") & (events["run"] >= 0)]
    >>> bool(ledger["duration_ns"].sum() == runs["duration_ns"].sum())
    True
    """
    events = EVENTS.check(events)[events["run"] >= 0]
    ledger = _divide_time(events)
    metadata = pd.Categorical(events.get("metadata", ())).remove_unused_categories()
    if any(metadata.categories):
        ledger["metadata"] = map_names(metadata, describe_metadata)
    return LEDGER.check(ledger)


def _divide_time(events: pd.DataFrame) -> pd.DataFrame:
    """A row for each event of whole runs, with the time that none of the events in it has."""
    run, duration = events["run"].to_numpy(), events["duration_ns"].to_numpy(np.int64)
    chain, instruction = (events[name].to_numpy(np.int64) for name in ("chain", "instruction"))
    kind = pd.Categorical(events["kind"], categories=EVENT_KINDS).codes
    # The position of the enclosing event, and of that directly below ``Method::execute``.
    parent = _parent_positions(events)
    top = _top_positions(kind, parent)
    name = pd.Categorical(events["name"]).remove_unused_categories()
    operator = map_names(name, strip_ordinal)
    method, key = _identify_operators(run, kind, top, chain, instruction, operator)
    nested, own_ns = parent >= 0, duration.copy()
    np.subtract.at(own_ns, parent[nested], duration[nested])
    return pd.DataFrame(
        {
            "run": run,
            "row": np.arange(len(run)) - np.searchsorted(run, run),
            "kind": pd.Categorical.from_codes(_ledger_kinds(kind, parent, top, chain, name), KINDS),
            "name": name,
            "operator": operator,
            "key": key,
            "instruction": instruction,
            "duration_ns": own_ns,
            "method": method,
        }
    )


def _identify_operators(
    run: np.ndarray, kind: np.ndarray, top: np.ndarray, chain: np.ndarray, instruction: np.ndarray,
    operator: pd.Categorical,
) -> tuple[np.ndarray, pd.Categorical]:  # fmt: skip
    """The number of each event's method, and its `Key`."""
    # Without layout, types and microkernel, which differ between ISA levels.
    base = map_names(operator, lambda text: text.partition(" (")[0])
    call = chain.clip(0) << 32 | instruction & 0xFFFF_FFFF
    method = number_methods(run, kind, top, call, base)
    named = _pair(_pair(method, call), base.codes)
    occurrence = _count_earlier(_pair(run, named))
    key = _pair(named, occurrence)
    first = np.unique(key, return_index=True)[1]
    names = np.asarray(base.categories, object)[base.codes]
    columns = (method, chain, instruction, names, occurrence)
    parts = zip(*(column[first].tolist() for column in columns), strict=True)
    return method, pd.Categorical.from_codes(key, [str(Key(*each)) for each in parts])


def _ledger_kinds(
    kind: np.ndarray, parent: np.ndarray, top: np.ndarray, chain: np.ndarray, name: pd.Categorical
) -> np.ndarray:
    holds = np.zeros(len(kind), bool)
    holds[parent[parent >= 0]] = True
    codes = np.where(holds, np.array(_OF_SPAN)[kind], np.array(_OF_LEAF)[kind])
    other = np.flatnonzero(kind == OTHER)
    within = kind[top[other]]
    codes[other] = np.select(
        [
            within == DELEGATE_CALL,
            within == OPERATOR_CALL,
            chain[other] >= 0,
            name[other] == TRACING,
        ],
        [_DELEGATED, _PORTABLE, _CALL_OVERHEAD, _TRACING],
        _FRAMEWORK,
    )
    return codes


def _count_earlier(codes: np.ndarray) -> np.ndarray:
    """How often each code occurred before."""
    order, earlier = np.argsort(codes, kind="stable"), np.empty_like(codes)
    earlier[order] = np.arange(len(codes)) - np.searchsorted(codes[order], codes[order])
    return earlier


def _pair(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """One code from 0 for each distinct pair, in order of appearance."""
    first, second = first.astype(np.int64), second.astype(np.int64)
    least = second.min(initial=0)
    span = second.max(initial=0) - least + 1
    return pd.factorize(first * span + (second - least))[0]


def kept_runs(session: Session, traced_ns: np.ndarray, path: Path) -> np.ndarray:
    """Which runs of a trace count, given their times: those that ran without interruption.

    Without CPU times to show that, the middle half after the warm-up, whose mean is the latency.
    """
    runs = len(traced_ns)
    if not session.batches:
        if runs <= session.skipped:
            raise TraceError(f"holds {runs} runs, {session.skipped} of them to warm up", where=path)
        is_typical = np.zeros(runs, dtype=bool)
        is_typical[session.skipped + middle_half(traced_ns[session.skipped :])] = True
        return is_typical
    wall, cpu, _ = _inferences_of(session)
    if runs != len(wall):
        raise TraceError(f"holds {runs} runs, the manifest {len(wall)}", where=path)
    return find_undisturbed_runs(wall, cpu, session.threads)


def lost_times(session: Session, traced_ns: np.ndarray) -> np.ndarray:
    """By run of a trace, the ns that others had the core, and how often; 0 where unknown.

    Wall less CPU time, and no more than the trace is longer than the CPU time.
    """
    if not session.batches or session.threads != 1:
        return np.zeros((len(traced_ns), 2))
    wall, cpu, switches = _inferences_of(session)
    lost_ns = np.where(cpu > 0, np.minimum(wall, traced_ns) - cpu, 0)
    return np.column_stack([lost_ns.clip(0), switches])


def _inferences_of(session: Session) -> list[np.ndarray]:
    """Wall and CPU time in ns, and context switches, of each inference of a process."""
    names = ("wall_ns", "cpu_ns", "preempted")
    return [np.concatenate([getattr(b, name) for b in session.batches]) for name in names]


def closed_runs(events: pd.DataFrame, ledger: pd.DataFrame) -> np.ndarray:
    """For every run of a trace, whether its ledger rows sum to ``Method::execute``."""
    methods = ((events["kind"] == "method") & (events["run"] >= 0)).to_numpy()
    run, duration = (events[name].to_numpy()[methods] for name in ("run", "duration_ns"))
    sums = np.zeros(run.max(initial=-1) + 1, np.int64)
    np.add.at(sums, ledger["run"].to_numpy(), ledger["duration_ns"].to_numpy())
    return sums[run] == duration


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
