"""How the bottleneck moves from one experiment to another."""

import numpy as np
import pandas as pd

from workbench.analysis.categories import add_categories
from workbench.analysis.operators import total_runs
from workbench.analysis.statistics import half_width
from workbench.frames import SHIFT, check


def bottleneck_shift(baseline: pd.DataFrame, candidate: pd.DataFrame) -> pd.DataFrame:
    """Time and share of every category before and after, and its part in the E2E change.

    Parameters
    ----------
    baseline, candidate
        ``frames.CATEGORIES``. A category that one of them lacks took no time there.

    Returns
    -------
    DataFrame
        ``frames.SHIFT``, in the order of the baseline; ``delta_ms`` sums to the E2E change and
        ``contribution`` to 1 (NaN if E2E did not change at all).

    Examples
    --------
    >>> published = wb.load_case_study("squeezesam").categories
    >>> shift = wb.bottleneck_shift(published["FP16, SME2 off"], published["FP16, SME2 on"])
    >>> shift.loc[shift["rank_before"] == 1, "category"].item()
    'Convolution'
    """
    before, after = (side.set_index("category")["mean_ms"] for side in (baseline, candidate))
    names = before.index.union(after.index, sort=False)
    before, after = (side.reindex(names, fill_value=0.0) for side in (before, after))
    table = pd.DataFrame({"baseline_ms": before, "candidate_ms": after})
    table["delta_ms"] = after - before
    change = table["delta_ms"].sum()
    table["contribution"] = table["delta_ms"] / change if change else np.nan
    for when, side in (("before", before), ("after", after)):
        table[f"share_{when}"] = side / side.sum()
        table[f"rank_{when}"] = side.rank(ascending=False, method="first").astype(int)
    return check(table.rename_axis("category").reset_index()[SHIFT.names], SHIFT)


def bound_shift(
    shift: pd.DataFrame, baseline: pd.DataFrame, candidate: pd.DataFrame
) -> pd.DataFrame:
    """The shift with ``low_ms`` and ``high_ms``: Student's 95 % interval of every ``delta_ms``.

    From the ledgers of the two sides. The interval is over the restarts that both have; NaN if
    there are fewer than two.
    """
    before, after = (
        total_runs(add_categories(side), "category").groupby(level="process").mean()
        for side in (baseline, candidate)
    )
    shared = before.index.intersection(after.index)
    change = after.loc[shared].sub(before.loc[shared], fill_value=0.0)
    half = half_width(change.reindex(columns=shift["category"], fill_value=0.0).to_numpy())
    bounded, place = shift.copy(), shift.columns.get_loc("delta_ms") + 1
    bounded.insert(place, "low_ms", shift["delta_ms"] - half)
    bounded.insert(place + 1, "high_ms", shift["delta_ms"] + half)
    return bounded
