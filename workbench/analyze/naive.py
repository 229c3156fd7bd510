"""The common mistake with a trace, for comparison: every span added up, though spans nest."""

from __future__ import annotations

import pandas as pd

from workbench.analyze.operators import summarize_categories
from workbench.schema import EVENTS, check


def add_up_spans(events: pd.DataFrame, ledger: pd.DataFrame) -> pd.DataFrame:
    """Categories by the whole duration of each span, as adding up the rows of a trace gives them.

    A call lasts as long as all that it calls, so this counts the same time once per level: the
    total is not the latency, and shares of it are shares of nothing.

    Parameters
    ----------
    events
        :data:`workbench.schema.EVENTS` of one trace.
    ledger
        Its ledger, which has a row for every event of a whole run.

    Returns
    -------
    DataFrame
        ``schema.CATEGORIES``.
    """
    inside = check(events, EVENTS)["run"].isin(ledger["run"].unique())
    durations = events.loc[inside, "duration_ns"].to_numpy()
    return summarize_categories(ledger.assign(duration_ns=durations))
