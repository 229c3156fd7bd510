"""Which layers of two programs are the same, whatever they are called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from workbench.analyze.layers import NO_LAYER, THE_MODEL, name_layer

#: What speaks for two layers of one class being the same: shapes and cost together outweigh the
#: path, since a layer that was inserted moves the paths of those after it.
_PATH, _SHAPES, _COST = 3, 2, 2

_FIXED = {THE_MODEL, NO_LAYER}


@dataclass(frozen=True)
class Layer:
    """A layer that took time of its own: its class, the shapes and cost of its main operator."""

    name: str
    kind: str
    shapes: str
    flops: float


def list_layers(operators: pd.DataFrame, order: Sequence[str]) -> list[Layer]:
    """The layers of one experiment in the given order of their names.

    Parameters
    ----------
    operators
        ``schema.OPERATORS`` with the columns that `add_layers` adds.
    order
        As they ran.
    """
    texts = operators.fillna({"module_class": "", "shapes": ""})
    main = (
        texts.assign(name=operators["module"].map(name_layer))
        .sort_values(["flops", "mean_ms"], ascending=False, na_position="last")
        .drop_duplicates("name")
        .set_index("name")
    )
    columns = ["module_class", "shapes", "flops"]
    return [Layer(name, *main.loc[name, columns]) for name in order]


def match_layers(one: Sequence[Layer], other: Sequence[Layer]) -> dict[str, str]:
    """Names of the other's layers by those that they have in the one.

    A layer found under the same name in a program with the same names is that layer. Otherwise the
    two are aligned in the order in which they ran, so that what was inserted, removed or renamed
    leaves the rest in place; S. B. Needleman, C. D. Wunsch, J. Mol. Biol. 48 (1970).
    """
    names = {layer.name for layer in one}
    same = names & {layer.name for layer in other}
    if len(same) == len(one) == len(other):
        return {name: name for name in names}
    one, other = ([layer for layer in side if layer.name not in _FIXED] for side in (one, other))
    score = np.array([[_likeness(a, b) for b in other] for a in one]).reshape(len(one), len(other))
    best = np.zeros((len(one) + 1, len(other) + 1))
    for i in range(len(one)):
        paired = best[i, :-1] + score[i]
        best[i + 1, 1:] = np.maximum.accumulate(np.maximum(best[i, 1:], paired))
    pairs, i, j = {name: name for name in same & _FIXED}, len(one), len(other)
    while i and j:
        if best[i, j] == best[i - 1, j]:
            i -= 1
        elif best[i, j] == best[i, j - 1]:
            j -= 1
        else:
            i, j = i - 1, j - 1
            pairs[one[i].name] = other[j].name
    return pairs


def _likeness(one: Layer, other: Layer) -> int:
    """How much speaks for two layers being the same; 0 if nothing does."""
    if one.kind != other.kind:
        return 0
    same = (one.name == other.name, one.shapes == other.shapes != "", one.flops == other.flops)
    return int(np.dot(same, (_PATH, _SHAPES, _COST)))
