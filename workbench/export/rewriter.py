"""What finds remedies in a graph and applies them; without a plug-in for that, nothing does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from workbench import plugin
from workbench.errors import UsageError
from workbench.options import QUANTISER_REWRITES
from workbench.records.exports import Rewrite

if TYPE_CHECKING:  # which takes a second
    from torch.export import ExportedProgram
    from torch.fx import Node

#: Rewrites of the export itself: of its quantiser, and of how it traces a dynamic batch.
OF_EXPORT = frozenset({*QUANTISER_REWRITES, "batch"})


class Rewriter:
    """Finds and applies remedies by name; this one has none. A plug-in's is a subclass."""

    names: Collection[str] = ()

    def prepare(self, exported: ExportedProgram, names: Collection[str]) -> ExportedProgram:
        """The graph in the form in which some remedies are looked for."""
        return exported

    def apply(
        self,
        exported: ExportedProgram,
        names: Collection[str],
        backend: str,
        *,
        quantised: bool = False,
    ) -> Counter[str]:
        """Apply remedies to a graph, in place; how often each changed it.

        With ``quantised``, the result is quantised next: remedies that do not survive that wait.
        """
        return Counter()

    def make_passes(self, names: Collection[str], counts: Counter[str]) -> Any:
        """The passes of remedies over the edge program before it is partitioned; None for none."""
        return None

    def offer(
        self,
        exported: ExportedProgram,
        backend: str,
        operators: Mapping[str, Collection[str]],
        outside: Collection[str],
        used: Collection[str] = (),
    ) -> tuple[Rewrite, ...]:
        """The remedies of a graph that were shown to compute the same.

        ``operators`` has, by its name in the graph, each operator that the edge program still has,
        and ``outside`` the names of those of which some part is not delegated; ``used`` remedies
        are applied already.
        """
        return ()

    def match(self, exported: ExportedProgram, backend: str, operator: str = "") -> list[str]:
        """The remedies that would change a graph, of those that may avoid a fault.

        With the name of an ``operator``, only those that would replace it.
        """
        return []


def mark_operators(exported: ExportedProgram) -> None:
    """Write the name of each operator into it, which what it becomes keeps."""
    for node in exported.graph.nodes:
        if node.op == "call_function":
            node.meta["custom"] = {**node.meta.get("custom", {}), "operator": node.name}


def read_mark(node: Node) -> str:
    """The name in the trace of the operator that a node was made from; empty without a mark."""
    return str((node.meta.get("custom") or {}).get("operator", ""))


def find_rewriter(names: Collection[str] = ()) -> Rewriter:
    """The rewriter of the plug-in that has one; UsageError if it lacks some of these names."""
    rewriter = next(iter(plugin.collect("rewriters").values()), Rewriter())
    lacking = [name for name in names if name not in OF_EXPORT and name not in rewriter.names]
    if lacking:
        hint = "`workbench doctor` lists the plug-ins; remedies is the one that rewrites programs"
        raise UsageError("no plug-in has it", where=f"--rewrite {','.join(lacking)}", hint=hint)
    return rewriter
