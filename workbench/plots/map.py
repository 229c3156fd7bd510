"""The map of a program before anything is measured: delegates, layers, weights, source lines."""

import ast
import html
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.analysis.layers import name_layer
from workbench.errors import StoreError
from workbench.export.etrecord import list_origins
from workbench.export.program import Program
from workbench.export.sidecar import WIDTHS
from workbench.models.pt2 import read_graph
from workbench.plots.tables import Table, show_note, show_table, to_markdown
from workbench.records.layer_sidecar import Instruction, Layers, Method, Value, XNode, XValue
from workbench.store import read_file
from workbench.wording import format_size, plural

#: Steps that are drawn, and operators and parts that are listed.
_STEPS, _ROWS = 60, 2000
_DELEGATE = "#b9d3ec"
_BOX = "border:1px solid #888a;border-radius:4px;padding:3px 8px;white-space:nowrap"
_LONGEST = 2**20  #: Bytes of a Python file.
PORTABLE = "portable kernels"
_UNKNOWN = "Layers and lines are unknown: put the ETRecord beside the program, as {}.etrecord."
#: How PyTorch's format numbers dtypes.
_SCALARS = ("", "BYTE", "CHAR", "SHORT", "INT", "LONG", "HALF", "FLOAT", "DOUBLE", "", "", "",
            "BOOL", "BFLOAT16")  # fmt: skip


def show_map(program: Program, top: int) -> Iterator[str | Table]:
    """Where each part of a program runs, its layers with weights and lines, and its file."""
    layers = program.layers
    if layers is None:
        yield _show_facts(program)
        yield "Only the runtime can read its operators."
        return
    rows = pd.DataFrame(list_steps(layers))
    if len(rows):
        yield show_note(*_count_places(rows), leads=True)
    yield _show_facts(program)
    yield _draw_steps(layers.methods[0].instructions)
    if layers.has_modules:
        yield _show_layers(rows, top)
    elif len(rows):
        yield _UNKNOWN.format(program.path.stem)
    yield _fold("operator", rows.drop(columns=["class", "place"], errors="ignore"))
    yield _fold("part of the file", pd.DataFrame(list_sizes(layers)))


def map_exported(path: Path) -> list[Table]:
    """The layers of an exported program, with weights and lines; PyTorch is not imported."""
    document = read_graph(path)
    try:
        rows, weights = _read_exported(document["graph_module"])
    except Exception as error:  # a malformed one can lead to any
        what = f"is no exported program: {type(error).__name__}"
        raise StoreError(what, where=path) from None
    total = sum(row["weights"] for row in rows) + sum(weights.values())
    text = f"{plural(len(rows), 'operator')}, {format_size(total)} of weights. "
    frame = pd.DataFrame(rows)
    notes = show_note(text + "What is delegated is known once it is lowered.", leads=True)
    return [notes, *([_show_layers(frame, _ROWS)] if len(frame) else [])]


def _read_exported(graph: Mapping[str, Any]) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """A row for each operator of a graph, and the bytes of weights of no operator's layer."""
    weights = dict[str, int]()
    for spec in graph["signature"]["input_specs"]:
        for kind in ("parameter", "buffer", "tensor_constant"):
            if held := spec.get(kind):
                owner = str(held.get(f"{kind}_name", "")).rpartition(".")[0]
                tensor = graph["graph"]["tensor_values"][held["arg"]["name"]]
                weights[owner] = weights.get(owner, 0) + _count_bytes(tensor)
    rows = [
        {
            "operator": origin.operator, "operations": 0, "layer": origin.module,
            "class": origin.module_class, "source": origin.source, "place": "",
            "weights": weights.pop(origin.module, 0),
        }
        for origin in list_origins(graph["graph"]["nodes"])
    ]  # fmt: skip
    return rows, weights


def map_source(path: Path) -> list[Table]:
    """The classes of a Python file that may be models, and the layers that they make, as written.

    Nothing of the file is run. StoreError if it is no Python.
    """
    try:
        tree = ast.parse(read_file(path, _LONGEST))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise StoreError(f"is no Python: {error}", where=path) from None
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    parts = []
    for node in classes:
        methods = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
        if methods & {"forward", "get_eager_model"}:
            made = [each for each in ast.walk(node) if isinstance(each, ast.Assign)]
            rows = [row for each in made for row in _read_layers(each, path.name)]
            caption = f"{node.name}, line {node.lineno}"
            none = show_note(f"{caption}: no layer is made as self.NAME = CLASS(...)")
            parts.append(show_table(pd.DataFrame(rows), caption=caption) if rows else none)
    text = (
        "Nothing of this file was run: sizes, delegates and weights are known once it is measured."
    )
    return [show_note(text if parts else "It defines no class with forward()."), *parts]


def _read_layers(assigned: ast.Assign, file: str) -> Iterator[dict[str, str]]:
    """The layers that ``self.NAME = CLASS(...)`` makes; a row for each name."""
    for target in assigned.targets:
        for name, call in _pair(target, assigned.value):
            kind, _, rest = ast.unparse(call).partition("(")
            place = f"{file}:{call.lineno}"
            yield {"layer": name, "class": kind, "arguments": f"({rest}"[:80], "source": place}


def _pair(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.Call]]:
    """The attributes that an assignment sets, each with the call that makes its value."""
    if isinstance(target, ast.Attribute) and isinstance(value, ast.Call):
        yield target.attr, value
    elif isinstance(target, ast.Tuple):
        values = value.elts if isinstance(value, ast.Tuple) else [value] * len(target.elts)
        for inner, its_value in zip(target.elts, values, strict=False):
            yield from _pair(inner, its_value)


def _count_bytes(tensor: dict[str, Any]) -> int:
    """The size of a tensor in PyTorch's format; of unknown sizes, nothing."""
    sizes = [size.get("as_int") for size in tensor["sizes"]]
    number = tensor["dtype"]
    scalar = _SCALARS[number] if number < len(_SCALARS) else ""
    return 0 if None in sizes else math.prod(sizes) * WIDTHS.get(scalar, 0)


def _show_facts(program: Program) -> Table:
    return show_table(pd.DataFrame([*program.facts.items()], columns=["what", "value"]))


def _draw_steps(instructions: Sequence[Instruction]) -> Table:
    """The steps of one inference in order: a box for each delegate, and for kernels in a row."""
    steps = [each for each in instructions if each.kind in ("delegate", "kernel")]
    boxes, texts = list[str](), list[str]()
    for is_delegate, group in groupby(steps, lambda each: each.kind == "delegate"):
        if is_delegate:
            counts = ((each.name, len(each.xnodes or each.events)) for each in group)
            named = [f"{name}: {plural(count, 'operator')}" for name, count in counts]
        else:
            names = Counter(each.name.rpartition("::")[2].partition(".")[0] for each in group)
            named = [", ".join(f"{name} x{n}" if n > 1 else name for name, n in names.items())]
        style = f"background:{_DELEGATE};color:#111" if is_delegate else "opacity:.9"
        boxes += [f'<span style="{_BOX};{style}">{html.escape(text)}</span>' for text in named]
        texts += named
    more = [f"and {len(boxes) - _STEPS} more"] if len(boxes) > _STEPS else []
    row = " → ".join([*boxes[:_STEPS], *more])
    return Table(
        f'<p style="line-height:2.4">{row}</p>', to_markdown(" -> ".join(texts[:_STEPS] + more))
    )


def _count_places(rows: pd.DataFrame) -> Iterator[str]:
    """How many operators and weights each backend has, the first method alone."""
    rows = rows[rows["method"] == rows["method"].iloc[0]]
    for place, part in rows.groupby("place", sort=False):
        count = part.loc[part["delegate"] != "", "instruction"].nunique()
        inside = f" in {plural(count, 'delegate')}" if count else ""
        text = f"{place}: {plural(len(part), 'operator')}{inside}"
        yield text + f", {format_size(part['weights'].sum())} of weights"


def _show_layers(rows: pd.DataFrame, top: int) -> Table:
    """The layers in the order of execution."""
    groups = rows.groupby("layer", sort=False)
    places = groups["place"].agg(lambda places: ", ".join(dict.fromkeys(places)))
    layers = groups.agg(
        **{"class": ("class", "first")},
        operators=("operator", "size"),
        operations=("operations", "sum"),
        weights=("weights", "sum"),
        source=("source", "first"),
    )
    layers.insert(1, "runs in", places)
    layers["weights"] = layers["weights"].map(lambda size: format_size(size) if size else "")
    layers = layers.reset_index()
    layers["layer"] = layers["layer"].map(name_layer)
    names = [str(name) for name in layers if any(layers[name])]
    more = f"; the first {top} of {len(layers)}" if len(layers) > top else ""
    caption = f"Layers in the order of execution{more}"
    return show_table(layers[names], top=top, caption=caption)


def _fold(noun: str, frame: pd.DataFrame) -> Table:
    """A table that opens, of the columns that are known."""
    if frame.empty:
        return Table("", "")
    frame = frame[[name for name in frame if any(frame[name])]]
    more = f", the first {_ROWS}" if len(frame) > _ROWS else ""
    head = plural(len(frame), noun) if noun == "operator" else f"{len(frame)} parts of the file"
    return show_table(frame, top=_ROWS).fold(head + more)


def list_steps(layers: Layers) -> Iterator[dict[str, Any]]:
    """A row for each operator in the order of execution; those of a delegate are named after it.

    Weights that several operators read are those of the first.
    """
    for method in layers.methods:
        seen = set[tuple[int, int]]()
        for number, call in enumerate(method.instructions):
            if call.kind not in ("delegate", "kernel"):
                continue
            delegate = call.name if call.kind == "delegate" else ""
            inside: dict[int, Value | XValue] = {value.id: value for value in call.xvalues}
            for each in call.xnodes or (call,):
                tensors = inside if isinstance(each, XNode) else dict(method.values)
                owner = number if isinstance(each, XNode) else -1
                reads = {(owner, n) for n in each.inputs if n in tensors} - seen
                seen |= reads
                yield {
                    "method": method.name,
                    "instruction": number,
                    "delegate": delegate,
                    "operator": each.type if isinstance(each, XNode) else each.name,
                    "output": _describe([tensors[n] for n in each.outputs if n in tensors]),
                    "operations": each.flops or 0,
                    "weights": sum(_weigh(tensors[n]) for _, n in reads),
                    "place": delegate or PORTABLE,
                    **_place(each, call, method),
                }


def _place(each: XNode | Instruction, call: Instruction, method: Method) -> dict[str, str]:
    """The layer, its class and the line of an operator of a call; empty where unknown."""
    if isinstance(each, XNode):
        lender = each if each.borrows is None else call.xnodes[each.borrows]
        numbers = each.origins or lender.origins
    else:
        logged = (number for event in each.events.values() for number in event)
        numbers = tuple(n for n in (each.origin, *logged) if n is not None)
    origin = next((method.origins[n] for n in numbers), None)
    if origin is None:
        return {"layer": "", "class": "", "source": ""}
    return {"layer": origin.module, "class": origin.module_class, "source": origin.source}


def _weigh(tensor: Value | XValue) -> int:
    constant = tensor.constant if isinstance(tensor, Value) else tensor.role == "constant"
    return tensor.size_bytes if constant else 0


def _describe(outputs: Iterable[Value | XValue]) -> str:
    return ", ".join(f"{each.dtype} {'x'.join(map(str, each.shape))}" for each in outputs)


def list_sizes(layers: Layers) -> Iterator[dict[str, Any]]:
    """A row for each part of the program's file, with the instruction that uses it first."""
    for part in layers.file:
        method = layers.methods[part.method].name if part.method is not None else ""
        yield {
            "part": part.kind,
            "method": method,
            "instruction": "" if part.instruction is None else str(part.instruction),
            "bytes": part.size_bytes,
        }
