"""What was run, on what and how, in words."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from workbench.options import RUNTIMES, ExportOptions
from workbench.records.exports import Export, Identity
from workbench.records.runs import Experiment, Phase, PlannedProgram, RunRecord
from workbench.store import name_programs
from workbench.wording import (
    format_figure,
    format_ms,
    format_range,
    format_size,
    format_time,
    plural,
)

NO_PROGRAM = "Most rules need the program, which is unknown: put the .pte beside the traces."


def name_record(record: RunRecord) -> str:
    """What lists call a run: its label, or its models, their dtype and the platform."""
    if record.plan.label:
        return record.plan.label
    programs = [(each.model, each.stem) for each in record.plan.all_programs]
    dtype = record.export.dtype if record.export and len(programs) == 1 else ""
    names = " and ".join(dict.fromkeys(name_programs(programs)))
    names += f" {dtype}" if dtype and dtype != ExportOptions.dtype else ""
    return f"{names}, {record.platform}"


def describe_methods(record: RunRecord, methods: Mapping[str, Sequence[str]]) -> list[str]:
    """Which method of each program of several is measured, and how to choose, a line each.

    ``methods`` are those of each program by its name in the plan.
    """
    measured = list(dict.fromkeys(phase.method or "forward" for phase in record.plan.phases))
    measured = measured or ["forward"]
    lines = []
    for program in record.plan.all_programs:
        unmeasured = [name for name in methods[program.name] if name not in measured]
        if len(methods[program.name]) > 1 and unmeasured:
            lines.append(
                f"{program.stem}: method {', '.join(measured)} is measured; it also has "
                f"{', '.join(unmeasured)}: --phase {unmeasured[0]}={unmeasured[0]} measures that"
            )
    return lines


def tabulate_description(record: RunRecord, categories: str, recorder: str = "") -> pd.DataFrame:
    """What was run, on what and how: ``what`` and ``value``, both text.

    ``categories`` names the rules of the categories, ``recorder`` another tool that recorded it.
    """
    plan, host = record.plan, record.host
    machine = [host.get("cpu"), f"{host.get('cores_usable')} cores", host.get("system")]
    machine += ["virtual"] if host.get("virtual") else []
    machine += [host["clusters"]] if host.get("clusters") else []
    facts = {}
    for program in plan.all_programs:
        ending = f" {program.name}" if program.name else ""
        shapes = ", ".join(f"{t.dtype} {'x'.join(map(str, t.shape))}" for t in program.inputs)
        file = f"{Path(program.pte).name}, SHA-256 {program.sha256[:16]}"
        facts[f"program{ending}"] = file if program.pte else program.stem
        facts[f"inputs{ending}"] = f"{shapes} ({program.input_source})" if shapes else ""
        facts |= _describe_export(record.export_of(program), ending)
    facts |= {
        "recorded by": recorder,
        "machine": ", ".join(map(str, machine)) if host else "",
        "platform": record.platform + (" (emulated)" if record.emulated else ""),
        "load at the start": " ".join(str(load) for load in host.get("load_average", [])),
        "runner": ", ".join(f"{k} {v}" for k, v in record.runner.items()),
        "versions": ", ".join(f"{name} {version}" for name, version in record.versions.items()),
        "protocol": _describe_protocol(record),
        "experiments": "; ".join(map(_describe_experiment, plan.experiments)),
        "baseline": plan.direction,
        "categories": categories,
        "measured": record.started
        if recorder
        else f"{record.started} to {record.finished or 'interrupted'}",
    }
    rows = [(what, value) for what, value in facts.items() if value]
    return pd.DataFrame(rows, columns=["what", "value"])


def describe_latency(statistics: pd.DataFrame) -> str:
    """A latency with half the width of its 95 % interval, and over how many restarts.

    ``statistics`` is one row of ``frames.STATISTICS``.
    """
    return f"{describe_time(statistics)} ({describe_interval(statistics)})"


def describe_time(statistics: pd.DataFrame) -> str:
    """A latency with half the width of its 95 % interval."""
    row = statistics.iloc[0]
    if row["high"] - row["latency"] > row["latency"] / 2:  # a ± would reach below zero
        low, high = format_range(max(0.0, row["low"]), row["high"])
        return f"{format_ms(row['latency'])}, between {low} and {high}"
    return format_time(row["latency"], row["high"] - row["latency"])


def describe_interval(statistics: pd.DataFrame) -> str:
    """What the interval of a latency is of."""
    restarts = int(statistics["restarts"].iloc[0])
    return "1 restart: no interval" if restarts == 1 else f"95 % interval, n = {restarts} restarts"


def describe_rate(phase: Phase, latency_ms: float) -> str:
    """Tokens per second, after a comma; empty if it is no step of a language model."""
    rate = phase.tokens / latency_ms * 1e3 if phase.tokens else 0.0
    return f", {format_figure(rate)} tokens/s" if rate else ""


def _describe_experiment(experiment: Experiment) -> str:
    """What was run; which CPU features another tool's runner used is unknown."""
    level = f"ISA level {experiment.isa}" if experiment.runner else ""
    how = RUNTIMES.get(experiment.runner, level)
    named = f"{experiment.name}: {how}" if how else experiment.name
    return f"{named}{', control' if experiment.control else ''}"


def _describe_protocol(record: RunRecord) -> str:
    plan = record.plan
    processes = plural(len({s.process for s in record.sessions}), "process")
    if not record.runner:  # another tool's recording
        warmup = f" after the first {plan.warmup}" if plan.warmup else ""
        times = f"each at least {plan.runs} inferences{warmup}, timed in its trace"
        return f"{processes} per experiment, in an unknown order; {times}"
    batches = f"batches of about {plan.batch_ms:g} ms" if plan.batch_ms else "single inferences"
    return (
        f"{processes} per experiment, interleaved in {batches}; at least "
        f"{plan.runs} timed inferences each"
    )


def _describe_export(export: Export | None, ending: str) -> dict[str, str]:
    if export is None:
        return {}
    delegates = ", ".join(f"{name} x{count}" for name, count in export.delegates.items())
    how = f"{export.dtype}, {export.backend}, {format_size(export.size_bytes)}"
    how += f", {export.changes}" * bool(export.changes)
    missing = "; ".join(f"{name} ({reason})" for name, reason in export.missing.items())
    return {
        f"missing in ExecuTorch or PyTorch{ending}": missing,
        f"weights{ending}": export.weights or "not recorded",
        f"exported{ending}": f"{how}, delegates: {delegates or 'none'}",
    }


def identify_run(record: RunRecord, program: PlannedProgram | None = None) -> Identity:
    """The program, device and build of a measurement, empty if unknown; others must agree.

    The default is the run's first program.
    """
    chosen = program or record.plan.all_programs[0]
    export = record.export_of(chosen)
    graph, fault = (export.graph, export.fault) if export else ("", "")
    name = f"{chosen.stem} {chosen.sha256[:12]}"
    if not record.runner:  # another tool's recording
        name = name if chosen.pte else chosen.sha256
        return Identity(graph, chosen.sha256, name, fault=fault)
    device = f"{record.platform}, {record.host.get('cpu')}"
    device += ", emulated" if record.emulated else ""
    build = f"executorch {record.versions.get('executorch')}, {record.runner.get('kind')} runner"
    build += f" {str(record.runner.get('sha256', ''))[:12]}".rstrip()
    return Identity(graph, chosen.sha256, name, device, build, fault)
