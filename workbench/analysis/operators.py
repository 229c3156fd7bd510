"""The ledger summed up: by operator and by category.

The common mistake with a trace, for comparison: every span added up, though spans nest.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from workbench.analysis.categories import CATEGORIES, add_categories
from workbench.analysis.ledger import build_ledger
from workbench.analysis.statistics import blocks_of, half_width
from workbench.errors import ComparisonError
from workbench.frames import CATEGORIES as CATEGORIES_FRAME
from workbench.frames import EVENTS, OPERATORS, SPANS, check


def total_runs(ledger: pd.DataFrame, by: str) -> pd.DataFrame:
    """Time of every run by key, operator or category.

    Parameters
    ----------
    ledger
        ``schema.LEDGER`` of one experiment and thread count, with the column ``by``; with the
        column ``process`` where it holds several restarts.
    by
        The column to sum over.

    Returns
    -------
    DataFrame
        Milliseconds; one row per ``(process, run)``, one column per value of ``by``, 0 where a
        run lacks it. The rows sum to the E2E time of each run.

    Raises
    ------
    ComparisonError
        The ledger has no run, or mixes several experiments or thread counts.
    """
    if ledger.empty:
        raise ComparisonError("the ledger holds no run", hint="record it with tracing on")
    for column in ("experiment", "threads"):
        if column in ledger and ledger[column].nunique() > 1:
            found = ", ".join(str(value) for value in ledger[column].unique())
            raise ComparisonError(
                f"the ledger mixes several values of {column}: {found}",
                hint=f"select one {column} first",
            )
    process = ledger["process"] if "process" in ledger else pd.Series(0, ledger.index)
    keys = [process.rename("process"), ledger["run"], ledger[by].astype(object)]
    sums = ledger["duration_ns"].groupby(keys, sort=False).sum()
    return sums.unstack(fill_value=0) / 1e6


def summarize_operators(ledger: pd.DataFrame) -> pd.DataFrame:
    """Every operator of one experiment: calls, time and share, the most expensive first.

    Parameters
    ----------
    ledger
        ``schema.LEDGER`` of one experiment and thread count, of one or several restarts.

    Returns
    -------
    DataFrame
        ``schema.OPERATORS``; ``mean_ms`` sums to the mean E2E time, ``share`` to 1.

    Raises
    ------
    ComparisonError
        The ledger has no run, or mixes several experiments or thread counts.
    """
    runs = total_runs(ledger, "key")
    table = first_rows(ledger).assign(
        calls=ledger["key"].astype(object).value_counts() / len(runs),
        mean_ms=runs.mean(),
        std_ms=runs.std() if len(runs) > 1 else np.nan,
        share=_shares(runs.mean()),
    )
    table = table.sort_values("mean_ms", ascending=False, kind="stable").reset_index()
    return check(table[OPERATORS.names], OPERATORS)


def summarize_categories(ledger: pd.DataFrame) -> pd.DataFrame:
    """The five categories of one experiment, in their usual order; 0 ms where one is absent.

    Parameters
    ----------
    ledger
        ``schema.LEDGER`` of one experiment and thread count, of one or several restarts.

    Returns
    -------
    DataFrame
        ``schema.CATEGORIES``, and ``std_ms`` over the runs, ``low_ms`` and ``high_ms`` of
        Student's 95 % interval over the restarts (over the runs where there is only one);
        ``mean_ms`` sums to the mean E2E time, ``share`` to 1.

    Raises
    ------
    ComparisonError
        The ledger has no run, or mixes several experiments or thread counts.
    """
    ledger = add_categories(ledger)
    runs = total_runs(ledger, "category").reindex(columns=list(CATEGORIES), fill_value=0.0)
    distinct = ledger.drop_duplicates("key")["category"].value_counts()
    mean, half = runs.mean(), half_width(blocks_of(runs).to_numpy())
    table = pd.DataFrame(
        {
            "mean_ms": mean,
            "share": _shares(mean),
            "operators": distinct.reindex(CATEGORIES, fill_value=0),
            "std_ms": runs.std() if len(runs) > 1 else np.nan,
            "low_ms": (mean - half).clip(lower=0),
            "high_ms": mean + half,
        },
        index=pd.Index(CATEGORIES, name="category"),
    )
    return check(table.reset_index(), CATEGORIES_FRAME)


def first_rows(ledger: pd.DataFrame) -> pd.DataFrame:
    """What every operator is: name, operator, kind, category, family and rule by ``key``."""
    first = ledger.drop_duplicates("key")[["key", "name", "operator", "kind"]].astype(object)
    return add_categories(first).set_index("key")


def _shares(mean: pd.Series) -> pd.Series:
    total = mean.sum()
    return mean / total if total else mean * np.nan


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


# Of the ledger's columns, those that an event does not have, by their name among the spans.
_LEDGER_COLUMNS = {
    "ledger_kind": "kind",
    "operator": "operator",
    "key": "key",
    "own_ns": "duration_ns",
    "category": "category",
    "family": "family",
    "rule": "rule",
}


def describe_spans(events: pd.DataFrame) -> pd.DataFrame:
    """The events of a trace, each with what its row of the ledger says.

    Parameters
    ----------
    events
        The frame that ``read_etdump`` gives.

    Returns
    -------
    pandas.DataFrame
        :data:`workbench.schema.SPANS`. Events outside any whole run have no row in the ledger, and
        nothing in its columns.
    """
    ledger = add_categories(build_ledger(events))
    # The ledger has a row for every event of its runs, in their order.
    rows = np.flatnonzero(events["run"].isin(ledger["run"].unique()))
    described = ledger[list(_LEDGER_COLUMNS.values())].set_axis(list(_LEDGER_COLUMNS), axis=1)
    kinds = {name: "Int64" if name == "own_ns" else "category" for name in described}
    described = described.astype(kinds).set_axis(rows).reindex(range(len(events)))
    return check(pd.concat([events, described.set_axis(events.index)], axis=1), SPANS)
