"""What the partitioner gave to a backend, what it left behind, and why."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from workbench.export.quantize import module_path
from workbench.models.sources import user_line_of_stack
from workbench.records.runs import Partition

if TYPE_CHECKING:
    import torch
    from executorch.exir import EdgeProgramManager


#: Why a node of that name was left behind, in the partitioner's own words.
Reasons = dict[str, str]


@contextlib.contextmanager
def collect_reasons() -> Iterator[Reasons]:
    """Overhear what the partitioner would only log, for what is lowered in here."""
    from executorch.exir.backend.utils import WhyNoPartition

    reasons: Reasons = {}
    log = WhyNoPartition.__call__

    def keep(self: WhyNoPartition, node: torch.fx.Node, reason: str) -> None:
        reasons.setdefault(node.name, " ".join(reason.split()))
        log(self, node, reason)

    WhyNoPartition.__call__ = keep
    try:
        yield reasons
    finally:
        WhyNoPartition.__call__ = log


def tabulate_partition(
    edge: EdgeProgramManager, reasons: Reasons, backend: str
) -> tuple[Partition, ...]:
    """The operators of a lowered program, those left behind first, the most frequent ones first."""
    taken: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for node, delegated in _walk(edge):
        operator = node.target.__name__.removesuffix(".default")
        source = "" if delegated else user_line_of_stack(node.meta.get("stack_trace"))
        reason = "" if delegated else _reason(node, reasons, backend)
        taken[bool(delegated), operator, source, reason].append(module_path(node))
    ordered = sorted(taken.items(), key=lambda item: (item[0][0], -len(item[1]), item[0]))
    return tuple(
        Partition(
            operator=operator,
            count=len(paths),
            delegated=delegated,
            reason=reason,
            source=source,
            modules=() if delegated else tuple(dict.fromkeys(filter(None, paths))),
        )
        for (delegated, operator, source, reason), paths in ordered
    )


def _walk(edge: EdgeProgramManager) -> Iterator[tuple[torch.fx.Node, bool]]:
    """Each operator of a program, and whether it is inside of a delegate."""
    from executorch.exir.lowered_backend_module import LoweredBackendModule

    module = edge.exported_program().graph_module
    for node in module.graph.nodes:
        if _is_operator(node):
            yield node, False
    for child in module.children():
        if isinstance(child, LoweredBackendModule):
            inner = child.original_module.graph_module.graph.nodes
            yield from ((node, True) for node in inner if _is_operator(node))


def _is_operator(node: torch.fx.Node) -> bool:
    """Whether a node computes something: no input, no delegate, no element of a tuple."""
    return node.op == "call_function" and hasattr(node.target, "_op")


def _reason(node: torch.fx.Node, reasons: Reasons, backend: str) -> str:
    if backend == "portable":
        return ""
    if reason := reasons.get(node.name):
        return reason
    return "not this form of it" if _has_rule(node) else "XNNPACK has no node for it"


def _has_rule(node: torch.fx.Node) -> bool:
    """Whether the XNNPACK partitioner takes an operator under some condition."""
    from executorch.backends.xnnpack.partition.config import ALL_PARTITIONER_CONFIGS
    from executorch.exir.backend.canonical_partitioners.config_partitioner import format_target_name

    name = format_target_name(node.target.__name__)
    return any(config.target_name == name for config in ALL_PARTITIONER_CONFIGS)
