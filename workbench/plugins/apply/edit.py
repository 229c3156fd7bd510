"""The lines that do in a user's source what a remedy does in a graph, shown to be right by running.

An expression of the source is found by its values, not by its spelling: it is at the line of the
part, its value is the part's result, and it has expressions with the values that the part reads.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import inspect
import linecache
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from workbench.graphs import (
    Replacement,
    Unwritable,
    reason,
    record_values,
    silence,
    tree_leaves,
    tree_map,
)

if TYPE_CHECKING:
    from workbench.graphs import LoadedModel, TracedModel

_LOG = logging.getLogger(__name__)
#: How far values of the graph and of the module may be apart, and outputs before and after an edit.
_SAME, _CLOSE = 1e-5, 1e-3
#: The name of what records values in a source that is run.
_SEEN = "__workbench_seen__"
#: The largest source that is edited, in letters.
_MOST_LETTERS = 1_000_000
#: Expressions that have tensors as values, and may be replaced or read.
_READ = (ast.Name, ast.Attribute, ast.Call, ast.BinOp, ast.UnaryOp, ast.Subscript, ast.Compare)
#: Expressions in which others are not evaluated once, or are no values.
_CLOSED = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.JoinedStr)


@dataclass
class _Place:
    """A function in the user's source, and the expressions of it that replacements are about."""

    line: int
    function: ast.FunctionDef
    qualname: str
    outermost: ast.stmt
    #: By number, expressions whose values are recorded.
    expressions: dict[int, ast.expr] = field(default_factory=dict)


def write_edit(model: LoadedModel, trace: TracedModel, replacements: Sequence[Replacement]) -> str:
    """A unified diff of the user's source that makes some replacements; `Unwritable` if none does.

    They may be those of several remedies. The edited source was run: its outputs are those of the
    model, on its inputs and on others.
    """
    if not replacements:
        raise Unwritable("the remedy changes the graph as a whole, no part of it")
    changed = [name for each in replacements for name in each.nodes]
    if len({*changed}) < len(changed):
        raise Unwritable("two remedies change the same operators: apply each alone")
    file, label, lines = _locate(trace, replacements)
    linecache.checkcache(file)
    source = "".join(linecache.getlines(file))
    if not source or len(source) > _MOST_LETTERS:
        raise Unwritable(f"the source of {label} is not there")
    bench = _Bench(model, trace, file, label, source)
    tree = ast.parse(source)
    places = [_find_place(tree, line, function) for line, function in lines]
    with silence(), torch.no_grad():
        expressions = _find_expressions(bench, places, replacements)
        edited, functions = _edit(bench, expressions)
        bench.verify(edited, functions, {place.qualname for place, *_ in expressions})
    return _compare(source, edited, label)


def _locate(
    trace: TracedModel, replacements: Sequence[Replacement]
) -> tuple[str, str, list[tuple[int, str]]]:
    """The one file of the user's that all results are computed in, as it is shown, and where.

    Each place is a line and the name of its function.
    """
    frames = [trace.find_line(each.result) for each in replacements]
    places = [frame for frame in frames if frame]
    if len(places) < len(frames):
        raise Unwritable("it is computed in no line of yours")
    first = places[0]
    if any(frame.file != first.file for frame in places):
        raise Unwritable("it is computed in several files")
    if first.is_installed:
        raise Unwritable(f"it is computed in installed code, {first.shown}")
    lines = dict.fromkeys((frame.line, frame.function) for frame in places)
    return first.file, first.shown, list(lines)


def _find_place(tree: ast.Module, line: int, name: str) -> _Place:
    """The function of a name around a line, innermost."""
    places: list[_Place] = []

    def visit(node: ast.AST, scopes: tuple[str, ...], outermost: ast.stmt | None) -> None:
        for child in ast.iter_child_nodes(node):
            top = outermost or (child if isinstance(child, ast.stmt) else None)
            inner = scopes
            if isinstance(child, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
                inner = (*scopes, child.name)
                last = child.end_lineno or 0
                is_around = child.lineno <= line <= last and child.name == name
                if isinstance(child, ast.FunctionDef) and is_around and top:
                    places.append(_Place(line, child, ".".join(inner), top))
                if not isinstance(child, ast.ClassDef):
                    inner = (*inner, "<locals>")
            visit(child, inner, top)

    visit(tree, (), None)
    if not places:
        raise Unwritable(f"line {line} is in no function {name}()")
    place = places[-1]
    wanted = [each for each in _list_read(place.function) if _covers(each, line)]
    inside = {id(node): node for each in wanted for node in [each, *_list_read(each)]}
    place.expressions = dict(enumerate(inside.values()))
    return place


def _covers(node: ast.expr, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or 0)


def _list_read(node: ast.AST) -> Iterator[ast.expr]:
    """The expressions below a node whose values are read, each evaluated where it stands."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _CLOSED):
            continue
        if isinstance(child, _READ) and isinstance(getattr(child, "ctx", ast.Load()), ast.Load):
            yield child
        yield from _list_read(child)


#: A place, the expression there that is replaced, what the replacement reads, and what it is.
_Match = tuple[_Place, ast.expr, list[ast.expr], Replacement]


def _find_expressions(
    bench: _Bench, places: Sequence[_Place], replacements: Sequence[Replacement]
) -> list[_Match]:
    """The expression of each replacement, by running the source with recorded values."""
    values, expressions = bench.read_values(replacements), list[_Match]()
    missing = {each.result for each in replacements}
    for place in places:
        watch = _Watch(place, replacements, values)
        with bench.run_as(_mark(bench.source, place), {place.qualname}, {_SEEN: watch}):
            bench.run(bench.example)
        expressions += watch.matches.values()
        missing -= watch.results
    if missing:
        raise Unwritable("no expression of yours computes it from what it reads")
    return _keep_innermost(expressions)


class _Watch:
    """Sees the values of the expressions of a place, and finds those that replacements are of."""

    def __init__(
        self, place: _Place, replacements: Sequence[Replacement], values: Mapping[str, torch.Tensor]
    ) -> None:
        self.place, self.replacements, self.values = place, replacements, values
        self.numbers = {id(node): number for number, node in place.expressions.items()}
        self.latest: dict[int, torch.Tensor] = {}
        self.matches: dict[int, _Match] = {}
        self.results: set[str] = set()

    def __call__(self, number: int, value: Any) -> Any:
        """Take a value, and return it."""
        if not isinstance(value, torch.Tensor):
            return value
        self.latest[number] = value.detach().clone()  # which may be written into
        node = self.place.expressions[number]
        if isinstance(node, ast.Name | ast.Attribute) or not _covers(node, self.place.line):
            return value
        for each in self.replacements:
            if _equal(value, self.values[each.result]):
                self._add(node, each)
        return value

    def _add(self, node: ast.expr, each: Replacement) -> None:
        """Keep an expression if what the replacement reads is in it."""
        reads = [self._find_read(node, self.values[name]) for name in each.sources]
        operands = [operand for operand in reads if operand is not None]
        if len(operands) == len(reads):
            first = self.matches.setdefault(id(node), (self.place, node, operands, each))
            _check_same(first[3], each)
            self.results.add(each.result)

    def _find_read(self, node: ast.expr, wanted: torch.Tensor) -> ast.expr | None:
        """The first expression in another one that has a value."""
        recorded = ((each, self.latest.get(self.numbers[id(each)])) for each in _list_read(node))
        return next((each for each, value in recorded if _equal(value, wanted)), None)


def _keep_innermost(matches: Sequence[_Match]) -> list[_Match]:
    """Of expressions inside of each other that have one value, the innermost."""
    innermost = [
        each
        for each in matches
        if not {id(node) for node in _list_read(each[1])} & {id(other[1]) for other in matches}
    ]
    if lost := {each[3].result for each in matches} - {each[3].result for each in innermost}:
        raise Unwritable(f"it is there several times in one expression ({min(lost)})")
    return innermost


def _mark(source: str, place: _Place) -> str:
    """The source, with a call around each expression that records its value."""
    spans = [(_span(source, node), number) for number, node in place.expressions.items()]
    inserted: list[tuple[int, int, str]] = []
    for (start, end), number in spans:
        # Of spans that start at one place, the longest comes first; of those that end, last.
        inserted.append((start, start - end, f"{_SEEN}({number}, "))
        inserted.append((end, -start, ")"))
    text = source.encode()
    for place_, _, added in sorted(inserted, key=lambda each: (each[0], each[1]), reverse=True):
        text = text[:place_] + added.encode() + text[place_:]
    return text.decode()


def _span(source: str, node: ast.expr | ast.stmt) -> tuple[int, int]:
    """Where a node stands in the bytes of its source."""
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
    return starts[node.lineno - 1] + node.col_offset, end


def _check_same(one: Replacement, other: Replacement) -> None:
    """`Unwritable` if two replacements are two functions: an edit changes all calls of a line."""
    if one is not other and one.write("f") != other.write("f"):
        raise Unwritable("the line computes it several times, each time in another way")


def _edit(bench: _Bench, matches: Sequence[_Match]) -> tuple[str, dict[str, str]]:
    """The source with the replacements, and the functions that were added, by name."""
    source, functions = bench.source, dict[str, str]()
    edits: list[tuple[int, int, str]] = []
    for place, node, read, each in matches:
        titles = [title for title, code in functions.items() if code == each.write(title)]
        title = titles[0] if titles else _choose_name(each.remedy, source, functions)
        functions[title] = each.write(title)
        arguments = (source.encode()[slice(*_span(source, x))].decode() for x in read)
        edits.append((*_span(source, node), f"{title}({', '.join(arguments)})"))
        if not titles:
            start = min([place.outermost.lineno, *_decorators(place.outermost)])
            at = len("".join(source.splitlines(keepends=True)[: start - 1]).encode())
            edits.append((at, at, f"{functions[title]}\n\n"))
    data = source.encode()
    for start, end, new in sorted(edits, reverse=True):
        data = data[:start] + new.encode() + data[end:]
    edited = data.decode()
    return edited if bench.has_torch(matches[0][0].qualname) else _import_torch(edited), functions


def _decorators(node: ast.stmt) -> list[int]:
    return [each.lineno for each in getattr(node, "decorator_list", ())]


def _choose_name(remedy: str, source: str, taken: Mapping[str, str]) -> str:
    base, number = f"use_{remedy}", 1
    while (name := base if number == 1 else f"{base}_{number}") in taken or name in source:
        number += 1
    return name


def _import_torch(source: str) -> str:
    """The source with ``import torch`` before its first import."""
    body = ast.parse(source).body
    imports = [n for n in body if isinstance(n, ast.Import | ast.ImportFrom)]
    later = [n for n in imports if getattr(n, "module", "") != "__future__"]
    at = (later or body)[0].lineno - 1
    lines = source.splitlines(keepends=True)
    return "".join([*lines[:at], "import torch\n", *lines[at:]])


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _vary(tensor: Any) -> Any:
    """Other values of a tensor; integers, which may be indices, stay."""
    if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
        return tensor
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(tensor.shape, generator=generator).to(tensor.dtype)
    return tensor * (0.5 + noise) + 0.1 * noise


def _equal(value: Any, other: Any, tolerance: float = _SAME) -> bool:
    """Whether two tensors are equal up to rounding."""
    if not isinstance(value, torch.Tensor) or value.shape != other.shape:
        return False
    if value.dtype != other.dtype:
        return False
    if not value.is_floating_point():
        return torch.equal(value, other)
    largest = float(other.abs().nan_to_num().max()) if other.numel() else 0.0
    return torch.allclose(value, other, rtol=tolerance, atol=tolerance * largest, equal_nan=True)


class _Bench:
    """Where a traced model runs with another source of one of its files."""

    def __init__(
        self, model: LoadedModel, trace: TracedModel, file: str, label: str, source: str
    ) -> None:
        self.trace, self.module, self.source = trace, trace.module, source
        self.file, self.label = file, label
        self.example = model.traced_inputs or (model.example_inputs, model.kwargs)
        self.codes = _list_code(compile(source, file, "exec", dont_inherit=True))

    def run(self, example: Any) -> Any:
        """The module's outputs."""
        args, kwargs = tree_map(_copy, example)
        return self.module(*args, **kwargs)

    def has_torch(self, qualname: str) -> bool:
        """Whether a function's module or notebook has imported PyTorch by its name."""
        functions = _list_functions(self.module, self.file, qualname)
        return any(each.__globals__.get("torch") is torch for each in functions)

    @contextlib.contextmanager
    def run_as(
        self, source: str, qualnames: Collection[str], names: Mapping[str, Any]
    ) -> Iterator[None]:
        """Let some functions have the code of another source, and read further names."""
        codes = _list_code(compile(source, self.file, "exec", dont_inherit=True))
        with contextlib.ExitStack() as stack:
            for qualname in qualnames:
                functions = _list_functions(self.module, self.file, qualname)
                if qualname not in codes or not functions:
                    raise Unwritable(f"{qualname}() is not called by its name")
                for function in functions:
                    if function.__code__ != self.codes.get(qualname):
                        raise Unwritable(f"{self.label} has changed since it was imported")
                    stack.enter_context(_with_code(function, codes[qualname], names))
            yield

    def read_values(self, replacements: Sequence[Replacement]) -> dict[str, torch.Tensor]:
        """What replacements read and compute in the graph, on the model's inputs."""
        exported, module = self.trace.exported, self.trace.exported.module()
        signature = exported.graph_signature
        weights = signature.inputs_to_parameters | signature.inputs_to_buffers
        wanted = {name for each in replacements for name in (*each.sources, each.result)}
        values: dict[str, Any] = {
            name: exported.state_dict[weights[name]]
            for name in wanted
            if weights.get(name) in exported.state_dict
        }
        nodes = [node for node in module.graph.nodes if node.name in wanted - values.keys()]
        recorded = record_values(module, tree_leaves(exported.example_inputs), nodes)
        values |= {node.name: value for node, value in recorded.items()}
        if wanted - values.keys() or not all(map(torch.is_tensor, values.values())):
            raise Unwritable("it has several results, or reads what the export makes")
        return values

    def verify(self, edited: str, functions: Mapping[str, str], qualnames: set[str]) -> None:
        """Run the model with an edited source; `Unwritable` if its outputs are others."""
        inputs = [self.example, tree_map(_vary, self.example)]
        try:
            expected = [self.run(each) for each in inputs]
        except Exception:  # its user's code, which may refuse other values than its example's
            _LOG.debug("the model takes its example's values alone", exc_info=True)
            inputs = inputs[:1]
            expected = [self.run(each) for each in inputs]
        codes = {name: _list_code(compile(t, name, "exec"))[name] for name, t in functions.items()}
        added = {name: FunctionType(code, {"torch": torch}) for name, code in codes.items()}
        try:
            with self.run_as(edited, qualnames, added):
                results = [self.run(each) for each in inputs]
        except Unwritable:
            raise
        except Exception as error:  # the user's code runs in here, and may raise anything
            _LOG.debug("the edited model fails", exc_info=True)
            raise Unwritable(f"with the edit the model fails: {reason(error)}") from error
        for ours, theirs in zip(results, expected, strict=True):
            pairs = zip(tree_leaves(ours), tree_leaves(theirs), strict=True)
            if not all(_equal(a, b, _CLOSE) for a, b in pairs if torch.is_tensor(b)):
                raise Unwritable("with the edit the model has other outputs")


@contextlib.contextmanager
def _with_code(function: FunctionType, code: CodeType, names: Mapping[str, Any]) -> Iterator[None]:
    """A function with other code, and with names that this reads."""
    before, scope = function.__code__, function.__globals__
    if before.co_freevars != code.co_freevars:
        raise Unwritable(f"{before.co_qualname}() reads other variables than its source")
    hidden = {name: scope[name] for name in names if name in scope}
    scope.update(names)
    function.__code__ = code
    try:
        yield
    finally:
        function.__code__ = before
        for name in names:
            scope.pop(name, None)
        scope.update(hidden)


def _list_code(code: CodeType) -> dict[str, CodeType]:
    """The code of the functions of a source by their qualified names, each defined once."""
    codes_of: dict[str, list[CodeType]] = {}
    pending = [code]
    for each in pending:  # which grows
        inner = [constant for constant in each.co_consts if isinstance(constant, CodeType)]
        pending += inner
        for one in inner:
            codes_of.setdefault(one.co_qualname, []).append(one)
    return {name: codes[0] for name, codes in codes_of.items() if len(codes) == 1}


def _list_functions(module: nn.Module, file: str, qualname: str) -> list[FunctionType]:
    """The functions of a name in a file that a module's classes have, or call by their names."""
    classes = {klass for each in module.modules() for klass in type(each).__mro__}
    methods = [_unwrap(value) for klass in classes for value in vars(klass).values()]
    methods_here = [each for each in methods if each and each.__code__.co_filename == file]
    scopes = {id(each.__globals__): each.__globals__ for each in methods_here}
    helpers = [_unwrap(value) for scope in scopes.values() for value in [*scope.values()]]
    functions = {id(each): each for each in (*methods_here, *helpers) if each}
    return [
        each
        for each in functions.values()
        if (each.__code__.co_filename, each.__code__.co_qualname) == (file, qualname)
    ]


def _unwrap(value: Any) -> FunctionType | None:
    value = getattr(value, "__func__", value)
    function = inspect.unwrap(value) if isinstance(value, FunctionType) else None
    return function if isinstance(function, FunctionType) else None


def _compare(before: str, after: str, name: str) -> str:
    """A unified diff of a file's text."""
    old, new = (text.splitlines(keepends=True) for text in (before, after))
    lines = difflib.unified_diff(old, new, name, name)
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )
