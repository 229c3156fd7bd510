"""What takes the place of a part of a traced graph, as a function that a person could write."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.fx import GraphModule, Node

from workbench.upstream import schema_name


class Unwritable(Exception):
    """A remedy has no lines in the source; the message says why, as the end of a sentence."""


@dataclass(frozen=True)
class Replacement:
    """What takes the place of a part of a traced graph: of its operators, from one to one result.

    ``graph`` computes it from ``sources`` and then ``constants``; all are names of nodes.
    ``remedy`` is the name of what does that, ``text`` how.
    """

    nodes: tuple[str, ...]
    sources: tuple[str, ...]
    result: str
    graph: GraphModule
    constants: tuple[torch.Tensor, ...] = ()
    remedy: str = ""
    text: str = ""

    def write(self, name: str) -> str:
        """It as a function of its sources; `Unwritable` if it cannot be one."""
        return write_function(name, self.text, self.graph, self.constants, len(self.sources))


#: Operators of two operands.
_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "matmul": "@", "mm": "@"}
#: Elements of a constant that is written out, at most.
_MOST_ELEMENTS = 32
#: Letters of an expression that is written where it is read, at most.
_SHORT = 48
_INDENT = "    "
#: Ends of slices from which on they have all elements.
_OPEN_END = 2**31
#: Arguments of functions that make tensors, which say what is so by default.
_DEFAULTS = {"layout": torch.strided, "device": torch.device("cpu"), "pin_memory": False}


def write_function(
    name: str, text: str, graph: GraphModule, constants: Sequence[torch.Tensor], sources: int
) -> str:
    """The source of a function of the first ``sources`` inputs of a graph; the rest are constants.

    `Unwritable` if a constant is large.
    """
    graph.graph.eliminate_dead_code()
    nodes = list(graph.graph.nodes)
    placeholders = [node for node in nodes if node.op == "placeholder"]
    parameters = ["x", "y", "z"] if sources <= 3 else [f"x{n}" for n in range(sources)]
    written: dict[Node, str] = dict(zip(placeholders[:sources], parameters, strict=False))
    for node, constant in zip(placeholders[sources:], constants, strict=True):
        written[node] = _write_constant(constant)
    lines = [f"def {name}({', '.join(parameters[:sources])}):"]
    lines += [f'{_INDENT}"""{_describe(text, placeholders[:sources], parameters)}"""']
    number = 1
    for node in nodes:
        if node.op == "get_attr":
            written[node] = _write_constant(getattr(graph, str(node.target)))
        elif node.op == "call_function":
            expression = _write_call(node, written)
            is_last = any(user.op == "output" for user in node.users)
            written[node] = expression
            if len(node.users) > 1 or not (is_last or len(expression) <= _SHORT):
                written[node] = f"v{number}"
                number += 1
                lines.append(f"{_INDENT}{written[node]} = {_strip(expression)}")
        elif node.op == "output":
            (result,) = node.all_input_nodes[:1] or [None]
            if result is None or len(node.all_input_nodes) > 1:
                raise Unwritable("it has several results")
            lines.append(f"{_INDENT}return {_strip(written[result])}")
    return "\n".join(lines) + "\n"


def _describe(text: str, sources: Sequence[Node], parameters: Sequence[str]) -> str:
    """What the function does, and for which shapes."""
    shapes = (
        f"{name} of {'x'.join(map(str, node.meta['val'].shape))}"
        for name, node in zip(parameters, sources, strict=False)
    )
    words = f"{f'{text}, ' * bool(text)}for {', '.join(shapes)}."
    words = f"{words[:1].upper()}{words[1:]}"
    return words.replace("\\", "/").replace('"', "'")


def _strip(expression: str) -> str:
    """An expression without parentheses around all of it."""
    depth = 0
    for place, letter in enumerate(expression):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            is_whole = place and place == len(expression) - 1
            return expression[1:-1] if is_whole else expression
    return expression


def _write_call(node: Node, written: Mapping[Node, str]) -> str:
    """A call of an operator, as one would write it."""
    target: Any = node.target
    args = [_write_value(each, written) for each in node.args]
    defaults = {k for k, v in node.kwargs.items() if k in _DEFAULTS and v in (None, _DEFAULTS[k])}
    kwargs = {k: _write_value(v, written) for k, v in node.kwargs.items() if k not in defaults}
    if target is operator.getitem:
        return f"{args[0]}[{args[1]}]"
    if not (name := schema_name(target).partition("::")[2]):
        raise Unwritable("its sizes depend on the inputs")
    if name in _INFIX and len(args) == 2 and not kwargs:
        return f"({args[0]} {_INFIX[name]} {args[1]})"
    if name == "slice" and (indices := _write_slice(node)):
        return f"{args[0]}[{indices}]"
    for owner, prefix in ((torch, "torch"), (torch.nn.functional, "torch.nn.functional")):
        if hasattr(owner, name):
            return f"{prefix}.{name}({_join(args, kwargs)})"
    if hasattr(torch.Tensor, name):
        return f"{args[0]}.{name}({_join(args[1:], kwargs)})"
    return f"torch.ops.{target!s}({_join(args, kwargs)})"


def _write_slice(node: Node) -> str:
    """``:, 1:3`` for a slice along a dimension; empty if it is not known."""
    source, *given = node.args
    dim, start, end, step = cast(list[Any], [*given, *(0, None, None, 1)[len(given) :]])
    if not all(isinstance(each, int | None) for each in (dim, start, end, step)):
        return ""
    rank = cast(Node, source).meta["val"].dim()
    ends = [str(start or ""), "" if end is None or end >= _OPEN_END else str(end)]
    ends += [str(step)] if step not in (None, 1) else []
    return ", ".join([*[":"] * (dim % rank), ":".join(ends)])


def _join(args: Sequence[str], kwargs: Mapping[str, str]) -> str:
    return ", ".join([*map(_strip, args), *(f"{k}={v}" for k, v in kwargs.items())])


def _write_value(value: Any, written: Mapping[Node, str]) -> str:
    if isinstance(value, Node):
        return written[value]
    if isinstance(value, list | tuple):
        return f"[{', '.join(_strip(_write_value(each, written)) for each in value)}]"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return str(value)
    if isinstance(value, torch.device):
        return f'torch.device("{value}")'
    raise Unwritable("its sizes depend on the inputs")


def _write_constant(constant: torch.Tensor) -> str:
    if constant.numel() > _MOST_ELEMENTS:
        shape = "x".join(map(str, constant.shape))
        raise Unwritable(f"the export computes a constant for it, of {shape}")
    return f"torch.tensor({constant.tolist()}, dtype={constant.dtype})"
