"""The same layers and operators of different programs; any number of runs side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from workbench.analysis.compare import compare_parts
from workbench.analysis.layers import NO_LAYER, THE_MODEL, name_layer
from workbench.analysis.match_graph import MOST_CELLS, NEVER, prefix_costs, trace_back
from workbench.errors import ComparisonError
from workbench.frames import ALIGNED, check

#: Scores for two layers of one class to be the same. Shapes and cost together outweigh the path,
#: because an inserted layer changes the paths of those after it.
_PATH, _SHAPES, _COST = 3, 2, 2

_FIXED = {THE_MODEL, NO_LAYER}
_FACTS = ["name", "kind", "shapes", "flops"]


@dataclass(frozen=True)
class Layer:
    """A layer with time of its own: its class, and shapes and cost of its main operator.

    Or an operator: the path of its layer, its family, its shapes and its cost.
    """

    name: str
    kind: str
    shapes: str
    flops: float


def list_layers(operators: pd.DataFrame, order: Sequence[str]) -> list[Layer]:
    """The layers of one experiment, by their names in order of execution."""
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

    Unless both have the same names, the layers are aligned in the order in which they ran, which
    allows for layers that were inserted, removed or renamed.
    """
    names = {layer.name for layer in one}
    same = names & {layer.name for layer in other}
    if len(same) == len(one) == len(other):
        return {name: name for name in names}
    one, other = ([x for x in side if x.name not in _FIXED] for side in (one, other))
    pairs = {name: name for name in same & _FIXED}
    return pairs | {one[i].name: other[j].name for i, j in _pair_in_order(one, other)}


def _pair_in_order(one: Sequence[Layer], other: Sequence[Layer]) -> list[tuple[int, int]]:
    """The numbers of those that are the same, both in order of execution."""
    # Backwards, so that of equally good pairings the earliest in execution order wins.
    sides = (pd.DataFrame(map(vars, side[::-1]), columns=_FACTS) for side in (one, other))
    ours, theirs = ({name: side[name].to_numpy(object) for name in _FACTS} for side in sides)
    same = {name: ours[name][:, None] == theirs[name] for name in _FACTS}
    same["shapes"] &= theirs["shapes"] != ""
    likeness = _PATH * same["name"] + _SHAPES * same["shapes"] + _COST * same["flops"]
    cost = np.where(same["kind"] & (likeness > 0), -likeness, NEVER)
    free = np.zeros(len(one), np.int64), np.zeros(len(other), np.int64)
    partners = trace_back(prefix_costs(cost, *free), cost, free[0])[::-1]
    return [(len(one) - 1 - i, j) for j, i in enumerate(partners) if i >= 0]


def match_operators(one: Traced, other: Traced) -> dict[str, str]:
    """Keys of the one's operators by those that they have in the other, as `match_layers` does."""
    _, names = _name_layers({"one": one, "other": other})
    keys, operators = [], []
    for side, found in zip((one, other), names.values(), strict=True):
        ordered = side.operators.set_index("key").loc[side.ledger["key"].drop_duplicates()]
        known = ordered.reindex(columns=["module", "shapes", "flops"]).fillna({"shapes": ""})
        paths = [found.get(name, name) for name in map(name_layer, known["module"])]
        kinds = ordered["kind"].astype(str) + " " + ordered["family"].astype(str)
        columns = (paths, kinds, known["shapes"], known["flops"])
        operators.append([Layer(*facts) for facts in zip(*columns, strict=True)])
        keys.append(list(ordered.index))
    if len(keys[0]) * len(keys[1]) > MOST_CELLS:
        return {}
    return {keys[1][j]: keys[0][i] for i, j in _pair_in_order(*operators)}


@dataclass(frozen=True)
class Traced:
    """One measurement: its ledger from `place_rows`, its operators from `add_layers`."""

    ledger: pd.DataFrame
    operators: pd.DataFrame

    @property
    def layers(self) -> list[str]:
        """The layers that took time of their own, in order of execution."""
        return list(dict.fromkeys(self.ledger["layer"])) if "layer" in self.ledger else []


def align_runs(runs: Mapping[str, Traced], *, apart: bool = True) -> pd.DataFrame:
    """The own time of every layer in every run, and the speed-up against the first.

    ``frames.ALIGNED``. Layers of different programs are matched by path, class, shapes and cost in
    order of execution, so a layer that was renamed or moved keeps its row. Layers that any run
    fuses share a row in all, because their times cannot be separated. Each layer has one row per
    run, in the order in which the first run executes them; a run that lacks a layer has NaN there.
    ``apart`` is False if all are experiments of one interleaved run.
    """
    if len(runs) < 2:
        raise ComparisonError("nothing to compare with", hint="name a second run")
    for run, traced in runs.items():
        if set(traced.layers) <= {NO_LAYER}:
            raise ComparisonError("its layers are unknown", where=run, hint="compare by category")
    order, names = align_layers(runs)
    first, *others = (rename(t.ledger, "layer", names[run]) for run, t in runs.items())
    pairs = [compare_parts("layer", first, first)]
    pairs += [compare_parts("layer", first, other, apart=apart) for other in others]
    return tabulate_runs(dict(zip(runs, pairs, strict=True)), order, names)


def align_layers(
    runs: Mapping[str, Traced],
) -> tuple[list[str], dict[str, dict[str, str]]]:
    """Common names of the layers of any runs in order, and by run those of its own layers."""
    return _join_fused(runs, *_name_layers(runs))


def rename(ledger: pd.DataFrame, column: str, names: Mapping[str, str]) -> pd.DataFrame:
    """A ledger with other names in a column; those without another one stay."""
    return ledger.assign(**{column: [names.get(name, name) for name in ledger[column]]})


def tabulate_runs(
    pairs: Mapping[str, pd.DataFrame],
    order: Iterable[str],
    names: Mapping[str, Mapping[str, str]] | None = None,
) -> pd.DataFrame:
    """``frames.ALIGNED`` from comparisons of the first run with itself and with each other run.

    ``pairs`` has ``frames.COMPARISON`` by run, ``order`` the names of the rows, and ``names`` by
    run the common names by the run's own names; None if they are the same.
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
        position = 0
        for layer in layers:
            taken = [known.name for known in common]
            if layer.name in found:
                position = taken.index(found[layer.name]) + 1
                continue
            name = layer.name if layer.name not in taken else f"{layer.name} ({run})"
            found[layer.name] = name
            common.insert(position, replace(layer, name=name))
            position += 1
        names[run] = found
    return [layer.name for layer in common], names


def _join_fused(
    runs: Mapping[str, Traced], order: Sequence[str], names: dict[str, dict[str, str]]
) -> tuple[list[str], dict[str, dict[str, str]]]:
    """The same, with layers that share an operator in any run under one name."""
    group = {name: name for name in order}
    for run, traced in runs.items():
        shared = traced.operators[traced.operators["also"].fillna("") != ""]
        for module, also in zip(shared["module"], shared["also"], strict=True):
            paths = [name_layer(module), *map(name_layer, also.split(", "))]
            known = {group[name] for path in paths if (name := names[run].get(path, path)) in group}
            first = min(known, default="")
            group.update((name, first) for name, its in group.items() if its in known)
    members: dict[str, list[str]] = {}
    for name in order:
        members.setdefault(group[name], []).append(name)
    joined = {name: " + ".join(members[group[name]]) for name in order}
    renamed = {run: {own: joined[it] for own, it in found.items()} for run, found in names.items()}
    return list(dict.fromkeys(joined[name] for name in order)), renamed
