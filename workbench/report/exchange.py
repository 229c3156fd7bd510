"""A trace in the formats of other tools."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from workbench.analyze import add_categories, build_ledger, summarize_operators
from workbench.errors import UsageError, unknown_name
from workbench.schema import SPANS, check
from workbench.trace import (
    read_etdump,
    write_csvs,
    write_parquet,
    write_perfetto,
    write_speedscope,
)

#: The stacks of a flame graph, from the outside in.
STACK = ("category", "family", "operator")

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


def export_trace(
    etdump: str | Path,
    to: str,
    *,
    out: str | Path | None = None,
    baseline: str | Path | None = None,
) -> list[Path]:
    """Write an ETDump in another format.

    Parameters
    ----------
    etdump
        The trace.
    to
        ``csv``: the three tables of ``write_csvs``. ``parquet``: the events with their rows of the
        ledger, :data:`workbench.schema.SPANS`. ``perfetto``: a timeline for the Perfetto UI.
        ``speedscope``: a flame graph of the mean time of every category, family and operator.
    out
        The file, or for ``csv`` the folder. If not given, files lie beside the trace and bear its
        name.
    baseline
        A second trace, for ``perfetto``, which draws both side by side, and for ``speedscope``,
        which has a profile of each.

    Returns
    -------
    list of Path
        The files.

    Raises
    ------
    UsageError
        There is no such format, it holds but one trace, or ``out`` is one of the traces.
    TraceError
        A trace is malformed.
    ComparisonError
        A trace without a whole run has no mean times.
    StoreError
        A file cannot be written.
    """
    if to not in _FORMATS:
        raise unknown_name("format", to, _FORMATS, where="--to")
    if baseline is not None and to not in _COMPARING:
        raise UsageError(
            f"{to} holds one trace", where="--baseline", hint=f"it is for {', '.join(_COMPARING)}"
        )
    etdump = Path(etdump)
    paths = {_label(etdump): etdump}
    if baseline is not None:
        baseline = Path(baseline)
        paths = {
            f"baseline: {_label(baseline)}": baseline,
            f"candidate: {_label(etdump)}": etdump,
        }
    write, suffix = _FORMATS[to]
    if to == "csv":
        target = (etdump.parent if out is None else Path(out)) / etdump.name
    else:
        target = etdump.with_suffix(suffix) if out is None else Path(out)
        if target.resolve() in (path.resolve() for path in paths.values()):
            raise UsageError("is a trace to read; write elsewhere", where=target)
    traces = {label: read_etdump(path) for label, path in paths.items()}
    return write(traces, target)


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


def _label(path: Path) -> str:
    """The name of a trace; bytes of it that are no text become question marks."""
    return path.stem.encode(errors="replace").decode()


def _to_csv(traces: dict[str, pd.DataFrame], target: Path) -> list[Path]:
    ((label, events),) = traces.items()
    return write_csvs(events, target, model_id=label)


def _to_parquet(traces: dict[str, pd.DataFrame], target: Path) -> list[Path]:
    ((label, events),) = traces.items()
    return [write_parquet(describe_spans(events), SPANS, target, about={"trace": label})]


def _to_perfetto(traces: dict[str, pd.DataFrame], target: Path) -> list[Path]:
    spans = {label: describe_spans(events) for label, events in traces.items()}
    return [write_perfetto(spans, target)]


def _to_speedscope(traces: dict[str, pd.DataFrame], target: Path) -> list[Path]:
    profiles = {label: _mean_times(events) for label, events in traces.items()}
    return [write_speedscope(profiles, target, stack=STACK, weight="mean_ns")]


def _mean_times(events: pd.DataFrame) -> pd.DataFrame:
    """The operators of a trace in the order in which they run, with ``mean_ns`` per run."""
    ledger = build_ledger(events)
    operators = summarize_operators(ledger).set_index("key")
    operators = operators.loc[ledger["key"].drop_duplicates().astype(object)]
    return operators.assign(mean_ns=1e6 * operators["mean_ms"])


#: The formats: what writes one, and the suffix of its file.
_FORMATS = {
    "csv": (_to_csv, ".csv"),
    "parquet": (_to_parquet, ".parquet"),
    "perfetto": (_to_perfetto, ".perfetto-trace"),
    "speedscope": (_to_speedscope, ".speedscope.json"),
}
_COMPARING = ("perfetto", "speedscope")
