"""What finds remedies in a graph and applies them; without a plug-in for that, nothing does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from workbench import plugin
from workbench.errors import UsageError
from workbench.records.exports import Rewrite
from workbench.remedies import OF_EXPORT

if TYPE_CHECKING:  # which takes a second
    from torch.export import ExportedProgram
    from torch.fx import Node

    from workbench.export.write import Replacement


class Changes(Counter[str]):
    """How often each remedy changed a program, by its name."""

    def __str__(self) -> str:
        counts = sorted(f"{count} {name}" for name, count in self.items() if count)
        return ", ".join(counts) or "nothing"


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
        and ``outside`` the names of those that are not delegated as a whole; ``used`` remedies are
        applied already.
        """
        return ()

    def replace(self, exported: ExportedProgram, name: str, backend: str) -> Iterator[Replacement]:
        """What takes the place of each part of a graph that has a remedy; a graph of its own."""
        return iter(())

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


class _Together(Rewriter):
    """The rewriters of several plug-ins, one after the other."""

    def __init__(self, rewriters: Sequence[Rewriter]) -> None:
        self.rewriters = rewriters
        self.names = {name for each in rewriters for name in each.names}

    def prepare(self, exported: ExportedProgram, names: Collection[str]) -> ExportedProgram:
        for each in self.rewriters:
            exported = each.prepare(exported, names)
        return exported

    def apply(
        self, exported: ExportedProgram, names: Collection[str], *how: Any, **more: Any
    ) -> Counter[str]:
        counts: Counter[str] = Counter()
        for each in self.rewriters:
            asked = [name for name in names if name in each.names]
            counts += each.apply(exported, asked, *how, **more)
        return counts

    def make_passes(self, names: Collection[str], counts: Counter[str]) -> Any:
        passes = [each.make_passes(names, counts) for each in self.rewriters]
        managers = [each for each in passes if each is not None]
        if len(managers) < 2:
            return next(iter(managers), None)
        return type(managers[0])([one for each in managers for one in each.passes])

    def offer(self, *graph: Any, **more: Any) -> tuple[Rewrite, ...]:
        return tuple(one for each in self.rewriters for one in each.offer(*graph, **more))

    def replace(self, exported: ExportedProgram, name: str, backend: str) -> Iterator[Replacement]:
        for each in self.rewriters:
            yield from each.replace(exported, name, backend) if name in each.names else ()

    def match(self, *graph: Any, **more: Any) -> list[str]:
        return [name for each in self.rewriters for name in each.match(*graph, **more)]


def list_rewriters() -> dict[str, Rewriter]:
    """What finds and applies the remedies of plug-ins, by the names of these."""
    rewriters = {}
    for name, remedies in plugin.collect("remedies").items():
        try:
            rewriters[name] = resolve_name(remedies.reference)
        except Exception as error:  # of a plug-in, which costs itself only
            plugin.warn(name, error)
    return rewriters


def find_rewriter(names: Collection[str] = ()) -> Rewriter:
    """The rewriters of all plug-ins, as one; UsageError if they lack some of these names."""
    rewriter = _Together([*list_rewriters().values()])
    lacking = [name for name in names if name not in OF_EXPORT and name not in rewriter.names]
    if lacking:
        hint = "`workbench doctor` lists the plug-ins; remedies is the one that rewrites programs"
        raise UsageError("no plug-in has it", where=f"--rewrite {','.join(lacking)}", hint=hint)
    return rewriter
