"""What was measured, on what, with what: the provenance of every figure."""

from __future__ import annotations

import pandas as pd

from workbench.records import Experiment, Run
from workbench.report.analysis import Analysis


def describe_run(analysis: Analysis) -> pd.DataFrame:
    """Program, machine, runner and protocol of a run.

    Returns
    -------
    DataFrame
        ``what`` and ``value``, both text.
    """
    run, plan, host = analysis.run, analysis.run.plan, analysis.run.host
    machine = [host.get("cpu"), f"{host.get('cores_usable')} cores", host.get("system")]
    machine += ["virtual"] if host.get("virtual") else []
    facts = {
        "program": f"{plan.stem}.pte, SHA-256 {plan.sha256[:16]}",
        "inputs": _inputs(analysis),
        "machine": ", ".join(map(str, machine)),
        "platform": run.platform + (" (emulated)" if run.emulated else ""),
        "load at the start": " ".join(str(load) for load in host.get("load_average", [])),
        "runner": ", ".join(f"{k} {v}" for k, v in run.runner.items()),
        "versions": ", ".join(f"{name} {version}" for name, version in run.versions.items()),
        "protocol": (
            f"{plan.processes} processes of every experiment, taking turns in batches of about "
            f"{plan.batch_ms:g} ms; at least {plan.runs} timed inferences each"
        ),
        "experiments": "; ".join(map(_describe_experiment, plan.experiments)),
        "measured": f"{run.started} to {run.finished or 'interrupted'}",
    }
    if run.export:
        facts["weights"] = run.export.weights or "not recorded"
        facts["exported"] = (
            f"{run.export.dtype}, {run.export.backend}, {run.export.size_bytes / 1e6:.1f} MB, "
            f"delegates: {_counts(run.export.delegates)}"
        )
    return pd.DataFrame(facts.items(), columns=["what", "value"])


def identify_run(run: Run) -> dict[str, str]:
    """The program, device and build of a run: what may differ only where that is the question."""
    device = f"{run.platform}, {run.host.get('cpu')}" + (", emulated" if run.emulated else "")
    build = f"executorch {run.versions.get('executorch')}, {run.runner.get('kind')} runner"
    build += f" {str(run.runner.get('sha256', ''))[:12]}".rstrip()
    program = f"{run.plan.stem} {run.plan.sha256[:12]}"
    return {"program": program, "device": device, "build": build}


def undelegated(analysis: Analysis) -> pd.DataFrame | None:
    """Operators that the partitioner left to portable kernels; None if the export is unknown."""
    export = analysis.run.export
    if export is None:
        return None
    rows = [(u.operator, u.count) for u in export.undelegated]
    table = pd.DataFrame(rows, columns=["operator", "count"])
    return table.sort_values("count", ascending=False, kind="stable").reset_index(drop=True)


def _describe_experiment(experiment: Experiment) -> str:
    control = ", control" if experiment.control else ""
    return f"{experiment.name}: ISA level {experiment.isa}{control}"


def _inputs(analysis: Analysis) -> str:
    plan = analysis.run.plan
    shapes = ", ".join(f"{t.dtype} {'x'.join(map(str, t.shape))}" for t in plan.inputs)
    return f"{shapes} ({plan.input_source})"


def _counts(delegates: dict[str, int]) -> str:
    return ", ".join(f"{name} x{count}" for name, count in delegates.items()) or "none"
