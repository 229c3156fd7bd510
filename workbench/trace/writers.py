"""Frames as files of other formats: CSV, and timelines for Perfetto."""

import csv
import io
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from workbench.errors import printable
from workbench.frames import EVENTS
from workbench.store import atomic_write
from workbench.trace.etdump import TRACING, are_leaves, map_names, strip_ordinal

# A spreadsheet interprets a cell that begins like this as a formula.
_FORMULA = ("=", "+", "-", "@")


def write_csvs(
    processes: Iterable[pd.DataFrame],
    etdump: Path,
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
    """
    timelines, operators, runs, total_ms = list[pd.DataFrame](), list[pd.DataFrame](), 0, 0.0
    for events in processes:
        spans = EVENTS.check(events)[events["run"] >= 0]
        run, leaf = spans["run"].to_numpy(), are_leaves(spans)
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
        path = etdump.with_name(f"{etdump.stem}_{suffix}.csv")
        paths.append(atomic_write(path, to_csv(frame)))
    return paths


def _name_backends(kind: pd.Series, delegate_backend: str) -> pd.Series:
    names = dict.fromkeys(("delegate_operator", "delegate_call"), delegate_backend)
    names |= dict.fromkeys(("kernel", "operator_call"), "portable")
    return kind.astype(object).map(names).fillna("")


def _name_types(names: pd.Series) -> pd.Categorical:
    return map_names(pd.Categorical(names), strip_ordinal)


def _list_spans(spans: pd.DataFrame, model_id: str) -> pd.DataFrame:
    """The columns of a timeline."""
    methods = spans[spans["kind"] == "method"].set_index("run")["ms"]
    run = spans["run"]
    return pd.DataFrame(
        {
            "model_id": model_id,
            "name": spans["name"].astype(object),
            "type": np.asarray(_name_types(spans["name"]), object),
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


def to_csv(table: pd.DataFrame) -> str:
    """A table as CSV, with texts that are one line each and no formula."""
    columns = []
    for name in table:
        values = table[name].astype(object).where(table[name].notna(), "").tolist()
        if not pd.api.types.is_numeric_dtype(table[name]):
            texts = {value: _defuse(value) for value in set(values) if isinstance(value, str)}
            values = [texts.get(value, value) for value in values]
        columns.append(values)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")  # faster than that of pandas
    writer.writerow(table)
    writer.writerows(zip(*columns, strict=True))
    return text.getvalue()


def _defuse(text: str) -> str:
    plain = printable(re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", " ", text)).lstrip()
    return f"'{plain}" if plain.startswith(_FORMULA) else plain


# --- Perfetto -------------------------------------------------------------------------------------

# Columns that become arguments of a slice: where they are not -1; of a leaf, if the frame has them.
_NUMBERS = ("run", "instruction", "delegate_id")
_TEXTS = ("category", "family", "layer", "source", "shapes", "logged")

# Later than any time of a trace; and no row.
_NEVER, _NOWHERE = 2**63 - 1, -1


def write_perfetto(traces: Mapping[str, pd.DataFrame], path: Path) -> Path:
    """Write spans as JSON in Chrome's trace event format, which the Perfetto UI opens.

    Each trace is a process; the first ``Method::execute`` of all begin at the same time. Perfetto
    nests slices by their times, which may overlap as logged: XNNPACK logs whole microseconds laid
    end to end from the start of the call. Therefore a slice is drawn to end no later than its
    parent, and no later than its next sibling begins. The arguments ``start_ns`` (on the device's
    clock) and ``duration_ns`` hold the logged times where they differ.

    A slice is named by its ``label``, if there is one, and else as logged. Its category is that of
    its operator, or the kind of event if it contains others. A delegate's operators have the
    argument ``start=synthetic``: no clock was read at their start.
    """
    origins = [_origin(EVENTS.check(spans)) for spans in traces.values()]
    lead = max((executed - first for first, executed in origins), default=0)
    events: list[dict[str, Any]] = []
    for number, (name, spans) in enumerate(traces.items(), 1):
        place = {"pid": number, "tid": number}
        for level, title in (("process", name), ("thread", "ETDump")):
            named = {"name": f"{level}_name", "args": {"name": printable(title)}}
            events.append({"ph": "M", **place, **named})
        shift = lead - origins[number - 1][1]
        events += ({"ph": "X", **place, **each} for each in _slices(spans, shift))
    content = {"traceEvents": events, "displayTimeUnit": "ns"}
    return atomic_write(path, json.dumps(content, separators=(",", ":")) + "\n")


def _slices(spans: pd.DataFrame, shift: int) -> Iterator[dict[str, Any]]:
    """Name, category, times in microseconds and arguments of each slice, parents first."""
    leaf = are_leaves(spans)
    texts = {name: spans[name].astype(object).where(leaf) for name in _TEXTS if name in spans}
    kind = spans["kind"].astype(object)
    columns = {
        **{name: column.fillna("") for name, column in texts.items()},
        **{name: spans[name] for name in _NUMBERS},
        "start": kind.map({"delegate_operator": "synthetic"}).fillna(""),
    }
    arguments = {name: column.tolist() for name, column in columns.items()}
    names = spans["name"].astype(object)
    names = spans.get("label", names).where(leaf, names).fillna(names).tolist()
    categories = texts.get("category", kind).replace("", None).fillna(kind).tolist()
    logged = list(zip(spans["start_ns"].tolist(), spans["duration_ns"].tolist(), strict=True))
    for row, (begin, end) in _draw(spans).items():
        values_of = {name: values[row] for name, values in arguments.items()}
        drawn = {"start_ns": begin, "duration_ns": end - begin}
        for (name, time), as_logged in zip(drawn.items(), logged[row], strict=True):
            values_of[name] = as_logged if as_logged != time else -1
        yield {
            "name": printable(names[row]),
            "cat": categories[row],
            "ts": (shift + begin) / 1000,
            "dur": (end - begin) / 1000,
            "args": {
                name: printable(value) if isinstance(value, str) else value
                for name, value in values_of.items()
                if value not in ("", -1)
            },
        }


def _draw(spans: pd.DataFrame) -> dict[int, tuple[int, int]]:
    """Begin and end of every row as drawn: in the order of time, and each within its parent."""
    start = spans["start_ns"].tolist()
    stop = (spans["start_ns"] + spans["duration_ns"]).tolist()
    parent = pd.Index(spans["event"]).get_indexer(spans["parent"]).tolist()
    children = _children(start, parent)
    drawn = {_NOWHERE: (-_NEVER, _NEVER)}
    waiting = children[_NOWHERE]
    while waiting:
        row, limit = waiting.pop()
        earliest, latest = drawn[parent[row]]
        begin = min(max(start[row], earliest), latest)
        drawn[row] = begin, max(min(stop[row], limit, latest), begin)
        waiting += children[row]
    del drawn[_NOWHERE]
    return drawn


def _children(start: list[int], parent: list[int]) -> dict[int, list[tuple[int, int]]]:
    """The children of each row, last first, each with the start of its next sibling."""
    children: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for row in np.lexsort((start, parent))[::-1].tolist():
        siblings = children[parent[row]]
        siblings.append((row, start[siblings[-1][0]] if siblings else _NEVER))
    return children


def _origin(spans: pd.DataFrame) -> tuple[int, int]:
    """When the first span begins, and the first ``Method::execute``, if there is one."""
    if spans.empty:
        return 0, 0
    first = int(spans["start_ns"][~spans["parent"].isin(spans["event"])].min())
    executed = spans["start_ns"][spans["kind"] == "method"]
    return first, max(first, int(executed.min())) if len(executed) else first
