"""The activations of a program: when each is live, and what sets their peak."""

from typing import Any

import numpy as np
import pandas as pd

from workbench import Measurement
from workbench.api import Frame

TENSORS = Frame.make(
    "tensors",
    ("memory", "text", "", "arenas, planned by the exporter, or a delegate's workspace"),
    ("operator", "text", "", "operator that writes it; input for one of the program"),
    ("module", "text", "", "layer of that operator, where it is known"),
    ("source", "text", "", "its line, where it is known"),
    ("size_bytes", "int", "B", "as planned"),
    ("first", "int", "", "step at which it is written, from 0, in the order of execution"),
    ("last", "int", "", "step that reads it last"),
    ("at_peak", "bool", "", "live when most bytes of the arenas, or of any delegate, are"),
)

#: XNNPACK writes the result of these, too, over their input if nothing else reads that.
_IN_PLACE = ("Softmax", "StaticReshape", "Copy")


def _lifetimes(flow: Any, dropped: Any = None) -> dict[tuple[int, int], tuple[int, int]]:
    """When each tensor is written, and read last, by the number of the step.

    Without the step ``dropped``, those that read its results read its operands instead.
    """
    order = {step.id: number for number, step in enumerate(flow.steps)}
    lives = {}
    for tensor, info in flow.tensors.items():
        maker, users = flow.makers.get(tensor), flow.users.get(tensor, [])
        if info.constant or not (maker or users):
            continue
        first = order[maker.id] if maker else 0
        lives[tensor] = first, max((order[step.id] for step in users), default=len(order) - 1)
    for step in flow.steps:
        if step.is_kernel or not (step.is_pointwise or step.type in _IN_PLACE):
            continue
        target, size = step.writes[0], flow.tensors[step.writes[0]].size_bytes
        for source in step.reads:
            alike = source in lives and flow.tensors[source].size_bytes == size
            if alike and len(flow.users[source]) == 1 and -1 not in (source[0], target[0]):
                lives[source] = lives[source][0], lives[source][1] - 1
                break
    if dropped is not None:
        ends = [lives.pop(tensor)[1] for tensor in dropped.writes if tensor in lives]
        for source in dropped.reads:
            if source in lives:
                lives[source] = lives[source][0], max(lives[source][1], *ends)
    return lives


def _find_peaks(
    flow: Any, lives: dict[tuple[int, int], tuple[int, int]]
) -> dict[int, tuple[int, int]]:
    """Most live bytes, and at which step: of the method (-1), and of the delegate with the most.

    Delegates share one workspace.
    """
    changes: dict[int, np.ndarray] = {}
    for tensor, (first, last) in lives.items():
        change = changes.setdefault(tensor[0], np.zeros(len(flow.steps) + 1, dtype=np.int64))
        change[first] += flow.tensors[tensor].size_bytes
        change[last + 1] -= flow.tensors[tensor].size_bytes
    live = {place: change.cumsum() for place, change in changes.items()}
    peaks = {place: (int(bytes_.max()), int(bytes_.argmax())) for place, bytes_ in live.items()}
    largest = max((place for place in peaks if place >= 0), key=lambda p: peaks[p], default=-1)
    return {place: peaks[place] for place in sorted({-1, largest} & peaks.keys())}


def list_tensors(m: Measurement) -> pd.DataFrame | None:
    """Every activation and when it is live: `TENSORS`, the largest first."""
    flow = m.flow
    if not flow.steps:
        return None
    lives = _lifetimes(flow)
    peaks, rows = _find_peaks(flow, lives), []
    for tensor, (first, last) in lives.items():
        maker, place = flow.makers.get(tensor), tensor[0]
        origin = maker.origin if maker else None
        memory = "arenas" if place < 0 else f"delegate of instruction {place}"
        layer = (origin.module, origin.source) if origin else ("", "")
        at_peak = place in peaks and first <= peaks[place][1] <= last
        size = flow.tensors[tensor].size_bytes
        rows.append((memory, maker.type if maker else "input", *layer, size, first, last, at_peak))
    table = pd.DataFrame(rows, columns=TENSORS.names)
    table = table.sort_values("size_bytes", ascending=False, kind="stable", ignore_index=True)
    return TENSORS.check(table)


def activation_bytes(m: Measurement, dropped: Any = None) -> int:
    """The least memory for activations: in the arenas, and in the delegates' workspace.

    Without the results of the step ``dropped``, whose operands then live as long as they would.
    """
    return sum(size for size, _ in _find_peaks(m.flow, _lifetimes(m.flow, dropped)).values())
