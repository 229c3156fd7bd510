"""Programs exported elsewhere get their layers from the ETRecord; so do other backends' events."""

import json
import shutil
import warnings
import zipfile
from dataclasses import replace

import pandas as pd
import pytest
import torch
from torch import nn

import workbench as wb
from workbench.analysis.attribution import attribute_layers
from workbench.errors import StoreError
from workbench.export.etrecord import add_etrecord, read_etrecord
from workbench.export.origins import EdgeNode, share_layers
from workbench.export.pte import NO_HANDLE
from workbench.export.sidecar import outline_program, outline_pte
from workbench.frames import LEDGER
from workbench.records.layer_sidecar import Instruction, Layers, Method, Origin


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU())
        self.norm = nn.LayerNorm(5)
        self.head = nn.Conv2d(6, 4, 1)

    def forward(self, x):
        return self.head(self.norm(self.stem(x)))


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A program for XNNPACK, and where its ETRecord is."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    path = tmp_path_factory.mktemp("etrecord") / "net.pte.etrecord"
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):
        program = torch.export.export(Net().eval(), (torch.randn(1, 3, 7, 7),))
        edge = to_edge_transform_and_lower(
            program, partitioner=[XnnpackPartitioner()], generate_etrecord=True
        )
        program = edge.to_executorch()
    program.get_etrecord().save(path)
    return program, path


def layers_of(method):
    """Module, class and line of each instruction, and of each node of its delegates."""
    origins = method.origins

    def tell(number):
        origin = origins[number]
        return origin.module, origin.module_class, origin.source.rpartition("/")[2]

    return [
        (
            None if call.origin is None else tell(call.origin),
            [[tell(n) for n in node.origins] for node in call.xnodes],
            [node.borrows for node in call.xnodes],
        )
        for call in method.instructions
    ]


def test_a_foreign_program_gets_the_layers_that_the_exporter_knew(exported):
    program, path = exported
    theirs = outline_program(program)
    ours = outline_pte(program.buffer, etrecord=path)
    assert layers_of(ours.methods[0]) == layers_of(theirs.methods[0])
    assert ours.methods[0].modules == theirs.methods[0].modules
    assert ours.sha256 == theirs.sha256
    assert "norm" in {origin.module for origin in ours.methods[0].origins}


def test_quantisation_shares_the_layer_of_its_debug_handle():
    """Whichever delegate or instruction it is in; what has a layer, or no handle, keeps its own."""
    origins = [
        Origin("conv", "aten.convolution.default", "stem", "Conv2d", "my.py:1"),
        Origin("dequantize", "quantized_decomposed.dequantize_per_tensor.default"),
        Origin("relu", "aten.relu.default", "act", "ReLU"),
        Origin("cast", "aten._to_copy.default"),
        Origin("clone", "aten.clone.default"),
    ]
    handles = [7, 7, 7, NO_HANDLE, None]
    edges = [
        EdgeNode(number, origin.node, origin.operator, handle, ())
        for number, (origin, handle) in enumerate(zip(origins, handles, strict=True))
    ]
    shared = list(origins)
    share_layers(shared, edges)
    assert shared[1] == replace(origins[1], module="stem", module_class="Conv2d")
    assert shared[:1] + shared[2:] == origins[:1] + origins[2:]


@pytest.fixture
def other(tmp_path):
    """A program with a delegate that is not XNNPACK's, and its ETRecord."""
    nodes = [
        {
            "name": name,
            "target": f"executorch.exir.dialects.edge.ops.aten.{name}.default",
            "inputs": [],
            "metadata": {
                "debug_handle": str(handle),
                "nn_module_stack": f"L__self__,,my.Net;L__self__{module},{module},torch.nn.{kind}",
                "stack_trace": f'File "/home/me/my.py", line {handle}0, in forward\n    x',
            },
        }
        for handle, (name, module, kind) in enumerate(
            [("convolution", "conv", "Conv2d"), ("relu", "act", "ReLU"), ("tan", "tail.0", "Tan")],
            1,
        )
    ]
    events = {"7": [1, 2], "sine": [3], "cosine": 3}
    entries = {
        "edge_after_transform/forward": {"graph_module": {"graph": {"nodes": nodes}}},
        "debug_handle_map": {"forward": {"0": [1, 2, 3]}},
        "delegate_map": {"forward": {"0": {"name": "OtherBackend", "delegate_map": events}}},
    }
    method = Method("forward", (Instruction("delegate", "OtherBackend"),), {})
    return Layers("0", (method,)), write_record(tmp_path / "x.etrecord", entries), entries


def write_record(path, entries):
    with zipfile.ZipFile(path, "w") as archive:
        for name, value in entries.items():
            archive.writestr(name, json.dumps(value))
    return path


def ledger_of(*names):
    """One run of one delegate that logs these names, and the rest of its call."""
    kinds = ["delegated"] * len(names) + ["delegate_overhead"]
    names = [*names, "DELEGATE_CALL"]
    count = len(names)
    ledger = pd.DataFrame(
        {
            "run": 0,
            "row": range(count),
            "kind": kinds,
            "name": names,
            "operator": names,
            "key": [f"0/{name}/0" for name in names],
            "instruction": 0,
            "duration_ns": 1000,
        }
    )
    return ledger[LEDGER.names]


def test_events_of_another_backend_are_known_by_the_ids_that_it_logs(other):
    layers, path, _ = other
    ledger = ledger_of("7", "sine", "cosine", "unheard of")
    rows = attribute_layers(ledger, add_etrecord(layers, path)).set_index("key")
    assert rows["module"].fillna("-").tolist() == ["conv", "tail.0", "tail.0", "-", "-"]
    assert rows.loc["0/7/0", "also"] == "act"
    assert rows.loc["0/7/0", "nodes"] == "convolution, relu"
    assert rows.loc["0/sine/0", "source"] == "/home/me/my.py:30"
    assert rows["confidence"].tolist() == [*["exact"] * 3, *["unattributed"] * 2]
    assert rows["flops"].isna().all()


class Fused(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 3)

    def forward(self, x):
        return torch.tan(torch.relu(self.conv(x)))


def test_the_map_that_a_backend_of_executorch_makes_is_understood(tmp_path):
    """Of ExecuTorch's demonstration: a fused operator, and one that runs as three."""
    from executorch.exir import to_edge
    from executorch.exir.backend.backend_api import to_backend
    from executorch.exir.backend.test.backend_with_delegate_mapping_demo import (
        BackendWithDelegateMappingDemo as Demo,
    )

    inputs, path = (torch.randn(1, 1, 8, 8),), tmp_path / "demo.etrecord"
    with warnings.catch_warnings(action="ignore"):
        inner = to_edge(torch.export.export(Fused().eval(), inputs))
        lowered = to_backend(Demo.__name__, inner.exported_program(), [])
        program = lowered.program()
        map_of_demo = lowered.meta["debug_handle_map"]
    assert {tuple(handles) for handles in map_of_demo.values()} >= {(1, 2), (3,)}
    plan = program.execution_plan[0]
    assert [delegate.id for delegate in plan.delegates] == [Demo.__name__]
    nodes = [
        {
            "name": node.name,
            "target": f"executorch.exir.dialects.edge.ops.{node.target.__name__}",
            "inputs": [],
            "metadata": {"debug_handle": str(node.meta["debug_handle"])},
        }
        for node in lowered.original_module.graph.nodes
        if node.op == "call_function"
    ]
    entries = {
        "edge_after_transform/forward": {"graph_module": {"graph": {"nodes": nodes}}},
        "debug_handle_map": {"forward": {"0": [1, 2, 3]}},
        "delegate_map": {"forward": {"0": {"name": Demo.__name__, "delegate_map": map_of_demo}}},
    }
    bare = outline_pte(lowered.buffer())
    method = add_etrecord(bare, write_record(path, entries)).methods[0]
    events = [
        [method.origins[number].operator for number in numbers]
        for numbers in method.instructions[0].events.values()
    ]
    tan = ["aten.tan.default"]
    assert events == [["aten.convolution.default", "aten.relu.default"], tan, tan, tan]


def test_a_record_of_another_program_is_refused(other, exported):
    layers, path, entries = other
    renamed = entries["delegate_map"]["forward"]["0"] | {"name": "Third"}
    write_record(path, entries | {"delegate_map": {"forward": {"0": renamed}}})
    with pytest.raises(StoreError, match="its delegates are"):
        add_etrecord(layers, path)
    with pytest.raises(StoreError, match="not an ETRecord"):
        outline_pte(exported[0].buffer, etrecord=write_record(path, {}))


def test_a_record_of_another_program_with_the_same_delegates_is_refused(exported, tmp_path):
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    module = nn.Sequential(nn.Linear(8, 8), nn.Sigmoid(), nn.LayerNorm(8), nn.Linear(8, 8))
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):
        program = torch.export.export(module.eval(), (torch.randn(2, 8),))
        edge = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
        other = outline_pte(edge.to_executorch().buffer)
    kinds = [
        [call.kind for call in layers.methods[0].instructions]
        for layers in (other, outline_pte(exported[0].buffer))
    ]
    assert kinds[0] == kinds[1], "only the operators tell them apart"
    with pytest.raises(StoreError, match=r"an ETRecord of another program: it has \d of the"):
        add_etrecord(other, exported[1])
    methods = (replace(other.methods[0], name="times"),)
    with pytest.raises(StoreError, match="another program: its methods are forward, not times"):
        add_etrecord(replace(other, methods=methods), exported[1])


@pytest.mark.parametrize(
    "name", ["debug_handle_map", "delegate_map", "edge_after_transform/forward"]
)
@pytest.mark.parametrize("value", [None, [], {"forward": 1}, {"forward": {"x": "y"}}, "text"])
def test_a_malformed_record_is_one_clear_error(other, name, value):
    layers, path, entries = other
    write_record(path, entries | {name: value})
    with pytest.raises(StoreError, match=r"x\.etrecord: not an ETRecord"):
        add_etrecord(layers, path)


def test_what_is_no_archive_is_one_clear_error(other, tmp_path):
    layers, path, _ = other
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(StoreError, match="not an ETRecord"):
        add_etrecord(layers, path)
    path.write_bytes(b"")
    with pytest.raises(StoreError, match="is empty"):
        add_etrecord(layers, path)
    with pytest.raises(StoreError, match="No such file"):
        add_etrecord(layers, tmp_path / "none")


def test_a_run_says_why_an_etrecord_beside_it_gives_no_layers(exported, tmp_path):
    trace = wb.sample_run("toy_cnn") / "sme2_on" / "toy_cnn_xnnpack_fp32_sme2_on_t1.etdump"
    shutil.copy(trace, tmp_path / "net.etdump")
    assert "layers" not in " ".join(wb.open_run(tmp_path).caveats)
    record = tmp_path / "etrecord.bin"
    record.write_bytes(b"")
    assert "layers: etrecord.bin: is empty" in wb.open_run(tmp_path).caveats
    record.write_bytes(exported[1].read_bytes()[:600])
    (caveat,) = (text for text in wb.open_run(tmp_path).caveats if "etrecord" in text)
    assert "layers: etrecord.bin: not an ETRecord" in caveat
    shutil.copy(exported[1], record)
    (caveat,) = (text for text in wb.open_run(tmp_path).caveats if "etrecord" in text)
    assert "put the .pte beside it" in caveat


@pytest.mark.whole
def test_a_run_of_ours_says_so_too(exported, conv_pte, tmp_path):
    pte = shutil.copy(conv_pte, tmp_path / "conv.pte")
    shutil.copy(exported[1], tmp_path / "conv.etrecord")
    options = wb.MeasureOptions(runs=8, processes=2, evidence=False)
    run = wb.measure(pte, options=options, root=tmp_path / "out")
    (caveat,) = (text for text in run.caveats if "etrecord" in text)
    assert "layers: conv.etrecord: an ETRecord of another program" in caveat


def test_an_etrecord_of_upstream_is_listed(exported):
    origins = read_etrecord(exported[1])["forward"]
    assert {"stem.0", "norm", "head"} <= {origin.module for origin in origins}


def test_kernels_without_a_node_are_unattributed(other):
    layers, path, _ = other
    told = add_etrecord(layers, path).methods[0]
    calls = (
        Instruction("kernel", "aten::sin.out", origin=1),
        Instruction("kernel", "aten::cos.out"),
    )
    layers = replace(layers, methods=(replace(told, instructions=calls),))
    ledger = ledger_of("native_call_sin.out", "native_call_cos.out").assign(
        kind="portable", instruction=[0, 1, 1]
    )
    rows = attribute_layers(ledger.iloc[:2], layers)
    assert rows["confidence"].tolist() == ["exact", "unattributed"]
    assert rows["module"].isna().tolist() == [False, True]


@pytest.mark.whole
def test_layers_of_a_foreign_program_come_after_its_run_too(exported, tmp_path, cli):
    program, etrecord = exported
    pte = tmp_path / "net.pte"
    pte.write_bytes(program.buffer)
    brief = wb.MeasureOptions("none", runs=1, processes=1, evidence=False, cold_start=False)
    run = wb.measure(pte, options=brief, root=tmp_path / "out")
    assert run.layers is None
    beside = run.path / "etrecord.bin"
    shutil.copy(etrecord, beside)
    assert "stem.0" in set(wb.open_run(run.path).layers["module"])
    beside.write_bytes(b"of another program")
    assert wb.open_run(run.path).layers is None
    assert "not an ETRecord" in cli("analyze", run.path, "--etrecord", beside)[2]
    beside.unlink()
    assert cli("analyze", run.path, "--etrecord", etrecord)[0] == 0
    assert "stem.0" in set(wb.open_run(run.path).layers["module"])
    assert "without layers" in cli("analyze", run.path, "--etrecord", etrecord)[2]
