"""Time by layer of the model, and the same layers and operators in programs that differ."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from workbench.analysis.statistics import blocks_of, half_width
from workbench.analysis.xnnpack.predicted_operators import (
    IMPOSSIBLE,
    MOST_CELLS,
    prefix_costs,
    trace_back,
)
from workbench.frames import ATTRIBUTION, LAYERS, LEDGER, OPERATORS
from workbench.records.layer_sidecar import Layers

#: Names for the empty path, which is the model, and for no layer.
THE_MODEL, NO_LAYER = "(the model itself)", "(no layer)"


def add_layers(operators: pd.DataFrame, attribution: pd.DataFrame) -> pd.DataFrame:
    """The operators frame with the columns of ``frames.ATTRIBUTION``."""
    table = OPERATORS.check(operators).merge(attribution, on="key", how="left", validate="1:1")
    return OPERATORS.check(ATTRIBUTION.check(table))  # a join has no frame


def place_rows(ledger: pd.DataFrame, attribution: pd.DataFrame) -> pd.DataFrame:
    """The ledger with the column ``layer``: each row's module, as `name_layer` names it."""
    names = ATTRIBUTION.check(attribution).set_index("key")["module"].map(name_layer)
    layers = ledger["key"].astype(object).map(names)
    return LEDGER.check(ledger).assign(layer=layers.astype("category"))


def name_layer(module: str | None) -> str:
    """The name of a layer in tables: its path, or a name in parentheses."""
    return NO_LAYER if pd.isna(module) else module or THE_MODEL


def tabulate_layers(
    operators: pd.DataFrame, layers: Layers, runs: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Sum the operators of one measurement over the tree of modules: ``frames.LAYERS``.

    ``operators`` has the columns that `add_layers` adds. ``runs``, from ``total_runs(ledger,
    "key")``, gives the intervals: a module's time is summed in each run before its scatter is
    estimated, because operators of one run are correlated.

    An operator counts once, in the layer that ``module`` names, even if it also does work of
    others. Each module is followed by those in it, the slowest first. The first row is the model,
    and the last one, without a path, the operators of no layer: their ``total_ms`` sum to the mean
    E2E time, and so does ``own_ms`` of all rows.
    """
    OPERATORS.check(operators)
    modules = operators["module"]
    time = operators["mean_ms"].to_numpy(float)
    classes = dict(zip(modules, operators["module_class"], strict=True))
    classes |= {path: kind for method in layers.methods for path, kind in method.modules.items()}
    lineages = {module: _lineage(module) for module in modules.dropna().unique()}
    paths = list(dict.fromkeys(path for lineage in lineages.values() for path in lineage))
    # The last column, without a path, is for events in no layer.
    column = {path: number for number, path in enumerate([*paths, None])}
    inside, owned = _place_operators(modules, lineages, column)
    flops = _count_flops(operators)
    total, half = time @ inside, np.full(len(column), np.nan)
    if runs is not None:
        times = runs[list(operators["key"])].fillna(0.0).to_numpy()
        # `@` starts threads, which then wait for more at the CPU's expense.
        sums = pd.DataFrame(np.einsum("ij,jk", times, inside), runs.index)
        half = half_width(blocks_of(sums).to_numpy())
    table = pd.DataFrame(
        {
            "module": pd.Series([*paths, None], dtype=object),
            "module_class": [*(classes.get(path, "") for path in paths), ""],
            "depth": [*(len(_lineage(path)) - 1 for path in paths), 0],
            "own_ms": time @ owned,
            "total_ms": total,
            "low_ms": (total - half).clip(min=0),
            "high_ms": total + half,
            "share": total / time.sum() if time.sum() else float("nan"),
            "operators": inside.sum(axis=0).astype(int),
            "flops": flops @ inside,
        }
    )
    spent = dict(zip(paths, total, strict=False))
    # As one reads a tree: a module before those in it, the slowest of a level first.
    order = sorted(paths, key=lambda path: [(-spent[p], p) for p in reversed(_lineage(path))])
    table = table.iloc[[column[path] for path in [*order, None]]].reset_index(drop=True)
    return LAYERS.check(table[LAYERS.names])


def _count_flops(operators: pd.DataFrame) -> np.ndarray:
    """The operations of each row: none of overhead; unknown where no size is known."""
    flops = operators["flops"] * operators["calls"]
    return (flops if flops.isna().all() else flops.fillna(0.0)).to_numpy(float)


def _place_operators(
    modules: pd.Series, lineages: dict[str, list[str]], column: dict[str | None, int]
) -> tuple[np.ndarray, np.ndarray]:
    """By operator, 1 in the columns of all modules around it, and in that of the innermost."""
    inside = np.zeros((len(modules), len(column)))
    owned = inside.copy()
    for row, module in enumerate(modules):
        innermost = None if pd.isna(module) else module
        owned[row, column[innermost]] = 1
        around = [None] if innermost is None else lineages[innermost]
        inside[row, [column[path] for path in around]] = 1
    return inside, owned


def _lineage(module: str) -> list[str]:
    """The paths of a module and of all modules around it, innermost first."""
    parts = module.split(".") if module else []
    return [".".join(parts[:end]) for end in range(len(parts), -1, -1)]


#: Scores for two layers of one class to be the same. Shapes and cost together outweigh the path,
#: because an inserted layer changes the paths of those after it.
_PATH, _SHAPES, _COST = 3, 2, 2

_FIXED = {THE_MODEL, NO_LAYER}

#: The ledger from `place_rows` and the operators from `add_layers` of one measurement.
Traced: TypeAlias = tuple[pd.DataFrame, pd.DataFrame]


#: What is matched between programs: a layer with time of its own, or an operator. A layer has its
#: class, and the shapes and cost of its main operator; an operator the path of its layer, its kind
#: and family, its shapes and its cost.
_UNIT = ("name", "kind", "shapes", "flops")
Unit: TypeAlias = tuple[Any, ...]


def list_layers(operators: pd.DataFrame, order: Sequence[str]) -> list[Unit]:
    """The layers of one experiment, by their names in order of execution."""
    texts = operators.fillna({"module_class": "", "shapes": ""})
    main = (
        texts.assign(name=operators["module"].map(name_layer))
        .sort_values(["flops", "mean_ms"], ascending=False, na_position="last")
        .drop_duplicates("name")
        .set_index("name")
    )
    columns = main[["module_class", "shapes", "flops"]].itertuples(index=False, name=None)
    row_of = dict(zip(main.index, columns, strict=True))
    return [(name, *row_of[name]) for name in order]


def match_layers(one: Sequence[Unit], other: Sequence[Unit]) -> dict[str, str]:
    """Names of the other's layers by those that they have in the one.

    Unless both have the same names, the layers are aligned in the order in which they ran, which
    allows for layers that were inserted, removed or renamed.
    """
    names = {name for name, *_ in one}
    same = names & {name for name, *_ in other}
    if len(same) == len(one) == len(other):
        return {name: name for name in names}
    one, other = ([unit for unit in side if unit[0] not in _FIXED] for side in (one, other))
    pairs = {name: name for name in same & _FIXED}
    return pairs | {one[i][0]: other[j][0] for i, j in _pair_in_order(one, other)}


def _pair_in_order(one: Sequence[Unit], other: Sequence[Unit]) -> list[tuple[int, int]]:
    """The numbers of those that are the same, both in order of execution."""
    # Backwards, so that of equally good pairings the earliest in execution order wins.
    sides = (pd.DataFrame(side[::-1], columns=_UNIT) for side in (one, other))
    ours, theirs = ({name: side[name].to_numpy(object) for name in side} for side in sides)
    same = {name: ours[name][:, None] == theirs[name] for name in _UNIT}
    same["shapes"] &= theirs["shapes"] != ""
    likeness = _PATH * same["name"] + _SHAPES * same["shapes"] + _COST * same["flops"]
    cost = np.where(same["kind"] & (likeness > 0), -likeness, IMPOSSIBLE)
    free = np.zeros(len(one), np.int64), np.zeros(len(other), np.int64)
    partners = trace_back(prefix_costs(cost, *free), cost, free[0])[::-1]
    return [(len(one) - 1 - i, j) for j, i in enumerate(partners) if i >= 0]


def match_operators(one: Traced, other: Traced) -> dict[str, str]:
    """Keys of the one's operators by those that they have in the other, as `match_layers` does."""
    _, names = _name_layers({"one": one, "other": other})
    keys, operators = [], []
    for (ledger, rows), common in zip((one, other), names.values(), strict=True):
        ordered = rows.set_index("key").loc[ledger["key"].drop_duplicates()]
        costs = ordered.reindex(columns=["module", "shapes", "flops"]).fillna({"shapes": ""})
        paths = [common.get(name, name) for name in map(name_layer, costs["module"])]
        kinds = ordered["kind"].astype(str) + " " + ordered["family"].astype(str)
        operators.append(list(zip(paths, kinds, costs["shapes"], costs["flops"], strict=True)))
        keys.append(list(ordered.index))
    if len(keys[0]) * len(keys[1]) > MOST_CELLS:
        return {}
    return {keys[1][j]: keys[0][i] for i, j in _pair_in_order(*operators)}


def align_layers(runs: Mapping[str, Traced]) -> tuple[list[str], dict[str, dict[str, str]]]:
    """Common names of the layers of any runs in order, and by run those of its own layers."""
    return _join_fused(runs, *_name_layers(runs))


def rename(ledger: pd.DataFrame, column: str, names: Mapping[str, str]) -> pd.DataFrame:
    """A ledger with other names in a column; those without another one stay."""
    return ledger.assign(**{column: [names.get(name, name) for name in ledger[column]]})


def _name_layers(runs: Mapping[str, Traced]) -> tuple[list[str], dict[str, dict[str, str]]]:
    """Common names in order, and for every run the common name of each of its layers."""
    common: list[Unit] = []
    names = {}
    for run, (ledger, operators) in runs.items():
        layers = list_layers(operators, list(dict.fromkeys(ledger["layer"])))
        partners = {other: one for one, other in match_layers(common, layers).items()}
        position = 0
        for layer, *what in layers:
            taken = [common_name for common_name, *_ in common]
            if layer in partners:
                position = taken.index(partners[layer]) + 1
                continue
            partners[layer] = layer if layer not in taken else f"{layer} ({run})"
            common.insert(position, (partners[layer], *what))
            position += 1
        names[run] = partners
    return [name for name, *_ in common], names


def _join_fused(
    runs: Mapping[str, Traced], order: Sequence[str], names: dict[str, dict[str, str]]
) -> tuple[list[str], dict[str, dict[str, str]]]:
    """The same, with layers that share an operator in any run under one name."""
    group = {name: name for name in order}
    for run, (_, operators) in runs.items():
        shared = operators[operators["also"].fillna("") != ""]
        for module, also in zip(shared["module"], shared["also"], strict=True):
            paths = [name_layer(module), *map(name_layer, also.split(", "))]
            parts = {group[name] for path in paths if (name := names[run].get(path, path)) in group}
            first = min(parts, default="")
            group.update((name, first) for name, its in group.items() if its in parts)
    members: dict[str, list[str]] = {}
    for name in order:
        members.setdefault(group[name], []).append(name)
    joined = {name: " + ".join(members[group[name]]) for name in order}
    renamed = {run: {name: joined[it] for name, it in its.items()} for run, its in names.items()}
    return list(dict.fromkeys(joined[name] for name in order)), renamed
