"""Traces as CSV files, as Arm's profiling kit writes them."""

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from workbench.jobs import atomic_write, to_csv
from workbench.pages import TRACING

#: XNNPACK numbers operators of one name: ``Add (ND) #3``.
_ORDINAL = re.compile(r" #\d+\Z")


def write_csvs(
    processes: Iterable[pd.DataFrame],
    etdump: str | Path,
    *,
    model_id: str,
    delegate_backend: str = "delegated",
    rows: int | None = None,
) -> list[Path]:
    """Write the three tables of the traces of some processes beside the first, as the kit does.

    ``all_runs_timeline`` (and ``run0_timeline``) has every event: ``type`` is the name without its
    ordinal; times are on the device's clock; ``pct_total`` is of the run's ``Method::execute``;
    ``node_id`` is the position within the run; ``delegate_backend`` is empty for a span that
    contains others. Spans are nested: only the ledger may be summed. With ``rows``, it has the
    first inferences of each process: as many as fit into so many rows, at least one. ``ops_stats``
    has every operator of all inferences, the longest first. ``count`` and ``total_ms`` are means
    over the ``runs`` that have it, ``pct_total`` is of all ``Method::execute``; the other
    statistics are over single events.

    Names are untrusted: control characters become spaces, and a text that a spreadsheet would
    interpret as a formula gets an apostrophe in front.

    Examples
    --------
    >>> m = wb.open_run(wb.sample_run()).subject
    >>> paths = wb.write_csvs(m.read_processes(), "net.etdump", model_id=m.program.model)
    >>> [path.name for path in paths]
    ['net_all_runs_timeline.csv', 'net_run0_timeline.csv', 'net_ops_stats.csv']
    """
    timelines, operators, runs, total_ms = list[pd.DataFrame](), list[pd.DataFrame](), 0, 0.0
    for events in processes:
        spans = events[events["run"] >= 0]
        run, leaf = spans["run"].to_numpy(), ~spans["event"].isin(spans["parent"]).to_numpy()
        times = spans["duration_ns"][(spans["kind"] == "method").to_numpy()] / 1e6
        spans = spans.assign(
            run=run + runs,
            backend=_name_backends(spans["kind"], delegate_backend).where(leaf, ""),
            ms=spans["duration_ns"] / 1e6,
        )
        ends = np.flatnonzero(np.diff(run, append=-1)) + 1
        fitting = max(1, np.searchsorted(ends, rows or len(run), side="right"))
        timelines.append(_list_spans(spans[: ends[:fitting].max(initial=0)], model_id))
        leaf &= ((spans["kind"] != "method") & (spans["name"] != TRACING)).to_numpy()
        operators.append(spans.loc[leaf, ["name", "backend", "ms", "run"]])
        runs, total_ms = runs + len(ends), total_ms + float(times.sum())
    timeline = pd.concat(timelines, ignore_index=True)
    tables = {
        "all_runs_timeline": timeline,
        "run0_timeline": timeline[timeline["run_index"] == 0],
        "ops_stats": _sum_up_operators(pd.concat(operators), model_id, total_ms),
    }
    paths = []
    for suffix, frame in tables.items():
        path = Path(etdump).with_name(f"{Path(etdump).stem}_{suffix}.csv")
        paths.append(atomic_write(path, to_csv(frame)))
    return paths


def _name_backends(kind: pd.Series, delegate_backend: str) -> pd.Series:
    names = dict.fromkeys(("delegate_operator", "delegate_call"), delegate_backend)
    names |= dict.fromkeys(("kernel", "operator_call"), "portable")
    return kind.astype(object).map(names).fillna("")


def _name_types(names: pd.Series) -> np.ndarray:
    """The names of operators without their numbers."""
    distinct = pd.Categorical(names)
    types = np.array([_ORDINAL.sub("", name) for name in distinct.categories], object)
    return types[distinct.codes]


def _list_spans(spans: pd.DataFrame, model_id: str) -> pd.DataFrame:
    """The columns of a timeline."""
    methods = spans[spans["kind"] == "method"].set_index("run")["ms"]
    run = spans["run"]
    return pd.DataFrame(
        {
            "model_id": model_id,
            "name": spans["name"].astype(object),
            "type": _name_types(spans["name"]),
            "delegate_backend": spans["backend"],
            "start_us": spans["start_ns"] / 1e3,
            "end_us": (spans["start_ns"] + spans["duration_ns"]) / 1e3,
            "duration_ms": spans["ms"],
            "pct_total": (100 * spans["ms"] / run.map(methods)).round(6),
            "node_id": np.arange(len(run)) - np.searchsorted(run, run),
            "run_index": run,
            "block": spans["block_name"].astype(object),
        }
    )


def _sum_up_operators(spans: pd.DataFrame, model_id: str, total_ms: float) -> pd.DataFrame:
    """The operators of all inferences, which took ``total_ms``."""
    spans = spans.assign(type=_name_types(spans["name"]))
    groups = spans.groupby(["type", "backend"], observed=True)
    table = groups["ms"].agg(
        count="count",
        total_ms="sum",
        avg_ms="mean",
        pct_total="sum",
        median_ms="median",
        p90_ms=lambda times: times.quantile(0.9),
        min_ms="min",
        max_ms="max",
    )
    table["pct_total"] = (100 * table["pct_total"] / total_ms).round(6)
    table["runs"] = groups["run"].nunique()
    table[["count", "total_ms"]] = table[["count", "total_ms"]].div(table["runs"], axis=0)
    table = table.reset_index().rename(columns={"backend": "delegate_backend"})
    table.insert(0, "name", table["type"].astype(object))
    table.insert(0, "model_id", model_id)
    return table.sort_values(["total_ms", "name"], ascending=[False, True])
