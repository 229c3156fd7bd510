"""The ledger: every nanosecond of ``Method::execute`` in exactly one row."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pandas as pd

from workbench.errors import StoreError
from workbench.schema import EVENTS, LEDGER, check

#: Values of the column ``kind``; their positions are the codes below.
KINDS = ("delegated", "portable", "delegate_overhead", "call_overhead", "framework")
_DELEGATED, _PORTABLE, _DELEGATE_OVERHEAD, _CALL_OVERHEAD, _FRAMEWORK = range(len(KINDS))

_EVENT_KINDS = (
    "method",
    "delegate_call",
    "operator_call",
    "kernel",
    "delegate_operator",
    "other",
)
_METHOD, _DELEGATE_CALL, _OPERATOR_CALL, _KERNEL, _DELEGATE_OPERATOR, _OTHER = range(6)

# The ledger's kind for each of them: for one that holds no other event, and for one that does.
_OF_LEAF = (_FRAMEWORK, _DELEGATED, _PORTABLE, _PORTABLE, _DELEGATED, _CALL_OVERHEAD)
_OF_SPAN = (_FRAMEWORK, _DELEGATE_OVERHEAD, _CALL_OVERHEAD, _PORTABLE, _DELEGATED, _CALL_OVERHEAD)

# More methods than this are no methods, but calls whose events differ from run to run.
_MOST_METHODS = 16


def build_ledger(events: pd.DataFrame) -> pd.DataFrame:
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

    Returns
    -------
    pandas.DataFrame
        Columns of :data:`workbench.schema.LEDGER`, in the order of the events, and ``method``, the
        index of the method. Events outside any run, and those of a last run that was cut off,
        have no row.
    """
    check(events, EVENTS)
    events = events[events["run"] >= 0]
    run = events["run"].to_numpy()
    kind = pd.Categorical(events["kind"], categories=_EVENT_KINDS).codes
    parent = _rows_of_parents(events)
    top = _instructions_of(kind, parent)

    name = pd.Categorical(events["name"]).remove_unused_categories()
    operator = _rename(name, lambda text: re.sub(r" #\d+\Z", "", text))
    base = _rename(operator, lambda text: text.partition(" (")[0])
    chain, instruction = events["chain"].to_numpy(), events["instruction"].to_numpy()
    place = _pair(chain.clip(0), instruction)
    method = _methods(run, place, base.codes, top, kind)
    slot = _pair(_pair(method, place), base.codes)
    named = pd.DataFrame(
        {"method": method, "chain": chain, "instruction": instruction, "base": base}
    )
    named["occurrence"] = named.groupby(_pair(run, slot)).cumcount()

    ledger = pd.DataFrame(
        {
            "run": run,
            "row": np.arange(len(run)) - np.searchsorted(run, run),
            "kind": pd.Categorical.from_codes(_ledger_kinds(events, kind, parent, top), KINDS),
            "name": name,
            "operator": operator,
            "key": _keys(named, slot),
            "instruction": instruction,
            "duration_ns": _own_time(events["duration_ns"].to_numpy(np.int64), parent),
            "method": method,
        }
    )
    return check(ledger, LEDGER)


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


def _instructions_of(kind: np.ndarray, parent: np.ndarray) -> np.ndarray:
    """The row directly below ``Method::execute`` that each row lies in, or is."""
    below = np.flatnonzero((parent >= 0) & (kind[parent] != _METHOD))
    top = np.arange(len(kind))
    top[below] = parent[below]
    while not np.array_equal(above := top[top], top):
        top = above
    return top


def _own_time(duration: np.ndarray, parent: np.ndarray) -> np.ndarray:
    """Durations without those of the events directly within."""
    nested = parent >= 0
    own = duration.copy()
    np.subtract.at(own, parent[nested], duration[nested])
    return own


def _ledger_kinds(
    events: pd.DataFrame, kind: np.ndarray, parent: np.ndarray, top: np.ndarray
) -> np.ndarray:
    holds = np.zeros(len(kind), bool)
    holds[parent[parent >= 0]] = True
    codes = np.where(holds, np.array(_OF_SPAN)[kind], np.array(_OF_LEAF)[kind])
    other = np.flatnonzero(kind == _OTHER)
    within = kind[top[other]]
    in_instruction = events["chain"].to_numpy()[other] >= 0
    codes[other] = np.select(
        [within == _DELEGATE_CALL, within == _OPERATOR_CALL, in_instruction],
        [_DELEGATED, _PORTABLE, _CALL_OVERHEAD],
        _FRAMEWORK,
    )
    return codes


def _methods(
    run: np.ndarray, place: np.ndarray, base: np.ndarray, top: np.ndarray, kind: np.ndarray
) -> np.ndarray:
    """The index of each row's method: runs belong to one if their instructions do the same.

    What a call of an instruction does is the bag of operators within it. Runs need only agree on
    the instructions that both executed, for control flow may have skipped some.
    """
    weights = np.random.default_rng(0).integers(0, 2**64, base.max(initial=0) + 1, np.uint64)
    bag = np.zeros(len(run), np.uint64)
    np.add.at(bag, top, weights[base])
    deed = _pair(place, pd.factorize(bag)[0])
    method_of_run = np.zeros(run.max(initial=0) + 1, np.int64)
    left = np.flatnonzero((top == np.arange(len(run))) & (kind != _METHOD))
    for label in range(_MOST_METHODS):
        if not len(left):
            return method_of_run[run]
        method_of_run[run[left]] = label
        first = left[run[left] == run[left[0]]]
        differs = np.isin(place[left], place[first]) & ~np.isin(deed[left], deed[first])
        left = left[np.isin(run[left], run[left[differs]])]
    return np.zeros(len(run), np.int64)


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


def _rename(names: pd.Categorical, rename: Callable[[str], str]) -> pd.Categorical:
    codes, texts = pd.factorize(np.array([rename(text) for text in names.categories], object))
    return pd.Categorical.from_codes(codes[names.codes], texts)


def _pair(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """One code from 0 for each distinct pair, in order of appearance."""
    first, second = first.astype(np.int64), second.astype(np.int64)
    least = second.min(initial=0)
    span = second.max(initial=0) - least + 1
    return pd.factorize(first * span + (second - least))[0]
