"""The layers of a program that was exported elsewhere, from its ETRecord.

An ETRecord is a ZIP archive; only its JSON graphs and maps are read here.
"""

import json
import zipfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from workbench.errors import StoreError
from workbench.export import origins as links
from workbench.export.code_lines import Sources
from workbench.export.origins import EdgeNode
from workbench.export.pte import NO_HANDLE
from workbench.records.layer_sidecar import Instruction, Layers, Method, Origin

#: The last graph before partitioning, and the one before that.
_GRAPHS = ("edge_after_transform", "edge_dialect_exported_program")
#: Ends of the names of what is stored with a graph.
_TENSORS = ("_state_dict", "_constants", "_example_inputs")
#: Objects made from JSON may take 25 times its size.
_LARGEST_BYTES = 2**24


def add_etrecord(layers: Layers, path: Path) -> Layers:
    """The sidecar of a bare program with the layers from its ETRecord.

    Operators of other backends than XNNPACK are known by what they log, if there is a delegate map.
    It is a `StoreError` if the file is not an ETRecord, or of another program.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            sources = Sources()
            methods = tuple(_add_to_method(each, archive, sources) for each in layers.methods)
    except OSError as error:
        raise StoreError(error.strerror or str(error), where=path) from None
    except _OtherProgram as error:
        raise StoreError(f"an ETRecord of another program: {error}", where=path) from None
    except Exception as error:  # a malformed one can lead to any
        raise _not_etrecord(error, path) from None
    return replace(layers, methods=methods, sources=sources.read())


class _OtherProgram(Exception):
    """An ETRecord does not describe the program; says what differs."""


def _not_etrecord(error: Exception, path: Path) -> StoreError:
    is_empty = path.is_file() and not path.stat().st_size
    return StoreError("is empty" if is_empty else f"not an ETRecord: {error}", where=path)


def read_etrecord(path: Path) -> dict[str, list[Origin]]:
    """What each method of an ETRecord was made of, before anything was delegated."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = [
                name
                for name in archive.namelist()
                if name.startswith(_GRAPHS) and not name.endswith(_TENSORS)
            ]
            methods = dict.fromkeys(name.rpartition("/")[2] for name in entries)
            graphs = {
                method: _read_graph(archive, method, Sources())[1] for method in methods if method
            }
    except Exception as error:  # a malformed one can lead to any
        raise _not_etrecord(error, path) from None
    if not graphs:
        raise StoreError("not an ETRecord: it has no graph", where=path)
    return graphs


def _add_to_method(method: Method, archive: zipfile.ZipFile, sources: Sources) -> Method:
    edges, origins, modules = _read_graph(archive, method.name, sources)

    def nodes(handles: Any) -> list[EdgeNode]:
        handles = handles if isinstance(handles, list) else [handles]
        return [edge for n in dict.fromkeys(map(int, handles)) for edge in edges.get(n, ())]

    handles = {int(n): h for n, h in _read_handles(archive, method.name).items()}
    edges_of = {number: nodes(given) for number, given in handles.items()}
    delegates = _read_json(archive, "delegate_map").get(method.name, {})
    backends = {int(number): str(delegate["name"]) for number, delegate in delegates.items()}
    ours = {n: call.name for n, call in enumerate(method.instructions) if call.kind == "delegate"}
    if not ours.items() >= backends.items():
        raise _OtherProgram(f"its delegates are {backends}, those of the program {ours}")
    _check_program(method, handles, edges_of)
    calls = list(method.instructions)
    for number, call in enumerate(calls):
        if call.xnodes:
            linked = links.link_xnodes(call.xnodes, edges_of.get(number, []), origins)
            calls[number] = replace(call, xnodes=linked)
        elif call.kind == "kernel" and edges_of.get(number):
            alike = (edge for edge in edges_of[number] if _is_kernel_of(call, edge))
            calls[number] = replace(call, origin=next(alike, edges_of[number][0]).number)
    for number, delegate in delegates.items():
        logged = {str(name): nodes(given) for name, given in delegate["delegate_map"].items()}
        if not calls[int(number)].xnodes:
            events = {
                name: tuple(e.number for e in edges) for name, edges in logged.items() if edges
            }
            calls[int(number)] = replace(calls[int(number)], events=events)
    return replace(method, instructions=tuple(calls), origins=tuple(origins), modules=modules)


def _read_handles(archive: zipfile.ZipFile, method: str) -> dict[str, Any]:
    """The debug handles of each instruction: a list for a delegate, a number for a kernel."""
    handles = _read_json(archive, "debug_handle_map")
    if handles and isinstance(handles, dict) and method not in handles:
        raise _OtherProgram(f"its methods are {', '.join(handles)}, not {method}")
    return dict(handles[method])


#: The part of operators that must be found; in the right ETRecord, all are.
_LEAST_FOUND = 0.9


def _check_program(
    method: Method, handles: Mapping[int, Any], edges_of: Mapping[int, Sequence[EdgeNode]]
) -> None:
    """Raise `_OtherProgram` if the instructions of a method are not those of an ETRecord."""
    calls = dict(enumerate(method.instructions))
    for number, given in handles.items():
        kind = "delegate" if isinstance(given, list) else "kernel"
        if number not in calls or calls[number].kind != kind:
            raise _OtherProgram(f"its instruction {number} is a {kind}, the program's is not")
    fits = []
    for number, edges in edges_of.items():
        call = calls[number]
        if call.kind == "kernel":
            fits.append(any(_is_kernel_of(call, edge) for edge in edges))
        for node in (node for node in call.xnodes if node.handle != NO_HANDLE):
            alike = (edge for edge in edges if edge.handle == node.handle)
            fits.append(any(node.type in edge.types for edge in alike))
    if sum(fits) < _LEAST_FOUND * len(fits):
        raise _OtherProgram(f"it has {sum(fits)} of the program's {len(fits)} operators")


def _is_kernel_of(call: Instruction, edge: EdgeNode) -> bool:
    kernel = call.name.rpartition("::")[2].partition(".")[0]
    return f".{kernel}." in f".{edge.operator}."


def _read_graph(
    archive: zipfile.ZipFile, method: str, sources: Sources
) -> tuple[dict[int, list[EdgeNode]], list[Origin], dict[str, str]]:
    """The nodes of a method by their debug handles, the origins, and the classes of modules."""
    names = set(archive.namelist())
    entry = next((name for graph in _GRAPHS if (name := f"{graph}/{method}") in names), None)
    nodes = _read_json(archive, entry)["graph_module"]["graph"]["nodes"] if entry else []
    return _read_nodes(nodes, sources)


def list_origins(nodes: Sequence[Mapping[str, Any]]) -> list[Origin]:
    """What the nodes of a graph are of, as PyTorch's format of saved programs has them."""
    return _read_nodes(nodes, Sources())[1]


def _read_nodes(
    nodes: Sequence[Mapping[str, Any]], sources: Sources
) -> tuple[dict[int, list[EdgeNode]], list[Origin], dict[str, str]]:
    edges: dict[int, list[EdgeNode]] = defaultdict(list)
    origins: list[Origin] = []
    modules: dict[str, str] = {}
    for node in nodes:
        metadata = node["metadata"]
        stack = [each.split(",") for each in metadata.get("nn_module_stack", "").split(";")]
        around = links.module_classes((each[1], each[2]) for each in stack if len(each) == 3)
        # An operator's full name in the edge dialect ends with, say, aten.relu.default.
        name, operator = str(node["name"]), str(node["target"]).rpartition(".ops.")[2]
        if "debug_handle" in metadata:
            handle = int(metadata["debug_handle"])
            tensors = (each["arg"].get("as_tensor") for each in node["inputs"])
            arguments = tuple(str(tensor["name"]) for tensor in tensors if tensor)
            edges[handle].append(EdgeNode(len(origins), name, operator, handle, arguments))
        line = sources.add(metadata.get("stack_trace"))
        origins.append(links.make_origin(name, operator, around, line))
        modules |= around
    links.share_layers(origins, chain.from_iterable(edges.values()))
    return edges, origins, modules


def _read_json(archive: zipfile.ZipFile, name: str) -> Any:
    entry = archive.getinfo(name)
    # ExecuTorch stores it as it is; a compressed one may be small and still huge.
    if entry.file_size > min(_LARGEST_BYTES, 2 * entry.compress_size + 2**20):
        raise ValueError(f"{name} is too large")
    with archive.open(name) as file:
        return json.loads(file.read(_LARGEST_BYTES))
