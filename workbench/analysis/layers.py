"""Operators by layer, and the tree of a model's modules with the time of each."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from workbench.analysis.categories import CATEGORIES
from workbench.analysis.statistics import blocks_of, half_width
from workbench.frames import ATTRIBUTION, LAYER_TYPES, LAYERS, LEDGER, OPERATORS, TREE, check
from workbench.records.layers import Layers

#: Names for the empty path, which is the model, and for no layer.
THE_MODEL, NO_LAYER = "(the model itself)", "(no layer)"
_NANOSECONDS = 1e6  # in a millisecond


def add_layers(operators: pd.DataFrame, attribution: pd.DataFrame) -> pd.DataFrame:
    """The operators frame with the columns of ``frames.ATTRIBUTION``."""
    check(operators, OPERATORS)
    return operators.merge(check(attribution, ATTRIBUTION), on="key", how="left", validate="1:1")


def place_rows(ledger: pd.DataFrame, attribution: pd.DataFrame) -> pd.DataFrame:
    """The ledger with the column ``layer``: each row's module, as `name_layer` names it."""
    names = check(attribution, ATTRIBUTION).set_index("key")["module"].map(name_layer)
    layers = ledger["key"].astype(object).map(names)
    return check(ledger, LEDGER).assign(layer=layers.astype("category"))


def name_layer(module: str | None) -> str:
    """The name of a layer in tables: its path, or a name in parentheses."""
    return NO_LAYER if pd.isna(module) else module or THE_MODEL


def summarize_layers(
    operators: pd.DataFrame, layers: Layers, runs: pd.DataFrame | None = None
) -> pd.DataFrame:
    """The model tree in milliseconds, as ``frames.LAYERS``; ``runs`` as for `build_model_tree`."""
    classes = {path: kind for method in layers.methods for path, kind in method.modules.items()}
    tree = build_model_tree(operators, classes, runs)
    names = {"exclusive_ns": "own_ms", "inclusive_ns": "total_ms"}
    names |= {"low_ns": "low_ms", "high_ns": "high_ms"}
    tree[list(names)] /= _NANOSECONDS
    tree = tree.rename(columns=names | {"path": "module", "class": "module_class"})
    return check(tree[LAYERS.names], LAYERS)


def summarize_layer_types(operators: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """The time of each class of layers, by category of its operators: ``frames.LAYER_TYPES``.

    The class with the most time comes first; ``runs`` is as for `build_model_tree`.
    """
    types = operators["module_class"].where(operators["module"].notna(), NO_LAYER)
    named = operators.assign(module_class=types.replace("", THE_MODEL))
    groups = named.groupby(["module_class", "category"])
    table = groups.agg(
        mean_ms=("mean_ms", "sum"),
        share=("share", "sum"),
        operators=("key", "size"),
        layers=("module", "nunique"),
    ).reset_index()
    times = runs[list(operators["key"])].fillna(0.0).T.groupby(groups.ngroup().to_numpy()).sum().T
    half = half_width(blocks_of(times).to_numpy())
    table = table.assign(
        low_ms=(table["mean_ms"] - half).clip(lower=0),
        high_ms=table["mean_ms"] + half,
        whole=-table.groupby("module_class")["mean_ms"].transform("sum"),
        order=table["category"].map(CATEGORIES.index),
    )
    table = table.sort_values(["whole", "module_class", "order"], ignore_index=True)
    return check(table[LAYER_TYPES.names], LAYER_TYPES)


def build_model_tree(
    operators: pd.DataFrame,
    classes: Mapping[str, str] | None = None,
    runs: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Sum the operators of one measurement over the tree of modules: ``frames.TREE``.

    ``operators`` has the columns that `add_layers` adds; ``classes`` the class of every module by
    path (without it, only modules that ran an operator of their own have one). ``runs``, from
    ``total_runs(ledger, "key")``, gives the intervals: a module's time is summed in each run before
    its scatter is estimated, because operators of one run are correlated.

    An operator counts once, in the layer that ``module`` names, even if it also does work of
    others. Each module is followed by those in it, the slowest first. The first row is the model,
    and the last one, without a path, the operators of no layer: their ``inclusive_ns`` sum to the
    mean E2E time, and so does ``exclusive_ns`` of all rows.
    """
    check(operators, OPERATORS)
    modules = operators["module"]
    time = operators["mean_ms"].to_numpy(float) * _NANOSECONDS
    known = dict(zip(modules, operators["module_class"], strict=True)) | dict(classes or {})
    lineages = {module: _lineage(module) for module in modules.dropna().unique()}
    paths = list(dict.fromkeys(p for above in lineages.values() for p in above))
    # The last column, without a path, is for events in no layer.
    column = {path: number for number, path in enumerate([*paths, None])}
    inside = np.zeros((len(operators), len(column)))
    own = inside.copy()
    for row, module in enumerate(modules):
        innermost = None if pd.isna(module) else module
        own[row, column[innermost]] = 1
        inside[row, [column[path] for path in lineages.get(innermost, [None])]] = 1
    parents = [next(iter(_lineage(path)[1:]), None) for path in paths]
    flops = (operators["flops"] * operators["calls"]).fillna(0.0).to_numpy(float)
    inclusive = time @ inside
    half = _half_widths(runs, operators["key"], inside)
    tree = pd.DataFrame(
        {
            "path": pd.Series([*paths, None], dtype=object),
            "parent": pd.Series([*parents, None], dtype=object),
            "depth": [*(len(_lineage(path)) - 1 for path in paths), 0],
            "class": [*(known.get(path, "") for path in paths), ""],
            "exclusive_ns": time @ own,
            "inclusive_ns": inclusive,
            "low_ns": (inclusive - half).clip(min=0),
            "high_ns": inclusive + half,
            "share": inclusive / time.sum() if time.sum() else float("nan"),
            "operators": inside.sum(axis=0).astype(int),
            "flops": flops @ inside,
        }
    )
    spent = dict(zip(paths, inclusive, strict=False))
    # As one reads a tree: a module before those in it, the slowest of a level first.
    order = sorted(paths, key=lambda path: [(-spent[p], p) for p in reversed(_lineage(path))])
    tree = tree.iloc[[column[path] for path in [*order, None]]].reset_index(drop=True)
    return check(tree[TREE.names], TREE)


def _half_widths(runs: pd.DataFrame | None, keys: pd.Series, inside: np.ndarray) -> np.ndarray:
    """Half the interval of each column's time in ns, from the operators inside it."""
    if runs is None:
        return np.full(inside.shape[1], np.nan)
    sums = pd.DataFrame(runs[list(keys)].fillna(0.0).to_numpy() @ inside, index=runs.index)
    return _NANOSECONDS * half_width(blocks_of(sums).to_numpy())


def _lineage(module: str) -> list[str]:
    """The paths of a module and of all modules around it, innermost first."""
    parts = module.split(".") if module else []
    return [".".join(parts[:end]) for end in range(len(parts), -1, -1)]
