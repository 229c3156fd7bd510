"""What the sidecar says of an operator that ran: layer, line, shapes, cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from workbench.analyze.xnnpack import Operator
from workbench.records import Instruction, Method, Origin, Value, XNode, XValue


@dataclass(frozen=True)
class Provenance:
    """One instruction of a method; its facts are the columns of ``schema.ATTRIBUTION``."""

    method: Method
    instruction: Instruction

    @cached_property
    def values(self) -> dict[int, XValue]:
        """The delegate's tensors by id."""
        return {value.id: value for value in self.instruction.xvalues}

    def of_kernel(self) -> dict[str, Any]:
        """The facts of a kernel of ExecuTorch's."""
        instruction, values = self.instruction, self.method.values
        origin = None if instruction.origin is None else self.method.origins[instruction.origin]
        inputs = [values[number] for number in instruction.inputs]
        return {
            **_layer(origin),
            "also": "",
            "nodes": origin.node if origin else None,
            "xnodes": None,
            "role": "compute",
            "shapes": _shapes(
                [value for value in inputs if not value.constant],
                [values[number] for number in instruction.outputs],
            ),
            "flops": _number(instruction.flops),
            "bytes": float(instruction.bytes),
        }

    def of_event(self, numbers: Sequence[int]) -> dict[str, Any]:
        """The facts of what a delegate logs, by the origins that it stands for, the main first."""
        origins = [self._origin(number) for number in numbers]
        return {
            **_layer(origins[0]),
            **_no_cost("compute"),
            "also": _paths(origins, origins[0]),
            "nodes": ", ".join(dict.fromkeys(origin.node for origin in origins)),
            "xnodes": None,
        }

    def of_operator(self, operator: Operator) -> dict[str, Any]:
        """The facts of an operator that a delegate ran."""
        xnodes = self.instruction.xnodes
        done = [xnodes[number] for number in operator.sources or operator.serves]
        if not done:
            return {**_layer(None), **_no_cost("cast"), "also": "", "nodes": None, "xnodes": None}
        main = max(done, key=lambda node: (self._owns_layer(node), node.flops))
        layer = self.layer_of(main)
        # What merely changes a type belongs to no layer that would miss it.
        others = [self.layer_of(node) for node in done if node.role == "compute"]
        others += [self._origin(n) for node in done for n in node.absorbed]
        facts = {
            **_layer(layer),
            "also": _paths(others, layer),
            "nodes": self._node_names(done, main),
            "xnodes": ",".join(map(str, operator.sources)) or None,
        }
        if not operator.sources:
            return {**facts, **_no_cost("cast")}
        return {**facts, "role": main.role, **self._work(done)}

    def layer_of(self, node: XNode) -> Origin | None:
        """The layer of an exported operator: its own, or the one that it borrows."""
        if node.borrows is not None:
            node = self.instruction.xnodes[node.borrows]
        return self._origin(node.origins[0]) if node.origins else None

    def _owns_layer(self, node: XNode) -> bool:
        return node.role == "compute" and node.borrows is None and bool(node.origins)

    def _origin(self, number: int) -> Origin:
        return self.method.origins[number]

    def _node_names(self, done: Sequence[XNode], main: XNode) -> str | None:
        ordered = [main, *(node for node in done if node is not main)]
        numbers = [n for node in ordered for n in node.origins]
        return ", ".join(dict.fromkeys(self._origin(n).node for n in numbers)) or None

    def _work(self, done: Sequence[XNode]) -> dict[str, Any]:
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


def _layer(origin: Origin | None) -> dict[str, Any]:
    known = origin is not None and bool(origin.module_class)
    return {
        "module": origin.module if known else None,
        "module_class": origin.module_class if known else None,
        "source": (origin.source or None) if origin else None,
    }


def _paths(origins: Iterable[Origin | None], layer: Origin | None) -> str:
    """The paths of further layers; quantisation is none."""
    paths = [
        origin.module
        for origin in origins
        if origin and origin.module_class and "quantize" not in origin.operator
    ]
    main = layer.module if layer else None
    return ", ".join(dict.fromkeys(path for path in paths if path != main))


def _no_cost(role: str) -> dict[str, Any]:
    return {"role": role, "shapes": None, "flops": float("nan"), "bytes": float("nan")}


def _shapes(inputs: Iterable[Value | XValue], outputs: Iterable[Value | XValue]) -> str:
    sides = [", ".join(_shape(value.shape) for value in side) for side in (inputs, outputs)]
    return " -> ".join(sides).strip()


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "1"


def _number(value: int | None) -> float:
    return float("nan") if value is None else float(value)
