"""The events of whole runs, arranged by where they lie and what they are called.

Which method of a program each run executed: a trace does not name it.

The ledger: every nanosecond of ``Method::execute`` in exactly one row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count

import numpy as np
import pandas as pd

from workbench.errors import StoreError
from workbench.frames import EVENTS, LEDGER, check

#: Values of the column ``kind`` of events; their positions are the codes below.
EVENT_KINDS = (
    "method",
    "delegate_call",
    "operator_call",
    "kernel",
    "delegate_operator",
    "other",
)
METHOD, DELEGATE_CALL, OPERATOR_CALL, KERNEL, DELEGATE_OPERATOR, OTHER = range(len(EVENT_KINDS))


@dataclass(frozen=True)
class Rows:
    """One value per event of a whole run.

    ``kind`` is a code of ``EVENT_KINDS``; ``parent`` the row of the enclosing event, -1 for none;
    ``top`` the row directly below ``Method::execute`` that holds this one, or is it; ``place`` a
    number for chain and instruction, the same in every trace. ``operator`` is the name without its
    ordinal, and ``base`` that without layout, types and microkernel.
    """

    run: np.ndarray
    kind: np.ndarray
    parent: np.ndarray
    top: np.ndarray
    chain: np.ndarray
    instruction: np.ndarray
    place: np.ndarray
    name: pd.Categorical
    operator: pd.Categorical
    base: pd.Categorical


def arrange_rows(events: pd.DataFrame) -> Rows:
    """The rows of the events that lie in a run.

    Raises
    ------
    StoreError
        The events are not those of one trace in their order, or lack the parent of one.
    """
    events = check(events, EVENTS)[events["run"] >= 0]
    kind = pd.Categorical(events["kind"], categories=EVENT_KINDS).codes
    parent = _rows_of_parents(events)
    chain = events["chain"].to_numpy(np.int64)
    instruction = events["instruction"].to_numpy(np.int64)
    name = pd.Categorical(events["name"]).remove_unused_categories()
    operator = _rename(name, lambda text: re.sub(r" #\d+\Z", "", text))
    return Rows(
        events["run"].to_numpy(),
        kind,
        parent,
        _tops(kind, parent),
        chain,
        instruction,
        chain.clip(0) << 32 | instruction & 0xFFFF_FFFF,
        name,
        operator,
        _rename(operator, lambda text: text.partition(" (")[0]),
    )


def _rows_of_parents(events: pd.DataFrame) -> np.ndarray:
    """The row of each event's parent, -1 for none."""
    event, parent = events["event"].to_numpy(), events["parent"].to_numpy()
    if not (np.diff(event) > 0).all():
        raise StoreError("events are not those of one trace, in order", where="events frame")
    rows = np.searchsorted(event, parent)
    known = rows < len(event)
    known[known] = event[rows[known]] == parent[known]
    lost = np.flatnonzero(~known & (parent >= 0))
    if len(lost):
        raise StoreError(
            f"event {event[lost[0]]} lies in event {parent[lost[0]]}, which is missing",
            where="events frame",
        )
    return np.where(known, rows, -1)


def _tops(kind: np.ndarray, parent: np.ndarray) -> np.ndarray:
    below = np.flatnonzero((parent >= 0) & (kind[parent] != METHOD))
    top = np.arange(len(kind))
    top[below] = parent[below]
    while not np.array_equal(above := top[top], top):
        top = above
    return top


def _rename(names: pd.Categorical, rename: Callable[[str], str]) -> pd.Categorical:
    codes, texts = pd.factorize(np.array([rename(text) for text in names.categories], object))
    return pd.Categorical.from_codes(codes[names.codes], texts)


# More methods than this are no methods, but calls whose events differ from run to run.
_MOST = 16

# Any odd number mixes places into the hashes of what is done there.
_MIX = np.uint64(0x9E37_79B9_7F4A_7C15)


@dataclass(frozen=True)
class Methods:
    """The methods of a program, from :func:`find_methods`.

    Of each one's first run, the places of the instructions that it executed and hashes of what
    they did; methods are numbered in that order. None if calls differ from run to run.
    """

    first_runs: tuple[tuple[np.ndarray, np.ndarray], ...] | None = ()


def find_methods(chunks: Iterable[pd.DataFrame]) -> Methods:
    """Tell apart the methods of a trace that is read in chunks, so that their keys are the same.

    Runs are of one method if their instructions do the same: what a call of an instruction does is
    the bag of operators within it. Runs need only agree on the instructions that both executed, for
    control flow may have skipped some.

    Parameters
    ----------
    chunks
        Frames of :data:`workbench.schema.EVENTS`, in the order of the trace.

    Returns
    -------
    :class:`Methods`
        For ``build_ledger`` of every chunk.
    """
    methods = Methods()
    for events in chunks:
        _, methods = number_methods(arrange_rows(events), methods)
    return methods


def number_methods(rows: Rows, known: Methods) -> tuple[np.ndarray, Methods]:
    """The index of each row's method; and the methods, with those that were not known before."""
    if known.first_runs is None:
        return np.zeros(len(rows.run), np.int64), known
    first_runs = list(known.first_runs)
    run = rows.run - rows.run.min(initial=0)
    deed = _deeds(rows)
    method_of_run = np.zeros(run.max(initial=-1) + 1, np.int64)
    left = np.flatnonzero((rows.top == np.arange(len(run))) & (rows.kind != METHOD))
    for index in count():
        if not len(left):
            return method_of_run[run], Methods(tuple(first_runs))
        if index == _MOST:
            return np.zeros(len(run), np.int64), Methods(None)
        if index == len(first_runs):
            first = left[run[left] == run[left[0]]]
            first_runs.append((np.unique(rows.place[first]), np.unique(deed[first])))
        places, deeds = first_runs[index]
        method_of_run[run[left]] = index
        differs = np.isin(rows.place[left], places) & ~np.isin(deed[left], deeds)
        left = left[np.isin(run[left], run[left[differs]])]


def _deeds(rows: Rows) -> np.ndarray:
    """Hashes of what each call of an instruction does, and where, at the rows of the calls."""
    texts = np.asarray(rows.base.categories, object)
    weights = pd.util.hash_array(texts, categorize=False)
    bag = np.zeros(len(rows.run), np.uint64)
    np.add.at(bag, rows.top, weights[rows.base.codes])
    return bag + rows.place.astype(np.uint64) * _MIX


#: Values of the column ``kind``; their positions are the codes below.
KINDS = ("delegated", "portable", "delegate_overhead", "call_overhead", "framework")
_DELEGATED, _PORTABLE, _DELEGATE_OVERHEAD, _CALL_OVERHEAD, _FRAMEWORK = range(len(KINDS))

# The ledger's kind for each kind of event: for one that holds no other, and for one that does.
_OF_LEAF = (_FRAMEWORK, _DELEGATED, _PORTABLE, _PORTABLE, _DELEGATED, _CALL_OVERHEAD)
_OF_SPAN = (_FRAMEWORK, _DELEGATE_OVERHEAD, _CALL_OVERHEAD, _PORTABLE, _DELEGATED, _CALL_OVERHEAD)


def build_ledger(events: pd.DataFrame, methods: Methods | None = None) -> pd.DataFrame:
    """Split the time of every ``Method::execute`` into rows that sum to it exactly.

    Each event of a run is one row, and its time is its duration less that of the events directly
    in it. So the rows of a run telescope to the duration of its ``Method::execute`` whatever the
    nesting, in whole nanoseconds.

    - ``delegated``: an operator of a delegate; or a whole ``DELEGATE_CALL`` of a delegate that
      logs no operators.
    - ``delegate_overhead``: the rest of a ``DELEGATE_CALL``. XNNPACK rounds its operators to whole
      microseconds, so this can be slightly negative; it keeps its sign, or nothing would add up.
    - ``portable``: a kernel (``native_call_*``); or a whole ``OPERATOR_CALL`` without one, as the
      primitive operators of the runtime have it.
    - ``call_overhead``: the rest of an ``OPERATOR_CALL``; other instructions (``JF_CALL``,
      ``MOVE_CALL``, ``FREE_CALL``).
    - ``framework``: the rest of ``Method::execute``; a user's own events outside any instruction.

    A user's own events inside a call share the kind of its operators or kernels.

    ``key`` is ``<instruction>/<operator>/<occurrence>``, with the operator cut at its layout and
    types: they, and the microkernel after them, are what another ISA level changes. The occurrence
    counts equal operators of one instruction through the whole run, so a key is unique in its run
    even where control flow executes an instruction many times. A chain other than 0 precedes the
    instruction (``1:7``). Runs of several methods are told apart by what their instructions do, and
    keys of the second begin with ``m1/``, of the third with ``m2/``. Two methods that run the same
    operators count as one: the trace does not name them.

    Parameters
    ----------
    events
        A frame of :data:`workbench.schema.EVENTS` with whole runs, as ``read_etdump`` gives it.
    methods
        Those of the whole trace, from ``find_methods``, if ``events`` are a part of it.

    Returns
    -------
    pandas.DataFrame
        Columns of :data:`workbench.schema.LEDGER`, in the order of the events, and ``method``, the
        index of the method. Events outside any run, and those of a last run that was cut off,
        have no row.
    """
    rows = arrange_rows(events)
    run = rows.run
    method, _ = number_methods(rows, methods or Methods())
    slot = _pair(_pair(method, rows.place), rows.base.codes)
    named = pd.DataFrame(
        {"method": method, "chain": rows.chain, "instruction": rows.instruction, "base": rows.base}
    )
    named["occurrence"] = named.groupby(_pair(run, slot)).cumcount()
    duration = events.loc[events["run"] >= 0, "duration_ns"].to_numpy(np.int64)

    ledger = pd.DataFrame(
        {
            "run": run,
            "row": np.arange(len(run)) - np.searchsorted(run, run),
            "kind": pd.Categorical.from_codes(_ledger_kinds(rows), KINDS),
            "name": rows.name,
            "operator": rows.operator,
            "key": _keys(named, slot),
            "instruction": rows.instruction,
            "duration_ns": _own_time(duration, rows.parent),
            "method": method,
        }
    )
    return check(ledger, LEDGER)


def _own_time(duration: np.ndarray, parent: np.ndarray) -> np.ndarray:
    """Durations without those of the events directly within."""
    nested = parent >= 0
    own = duration.copy()
    np.subtract.at(own, parent[nested], duration[nested])
    return own


def _ledger_kinds(rows: Rows) -> np.ndarray:
    kind, parent = rows.kind, rows.parent
    holds = np.zeros(len(kind), bool)
    holds[parent[parent >= 0]] = True
    codes = np.where(holds, np.array(_OF_SPAN)[kind], np.array(_OF_LEAF)[kind])
    other = np.flatnonzero(kind == OTHER)
    within = kind[rows.top[other]]
    codes[other] = np.select(
        [within == DELEGATE_CALL, within == OPERATOR_CALL, rows.chain[other] >= 0],
        [_DELEGATED, _PORTABLE, _CALL_OVERHEAD],
        _FRAMEWORK,
    )
    return codes


def _keys(rows: pd.DataFrame, slot: np.ndarray) -> pd.Categorical:
    """Text of ``method, chain, instruction, base, occurrence``; the first four make the slot."""
    codes = _pair(slot, rows["occurrence"].to_numpy())
    distinct = rows[~pd.Series(codes).duplicated().to_numpy()]
    texts = [
        (f"m{method}/" if method else "")
        + (f"{chain}:" if chain > 0 else "")
        + f"{instruction}/{base}/{occurrence}"
        for method, chain, instruction, base, occurrence in distinct.itertuples(index=False)
    ]
    return pd.Categorical.from_codes(codes, texts)


def _pair(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """One code from 0 for each distinct pair, in order of appearance."""
    first, second = first.astype(np.int64), second.astype(np.int64)
    least = second.min(initial=0)
    span = second.max(initial=0) - least + 1
    return pd.factorize(first * span + (second - least))[0]
