"""Which layers of two programs are the same, whatever they are called.

Any number of runs side by side, the same layer of all of them in one row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy.cluster.hierarchy import DisjointSet

from workbench.analysis.compare import compare_layers
from workbench.analysis.layers import NO_LAYER, THE_MODEL, name_layer
from workbench.errors import ComparisonError
from workbench.frames import ALIGNED, check

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


@dataclass(frozen=True)
class Traced:
    """One experiment at one thread count.

    ``ledger`` has the column that `place_rows` adds, ``operators`` those that `add_layers` adds.
    """

    ledger: pd.DataFrame
    operators: pd.DataFrame

    @property
    def layers(self) -> list[str]:
        """The layers that took time of their own, as they ran."""
        return list(dict.fromkeys(self.ledger["layer"])) if "layer" in self.ledger else []


def align_runs(runs: Mapping[str, Traced], *, apart: bool = True) -> pd.DataFrame:
    """The own time of every layer in every run, and its speed-up since the first run.

    Layers of programs that differ are matched by path, class, shapes and cost in the order in
    which they ran, so a layer that was renamed or moved keeps its row. Where one run fuses layers
    that another runs one by one, they share a row in all: their times cannot be told apart.

    Parameters
    ----------
    runs
        By the name of the run, the first being what the others are compared with.
    apart
        As for `compare_categories`: False where all are experiments of one interleaved run.

    Returns
    -------
    DataFrame
        ``schema.ALIGNED``, for each layer one row per run, in the order in which the first run
        executes them. A run that lacks a layer has NaN there.

    Raises
    ------
    ComparisonError
        There are fewer than two runs, or one knows no layers.
    """
    if len(runs) < 2:
        raise ComparisonError("there is nothing to compare with", hint="name a second run")
    for run, traced in runs.items():
        if set(traced.layers) <= {NO_LAYER}:
            raise ComparisonError("knows no layers", where=run, hint="compare by category")
    order, names = _join_fused(runs, *_name_layers(runs))
    first, *others = (
        traced.ledger.assign(layer=traced.ledger["layer"].astype(object).map(names[run]))
        for run, traced in runs.items()
    )
    pairs = [compare_layers(first, first), *(compare_layers(first, o, apart=apart) for o in others)]
    return tabulate_runs(dict(zip(runs, pairs, strict=True)), order, names)


def tabulate_runs(
    pairs: Mapping[str, pd.DataFrame],
    order: Iterable[str],
    names: Mapping[str, Mapping[str, str]] | None = None,
) -> pd.DataFrame:
    """``schema.ALIGNED`` from comparisons of the first run with itself and with each other one.

    Parameters
    ----------
    pairs
        ``schema.COMPARISON`` by run.
    order
        What is compared, in the order of the rows.
    names
        By run, what is compared by the names that the run has for it; None if they are the same.
    """
    rows = pd.MultiIndex.from_product([list(order), list(pairs)], names=["name", "run"])
    table = pd.concat({run: pair.set_index("name") for run, pair in pairs.items()}, names=["run"])
    table = table.reorder_levels(["name", "run"]).reindex(rows).reset_index()
    first = table["run"] == next(iter(pairs))
    known = {
        (common, run): " + ".join(name for name, it in found.items() if it == common)
        for run, found in (names or {}).items()
        for common in found.values()
    }
    keys = list(zip(table["name"], table["run"], strict=True))
    table = table.assign(
        level=table["level"].ffill().bfill(),
        time_ms=table["candidate_ms"],
        outcome=table["outcome"].mask(first & table["candidate_ms"].notna(), "first"),
        known_as=[known.get(key) for key in keys] if names else table["name"],
    )
    return check(table[ALIGNED.names], ALIGNED)


def _name_layers(runs: Mapping[str, Traced]) -> tuple[list[str], dict[str, dict[str, str]]]:
    """Common names in order, and for every run the common name of each of its layers."""
    common: list[Layer] = []
    names = {}
    for run, traced in runs.items():
        layers = list_layers(traced.operators, traced.layers)
        found = {other: one for one, other in match_layers(common, layers).items()}
        place = 0
        for layer in layers:
            taken = [known.name for known in common]
            if layer.name in found:
                place = taken.index(found[layer.name]) + 1
                continue
            name = layer.name if layer.name not in taken else f"{layer.name} ({run})"
            found[layer.name] = name
            common.insert(place, replace(layer, name=name))
            place += 1
        names[run] = found
    return [layer.name for layer in common], names


def _join_fused(
    runs: Mapping[str, Traced], order: Sequence[str], names: dict[str, dict[str, str]]
) -> tuple[list[str], dict[str, dict[str, str]]]:
    """The same, with layers that share an operator in any run under one name."""
    groups = DisjointSet(order)
    for run, traced in runs.items():
        shared = traced.operators[traced.operators["also"].fillna("") != ""]
        for module, also in zip(shared["module"], shared["also"], strict=True):
            paths = [name_layer(module), *map(name_layer, also.split(", "))]
            known = [name for path in paths if (name := names[run].get(path, path)) in groups]
            for name in known[1:]:
                groups.merge(known[0], name)
    place = {name: number for number, name in enumerate(order)}
    joined = {
        name: " + ".join(sorted(groups.subset(name), key=place.__getitem__)) for name in order
    }
    renamed = {
        run: {name: joined[common] for name, common in found.items()}
        for run, found in names.items()
    }
    return list(dict.fromkeys(joined[name] for name in order)), renamed
