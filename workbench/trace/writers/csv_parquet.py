"""Frames as CSV files, those of Arm's profiling kit, and as Parquet."""

import io
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from workbench.errors import SetupError, printable
from workbench.frames import EVENTS, Frame, check
from workbench.store import atomic_write
from workbench.trace.nesting import are_leaves, map_names, strip_ordinal

TIMELINE = (
    *("model_id", "name", "type", "delegate_backend", "start_us", "end_us", "duration_ms"),
    *("pct_total", "node_id", "run_index", "block"),
)
STATISTICS = (
    *("model_id", "name", "type", "delegate_backend", "count", "total_ms", "avg_ms", "pct_total"),
    *("median_ms", "p90_ms", "min_ms", "max_ms", "runs"),
)

# A spreadsheet interprets a cell that begins like this as a formula.
_FORMULA = ("=", "+", "-", "@")


def write_csvs(
    events: pd.DataFrame,
    etdump: Path,
    *,
    model_id: str | None = None,
    delegate_backend: str = "delegated",
) -> list[Path]:
    """Write the three tables of a trace beside it; returns their paths.

    Names are untrusted: control characters become spaces, and a text that a spreadsheet would
    interpret as a formula gets an apostrophe in front.
    """
    if model_id is None:
        model_id = etdump.stem.encode(errors="replace").decode()
    spans = timeline(events, delegate_backend)
    tables = {
        "all_runs_timeline": (spans, TIMELINE),
        "run0_timeline": (spans[spans["run_index"] == 0], TIMELINE),
        "ops_stats": (operator_statistics(events, delegate_backend), STATISTICS),
    }
    paths = []
    for suffix, (table, columns) in tables.items():
        text = defuse(table.assign(model_id=model_id)[list(columns)])
        path = etdump.with_name(f"{etdump.stem}_{suffix}.csv")
        paths.append(atomic_write(path, text.to_csv(index=False, lineterminator="\n")))
    return paths


def timeline(events: pd.DataFrame, delegate_backend: str = "delegated") -> pd.DataFrame:
    """One row per event of every run, with the columns of the kit but for ``model_id``.

    ``type`` is the name without its ordinal; times are on the device's clock; ``pct_total`` is of
    the run's ``Method::execute``; ``node_id`` is the position within the run; ``delegate_backend``
    is empty for a span that contains others. Spans are nested: only the ledger may be summed.
    """
    events = _runs(events)
    run, duration = events["run"].to_numpy(), events["duration_ns"].to_numpy()
    start = events["start_ns"].to_numpy()
    return pd.DataFrame(
        {
            "name": events["name"].to_numpy(),
            "type": _types(events["name"]),
            "delegate_backend": _backends(events, delegate_backend),
            "start_us": start / 1e3,
            "end_us": (start + duration) / 1e3,
            "duration_ms": duration / 1e6,
            "pct_total": _percent(duration, _latencies(events)[run]),
            "node_id": np.arange(len(run)) - np.searchsorted(run, run),
            "run_index": run,
            "block": events["block_name"].to_numpy(),
        }
    )


def operator_statistics(events: pd.DataFrame, delegate_backend: str = "delegated") -> pd.DataFrame:
    """One row per operator and backend, longest first.

    Only events that contain no others are counted. ``count`` and ``total_ms`` are per run, as in
    the kit: means over the ``runs`` that have the operator. ``pct_total`` is of all
    ``Method::execute``; the other statistics are over single events.
    """
    events = _runs(events)
    leaves = events[are_leaves(events) & (events["kind"] != "method").to_numpy()]
    groups = pd.DataFrame(
        {
            "name": _types(leaves["name"]),
            "delegate_backend": _backends(leaves, delegate_backend),
            "run": leaves["run"].to_numpy(),
            "duration_ms": leaves["duration_ns"].to_numpy() / 1e6,
        }
    ).groupby(["name", "delegate_backend"], observed=True)
    table = groups["duration_ms"].agg(
        count="count",
        total_ms="sum",
        avg_ms="mean",
        median_ms="median",
        p90_ms=lambda times: times.quantile(0.9),
        min_ms="min",
        max_ms="max",
    )
    table["runs"] = groups["run"].nunique()
    table["pct_total"] = _percent(table["total_ms"], _latencies(events).sum() / 1e6)
    table[["count", "total_ms"]] = table[["count", "total_ms"]].div(table["runs"], axis=0)
    table = table.reset_index().assign(type=lambda t: t["name"])
    return table.sort_values(["total_ms", "name"], ascending=[False, True], ignore_index=True)


def _runs(events: pd.DataFrame) -> pd.DataFrame:
    return check(events, EVENTS)[events["run"] >= 0]


def _latencies(events: pd.DataFrame) -> np.ndarray:
    """Nanoseconds of each run's ``Method::execute``, by the run's index."""
    methods = events[events["kind"] == "method"]
    latencies = np.zeros(events["run"].max() + 1 if len(events) else 0, np.int64)
    latencies[methods["run"]] = methods["duration_ns"]
    return latencies


def _percent(part: np.ndarray | pd.Series, whole: np.ndarray | float) -> np.ndarray | pd.Series:
    """``part`` in percent of ``whole``, to six decimals; no number where there is no whole."""
    return np.round(100 * part / np.where(whole > 0, whole, np.nan), 6)


def _types(names: pd.Series) -> pd.Categorical:
    """The names without their ordinals."""
    return map_names(pd.Categorical(names), strip_ordinal)


def _backends(events: pd.DataFrame, delegate_backend: str) -> np.ndarray:
    backend_of = dict.fromkeys(("delegate_operator", "delegate_call"), delegate_backend)
    backend_of |= dict.fromkeys(("kernel", "operator_call"), "portable")
    backends = np.array([backend_of.get(kind, "") for kind in events["kind"]], object)
    return np.where(are_leaves(events), backends, "")


def defuse(table: pd.DataFrame) -> pd.DataFrame:
    """A table for CSV, with texts that are one line each and no formula."""
    table = table.copy()
    for column in table.select_dtypes(exclude=["number", "bool"]).columns:
        values = table[column].astype(object)
        cleaned = {
            text: printable(re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", " ", text)).lstrip()
            for text in values.unique()
            if isinstance(text, str)
        }
        plain = {t: f"'{c}" if c.startswith(_FORMULA) else c for t, c in cleaned.items()}
        table[column] = values.map(lambda value, known=plain: known.get(value, value))
    return table


def write_parquet(
    frame: pd.DataFrame, schema: Frame, path: Path, *, about: Mapping[str, str] | None = None
) -> Path:
    """Write a frame without its index so that ``pandas.read_parquet`` restores it.

    ``pyarrow.parquet.read_schema(path)`` shows unit and meaning of each column, the name of the
    schema, and what else is known ``about`` the frame.
    """
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise SetupError("Parquet needs pyarrow", install="executorch-workbench[parquet]") from None

    table = pa.Table.from_pandas(check(frame, schema), preserve_index=False)
    described = {c.name: {"unit": c.unit, "meaning": c.meaning} for c in schema.columns}
    fields = [field.with_metadata(described.get(field.name, {})) for field in table.schema]
    metadata = {**table.schema.metadata, "frame": schema.name, **(about or {})}
    content = io.BytesIO()
    parquet.write_table(table.cast(pa.schema(fields, metadata)), content)
    return atomic_write(path, content.getvalue())
