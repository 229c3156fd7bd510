"""Programs of the user's own export script: rewritten, saved, lowered, and strangers' files."""

import json
import os
import pickle
import zipfile

import pytest
import torch
from needed import needs
from torch import nn

import workbench as wb
from workbench.jobs import list_subjects


class Sampled(nn.Module):
    """Convolutions, a function that XNNPACK lacks, and a constant that is computed each time."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 1)

    def forward(self, x):
        scale = torch.arange(8.0).view(1, 8, 1, 1).expand(1, 8, 16, 16).sin()
        x = nn.functional.mish(self.first(x)) * scale
        return self.last(x).flip(1)


NET, X = Sampled().eval(), torch.randn(1, 3, 16, 16)


def lower(exported, **options):
    """Upstream's own lines."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    return to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()], **options)


def list_places(program):
    """The layer and the line of each operator in the exporter's graph."""
    return [(o.node, o.module, o.module_class, o.source) for o in program.layers.methods[0].origins]


@pytest.fixture(scope="module")
def exported():
    return torch.export.export(NET, (X,))


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The program of the module, as the workbench exports it."""
    return wb.export_model(NET, X, root=tmp_path_factory.mktemp("plain"))


@needs("remedies")
@pytest.mark.whole
def test_a_rewritten_program_is_that_of_the_option_and_the_given_one_stays(
    exported, tmp_path, capsys
):
    before = [str(node.meta.get("custom")) for node in exported.graph.nodes], str(exported.graph)
    names = ("all", "functions", "constants")
    program = wb.rewrite(exported, names)
    assert program.changes and f"rewritten: {program.changes}\n" == capsys.readouterr().out
    made = lower(program, transform_passes=program.passes).to_executorch(program.config)
    option = wb.export_model(NET, X, wb.ExportOptions(rewrite=names), root=tmp_path)
    assert made.buffer == option.path.read_bytes()
    assert str(program.changes) == option.export.options["rewritten"] != "nothing"
    after = [str(node.meta.get("custom")) for node in exported.graph.nodes], str(exported.graph)
    assert before == after


@needs("remedies")
@pytest.mark.parametrize(
    ("names", "text"), [("nope", "nope"), (["sums"], "quantised or lowered"), ("batch", "lowered")]
)
def test_remedies_that_cannot_be_applied_are_refused(exported, names, text):
    with pytest.raises(wb.WorkbenchError, match=text):
        wb.rewrite(exported, names)
    with pytest.raises(wb.WorkbenchError, match="no ExportedProgram"):
        wb.rewrite(NET)


@pytest.mark.whole
def test_an_exported_program_is_exported_as_its_module_is(exported, plain, tmp_path):
    torch.export.save(exported, tmp_path / "sampled.pt2")
    for source in (exported, str(tmp_path / "sampled.pt2")):
        program = wb.export_model(source, root=tmp_path)
        assert program.sha256 == plain.sha256
        assert list_places(program) == list_places(plain)
        assert program.export.model == ("sampled" if isinstance(source, str) else "Sampled")


@pytest.mark.cases
def test_lowered_programs_have_the_layers_and_lines_of_the_module(exported, plain, tmp_path):
    edge = lower(exported)
    programs = list_subjects([edge, edge.to_executorch()], X, tmp_path)
    for program in programs:
        assert program.sha256 == plain.sha256 and program.model == "Sampled"
        assert list_places(program) == list_places(plain)
        assert [call.name for call in program.layers.methods[0].instructions] == [
            call.name for call in plain.layers.methods[0].instructions
        ]
        assert program.inputs[0].sha256 == plain.inputs[0].sha256
        assert program.export is None, "its graph is not known"
    (known,) = list_subjects(lower(exported, generate_etrecord=True), X, tmp_path)
    assert known.sha256 == plain.sha256 and known.export.rewrites == plain.export.rewrites
    with pytest.raises(wb.WorkbenchError, match="takes"):
        list_subjects(edge.to_executorch(), torch.randn(2, 3), tmp_path)


@pytest.mark.whole
def test_a_lowered_program_is_profiled_as_its_module_is(exported, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    quick = {"effort": "quick", "measure": wb.MeasureOptions(runs=1, processes=1)}
    lowered = wb.profile(lower(exported).to_executorch(), X, **quick)
    module = wb.profile(NET, X, **quick)
    places = [
        run.subject.operators.set_index("key")[["operator", "module", "source"]].sort_index()
        for run in (lowered, module)
    ]
    assert places[0].equals(places[1]) and (places[0]["module"] == "first").any()
    again = wb.measure(lowered, options=wb.MeasureOptions(runs=1, processes=1, evidence=False))
    assert again.record.plan.inputs[0].sha256 == module.record.plan.inputs[0].sha256


@needs("remedies")
@pytest.mark.whole
def test_layers_and_remedies_are_known_where_a_size_is_not(tmp_path, monkeypatch):
    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.rows, self.last = nn.Embedding(10, 16), nn.Linear(16, 32)
            self.norm = nn.LayerNorm(16)
            self.register_buffer("places", torch.ones(32, 16))

        def forward(self, x):
            return self.last(self.norm(self.rows(x) + self.places[: x.shape[1]]))

    x = torch.ones(1, 9, dtype=torch.long)
    tokens = torch.export.Dim("tokens", min=2, max=32)
    dynamic = torch.export.export(Positions(), (x,), dynamic_shapes=({1: tokens},))
    monkeypatch.chdir(tmp_path)
    measure = wb.MeasureOptions(runs=1, processes=1, evidence=False)
    program = lower(dynamic, generate_etrecord=True).to_executorch()
    run = wb.profile(program, (x,), effort="quick", measure=measure)
    operators = run.subject.operators.set_index("module")
    assert "test_scripts.py:" in operators.loc["last", "source"]
    assert operators[["shapes", "flops"]].isna().all(axis=None), "32 is a size of the weights, too"
    layers = run.subject.layers.set_index("module")
    assert layers["flops"].isna().all() and layers.loc["last", "share"] > 0
    assert "norms" in set(run.subject.findings["remedy"])


@pytest.mark.whole
def test_delegates_of_several_backends_are_read_with_what_they_log(tmp_path):
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower
    from executorch.exir.backend.test.op_partitioner_demo import AddMulPartitionerDemo

    class Two(nn.Module):
        def forward(self, x):
            return torch.sigmoid(torch.mm(x, x) + x)

    made = to_edge_transform_and_lower(
        torch.export.export(Two(), (torch.randn(4, 4),)),
        partitioner=[AddMulPartitionerDemo(), XnnpackPartitioner()],
    )
    (program,) = list_subjects(made, None, tmp_path)
    calls = [call.name for call in program.layers.methods[0].instructions]
    assert calls == ["BackendWithCompilerDemo", "XnnpackBackend"]
    assert {o.module_class for o in program.layers.methods[0].origins} == {"Two"}


# A saved program may be a stranger's.


class Runs:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mknod, (str(self.path),)


@pytest.fixture(scope="module")
def saved(exported, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "sampled.pt2"
    torch.export.save(exported, path)
    return path


def change(saved, out, edit):
    """The archive with its parts changed: a part, or None to leave it out, of name and content."""
    with zipfile.ZipFile(saved) as archive, zipfile.ZipFile(out, "w") as changed:
        for name in archive.namelist():
            content = edit(name, archive.read(name))
            if content is not None:
                changed.writestr(name, content)
    return out


def edit_graph(name, content, edit):
    if not name.endswith("models/model.json"):
        return content
    graph = json.loads(content)
    edit(graph)
    return json.dumps(graph)


def test_a_saved_program_is_read(saved):
    assert wb.load_model(str(saved)).module(X).shape == (1, 8, 16, 16)


@pytest.mark.parametrize("part", ["sample_inputs/model.pt", "weights/weight_0"])
def test_pickled_objects_are_not_run(saved, tmp_path, part):
    mark = tmp_path / "ran"
    attack = pickle.dumps(Runs(mark))

    def edit(name, content):
        return attack if name.endswith(part) else content

    with pytest.raises(wb.WorkbenchError) as refused:
        wb.load_model(str(change(saved, tmp_path / "x.pt2", edit))).module(X)
    assert "\n" not in str(refused.value) and not mark.exists()


def put_expression(graph, text):
    graph["range_constraints"] = {"s0": {"min_val": 0, "max_val": 9}}
    values = graph["graph_module"]["graph"]["tensor_values"]
    next(iter(values.values()))["sizes"][0] = {"as_expr": {"expr_str": text, "hint": None}}


def test_sizes_are_not_evaluated_as_python(saved, tmp_path):
    mark = tmp_path / "ran"
    text = f"__import__('os').mknod({str(mark)!r})"
    path = change(
        saved, tmp_path / "x.pt2",
        lambda n, c: edit_graph(n, c, lambda graph: put_expression(graph, text)),
    )  # fmt: skip
    with pytest.raises(wb.WorkbenchError, match="is not evaluated"):
        wb.load_model(str(path))
    assert not mark.exists()


def test_only_operators_are_called(saved, tmp_path):
    def edit(graph):
        node = graph["graph_module"]["graph"]["nodes"][0]
        node["target"] = "torch.os.system"

    path = change(saved, tmp_path / "x.pt2", lambda n, c: edit_graph(n, c, edit))
    with pytest.raises(wb.WorkbenchError, match=r"torch\.os\.system"):
        wb.load_model(str(path))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"x" * 99])
def test_other_files_are_refused_in_one_line(tmp_path, content, cli):
    path = tmp_path / "x.pt2"
    path.write_bytes(content)
    code, _, err = cli("export", path)
    assert code and err.strip().count("\n") <= 2 and "x.pt2" in err and "Traceback" not in err
