"""The layers of a program that was exported elsewhere, by the ETRecord that came with it.

An ETRecord is a ZIP archive; its graphs and maps are JSON, and nothing else of it is read here.
"""

from __future__ import annotations

import json
import zipfile
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from workbench.errors import StoreError
from workbench.export.origins import EdgeNode, link_xnodes, make_origin, share_layers
from workbench.models.sources import user_line_of_stack
from workbench.records.layers import Instruction, Layers, Method, Origin

#: The last graph before operators are given to backends, and the one before that.
_GRAPHS = ("edge_after_transform", "edge_dialect_exported_program")
_LARGEST_BYTES = 2**28
_MALFORMED = (
    AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError,
    zipfile.BadZipFile, NotImplementedError,
)  # fmt: skip


@dataclass(frozen=True)
class _Maps:
    """What an ETRecord knows of one method.

    ``handles`` are the debug handles of each instruction; ``events``, of each delegate, those of
    what it logs, by the id that it logs.
    """

    nodes: list[dict[str, Any]]
    handles: dict[int, list[int]]
    events: dict[int, dict[str, list[int]]]
    backends: dict[int, str]


def add_etrecord(layers: Layers, path: Path) -> Layers:
    """The sidecar of a bare program with the layers that its ETRecord tells.

    Operators of delegates other than XNNPACK's are known where the backend handed a delegate map
    to the exporter: by the integers or strings that it logs.

    Raises
    ------
    StoreError
        It is no ETRecord, or of another program.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            methods = tuple(_add_to_method(m, _read_maps(archive, m.name)) for m in layers.methods)
    except _MALFORMED as error:
        raise StoreError(f"not an ETRecord: {error}", where=path) from None
    except OSError as error:
        raise StoreError(error.strerror or str(error), where=path) from None
    return replace(layers, methods=methods)


def _read_maps(archive: zipfile.ZipFile, method: str) -> _Maps:
    names = set(archive.namelist())
    graph = next((name for g in _GRAPHS if (name := f"{g}/{method}") in names), None)
    handles = _read_json(archive, "debug_handle_map")[method]
    delegates = _read_json(archive, "delegate_map").get(method, {})
    return _Maps(
        nodes=_read_json(archive, graph)["graph_module"]["graph"]["nodes"] if graph else [],
        handles={int(n): _as_list(found) for n, found in handles.items()},
        events={
            int(n): {str(logged): _as_list(found) for logged, found in d["delegate_map"].items()}
            for n, d in delegates.items()
        },
        backends={int(n): str(delegate["name"]) for n, delegate in delegates.items()},
    )


def _read_json(archive: zipfile.ZipFile, name: str) -> Any:
    if archive.getinfo(name).file_size > _LARGEST_BYTES:
        raise ValueError(f"{name} is too large")
    with archive.open(name) as file:
        return json.loads(file.read(_LARGEST_BYTES))


def _as_list(handles: Any) -> list[int]:
    return [int(handle) for handle in (handles if isinstance(handles, list) else [handles])]


def _add_to_method(method: Method, maps: _Maps) -> Method:
    found = {n: call.name for n, call in enumerate(method.instructions) if call.kind == "delegate"}
    if not found.items() >= maps.backends.items():
        raise ValueError(f"its delegates are {maps.backends}, those of the program {found}")
    modules: dict[str, str] = {}
    edges: dict[int, list[EdgeNode]] = defaultdict(list)
    origins: list[Origin] = []
    for node in maps.nodes:
        metadata = node["metadata"]
        stack = [entry.split(",") for entry in metadata.get("nn_module_stack", "").split(";")]
        pairs = [(fields[1], fields[2]) for fields in stack if len(fields) == 3]
        line = user_line_of_stack(metadata.get("stack_trace"))
        origin, around = make_origin(str(node["name"]), _operator(node), pairs, line)
        if "debug_handle" in metadata:
            handle = int(metadata["debug_handle"])
            edges[handle].append(_edge(len(origins), node, handle))
        origins.append(origin)
        modules |= around
    share_layers(origins, chain.from_iterable(edges.values()))
    instructions = tuple(
        _add_to_instruction(call, maps.handles.get(n, []), maps.events.get(n, {}), edges, origins)
        for n, call in enumerate(method.instructions)
    )
    return replace(method, instructions=instructions, origins=tuple(origins), modules=modules)


def _add_to_instruction(
    call: Instruction,
    handles: Iterable[int],
    events: dict[str, list[int]],
    edges: dict[int, list[EdgeNode]],
    origins: list[Origin],
) -> Instruction:
    found = [edge for handle in dict.fromkeys(handles) for edge in edges.get(handle, ())]
    if call.kind == "kernel" and found:
        kernel = call.name.rpartition("::")[2].partition(".")[0]
        alike = (edge for edge in found if f".{kernel}." in f".{edge.operator}.")
        return replace(call, origin=next(alike, found[0]).number)
    if call.xnodes:
        return replace(call, xnodes=link_xnodes(call.xnodes, found, origins))
    logged = {
        name: tuple(edge.number for handle in numbers for edge in edges.get(handle, ()))
        for name, numbers in events.items()
    }
    return replace(call, events={name: numbers for name, numbers in logged.items() if numbers})


def _operator(node: dict[str, Any]) -> str:
    """``aten.relu.default``, of an operator's full name in the dialect of edge programs."""
    return str(node["target"]).rpartition(".ops.")[2]


def _edge(number: int, node: dict[str, Any], handle: int) -> EdgeNode:
    arguments = [each["arg"].get("as_tensor") for each in node["inputs"]]
    return EdgeNode(
        number=number,
        name=str(node["name"]),
        operator=_operator(node),
        handle=handle,
        arguments=tuple(str(argument["name"]) for argument in arguments if argument),
    )
