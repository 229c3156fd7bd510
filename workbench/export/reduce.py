"""The smallest part of a graph that a delegate computes wrongly, to attach to a report upstream."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from workbench.export import accuracy
from workbench.export.part import cut_out, record_values

if TYPE_CHECKING:
    from executorch.exir import ExecutorchProgramManager

Lower = Callable[[ExportedProgram], "ExecutorchProgramManager"]
#: The search ends with the smallest part so far.
_SECONDS = 30.0


class _Reducer:
    """The values of a graph's nodes, and the smallest part that was shown to be wrong."""

    def __init__(self, module: GraphModule, inputs: Sequence[Any], lower: Lower, least_db: float):
        self.module, self.lower, self.least_db = module, lower, least_db
        self.smallest: tuple[list[Node], Any, list[Any]] | None = None
        self.until = time.monotonic() + _SECONDS
        self.values = record_values(module, inputs)
        self.nodes = [node for node in module.graph.nodes if node.op == "call_function"]

    def take(self, first: int, last: int) -> list[Node]:
        """The nodes from ``first`` to ``last`` that the last one needs."""
        needed = {self.nodes[last]}
        for node in self.nodes[last:first:-1]:
            needed |= {*node.all_input_nodes} if node in needed else set()
        return [node for node in self.nodes[first : last + 1] if node in needed]

    def is_wrong(self, first: int, last: int) -> bool:
        """Whether the program of a part gives other values than PyTorch.

        False if it has none, or the time for the search is over.
        """
        if time.monotonic() > self.until:
            return False
        part = self.take(first, last)
        module, given = cut_out(self.module, part, self.values, part[-1:])
        try:
            with torch.no_grad():
                exported = torch.export.export(module, tuple(given))
                program = self.lower(exported)
            outputs = accuracy.run_program(program.buffer, given)
            fidelity = accuracy.compare_with_model(outputs, [self.values[part[-1]]], self.least_db)
        except Exception:  # not every part is a program
            return False
        if wrong := bool(accuracy.describe_problem(fidelity)):
            self.smallest = part, program, given
        return wrong


def find_wrong_part(
    exported: ExportedProgram, inputs: Sequence[Any], output: int, lower: Lower, least_db: float
) -> tuple[str, bytes] | None:
    """The operators of the smallest part by bisection, and its program, bundled with its values.

    None if no part is wrong by itself.
    """
    from executorch.devtools import BundledProgram
    from executorch.devtools.bundled_program.config import MethodTestCase, MethodTestSuite
    from executorch.devtools.bundled_program.serialize import (
        serialize_from_bundled_program_to_flatbuffer,
    )

    reducer = _Reducer(exported.module(), inputs, lower, least_db)
    (results,) = reducer.module.graph.output_node().args
    result: Any = results[output] if isinstance(results, list | tuple) else results
    needed = {*reducer.take(0, end := reducer.nodes.index(result))}
    ends = [n for n, node in enumerate(reducer.nodes[: end + 1]) if node in needed]
    # What is wrong up to an operator is wrong up to later ones, and from an earlier one on.
    last = ends[bisect_left(ends[:-1], True, key=lambda n: reducer.is_wrong(0, n))]
    bisect_left(range(1, last + 1), True, key=lambda n: not reducer.is_wrong(n, last))
    if reducer.smallest is None:
        return None
    part, program, given = reducer.smallest
    case = MethodTestCase(given, [reducer.values[part[-1]]])
    bundle = BundledProgram(program, [MethodTestSuite("forward", [case])])
    names = ", ".join(str(node.target).partition(".")[2].partition(".")[0] for node in part)
    return names, serialize_from_bundled_program_to_flatbuffer(bundle)
