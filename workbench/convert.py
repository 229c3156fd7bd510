"""Convert a trace to formats of other tools."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.errors import UsageError, WorkbenchError, unknown_name
from workbench.records.layers import Layers
from workbench.store import is_ours

if TYPE_CHECKING:
    import pandas as pd


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
    if to == "csv":
        return _write_csv(Path(etdump), place)
    return _write_timeline(Path(etdump), place, before)


def _write_csv(etdump: Path, out: Path | None) -> list[Path]:
    from workbench.trace.etdump import read_etdump
    from workbench.trace.writers import write_csvs

    name = _name_side(etdump)
    folder = etdump.parent if out is None else out
    return write_csvs([read_etdump(etdump)], folder / etdump.name, model_id=name)


def _write_timeline(etdump: Path, out: Path | None, baseline: Path | None) -> list[Path]:
    """One or two traces as a timeline."""
    from workbench.trace.etdump import read_etdump
    from workbench.trace.writers import write_perfetto

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


def _find_sidecar(etdump: Path) -> Layers | None:
    """What the instructions of a trace's program were in the model, if a run is around it."""
    from workbench.analysis.open import open_run

    etdump = etdump.resolve()
    with contextlib.suppress(WorkbenchError):
        for run in map(open_run, filter(is_ours, etdump.parents[:2])):
            for m in run.measurements:
                if etdump in [run.locate(session.etdump).resolve() for session in m.sessions]:
                    return m.sidecar
    return None


def _tabulate_spans(events: pd.DataFrame, etdump: Path) -> pd.DataFrame:
    """The spans of a trace with label, layer, source line and shapes of their operators."""
    from workbench.analysis.attribution import attribute_layers
    from workbench.analysis.layers import add_layers
    from workbench.analysis.ledger import build_ledger
    from workbench.analysis.operators import label_operators, tabulate_operators, tabulate_spans

    spans = tabulate_spans(events)
    if spans["key"].isna().all():
        return spans
    ledger = build_ledger(events)
    operators = tabulate_operators(ledger)
    if sidecar := _find_sidecar(etdump):
        operators = add_layers(operators, attribute_layers(ledger, sidecar))
    operators = operators.assign(label=label_operators(operators), logged=operators["name"])
    operators = operators.set_index("key").rename(columns={"module": "layer"})
    for column in operators.columns.intersection(["label", "layer", "source", "shapes", "logged"]):
        spans[column] = spans["key"].astype(object).map(operators[column])
    return spans
