"""The operators of an experiment by layer, up the tree of modules."""

from __future__ import annotations

import pandas as pd

from workbench.records import Layers
from workbench.schema import ATTRIBUTION, LAYERS, OPERATORS, check


def add_layers(operators: pd.DataFrame, attribution: pd.DataFrame) -> pd.DataFrame:
    """The operators frame with the columns of ``schema.ATTRIBUTION``."""
    check(operators, OPERATORS)
    return operators.merge(check(attribution, ATTRIBUTION), on="key", how="left", validate="1:1")


def summarize_layers(operators: pd.DataFrame, layers: Layers) -> pd.DataFrame:
    """The time of every module, by itself and with all that lie in it.

    A row is counted once, in the layer that ``module`` names, whatever else it does on the way.

    Parameters
    ----------
    operators
        ``schema.OPERATORS`` with the columns that `add_layers` adds.
    layers
        The sidecar, for the class of every module.

    Returns
    -------
    DataFrame
        ``schema.LAYERS`` as a tree: each module is followed by those in it, the slowest first.
        ``own_ms`` sums to the mean E2E time. The first row is the model; the last one, without a
        module, is what belongs to no layer.
    """
    check(operators, OPERATORS)
    modules = {path: kind for method in layers.methods for path, kind in method.modules.items()}
    placed = operators[operators["module"].notna()]
    rest = operators[operators["module"].isna()]
    pairs = [(path, row) for row, module in placed["module"].items() for path in _lineage(module)]
    within = pd.DataFrame(pairs, columns=["module", "row"])
    flops = operators["flops"] * operators["calls"]
    within["ms"] = operators["mean_ms"].reindex(within["row"]).to_numpy()
    within["flops"] = flops.reindex(within["row"]).to_numpy()
    sums = within.groupby("module").agg(
        total_ms=("ms", "sum"), flops=("flops", "sum"), operators=("row", "size")
    )
    sums["own_ms"] = placed.groupby("module")["mean_ms"].sum().reindex(sums.index, fill_value=0.0)
    times = sums["total_ms"].to_dict()
    table = sums.reset_index()
    table["order"] = [
        tuple((-times[path], path) for path in reversed(_lineage(module)))
        for module in table["module"]
    ]
    table = table.sort_values("order", ignore_index=True)
    table["module_class"] = [modules.get(path, "") for path in table["module"]]
    table["depth"] = [len(_lineage(path)) - 1 for path in table["module"]]
    table = pd.concat([table.astype({"module": object}), _outside(rest, flops)], ignore_index=True)
    total = operators["mean_ms"].sum()
    table["share"] = table["total_ms"] / total if total else float("nan")
    return check(table[LAYERS.names].astype({"depth": int, "operators": int}), LAYERS)


def _outside(rest: pd.DataFrame, flops: pd.Series) -> pd.DataFrame:
    """The row for what belongs to no layer."""
    spent = rest["mean_ms"].sum()
    row = {
        "module": None,
        "module_class": "",
        "depth": 0,
        "own_ms": spent,
        "total_ms": spent,
        "operators": len(rest),
        "flops": flops[rest.index].sum(),
    }
    return pd.DataFrame([row]).astype({"module": object})


def _lineage(module: str) -> list[str]:
    """A module's path, and those of all modules around it, the innermost first."""
    parts = module.split(".") if module else []
    return [".".join(parts[:end]) for end in range(len(parts), -1, -1)]
