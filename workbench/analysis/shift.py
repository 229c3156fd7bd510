"""How the bottleneck moves between the sides of a comparison."""

import numpy as np
import pandas as pd

from workbench.analysis.operators import add_categories, total_runs
from workbench.analysis.speedup import MARGIN
from workbench.analysis.statistics import half_width
from workbench.frames import SHIFT


def bottleneck_shift(
    baseline: pd.DataFrame,
    candidate: pd.DataFrame,
    ledgers: tuple[pd.DataFrame, pd.DataFrame] | None = None,
) -> pd.DataFrame:
    """Time and share of every category before and after, and its part in the E2E change.

    ``frames.SHIFT`` from ``frames.CATEGORIES`` of both sides, in the order of the baseline; a
    category that one of them lacks took no time there. From the ``ledgers`` of both, ``low_ms`` and
    ``high_ms`` are Student's 95 % interval of every ``delta_ms`` over the restarts that both have;
    NaN if there are fewer than two. Parts of a change that may be noise are unknown: one of at most
    2 %, or whose own interval holds 0.
    """
    before, after = (side.set_index("category")["mean_ms"] for side in (baseline, candidate))
    names = before.index.union(after.index, sort=False)
    before, after = (side.reindex(names, fill_value=0.0) for side in (before, after))
    table = pd.DataFrame({"baseline_ms": before, "candidate_ms": after})
    table["delta_ms"] = after - before
    change = table["delta_ms"].sum()
    is_change = abs(change) > MARGIN * before.sum()
    table["contribution"] = table["delta_ms"] / change if is_change else np.nan
    for when, side in (("before", before), ("after", after)):
        table[f"share_{when}"] = side / side.sum()
        table[f"rank_{when}"] = side.rank(ascending=False, method="first").astype(int)
    table = SHIFT.check(table.rename_axis("category").reset_index()[SHIFT.names])
    if ledgers is None:
        return table
    before, after = (
        total_runs(add_categories(side), "category").groupby(level="process").mean()
        for side in ledgers
    )
    shared = before.index.intersection(after.index)
    changes = after.loc[shared].sub(before.loc[shared], fill_value=0.0)
    changes = changes.reindex(columns=names, fill_value=0.0)
    half = half_width(changes.to_numpy())
    if abs(change) <= half_width(changes.sum(axis=1).to_numpy()):
        table["contribution"] = np.nan
    place = table.columns.get_loc("delta_ms") + 1
    table.insert(place, "low_ms", table["delta_ms"] - half)
    table.insert(place + 1, "high_ms", table["delta_ms"] + half)
    return table
