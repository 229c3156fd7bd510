"""Times and speed-ups as node data for Model Explorer, on the graphs of Arm's adapters."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from workbench import Comparison, Measurement, compare, open_run
from workbench.api import EMULATED, Format, StoreError, UsageError, atomic_write
from workbench.jobs import find_method

#: Light enough for black text: little and most time; the verdicts of a speed-up.
_LITTLE, _MOST = "#f3eefa", "#b48ae0"
_VERDICTS, _NEUTRAL = {"faster": "#7ea2ff", "slower": "#ff9a57"}, "#e4e7eb"

#: Between the id of a graph and that of its node.
_OF = "\n"


def write_node_data(source: Measurement | Comparison, folder: Path) -> list[Path]:
    """Write node data of a measurement or of a comparison; returns the files.

    For the graph of the ``.pte``, and that of the ``.etrecord`` (`ExportOptions.etrecord` writes
    one), there is a file with the mean time of each side in ms, and one with the speed-up and its
    verdict. A fused operator has one node, a delegate the time of its call and operators. Time
    without a node, such as that of layout conversions in an ETRecord, is left out.

    Raises
    ------
    UsageError
        A side was emulated.
    StoreError
        The program is unknown, so that no operator has a node.
    """
    ab = source if isinstance(source, Comparison) else None
    sides = [source] if isinstance(source, Measurement) else [source.baseline, source.candidate]
    if any(m.emulated for m in sides):
        raise UsageError(EMULATED, where=sides[-1].run.path)
    alike = len({(m.program.stem, m.name, m.threads) for m in sides}) < len(sides)
    roles = dict(zip(sides, ("_baseline", "_candidate") if alike else ("", ""), strict=False))
    files = []
    for kind in ("pte", "etrecord"):
        nodes_of = {m: maps for m in sides if any(maps := _find_nodes(m, kind))}
        for m, maps in nodes_of.items():
            rows = [row for nodes in maps for row in _add_up(m.operators, nodes)]
            target = folder / f"{m.program.stem}.{kind}.{m.name}_t{m.threads}{roles[m]}.json"
            label = f"{m.label}{roles[m].replace('_', ', ')}, mean ms"
            files.append(_write(target, label, rows, gradient=True))
        if ab and ab.candidate in nodes_of:
            rows = [row for nodes in nodes_of[ab.candidate] for row in _compare(ab, nodes)]
            target = folder / f"{ab.candidate.program.stem}.{kind}.speedup.json"
            files.append(_write(target, "speed-up", rows))
    return files


def _add_up(table: pd.DataFrame, nodes: dict[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    for node, ms in table.groupby(table["key"].map(nodes))["mean_ms"].sum().items():
        yield str(node), {"value": float(ms)}


def _compare(ab: Comparison, nodes: dict[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    for node, row in ab.compare_groups(nodes).iterrows():
        if pd.notna(row["speedup"]):
            color = _VERDICTS.get(row["outcome"], _NEUTRAL)
            yield str(node), {"value": float(row["speedup"]), "bgColor": color}


def _find_nodes(m: Measurement, kind: str) -> list[dict[str, str]]:
    """The nodes of the operators by key; in a program, those of the calls and those inside."""
    rows = m.ledger.drop_duplicates("key").set_index("key")
    first = m.operators[~m.operators["key"].str.match(r"m\d+/")].set_index("key")
    first = first.assign(instruction=rows["instruction"])
    method = find_method(first, m.sidecar) if m.sidecar else None
    if method is None:
        raise StoreError("its program is unknown", where=m.run.path, hint="put the .pte beside it")
    if kind == "etrecord":
        placed = first[first["nodes"].notna() & (first["role"] != "overhead")]
        names = placed["nodes"].str.split(", ").str[0]
        return [{str(key): f"{method.name}{_OF}{name}_" for key, name in names.items()}]
    file = Path(m.program.pte).name or f"{m.program.stem}.pte"
    calls = first.loc[first["instruction"] >= 0, "instruction"]
    outer = {str(key): f"{method.name}{_OF}{method.name}_0_{n}" for key, n in calls.items()}
    inner = {}
    for key, done in first["xnodes"].dropna().items():
        n = calls[key]
        flops = {
            int(number): method.instructions[n].xnodes[int(number)].flops
            for number in done.split(",")
        }
        inner[str(key)] = f"{file}::{method.name}_0_{n}{_OF}{max(flops, key=lambda x: flops[x])}"
    return [outer, inner]


def _write(
    path: Path, name: str, rows: list[tuple[str, dict[str, Any]]], *, gradient: bool = False
) -> Path:
    stops = [{"stop": 0, "bgColor": _LITTLE}, {"stop": 1, "bgColor": _MOST}]
    graphs: dict[str, dict[str, Any]] = {}
    for place, shown in rows:
        graph, _, node = place.rpartition(_OF)
        data = graphs.setdefault(graph, {"name": name, "results": {}})
        data["results"][node] = shown
        if gradient:
            data |= {"gradient": stops}
    return atomic_write(path, json.dumps(graphs, indent=1, allow_nan=False) + "\n")


def convert(path: Path, out: Path | None, baseline: Path | None) -> list[Path]:
    """Write the node data of a run, of a trace, or of a trace against another one."""
    run = open_run(path)
    noun = run.comparisons[0] if run.comparisons else run.subject
    if baseline is not None:
        noun = compare(open_run(baseline).subject, run.subject)
    return write_node_data(noun, out or run.output / "model-explorer")


NODE_DATA = Format(convert, "Model Explorer, as node data of the program's graph", compares=True)
