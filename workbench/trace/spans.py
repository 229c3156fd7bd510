"""Profile events, from the tables of the file to one array per field."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd

from workbench.trace.blocks import Trace, collect_events
from workbench.trace.contents import Contents
from workbench.trace.fields import Event, Profile
from workbench.trace.flatbuffer import FlatBuffer
from workbench.trace.nesting import METHOD, classify, nest

_FIELDS = {
    "name": np.int32,
    "delegated": bool,
    "chain": np.int32,
    "instruction": np.int32,
    "delegate_id": np.int32,
    "metadata": np.int32,
    "start_at": np.int64,
    "end_at": np.int64,
}


def read_spans(trace: Trace, entries: np.ndarray, counts: np.ndarray) -> dict[str, np.ndarray]:
    """The profile events of the blocks of these ``entries``, each told in terms of its block.

    Returns
    -------
    dict
        ``block``, the index among the given ones; ``place``, the position among all events of the
        block; ``name`` and ``metadata`` as codes; ``chain``, ``instruction``, ``delegate_id``;
        ``start_at`` and ``end_at``, where the times are stored; and what nesting found: ``kind``,
        ``parent`` as a place, and ``run``, counted from the first of the block.
    """
    buffer = trace.buffer
    spans = collect_events(
        *(buffer, entries, counts, Event.PROFILE, "a profile event"),
        partial(_decode, trace),
        _FIELDS,
    )
    block, place = spans["block"], spans["place"]
    start, _ = read_times(buffer, spans["start_at"], spans["end_at"])
    kind = classify(spans["name"], trace.names.values, spans.pop("delegated"))
    run, parent = nest(block, kind, spans["chain"], spans["instruction"], start)
    runs = np.bincount(block[kind == METHOD], minlength=len(counts))
    run -= np.where(run >= 0, (np.cumsum(runs) - runs)[block], 0)
    parent = np.where(parent >= 0, place[parent], -1)
    return spans | {"kind": kind, "run": run, "parent": parent}


def read_times(
    buffer: FlatBuffer, start_at: np.ndarray, end_at: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Start and end of the events whose times are stored there, in ticks."""
    start, end = buffer.u64(start_at, 0), buffer.u64(end_at, 0)
    buffer.require(end < np.uint64(2**63), end_at, "an event ends after the year 2262")
    buffer.require(start <= end, end_at, "an event ends before it starts")
    return start.view(np.int64), end.view(np.int64)


def _decode(trace: Trace, at: np.ndarray) -> dict[str, np.ndarray]:
    """The fields of the profile events at the positions ``at``."""
    buffer = trace.buffer
    table = buffer.tables(at, "a profile event")
    chain = buffer.i32(table.field(Profile.CHAIN), 0).clip(-1)
    instruction = buffer.i32(table.field(Profile.INSTRUCTION), -1)
    # Outside any instruction the runtime logs instruction 0 of chain -1.
    instruction[chain < 0] = -1
    delegate_id = buffer.i32(table.field(Profile.DELEGATE_INT), -1)
    metadata = buffer.follow(table.field(Profile.METADATA), "a delegate's metadata")
    text = buffer.follow(table.field(Profile.NAME), "a name")
    label = buffer.follow(table.field(Profile.DELEGATE_STR), "a delegate's name")
    labelled = label > 0
    labelled[labelled] = buffer.words[label[labelled] >> 2] > 0
    return {
        "name": _name(np.where(text > 0, text, label), delegate_id, trace.names),
        "delegated": (delegate_id != -1) | labelled,
        "chain": chain,
        "instruction": instruction,
        "delegate_id": delegate_id,
        "metadata": trace.metadata.intern(metadata),
        "start_at": table.field(Profile.START, 8),
        "end_at": table.field(Profile.END, 8),
    }


def _name(at: np.ndarray, delegate_id: np.ndarray, names: Contents[str]) -> np.ndarray:
    """Codes of the names at ``at``; where there is none, of the delegate's id if it has one."""
    if at.all():
        return names.intern(at)
    codes = np.empty(len(at), np.int32)
    spelt = at > 0
    codes[spelt] = names.intern(at[spelt])
    which, ids = pd.factorize(delegate_id[~spelt])
    texts = ["" if number == -1 else str(number) for number in ids.tolist()]
    codes[~spelt] = np.array([names.code(text) for text in texts], np.int32)[which]
    return codes
