"""What the explorer shows of a run, as one compact document; all figures come from its frames."""

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from workbench import Comparison, Measurement, Run, combine_runs
from workbench.jobs import SCHEMA_VERSION
from workbench.pages import (
    Ink,
    label_operators,
    outline_finding,
    outline_gain,
    tabulate_spans,
)

_INFERENCES, _LEAST, _SPANS = 20, 3, 120_000  #: Inferences drawn of a side; spans drawn in all.
_DEEPEST = 4  #: Deeper spans are not drawn.
_TENSORS = 12  #: Activations listed of a program.
_TEXTS = ("name", "category", "family", "kind", "dtype", "module", "module_class", "source", "also",
          "shapes", "role", "confidence", "metadata", "depends")  # fmt: skip
_COSTS = ("calls", "flops", "bytes")
_ROOFLINE = ("intensity", "gflops", "gbps", "roof_gflops", "roof_gbps", "roof_share")
_FUNCTIONS, _SAMPLES = ("function", "code"), ("share", "samples")
_JUDGED = ("baseline_ms", "candidate_ms", "speedup", "low", "high", "detectable")

Json = dict[str, Any]
Pair = tuple[int, int]  #: What names a tensor, or an operator, of a program's graph.
Numbers = tuple[float | None, ...]  #: A column of numbers; null where there is none.


def explorer_data(source: Run | Comparison) -> Json:
    """All that the explorer shows of a run, or of one comparison.

    Operators are listed once per program and method, in the order in which they first ran; columns
    of measurements and comparisons follow this order, with null where an operator did not run. A
    column of texts has its distinct ``values`` and the ``codes`` of its rows, -1 for none;
    ``edges`` are pairs of operators: the second reads what the first made. A ``shape`` of
    a trace has the operators of its spans, -1 for none, and their depths, parents first; its
    inferences have times from start to start (``gaps``) and durations, in 0.1 us; all other times
    are in ms. ``partners`` of another program are the positions of the baseline's operators.
    """
    run = source.run if isinstance(source, Comparison) else source
    comparisons, measurements = list_comparisons(source), list_measurements(source)
    programs: dict[tuple[Path, str, str], list[Measurement]] = {}
    for m in measurements:
        programs.setdefault(_program_of(m), []).append(m)
    tables = {program: _list_operators(members) for program, members in programs.items()}
    spans = sum(len(tables[_program_of(m)]) for m in measurements)
    inferences = min(_INFERENCES, max(_LEAST, _SPANS // max(spans, 1)))
    numbers = {program: number for number, program in enumerate(programs)}
    several = len({m.run.path for m in measurements}) > 1
    labels = {m: m.label for m in measurements}
    if several:
        labels = {m: name for name, m in combine_runs(measurements).measurements.items()}
    # Those of every ISA level would take a second.
    subject = comparisons[0].candidate if comparisons else run.subject
    described = [
        _measurement(m, numbers[_program_of(m)], tables[_program_of(m)], inferences,
                     label=labels[m], with_findings=m.experiment.isa == subject.experiment.isa)
        for m in measurements
    ]  # fmt: skip
    compared = [_comparison(ab, measurements, tables) for ab in comparisons]
    return {
        "head": _describe(run),
        "colors": dict(Ink.CATEGORIES),
        "programs": tuple(
            _program(members, tables[program]) for program, members in programs.items()
        ),
        "measurements": tuple(described),
        "comparisons": tuple(compared),
        "schema_version": SCHEMA_VERSION,
    }


def list_comparisons(source: Run | Comparison) -> Sequence[Comparison]:
    """The comparisons of a run, or one alone."""
    return (source,) if isinstance(source, Comparison) else source.comparisons


def list_measurements(source: Run | Comparison) -> list[Measurement]:
    """The measurements that are shown, in the order in which they were planned."""
    sides = [m for ab in list_comparisons(source) for m in (ab.candidate, ab.baseline)]
    run = source.run if isinstance(source, Comparison) else source
    if isinstance(source, Run):
        sides += [m for m in run.traced if not m.control] or run.traced
    planned = {m: place for place, m in enumerate(run.traced)}
    return sorted(dict.fromkeys(sides), key=lambda m: planned.get(m, -1))


def _program_of(measurement: Measurement) -> tuple[Path, str, str]:
    """Each method has operators of its own."""
    return measurement.run.path, measurement.program.name, measurement.phase.method


def _describe(run: Run) -> Json:
    record, quality, export = run.record, run.quality, run.subject.export
    files = [path.name for path in run.output.glob("*.perfetto.json")]
    return {
        "label": run.label,
        "notes": tuple(note.text for note in run.notes),
        "model": run.model,
        "dtype": export.dtype if export else "",
        "program": export.changes if export else "",
        "device": run.device,
        "started": record.started,
        "grade": quality["grade"].iloc[0],
        "summary": run.grade,
        "emulated": run.emulated,
        "versions": {name: str(version) for name, version in record.versions.items()},
        "perfetto": min(files, default=""),
        "quality": tuple(quality.to_dict("records")),
    }


def _list_operators(measurements: Sequence[Measurement]) -> pd.DataFrame:
    """Every operator of a program by key, in the order of execution."""
    first_rows = pd.concat([m.operators for m in measurements]).astype({"key": object})
    first_rows = first_rows.drop_duplicates("key").set_index("key")
    rows = pd.concat([m.ledger.drop_duplicates("key") for m in measurements])
    rows = rows.astype({"key": object}).drop_duplicates("key").set_index("key")
    table = first_rows.loc[rows.index].assign(instruction=rows["instruction"]).reset_index()
    dtypes, labels = measurements[0].list_dtypes(table["operator"]), label_operators(table)
    # Measurements may number operators differently.
    labels = labels.where(~labels.duplicated(keep=False), labels + " (" + table["key"] + ")")
    return table.assign(label=labels, dtype=dtypes, depends=_name_sources(measurements[0], table))


def _name_sources(m: Measurement, table: pd.DataFrame) -> list[str]:
    """The inputs and buffers that each operator depends on; empty if that was not recorded."""
    sources = {
        node: (*cone.inputs, *cone.buffers, *["random numbers"] * cone.random)
        for cone in (m.export.dependence if m.export else ())
        for node in cone.nodes
    }
    texts = []
    for key in table["key"]:
        read = [sources[node] for node in m.traced_nodes.get(key, ()) if node in sources]
        names = dict.fromkeys(chain.from_iterable(read))
        texts.append(", ".join(names) or "constants alone" * bool(read))
    return texts


def _program(measurements: Sequence[Measurement], table: pd.DataFrame) -> Json:
    layers = measurements[0].layers
    tree = pd.DataFrame({"module": [], "module_class": []}) if layers is None else layers
    tree = tree[tree["module"].notna()]
    sidecar = measurements[0].sidecar
    files = {str(place).rpartition(":")[0] for place in table.get("source", ())}
    texts = sidecar.sources if sidecar else {}
    return {
        "keys": tuple(table["key"]),
        "labels": tuple(table["label"]),
        "instructions": tuple(table["instruction"].tolist()),
        "texts": {name: encode(table[name]) for name in _TEXTS if name in table},
        "costs": {name: list_numbers(table[name]) for name in _COSTS if name in table},
        "modules": tuple(tree["module"]),
        "classes": tuple(tree["module_class"].fillna("")),
        "edges": tuple(sorted(link_operators(measurements[0], table))),
        "sources": {file: text for file, text in texts.items() if file in files},
        "activations": _track_activations(measurements[0], table),
    }


def encode(texts: pd.Series) -> Json:
    """A column of texts as positions in the list of its distinct ones."""
    codes, values = pd.factorize(texts.astype(object).replace("", None))
    return {"values": list(map(str, values)), "codes": codes.tolist()}


def list_numbers(column: pd.Series | np.ndarray, decimals: int | None = None) -> Numbers:
    """Numbers that are shown are not rounded: rounded twice, they differ from the tables'."""
    numbers = np.asarray(column, float)
    numbers = numbers if decimals is None else np.round(numbers, decimals)
    return tuple(x if np.isfinite(x) else None for x in numbers.tolist())


def _find_owners(table: pd.DataFrame) -> tuple[dict[Pair, int], dict[int, list[int]]]:
    """Which row ran an exported operator, and the rows of every delegate."""
    xnodes = table["xnodes"] if "xnodes" in table else pd.Series(None, table.index, dtype=object)
    owner: dict[Pair, int] = {}
    chains: dict[int, list[int]] = {}
    columns = (table["kind"], table["instruction"], xnodes)
    for row, (kind, number, sources) in enumerate(zip(*columns, strict=True)):
        if kind == "portable":
            owner.setdefault((number, -1), row)
        elif kind == "delegated":
            chains.setdefault(number, []).append(row)
            for xnode in sources.split(",") if isinstance(sources, str) else ():
                owner[number, int(xnode)] = row
    return owner, chains


def _track_activations(m: Measurement, table: pd.DataFrame) -> Json | None:
    tensors = getattr(m, "tensors", None)  # of a plug-in
    if tensors is None or tensors.empty:
        return None
    owner, _ = _find_owners(table)
    # First those that set the peak: a hundredth of the largest does not.
    tensors = tensors[tensors["memory"].isin(tensors.loc[tensors["at_peak"], "memory"])]
    large = tensors["at_peak"] & (tensors["size_bytes"] > tensors["size_bytes"].max() / 100)
    order = large.sort_values(ascending=False, kind="stable").index
    return {
        "steps": tuple(owner.get(step.id, -1) for step in m.flow.steps),
        "live": {name: tuple(live.tolist()) for name, live in _track_live(tensors).items()},
        "tensors": tuple(tensors.loc[order[:_TENSORS]].to_dict("records")),
    }


def _track_live(tensors: pd.DataFrame) -> dict[str, np.ndarray]:
    """The bytes of tensors that are live at every step, by memory."""
    sizes = {}
    for place, part in tensors.groupby("memory"):
        change = np.zeros(int(tensors["last"].max()) + 2, dtype=np.int64)
        np.add.at(change, part["first"], part["size_bytes"])
        np.add.at(change, part["last"] + 1, -part["size_bytes"])
        sizes[str(place)] = change.cumsum()[:-1]
    return sizes


def link_operators(m: Measurement, table: pd.DataFrame) -> set[Pair]:
    """Which operator (a row of the table) reads what another made, through those without a time."""
    owner, chains = _find_owners(table)
    edges: set[Pair] = set()
    writers: dict[Pair, set[int]] = {}
    for step in m.structure.steps:
        sources = set().union(*(writers.get(tensor, ()) for tensor in step.reads))
        rows = [owner[step.id]] if step.id in owner else []
        if not step.xnode:  # of a delegate without a graph, all operators
            rows = chains.get(step.id[0], rows)
        for row in rows:
            edges.update((source, row) for source in sources if source != row)
            sources = {row}
        writers |= dict.fromkeys(step.writes, sources)
    return edges


def _measurement(
    m: Measurement, program: int, table: pd.DataFrame, inferences: int, *,
    label: str, with_findings: bool,
) -> Json:  # fmt: skip
    index = {key: row for row, key in enumerate(table["key"])}
    operators = align_operators(m.operators, table)
    runs = m.times.runs.reindex(columns=table["key"])
    restarts = runs.groupby(level="process").mean() if len(m.sessions) > 1 else runs[:0]
    roofline = None if m.roofline is None else align_operators(m.roofline, table)
    kernels = None if m.machine_code is None else align_operators(m.machine_code, table)
    functions = set() if kernels is None else set(kernels["function"])
    return {
        "program": program,
        "experiment": m.name,
        "label": label,
        "threads": m.threads,
        "phase": m.phase.name,
        "isa": "" if m.run.recording else m.experiment.isa,
        "hidden": tuple(sorted(m.run.masked(m.name))),
        "latency": dict(m.statistics.iloc[0]),
        "untraced": not m.latencies["traced"].all(),
        "inferences": len(runs),
        "mean_ms": list_numbers(operators["mean_ms"]),
        "std_ms": list_numbers(operators["std_ms"]),
        "restarts_ms": tuple(list_numbers(row, 6) for row in restarts.to_numpy()),
        "quantile": float(stdtrit(len(restarts) - 1, 0.975)) if len(restarts) else None,
        "categories": tuple(m.categories.to_dict("records")),
        "pale": m.use.pale,
        "blank": m.use.blank,
        "caveats": tuple(m.caveats),
        "roofline": None
        if roofline is None
        else {n: list_numbers(roofline[n], 4) for n in _ROOFLINE},
        "bound": None if roofline is None else encode(roofline["bound"]),
        "functions": None if kernels is None else {n: encode(kernels[n]) for n in _FUNCTIONS},
        "samples": None if kernels is None else {n: list_numbers(kernels[n], 4) for n in _SAMPLES},
        "findings": tuple(_findings(m, index)) if with_findings else (),
        "potential": _outline_gain(m) if with_findings else None,
        "trace": _sample_trace(m, index, inferences),
        "loops": {
            name: {"lines": list(samples.index), "samples": samples.tolist()}
            for name, samples in m.loops.items()
            if name in functions
        },
        **_explored(m),
    }


def _explored(m: Measurement) -> Json:
    """What plug-ins add; what the page draws itself is empty without them."""
    frames = m.list_shown("explored").items()
    rows = {key: tuple(frame.to_dict("records")) for key, frame in frames if frame is not None}
    return {"memory": (), "start": (), **rows}


def align_operators(frame: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """The first row of every operator, in the order of the table."""
    first = frame.astype({"key": object}).drop_duplicates("key").set_index("key")
    return first.reindex(table["key"])


def _findings(m: Measurement, index: dict[str, int]) -> Iterator[Json]:
    for rank, finding in enumerate(m.opportunities, 1):
        rows = tuple(index[key] for key in finding.operators if key in index)
        yield {**outline_finding(finding, rank), "operators": rows}


def _outline_gain(m: Measurement) -> Json | None:
    bar = outline_gain(m) if m.potential.alone else None
    if bar is None:
        return None
    parts = [(name, share, bar.colors[name]) for name, share in bar.shares.items()]
    return {"texts": tuple(bar.plain), "parts": tuple(parts)}


def _sample_trace(m: Measurement, index: dict[str, int], count: int) -> Json:
    """Inferences of the first process that count, evenly spread over it."""
    ledger = m.ledger[m.ledger["process"] == m.sessions[0].process]
    # Events are counted from the end of the warm-up.
    runs = np.sort(ledger["run"].unique()) - m.sessions[0].skipped
    runs = runs[np.unique(np.linspace(0, len(runs) - 1, min(count, len(runs))).round().astype(int))]
    events = m.events
    spans = _grow_spans(tabulate_spans(events[events["run"].isin(runs)].reset_index(drop=True)))
    shapes: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    inferences = []
    for run, part in spans[spans["depth"] <= _DEEPEST].groupby("run"):
        shape = (tuple(index.get(key, -1) for key in part["key"]), tuple(part["depth"].tolist()))
        starts, lengths = (
            (part[name].to_numpy() + 50) // 100 for name in ("start_ns", "duration_ns")
        )
        gaps = np.diff(starts, prepend=0).tolist()
        number = shapes.setdefault(shape, len(shapes))
        times = {"gaps": gaps, "durations": lengths.tolist()}
        inferences.append({"run": int(run), "shape": number, **times})
    return {"shapes": list(shapes), "inferences": inferences}


def _grow_spans(spans: pd.DataFrame) -> pd.DataFrame:
    """The spans of complete runs in order of start, with ``depth``; starts count from their run."""
    spans = spans[spans["run"] >= 0].reset_index(drop=True)
    above = pd.Index(spans["event"]).get_indexer(spans["parent"])
    begins = spans.loc[spans["kind"] == "method"].set_index("run")["start_ns"]
    depth, parent = np.zeros(len(spans), np.int64), above.copy()
    while (inside := parent >= 0).any():
        depth[inside] += 1
        parent[inside] = above[parent[inside]]
    grown = spans.assign(depth=depth, start_ns=spans["start_ns"] - spans["run"].map(begins))
    return grown.sort_values(["run", "start_ns", "depth"], kind="stable", ignore_index=True)


def _comparison(
    ab: Comparison,
    measurements: list[Measurement],
    tables: dict[tuple[Path, str, str], pd.DataFrame],
) -> Json:
    before, after = ab.baseline, ab.candidate
    theirs, table = (tables[_program_of(m)] for m in (before, after))
    judged, kernels, partners = ab.operators, ab.kernels, None
    if theirs is not table:
        both = judged[judged["baseline_ms"].notna() & judged["candidate_ms"].notna()]
        twins = dict(zip(both["key"], both["candidate_key"], strict=True))
        rows = {twins.get(key): row for row, key in enumerate(theirs["key"])}
        partners = tuple(rows.get(key, -1) for key in table["key"])
        judged = judged.assign(key=judged["candidate_key"])
        kernels = None if kernels is None else kernels.assign(key=kernels["key"].map(twins))
    operators = align_operators(judged, table)
    return {
        "baseline": measurements.index(before),
        "candidate": measurements.index(after),
        "verdict": ab.text,
        "outcome": ab.verdict.outcome,
        "latency": dict(ab.latency.iloc[0]),
        "caveats": tuple(ab.caveats),
        "categories": tuple(ab.categories.to_dict("records")),
        "operators": {n: list_numbers(operators[n]) for n in _JUDGED},
        "outcomes": encode(operators["outcome"]),
        "reasons": encode(
            align_operators(judged.assign(reason=ab.explain(judged)), table)["reason"]
        ),
        "changes": None if kernels is None else encode(align_operators(kernels, table)["change"]),
        "partners": partners,
    }
