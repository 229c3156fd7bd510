"""The operators of an experiment by layer."""

from __future__ import annotations

import pandas as pd

from workbench.analyze.tree import build_model_tree
from workbench.records import Layers
from workbench.schema import ATTRIBUTION, LAYERS, LEDGER, OPERATORS, check

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
