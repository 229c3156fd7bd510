"""Find remedies in a graph, apply them, and offer those that compute the same."""

import contextlib
import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch.export import ExportedProgram, default_decompositions
from torch.fx import GraphModule, Node

from workbench.api import Rewrite, Rewriter
from workbench.graphs import (
    Replacement,
    Unwritable,
    drop_unused,
    find_root,
    fold_constants,
    is_overwritten,
    overwrites,
    readers,
)
from workbench.plugins.remedies.assignments import find_assignments
from workbench.plugins.remedies.branches import find_branches
from workbench.plugins.remedies.channels_last import find_layouts
from workbench.plugins.remedies.comparisons import find_comparison
from workbench.plugins.remedies.equivalence import (
    Equivalent,
    Finder,
    Refused,
    is_static,
)
from workbench.plugins.remedies.experts import find_experts
from workbench.plugins.remedies.folds import find_fold, find_resized
from workbench.plugins.remedies.formulas import (
    find_function,
    find_lookup,
    find_order,
)
from workbench.plugins.remedies.graph_edits import (
    find_equal,
    fold,
    is_double,
    join_equal,
    replace_part,
    separate_constants,
    use_single_precision,
)
from workbench.plugins.remedies.indexing import find_chosen_products, find_rows, find_sums
from workbench.plugins.remedies.linear import count_products, find_matrices
from workbench.plugins.remedies.loops import find_loops, find_tables
from workbench.plugins.remedies.moves import TRANSPOSES, find_slices, find_undone
from workbench.plugins.remedies.repeats import find_broadcasts, find_groups, find_masks
from workbench.plugins.remedies.single_operators import (
    OF_XNNPACK,
    RULES,
    find_operator,
    find_product,
)
from workbench.plugins.remedies.table import REMEDIES
from workbench.plugins.remedies.traced_parts import list_operators, trace
from workbench.plugins.remedies.windows import find_convolution

aten: Any = torch.ops.aten
#: Tests fail by what is written to it.
_LOG = logging.getLogger(__name__)
#: What `slices` does to recurrences.
_UNROLLED = "a recurrence step by step, with slices for its gates"
_RECURRENT = {aten.gru.input, aten.lstm.input, aten.rnn_tanh.input, aten.rnn_relu.input}
#: Remedies whose result is quantised, too; those of others stays in floating point.
BEFORE_QUANTISATION = {
    "pooling", "convolutions", "broadcasts", "groups", "loops", "functions", "branches", "affine",
    "order", "lookups", "duplicates", "assignments", "layouts",
}  # fmt: skip
#: What the same operators on the same values agree to, in dB.
_SAME_DB = 200.0
#: Remedies of what upstream delegates and then refuses, such as maxima over channels, or numbers
#: between quantised images.
_AVOIDING = ("pooling", "layouts")
#: Rewrites that make others possible end after so many rounds.
_MOST_ROUNDS = 12


def _free_strides(exported: ExportedProgram) -> None:
    """Let no view rely on the strides of a result: what replaces it may have others."""
    for node in exported.graph.nodes:
        if node.target is aten.view.default and node.args[0].target in TRANSPOSES:
            node.target = aten.reshape.default


#: Operators of a function whose results are quantised one by one, at most.
_MOST_QUANTISED = 3


def _survives_quantisation(part: Equivalent) -> bool:
    return part.name != "functions" or len(list_operators(part)) <= _MOST_QUANTISED


#: Remedies whose parts are one finding, however much less work each is.
_TOGETHER = {"loops", "branches"}
#: Lines of a function that a finding shows, at most.
_MOST_LINES = 14
#: Finds the part of a graph that ends in a node and has a remedy.
Find = Callable[[Finder, Node], Equivalent | None]


def _list_finders(backend: str) -> dict[str, Find]:
    """How each remedy is found in a graph, the best one first."""
    rules: dict[str, Find] = {
        name: partial(find_operator, name, each)
        for name, each in RULES.items()
        if backend == "xnnpack" or name not in OF_XNNPACK
    }
    functions, matrices = rules.pop("functions"), rules.pop("matrices")
    return (
        rules
        | {
            "order": _first(find_order, find_resized),
            "experts": _first(find_experts, find_chosen_products),
            "branches": find_branches,
            "transposes": find_undone,
            "convolutions": find_convolution,
            "groups": find_groups,
            "masks": find_masks,
            "broadcasts": find_broadcasts,
            "loops": find_loops,
            "functions": _first(functions, find_function, find_comparison),
            "matrices": _first(matrices, find_sums, find_matrices),
            "affine": _first(partial(find_branches, name="affine"), find_fold),
            "lookups": _first(find_lookup, find_tables, find_rows),
            "assignments": find_assignments,
            "products": find_product,
            "slices": find_slices,
        }
        | ({"layouts": find_layouts} if backend == "xnnpack" else {})
    )


def _first(*finders: Find) -> Find:
    """The first part that one of several finders has; one that is refused has none."""

    def find_first(finder: Finder, node: Node) -> Equivalent | None:
        for find in finders:
            with contextlib.suppress(Refused):
                if part := find(finder, node):
                    return part
        return None

    return find_first


#: Remedies that are asked for by their operator, whatever it reads.
_BY_OPERATOR = {*RULES, "slices"} - {"pooling", "functions", "matrices"}


@torch.no_grad()
def find_remedies(finder: Finder, names: Collection[str], backend: str) -> Iterator[Equivalent]:
    """The parts of a graph that have one of some remedies, from its end.

    None has its result inside another, which it may share operators with.
    """
    finders = {name: find for name, find in _list_finders(backend).items() if name in names}
    taken: set[Node] = set()
    for node in reversed(finder.nodes):
        if node in taken or node.op != "call_function" or _is_in_row(node):
            continue
        if is_overwritten(node) and not overwrites(node):
            continue
        writes_view = overwrites(node) and node.args[0] is not find_root(node)
        for name, find in finders.items():
            if writes_view and name != "assignments":
                continue
            # What depends on no input is the export's to compute, unless asked for by its operator.
            asked = finder.outside is None and name in _BY_OPERATOR
            if node in finder.constants and not asked:
                continue
            part = _attempt(name, node, partial(find, finder, node))
            if part and part.result not in taken and _reads_in_time(finder, part):
                taken.update(part.nodes)
                yield part
                break


def _is_in_row(node: Node) -> bool:
    """Whether an assignment overwrites the result of another one, or has its own overwritten."""
    if not is_overwritten(node) or not overwrites(node):
        return False
    next_ones = (reader for reader in readers(node) if reader.args[0] is node)
    return any(map(overwrites, (*node.all_input_nodes[:1], *next_ones)))


def _reads_in_time(finder: Finder, part: Equivalent) -> bool:
    """Whether a part may read its sources where its result is: nothing overwrites them before."""
    if part.name == "assignments" or not any(map(is_overwritten, part.sources)):
        return True
    first, end = min(map(finder.place.__getitem__, part.nodes)), finder.place[part.result]
    return not any(map(overwrites, finder.nodes[first:end]))


def _attempt(name: str, node: Node, find: Callable[[], Equivalent | None]) -> Equivalent | None:
    """What is found; None where operators refuse values. A fault of ours is logged, by name."""
    try:
        return find()
    except Refused:
        return None
    except Exception:
        _LOG.debug("remedy %s fails at %s", name, node, exc_info=True)
        return None


def _describe_whole(
    name: str, nodes: list[Node], part: list[Node], operators: Mapping[str, Collection[str]],
    *, kept: float = 0.0, ratio: float | None = _SAME_DB, text: str = "",
) -> Rewrite:  # fmt: skip
    """The record of a remedy that is applied to a graph as a whole, with all that it takes."""
    rows = tuple(row for node in nodes for row in operators.get(node.name, ()))
    names = tuple(dict.fromkeys(node.name for node in part))
    passes = len(rows) if name == "doubles" else 0
    return Rewrite(name, text or REMEDIES[name].text, rows, kept, ratio, passes, (names,))


def _prove(finder: Finder, part: Equivalent) -> Equivalent | None:
    """A part that was shown to be equal, or says how it differs; None otherwise."""
    if not math.isnan(part.sqnr_db) or REMEDIES[part.name].differs:
        return part
    return _attempt(part.name, part.result, partial(finder.prove, part))


def _is_better(part: Equivalent, branches: Equivalent) -> bool:
    """Whether a part leaves less work of what is computed by merged layers, too."""
    contains = branches.name == "branches" and {*branches.nodes} <= {*part.nodes}
    return contains and part.result is branches.result and part.kept < branches.kept


def _write_code(part: Equivalent) -> str | None:
    """What a person would write for a part; None if that is the example in the table."""
    if part.code is not None or part.name in _TOGETHER:
        return part.code
    with contextlib.suppress(Unwritable):
        code = _to_replacement(part).write(f"use_{part.name}")
        if len(code.splitlines()) <= _MOST_LINES:
            return code
    # A large matrix is computed by the export alone.
    return "" if part.name == "matrices" else None


def _to_replacement(part: Equivalent) -> Replacement:
    names, sources = (tuple(n.name for n in nodes) for nodes in (part.nodes, part.sources))
    return Replacement(names, sources, part.result.name, trace(part), part.constants)


def _join_parts(parts: list[tuple[Equivalent, list[str]]]) -> Rewrite:
    """The record of parts with one remedy."""
    largest = max((part for part, _ in parts), key=lambda part: len(part.nodes))
    nodes = tuple(dict.fromkeys(row for _, rows in parts for row in rows))
    work_share = sum(part.kept for part, _ in parts) / len(parts)
    ratios = [round(part.sqnr_db, 1) for part, _ in parts if not math.isnan(part.sqnr_db)]
    ratio = min(ratios) if len(ratios) == len(parts) else None
    new = [node for part, _ in parts for node in list_operators(part)]
    flops = 2.0 * sum(count_products(node) for node in new if is_static(node))
    names = tuple(
        tuple(dict.fromkeys(node.name for node in (*part.nodes, *part.around))) for part, _ in parts
    )
    facts = (round(work_share, 3), ratio, len(new), names, _write_code(largest), flops)
    return Rewrite(largest.name, largest.text or REMEDIES[largest.name].text, nodes, *facts)


class Remedies(Rewriter):
    """The remedies of the table, which change a graph."""

    names = REMEDIES.keys()

    def prepare(self, exported: ExportedProgram, names: Collection[str]) -> ExportedProgram:
        """With ``slices``: the steps of PyTorch's recurrent operators, which it then sees."""
        if "slices" not in names:
            return exported
        recurrent = _RECURRENT & {node.target for node in exported.graph.nodes}
        if not recurrent:  # nothing is retraced
            return exported
        table = default_decompositions()
        return exported.run_decompositions({each: table[each] for each in recurrent})

    def apply(
        self,
        exported: ExportedProgram,
        names: Collection[str],
        backend: str,
        *,
        quantised: bool = False,
    ) -> Counter[str]:
        """Apply remedies to a graph, in place, until none applies; how often each changed it.

        What is quantised next keeps functions of many operators, which would not survive that.
        """
        counts: Counter[str] = Counter()
        constants = {*exported.constants}
        names = BEFORE_QUANTISATION & {*names} if quantised else names
        if "doubles" in names:
            counts["doubles"] = use_single_precision(exported)
        in_graph = not _list_finders(backend).keys().isdisjoint(names)
        made: set[Node] = set()
        for _ in range(_MOST_ROUNDS if in_graph else 0):
            equivalents = list(find_remedies(Finder(exported), names, backend))
            if quantised:
                equivalents = [each for each in equivalents if _survives_quantisation(each)]
            if not equivalents:
                break
            for each in equivalents:
                made.update(replace_part(exported, each))
                counts[each.name] += 1
            drop_unused(exported.graph)
            # Each step has got a whole that all of them share, each sum the matrix of its index.
            if not {"loops", "matrices"}.isdisjoint(names):
                join_equal(exported)
        if "duplicates" in names:
            counts["duplicates"] = join_equal(exported)
        if made:
            fold(exported, made)
        if counts:
            separate_constants(exported, constants)
            _free_strides(exported)
            exported.graph.lint()
            exported.graph_module.recompile()
        return counts

    def make_passes(self, names: Collection[str], counts: Counter[str]) -> Any:
        """The passes of some remedies over the edge program; None for none.

        ``expansions`` removes those to a tensor's own shape, ``casts`` folds casts of constants;
        ``constants`` all that depends on no input.
        """
        from executorch.backends.xnnpack.utils.configs import get_transform_passes
        from executorch.exir.pass_base import ExportedProgramPassBase, ExportedProgramPassResult
        from executorch.exir.pass_manager import ExportedProgramPassManager
        from torch.fx.passes.infra.pass_base import PassResult

        folds_all = "constants" in names

        def count(module: GraphModule, sign: int) -> PassResult:
            counts["expansions"] += sign * len(module.graph.nodes)
            return PassResult(module, False)

        class Fold(ExportedProgramPassBase):
            def call(self, exported_program: ExportedProgram) -> ExportedProgramPassResult:
                exported_program, folded = fold_constants(exported_program, not folds_all)
                counts["constants" if folds_all else "casts"] += folded
                return ExportedProgramPassResult(exported_program, folded > 0)

        passes: list[Any] = []
        if "expansions" in names:
            passes = [partial(count, sign=1), *get_transform_passes(), partial(count, sign=-1)]
        if folds_all or "casts" in names:
            passes.append(Fold())
        return ExportedProgramPassManager(passes) if passes else None

    def offer(
        self,
        exported: ExportedProgram,
        backend: str,
        operators: Mapping[str, Collection[str]],
        outside: Collection[str],
        used: Collection[str] = (),
    ) -> tuple[Rewrite, ...]:
        """The remedies of a marked graph that were shown to compute the same."""
        finder = Finder(exported, outside)
        names = [name for name in _list_finders(backend) if name not in used]
        # What a layer takes up costs nothing, and a sum that goes with its terms needs no product.
        names.sort(key=lambda name: (name != "affine", name != "branches"))
        merged: dict[Node, float] = {}
        offers: list[tuple[Equivalent, list[str]]] = []
        for name in names:  # parts of several remedies may overlap
            for part in find_remedies(finder, [name], backend):
                goes = all(merged.get(node, math.inf) <= part.kept for node in part.nodes)
                proven = None if goes else _prove(finder, part)
                if proven and name == "branches":
                    merged |= dict.fromkeys(part.nodes, part.kept)
                rows = [row for n in part.about or part.nodes for row in operators.get(n.name, ())]
                if proven and rows:
                    offers.append((proven, rows))
        alike: dict[tuple[str, str, float], list[tuple[Equivalent, list[str]]]] = {}
        for part, rows in offers:
            if not any(_is_better(other, part) for other, _ in offers):
                text = "" if part.name in _TOGETHER else part.text
                key = (part.name, text, round(part.kept, 3) if text else 0.0)
                alike.setdefault(key, []).append((part, rows))
        rewrites = [_join_parts(parts) for parts in alike.values()]
        doubles = [node for node in exported.graph.nodes if is_double(node)]
        # What depends on no input need not be computed at all.
        equal = {n: m for n, m in find_equal(exported).items() if n not in finder.fixed}
        recurrent = [node for node in exported.graph.nodes if node.target in _RECURRENT]
        fixed = [n for n in exported.graph.nodes if n in finder.fixed and n.op == "call_function"]
        wholes = [
            _describe_whole("doubles", doubles, doubles, operators, kept=0.5, ratio=None),
            _describe_whole("duplicates", [*equal], [*equal, *equal.values()], operators),
            _describe_whole("slices", recurrent, recurrent, operators, kept=1.0, text=_UNROLLED),
            _describe_whole("constants", fixed, fixed, operators),
        ]
        return (*(each for each in wholes if each.nodes and each.name not in used), *rewrites)

    def replace(self, exported: ExportedProgram, name: str, backend: str) -> Iterator[Replacement]:
        """What takes the place of each part of a graph that has a remedy, as PyTorch traced it."""
        yield from map(_to_replacement, find_remedies(Finder(exported), [name], backend))

    def match(self, exported: ExportedProgram, backend: str, operator: str = "") -> list[str]:
        """The remedies that would change a graph, of those that may avoid a fault.

        With the name of an ``operator``, only those that would replace it.
        """
        common = [name for name, remedy in REMEDIES.items() if remedy.common]
        parts = find_remedies(Finder(exported), (*common, *_AVOIDING), backend)
        replaced = (p for p in parts if not operator or operator in {node.name for node in p.nodes})
        return list(dict.fromkeys(part.name for part in replaced))


#: What a plug-in gives the workbench.
REWRITER = Remedies()
