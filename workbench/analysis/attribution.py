"""The layer of each row of a ledger, with its source line, shapes and cost, from the sidecar."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from typing import Any

import numpy as np
import pandas as pd

from workbench.analysis.ledger import Key
from workbench.analysis.xnnpack.operators import GraphMatch, Operator, match_graph
from workbench.frames import ATTRIBUTION, LEDGER, check
from workbench.records.layers import Instruction, Layers, Method, Origin, Value, XNode, XValue

#: Columns of ``frames.ATTRIBUTION``, and these by the key of a ledger row.
_Columns = dict[str, Any]
_Attributed = Iterator[tuple[str, _Columns]]


@dataclass(frozen=True)
class Provenance:
    """One instruction of a method; its operators as columns of ``frames.ATTRIBUTION``."""

    method: Method
    instruction: Instruction

    @cached_property
    def values(self) -> dict[int, XValue]:
        """The delegate's tensors by id."""
        return {value.id: value for value in self.instruction.xvalues}

    def of_kernel(self) -> _Columns:
        """The columns of a portable kernel."""
        instruction, values = self.instruction, self.method.values
        origin = None if instruction.origin is None else self.method.origins[instruction.origin]
        sides = instruction.inputs, instruction.outputs
        inputs, outputs = ([values[number] for number in side] for side in sides)
        return {
            **_layer(origin),
            "also": "",
            "nodes": origin.node if origin else None,
            "role": "compute",
            "shapes": _shapes([value for value in inputs if not value.constant], outputs),
            "flops": float("nan") if instruction.flops is None else float(instruction.flops),
            "bytes": float(instruction.bytes),
        }

    def of_event(self, numbers: Sequence[int]) -> _Columns:
        """The columns of a logged event, from the numbers of its origins, the main one first."""
        origins = [self.method.origins[number] for number in numbers]
        return {
            **_layer(origins[0]),
            **_no_cost("compute"),
            "also": _paths(origins, origins[0]),
            "nodes": ", ".join(dict.fromkeys(origin.node for origin in origins)),
        }

    def of_operator(self, operator: Operator) -> _Columns:
        """The columns of an operator that a delegate ran."""
        xnodes = self.instruction.xnodes
        done = [xnodes[number] for number in operator.sources or operator.serves]
        if not done:
            return {**_layer(None), **_no_cost("cast"), "also": "", "nodes": None, "xnodes": None}

        def weight(node: XNode) -> tuple[bool, int]:
            owns = node.role == "compute" and node.borrows is None and bool(node.origins)
            return owns, node.flops

        main = max(done, key=weight)
        layer = self.layer_of(main)
        # Casts and layout changes are not work of their layer.
        others = [self.layer_of(node) for node in done if node.role == "compute"]
        others += [self.method.origins[n] for node in done for n in node.absorbed]
        columns = {
            **_layer(layer),
            "also": _paths(others, layer),
            "nodes": self._node_names(done, main),
            "xnodes": ",".join(map(str, operator.sources)) or None,
        }
        if not operator.sources:
            return {**columns, **_no_cost("cast")}
        return {**columns, "role": main.role, **self._work(done)}

    def layer_of(self, node: XNode) -> Origin | None:
        """The layer of an exported operator: its own, or one that it borrows."""
        if node.borrows is not None:
            node = self.instruction.xnodes[node.borrows]
        return self.method.origins[node.origins[0]] if node.origins else None

    def _node_names(self, done: Sequence[XNode], main: XNode) -> str | None:
        ordered = [main, *(node for node in done if node is not main)]
        numbers = [n for node in ordered for n in node.origins]
        return ", ".join(dict.fromkeys(self.method.origins[n].node for n in numbers)) or None

    def _work(self, done: Sequence[XNode]) -> _Columns:
        """Shapes and cost of several exported operators that run as one."""
        made = {value for node in done for value in node.outputs}
        read = dict.fromkeys(v for node in done for v in node.inputs if v not in made)
        inputs = [self.values[value] for value in read]
        outputs = [self.values[value] for value in done[-1].outputs]
        return {
            "shapes": _shapes([v for v in inputs if v.role != "constant"], outputs),
            "flops": float(sum(node.flops for node in done)),
            "bytes": float(sum(value.size_bytes for value in (*inputs, *outputs))),
        }


def _layer(origin: Origin | None) -> _Columns:
    if origin is None:
        return dict.fromkeys(("module", "module_class", "source"))
    known = bool(origin.module_class)
    return {
        "module": origin.module if known else None,
        "module_class": origin.module_class if known else None,
        "source": origin.source or None,
    }


def _paths(origins: Iterable[Origin | None], layer: Origin | None) -> str:
    """The paths of further layers, except quantisation."""
    main = layer.module if layer else None
    paths = dict.fromkeys(
        origin.module
        for origin in origins
        if origin and origin.module_class and "quantize" not in origin.operator
    )
    return ", ".join(path for path in paths if path != main)


def _no_cost(role: str) -> _Columns:
    return {"role": role, "shapes": None, "flops": float("nan"), "bytes": float("nan")}


def _shapes(inputs: Iterable[Value | XValue], outputs: Iterable[Value | XValue]) -> str:
    sides = (
        ", ".join("x".join(map(str, value.shape)) or "1" for value in side)
        for side in (inputs, outputs)
    )
    return " -> ".join(sides).strip()


#: Confidence in a row's layer, the highest first.
CONFIDENCES = ("exact", "fitted", "ambiguous", "unattributed")
_EXACT, _FITTED, _AMBIGUOUS, _UNATTRIBUTED = CONFIDENCES

_UNKNOWN: _Columns = dict.fromkeys(ATTRIBUTION.names)
_UNKNOWN |= {**_no_cost("overhead"), "confidence": _UNATTRIBUTED}


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
      logs nothing, an operator without explanation, or one in the body of control flow, whose layer
      is not exported.
    """
    check(ledger, LEDGER)
    columns = ["key", "kind", "name", "operator", "instruction"]
    rows = ledger.drop_duplicates("key")[columns].astype(dict.fromkeys(columns[:4], object))
    keys = [Key.parse(key) for key in rows["key"]]
    rows["method"] = [key.method for key in keys]
    chain = np.array([key.chain for key in keys])
    # Whether an operator's instruction does the same in every run of its method.
    times = rows["key"].map(ledger["key"].astype(object).value_counts())
    group = times.groupby([rows["method"], rows["instruction"]])
    rows["steady"] = group.transform("min") == group.transform("max")
    known: dict[str, _Columns] = {}
    # A program has one chain; the sidecar does not cover others.
    for _, part in rows[chain == 0].groupby("method"):
        method = find_method(part, layers)
        if method is not None:
            known.update(_attribute_method(part, method))
    table = pd.DataFrame([{**_UNKNOWN, **known.get(key, {}), "key": key} for key in rows["key"]])
    return check(table[ATTRIBUTION.names], ATTRIBUTION)


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
        provenance = Provenance(method, instruction := method.instructions[number])
        if instruction.kind == "kernel":
            yield from _attribute_kernel(group, provenance)
        elif not instruction.xnodes:
            yield from _attribute_events(group, provenance)
        else:
            for call in _delegate_calls(group):
                match = match_graph(instruction, [row.operator for row in call], learned)
                learned = match.lacking if match.complete else learned
                yield from _attribute_call(call, match, provenance)


def _attribute_events(rows: Iterable[Any], provenance: Provenance) -> _Attributed:
    """The events of a delegate other than XNNPACK, by the number or name that it logs."""
    for row in rows:
        numbers = provenance.instruction.events.get(row.name, ())
        if row.kind == "delegated" and numbers:
            yield row.key, {**provenance.of_event(numbers), "confidence": _EXACT}


def _attribute_kernel(rows: Iterable[Any], provenance: Provenance) -> _Attributed:
    # Kernels in the body of control flow have no origin.
    lost = provenance.instruction.origin is None and provenance.method.origins
    compute = {**provenance.of_kernel(), "confidence": _UNATTRIBUTED if lost else _EXACT}
    overhead = {**compute, "role": "overhead", "flops": 0.0, "bytes": 0.0}
    for row in rows:
        yield row.key, compute if row.kind == "portable" else overhead


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


def _attribute_call(rows: list[Any], match: GraphMatch, provenance: Provenance) -> _Attributed:
    operators = match.operators
    for row, pair, others in zip(rows, match.pairs, match.alternatives, strict=True):
        if pair < 0:
            yield row.key, {"role": None}
            continue
        columns = provenance.of_operator(operators[pair])
        modules = {provenance.of_operator(operators[other])["module"] for other in others}
        doubtful = not match.complete and modules - {columns["module"]}
        confidence = _EXACT if match.complete and not match.lacking else _FITTED
        if not row.steady or doubtful:
            confidence = _AMBIGUOUS
        yield row.key, {**columns, "confidence": confidence}
