"""The events of whole runs, arranged by where they lie and what they are called."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from workbench.errors import StoreError
from workbench.schema import EVENTS, check

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
