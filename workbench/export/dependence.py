"""Which inputs, mutable buffers and random numbers each node of a traced graph depends on."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from itertools import chain, zip_longest
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import GraphModule, Node

from workbench.export.control_flow import list_bodies
from workbench.records.exports import Cone
from workbench.upstream import find_schema, tree_leaves

aten: Any = torch.ops.aten
#: In place, without reading what was there.
_OVERWRITING = {aten.copy_.default, aten.zero_.default, aten.fill_.Scalar, aten.fill_.Tensor}
#: What may return an operand, or views of it, and does not say so in its schema.
_SHARING = {
    aten.meshgrid.default, aten.meshgrid.indexing, aten.broadcast_tensors.default,
    aten.type_as.default, aten.sum_to_size.default, aten.einsum.default, operator.getitem,
}  # fmt: skip
#: Control flow whose first results are read again by the next turn.
_LOOPS = ("while_loop", "scan")
#: Operators that a record names at most; of a larger graph it has none.
MOST_NODES = 20_000


class Dependence:
    """What each node of a graph depends on, through overwritten tensors and control flow.

    What may be overwritten by an operator depends on what is written from there on; parameters,
    and buffers that nothing writes, are constants.

    Attributes
    ----------
    sources
        The names of inputs, then of buffers that are written, then ``random``.
    written
        By buffer, the node that is its placeholder.
    """

    def __init__(self, exported: ExportedProgram) -> None:
        signature = exported.graph_signature
        self.inputs = [name for name in signature.user_inputs if isinstance(name, str)]
        buffers = signature.inputs_to_buffers
        places = {name: 1 << place for place, name in enumerate([*self.inputs, *buffers])}
        self._random = 1 << len(places)
        self._bits = {buffers.get(name, name): bit for name, bit in places.items()}
        #: The tensors that a node may share memory with, and what each has now.
        self._roots: dict[Node, frozenset[Node]] = {}
        self._memory: dict[Node, int] = {}
        #: What the results of control flow depend on, one by one.
        self._parts: dict[Node, list[int]] = {}
        self._overwritten: set[Node] = set()
        self._masks: defaultdict[Node, int] = defaultdict(int)
        placeholders = [n for n in exported.graph.nodes if n.op == "placeholder"]
        results = self._walk(exported.graph_module, [places.get(n.name, 0) for n in placeholders])
        written = {
            buffers[n.name]: self._memory[n]
            for n in placeholders
            if n.name in buffers and n in self._overwritten
        }
        for spec, mask in zip(signature.output_specs, results, strict=True):
            if spec.kind == OutputKind.BUFFER_MUTATION and spec.target:
                written[spec.target] = mask
        constant = sum(bit for name, bit in self._bits.items() if name in {*buffers.values()})
        self._kept = ~(constant & ~sum(self._bits[name] for name in written))
        self.written = {name: mask & self._kept for name, mask in written.items()}

    def of(self, node: Node) -> frozenset[str]:
        """The names of the inputs and of the buffers that a node depends on."""
        return self._name(self._masks[node])

    def is_fixed(self, node: Node) -> bool:
        """Whether a node depends on constants alone."""
        return not self._masks[node] & self._kept

    def is_random(self, node: Node) -> bool:
        """Whether a node depends on random numbers."""
        return bool(self._masks[node] & self._random)

    def _name(self, mask: int) -> frozenset[str]:
        return frozenset(name for name, bit in self._bits.items() if mask & self._kept & bit)

    def list_cones(self, nodes: Iterable[Node]) -> tuple[Cone, ...]:
        """Operators of the graph by what they depend on; none of very many."""
        names: defaultdict[int, list[str]] = defaultdict(list)
        for node in nodes:
            if node.op == "call_function":
                names[self._masks[node] & self._kept].append(node.name)
        states: defaultdict[int, list[str]] = defaultdict(list)
        for buffer, mask in self.written.items():
            states[mask].append(buffer)
        if sum(map(len, names.values())) > MOST_NODES:
            return ()
        inputs = {*self.inputs}
        return tuple(
            Cone(
                tuple(name for name in self._bits if name in sources & inputs),
                tuple(name for name in self._bits if name in sources - inputs),
                bool(mask & self._random),
                tuple(names[mask]),
                tuple(states[mask]),
            )
            for mask in dict.fromkeys([*names, *states])
            for sources in [self._name(mask)]
        )

    def _walk(self, module: GraphModule, given: Sequence[int]) -> list[int]:
        """Visit the nodes of a graph whose inputs depend on these; what its outputs depend on."""
        masks = iter(given)
        results: list[int] = []
        for node in module.graph.nodes:
            if node.op == "output":
                results = [self._read([each]) for each in tree_leaves(node.args[0])]
                continue
            self._roots[node] = frozenset([node])
            mask = next(masks, 0) if node.op == "placeholder" else 0
            if node.op in ("call_function", "call_module"):
                mask = self._call(node, module)
            if node in self._roots[node]:
                self._memory[node] = mask
            self._masks[node] |= mask
        return results

    def _read(self, arguments: Iterable[Any]) -> int:
        """What some arguments depend on now."""
        roots = chain.from_iterable(self._roots[node] for node in _list_nodes([*arguments]))
        return _join(self._memory[root] for root in roots)

    def _call(self, node: Node, module: GraphModule) -> int:
        """What the result of an operator depends on; it may write into its operands."""
        if bodies := list_bodies(node, module):
            self._parts[node] = self._run(node, bodies)
            return _join(self._parts[node])
        if node.target is operator.getitem and node.args[0] in self._parts:
            return self._parts[node.args[0]][node.args[1]]  # type: ignore[index]
        given = list(_name_arguments(node))
        written = [value for _, value, writes in given if writes]
        whole = node.target in _OVERWRITING
        mask = self._read(
            value for name, value, writes in given if not (writes and (whole or name == "out"))
        )
        mask |= self._random * _is_random(node)
        targets = _list_nodes(written)
        for target in targets:
            for root in self._roots[target]:
                replaced = whole and self._roots[target] == {target}
                self._memory[root] = mask if replaced else self._memory[root] | mask
                self._overwritten.add(root)
        if shared := targets or _list_shared(node):
            self._roots[node] = frozenset(chain.from_iterable(self._roots[n] for n in shared))
        return mask

    def _run(self, node: Node, bodies: Sequence[GraphModule]) -> list[int]:
        """What each result of control flow depends on."""
        name = getattr(node.target, "__name__", "")
        lists = [each for each in node.args if isinstance(each, list | tuple)]
        operands = [self._read([each]) for each in chain.from_iterable(lists)]
        singles = [each for each in node.args if not isinstance(each, list | tuple)]
        decides = self._read(singles)  # which branch
        if name not in ("cond", "map_impl", *_LOOPS):  # the others are unknown
            everything = _join([decides, *operands])
            operands = [everything] * max(len(body.graph.nodes) for body in bodies)
        state = len(lists[0]) if name in _LOOPS and lists else 0
        while True:
            results = [self._walk(body, operands) for body in bodies]
            if name == "while_loop":
                decides |= _join(results[0])
                results = results[1:]
            joined = [_join(each) | decides for each in zip_longest(*results, fillvalue=0)]
            carried = [old | new for old, new in zip(operands[:state], joined, strict=False)]
            if carried == operands[:state]:
                return carried + joined[state:]
            operands[:state] = carried


def _join(masks: Iterable[int]) -> int:
    return reduce(operator.or_, masks, 0)


def _name_arguments(node: Node) -> Iterator[tuple[str, Any, bool]]:
    """The arguments of a call by name, and whether it writes into each."""
    schema = find_schema(node.target)
    if schema is None:
        yield from (("", value, False) for value in (*node.args, *node.kwargs.values()))
        return
    given = dict(zip((each.name for each in schema.arguments), node.args, strict=False))
    given.update(node.kwargs)
    for each in schema.arguments:
        value = given.get(each.name, each.default_value)
        yield each.name, value, each.alias_info is not None and each.alias_info.is_write


def _list_shared(node: Node) -> list[Node]:
    """The operands whose memory the result of a call may share."""
    schema, tags = find_schema(node.target), getattr(node.target, "tags", ())
    operands = [_list_nodes(each) for each in node.args]
    if node.target in _SHARING or torch.Tag.maybe_aliasing_or_mutating in tags:
        return next(filter(None, operands), [])
    arguments = [] if schema is None else schema.arguments
    named = zip(arguments, operands, strict=False)
    return [node for each, nodes in named if each.alias_info is not None for node in nodes]


def _list_nodes(arguments: Any) -> list[Node]:
    return [each for each in tree_leaves(arguments) if isinstance(each, Node)]


def _is_random(node: Node) -> bool:
    """Whether an operator draws random numbers, as it is called."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    given = {name: value for name, value, _ in _name_arguments(node)}
    trains = (given.get(name) for name in ("train", "training"))
    return not any(each is False for each in trains) and given.get("dropout_p") != 0
