"""Operators of a graph that compute the same at every call, and change nothing that others read."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from workbench.upstream import find_schema

aten: Any = torch.ops.aten
#: Convolutions and matrix products.
PRODUCTS = {
    aten.linear.default, aten.matmul.default, aten.mm.default, aten.bmm.default,
    aten.addmm.default, aten.conv1d.default, aten.conv2d.default, aten.conv2d.padding,
    aten.conv3d.default, aten.convolution.default, aten.einsum.default,
}  # fmt: skip
#: Operators that only arrange data: they count as no work.
VIEWS = {
    aten.view.default, aten.reshape.default, aten.unsqueeze.default, aten.squeeze.dim,
    aten.squeeze.dims, aten.squeeze.default, aten.unflatten.int, aten.flatten.using_ints,
    aten.detach.default, aten.detach_.default, aten.alias.default, aten.expand.default,
    aten.contiguous.default, aten.clone.default, aten.dropout.default, aten.to.dtype,
    operator.getitem,
}  # fmt: skip


def drop_unused(graph: Graph) -> None:
    """Remove operators whose results are unused; keep those that begin and end a ``vmap``."""
    graph.eliminate_dead_code(
        lambda node: node.is_impure() or "functorch" in str(getattr(node.target, "__module__", ""))
    )


def readers(node: Node) -> list[Node]:
    """The users of a node, other than checks of its type."""
    return [user for user in node.users if "_assert" not in str(user.target)]


def function_of(node: Node) -> Any:
    """What a node calls; of an operator that overwrites its operand, the one that does not."""
    target: Any = node.target
    schema = find_schema(target)
    if schema is None or not schema.is_mutable:
        return target
    name = schema.name.removeprefix("aten::").removesuffix("_")
    packet = getattr(aten, name, None) if schema.name.endswith("_") else None
    return getattr(packet, schema.overload_name or "default", target)


def overwrites(node: Node) -> bool:
    """Whether a node changes one of its operands."""
    schema = find_schema(node.target)
    return schema is not None and schema.is_mutable


#: Marks operators whose result another one overwrites in part.
_OVERWRITTEN = "overwritten"


def mark_overwritten(nodes: Sequence[Node]) -> None:
    """Mark what is overwritten in place, and what shares its memory: values that depend on when."""
    for node in nodes:
        node.meta.pop(_OVERWRITTEN, None)
    for node in nodes:
        if node.op == "call_function" and overwrites(node) and not is_pure(node):
            root = find_root(node)
            while root.op == "call_function" and _is_alias(root):  # what was overwritten before
                root = find_root(root)
            for view in list_aliases(root, _is_alias):
                view.meta[_OVERWRITTEN] = True


def find_root(node: Node) -> Node:
    """The tensor that a node overwrites, itself or through views of it."""
    root: Any = node.args[0]
    while root.op == "call_function" and _is_view(root):
        root = root.args[0]
    return root  # type: ignore[no-any-return]


def list_aliases(root: Node, is_alias: Callable[[Node], bool] | None = None) -> list[Node]:
    """A tensor and all views of it, or what else shares its memory."""
    views, is_alias = [root], is_alias or _is_view
    for view in views:  # which grows
        views += [user for user in view.users if user.args[:1] == (view,) and is_alias(user)]
    return views


def is_overwritten(node: Node) -> bool:
    """Whether another operator overwrites the result of a node, or what it is a view of."""
    return _OVERWRITTEN in node.meta


def _is_alias(node: Node) -> bool:
    """Whether a result may be the memory of the first operand, as a view or as it overwrites it."""
    return _is_view(node) or function_of(node) is not node.target


def _is_view(node: Node) -> bool:
    """Whether the result of a node may share the memory of its operand."""
    schema = find_schema(function_of(node))
    returns = [] if schema is None else schema.returns
    if node.target is aten.clone.default:
        return False
    return node.target in VIEWS or any(each.alias_info is not None for each in returns)


def is_pure(node: Node) -> bool:
    """Whether a node computes the same at every call, and changes nothing that others read."""
    target: Any = function_of(node)
    if target is operator.getitem:
        return True
    schema = find_schema(target)
    if node.op != "call_function" or schema is None or schema.is_mutable:
        return False
    if target is not node.target:  # it overwrites its operand, which must be its own
        source: Any = node.args[0]
        if len(readers(source)) > 1 or source.op != "call_function" or _is_view(source):
            return False
        if _is_alias(source) and not is_pure(source):
            return False
    if is_overwritten(node):
        return False
    return torch.Tag.nondeterministic_seeded not in target.tags
