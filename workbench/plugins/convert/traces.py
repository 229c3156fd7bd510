"""Convert a trace to formats of other tools."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.api import UsageError
from workbench.jobs import unknown_name

if TYPE_CHECKING:
    import pandas as pd

    from workbench import Measurement


#: The formats, and what opens their files.
VIEWERS = {"csv": "pandas", "perfetto": "https://ui.perfetto.dev"}


def export_trace(
    etdump: str | Path,
    to: str,
    *,
    out: str | Path | None = None,
    baseline: str | Path | None = None,
) -> list[Path]:
    """Convert an ETDump to another format.

    Parameters
    ----------
    etdump
        The trace.
    to
        ``csv``: the three tables of ``write_csvs``. ``perfetto``: a timeline for the Perfetto UI,
        which also opens in Chrome's trace viewer; if the trace is one of a run, it has the layer,
        source line and shapes of each operator.
    out
        The file, or for ``csv`` the folder; by default beside the trace.
    baseline
        A second trace: ``perfetto`` draws both side by side.

    Raises
    ------
    UsageError
        The format is unknown or takes one trace only, or ``out`` is one of the traces.
    TraceError, StoreError
        A trace is malformed, or a file cannot be written.

    Examples
    --------
    >>> etdump = next(wb.sample_run().rglob("*.etdump"))
    >>> [path.name for path in wb.export_trace(etdump, "perfetto", out="trace.json")]
    ['trace.json']
    """
    if to not in VIEWERS:
        raise unknown_name("format", to, VIEWERS, where="--to")
    if baseline is not None and to == "csv":
        raise UsageError("csv holds one trace", where="--baseline", hint="it is for perfetto")
    place, before = (None if path is None else Path(path) for path in (out, baseline))
    if to == "perfetto":
        return _write_timeline(Path(etdump), place, before)
    from workbench import read_etdump
    from workbench.plugins.convert.csv_tables import write_csvs

    folder, trace = place or Path(etdump).parent, Path(etdump)
    return write_csvs([read_etdump(trace)], folder / trace.name, model_id=_name_side(trace))


def _write_timeline(etdump: Path, out: Path | None, baseline: Path | None) -> list[Path]:
    """One or two traces as a timeline."""
    from workbench import read_etdump
    from workbench.plugins.convert.perfetto import write_perfetto

    paths = {_name_side(etdump): etdump}
    if baseline is not None:
        paths = {
            f"baseline: {_name_side(baseline)}": baseline,
            f"candidate: {_name_side(etdump)}": etdump,
        }
    target = out or etdump.with_suffix(".perfetto.json")
    if target.resolve() in (path.resolve() for path in paths.values()):
        raise UsageError("is a trace to read; write elsewhere", where=target)
    traces = {name: read_etdump(path) for name, path in paths.items()}
    spans = {name: _tabulate_spans(traces[name], path) for name, path in paths.items()}
    return [write_perfetto(spans, target)]


def _name_side(path: Path) -> str:
    """The name of a trace; bytes that are no text become question marks."""
    return path.stem.encode(errors="replace").decode()


def _tabulate_spans(events: pd.DataFrame, etdump: Path) -> pd.DataFrame:
    """The spans of a trace with label, layer, source line and shapes of their operators."""
    from workbench.pages import label_operators, tabulate_spans

    spans = tabulate_spans(events)
    operators = spans[spans["key"].notna()].drop_duplicates("key")[["key", "name"]].astype(object)
    if operators.empty:
        return spans
    if m := _find_measurement(etdump):
        places = m.operators[m.operators.columns.difference(["name"])]
        operators = operators.merge(places, on="key", how="left")
    operators = operators.assign(label=label_operators(operators), logged=operators["name"])
    operators = operators.set_index("key").rename(columns={"module": "layer"})
    for column in operators.columns.intersection(["label", "layer", "source", "shapes", "logged"]):
        spans[column] = spans["key"].astype(object).map(operators[column])
    return spans


def _find_measurement(etdump: Path) -> Measurement | None:
    """The measurement that a trace is one of, if a run is around it."""
    from workbench import WorkbenchError, open_run

    etdump = etdump.resolve()
    for folder in etdump.parents[:2]:
        if not (folder / "manifest.json").is_file():
            continue
        with contextlib.suppress(WorkbenchError):
            run = open_run(folder)
            for m in run.measurements:
                if etdump in [run.locate(session.etdump).resolve() for session in m.sessions]:
                    return m
    return None
