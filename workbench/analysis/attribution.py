"""The layer of each row of a ledger, with its source line, shapes and cost, from the sidecar."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any

import numpy as np
import pandas as pd

from workbench.analysis.ledger import Key
from workbench.analysis.xnnpack.predicted_operators import (
    GraphMatch,
    Operator,
    match_graph,
    predict_operators,
)
from workbench.frames import ATTRIBUTION, LEDGER
from workbench.records.layer_sidecar import (
    Instruction,
    Layers,
    Method,
    Origin,
    Value,
    XNode,
    XValue,
)

#: Columns of ``frames.ATTRIBUTION``, and these by the key of a ledger row.
_Columns = dict[str, Any]
_Attributed = Iterator[tuple[str, _Columns]]


def attribute_kernel(method: Method, instruction: Instruction) -> _Columns:
    """The columns of a portable kernel."""
    origin = None if instruction.origin is None else method.origins[instruction.origin]
    sides = instruction.inputs, instruction.outputs
    inputs, outputs = ([method.values[number] for number in side] for side in sides)
    return {
        **_layer_columns(origin),
        "also": "",
        "nodes": origin.node if origin else None,
        "role": "compute",
        "shapes": _shapes([value for value in inputs if not value.constant], outputs),
        "flops": float("nan") if instruction.flops is None else float(instruction.flops),
        "bytes": float(instruction.bytes),
    }


def _event_columns(method: Method, numbers: Sequence[int]) -> _Columns:
    """The columns of a logged event, from the numbers of its origins, the main one first."""
    origins = [method.origins[number] for number in numbers]
    nodes = ", ".join(dict.fromkeys(origin.node for origin in origins))
    work = {"role": "compute", "also": _paths(origins, origins[0]), "nodes": nodes}
    return _layer_columns(origins[0]) | work


def attribute_operator(
    method: Method, instruction: Instruction, values: Mapping[int, XValue], operator: Operator
) -> _Columns:
    """The columns of an operator that a delegate ran; ``values`` are the delegate's by id."""
    xnodes, origins = instruction.xnodes, method.origins
    done = [xnodes[number] for number in operator.sources or operator.serves]
    if not done:
        return {"role": "cast", "also": ""}

    def weight(node: XNode) -> tuple[bool, int]:
        owns = node.role == "compute" and node.borrows is None and bool(node.origins)
        return owns, node.flops

    def layer_of(node: XNode) -> Origin | None:
        node = node if node.borrows is None else xnodes[node.borrows]
        return origins[node.origins[0]] if node.origins else None

    main = max(done, key=weight)
    layer = layer_of(main)
    # Casts and layout changes are not work of their layer.
    origins_beside = [layer_of(node) for node in done if node.role == "compute"]
    origins_beside += [origins[n] for node in done for n in node.absorbed]
    ordered = [main, *(node for node in done if node is not main)]
    names = dict.fromkeys(origins[n].node for node in ordered for n in node.origins)
    columns = {
        **_layer_columns(layer),
        "also": _paths(origins_beside, layer),
        "nodes": ", ".join(names) or None,
        "xnodes": ",".join(map(str, operator.sources)) or None,
        "role": main.role if operator.sources else "cast",
    }
    if not operator.sources:
        return columns
    made = {value for node in done for value in node.outputs}
    read = dict.fromkeys(v for node in done for v in node.inputs if v not in made)
    inputs, outputs = ([values[v] for v in side] for side in (read, done[-1].outputs))
    return {
        **columns,
        "shapes": _shapes([v for v in inputs if v.role != "constant"], outputs),
        "flops": float(sum(node.flops for node in done)),
        "bytes": float(sum(value.size_bytes for value in (*inputs, *outputs))),
    }


def predict_calls(
    method: Method,
) -> Iterator[tuple[_Columns, Instruction, tuple[XNode, ...], Mapping[int, XValue]]]:
    """The columns of each operator that would run, which is known before there is a trace.

    With its instruction and, of a delegate, the nodes that it does and the values by id.
    """
    for call in method.instructions:
        if call.kind == "kernel":
            yield attribute_kernel(method, call), call, (), {}
        values = {value.id: value for value in call.xvalues}
        for operator in predict_operators(call.xvalues, call.xnodes) if call.xnodes else ():
            if operator.sources:
                columns = attribute_operator(method, call, values, operator)
                yield columns, call, tuple(call.xnodes[n] for n in operator.sources), values


def _layer_columns(origin: Origin | None) -> _Columns:
    """The layer and the source line, where they are known."""
    if origin is None:
        return {}
    layer = {"module": origin.module, "module_class": origin.module_class}
    return (layer if origin.module_class else {}) | {"source": origin.source or None}


def _paths(origins: Iterable[Origin | None], layer: Origin | None) -> str:
    """The paths of further layers, except quantisation."""
    main = layer.module if layer else None
    paths = dict.fromkeys(
        origin.module
        for origin in origins
        if origin and origin.module_class and "quantize" not in origin.operator
    )
    return ", ".join(path for path in paths if path != main)


def _shapes(inputs: Iterable[Value | XValue], outputs: Iterable[Value | XValue]) -> str:
    sides = (
        ", ".join("x".join(map(str, value.shape)) or "1" for value in side)
        for side in (inputs, outputs)
    )
    return " -> ".join(sides).strip()


#: Confidence in a row's layer, the highest first.
CONFIDENCES = ("exact", "fitted", "ambiguous", "unattributed")
_EXACT, _FITTED, _AMBIGUOUS, _UNATTRIBUTED = CONFIDENCES

#: Columns of ``frames.ATTRIBUTION`` that depend on sizes, where these are unknown.
UNSIZED: _Columns = {"shapes": None, "flops": np.nan, "bytes": np.nan}
_UNKNOWN: _Columns = dict.fromkeys(ATTRIBUTION.names)
_UNKNOWN |= {"role": "overhead", "flops": np.nan, "bytes": np.nan, "confidence": _UNATTRIBUTED}


def attribute_layers(ledger: pd.DataFrame, layers: Layers) -> pd.DataFrame:
    """The layer of every operator of one measurement, and the confidence in it.

    ``frames.ATTRIBUTION``, one row per key of the ledger. Without origins, the sidecar gives shapes
    and costs, but no modules. Kernels of ExecuTorch are known by the number of their instruction.
    XNNPACK logs the operators of a delegate by name and in order only, after rewriting what was
    exported: its rewrites are replayed, and the predicted operators are aligned with the log.

    - ``exact``: number and name of the instruction agree; or all operators of the delegate are as
      predicted; or the ETRecord maps the event of another delegate.
    - ``fitted``: they are so once the CPU is assumed to lack certain fp16 kernels; or some operator
      of the delegate is not explained, but this one is unambiguous.
    - ``ambiguous``: it may belong to another layer; the most likely one is named.
    - ``unattributed``: time of no layer (the framework, a delegate as a whole), a delegate that
      logs nothing, or an operator without explanation.
    """
    LEDGER.check(ledger)
    columns = ["key", "kind", "name", "operator", "instruction"]
    rows = ledger.drop_duplicates("key")[columns].astype(dict.fromkeys(columns[:4], object))
    keys = [Key.parse(key) for key in rows["key"]]
    rows["method"] = [key.method for key in keys]
    chain = np.array([key.chain for key in keys])
    # Whether an operator's instruction does the same in every run of its method.
    times = rows["key"].map(ledger["key"].astype(object).value_counts())
    group = times.groupby([rows["method"], rows["instruction"]])
    rows["steady"] = group.transform("min") == group.transform("max")
    places: dict[str, _Columns] = {}
    # A program has one chain; the sidecar does not cover others.
    for _, part in rows[chain == 0].groupby("method"):
        method = find_method(part, layers)
        if method is not None:
            places.update(_attribute_method(part, method))
    table = pd.DataFrame([{**_UNKNOWN, **places.get(key, {}), "key": key} for key in rows["key"]])
    return ATTRIBUTION.check(table[ATTRIBUTION.names])


def find_method(rows: pd.DataFrame, layers: Layers) -> Method | None:
    """The method whose instructions are those that the rows name; None if there is none."""
    calls = rows[rows["kind"].isin(["portable", "delegate_overhead"])]
    pairs = list(zip(calls["instruction"], calls["operator"], strict=True))
    for method in layers.methods:
        if pairs and all(_agrees(method.instructions, *pair) for pair in pairs):
            return method
    return None


def _agrees(instructions: Sequence[Instruction], number: int, name: str) -> bool:
    """Whether an instruction is a delegate, or the kernel that a row names."""
    if not 0 <= number < len(instructions):
        return False
    instruction = instructions[number]
    kernel = f"native_call_{instruction.name.rpartition('::')[2]}"
    if instruction.kind == "kernel":  # custom kernels log their full name
        return name in ("OPERATOR_CALL", kernel, instruction.name)
    is_delegate = instruction.kind == "delegate" and not name.startswith("native_call_")
    return name == "OPERATOR_CALL" or is_delegate


def _attribute_method(rows: pd.DataFrame, method: Method) -> _Attributed:
    learned: frozenset[str] = frozenset()
    ordered = rows[rows["instruction"] >= 0].sort_values("instruction", kind="stable")
    # Tuples: a frame for each of a thousand instructions would take a second.
    for number, group in groupby(ordered.itertuples(), key=attrgetter("instruction")):
        if number >= len(method.instructions):
            break
        instruction = method.instructions[number]
        if instruction.kind == "kernel":
            # Those that the emitter adds for dynamic sizes have no origin.
            lost = instruction.origin is None and method.origins
            confidence = _UNATTRIBUTED if lost else _EXACT
            compute = {**attribute_kernel(method, instruction), "confidence": confidence}
            overhead = {**compute, "role": "overhead", "flops": 0.0, "bytes": 0.0}
            for row in group:
                yield row.key, compute if row.kind == "portable" else overhead
        elif instruction.xnodes:
            for call in _delegate_calls(group):
                match = match_graph(instruction, [row.operator for row in call], learned)
                learned = match.lacking if match.complete else learned
                yield from _attribute_call(call, match, method, instruction)
        else:  # of another delegate than XNNPACK: events by the number or name that it logs
            for row in group:
                numbers = instruction.events.get(row.name, ())
                if row.kind == "delegated" and numbers:
                    yield row.key, {**_event_columns(method, numbers), "confidence": _EXACT}


def _delegate_calls(rows: Iterable[Any]) -> Iterator[list[Any]]:
    """The operators of each call of a delegate; its overhead row ends a call."""
    call = []
    for row in rows:
        if row.kind == "delegated":
            call.append(row)
        elif row.kind == "delegate_overhead":
            yield call
            call = []
    if call:
        yield call


def _attribute_call(
    rows: list[Any], match: GraphMatch, method: Method, instruction: Instruction
) -> _Attributed:
    values = {value.id: value for value in instruction.xvalues}
    columns_of = partial(attribute_operator, method, instruction, values)
    for row, pair, alternatives in zip(rows, match.pairs, match.alternatives, strict=True):
        if pair < 0:
            yield row.key, {"role": None}
            continue
        columns = columns_of(match.operators[pair])
        modules = {columns_of(match.operators[other]).get("module") for other in alternatives}
        doubtful = not match.complete and modules - {columns.get("module")}
        confidence = _EXACT if match.complete and not match.lacking else _FITTED
        if not row.steady or doubtful:
            confidence = _AMBIGUOUS
        yield row.key, {**columns, "confidence": confidence}
