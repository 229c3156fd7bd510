"""A model as two: what depends only on inputs that stay between its calls, and all else."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.export import Dim, ExportedProgram
from torch.fx import Graph, GraphModule, Node

from workbench import load_model
from workbench.api import UsageError
from workbench.graphs import (
    VIEWS,
    LoadedModel,
    drop_unused,
    record_values,
    silence,
    trace_model,
    tree_leaves,
)
from workbench.jobs import unknown_name
from workbench.plugins.remedies.subgraphs import list_fixed

if TYPE_CHECKING:
    from torch import nn

aten: Any = torch.ops.aten
#: What copies a part of its operand in a program, though it is a view of that in PyTorch.
_COPIES = {aten.slice.Tensor, aten.select.int}
#: What has nothing that its operand has not: it is computed in both parts.
_FREE = VIEWS | _COPIES | {aten.squeeze.default, aten.sym_size.int}
#: What one tensor more on the border costs, in bytes.
_TENSOR = 4096


@dataclass(frozen=True)
class Split:
    """A model in two parts: ``each(*others, *once(*constant))`` is what the model returns.

    Outputs and the tensors between are in a tuple if there are several. Both have their
    ``example_inputs``: ``wb.profile([split.once, split.each])`` measures them.

    Attributes
    ----------
    once
        From the inputs that stay to the tensors that the other part reads.
    each
        From all other inputs, and these tensors, to the outputs.
    constant, others, border
        The names of the inputs that stay, of the others that are read, and of these tensors.
    """

    once: nn.Module
    each: nn.Module
    constant: tuple[str, ...]
    others: tuple[str, ...]
    border: tuple[str, ...]


def split(
    model: LoadedModel | nn.Module | str, inputs: Any = None, *, constant: Sequence[str]
) -> Split:
    """Split a model into what depends only on some inputs, and what is left for each call.

    Parameters
    ----------
    model, inputs
        As for `load_model`.
    constant
        The inputs that stay between calls, by their names in ``forward``.

    Raises
    ------
    UsageError
        There are no such inputs, no others, or nothing depends on these alone.

    Examples
    --------
    >>> parts = wb.split(decoder, (ids, states), constant=("states",))  # doctest: +SKIP
    >>> between = parts.once(states)  # keys and values, once  # doctest: +SKIP
    >>> logits = parts.each(ids, *between)  # for each token  # doctest: +SKIP
    """
    if isinstance(constant, str):
        constant = (constant,)
    with silence():
        loaded = load_model(model, inputs)
        exported = trace_model(loaded).exported
    once, each = split_model(loaded, exported, constant)
    names = [_names_of(part.module) for part in (once, each)]
    count = len(once.module.graph.output_node().args[0])
    border = names[1][len(names[1]) - count :]
    varying_names = names[1][: len(names[1]) - count]
    return Split(_keep_inputs(once), _keep_inputs(each), names[0], varying_names, border)


def _keep_inputs(part: LoadedModel) -> GraphModule:
    """A part whose class has its name and its inputs, which a copy of a graph would lose."""
    made = type(part.name, (GraphModule,), {"example_inputs": part.example_inputs})
    module: GraphModule = made(part.module, part.module.graph, part.name)
    module.eval()
    return module


def split_model(
    model: LoadedModel, exported: ExportedProgram, constant: Collection[str]
) -> tuple[LoadedModel, LoadedModel]:
    """Both parts of a traced model, with the inputs that they have in it."""
    module = exported.module()
    nodes = list(module.graph.nodes)
    inputs = [node for node in nodes if node.op == "placeholder"]
    _check(constant, [node.name for node in inputs])
    stay = [node for node in inputs if node.name in constant]
    fixed = list_fixed(nodes)
    cone = list_fixed(nodes, stay) - fixed
    border = _choose_border(nodes, cone, {*stay})
    if not cone.intersection(border):
        raise UsageError("nothing is computed from these alone", where=", ".join(constant))
    varying_inputs = [node for node in inputs if node not in stay]
    work = {node for node in cone if node.target not in _FREE}
    once = _build(module, [node for node in nodes if node in cone | fixed], stay, results=border)
    each = _build(module, [node for node in nodes if node not in work], varying_inputs, border)
    state = {name: buffer.clone() for name, buffer in module.named_buffers()}
    calls = [
        record_values(module, _list_tensors(call), {*inputs, *border})
        for call in (exported.example_inputs, *model.calibration)
    ]
    for name, buffer in module.named_buffers():
        buffer.copy_(state[name])
    return _load(model, "once", once, stay, calls), _load(
        model,
        "each",
        each,
        [*varying_inputs, *(node for node in border if node not in varying_inputs)],
        calls,
    )


def _list_tensors(call: Any) -> list[torch.Tensor]:
    return [each for each in tree_leaves(call) if isinstance(each, torch.Tensor)]


def _check(constant: Collection[str], names: Sequence[str]) -> None:
    for name in constant:
        if name not in names:
            raise unknown_name("input", name, names)
    if {*constant} >= {*names}:
        raise UsageError("no input is left that changes", where=", ".join(constant))


def _load(
    model: LoadedModel, name: str, module: GraphModule, inputs: Sequence[Node],
    calls: Sequence[Mapping[Node, Any]],
) -> LoadedModel:  # fmt: skip
    """A part as a model, with what it reads in calls of the whole, and its dynamic sizes."""
    first, *further_calls = [tuple(call[node].contiguous() for node in inputs) for call in calls]
    shapes = tuple(
        {axis: Dim.AUTO for axis, size in enumerate(node.meta["val"].shape)
         if not isinstance(size, int)}
        for node in inputs
    )  # fmt: skip
    return replace(
        model, name=f"{model.name}_{name}", module=module, example_inputs=first, kwargs={},
        dynamic_shapes=shapes if any(shapes) else None, traced_inputs=None,
        calibration=tuple((call, {}) for call in further_calls), metadata={}, exported=None,
    )  # fmt: skip


def _names_of(module: GraphModule) -> tuple[str, ...]:
    return tuple(node.name for node in module.graph.nodes if node.op == "placeholder")


def _choose_border(nodes: Sequence[Node], cone: Collection[Node], stay: set[Node]) -> list[Node]:
    """The tensors that the rest reads of a part: the smallest ones after all of its work.

    What only arranges data is taken into the rest, where the tensor before it and the copies are
    smaller than all that is made of it.
    """
    border = [
        node
        for node in nodes
        if (node in cone or node in stay)
        and any(user not in cone and user.op != "call_module" for user in node.users)
    ]
    before: dict[Node, list[Node]] = {}
    copied: dict[Node, float] = defaultdict(float)
    for node in border:
        work, copies = _find_work(node, cone, stay)
        before.setdefault(work, []).append(node)
        copied[work] += copies
    chosen = set[Node]()
    for work, members in before.items():
        is_smaller = _cost(work) + copied[work] < sum(map(_cost, members))
        chosen.update([work] if is_smaller else members)
    return [node for node in nodes if node in chosen]


def _find_work(node: Node, cone: Collection[Node], stay: set[Node]) -> tuple[Node, float]:
    """The tensor that a node only arranges in another way, and the bytes that this copies."""
    tensor, copies = node, 0.0
    while node in cone and node.target in _FREE:
        sources = [each for each in node.all_input_nodes if each in cone or each in stay]
        if len(sources) != 1:
            break
        copies += (_cost(node) - _TENSOR) * (node.target in _COPIES)
        node = sources[0]
        tensor = node if _is_tensor(node) else tensor
    return tensor, copies


def _is_tensor(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _cost(node: Node) -> float:
    """What a tensor costs on the border; what is none cannot be there."""
    if not _is_tensor(node):
        return math.inf
    tensor = node.meta["val"]  # dynamic sizes count as 1
    count = math.prod(size for size in tensor.shape if isinstance(size, int))
    return float(_TENSOR + tensor.element_size() * count)


def _build(
    module: GraphModule, nodes: Iterable[Node], inputs: Iterable[Node],
    given: Sequence[Node] = (), results: Sequence[Node] = (),
) -> GraphModule:  # fmt: skip
    """Some nodes of a graph as a part: from inputs, and what is given, to results.

    These are the outputs of the whole by default.
    """
    graph, copies = Graph(), dict[Node, Node]()
    for node in (*inputs, *given):
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in module.graph.nodes:
        if node.op == "get_attr":
            copies[node] = graph.node_copy(node)
    for node in nodes:
        called = node not in copies and node.op == "call_function"
        if called and all(each in copies for each in node.all_input_nodes):
            copies[node] = graph.node_copy(node, copies.__getitem__)
    outputs = [*results] or tree_leaves(module.graph.output_node().args[0])
    returned = []
    for node in (copies[each] for each in outputs):
        # A program returns no input as it is.
        is_input = node.op == "placeholder"
        returned.append(graph.call_function(aten.clone.default, (node,)) if is_input else node)
    graph.output(tuple(returned) if results or len(returned) > 1 else returned[0])
    drop_unused(graph)
    part = GraphModule(module, graph)
    part.eval()
    return part
