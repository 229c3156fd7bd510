"""Operators: the label of each, and the ledger summed by operator and by category."""

import re

import numpy as np
import pandas as pd

from workbench.analysis.categories import CATEGORIES, Scheme, add_categories
from workbench.analysis.ledger import build_ledger
from workbench.analysis.statistics import blocks_of, half_width
from workbench.errors import ComparisonError
from workbench.frames import CATEGORIES as CATEGORIES_FRAME
from workbench.frames import EVENTS, OPERATORS, SPANS, check

_TYPES = re.compile(r" \([^)]*\)")


def label_operator(name: str, module: str | None = None) -> str:
    """The label of an operator: its layer, if any, and its logged name without layout and types."""
    short = _TYPES.sub("", name, count=1)
    return f"{module} · {short}" if isinstance(module, str) and module else short


def label_operators(operators: pd.DataFrame) -> pd.Series:
    """`label_operator` of every row, from the columns ``name`` and, if there, ``module``.

    Where several have one label, the key's instruction follows.
    """
    names = operators["name"].astype(object)
    modules = operators.get("module", pd.Series(None, operators.index, dtype=object))
    found = [label_operator(*pair) for pair in zip(names, modules, strict=True)]
    labels = pd.Series(found, operators.index, dtype=object, name="label")
    if "key" in operators:
        place = operators["key"].astype(object).str.extract(r"^(.*?)/[^/]*/\d+$")[0].fillna("")
        labels = labels.where(
            ~labels.duplicated(keep=False), labels + " (instruction " + place + ")"
        )
    return labels


def total_runs(ledger: pd.DataFrame, by: str) -> pd.DataFrame:
    """Milliseconds of every ``(process, run)`` (rows) by the values of a column (columns).

    The rows sum to the E2E time of each run; 0 where a run lacks a value.
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
    """Every operator of one measurement as ``frames.OPERATORS``, the most expensive first.

    ``mean_ms`` sums to the mean E2E time, ``share`` to 1.
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
    """The five categories of one measurement, in their usual order; 0 ms if one is absent.

    Parameters
    ----------
    ledger
        ``frames.LEDGER`` of one experiment and thread count, of one or several restarts.

    Returns
    -------
    DataFrame
        ``frames.CATEGORIES``, plus ``std_ms`` over the runs, ``low_ms`` and ``high_ms`` of
        Student's 95 % interval over the restarts (over the runs if there is only one);
        ``mean_ms`` sums to the mean E2E time, ``share`` to 1.

    Raises
    ------
    ComparisonError
        The ledger has no run, or mixes several experiments or thread counts.

    Examples
    --------
    >>> import workbench as wb
    >>> ledger = wb.build_ledger(wb.read_etdump(next(wb.sample_run().rglob("*.etdump"))))
    >>> wb.summarize_categories(ledger)["category"].tolist()
    ['Convolution', 'GEMM', 'Data Movement', 'Elementwise', 'Other']
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
    """Name, operator, kind, category, family and rule of every operator, by ``key``."""
    first = add_categories(ledger.drop_duplicates("key"))
    columns = ["key", "name", "operator", "kind", "category", "family", "rule"]
    return first[columns].astype(dict.fromkeys(columns[:4], object)).set_index("key")


def _shares(mean: pd.Series) -> pd.Series:
    total = mean.sum()
    return mean / total if total else mean * np.nan


def add_up_spans(events: pd.DataFrame, ledger: pd.DataFrame) -> pd.DataFrame:
    """Categories by whole span durations: the common mistake with a trace, for comparison.

    A call lasts as long as all that it calls, so this counts the same time once per level: the
    total exceeds the latency, and the shares are meaningless.

    Parameters
    ----------
    events
        ``frames.EVENTS`` of one trace.
    ledger
        Its ledger, which has a row for every event of a whole run.

    Returns
    -------
    DataFrame
        ``frames.CATEGORIES``.

    Examples
    --------
    >>> import workbench as wb
    >>> events = wb.read_etdump(next(wb.sample_run().rglob("*.etdump")))
    >>> ledger = wb.build_ledger(events)
    >>> spans, true = wb.add_up_spans(events, ledger), wb.summarize_categories(ledger)
    >>> bool(spans["mean_ms"].sum() > 2 * true["mean_ms"].sum())
    True
    """
    inside = check(events, EVENTS)["run"].isin(ledger["run"].unique())
    durations = events.loc[inside, "duration_ns"].to_numpy()
    return summarize_categories(ledger.assign(duration_ns=durations))


_IN_SPANS = ["ledger_kind", "operator", "key", "own_ns", "category", "family", "rule"]


def describe_spans(events: pd.DataFrame, scheme: Scheme | None = None) -> pd.DataFrame:
    """The events of a trace with the columns of their ledger rows: ``frames.SPANS``.

    These columns are empty for events outside any whole run.
    """
    ledger = add_categories(build_ledger(events), scheme)
    # The ledger has a row for every event of its runs, in their order.
    rows = np.flatnonzero(events["run"].isin(ledger["run"].unique()))
    described = ledger.rename(columns={"kind": "ledger_kind", "duration_ns": "own_ns"})[_IN_SPANS]
    kinds = {name: "Int64" if name == "own_ns" else "category" for name in described}
    described = described.astype(kinds).set_axis(rows).reindex(range(len(events)))
    return check(pd.concat([events, described.set_axis(events.index)], axis=1), SPANS)
