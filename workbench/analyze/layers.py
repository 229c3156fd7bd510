"""The operators of an experiment by layer."""

from __future__ import annotations

import pandas as pd

from workbench.analyze.tree import build_model_tree
from workbench.records import Layers
from workbench.schema import ATTRIBUTION, LAYERS, OPERATORS, check


def add_layers(operators: pd.DataFrame, attribution: pd.DataFrame) -> pd.DataFrame:
    """The operators frame with the columns of ``schema.ATTRIBUTION``."""
    check(operators, OPERATORS)
    return operators.merge(check(attribution, ATTRIBUTION), on="key", how="left", validate="1:1")


def summarize_layers(operators: pd.DataFrame, layers: Layers) -> pd.DataFrame:
    """The model tree in milliseconds, as ``schema.LAYERS``; containers have their classes, too.

    Parameters
    ----------
    operators
        ``schema.OPERATORS`` with the columns that `add_layers` adds.
    layers
        The sidecar, for the class of every module.
    """
    classes = {path: kind for method in layers.methods for path, kind in method.modules.items()}
    tree = build_model_tree(operators, classes)
    tree["own_ms"], tree["total_ms"] = tree["exclusive_ns"] / 1e6, tree["inclusive_ns"] / 1e6
    tree = tree.rename(columns={"path": "module", "class": "module_class"})
    return check(tree[LAYERS.names], LAYERS)
