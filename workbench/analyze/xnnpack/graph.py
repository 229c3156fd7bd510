"""A delegate's operators as XNNPACK sees them while it rewrites them: who makes and reads what."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False)
class Tensor:
    """A value of the graph.

    ``producer``, ``reader`` (the first one) and ``readers`` (how many, an output of the graph
    counting as one) are brought up to date by `Graph.count`.
    """

    id: int
    dtype: str
    shape: tuple[int, ...] = ()
    constant: bool = False
    is_input: bool = False
    is_output: bool = False
    zero_point: int = 0
    producer: Node | None = None
    reader: Node | None = None
    readers: int = 0
    shape_known: bool = False
    alive: bool = True
    was_half: bool = False

    @property
    def external(self) -> bool:
        """Whether the caller provides or receives it."""
        return self.is_input or self.is_output


@dataclass(eq=False)
class Node:
    """An operator; ``sources`` are the exported ones whose work it does, in order.

    ``operator`` names the function of a ``unary``, ``binary`` or ``convert`` node. A node that a
    rewrite put in for others ``serves`` their exported operators.
    """

    kind: str
    operator: str
    inputs: list[int]
    outputs: list[int]
    sources: list[int]
    parameters: dict[str, Any] = field(default_factory=dict)
    serves: list[int] = field(default_factory=list)
    live: bool = True

    def is_unary(self, operator: str) -> bool:
        """Whether it is this function of one tensor."""
        return self.kind == "unary" and self.operator == operator


class Graph:
    """Nodes in order of execution, and their values by id."""

    def __init__(self) -> None:
        self.values: dict[int, Tensor] = {}
        self.nodes: list[Node] = []

    def new_tensor(self, dtype: str, shape: tuple[int, ...]) -> Tensor:
        """A further intermediate value."""
        tensor = Tensor(max(self.values, default=-1) + 1, dtype, shape)
        self.values[tensor.id] = tensor
        return tensor

    def live_nodes(self) -> list[Node]:
        """The nodes that are left, in order; safe to change while going through them."""
        return [node for node in self.nodes if node.live]

    def producer_of(self, value: int) -> Node | None:
        """What makes a value, if that is still a node of the graph."""
        node = self.values[value].producer
        return node if node is not None and node.live else None

    def count(self) -> None:
        """Work out anew who makes and who reads each value."""
        for tensor in self.values.values():
            tensor.producer = tensor.reader = None
            tensor.readers = int(tensor.is_output)
        for node in self.live_nodes():
            for value in dict.fromkeys(node.inputs):
                tensor = self.values[value]
                tensor.reader = tensor.reader or node
                tensor.readers += 1
            for value in node.outputs:
                self.values[value].producer = node

    def clean_up(self) -> None:
        """Remove what nobody reads, and put the rest in XNNPACK's order."""
        changed = True
        while changed:
            self.count()
            changed = False
            for tensor in list(self.values.values()):
                if tensor.alive and not tensor.is_input and tensor.readers == 0:
                    changed |= self._remove_producer(tensor)
                    tensor.alive = False
        self._sort()
        self.count()

    def _remove_producer(self, tensor: Tensor) -> bool:
        node = tensor.producer
        if node is None or not node.live or len(node.outputs) != 1:
            return False
        node.live = False
        for value in dict.fromkeys(node.inputs):
            source = self.values[value]
            if source.is_input:
                continue
            source.readers -= 1
            if source.readers == 0:
                self._remove_producer(source)
                source.alive = False
        return True

    def _sort(self) -> None:
        """Order nodes so that inputs come first: in passes, each keeping the order of the last."""
        ready = {t.id for t in self.values.values() if t.producer is None or t.is_input}
        left, ordered = self.live_nodes(), []
        while left:
            waiting = []
            for node in left:
                if ready.issuperset(node.inputs):
                    ordered.append(node)
                    ready.update(node.outputs)
                else:
                    waiting.append(node)
            if len(waiting) == len(left):
                ordered += waiting
                break
            left = waiting
        self.nodes = ordered

    def short_circuit(self, source: int, result: int) -> bool:
        """Let whoever reads ``result`` read ``source`` instead; False if that cannot be done."""
        kept, dropped = self.values[source], self.values[result]
        if dropped.is_output:
            maker = kept.producer
            if kept.is_output or maker is None:
                return False
            maker.outputs = [result if value == source else value for value in maker.outputs]
            dropped.producer = maker
            kept, dropped = dropped, kept
        kept.readers -= 1
        kept.reader = None
        for node in self.live_nodes():
            reads = {kept.id, dropped.id}.intersection(node.inputs)
            if not reads:
                continue
            kept.reader = kept.reader or node
            if dropped.id in reads:
                kept.readers += kept.id not in reads
                node.inputs = [kept.id if v == dropped.id else v for v in node.inputs]
        return True
