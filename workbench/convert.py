"""Convert a trace to formats of other tools."""

import contextlib
from pathlib import Path

import pandas as pd

from workbench.analysis.attribution import attribute_layers
from workbench.analysis.compare_runs import compare
from workbench.analysis.layers import add_layers
from workbench.analysis.ledger import build_ledger
from workbench.analysis.open import open_run
from workbench.analysis.operators import describe_spans, label_operators, summarize_operators
from workbench.errors import UsageError, WorkbenchError, unknown_name
from workbench.explorer.model_explorer import write_node_data
from workbench.records.layers import Layers
from workbench.store import is_ours
from workbench.trace.etdump import read_etdump
from workbench.trace.writers import write_csvs, write_perfetto

#: The formats, and the suffix of each one's file.
_FORMATS = {"model-explorer": "", "csv": ".csv", "perfetto": ".perfetto.json"}
_COMPARING = ("model-explorer", "perfetto")


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
        ``model-explorer``: times and speed-ups as node data for graphs of Arm's adapters for
        ``.pte`` and ``.etrecord``; ``etdump`` may be the folder of a run.
    out
        The file, or for ``csv`` and ``model-explorer`` the folder; by default beside the trace.
    baseline
        A second trace: ``perfetto`` draws both side by side, ``model-explorer`` also writes
        speed-ups.

    Returns
    -------
    list of Path
        The files.

    Raises
    ------
    UsageError
        The format is unknown or takes one trace only, or ``out`` is one of the traces.
    TraceError
        A trace is malformed.
    WorkbenchError
        A trace without a complete inference has no mean times.
    StoreError
        A file cannot be written.

    Examples
    --------
    >>> run = wb.open_run(wb.sample_run())
    >>> etdump = run.path / run.record.sessions[-1].etdump
    >>> [path.name for path in wb.export_trace(etdump, "perfetto", out="trace.json")]
    ['trace.json']
    """
    if to not in _FORMATS:
        raise unknown_name("format", to, _FORMATS, where="--to")
    if baseline is not None and to not in _COMPARING:
        raise UsageError(
            f"{to} holds one trace", where="--baseline", hint=f"it is for {', '.join(_COMPARING)}"
        )
    etdump = Path(etdump)
    if to == "model-explorer":
        run = open_run(etdump)
        shown = run.comparisons[0] if run.comparisons else run.subject
        shown = shown if baseline is None else compare(open_run(baseline).subject, run.subject)
        return write_node_data(shown, run.output / to if out is None else Path(out))
    paths = {"": etdump}
    if baseline is not None:
        paths = {"baseline: ": Path(baseline), "candidate: ": etdump}
    if to == "csv":
        target = (etdump.parent if out is None else Path(out)) / etdump.name
    else:
        target = etdump.with_suffix(_FORMATS[to]) if out is None else Path(out)
        if target.resolve() in (path.resolve() for path in paths.values()):
            raise UsageError("is a trace to read; write elsewhere", where=target)
    names = {  # bytes of a name that are no text become question marks
        side + path.stem.encode(errors="replace").decode(): path for side, path in paths.items()
    }
    traces = {name: read_etdump(path) for name, path in names.items()}
    label, events = next(iter(traces.items()))
    if to == "csv":
        return write_csvs([events], target, model_id=label)
    spans = {name: _describe_spans(traces[name], path) for name, path in names.items()}
    return [write_perfetto(spans, target)]


def _find_sidecar(etdump: Path) -> Layers | None:
    """What the instructions of a trace's program were in the model, if a run is around it."""
    etdump = etdump.resolve()
    with contextlib.suppress(WorkbenchError):
        for run in map(open_run, filter(is_ours, etdump.parents[:2])):
            for m in run.measurements:
                if etdump in [run.locate(session.etdump).resolve() for session in m.sessions]:
                    return m.sidecar
    return None


def _describe_spans(events: pd.DataFrame, etdump: Path) -> pd.DataFrame:
    """The spans of a trace with label, layer, source line and shapes of their operators."""
    spans = describe_spans(events)
    if spans["key"].isna().all():
        return spans
    ledger = build_ledger(events)
    operators = summarize_operators(ledger)
    if sidecar := _find_sidecar(etdump):
        operators = add_layers(operators, attribute_layers(ledger, sidecar))
    operators = operators.assign(label=label_operators(operators), logged=operators["name"])
    operators = operators.set_index("key").rename(columns={"module": "layer"})
    for column in operators.columns.intersection(["label", "layer", "source", "shapes", "logged"]):
        spans[column] = spans["key"].astype(object).map(operators[column])
    return spans
