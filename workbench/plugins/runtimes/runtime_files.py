"""A model as another runtime takes it: a side of a run, beside the program of ExecuTorch."""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench import Program, WorkbenchError
from workbench.api import Side
from workbench.graphs import (
    Graph,
    reason,
    versions,
)
from workbench.jobs import Progress

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from workbench.graphs import LoadedModel


#: What a runtime needs: packages of its extra.
PACKAGES = {"onnx": ("onnx", "onnxscript", "onnxruntime")}


def make_file(
    text: str, program: Program, load: Callable[[], LoadedModel], progress: Progress
) -> Program:
    """The file of a program's model for another runtime.

    The model, which ``load`` returns, is traced as it is, in its own dtype, without casts and
    rewrites, and kept beside the program; the files of other runtimes are made of that graph.
    """
    import torch

    suffix = ".pt2" if text in ("eager", "compile") else ".onnx"
    path = program.path.with_name(f"{program.stem}-{_identify(program, text)}.{text}{suffix}")
    traced = path if text == "eager" else make_file("eager", program, load, progress).path

    def make(path: Path) -> Graph:
        progress(f"preparing {program.model} for {text}", 0.0)
        if text == "eager":
            _save_graph(path, load())
        graph = torch.export.load(traced)
        if text == "compile":
            path.unlink(missing_ok=True)
            os.link(traced, path)
        floats = (str(t.dtype)[6:] for t in graph.state_dict.values() if t.is_floating_point())
        described = Graph(next(floats, "float32"))
        if suffix == ".onnx":
            _export_onnx(path, graph, program.model, described)
        else:
            _record_graph(graph, described)
        return described

    return Side.keep(path, program, make)


def _identify(program: Program, runtime: str) -> str:
    """Of what a side is made, as eight digits: the program's sources, and what exports now."""
    packages = [importlib.metadata.version(package) for package in PACKAGES.get(runtime, ())]
    sources = program.export.made_from if program.export else {}
    made_by = [versions(), Path(__file__).read_text()]
    text = json.dumps([program.sha256, sources, made_by, packages])
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _save_graph(path: Path, model: LoadedModel) -> None:
    import torch

    from workbench.graphs import trace_model

    graph = trace_model(model).exported
    partial = path.with_name(f".{path.stem}.{os.getpid():08}.partial.pt2")
    try:
        torch.export.save(graph, partial)
        partial.replace(path)
    except Exception as error:  # PyTorch's serialiser may raise anything
        what = f"PyTorch cannot save its graph: {reason(error)}"
        raise WorkbenchError(what, where=model.origin) from None
    finally:
        partial.unlink(missing_ok=True)


def _export_onnx(path: Path, graph: ExportedProgram, model: str, described: Graph) -> None:
    """Write a graph as ONNX, and describe it."""
    import onnx
    import torch

    try:
        made = torch.onnx.export(graph, dynamo=True, verbose=False)
        assert made
        made.save(path)
    except Exception as error:  # PyTorch's exporter may raise anything
        raise WorkbenchError(
            f"PyTorch cannot export it to ONNX: {reason(error)}", where=model
        ) from None
    nodes = onnx.load(path, load_external_data=False).graph.node
    numbers = _record_onnx(nodes, described)
    described.events = _record_fusion(path, nodes, numbers)


def _record_onnx(nodes: Sequence[Any], described: Graph) -> list[tuple[int, ...]]:
    """Describe an ONNX graph; returns the numbers of operators by the position of a node.

    A convolution that has absorbed a batch norm carries its metadata; its weight has the name of
    the layer.
    """
    numbers = list[tuple[int, ...]]()
    for node in nodes:
        metadata = {entry.key: entry.value for entry in node.metadata_props}
        scopes, kinds = (
            ast.literal_eval(metadata.get(f"pkg.torch.onnx.{key}", "['']"))[:-1]
            for key in ("name_scopes", "class_hierarchy")
        )
        stack = zip(scopes, kinds, strict=False)
        trace = metadata.get("pkg.torch.onnx.stack_trace")
        number = described.add(node.name, node.op_type, stack, trace)
        origin = described.operators[number]
        # Only of these: equal weights, such as those of two norms, are one and have one name.
        weighted = node.op_type in ("Conv", "ConvTranspose", "Gemm")
        owner = node.input[1].rpartition(".")[0] if weighted else ""
        if owner and owner != origin.module:
            layer = replace(origin, module=owner, module_class=node.op_type)
            described.operators.insert(number, layer)
        numbers.append(tuple(range(number, len(described.operators))))
    return numbers


def _list_readers(nodes: Sequence[Any]) -> Mapping[str, set[int]]:
    """The nodes that read each value."""
    readers: dict[str, set[int]] = defaultdict(set)
    for n, node in enumerate(nodes):
        for name in node.input:
            readers[name].add(n)
    return readers


def _record_fusion(
    path: Path, nodes: Sequence[Any], numbers: Sequence[tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """The origins of every operator that ONNX Runtime makes of a model, by what it logs.

    An operator has the name of a node (and of fusions), or that of a node's output. It covers this
    node and those before it that nothing else reads, as far as the first of its own type; what is
    left over was fused into the operator before it.
    """
    fused = _optimize(path)
    by_name = {node.name: n for n, node in enumerate(nodes)}
    producer = {output: n for n, node in enumerate(nodes) for output in node.output}
    readers = _list_readers(nodes)
    owner: dict[int, str] = {}
    parts: dict[str, list[int]] = {}
    for node in fused:
        plain = node.name.partition("/")[0]  # before the fusions, as in MatMul_1/MatMulAddFusion
        names = node.name, plain.removesuffix("_nchwc"), *node.output
        places = (lookup.get(name) for name in names for lookup in (by_name, producer))
        main = next((place for place in places if place is not None), None)
        if main is not None and main not in owner and not node.op_type.startswith("Reorder"):
            owner[main] = label = f"{node.op_type} ({node.name})"
            parts[label] = [main]
    for label, covered in parts.items():
        for n in covered:  # which grows
            if nodes[n].op_type == _type_of(label):
                break
            before = dict.fromkeys(producer[name] for name in nodes[n].input if name in producer)
            covered += [
                b
                for b in before
                if b not in owner
                and set().union(*(readers[o] for o in nodes[b].output)) <= {*covered}
            ]
        owner |= dict.fromkeys(covered, label)
    for n, node in enumerate(nodes):
        before_it = [producer[name] for name in node.input if producer.get(name) in owner]
        if n not in owner and before_it:
            owner[n] = owner[before_it[0]]
            parts[owner[n]].append(n)

    def order(label: str) -> tuple[int, ...]:
        """The origins, those of the node of the operator's own type first: they name the layer."""
        ordered = sorted(parts[label], key=lambda n: (nodes[n].op_type != _type_of(label), n))
        return tuple(dict.fromkeys(chain.from_iterable(numbers[n] for n in ordered)))

    return {label: order(label) for label in parts}


def _optimize(path: Path) -> Sequence[Any]:
    """The nodes that ONNX Runtime makes of a model."""
    import onnx
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath, options.log_severity_level = f"{folder}/model.onnx", 3
        onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        return list(onnx.load(f"{folder}/model.onnx", load_external_data=False).graph.node)


def _type_of(label: str) -> str:
    return label.partition(" ")[0].removeprefix("Fused")


def _record_graph(graph: ExportedProgram, described: Graph) -> None:
    """Describe the operators of a graph."""
    for node in graph.module(check_guards=False).graph.nodes:  # type: ignore[operator]
        if node.op == "call_function":
            described.events[Graph.label(node)] = (described.add_node(node),)


_PROCESS = "workbench.plugins.runtimes.serve"
EAGER = COMPILE = Side(make_file, _PROCESS)
ONNX = Side(make_file, _PROCESS, PACKAGES["onnx"])
