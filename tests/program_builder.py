"""Measurements of small programs with known operators and times, for tests of the findings."""

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd

from workbench.analysis.dataflow import Dataflow
from workbench.analysis.findings.rules import find_bottlenecks
from workbench.analysis.operator_times import Times
from workbench.analysis.operators import load_scheme
from workbench.analysis.roofline import build_roof
from workbench.analysis.run import Measurement, Run
from workbench.frames import QUALITY
from workbench.records.exports import Partition
from workbench.records.layer_sidecar import Instruction, Method, Origin, Value, XNode, XValue
from workbench.records.runs import Batch, Ceilings, Experiment, Plan, Probe, RunRecord, Session
from workbench.store import save_run

WIDTHS = {"fp32": 4, "fp16": 2, "float32": 4, "float16": 2, "qint8": 1}
LOGGED = {
    "Conv2d": "Convolution (NHWC, F32) IGEMM",
    "FullyConnected": "Fully Connected (NC, F32) GEMM",
    "StaticTranspose": "Transpose (ND, X32)",
    "Softmax": "Softmax (NC, F32)",
    "BatchMatrixMultiply": "Batch Matrix Multiply (NC, F32) GEMM",
}


@dataclass
class Node:
    """One operator; tensors by name, those in capitals are constants."""

    type: str
    reads: str
    writes: str
    ms: float
    attributes: dict = field(default_factory=dict)
    role: str = "compute"
    module: str = "block"
    module_class: str = "Block"
    source: str = "my.py:7"
    flops: int = 0


@dataclass
class Kernel(Node):
    """An operator outside of any delegate; ``call_ms`` is its overhead."""

    call_ms: float = 0.001


@dataclass
class Delegate:
    """Operators of one delegate."""

    nodes: list
    overhead_ms: float = 0.01


def layout(reads, writes, perm, ms, **others):
    """A transpose that the exporter made up."""
    return transpose(reads, writes, perm, ms, role="layout", **others)


def transpose(reads, writes, perm, ms, **others):
    return Node("StaticTranspose", reads, writes, ms, {"perm": perm}, **others)


def left(kernel, reason, source="act.py:2"):
    """An operator that the partitioner left to its kernel, and why."""
    return Partition(f"aten.{kernel}", 1, False, reason, source)


def measured(*program, shapes=None, dtypes=None, noise=0.002, **facts):
    """The measurement of a program that takes ``x``; ``facts`` are those of `changed`."""
    shapes, dtypes = shapes or {}, dtypes or {}
    names = {}
    for item in program:
        for node in getattr(item, "nodes", [item]):
            for name in (*node.reads.split(), *node.writes.split()):
                names.setdefault(name, len(names))
    shape_of = {name: shapes.get(name, (1, 64, 32, 32)) for name in names}
    bytes_of = {
        name: int(np.prod(shape_of[name])) * WIDTHS[dtypes.get(name, "fp32")] for name in names
    }
    values = {
        number: Value(dtypes.get(name, "fp32"), shape_of[name], bytes_of[name], name.isupper())
        for name, number in names.items()
    }
    origins, instructions, rows = [], [], []

    def origin_of(node):
        origins.append(Origin(node.type, node.type, node.module, node.module_class, node.source))
        return len(origins) - 1

    def row(key, operator, kind, node=None, ms=0.0, **more):
        size = sum(bytes_of[n] for n in {*node.reads.split(), *node.writes.split()}) if node else 0
        category, family, rule = load_scheme().place(operator, kind)
        rows.append(
            {
                "key": key, "name": operator, "operator": operator, "kind": kind,
                "category": category, "family": family, "rule": rule,
                "calls": 1.0, "mean_ms": ms, "std_ms": 0.0, "share": 0.0,
                "module": node.module if node else None,
                "module_class": node.module_class if node else None,
                "source": node.source if node else None, "also": "", "nodes": None,
                "xnodes": None, "role": node.role if node else "overhead", "shapes": "",
                "flops": float(node.flops) if node else np.nan, "bytes": float(size),
                "confidence": "exact", **more,
            }
        )  # fmt: skip

    for number, item in enumerate(program):
        if isinstance(item, Kernel):
            instructions.append(
                Instruction(
                    "kernel",
                    f"aten::{item.type}.out",
                    tuple(names[n] for n in item.reads.split()),
                    tuple(names[n] for n in item.writes.split()),
                    origin=origin_of(item),
                )
            )
            row(f"{number}/native_call_{item.type}.out/0", f"native_call_{item.type}.out",
                "portable", item, item.ms)  # fmt: skip
            row(f"{number}/OPERATOR_CALL/0", "OPERATOR_CALL", "call_overhead", ms=item.call_ms)
            continue
        ids, xnodes = {}, []
        inside = {n for node in item.nodes for n in node.writes.split()}
        read = [n for node in item.nodes for n in node.reads.split()]
        for name in (*read, *inside):
            ids.setdefault(name, len(ids))
        later = {
            n
            for other in program[number + 1 :]
            for node in getattr(other, "nodes", [other])
            for n in node.reads.split()
        }
        inputs = [n for n in ids if n not in inside and not n.isupper()]
        outputs = [n for n in ids if n in inside and (n in later or n not in read)]
        roles = dict.fromkeys(inputs, "input") | dict.fromkeys(outputs, "output")
        roles |= {n: "constant" for n in ids if n.isupper()}
        for index, node in enumerate(item.nodes):
            made_up = node.role == "layout"
            xnodes.append(
                XNode(
                    node.type,
                    tuple(ids[n] for n in node.reads.split()),
                    tuple(ids[n] for n in node.writes.split()),
                    node.attributes, node.flops, 0, 0, role=node.role,
                    origins=() if made_up else (origin_of(node),),
                )
            )  # fmt: skip
            operator = LOGGED.get(node.type, f"{node.type} (NC)")
            row(f"{number}/{node.type}/{index}", operator, "delegated", node, node.ms,
                xnodes=str(index))  # fmt: skip
        row(f"{number}/DELEGATE_CALL/0", "DELEGATE_CALL", "delegate_overhead",
            ms=item.overhead_ms)  # fmt: skip
        instructions.append(
            Instruction(
                "delegate", "XnnpackBackend",
                tuple(names[n] for n in inputs), tuple(names[n] for n in outputs),
                xvalues=tuple(
                    XValue(i, dtypes.get(n, "fp32"), shape_of[n], bytes_of[n], roles.get(n, ""))
                    for n, i in ids.items()
                ),
                xnodes=tuple(xnodes),
            )
        )  # fmt: skip
    row("-1/Method::execute/0", "Method::execute", "framework", ms=0.002)
    operators = pd.DataFrame(rows)
    operators["share"] = operators["mean_ms"] / operators["mean_ms"].sum()
    rng = np.random.default_rng(0)
    index = pd.MultiIndex.from_product([range(5), range(4)], names=["process", "run"])
    scale = 1 + noise * rng.standard_normal((len(index), 1))
    runs = pd.DataFrame(scale * operators["mean_ms"].to_numpy(), index, operators["key"].tolist())
    method = Method("forward", tuple(instructions), values, tuple(origins))
    return changed(None, operators=operators, runs=runs, method=method, **facts)


def changed(measurement, **facts):
    """A measurement of the same program with other facts.

    ``latency_ms`` is untraced; ``scaling`` has the wall times of the restarts in ms by thread
    count, ``by_dtype`` those of separate runs by dtype; ``changes`` is a comparison's operators.
    """
    facts = {**(measurement.given if measurement else {}), **facts}
    threads, toggle, export = facts.get("threads", 1), facts.get("toggle", ""), facts.get("export")
    runs, operators = facts["runs"], facts["operators"]
    latency_ms = facts.get("latency_ms", float(runs.sum(axis=1).mean()))
    scaling = facts.get("scaling", {threads: [latency_ms] * 5})
    path = Path("made")
    if by_dtype := facts.get("by_dtype"):
        export = replace(export, graph="one model")
        path = Path(tempfile.mkdtemp()) / "runs" / "own"
        scaling = {threads: by_dtype[export.dtype]}
    sessions = {n: _sessions(n, times) for n, times in scaling.items()}
    every = tuple(session for each in sessions.values() for session in each)
    record = RunRecord(
        Plan(
            "net.pte", "", "net", "net", (), "", (Experiment("on"),), (), toggle,
            threads=tuple(scaling),
        ),
        "", facts.get("emulated", False), "complete", "", "", {"machine": facts.get("machine", "")},
        {"kind": "native"}, {}, every, export=export,
    )  # fmt: skip
    for dtype, times in (by_dtype or {}).items():
        other = replace(record, export=replace(export, dtype=dtype))
        save_run(replace(other, sessions=_sessions(threads, times)), path.parent / dtype)
    run = Run(path, record, find_bottlenecks)
    made = Measurement(run, record.plan.experiments[0], threads)
    comparison = SimpleNamespace(
        candidate=made,
        baseline=SimpleNamespace(runtime=""),
        toggle=toggle,
        operators=facts.get("changes"),
    )
    vars(run).update(
        quality=pd.DataFrame([("restarts", "5 of 5", "A", "0", "")], columns=QUALITY.names),
        known_study=None,
        comparisons=() if facts.get("changes") is None else (comparison,),
    )
    times = Times(made)
    vars(times).update(undisturbed=runs * (latency_ms / runs.sum(axis=1).mean()), tracing_ms=0.0)
    method, kernels = facts["method"], facts.get("kernels", {})
    flow = Dataflow(method or Method("", (), {}))
    vars(made).update(
        given=facts, operators=operators, times=times, sessions=("traced",),
        share_error=np.nan, traced_ms=float(runs.sum(axis=1).mean()),
        flow=flow,
        structure=flow,
        statistics=pd.DataFrame({"latency": [latency_ms], "high": latency_ms}),
        roof=facts.get("roof"),
        kernels=pd.DataFrame({"function": pd.Series(kernels, dtype=object)}),
        cold_start=facts.get("cold_start"), memory=facts.get("memory"),
    )  # fmt: skip
    return made


def _sessions(threads, times_ms):
    """Sessions of one untraced inference each."""
    numbers = [round(ms * 1e6) for ms in times_ms]
    return tuple(
        Session("on", threads, n, False, (), 0, 0, (Batch(0, 0, (ns,), (ns * threads,), (0,)),))
        for n, ns in enumerate(numbers)
    )


MB = 2**20


def make_roof(without="", read=None, **peaks):
    """A machine of 100 GFLOP/s; 100 GB/s up to 1 MB, 10 GB/s from 16 MB on; a call of 1 µs.

    ``without`` a kind of probe, or their ``times``; ``read`` adds a footprint and its time in ms.
    """
    peaks = peaks or {"fp32": 100.0, "int8": 400.0}
    program_ms, call_ms = 0.01, 0.001
    probes = [
        Probe("gemm", dtype, 10**9, 0, 1, ms=1e9 / rate / 1e6, spread=0.02)
        for dtype, rate in peaks.items()
    ]
    probes += [
        Probe("stream", "fp32", 0, size, 8,
              ms=8 * (size / rate / 1e6 + call_ms) + program_ms, spread=0.05)
        for size, rate in ((MB, 100.0), (16 * MB, 10.0))
    ]  # fmt: skip
    probes.append(Probe("call", "fp32", 0, 0, 100, ms=100 * call_ms))
    probes.append(Probe("program", "fp32", 0, 0, 1, ms=program_ms + call_ms))
    if read:
        probes.append(Probe("read", "fp32", 0, read[0], 1, ms=read[1]))
    probes = [replace(p, ms=0.0) if without == "times" else p for p in probes if p.kind != without]
    day = "2026-11-21T00:00:00+00:00"
    return build_roof(Ceilings("cpu", "runner", "native", 1, day, tuple(probes)))
