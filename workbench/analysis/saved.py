"""A run as its ``metrics.json`` has it: latencies, starts and memory, without traces."""

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

from workbench.analysis.foreign import Recording
from workbench.analysis.resources import MB
from workbench.records.documents import METRICS
from workbench.records.exports import Identity
from workbench.records.runs import (
    Batch,
    Experiment,
    Plan,
    PlannedProgram,
    ProcessMemory,
    RunRecord,
    Session,
    Stage,
    Start,
)
from workbench.store import load_record

#: By mode of a start, the resource that its first output is in ``metrics.json``.
_OUTPUTS = {"time": "first output", "cold": "cold first output"}


def read_metrics(path: Path) -> Recording:
    """The run of a ``metrics.json``; StoreError if that cannot be read."""
    metrics = load_record(METRICS, path)
    rows, titles = metrics["latencies"], metrics.get("programs", {})
    graphs = metrics.get("graphs", {})
    experiments = {
        row["experiment"]: Experiment(
            row["experiment"], runner="", control=row["control"], program=row["experiment"]
        )
        for row in rows
    }
    first = metrics["program"]
    texts = {"": first} | {name: titles.get(name, first) for name in experiments}
    programs, identities = list[PlannedProgram](), dict[str, Identity]()
    for name, text in texts.items():
        stem, _, digits = text.rpartition(" ")
        programs.append(PlannedProgram(name, "", digits, metrics["model"], stem or digits))
        where = metrics["device"], metrics["build"], metrics.get("problem", "")
        identities[name] = Identity(graphs.get(name, ""), digits, text, *where)
    stem, _, digits = first.rpartition(" ")
    plan = Plan(
        "", digits, metrics["model"], stem or digits, (), "", tuple(experiments.values()), (),
        threads=tuple(dict.fromkeys(row["threads"] for row in rows)), programs=tuple(programs[1:]),
    )  # fmt: skip
    record = RunRecord(
        plan, metrics["device"].partition(",")[0], metrics["emulated"], "complete",
        metrics["started"], "", {}, {}, {}, tuple(_list_sessions(rows)),
        starts=tuple(start for row in rows for start in _list_starts(row)),
    )  # fmt: skip
    return Recording(record, path.name, ("traces",), {}, {}, {}, identities)


def _list_sessions(rows: list[dict[str, Any]]) -> Iterator[Session]:
    """Every restart with one inference, as long as its typical one."""
    for row in rows:
        for number, ms in enumerate(row["restarts_ms"]):
            wall_ns, cpu_ns = (
                round(1e6 * ms) if clock == row["clock"] else 0 for clock in ("wall_ns", "cpu_ns")
            )
            batch = Batch(0, 0, (wall_ns,), (cpu_ns,), (0,))
            place = (row["experiment"], row["threads"], number)
            yield Session(*place, False, (), 0.0, 0.0, (batch,))


def _list_starts(row: Mapping[str, Any]) -> Iterator[Start]:
    """The starts of a measurement, each as one stage."""
    values = {each["resource"]: each["values"] for each in row.get("resources", ())}
    kinds = ("peak memory", "anonymous memory", "PSS", "CPU time of a start")
    for mode, resource in _OUTPUTS.items():
        measured = [values.get(name, ()) if mode == "time" else () for name in kinds]
        processes = zip_longest(values.get(resource, ()), *measured)
        for number, (ms, peak, anonymous, pss, cpu_ms) in enumerate(processes):
            cpu_ns = -1 if cpu_ms is None else round(1e6 * cpu_ms)
            stage = Stage(name="first inference", ns=round(1e6 * (ms or 0.0)), cpu_ns=cpu_ns)
            held = (round(MB * (each or 0.0)) for each in (anonymous, pss, peak))
            memory = ProcessMemory(**dict(zip(("anonymous", "pss", "peak"), held, strict=True)))
            yield Start(row["experiment"], row["threads"], number, mode, (stage,), memory)
