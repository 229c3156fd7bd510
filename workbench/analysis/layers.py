"""The operators of an experiment by layer.

The tree of a model's modules, with the time of each: by itself, and with all that lie in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from workbench.analysis.statistics import blocks_of, half_width
from workbench.frames import ATTRIBUTION, LAYERS, LEDGER, OPERATORS, TREE, check
from workbench.records.layers import Layers

#: Stand for the path of the model, which is empty, and for that of no layer.
THE_MODEL, NO_LAYER = "(the model itself)", "(no layer)"


def add_layers(operators: pd.DataFrame, attribution: pd.DataFrame) -> pd.DataFrame:
    """The operators frame with the columns of ``schema.ATTRIBUTION``."""
    check(operators, OPERATORS)
    return operators.merge(check(attribution, ATTRIBUTION), on="key", how="left", validate="1:1")


def place_rows(ledger: pd.DataFrame, attribution: pd.DataFrame) -> pd.DataFrame:
    """The ledger with the column ``layer``: path of the module that each row is of, as a text.

    The model itself, and what is of no layer, go by the names in parentheses of `name_layer`.
    """
    names = check(attribution, ATTRIBUTION).set_index("key")["module"].map(name_layer)
    layers = ledger["key"].astype(object).map(names)
    return check(ledger, LEDGER).assign(layer=layers.astype("category"))


def name_layer(module: str | None) -> str:
    """What a layer is called where there is room for one word only.

    Examples
    --------
    >>> [name_layer(module) for module in ("features.0", "", None)]
    ['features.0', '(the model itself)', '(no layer)']
    """
    return NO_LAYER if pd.isna(module) else module or THE_MODEL


def summarize_layers(
    operators: pd.DataFrame, layers: Layers, runs: pd.DataFrame | None = None
) -> pd.DataFrame:
    """The model tree in milliseconds, as ``schema.LAYERS``; containers have their classes, too.

    Parameters
    ----------
    operators
        ``schema.OPERATORS`` with the columns that `add_layers` adds.
    layers
        The sidecar, for the class of every module.
    runs
        Of ``total_runs(ledger, "key")``, for the intervals.
    """
    classes = {path: kind for method in layers.methods for path, kind in method.modules.items()}
    tree = build_model_tree(operators, classes, runs)
    names = {"exclusive_ns": "own_ms", "inclusive_ns": "total_ms"}
    names |= {"low_ns": "low_ms", "high_ns": "high_ms"}
    tree[list(names)] /= 1e6
    tree = tree.rename(columns=names | {"path": "module", "class": "module_class"})
    return check(tree[LAYERS.names], LAYERS)


_NANOSECONDS = 1e6


def build_model_tree(
    operators: pd.DataFrame,
    classes: Mapping[str, str] | None = None,
    runs: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Roll the operators of one experiment up the tree of modules.

    An operator counts once, in the layer that ``module`` names, whatever else it does on the way.

    Parameters
    ----------
    operators
        ``schema.OPERATORS`` with the columns that `add_layers` adds.
    classes
        The class of every module by its path, as ``Method.modules`` of the sidecar has them;
        without it only modules that ran an operator of their own have one.
    runs
        Of ``total_runs(ledger, "key")``, for the intervals: operators of one run have much in
        common, so a module's time is added up in each run before its scatter is looked at.

    Returns
    -------
    DataFrame
        ``schema.TREE``: each module is followed by those in it, the slowest first. The first row is
        the model, and the last one, without a path, is what belongs to no layer: ``inclusive_ns``
        of the two sums to the mean E2E time, and so does ``exclusive_ns`` of all.
    """
    check(operators, OPERATORS)
    placed = operators[operators["module"].notna()]
    rest = operators[operators["module"].isna()]
    time = operators["mean_ms"] * _NANOSECONDS
    flops = operators["flops"] * operators["calls"]
    known = dict(zip(placed["module"], placed["module_class"], strict=True)) | dict(classes or {})

    pairs = [(path, row) for row, module in placed["module"].items() for path in _lineage(module)]
    within = pd.DataFrame(pairs, columns=["path", "row"])
    within["ns"] = time.reindex(within["row"]).to_numpy()
    within["flops"] = flops.reindex(within["row"]).to_numpy()
    tree = within.groupby("path").agg(
        inclusive_ns=("ns", "sum"), flops=("flops", "sum"), operators=("row", "size")
    )
    own = time[placed.index].groupby(placed["module"]).sum()
    tree["exclusive_ns"] = own.reindex(tree.index, fill_value=0.0)
    tree = tree.loc[_ordered(tree["inclusive_ns"].to_dict())].reset_index()
    lineages = [_lineage(path) for path in tree["path"]]
    tree["parent"] = pd.Series([next(iter(above[1:]), None) for above in lineages], dtype=object)
    tree["depth"] = [len(above) - 1 for above in lineages]
    tree["class"] = [known.get(path, "") for path in tree["path"]]
    outside = {
        "path": None,
        "parent": None,
        "depth": 0,
        "class": "",
        "exclusive_ns": time[rest.index].sum(),
        "inclusive_ns": time[rest.index].sum(),
        "operators": len(rest),
        "flops": flops[rest.index].sum(),
    }
    texts = {"path": object, "parent": object}
    tree = pd.concat([tree.astype(texts), pd.DataFrame([outside]).astype(texts)], ignore_index=True)
    inside = [*within.groupby("path")["row"].agg(list).reindex(tree["path"][:-1]), list(rest.index)]
    keys = operators["key"].to_dict()
    half = _half_widths(runs, [[keys[row] for row in rows] for rows in inside])
    tree["low_ns"] = (tree["inclusive_ns"] - half).clip(lower=0)
    tree["high_ns"] = tree["inclusive_ns"] + half
    total = time.sum()
    tree["share"] = tree["inclusive_ns"] / total if total else float("nan")
    return check(tree[TREE.names].astype({"depth": int, "operators": int}), TREE)


def _half_widths(runs: pd.DataFrame | None, parts: Sequence[list[str]]) -> np.ndarray:
    """Of the interval of each part's time in ns, from the keys of its operators."""
    if runs is None:
        return np.full(len(parts), np.nan)
    place = {key: number for number, key in enumerate(runs.columns)}
    member = np.zeros((len(place), len(parts)))
    for number, keys in enumerate(parts):
        member[[place[key] for key in keys], number] = 1
    sums = pd.DataFrame(runs.fillna(0.0).to_numpy() @ member, index=runs.index)
    return _NANOSECONDS * half_width(blocks_of(sums).to_numpy())


def _ordered(times: dict[str, float]) -> list[str]:
    """Paths as one reads a tree: each before those in it, the slowest of a level first."""
    return sorted(times, key=lambda path: [(-times[up], up) for up in reversed(_lineage(path))])


def _lineage(module: str) -> list[str]:
    """A module's path, and those of all modules around it, the innermost first."""
    parts = module.split(".") if module else []
    return [".".join(parts[:end]) for end in range(len(parts), -1, -1)]
