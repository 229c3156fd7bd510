"""The first operator of a program whose values are no numbers, or differ from PyTorch's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import getitem
from typing import TYPE_CHECKING, Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from workbench.export import accuracy
from workbench.export.part import cut_out, record_values
from workbench.export.purity import is_overwritten, mark_overwritten
from workbench.models.sources import user_line_of_node
from workbench.records.exports import Cause, Fidelity
from workbench.upstream import operator_label, schema_name

if TYPE_CHECKING:
    from executorch.exir import ExecutorchProgramManager

Lower = Callable[[ExportedProgram], "ExecutorchProgramManager"]


def find_cause(
    exported: ExportedProgram, inputs: Sequence[Any], output: int, lower: Lower, least_db: float
) -> tuple[str, Cause] | None:
    """The node after which an output of a graph is wrong or no numbers, and what is said of it.

    The graph runs in PyTorch, operator by operator. What makes no numbers there is the cause; else
    it is the first operator whose values differ in a program that returns those of all.
    """
    module = exported.module()
    values = record_values(module, inputs)
    (results,) = module.graph.output_node().args
    result: Any = results[output] if isinstance(results, list | tuple) else results
    nodes = _list_needed(module, result)
    if node := _find_unreal(nodes, values, values[result]):
        return node.name, _make_cause(node)
    compared = _list_compared(nodes, values)
    part = cut_out(module, nodes, values, compared)
    wanted = [values[node] for node in compared]
    for node, fidelity in zip(compared, _run(*part, wanted, lower, least_db), strict=True):
        if _is_wrong(fidelity):
            return node.name, _make_cause(node, fidelity.sqnr_db)
    return None


def _list_needed(module: GraphModule, result: Node) -> list[Node]:
    """The operators that a result needs, in order."""
    needed = {result}
    for node in reversed(module.graph.nodes):
        if node in needed:
            needed.update(node.all_input_nodes)
    return [n for n in module.graph.nodes if n in needed and n.op == "call_function"]


def _find_unreal(nodes: Iterable[Node], values: Mapping[Node, Any], result: Any) -> Node | None:
    """The first operator that makes NaN of numbers, or infinities, if the result has some."""
    for test in (torch.isnan, torch.isinf):
        if not _has(test, result):
            continue
        for node in nodes:
            sources = (values[source] for source in node.all_input_nodes)
            if _has(test, values[node]) and not any(_has(test, each) for each in sources):
                return node
    return None


def _has(test: Callable[[torch.Tensor], torch.Tensor], value: Any) -> bool:
    return isinstance(value, torch.Tensor) and bool(test(value).any())


def _list_compared(nodes: Sequence[Node], values: Mapping[Node, Any]) -> list[Node]:
    """The operators whose results can be compared.

    In a quantised graph, the ones that dequantise: others would no longer be delegated.
    """
    mark_overwritten(nodes)
    tensors = [n for n in nodes if isinstance(values[n], torch.Tensor) and not is_overwritten(n)]
    return [node for node in tensors if _is_dequantised(node)] or tensors


def _is_dequantised(node: Node) -> bool:
    """Whether a node gives back the result of an operator that was quantised."""
    source = node.args[0] if node.args else None
    is_result = isinstance(source, Node) and source.op == "call_function"
    return is_result and "dequantize" in schema_name(node.target)


def _run(
    module: GraphModule, inputs: list[Any], wanted: list[Any], lower: Lower, least_db: float
) -> tuple[Fidelity, ...]:
    """The outputs of the program of a module, compared with those of PyTorch."""
    with torch.no_grad():
        program = lower(torch.export.export(module, tuple(inputs)))
    outputs = accuracy.run_program(program.buffer, inputs)
    return accuracy.compare_with_model(outputs, wanted, least_db)


def _is_wrong(compared: Fidelity) -> bool:
    """Whether values differ; beside zeros, any rounding would."""
    unreal = compared.nan or compared.infinite or compared.model_infinite
    return compared.faithful is False and (compared.sqnr_db is not None or bool(unreal))


def _make_cause(node: Node, sqnr_db: float | None = None) -> Cause:
    """The operator that a user wrote, of one that quantises or takes a part of a result."""
    source: Any = node
    while source.target is getitem or "quantize" in schema_name(source.target):
        source = source.args[0]
    line = user_line_of_node(source) or user_line_of_node(node)
    return Cause(operator_label(source.target), line, sqnr_db)
