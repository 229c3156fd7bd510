"""The ledger: every nanosecond of ``Method::execute`` in exactly one row."""

from __future__ import annotations

import numpy as np
import pandas as pd

from workbench.analyze.methods import Methods, number_methods
from workbench.analyze.rows import DELEGATE_CALL, OPERATOR_CALL, OTHER, Rows, arrange_rows
from workbench.schema import LEDGER, check

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
