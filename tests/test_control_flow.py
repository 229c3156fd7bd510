"""Branches and loops: their operators are counted, have layers and lines, and are timed."""

import pytest
import torch
from exported_runs import make_model, measure_briefly
from exporting import problem
from torch import nn
from torch._higher_order_ops.map import map as repeat
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import workbench as wb


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.small = nn.Conv2d(3, 4, 1), nn.Linear(4, 2)
        self.big = nn.Sequential(nn.Conv2d(4, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6272, 2))

    def forward(self, x):
        x = self.stem(x)
        return torch.cond(
            x.mean() > 9, lambda x: self.small(x.mean((2, 3))), lambda x: self.big(x), (x,)
        )


class Nested(nn.Module):
    """A loop in a loop, the inner one after an operator that the emitter also adds."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(3, 4, bias=False), nn.Linear(4, 3)

    def forward(self, x):
        rows = repeat(lambda x: self.outer(repeat(lambda y: self.inner(y[0]), x)), x)
        return torch.relu(rows)


class Recurrence(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.Linear(4, 4)

    def forward(self, x):
        def step(state, x):
            state = torch.tanh(self.cell(x) + state)
            return state, state.clone()

        return scan(step, torch.zeros(1, 4), x)[1].exp()


class Loop(nn.Module):
    def forward(self, x, count):
        return while_loop(
            lambda i, x: i.sum() < count.sum(),
            lambda i, x: (i + 1, x.tanh()),
            (torch.zeros(1, dtype=torch.int64), x),
        )[1]


class Pairs(nn.Module):
    def forward(self, x, y):
        return repeat(lambda pair: pair[0] * pair[1], (x, y))


IMAGE = (torch.randn(1, 3, 16, 16),)


def export(module, inputs, root, **options):
    model = make_model(type(module).__name__, module, inputs)
    return wb.export_model(model, options=wb.ExportOptions(**options), root=root)


def layers_of(program):
    """The name and the layer of each kernel and each delegated operator."""
    (method,) = program.layers.methods
    kernels = [
        (call.name.rpartition("::")[2].partition(".")[0], method.origins[call.origin].module)
        for call in method.instructions
        if call.kind == "kernel"
    ]
    xnodes = (node for call in method.instructions for node in call.xnodes)
    return kernels + [(node.type, method.origins[node.origins[0]].module) for node in xnodes]


def test_operators_of_branches_are_counted_and_have_layers(tmp_path):
    program = export(Branches(), IMAGE, tmp_path, backend="portable")
    counts = {}
    for row in program.export.partition:
        assert "test_control_flow.py:2" in row.source
        counts[row.operator] = counts.get(row.operator, 0) + row.count
    assert counts["aten.addmm"] == counts["aten.convolution"] == 2
    layers = layers_of(program)
    assert [pair for pair in layers if pair[0] == "addmm"] == [
        ("addmm", "small"),
        ("addmm", "big.3"),
    ]
    assert [pair for pair in layers if pair[0] == "convolution"] == [
        ("convolution", "stem"),
        ("convolution", "big.0"),
    ]
    assert ("relu", "") in layers, "no parameter says that it is big.1: it is the model's"
    assert program.layers.methods[0].modules["big.0"] == "Conv2d"


@pytest.mark.cases
def test_a_loop_in_a_loop(tmp_path):
    layers = layers_of(export(Nested(), (torch.randn(2, 5, 6, 3),), tmp_path, backend="portable"))
    names = [name for name, _ in layers]
    assert names[:5] == ["sym_size", "select_copy", "sym_size", "select_copy", "select_copy"]
    assert [pair for pair in layers if pair[0] in ("mm", "addmm", "relu", "et_copy_index")] == [
        ("mm", "inner"),
        ("et_copy_index", ""),
        ("addmm", "outer"),
        ("et_copy_index", ""),
        ("relu", ""),
    ]


@pytest.mark.whole
def test_xnnpack_does_not_look_into_bodies(tmp_path):
    program = export(Recurrence(), (torch.randn(5, 1, 4),), tmp_path)
    reasons = {row.operator: row.reason for row in program.export.partition}
    assert reasons["aten.addmm"] == reasons["aten.tanh"]
    assert "in the body of control flow" in reasons["aten.tanh"]
    assert reasons["aten.exp"] == "", "it is delegated"
    assert {("addmm", "cell"), ("Exp", "")} <= set(layers_of(program))


@pytest.mark.cases
def test_what_upstream_refuses_is_one_line_with_what_works(tmp_path):
    line = problem(export, Branches(), IMAGE, tmp_path)
    assert "test_control_flow.py:23: lowering: aten.linear is in the body of control flow" in line
    assert "-> compute it outside of the body, or --backend portable, in fp32" in line
    line = problem(export, Loop(), (torch.randn(3), torch.tensor([4])), tmp_path)
    assert ": lowering: ExecuTorch does not run while_loop -> loop in Python over a fixed" in line
    line = problem(export, Pairs(), (torch.randn(3, 2), torch.randn(3, 2)), tmp_path)
    assert "test_control_flow.py:64: lowering: Emitting map with more than one mapped" in line


@pytest.mark.cases
def test_a_quantised_program_with_branches_names_what_takes_them(tmp_path):
    line = problem(export, Branches(), IMAGE, tmp_path, dtype="int8dyn")
    assert "or --backend portable, in fp32, fp16 or bf16" in line
    export(Branches(), IMAGE, tmp_path, backend="portable")


@pytest.mark.whole
def test_the_operators_of_a_branch_are_timed(tmp_path):
    model = make_model("branches", Branches(), IMAGE)
    run = wb.open_run(measure_briefly(model, tmp_path, backend="portable"))
    operators = run.subject.operators
    slowest = operators.loc[operators["mean_ms"].idxmax()]
    assert slowest["module"] == "big.0"
    assert slowest["confidence"] == "exact"
    assert "test_control_flow.py:23" in slowest["source"]
    kernels = operators[operators["kind"] == "portable"]
    assert (kernels["confidence"] == "exact").all()
